"""The three compilers that a Pallas kernel can be for, with the same members each.

Core code never compares a backend's name: it asks the backend.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Protocol

from ..errors import Unsupported

if TYPE_CHECKING:
    from ..interpreter.execute import Executable
    from ..jax_compat import ir
    from ..kernel import Kernel
    from ..schedule import Schedule
    from ..targets import Target


class Backend(Protocol):
    """What the toolkit asks of a backend.

    Attributes:
      name: as in `Kernel.backend`.
      title: for people.
      platform: the JAX lowering platform whose chips it compiles for.
      dialects: MLIR dialects that only this backend's kernels use.
    """

    name: str
    title: str
    platform: str
    dialects: tuple[str, ...]

    def recognise(self, call_target: str) -> bool:
        """Whether a custom call of that target is a kernel of this backend."""
        ...

    def decode(
        self,
        call: ir.Operation,
        target: str,
        asm: str | None,
        level: str,
        encoding: Mapping[str, Any],
    ) -> Kernel:
        """The kernel of a ``stablehlo.custom_call``.

        Args:
          call: the operation, live.
          target: name of the chip that it was lowered for.
          asm: the module before it was serialised, where it was seen; else it is
            read from the payload.
          level: of `asm`.
          encoding: how JAX serialised it (see `jax_compat.payload`).
        """
        ...

    def payload(self, call: ir.Operation) -> dict[str, bytes]:
        """The serialised module in a custom call, by name of its part."""
        ...

    def encode(self, kernel: Kernel) -> dict[str, bytes]:
        """The kernel's module serialised: the `payload` of the call it came from, if unchanged.

        Raises:
          InvalidModule: the module does not parse or verify.
        """
        ...

    def embed(self, attributes: Any, payload: Mapping[str, bytes]) -> None:
        """Puts a payload into a custom call's attributes, which have its place: undoes `payload`.

        Args:
          attributes: by name; those of a live operation, or a dictionary of them.
          payload: as `encode` gives it.

        Raises:
          InvalidModule: the attributes have no place for a part of the payload.
        """
        ...

    def spans_devices(self, kernel: Kernel) -> bool:
        """Whether the kernel talks to other devices by number, so that they have to be there."""
        ...

    def obstacle(self, kernel: Kernel, target: Target) -> str | None:
        """What in the kernel a chip of this backend's platform lacks, None where nothing is known.

        The compiler has the last word; this says first what it would say badly.
        """
        ...

    def schedule(self, kernel: Kernel) -> Schedule:
        """The kernel's schedule as the backend's IR states it."""
        ...

    def interpret(self, kernel: Kernel) -> Executable:
        """The kernel, compiled for the interpreter.

        Raises:
          Unsupported: something in it has no meaning there.
        """
        ...


def get_backend(name: str) -> Backend:
    """The backend of that name.

    Raises:
      Unsupported: there is none.
    """
    for backend in all_backends():
        if backend.name == name:
            return backend
    known = ", ".join(backend.name for backend in all_backends())
    raise Unsupported(f"unknown backend '{name}'", hint=f"known backends: {known}")


def all_backends() -> tuple[Backend, ...]:
    """Every backend, in the order in which a kernel without parameters tries them."""
    from .gpu import MosaicGPU
    from .tpu import MosaicTPU
    from .triton import Triton

    return (MosaicTPU(), MosaicGPU(), Triton())
