"""`Channel`: a ring of slots between an asynchronous copy and its consumer.

The same words for a window that the compiler pipelines, for a ring that the kernel
fills by DMA or TMA itself, and for one that it empties.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable

from .schedule import OFF_CHIP, Buffer, Copy, Schedule, Window


@dataclasses.dataclass(frozen=True)
class Channel:
    """One ring; what the IR does not state is None.

    Attributes:
      name: of the end that is off the chip, else of the on-chip buffer.
      kind: ``grid window``, or what copies: ``dma``, ``tma``, ...
      direction: ``in`` or ``out``.
      buffer: of its slots.
      space: the memory of the slots.
      slot: shape of one.
      dtype: element type.
      slot_bytes: packed size of one slot.
      depth: number of slots.
      look_ahead: in: how many slots are being filled while one is in use; out: how many
        may still be draining while the next is written.
      semaphore: the semaphores or barriers that its copies signal.
      index_map: which block is in the slot, as a function of the grid or loop step.
      role: who issues the copies, empty for every thread of control.
    """

    name: str
    kind: str
    direction: str | None
    buffer: str
    space: str
    slot: tuple[int | None, ...]
    dtype: str
    slot_bytes: int | None
    depth: int | None
    look_ahead: int | None
    semaphore: str | None = None
    index_map: str | None = None
    role: str = ""

    @property
    def bytes(self) -> int | None:
        """All slots, packed."""
        if self.depth is None or self.slot_bytes is None:
            return None
        return self.depth * self.slot_bytes


def channels(schedule: Schedule) -> tuple[Channel, ...]:
    """Every ring of a kernel: the grid's windows, then those that the kernel copies itself."""
    buffers = {buffer.name: buffer for buffer in schedule.buffers}
    found = [_of_window(window) for window in schedule.windows]
    for copy in schedule.copies:
        for name, other, direction in (
            (copy.target, copy.source, "in"),
            (copy.source, copy.target, "out"),
        ):
            buffer = buffers.get(name)
            if buffer is not None and buffer.space not in OFF_CHIP and other != name:
                found.append(_of_copy(schedule, copy, buffer, other, direction))
    return tuple(_distinct(found))


def _of_window(window: Window) -> Channel:
    return Channel(
        name=window.name,
        kind="grid window",
        direction=window.direction,
        buffer=window.name,
        space=window.space,
        slot=window.block,
        dtype=window.dtype,
        slot_bytes=window.slot_bytes,
        depth=window.depth,
        look_ahead=None if window.depth is None else window.depth - 1,
        index_map=window.index_map,
    )


def _of_copy(schedule: Schedule, copy: Copy, buffer: Buffer, other: str, direction: str) -> Channel:
    depth = _depth(schedule, copy, buffer)
    slot = buffer.shape[1:] if depth is not None and buffer.shape[:1] == (depth,) else copy.shape
    whole = None if buffer.bytes is None or depth is None else buffer.bytes // depth
    return Channel(
        name=other,
        kind=copy.kind,
        direction=direction,
        buffer=buffer.name,
        space=buffer.space,
        slot=slot,
        dtype=buffer.dtype,
        slot_bytes=whole,
        depth=depth,
        look_ahead=_look_ahead(schedule, copy, direction, depth),
        semaphore=copy.semaphore,
        role=copy.role,
    )


def _depth(schedule: Schedule, copy: Copy, buffer: Buffer) -> int | None:
    """As many slots as the buffer has room for copies, if there is a semaphore for each of them.

    Several copies that fill one slot share its semaphore.
    """
    whole, part = _elements(buffer.shape), _elements(copy.shape)
    if not whole or not part or whole % part:
        return None
    room = whole // part
    counts = [s.count for s in schedule.semaphores if s.name == copy.semaphore]
    count = counts[0] if counts else None
    if room == 1 or count == room:
        return room
    return count if count is not None and count > 1 and room % count == 0 else None


def _elements(shape: tuple[int | None, ...]) -> int | None:
    known = [extent for extent in shape if extent is not None]
    return math.prod(known) if len(known) == len(shape) else None


def _look_ahead(schedule: Schedule, copy: Copy, direction: str, depth: int | None) -> int | None:
    """In: as many copies as are started before the loop that starts the others; out: as
    many as are waited for after it, but for the last."""
    if copy.outside == copy.operations:
        return 0
    ahead = copy.outside
    if direction == "out":
        waits = [w for w in schedule.waits if w.semaphore == copy.semaphore and w.semaphore]
        ahead = sum(wait.outside for wait in waits) - 1
    if ahead < 0 or depth is None:
        return None
    return min(ahead, depth - 1)


def _distinct(found: Iterable[Channel]) -> Iterable[Channel]:
    """One channel where copies of several shapes fill the same buffer from the same place."""
    first: dict[tuple, Channel] = {}
    for channel in found:
        first.setdefault((channel.name, channel.buffer, channel.direction, channel.role), channel)
    return first.values()
