"""`MemoryBudget`: what a kernel's buffers take of the chip's memories, before it is compiled.

Computed from the schedule alone.  What the compiler decides later, such as where
registers spill, is not in it, and `MemoryUse.later` says so.
"""

from __future__ import annotations

import dataclasses

from .schedule import Schedule, Semaphore
from .targets import TARGETS, Target

# Core types whose memories the table of chips describes; None is a GPU's SM.
_KNOWN_CORES = (None, "tc")
# Where barriers that have a size live, and what compilers add to a memory later.
_BARRIERS = "smem"
_LATER = {"vmem": "register spill slots"}


@dataclasses.dataclass(frozen=True)
class BufferUse:
    """Memory of one named buffer.

    Attributes:
      name: as in the schedule.
      kind: ``window``, a kind of `schedule.Buffer`, the kind of a barrier, or ``rest`` for
        what the kernel reserves and no buffer names.
      shape, dtype: of one slot; the element type is empty for what has none.
      slots: how many slots it has, None where unknown.
      packed_bytes: of one slot, without the compiler's padding.
      slot_bytes: of one slot, padding included; None where unknown.
      overlaid: whether other buffers' memory is its own (see `schedule.Buffer`).
    """

    name: str
    kind: str
    shape: tuple[int | None, ...]
    dtype: str
    slots: int | None
    packed_bytes: int | None
    slot_bytes: int | None
    overlaid: bool = False

    @property
    def bytes(self) -> int | None:
        """All slots, padding included; 0 where it is overlaid."""
        if self.overlaid:
            return 0
        if self.slots is None or self.slot_bytes is None:
            return None
        return self.slots * self.slot_bytes


@dataclasses.dataclass(frozen=True)
class MemoryUse:
    """One on-chip memory.

    Attributes:
      space: the memory.
      buffers: what lives there, in the order of the schedule.
      bytes: of all of it at once; None where a part of unknown size lives there.
      capacity: of the chip, for one core, less what the compiler withholds; None where
        the table of chips does not know it.
      limit: what this kernel can have: the capacity, or less.
      limit_from: who says so: ``the chip``, ``the compiler's default`` or ``the kernel``.
      later: what the compiler will add that nobody can say before.
    """

    space: str
    buffers: tuple[BufferUse, ...]
    bytes: int | None
    capacity: int | None
    limit: int | None
    limit_from: str
    later: str = ""

    @property
    def excess(self) -> int:
        """Bytes over the limit; 0 where it fits, or where that is unknown."""
        if self.bytes is None or self.limit is None:
            return 0
        return max(0, self.bytes - self.limit)


@dataclasses.dataclass(frozen=True)
class MemoryBudget:
    """On-chip memory of one kernel on one chip.

    Attributes:
      kernel, target: as in `Kernel`.
      memories: those that the kernel uses.
    """

    kernel: str
    target: str
    memories: tuple[MemoryUse, ...]

    @property
    def over(self) -> tuple[MemoryUse, ...]:
        """The memories that the kernel does not fit in."""
        return tuple(memory for memory in self.memories if memory.excess)

    def use(self, space: str) -> MemoryUse | None:
        """Of that memory, None where the kernel uses none of it."""
        return next((memory for memory in self.memories if memory.space == space), None)


def memory_budget(schedule: Schedule) -> MemoryBudget:
    """What the schedule's windows, buffers and barriers take of each on-chip memory."""
    chip = TARGETS.get(schedule.target) if schedule.core_type in _KNOWN_CORES else None
    memories = tuple(_memory(schedule, space, chip) for space in schedule.memory())
    return MemoryBudget(schedule.kernel, schedule.target, memories)


