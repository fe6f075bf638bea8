"""Calls of tokamax ops on the shapes that tokamax itself tunes them for."""

from __future__ import annotations

import dataclasses
import importlib
from collections.abc import Callable, Iterator
from typing import Any

from .case import Call, Case

OPS = "tokamax._src.ops."


@dataclasses.dataclass(frozen=True)
class Op:
    """One implementation of a tokamax op.

    Attributes:
      path: of the op's package below `OPS`.
      module: of the implementation, in that package.
      cls: the implementation's class.
      kernels: modules of that package, or absolute ones, that hold its kernels.
      specs: name of the shapes in the package's ``arg_specs``.
    """

    path: str
    module: str
    cls: str
    kernels: tuple[str, ...]
    specs: str = "ARG_SPECS"

    @property
    def modules(self) -> tuple[str, ...]:
        return tuple(
            name if name.startswith("tokamax.") else f"{OPS}{self.path}.{name}"
            for name in self.kernels
        )

    def build(self, config: str = "Config", **options: Any) -> Callable[..., Any]:
        """The op itself; `options` become a `config`, where there are any."""
        module = importlib.import_module(f"{OPS}{self.path}.{self.module}")
        cls = getattr(module, self.cls)
        return cls(config=getattr(module, config)(**options)) if options else cls()


def call(op: Op, arguments: dict[str, Any], mode: str = "forward", **options: Any) -> Call:
    """The op on abstract arguments; mode ``forward`` or ``forward_and_vjp``."""
    from tokamax import benchmarking

    fn, arrays = benchmarking.standardize_function(
        op.build(**options), kwargs=arguments, mode=mode, seed=None
    )
    return fn, (arrays,)


def of_spec(op: Op, spec: str, mode: str) -> Callable[[], Call]:
    """The op on the shapes that tokamax calls `spec`."""

    def make() -> Call:
        specs = getattr(importlib.import_module(f"{OPS}{op.path}.arg_specs"), op.specs)
        by_name = {each.full_name: each.args for each in specs}
        return call(op, by_name[spec], mode)

    return make


def spec_cases(
    prefix: str, op: Op, targets: tuple[str, ...], *specs: str, backward: bool = False
) -> Iterator[Case]:
    """A case for each spec, and one with gradients where the op has its own."""
    for spec in specs:
        yield Case(f"{prefix}/{spec}_fwd", targets, of_spec(op, spec, "forward"), op.modules)
        if backward:
            make = of_spec(op, spec, "forward_and_vjp")
            yield Case(f"{prefix}/{spec}_bwd", targets, make, op.modules)


def arguments_call(
    op: Op, arguments: Callable[[], dict[str, Any]], mode: str = "forward", **options: Any
) -> Callable[[], Call]:
    """The op on arguments of our own."""
    return lambda: call(op, arguments(), mode, **options)
