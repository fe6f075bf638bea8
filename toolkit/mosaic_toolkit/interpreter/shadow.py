"""Races between many threads that are seldom ordered: who touched each cell of a buffer last.

`races.Races` keeps every access that a later one may race with, which is little where
threads wait for each other.  The programs of a grid hardly ever do: here a buffer has,
for each of its cells, the number of the last write and of the last reads.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

from .findings import Site
from .memory import Buffer, View
from .races import Actor, Clock, Races, Record, join

# Operations of a kernel that access memory, and ways to.
_KIND_BITS = 20


@dataclasses.dataclass(frozen=True, slots=True)
class _Access:
    actor: Actor
    write: bool
    atomic: bool


class Log:
    """The accesses of a launch by number, from 1: who, and since when, and how."""

    def __init__(self, races: Races):
        self.races = races
        self._agents = np.zeros(1024, np.int64)
        self._moments: list[Actor] = []
        self._kinds: list[tuple[Site, bool, bool]] = []
        self._moment: dict[tuple[int, int], int] = {}
        self._kind: dict[tuple[Site, bool, bool], int] = {}

    def __getitem__(self, number: int) -> _Access:
        moment, kind = divmod(number - 1, 1 << _KIND_BITS)
        site, write, atomic = self._kinds[kind]
        return _Access(dataclasses.replace(self._moments[moment], site=site), write, atomic)

    def number(self, actor: Actor, write: bool, atomic: bool) -> int:
        """The number of what this actor does now, the same for all that it does alike."""
        kind = self._kind.setdefault((actor.site, write, atomic), len(self._kinds))
        if kind == len(self._kinds):
            self._kinds.append((actor.site, write, atomic))
        moment = self._moment.setdefault((actor.agent, actor.time), len(self._moments))
        if moment == len(self._moments):
            self._moments.append(dataclasses.replace(actor, clock={}))
            if moment == len(self._agents):
                self._agents = np.concatenate([self._agents, np.zeros_like(self._agents)])
            self._agents[moment] = actor.agent
        return (moment << _KIND_BITS) + kind + 1

    def foreign(self, numbers: np.ndarray, actor: Actor) -> np.ndarray:
        """Which of the numbers are of accesses by others; 0 is of none."""
        return (self._agents[(numbers - 1) >> _KIND_BITS] != actor.agent) & (numbers != 0)


class Shadow:
    """What is known of each cell of a buffer; a cell is as large as its smallest access.

    Of the reads since the start it keeps each cell's last, and the last one by another
    thread than that: where threads are ordered, an older read may be forgotten.
    """

    def __init__(self, buffer: Buffer, log: Log, cell: int):
        self.buffer = buffer
        self.log = log
        self.cell = cell
        count = -(-len(buffer.data) // cell)
        self.written, self.read, self.read_before = (np.zeros(count, np.int64) for _ in range(3))
        self.published: np.ndarray | None = None

    def access(self, actor: Actor, view: View, write: bool, atomic: bool = False) -> None:
        """Reports what this access races with, and remembers it."""
        cells = self._cells(view)
        number = self.log.number(actor, write, atomic)
        self._against(self.written, cells, actor, view, write, atomic)
        if write:
            self._against(self.read, cells, actor, view, write, atomic)
            self._against(self.read_before, cells, actor, view, write, atomic)
            self.written[cells] = number
            return
        last = self.read[cells]
        if last.any():
            foreign = self.log.foreign(last, actor)
            self.read_before[cells] = np.where(foreign, last, self.read_before[cells])
        self.read[cells] = number

    def _cells(self, view: View) -> np.ndarray:
        size = view.dtype.itemsize
        if size < self.cell:
            self._refine(size)
        cells = view.byte_offsets().reshape(-1) // self.cell
        if size > self.cell:
            cells = (cells[:, None] + np.arange(size // self.cell)).reshape(-1)
        return cells

    def _refine(self, cell: int) -> None:
        times = self.cell // cell
        self.written, self.read, self.read_before = (
            np.repeat(a, times) for a in (self.written, self.read, self.read_before)
        )
        if self.published is not None:
            self.published = np.repeat(self.published, times)
        self.cell = cell

    def _against(self, known: np.ndarray, cells, actor: Actor, view, write, atomic) -> None:
        numbers = known[cells]
        if not numbers.any():
            return
        foreign = self.log.foreign(numbers, actor)
        if not foreign.any():
            return
        for number in np.unique(numbers[foreign]).tolist():
            other = self.log[number]
            if (atomic and other.atomic) or other.actor.time <= actor.clock.get(
                other.actor.agent, 0
            ):
                continue
            places = cells[numbers == number] * self.cell
            conflict = view.scattered(places, np.dtype((np.void, self.cell)))
            self._report(other, actor, conflict, write)

    def _report(self, other: _Access, actor: Actor, view: View, write: bool) -> None:
        record = Record(view, other.write, other.actor, *view.bounds())
        self.log.races.report(record, actor, view, write, False)

    # --- order by atomic operations -----------------------------------------------------------

    def acquire(self, view: View) -> list[Clock]:
        """What was published in the cells that a view covers."""
        if self.published is None:
            return []
        clocks: Any = self.published[self._cells(view)].tolist()
        return list({id(clock): clock for clock in clocks if clock is not None}.values())

    def publish(self, view: View, clock: Clock) -> None:
        """Lets whoever acquires one of the cells know what `clock` knows, and what was there."""
        whole: Clock = dict(clock)
        for earlier in self.acquire(view):
            join(whole, earlier)
        if self.published is None:
            self.published = np.full(len(self.written), None, object)
        cells = self._cells(view)
        self.published[cells] = whole
