"""`Schedule`: how a kernel runs, in the same words for every backend.

A backend raises its IR to these types.  A count or a size that the IR does not
state is None, and what could not be read stands in `Schedule.unread` with the
reason; nothing is guessed.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from .algebra import Algebra

if TYPE_CHECKING:
    from .kernel import Kernel

# Off the chip, or placed by the compiler: no part of the on-chip memory totals.
OFF_CHIP = frozenset({"hbm", "any", "host", "semaphore"})


@dataclasses.dataclass(frozen=True)
class GridDimension:
    """One dimension of the iteration space.

    Attributes:
      bound: number of steps, None where known only at run time.
      semantics: ``arbitrary`` (in order), ``parallel`` (any order, or at once), or
        the backend's own finer word.
    """

    bound: int | None
    semantics: str


@dataclasses.dataclass(frozen=True)
class Window:
    """A block of an operand that the compiler's grid pipeline keeps on chip.

    Attributes:
      name: the operand's name in the kernel's source, else ``argN``.
      direction: ``in`` or ``out``; None where the module does not tell.
      block: shape of one block.
      dtype: element type, in MLIR's spelling.
      space: the memory that the block lives in.
      index_map: the block's index as a function of the grid indices ``i, j, k, ...``
        and of scalar prefetch operands; None where unread.
      pipeline_mode: as the backend calls it.
      depth: number of slots that the compiler makes.
      slot_bytes: packed size of one block, before the compiler's tiling pads it.
      padded_bytes: of one slot as the compiler lays it out, None where unknown.
      notes: what else the IR states of this window (element windows, revisiting).
    """

    name: str
    direction: str | None
    block: tuple[int | None, ...]
    dtype: str
    space: str
    index_map: str | None
    pipeline_mode: str
    depth: int | None
    slot_bytes: int | None
    padded_bytes: int | None
    notes: tuple[str, ...] = ()

    @property
    def bytes(self) -> int | None:
        """All slots, padding included."""
        if self.depth is None or self.padded_bytes is None:
            return None
        return self.depth * self.padded_bytes


@dataclasses.dataclass(frozen=True)
class Buffer:
    """A named piece of memory that is no window.

    Attributes:
      name: its name in the kernel's source, else its kind and number.
      kind: ``operand``, ``scalar prefetch``, ``scratch`` or ``allocation``.
      shape: None for a dimension known only at run time.
      dtype: element type, in MLIR's spelling.
      space: the memory that it lives in.
      bytes: packed size, before the compiler's tiling pads it.
      padded_bytes: as the compiler lays it out; None where unknown, and off the chip.
      offset: byte offset in its memory, where the IR fixes one.
      overlaid: whether its memory is that of other buffers: they are not alive at
        once, or it is the whole that they are cut from.
    """

    name: str
    kind: str
    shape: tuple[int | None, ...]
    dtype: str
    space: str
    bytes: int | None
    padded_bytes: int | None = None
    offset: int | None = None
    overlaid: bool = False


@dataclasses.dataclass(frozen=True)
class Copy:
    """Copies of one kind between the same two buffers, as the IR writes them out.

    Attributes:
      kind: ``dma``, ``indirect dma``, ``tma``, ``tma reduce``, ...
      source, target: names of buffers, windows or operands.
      source_space, target_space: their memories.
      shape: of one copy; None for a dimension known only at run time.
      dtype: element type.
      bytes: of one copy, packed.
      semaphore: the semaphore or barrier that its completion signals.
      remote: whether the other end can be on another device or core.
      operations: how many operations of the module these are.
      executions: how often they run per grid step, None where that depends on data.
      role: the role that issues them, empty for every thread of control.
      outside: how many of the operations stand outside every loop.
    """

    kind: str
    source: str
    source_space: str
    target: str
    target_space: str
    shape: tuple[int | None, ...]
    dtype: str
    bytes: int | None
    semaphore: str | None
    remote: bool
    operations: int
    executions: int | None
    role: str = ""
    outside: int = 0

    @property
    def direction(self) -> str:
        """For example ``hbm -> vmem``."""
        return f"{self.source_space} -> {self.target_space}"


@dataclasses.dataclass(frozen=True)
class Semaphore:
    """An array of semaphores or barriers.

    Attributes:
      name: its name in the kernel's source, else its kind and number.
      kind: ``dma``, ``regular``, ``barrier`` (TPU) or ``mbarrier`` (GPU).
      count: number of semaphores in the array.
      arrivals: arrivals that complete a phase, where the kind has phases.
      bytes: size in on-chip memory, None where the kind has its own memory.
    """

    name: str
    kind: str
    count: int | None
    arrivals: int | None = None
    bytes: int | None = None


@dataclasses.dataclass(frozen=True)
class Synchronisation:
    """Operations of one kind on one semaphore or barrier, or on all threads.

    Attributes:
      action: ``wait``, ``signal``, ``barrier`` or ``fence``.
      kind: what exactly, for example ``dma``, ``mbarrier``, ``wgmma group``.
      semaphore: the semaphore's name, None where it involves none.
      remote: whether it reaches another device or core.
      operations, executions, role, outside: as in `Copy`.
    """

    action: str
    kind: str
    semaphore: str | None
    remote: bool
    operations: int
    executions: int | None
    role: str = ""
    outside: int = 0


@dataclasses.dataclass(frozen=True)
class Loop:
    """A loop inside one grid step.

    Attributes:
      kind: ``for``, ``while`` or ``parallel``.
      trip_count: None where it is known only at run time.
      nesting: number of loops around it.
      carried: number of loop-carried values.
      source: ``file:line`` of the loop, where known.
      role: the role that runs it, empty for every thread of control.
    """

    kind: str
    trip_count: int | None
    nesting: int
    carried: int
    source: str | None = None
    role: str = ""


@dataclasses.dataclass(frozen=True)
class Role:
    """A thread of control that the kernel gives its own code.

    Attributes:
      name: for example ``warps 0-7``.
      threads: how many hardware threads play it.
      registers: per thread, where the kernel asks for a number.
      source: ``file:line`` where the roles part, where known.
    """

    name: str
    threads: int
    registers: int | None = None
    source: str | None = None


@dataclasses.dataclass(frozen=True)
class Unread:
    """Something that the schedule does not hold, and why."""

    what: str
    why: str


@dataclasses.dataclass(frozen=True)
class Schedule:
    """A kernel's schedule and the summary of its algebra.

    Attributes:
      kernel, backend, target: as in `Kernel`.
      core_type: the kind of core that runs it, where the IR states it.
      grid: the iteration space, outermost first.
      threads: threads of one grid step in x, y and z; empty on a TPU.
      cluster: grid steps that run as one cluster in x, y and z; empty where none.
      stages: pipeline depth that the compiler is asked to make, where it is the
        compiler that pipelines loops.
      reserved: (memory, bytes) that the kernel reserves as a whole.
      limits: (memory, bytes) that the kernel tells its compiler to allow it.
      windows, buffers, copies, semaphores, synchronisation, loops, roles: what the
        names say, in the order of the IR.
      algebra: what is computed.
      unread: what could not be read, with reasons.
    """

    kernel: str
    backend: str
    target: str
    core_type: str | None = None
    grid: tuple[GridDimension, ...] = ()
    threads: tuple[int | None, ...] = ()
    cluster: tuple[int | None, ...] = ()
    stages: int | None = None
    reserved: tuple[tuple[str, int], ...] = ()
    limits: tuple[tuple[str, int], ...] = ()
    windows: tuple[Window, ...] = ()
    buffers: tuple[Buffer, ...] = ()
    copies: tuple[Copy, ...] = ()
    semaphores: tuple[Semaphore, ...] = ()
    synchronisation: tuple[Synchronisation, ...] = ()
    loops: tuple[Loop, ...] = ()
    roles: tuple[Role, ...] = ()
    algebra: Algebra = dataclasses.field(default_factory=Algebra)
    unread: tuple[Unread, ...] = ()

    @property
    def waits(self) -> tuple[Synchronisation, ...]:
        return tuple(s for s in self.synchronisation if s.action == "wait")

    def memory(self) -> dict[str, int | None]:
        """On-chip bytes by memory: slots of windows, and buffers alive at once; padded.

        A memory that the kernel reserves as a whole counts with that size.  None
        where a part of unknown size lives there.
        """
        totals: dict[str, int | None] = {}
        parts = [(w.space, w.bytes) for w in self.windows]
        parts += [(b.space, b.padded_bytes) for b in self.buffers if not b.overlaid]
        for space, size in parts:
            if space not in OFF_CHIP:
                total = totals.get(space, 0)
                totals[space] = None if size is None or total is None else total + size
        return {**totals, **dict(self.reserved)}


def raise_schedule(kernel: Kernel) -> Schedule:
    """The kernel's schedule, read by its backend.

    Raises:
      InvalidModule: the module does not parse.
      Unsupported: no backend has the kernel's name for one.
    """
    from .backends import get_backend

    return get_backend(kernel.backend).schedule(kernel)
