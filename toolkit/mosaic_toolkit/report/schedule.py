"""A schedule as text tables, and as JSON that can be read back."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

from ..algebra import Algebra
from ..channels import channels
from ..memory_budget import MemoryBudget, memory_budget
from ..schedule import Schedule
from . import memory, values
from .table import table
from .units import number, shape, size


def render_schedule(schedule: Schedule) -> str:
    """One table per aspect, in the same words for every backend."""
    budget = memory_budget(schedule)
    parts = [_launch(schedule, budget)]
    if budget.memories:
        parts.append(f"on-chip memory, before compiling\n{_indented(memory.render_budget(budget))}")
    for title, section in _SECTIONS:
        text = section(schedule)
        if text:
            parts.append(f"{title}\n{_indented(text)}")
    return "\n\n".join(parts)


def schedule_to_json(schedule: Schedule) -> dict[str, Any]:
    """The schedule, and its on-chip memory: totals in bytes, and the budget by buffer."""
    budget = memory.to_json(memory_budget(schedule))
    return {**values.to_json(schedule), "memory": schedule.memory(), "budget": budget}


def schedule_from_json(data: Any) -> Schedule:
    """The inverse of `schedule_to_json`.

    Raises:
      KeyError, TypeError, ValueError: `data` is no schedule.
    """
    return values.from_json(Schedule, data)


def _launch(schedule: Schedule, budget: MemoryBudget) -> str:
    bounds = " x ".join(number(d.bound) for d in schedule.grid)
    semantics = ", ".join(d.semantics for d in schedule.grid)
    rows = [("grid", f"{bounds} ({semantics})" if bounds else "none")]
    if schedule.core_type is not None:
        rows.append(("core", schedule.core_type))
    if schedule.threads:
        rows.append(("threads", shape(schedule.threads)))
    if schedule.cluster:
        rows.append(("cluster", shape(schedule.cluster)))
    if schedule.stages is not None:
        rows.append(("stages", f"{schedule.stages}, by the compiler"))
    rows += [(f"{use.space} memory", memory.total(use, budget.target)) for use in budget.memories]
    width = max(len(name) for name, _ in rows)
    return "\n".join(f"{name.ljust(width)}  {text}" for name, text in rows)


def _channels(schedule: Schedule) -> str:
    rows = [
        (
            channel.name,
            channel.direction or "?",
            channel.kind,
            f"{shape(channel.slot) or 'scalar'} {channel.dtype}",
            channel.space,
            number(channel.depth),
            number(channel.look_ahead),
            size(channel.bytes),
            channel.semaphore or "",
            channel.index_map or "",
            channel.role,
        )
        for channel in channels(schedule)
    ]
    head = ("channel", "", "copied by", "slot", "memory", "depth", "look-ahead", "total",
            "signals", "index map", "role")  # fmt: skip
    return _table(head, rows)


def _windows(schedule: Schedule) -> str:
    rows = [
        (
            window.name,
            window.direction or "?",
            f"{shape(window.block) or 'scalar'} {window.dtype}",
            window.space,
            window.index_map or "?",
            window.pipeline_mode,
            number(window.depth),
            size(window.padded_bytes),
            size(window.bytes),
            ", ".join(window.notes),
        )
        for window in schedule.windows
    ]
    head = ("window", "", "block", "memory", "index map", "mode", "depth", "slot", "total", "")
    return _table(head, rows)


def _buffers(schedule: Schedule) -> str:
    rows = [
        (
            buffer.name,
            buffer.kind,
            f"{shape(buffer.shape) or 'scalar'} {buffer.dtype}",
            buffer.space,
            size(buffer.padded_bytes or buffer.bytes),
            "" if buffer.offset is None else f"at {buffer.offset}",
        )
        for buffer in schedule.buffers
    ]
    return _table(("buffer", "kind", "shape", "memory", "size", "offset"), rows)


def _copies(schedule: Schedule) -> str:
    rows = [
        (
            f"{copy.source} -> {copy.target}",
            copy.kind + (", remote" if copy.remote else ""),
            copy.direction,
            f"{shape(copy.shape) or 'scalar'} {copy.dtype}",
            size(copy.bytes),
            copy.semaphore or "",
            str(copy.operations),
            number(copy.executions),
            copy.role,
        )
        for copy in schedule.copies
    ]
    head = ("copy", "kind", "direction", "shape", "size", "signals", "ops", "runs", "role")
    return _table(head, rows)


def _semaphores(schedule: Schedule) -> str:
    rows = [
        (s.name, s.kind, number(s.count), "" if s.arrivals is None else str(s.arrivals))
        for s in schedule.semaphores
    ]
    return _table(("semaphore", "kind", "count", "arrivals"), rows)


def _synchronisation(schedule: Schedule) -> str:
    rows = [
        (
            s.action,
            s.kind + (", remote" if s.remote else ""),
            s.semaphore or "",
            str(s.operations),
            number(s.executions),
            s.role,
        )
        for s in schedule.synchronisation
    ]
    return _table(("action", "kind", "on", "ops", "runs", "role"), rows)


def _loops(schedule: Schedule) -> str:
    rows = [
        (
            "  " * loop.nesting + loop.kind,
            number(loop.trip_count),
            str(loop.carried),
            loop.role,
            loop.source or "",
        )
        for loop in schedule.loops
    ]
    return _table(("loop", "steps", "carried", "role", "source"), rows)


def _roles(schedule: Schedule) -> str:
    rows = [
        (
            role.name,
            str(role.threads),
            "" if role.registers is None else str(role.registers),
            role.source or "",
        )
        for role in schedule.roles
    ]
    return _table(("role", "threads", "registers", "source"), rows)


def _algebra(schedule: Schedule) -> str:
    return render_algebra(schedule.algebra)


def render_algebra(algebra: Algebra) -> str:
    """Compute operations, one name a line with its counts by element type."""
    lines = []
    for name, ops in itertools.groupby(algebra.ops, key=lambda op: op.name):
        lines.append(f"{name}: {', '.join(f'{op.count} x {op.types}' for op in ops)}")
    if algebra.unknown:
        listed = ", ".join(f"{count} x {name}" for name, count in algebra.unknown)
        lines.append(f"unknown operations: {listed}")
    return "\n".join(lines)


def _unread(schedule: Schedule) -> str:
    return "\n".join(f"{unread.what}: {unread.why}" for unread in schedule.unread)


_SECTIONS: tuple[tuple[str, Callable[[Schedule], str]], ...] = (
    ("channels", _channels),
    ("windows of the grid pipeline", _windows),
    ("buffers", _buffers),
    ("copies", _copies),
    ("semaphores and barriers", _semaphores),
    ("waits, signals, barriers and fences", _synchronisation),
    ("loops", _loops),
    ("roles", _roles),
    ("algebra", _algebra),
    ("not read", _unread),
)


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table without its empty columns; nothing where there are no rows."""
    used = [i for i in range(len(head)) if any(row[i] for row in rows)]
    if not used:
        return ""
    return table([head[i] for i in used], [[row[i] for i in used] for row in rows])


def _indented(text: str) -> str:
    return "\n".join(f"  {line}" for line in text.splitlines())
