"""`Case`: one call of a library function that lowers to at least one kernel."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Sequence
from typing import Any

type Call = tuple[Callable[..., Any], Sequence[Any]]


@dataclasses.dataclass(frozen=True)
class Case:
    """A function and its arguments, for the chips that it has a kernel for.

    Attributes:
      name: ``library/platform/op/variant``.
      targets: names of chips in `mosaic_toolkit.targets`.
      make: returns the function and its arguments (arrays or
        `jax.ShapeDtypeStruct`); all imports happen inside it.
      modules: the modules whose kernels the call lowers.
      devices: how many devices the call spans.
      refusal: matches the error of a JAX or chip that cannot lower this case;
        None where every supported one can.
    """

    name: str
    targets: tuple[str, ...]
    make: Callable[[], Call] = dataclasses.field(compare=False, repr=False)
    modules: tuple[str, ...]
    devices: int = 1
    refusal: str | None = None

    def may_refuse(self, error: str) -> bool:
        """Whether `error` is the declared reason why JAX cannot lower the case."""
        return self.refusal is not None and re.search(self.refusal, error) is not None


def struct(shape: Sequence[int], dtype: Any):
    """An abstract array."""
    import jax

    return jax.ShapeDtypeStruct(tuple(shape), dtype)


def gradient(fn: Callable[..., Any], argnums: int | Sequence[int] = 0) -> Callable[..., Any]:
    """The value of `fn` and its gradients for the arguments `argnums`.

    The cotangent is the value itself, so that no part of the backward pass is constant.
    """
    import jax

    argnums = (argnums,) if isinstance(argnums, int) else tuple(argnums)

    def call(*args):
        def of_chosen(*chosen):
            every = list(args)
            for index, value in zip(argnums, chosen):
                every[index] = value
            return fn(*every)

        value, pullback = jax.vjp(of_chosen, *(args[index] for index in argnums))
        return value, pullback(value)

    return call
