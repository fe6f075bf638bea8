"""Gives corresponding parts of two schedules one name: names themselves do not matter."""

from __future__ import annotations

import dataclasses
import re
from collections import defaultdict
from collections.abc import Sequence

from .schedule import Buffer, Copy, Schedule, Semaphore, Synchronisation, Window

type Part = Window | Buffer | Semaphore


def with_names_of(schedule: Schedule, other: Schedule) -> Schedule:
    """The schedule with parts that `other` lacks by name named as those of `other`.

    The nth such part of one kind gets the name of the nth part of that kind which
    this schedule lacks by name.
    """
    names = _corresponding(schedule, other)
    if not names:
        return schedule

    def name(text: str) -> str:
        return names.get(text, text)

    def optional(text: str | None) -> str | None:
        return None if text is None else name(text)

    def index_map(text: str | None) -> str | None:
        return (
            None if text is None else re.sub(r"\b[A-Za-z_]\w*\b(?=\[)", lambda m: name(m[0]), text)
        )

    def copy(c: Copy) -> Copy:
        ends = {"source": name(c.source), "target": name(c.target)}
        return dataclasses.replace(c, **ends, semaphore=optional(c.semaphore))

    def synchronisation(s: Synchronisation) -> Synchronisation:
        return dataclasses.replace(s, semaphore=optional(s.semaphore))

    def window(w: Window) -> Window:
        return dataclasses.replace(w, name=name(w.name), index_map=index_map(w.index_map))

    return dataclasses.replace(
        schedule,
        windows=tuple(map(window, schedule.windows)),
        buffers=tuple(dataclasses.replace(b, name=name(b.name)) for b in schedule.buffers),
        semaphores=tuple(dataclasses.replace(s, name=name(s.name)) for s in schedule.semaphores),
        copies=tuple(map(copy, schedule.copies)),
        synchronisation=tuple(map(synchronisation, schedule.synchronisation)),
    )


def _corresponding(schedule: Schedule, other: Schedule) -> dict[str, str]:
    mine, theirs = _parts(schedule), _parts(other)
    my_names, their_names = ({part.name for part in side} for side in (mine, theirs))
    candidates: dict[object, list[str]] = defaultdict(list)
    for part in theirs:
        if part.name not in my_names:
            candidates[_kind(part)].append(part.name)
    names = {}
    for part in mine:
        queue = candidates[_kind(part)]
        if part.name not in their_names and queue:
            names[part.name] = queue.pop(0)
    return names


def _parts(schedule: Schedule) -> Sequence[Part]:
    return [*schedule.windows, *schedule.buffers, *schedule.semaphores]


def _kind(part: Part) -> object:
    return type(part), part.direction if isinstance(part, Window) else part.kind
