"""What an operation touches: resources, boxes inside them, and accesses.

Resources form a tree.  A leaf is one buffer or one piece of machine state; an
inner node stands for everything below it, so that an access of unknown target
is an access of the smallest node that surely contains it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

READ, WRITE = 1, 2
READ_WRITE = READ | WRITE


class Resource:
    """A node of the tree; two resources are the same only if they are one object.

    Attributes:
      name: for people.
      parent: what contains it, None for the root.
      local: no one outside the kernel can see it, and it dies with the kernel.
    """

    __slots__ = ("children", "local", "name", "parent")

    def __init__(self, name: str, parent: Resource | None = None, *, local: bool = False):
        self.name = name
        self.parent = parent
        self.local = local
        self.children: list[Resource] = []
        if parent is not None:
            parent.children.append(self)

    def __repr__(self) -> str:
        return f"Resource({self.name!r})"

    def within(self, other: Resource) -> bool:
        """Whether `other` is this resource or contains it."""
        node: Resource | None = self
        while node is not None:
            if node is other:
                return True
            node = node.parent
        return False


class Terms(NamedTuple):
    """A sum of symbols, ``coefficient * symbol``, sorted by symbol; () is zero.

    `depth` is the nesting depth of the innermost symbol's definition: outside
    of that region the sum has no single value.
    """

    symbols: tuple[tuple[int, int], ...] = ()
    depth: int = 0


ZERO = Terms()


class Span(NamedTuple):
    """The half-open range [terms + start, terms + stop) along one dimension."""

    terms: Terms
    start: int
    stop: int


class Box(NamedTuple):
    """A product of spans; None stands for a dimension of which nothing is known.

    Attributes:
      coordinates: what the dimensions count; boxes in different coordinates
        cannot be compared.
    """

    coordinates: object
    spans: tuple[Span | None, ...]


class Access(NamedTuple):
    """Reading, writing or both of one resource, in a box of it (None: all of it)."""

    resource: Resource
    box: Box | None
    mode: int


def may_overlap(a: Box | None, b: Box | None) -> bool:
    """False only if the two boxes of one resource are provably disjoint."""
    if a is None or b is None or a.coordinates != b.coordinates:
        return True
    for p, q in zip(a.spans, b.spans):
        if p is None or q is None or p.terms != q.terms:
            continue
        if p.stop <= q.start or q.stop <= p.start:
            return False
    return True


def covers(a: Box | None, b: Box | None) -> bool:
    """True only if `a` provably contains `b`."""
    if a is None:
        return True
    if b is None or a.coordinates != b.coordinates:
        return False
    for p, q in zip(a.spans, b.spans):
        if p is None:
            continue
        if q is None or p.terms != q.terms or q.start < p.start or p.stop < q.stop:
            return False
    return True


def hull(a: Box | None, b: Box | None) -> Box | None:
    """A box that contains both."""
    if a is None or b is None or a.coordinates != b.coordinates:
        return None
    return Box(a.coordinates, tuple(_join(p, q) for p, q in zip(a.spans, b.spans)))


def _join(p: Span | None, q: Span | None) -> Span | None:
    if p is None or q is None or p.terms != q.terms:
        return None
    return Span(p.terms, min(p.start, q.start), max(p.stop, q.stop))


def outside(box: Box | None, depth: int) -> Box | None:
    """The box as seen from nesting depth `depth`, where inner symbols have no value."""
    if box is None or all(s is None or s.terms.depth <= depth for s in box.spans):
        return box
    spans = tuple(s if s is None or s.terms.depth <= depth else None for s in box.spans)
    return Box(box.coordinates, spans) if any(s is not None for s in spans) else None


def conflict(first: Access, second: Access) -> str | None:
    """``RAW``, ``WAR`` or ``WAW`` if the two must keep their order, else None."""
    if not (first.mode | second.mode) & WRITE:
        return None
    if first.resource is second.resource:
        if not may_overlap(first.box, second.box):
            return None
    elif not (first.resource.within(second.resource) or second.resource.within(first.resource)):
        return None
    return hazard(first.mode, second.mode)


def hazard(first: int, second: int) -> str:
    """The name of the dependence of `second` on `first`, by their modes."""
    if first & WRITE:
        return "RAW" if second & READ else "WAW"
    return "WAR"


# An operation touches few boxes of one buffer; past this many, their hull stands
# for all, which keeps the summary of a large region small.
_BOXES_PER_RESOURCE = 32


def summarise(accesses: Iterable[Access], depth: int) -> tuple[Access, ...]:
    """The union of `accesses` as seen from `depth`, with few boxes per resource."""
    merged: dict[Resource, dict[Box | None, int]] = {}
    for resource, box, mode in accesses:
        boxes = merged.setdefault(resource, {})
        box = outside(box, depth)
        boxes[box] = boxes.get(box, 0) | mode
        if len(boxes) > _BOXES_PER_RESOURCE:
            merged[resource] = _collapse(boxes)
    return tuple(
        Access(resource, box, mode)
        for resource, boxes in merged.items()
        for box, mode in boxes.items()
    )


def _collapse(boxes: dict[Box | None, int]) -> dict[Box | None, int]:
    whole, *rest = boxes
    mode = 0
    for box in boxes:
        mode |= boxes[box]
    for box in rest:
        whole = hull(whole, box)
    return {whole: mode}
