"""Who is told of the kernels that JAX lowers, and what rewrites them.

Both are JAX configuration states: they hold for a thread and a block, and each
value has entries of its own in JAX's caches, so that a function jitted before
lowers again inside the block.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from jax._src import config

from ..kernel import ArrayType
from ..targets import Target
from . import ir

if TYPE_CHECKING:
    from .kernel_call import KernelCall


class Listener(Protocol):
    """Who is told of kernels; compared by identity."""

    @property
    def target(self) -> Target | None:
        """The chip to answer as; None on a machine with the device."""
        ...

    def asked(self) -> None:
        """Code outside JAX was told about a device that is not there."""

    def on_cpu(self, call: KernelCall) -> Sequence[Any]:
        """A kernel is lowered for the CPU: returns the values of its results."""
        ...

    def emitted(self, kernel: Emitted) -> None:
        """A kernel's custom call was emitted."""

    def failed(self, call: KernelCall, error: Exception) -> None:
        """A kernel's lowering for its own platform raised."""


@dataclasses.dataclass(frozen=True)
class Emitted:
    """A custom call that was just emitted.

    Attributes:
      op: the live ``stablehlo.custom_call``.
      asm: the module before it was serialised, where it was seen.
      level: ``dialect`` or ``lowered``.
      encoding: how the module is serialised again (see `payload`).
      call: the kernel call that it comes from; None for a bare Mosaic module.
    """

    op: ir.Operation
    asm: str | None
    level: str
    encoding: dict[str, Any]
    call: KernelCall | None


@dataclasses.dataclass(frozen=True)
class Executed:
    """What computes a kernel's results on the CPU.

    Attributes:
      run: takes an array per operand, returns one per result.
      operands, results: their types.
    """

    run: Callable[..., Sequence[Any]]
    operands: tuple[ArrayType, ...]
    results: tuple[ArrayType, ...]


class Executor(Protocol):
    """What runs kernels in place of a device."""

    def __call__(self, emitted: Emitted) -> Executed: ...


class Rewriter(Protocol):
    """What replaces kernels as they are emitted."""

    def __call__(self, emitted: Emitted) -> Emitted:
        """The same kernel with its custom call, and `asm`, rewritten."""
        ...

    def on_cpu(self, call: KernelCall) -> Sequence[Any]:
        """A kernel is lowered for the CPU and nobody listens: the values of its results."""
        ...


@functools.cache
def _state(name: str, meaning: str):
    """A configuration state: each value has its own entries in JAX's caches."""
    return config.string_or_object_state(
        name, None, meaning, include_in_jit_key=True, include_in_trace_context=True
    )


def listener_state():
    return _state("mosaic_toolkit_listener", "who is told of the kernels that are lowered")


def rewriters_state():
    return _state("mosaic_toolkit_rewriters", "what rewrites the kernels that are lowered")


@contextlib.contextmanager
def assigned(state: Any, value: Any, *, every_thread: bool) -> Iterator[None]:
    """Sets a state for a block, in this or in every thread."""
    if not every_thread:
        with state(value):
            yield
        return
    before = state.get_global()
    state.set_global(value)
    try:
        yield
    finally:
        state.set_global(before)


MARK = "mosaic_toolkit_rewriter"


class Mark:
    """What traced kernel calls carry that are rewritten wherever they are lowered.

    It holds its rewriter: what was traced may live longer than the function that was.
    JAX prints it into the program, where `text` is the same in every process: one
    program has one key in a compilation cache that processes share.
    """

    alive: weakref.WeakSet[Mark] = weakref.WeakSet()

    def __init__(self, rewriter: Rewriter, text: str):
        self.rewriter = rewriter
        self._text = text
        Mark.alive.add(self)

    def __str__(self) -> str:
        return self._text


def rewriters_of(ctx: Any) -> tuple[Rewriter, ...]:
    """What rewrites the kernel that is lowered in `ctx`, in order."""
    eqn = getattr(ctx, "jaxpr_eqn_ctx", None)
    mark = (getattr(eqn, "xla_metadata", None) or {}).get(MARK)
    active = rewriters_state().value or ()
    if mark is None or mark.rewriter in active:
        return active
    return (*active, mark.rewriter)


def listener() -> Listener | None:
    """Who listens in this thread and block."""
    return listener_state().value


def anyone() -> bool:
    """Whether someone may want the module that is being lowered."""
    return listener() is not None or bool(rewriters_state().value) or bool(Mark.alive)
