"""Happens-before by vector clocks, and the accesses that it does not order.

An agent is whatever touches memory on its own: a thread of control, or an
asynchronous copy.  A clock says, per agent, up to which moment of that agent its
owner knows everything to have happened.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import TYPE_CHECKING

from .findings import RACE, Finding, Site

if TYPE_CHECKING:
    from .memory import Buffer, View

type Clock = dict[int, int]

_PRUNE_AT = 64


@dataclasses.dataclass(frozen=True, slots=True)
class Actor:
    """Who accesses: an agent at a moment, what it knows, and how a report names it.

    Attributes:
      clock: what is ordered before the access.
      proxy: what an asynchronous engine of a GPU is sure to see of what threads
        wrote; the `clock` where there is no such difference.
      engine: whether it is such an engine.
    """

    agent: int
    time: int
    clock: Clock
    name: str
    site: Site
    proxy: Clock | None = None
    engine: bool = False


@dataclasses.dataclass(slots=True)
class Record:
    view: View
    write: bool
    actor: Actor
    first: int
    last: int


def join(clock: Clock, other: Clock) -> None:
    """Adds to `clock` what `other` knows."""
    for agent, time in other.items():
        if time > clock.get(agent, 0):
            clock[agent] = time


class Races:
    """Checks every access against the earlier ones that it may conflict with.

    Attributes:
      solo: whether all accesses but the asynchronous ones are of one thread, whose
        own need no record then: its program order orders them.
    """

    def __init__(self, *, solo: bool):
        self.solo = solo
        self.findings: dict[tuple, Finding] = {}
        self.owners: list[Clock] = []

    def check(self, actor: Actor, view: View, write: bool) -> None:
        """Reports the recorded accesses that conflict with this one and are not ordered before it."""
        first, last = view.bounds()
        for record in view.buffer.records.values():
            if not (write or record.write) or record.last <= first or last <= record.first:
                continue
            other = record.actor
            if other.agent == actor.agent:
                continue
            known = actor.clock
            unfenced = actor.engine and not write and not other.engine
            if unfenced and actor.proxy is not None:
                known = actor.proxy
            if other.time <= known.get(other.agent, 0):
                continue
            if record.view.overlaps(view):
                fence = unfenced and other.time <= actor.clock.get(other.agent, 0)
                self.report(record, actor, view, write, fence)

    def record(self, actor: Actor, view: View, write: bool) -> tuple[Buffer, tuple]:
        """Remembers an access; returns where, for `forget`."""
        records = view.buffer.records
        key = (actor.agent, write, view.layout())
        known = records.pop(key, None) is not None
        records[key] = Record(view, write, actor, *view.bounds())
        if not self.solo and not known and len(records) % _PRUNE_AT == 0:
            self._prune(records)
        return view.buffer, key

    def _prune(self, records: dict[tuple, Record]) -> None:
        """Forgets what every thread that still runs is ordered after."""
        for key, record in list(records.items()):
            agent, time = record.actor.agent, record.actor.time
            if all(clock.get(agent, 0) >= time for clock in self.owners):
                del records[key]

    @staticmethod
    def forget(places: Iterable[tuple[Buffer, tuple]]) -> None:
        for buffer, key in places:
            buffer.records.pop(key, None)

    def report(self, record: Record, actor: Actor, view: View, write: bool, fence: bool) -> None:
        other = record.actor
        key = (other.site, actor.site, record.write, write, view.buffer.name)
        if key in self.findings:
            return
        first, last = view.bounds()
        other_first, other_last = record.view.bounds()
        low, high = max(first, other_first), min(last, other_last)
        missing = (
            "no fence of the asynchronous proxy after the write"
            if fence
            else "nothing orders the second after the first"
        )
        message = (
            f"{other.site} {'writes' if record.write else 'reads'} {view.buffer.name} "
            f"[bytes {low}:{high}] by {other.name}, {actor.site} "
            f"{'writes' if write else 'reads'} it by {actor.name}: {missing}"
        )
        self.findings[key] = Finding(RACE, message, (other.site, actor.site))
