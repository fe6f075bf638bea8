"""Finds the memory dependences of a sequence of operations in linear time.

The frontier holds the accesses that a later one may still have to wait for: a
write removes what it covers, since whatever conflicts with the removed
conflicts with the write.  Where a buffer's accesses are too many to compare,
the next access stands for all of them, which adds order but loses none.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from .memory import READ_WRITE, WRITE, Access, Box, Resource, covers, hazard, may_overlap


class Dependence(NamedTuple):
    """`target` must stay after `source`.

    Attributes:
      source, target: positions in the sequence.
      hazard: ``RAW``, ``WAR`` or ``WAW``.
      resource: through which they depend.
    """

    source: int
    target: int
    hazard: str
    resource: Resource


class _Entry(NamedTuple):
    position: int
    box: Box | None
    mode: int


# More candidates than this for one access are merged into it.
_CROWDED = 128
# A box over more cells than this is looked up by looking at everything.
_MAX_CELLS = 16


class _Grid:
    """Entries whose boxes can be compared with each other, hashed by cell."""

    def __init__(self, first: Box):
        self._pitch = [max(1, s.stop - s.start) if s else 0 for s in first.spans]
        self._cells: dict[tuple[int, ...], dict[int, _Entry]] = {}
        self._large: dict[int, _Entry] = {}
        self.entries: dict[int, _Entry] = {}

    def _covered(self, box: Box | None) -> list[tuple[int, ...]] | None:
        """The cells of a box; None if they are too many, or it is the whole resource."""
        if box is None:
            return None
        ranges, count = [], 1
        for span, pitch in zip(box.spans, self._pitch):
            if span is None or not pitch:
                continue
            last = max(span.start, span.stop - 1)
            cells = range(span.start // pitch, last // pitch + 1)
            count *= len(cells)
            if count > _MAX_CELLS:
                return None
            ranges.append(cells)
        return list(itertools.product(*ranges))

    def add(self, key: int, entry: _Entry) -> None:
        self.entries[key] = entry
        cells = self._covered(entry.box)
        if cells is None:
            self._large[key] = entry
            return
        for cell in cells:
            self._cells.setdefault(cell, {})[key] = entry

    def remove(self, key: int) -> None:
        entry = self.entries.pop(key)
        if self._large.pop(key, None) is None:
            for cell in self._covered(entry.box) or ():
                self._cells[cell].pop(key, None)

    def near(self, box: Box) -> dict[int, _Entry]:
        """A superset of the entries that overlap `box`."""
        cells = self._covered(box)
        if cells is None:
            return self.entries
        found = dict(self._large)
        for cell in cells:
            found.update(self._cells.get(cell, ()))
        return found


class _Entries:
    """The reads or the writes of one resource that are still in the frontier."""

    def __init__(self):
        self._grids: dict[object, _Grid] = {}
        self._whole: dict[int, _Entry] = {}
        self._home: dict[int, object | None] = {}

    def __len__(self) -> int:
        return len(self._home)

    @staticmethod
    def _frame(box: Box) -> object:
        """Boxes of one frame differ in constants only."""
        return box.coordinates, tuple(None if s is None else s.terms for s in box.spans)

    def add(self, key: int, entry: _Entry) -> None:
        if entry.box is None:
            self._whole[key] = entry
            self._home[key] = None
            return
        frame = self._frame(entry.box)
        grid = self._grids.get(frame)
        if grid is None:
            grid = self._grids[frame] = _Grid(entry.box)
        grid.add(key, entry)
        self._home[key] = frame

    def remove(self, key: int) -> None:
        frame = self._home.pop(key)
        if frame is None:
            del self._whole[key]
            return
        grid = self._grids[frame]
        grid.remove(key)
        if not grid.entries:
            del self._grids[frame]

    def near(self, box: Box | None) -> Iterator[dict[int, _Entry]]:
        """Entries that may overlap `box`, and some that do not."""
        yield self._whole
        frame = None if box is None else self._frame(box)
        for other, grid in self._grids.items():
            yield grid.near(box) if box is not None and other == frame else grid.entries


class Frontier:
    """The accesses of a sequence so far that later ones may depend on."""

    def __init__(self):
        self._reads: dict[Resource, _Entries] = {}
        self._writes: dict[Resource, _Entries] = {}
        # For every inner resource, the resources below it that hold entries.
        self._below: dict[Resource, dict[Resource, None]] = {}
        self._keys = itertools.count()

    def advance(self, position: int, accesses: Iterable[Access]) -> list[Dependence]:
        """What the operation at `position` depends on; then adds its own accesses."""
        found: dict[Dependence, None] = {}
        # Reads first: the operation's own writes must not hide what it reads.
        for access in sorted(accesses, key=lambda a: a.mode):
            if access.mode:
                self._visit(position, access, found)
        return list(found)

    def _visit(self, position: int, access: Access, found: dict[Dependence, None]) -> None:
        resource, box, mode = access
        hits, crowded = self._hits(resource, box, mode)
        if crowded:
            box, mode = None, READ_WRITE
            hits, _ = self._hits(resource, box, mode)
        for where, entries, key, entry in hits:
            if entry.position != position:
                kind = hazard(entry.mode, mode)
                below = where if where.within(resource) else resource
                found[Dependence(entry.position, position, kind, below)] = None
            inside = where is resource or where.within(resource)
            if mode & WRITE and inside and (where is not resource or covers(box, entry.box)):
                entries.remove(key)
        entry = _Entry(position, box, mode)
        table = self._writes if mode & WRITE else self._reads
        table.setdefault(resource, _Entries()).add(next(self._keys), entry)
        parent = resource.parent
        while parent is not None:
            self._below.setdefault(parent, {})[resource] = None
            parent = parent.parent

    def _hits(
        self, resource: Resource, box: Box | None, mode: int
    ) -> tuple[list[tuple[Resource, _Entries, int, _Entry]], bool]:
        """The entries that conflict, and whether too many had to be looked at."""
        hits = []
        looked = 0
        for table in (self._writes, self._reads) if mode & WRITE else (self._writes,):
            for where in self._related(resource):
                entries = table.get(where)
                if not entries:
                    continue
                same = where is resource
                for group in entries.near(box if same else None):
                    looked += len(group)
                    hits.extend(
                        (where, entries, key, entry)
                        for key, entry in group.items()
                        if not same or may_overlap(entry.box, box)
                    )
        return hits, looked > _CROWDED

    def _related(self, resource: Resource) -> Iterator[Resource]:
        node: Resource | None = resource
        while node is not None:
            yield node
            node = node.parent
        below = self._below.get(resource, {})
        for node in list(below):
            if self._reads.get(node) or self._writes.get(node):
                yield node
            else:
                del below[node]


def dependences(sequence: Iterable[Iterable[Access]]) -> Iterator[Dependence]:
    """The dependences in a sequence of operations, given each one's accesses."""
    frontier = Frontier()
    for position, accesses in enumerate(sequence):
        if accesses:
            yield from frontier.advance(position, accesses)


def carried_dependences(body: list[tuple[Access, ...]]) -> Iterator[Dependence]:
    """Those of one iteration on the one before it, given a loop body's accesses."""
    frontier = Frontier()
    count = len(body)
    for position, accesses in enumerate(body):
        if accesses:
            frontier.advance(position, accesses)
    for position, accesses in enumerate(body):
        if not accesses:
            continue
        for edge in frontier.advance(position + count, accesses):
            if edge.source < count:
                yield edge._replace(target=position)
