"""A schedule as a flat list of facts, which can be compared one by one."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterable, Sequence

from .channels import Channel, channels
from .schedule import (
    Buffer,
    Copy,
    Loop,
    Role,
    Schedule,
    Semaphore,
    Synchronisation,
    Window,
)

type Value = int | str | None

UNKNOWN = "unknown"


@dataclasses.dataclass(frozen=True)
class Fact:
    """One value of a schedule.

    Attributes:
      subject: what it is about, for example ``window x_ref``.
      field: which of its properties; empty for a summary of the subject.
      value: the value; ``unknown`` where the schedule holds None.
      unit: ``bytes``, or empty.
    """

    subject: str
    field: str
    value: Value
    unit: str = ""


def facts(schedule: Schedule) -> list[Fact]:
    """Every fact of a schedule, the most telling first."""
    found = [Fact("memory", space, _known(n), "bytes") for space, n in schedule.memory().items()]
    found += [Fact("launch", field, value) for field, value in _launch(schedule).items()]
    for number, dimension in enumerate(schedule.grid):
        bound = _known(dimension.bound)
        subject = f"grid dimension {number}"
        found += [
            Fact(subject, "", f"{bound} steps, {dimension.semantics}"),
            Fact(subject, "bound", bound),
            Fact(subject, "semantics", dimension.semantics),
        ]
    named = _Subjects()
    for channel in channels(schedule):
        found += _channel(named.of(f"channel {channel.name}"), channel)
    for window in schedule.windows:
        found += _window(named.of(f"window {window.name}"), window)
    for buffer in schedule.buffers:
        found += _buffer(named.of(f"buffer {buffer.name}"), buffer)
    for semaphore in schedule.semaphores:
        found += _semaphore(named.of(f"semaphore {semaphore.name}"), semaphore)
    for copy in schedule.copies:
        subject = f"{copy.kind} {copy.source} -> {copy.target}{_by(copy.role)}"
        found += _copy(named.of(subject), copy)
    for entry in schedule.synchronisation:
        found += _synchronisation(named.of(_synchronisation_subject(entry)), entry)
    for loop in schedule.loops:
        found += _loop(named.of(f"{loop.kind} loop{_by(loop.role)}"), loop)
    for role in schedule.roles:
        found += _role(named.of(f"role {role.name}"), role)
    return found


def outline(schedule: Schedule) -> list[Fact]:
    """A few lines that can be read beside those of another backend."""
    bounds = " x ".join(str(_known(d.bound)) for d in schedule.grid)
    semantics = ", ".join(dict.fromkeys(d.semantics for d in schedule.grid))
    copies = [f"{len(schedule.windows)} by the grid pipeline"] if schedule.windows else []
    copies += _counted(c.kind for c in schedule.copies for _ in range(c.operations))
    blocks = [f"{w.name} {_array(w.block, w.dtype)}" for w in schedule.windows]
    lines = {
        "grid": [f"{bounds} ({semantics})"] if bounds else [],
        "threads": [_shape(schedule.threads)] if schedule.threads else [],
        "roles": [role.name for role in schedule.roles],
        "pipeline depth": _pipelining(schedule),
        "blocks": blocks,
        "copies": copies,
        "semaphores": _counted(s.kind for s in schedule.semaphores),
        "waits": _counted(w.kind for w in schedule.waits for _ in range(w.operations)),
        "loops": [f"{loop.kind} {_known(loop.trip_count)}" for loop in schedule.loops],
    }
    unread = {entry.what for entry in schedule.unread}
    found = []
    for subject, parts in lines.items():
        nothing = UNKNOWN if subject in unread else "none"
        found.append(Fact(subject, "", ", ".join(parts) or nothing))
    found += [Fact("memory", s, _known(n), "bytes") for s, n in schedule.memory().items()]
    return [
        *found,
        Fact(
            "not read", "", ", ".join(dict.fromkeys(e.what for e in schedule.unread)) or "nothing"
        ),
    ]


def _pipelining(schedule: Schedule) -> list[str]:
    if schedule.windows:
        return [f"{w.name} {_known(w.depth)}" for w in schedule.windows]
    if schedule.stages is not None:
        return [f"{schedule.stages} stages, by the compiler"]
    return ["written out"] if schedule.copies else []


class _Subjects:
    """Tells apart subjects of one name by a number."""

    def __init__(self) -> None:
        self._seen: Counter[str] = Counter()

    def of(self, subject: str) -> str:
        self._seen[subject] += 1
        return subject if self._seen[subject] == 1 else f"{subject} #{self._seen[subject]}"


def _launch(schedule: Schedule) -> dict[str, Value]:
    return {
        "core type": schedule.core_type,
        "threads": _shape(schedule.threads),
        "cluster": _shape(schedule.cluster),
        "stages": schedule.stages,
    }


def _channel(subject: str, channel: Channel) -> list[Fact]:
    return [
        Fact(subject, "", f"{channel.kind}, depth {_known(channel.depth)}"),
        Fact(subject, "depth", _known(channel.depth)),
        Fact(subject, "look-ahead", _known(channel.look_ahead)),
        Fact(subject, "slot", _array(channel.slot, channel.dtype)),
        Fact(subject, "memory", channel.space),
    ]


def _window(subject: str, window: Window) -> list[Fact]:
    space = window.space.upper()
    return [
        Fact(subject, "", f"{_array(window.block, window.dtype)} in {space}"),
        Fact(subject, "pipeline mode", window.pipeline_mode),
        Fact(subject, space, _known(window.bytes), "bytes"),
        Fact(subject, "block", _array(window.block, window.dtype)),
        Fact(subject, "index map", _known(window.index_map)),
        Fact(subject, "direction", _known(window.direction)),
        Fact(subject, "notes", ", ".join(window.notes) or "none"),
    ]


def _buffer(subject: str, buffer: Buffer) -> list[Fact]:
    space = buffer.space.upper()
    return [
        Fact(subject, "", f"{_array(buffer.shape, buffer.dtype)} in {space}"),
        Fact(subject, "shape", _array(buffer.shape, buffer.dtype)),
        Fact(subject, space, _known(buffer.bytes), "bytes"),
        Fact(subject, "kind", buffer.kind),
        Fact(subject, "offset", buffer.offset, "bytes"),
    ]


def _semaphore(subject: str, semaphore: Semaphore) -> list[Fact]:
    return [
        Fact(subject, "", f"{_known(semaphore.count)} x {semaphore.kind}"),
        Fact(subject, "kind", semaphore.kind),
        Fact(subject, "count", _known(semaphore.count)),
        Fact(subject, "arrivals", semaphore.arrivals),
    ]


def _copy(subject: str, copy: Copy) -> list[Fact]:
    return [
        Fact(subject, "", f"{copy.direction}, {_array(copy.shape, copy.dtype)}"),
        Fact(subject, "direction", copy.direction),
        Fact(subject, "shape", _array(copy.shape, copy.dtype)),
        Fact(subject, "size", _known(copy.bytes), "bytes"),
        Fact(subject, "semaphore", copy.semaphore),
        Fact(subject, "remote", _yes(copy.remote)),
        *_counts(subject, copy),
    ]


def _synchronisation_subject(entry: Synchronisation) -> str:
    on = f" on {entry.semaphore}" if entry.semaphore else ""
    return f"{entry.action} {entry.kind}{on}{_by(entry.role)}"


def _synchronisation(subject: str, entry: Synchronisation) -> list[Fact]:
    return [
        Fact(subject, "", f"{entry.operations} operations"),
        Fact(subject, "remote", _yes(entry.remote)),
        *_counts(subject, entry),
    ]


def _counts(subject: str, record: Copy | Synchronisation) -> list[Fact]:
    return [
        Fact(subject, "operations", record.operations),
        Fact(subject, "executions", _known(record.executions)),
    ]


def _loop(subject: str, loop: Loop) -> list[Fact]:
    return [
        Fact(subject, "", f"{_known(loop.trip_count)} steps"),
        Fact(subject, "trip count", _known(loop.trip_count)),
        Fact(subject, "nesting", loop.nesting),
        Fact(subject, "carried values", loop.carried),
    ]


def _role(subject: str, role: Role) -> list[Fact]:
    return [
        Fact(subject, "", f"{role.threads} threads"),
        Fact(subject, "threads", role.threads),
        Fact(subject, "registers", role.registers),
    ]


def _counted(words: Iterable[str]) -> list[str]:
    return [f"{n} {word}" for word, n in Counter(words).items()]


def _known(value: int | str | None) -> int | str:
    return UNKNOWN if value is None else value


def _yes(value: bool) -> str:
    return "yes" if value else "no"


def _by(role: str) -> str:
    return f" by {role}" if role else ""


def _shape(sizes: Sequence[int | None]) -> str:
    return "x".join("?" if size is None else str(size) for size in sizes)


def _array(shape: Sequence[int | None], dtype: str) -> str:
    return f"{_shape(shape) or 'scalar'} {dtype}"