def _memory(schedule: Schedule, space: str, chip: Target | None) -> MemoryUse:
    total = schedule.memory()[space]
    buffers = _buffers(schedule, space)
    named = [buffer.bytes for buffer in buffers]
    rest = None if total is None or None in named else total - sum(filter(None, named))
    if rest:
        buffers.append(BufferUse("(rest)", "rest", (), "", 1, rest, rest))
    capacity = None if chip is None else chip.usable(space)
    limit, source = _limit(schedule, space, chip)
    return MemoryUse(space, tuple(buffers), total, capacity, limit, source, _LATER.get(space, ""))


def _limit(schedule: Schedule, space: str, chip: Target | None) -> tuple[int | None, str]:
    """The smallest of what the chip has and what the kernel asks for, or is granted unasked."""
    capacity = None if chip is None else chip.usable(space)
    if chip is None or capacity is None:
        return None, ""
    asked = dict(schedule.limits).get(space)
    granted = dict(chip.granted).get(space, capacity) if asked is None else asked
    if granted >= capacity:
        return capacity, "the chip"
    return granted, "the compiler's default" if asked is None else "the kernel"


def _buffers(schedule: Schedule, space: str) -> list[BufferUse]:
    found = [
        BufferUse(w.name, "window", w.block, w.dtype, w.depth, w.slot_bytes, w.padded_bytes)
        for w in schedule.windows
        if w.space == space
    ]
    found += [
        BufferUse(b.name, b.kind, b.shape, b.dtype, 1, b.bytes, b.padded_bytes, b.overlaid)
        for b in schedule.buffers
        if b.space == space
    ]
    found += [_barriers(s) for s in schedule.semaphores if s.bytes and space == _BARRIERS]
    return found


def _barriers(array: Semaphore) -> BufferUse:
    each = array.bytes // array.count if array.bytes and array.count else None
    return BufferUse(array.name, array.kind, (), "", array.count, each, each)


@dataclasses.dataclass(frozen=True)
class Remedy:
    """One way to make a kernel fit.

    Attributes:
      action: ``raise limit``, ``one slot``, ``shrink`` or ``reshape``.
      buffers: (name, bytes): what the action saves at most, by buffer; empty for the limit.
      saves: bytes in all; for the limit, what it should be.
    """

    action: str
    buffers: tuple[tuple[str, int], ...]
    saves: int


def remedies(use: MemoryUse) -> tuple[Remedy, ...]:
    """What would make it fit, the least work first; empty where it fits already."""
    if not use.excess or use.bytes is None or use.capacity is None:
        return ()
    found = []
    if use.bytes <= use.capacity:
        found.append(Remedy("raise limit", (), use.bytes))
    ways = {
        "one slot": {b.name: b.slot_bytes or 0 for b in use.buffers if _is_doubled(b)},
        "shrink": {b.name: b.bytes or 0 for b in use.buffers if b.kind != "rest"},
        "reshape": {b.name: _padding(b) for b in use.buffers if _is_mostly_padding(b)},
    }
    for action, savings in ways.items():
        chosen = _enough(savings, use.excess)
        if chosen:
            found.append(Remedy(action, chosen, sum(saved for _, saved in chosen)))
    return tuple(found)


def _is_doubled(buffer: BufferUse) -> bool:
    return buffer.kind == "window" and buffer.slots == 2


def _padding(buffer: BufferUse) -> int:
    if buffer.bytes is None or buffer.slots is None or buffer.packed_bytes is None:
        return 0
    return max(0, buffer.bytes - buffer.slots * buffer.packed_bytes)


def _is_mostly_padding(buffer: BufferUse) -> bool:
    return buffer.bytes is not None and 2 * _padding(buffer) > buffer.bytes


def _enough(savings: dict[str, int], excess: int) -> tuple[tuple[str, int], ...]:
    """The largest, until they make up the excess; all where that is not enough."""
    chosen: list[tuple[str, int]] = []
    for name, saved in sorted(savings.items(), key=lambda item: -item[1]):
        if saved and sum(n for _, n in chosen) < excess:
            chosen.append((name, saved))
    return tuple(chosen)
