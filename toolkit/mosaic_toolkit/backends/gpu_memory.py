"""Which buffers of a Mosaic GPU kernel lie over each other."""

from __future__ import annotations

import dataclasses

from ..schedule import Buffer

# Mosaic GPU starts every allocation in shared memory at a multiple of this.
_ALIGNMENT = 1024


def without_overlap(buffers: list[Buffer]) -> tuple[Buffer, ...]:
    """Marks buffers so that no byte of a memory counts twice.

    Of two that share memory the larger counts, unless smaller ones divide it up.
    """
    counted: list[tuple[str, range]] = []
    marked = set()
    placed = [(i, b) for i, b in enumerate(buffers) if _place(b)]
    for index, buffer in sorted(placed, key=lambda item: -len(_place(item[1]))):
        inside = [other for _, other in placed if _holds(buffer, other)]
        shares = any(s == buffer.space and _meet(_place(buffer), p) for s, p in counted)
        if shares or _divides(inside, buffer):
            marked.add(index)
        else:
            counted.append((buffer.space, _place(buffer)))
    return tuple(dataclasses.replace(b, overlaid=i in marked) for i, b in enumerate(buffers))


def _place(buffer: Buffer) -> range:
    """Bytes that it occupies; empty where that is unknown."""
    if buffer.offset is None or buffer.padded_bytes is None:
        return range(0)
    return range(buffer.offset, buffer.offset + buffer.padded_bytes)


def _meet(a: range, b: range) -> bool:
    return a.start < b.stop and b.start < a.stop


def _holds(whole: Buffer, part: Buffer) -> bool:
    outer, inner = _place(whole), _place(part)
    inside = outer.start <= inner.start and inner.stop <= outer.stop
    return whole.space == part.space and inside and len(inner) < len(outer)


def _divides(parts: list[Buffer], whole: Buffer) -> bool:
    """Whether the parts, at least two of them apart, fill the whole but for their alignment."""
    places = sorted((_place(part) for part in parts), key=lambda place: place.start)
    filled, end, apart = 0, _place(whole).start, 0
    for place in places:
        apart += place.start >= end
        filled += max(0, place.stop - max(place.start, end))
        end = max(end, place.stop)
    return apart > 1 and filled + _ALIGNMENT * apart >= len(_place(whole))
