"""Compiled stages as a list, and their statistics as a digest, side by side, and as JSON."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from pathlib import PurePath
from typing import Any

from ..stages import GpuStatistics, Stages, Statistics, TpuStatistics
from ..stages.measure import Allocation, Count, Measure
from ..stages.sass import SassLoop
from ..stages.tpu_statistics import BundleLoop, SlotUse
from . import values
from .table import table
from .units import size

_CHANGED = {True: "changed", False: "same", None: ""}
_DIGEST_LINES = 30
_LOOP_COLUMNS = 5
_LINES = 4
_KINDS: dict[str, type] = {"tpu": TpuStatistics, "gpu": GpuStatistics}


def render_stages(stages: Stages, *, changed_only: bool = False) -> str:
    """One row per stage, in the compiler's order, then what its files cannot show."""
    rows = [
        (str(s.index), s.level, s.name, size(s.size), _CHANGED[s.changed])
        for s in stages
        if s.changed is not False or not changed_only
    ]
    text = table(("", "level", "stage", "size", ""), rows)
    return "\n".join([text, *(f"note: {note}" for note in stages.notes)])


def to_json(statistics: Statistics) -> dict[str, Any]:
    kind = next(kind for kind, cls in _KINDS.items() if isinstance(statistics, cls))
    return {"kind": kind, **values.to_json(statistics)}


def from_json(data: Any) -> Statistics:
    """The inverse of `to_json`.

    Raises:
      KeyError, TypeError, ValueError: `data` is not what `to_json` made.
    """
    return values.from_json(_KINDS[data["kind"]], data)


def render_digest(statistics: Statistics, title: str) -> str:
    """At most 30 lines for a bug report; what does not fit is counted, not dropped in silence."""
    sections = _tpu(statistics) if isinstance(statistics, TpuStatistics) else _gpu(statistics)
    return "\n".join([title, *_fit(sections, _DIGEST_LINES - 1)])


def render_side_by_side(before: Statistics, after: Statistics, names: tuple[str, str]) -> str:
    """Every number of either, and the difference where both have one."""
    left, right = _facts(before), _facts(after)
    rows = []
    for label in dict.fromkeys([*left, *right]):
        one, other = left.get(label), right.get(label)
        unit = next(fact.unit for fact in (one, other) if fact is not None)
        rows.append((label, _cell(one), _cell(other), _delta(one, other, unit)))
    why = dict.fromkeys(
        f"{label}: not reported ({fact.why})"
        for facts in (left, right)
        for label, fact in facts.items()
        if fact.value is None
    )
    notes = [
        f"note: {name}: {note}"
        for name, statistics in zip(names, (before, after))
        for note in _notes(statistics)
    ]
    return "\n".join([table(("", *names, "delta"), rows), *why, *notes])


# --- digest -------------------------------------------------------------------


@dataclasses.dataclass
class _Section:
    """Lines that may be cut at their end, down to `least`, to fit a page."""

    lines: list[str]
    least: int


def _fit(sections: Sequence[_Section], room: int) -> list[str]:
    while sum(len(s.lines) for s in sections) > room:
        longest = max(sections, key=lambda s: len(s.lines) - s.least)
        if len(longest.lines) <= longest.least + 1:
            break
        dropped = 1
        if longest.lines[-1].startswith("  and ") and longest.lines[-1].endswith(" more"):
            dropped = int(longest.lines.pop().split()[1]) + 1
        longest.lines[-1] = f"  and {dropped} more"
    return [line for section in sections for line in section.lines]


def _tpu(s: TpuStatistics) -> list[_Section]:
    pressure = _listed(s.pressure) or "not reported (the compiler left no such file)"
    head = [
        f"bundles    {s.bundles}, {s.empty_bundles} empty; {s.emitted_bundles} emitted",
        f"spills     vector {s.vector_spills} out {s.vector_fills} in, "
        f"scalar {s.scalar_spills} out {s.scalar_fills} in",
        f"registers  {_listed(s.registers) or 'none named'}; pressure {pressure}",
        f"code       {_sized(s.code_bytes)}",
        f"VMEM       {_sized(s.vmem_bytes)} of {_sized(s.vmem_capacity)}",
        f"lines      {_lines(s)}",
    ]
    return [
        _Section(head, len(head)),
        _Section(_loop_lines(s), 2),
        _Section(_slot_lines(s), 4),
        _Section(_memory_lines(_buffers(s.allocations)), 3),
        _Section(_copy_lines(s), 2),
        _Section([f"note: {note}" for note in s.notes], len(s.notes)),
    ]


def _listed(counts: Sequence[Count]) -> str:
    return ", ".join(f"{c.name} {c.count}" for c in counts)


def _lines(s: TpuStatistics) -> str:
    """The Python lines with the most instructions, and their shares."""
    if not s.lines:
        return "not reported (the bundles name no Python lines)"
    total = sum(c.count for c in s.lines) + s.without_line
    named = [(PurePath(c.name).name, c.count) for c in s.lines[:_LINES]]
    rest = [c.count for c in s.lines[_LINES:]]
    shares = [*named, (f"{len(rest)} other lines", sum(rest)), ("no line", s.without_line)]
    return ", ".join(f"{name} {100 * count / total:.0f}%" for name, count in shares)


def _loop_lines(s: TpuStatistics) -> list[str]:
    if not s.loops:
        return ["loops      none"]
    rows = [
        (
            str(i),
            str(loop.depth),
            f"{loop.first:#x}-{loop.last:#x}",
            str(loop.bundles),
            str(loop.empty_bundles),
            _sized(loop.copied_bytes),
        )
        for i, loop in enumerate(s.loops)
    ]
    head = ("loop", "depth", "body", "bundles", "empty", "copied by one iteration, at most")
    return table(head, rows).splitlines()


# What people call the units of the compiler's columns; a column not named here keeps its own.
_UNITS = {
    "MATMUL": "MXU multiply",
    "MATPUSH": "MXU push",
    "VALU": "VPU",
    "VLOAD": "load",
    "VLOAD:FILL": "load, fills",
    "VSTORE": "store",
    "VSTORE:SPILL": "store, spills",
    "SALU": "scalar",
}


def _unit(use: SlotUse) -> str:
    name = _UNITS.get(use.unit)
    return f"{use.unit} ({name})" if name else use.unit


def _slot_lines(s: TpuStatistics) -> list[str]:
    if not s.slots:
        return []
    shown = _largest([loop.bundles for loop in s.loops])
    parts = [s.slots, *(s.loops[i].slots for i in shown)]
    rows = [
        (_unit(use), *(_percent(part[column]) for part in parts))
        for column, use in enumerate(s.slots)
        if use.used
    ]
    unused = [use.unit for use in s.slots if not use.used]
    names = [f"loop {i}" for i in shown]
    lines = table(("slots used", "all", *names), rows).splitlines()
    return [*lines, f"unused     {', '.join(unused)}"] if unused else lines


def _largest(sizes: Sequence[int]) -> list[int]:
    """Places of the loops that get a column, in order."""
    return sorted(sorted(range(len(sizes)), key=lambda i: -sizes[i])[:_LOOP_COLUMNS])


def _percent(use: SlotUse) -> str:
    return f"{100 * use.occupancy:.1f}%"


def _buffers(allocations: Sequence[Allocation]) -> list[Allocation]:
    """Of data memory, largest first; semaphores and fixed words are counted in JSON alone."""
    data = [a for a in allocations if a.space in ("vmem", "smem")]
    return sorted(data, key=lambda a: -(a.bytes.value or 0))


def _memory_lines(allocations: Iterable[Allocation]) -> list[str]:
    rows = [
        (_sized(a.bytes), f"x {count}" if count > 1 else "", a.space, a.name, a.shape)
        for a, count in Counter(allocations).items()
    ]
    return table(("on-chip memory", "", "", "", ""), rows).splitlines() if rows else []


def _copy_lines(s: TpuStatistics) -> list[str]:
    directions = list(dict.fromkeys(copy.direction for copy in s.copies))
    if not directions:
        return ["copies     none"]
    return [
        f"copies     {direction}: {_times(len(sizes), 'instruction')}, {_sized(_sum(sizes))}"
        for direction in directions
        if (sizes := [c.bytes for c in s.copies if c.direction == direction])
    ]


def _times(count: int, what: str) -> str:
    return f"{count} {what}" if count == 1 else f"{count} {what}s"


def _gpu(s: GpuStatistics) -> list[_Section]:
    r = s.resources
    head = [
        f"SASS       {s.sass.instructions} instructions, {_sized(s.sass.code_bytes)}, "
        f"{s.sass.architecture or 'architecture not reported (no .target line)'}",
        f"registers  {r.registers} per thread",
        f"spills     {_sized(r.spill_stores)} stores, {_sized(r.spill_loads)} loads, "
        f"stack {_sized(r.stack)}",
        f"shared     {_sized(r.shared)} static, {_sized(s.dynamic_shared)} dynamic",
        f"barriers   {r.barriers} named",
    ]
    return [
        _Section(head, len(head)),
        _Section(_class_lines(s), 4),
        _Section(_memory_lines(s.allocations), 3),
        _Section(
            [f"ptxas      {warning}" for warning in r.warnings] or ["ptxas      no warning"], 1
        ),
    ]


def _class_lines(s: GpuStatistics) -> list[str]:
    loops = s.sass.loops
    shown = [loops[i] for i in _largest([loop.instructions for loop in loops])]
    parts = [_by_name(s.sass.classes), *(_by_name(loop.classes) for loop in shown)]
    rows = [(c.name, *(str(part.get(c.name, 0)) for part in parts)) for c in s.sass.classes]
    head = [f"loop {loop.header:#x}" for loop in shown]
    lines = table(("instructions", "all", *head), rows).splitlines()
    rest = sorted(loop.instructions for loop in loops if loop not in shown)
    if rest:
        lines.insert(
            0,
            f"loops      {len(loops)}, of which {len(rest)} of {rest[-1]} "
            "instructions at most are not shown",
        )
    return lines


def _by_name(counts: Sequence[Count]) -> dict[str, int]:
    return {c.name: c.count for c in counts}


def _sized(measure: Measure) -> str:
    return size(measure.value) if measure.value is not None else str(measure)


def _sum(measures: Sequence[Measure]) -> Measure:
    unknown = next((m for m in measures if m.value is None), None)
    return unknown or Measure(sum(m.value or 0 for m in measures))


# --- side by side -------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class _Fact:
    value: float | None
    unit: str = ""
    why: str = ""


def _fact(measure: Measure, unit: str = "") -> _Fact:
    return _Fact(measure.value, unit, measure.why)


def _facts(statistics: Statistics) -> dict[str, _Fact]:
    return (
        _tpu_facts(statistics) if isinstance(statistics, TpuStatistics) else _gpu_facts(statistics)
    )


def _tpu_facts(s: TpuStatistics) -> dict[str, _Fact]:
    facts = {
        "bundles": _fact(s.bundles),
        "empty bundles": _fact(s.empty_bundles),
        "emitted bundles": _fact(s.emitted_bundles),
        "vector spills": _fact(s.vector_spills),
        "vector fills": _fact(s.vector_fills),
        "scalar spills": _fact(s.scalar_spills),
        "scalar fills": _fact(s.scalar_fills),
        "code": _fact(s.code_bytes, "bytes"),
        "VMEM": _fact(s.vmem_bytes, "bytes"),
    }
    facts |= {f"{c.name} registers": _Fact(c.count) for c in s.registers}
    facts |= {f"{c.name} pressure": _Fact(c.count) for c in s.pressure}
    facts |= {f"{use.unit} slots": _Fact(100 * use.occupancy, "%") for use in s.slots}
    for i, loop in enumerate(s.loops):
        facts |= _bundle_loop_facts(f"loop {i} (depth {loop.depth})", loop)
    directions = dict.fromkeys(c.direction for c in s.copies)
    for direction in directions:
        sizes = [c.bytes for c in s.copies if c.direction == direction]
        facts[f"{direction} copies"] = _Fact(len(sizes))
        facts[f"{direction} bytes"] = _fact(_sum(sizes), "bytes")
    return facts | _allocation_facts(_buffers(s.allocations))


def _bundle_loop_facts(name: str, loop: BundleLoop) -> dict[str, _Fact]:
    facts = {
        f"{name} bundles": _Fact(loop.bundles),
        f"{name} empty": _Fact(loop.empty_bundles),
        f"{name} copied": _fact(loop.copied_bytes, "bytes"),
    }
    return facts | {f"{name} {u.unit}": _Fact(100 * u.occupancy, "%") for u in loop.slots if u.used}


def _gpu_facts(s: GpuStatistics) -> dict[str, _Fact]:
    r = s.resources
    facts = {
        "instructions": _Fact(s.sass.instructions),
        "code": _fact(s.sass.code_bytes, "bytes"),
        "registers": _fact(r.registers),
        "spill stores": _fact(r.spill_stores, "bytes"),
        "spill loads": _fact(r.spill_loads, "bytes"),
        "stack": _fact(r.stack, "bytes"),
        "static shared memory": _fact(r.shared, "bytes"),
        "dynamic shared memory": _fact(s.dynamic_shared, "bytes"),
        "named barriers": _fact(r.barriers),
        "ptxas warnings": _Fact(len(r.warnings)),
    }
    facts |= {c.name: _Fact(c.count) for c in s.sass.classes}
    for i, loop in enumerate(s.sass.loops):
        facts |= _sass_loop_facts(f"loop {i}", loop)
    return facts | _allocation_facts(s.allocations)


def _sass_loop_facts(name: str, loop: SassLoop) -> dict[str, _Fact]:
    facts = {f"{name} instructions": _Fact(loop.instructions)}
    return facts | {f"{name} {c.name}": _Fact(c.count) for c in loop.classes}


def _allocation_facts(allocations: Iterable[Allocation]) -> dict[str, _Fact]:
    """Bytes by name, and how many buffers share it."""
    groups: dict[str, list[Measure]] = {}
    for allocation in allocations:
        groups.setdefault(f"{allocation.space}: {allocation.name}", []).append(allocation.bytes)
    facts = {}
    for label, sizes in groups.items():
        facts[label] = _fact(_sum(sizes), "bytes")
        if len(sizes) > 1:
            facts[f"{label}, buffers"] = _Fact(len(sizes))
    return facts


def _notes(statistics: Statistics) -> Sequence[str]:
    if isinstance(statistics, TpuStatistics):
        return statistics.notes
    return statistics.resources.warnings


_FORMATS: dict[str, Callable[[float], str]] = {
    "bytes": lambda value: f"{value:.0f} B" if abs(value) < 1024 else size(int(value)),
    "%": lambda value: f"{value:.1f}%",
    "": lambda value: f"{value:.0f}",
}


def _cell(fact: _Fact | None) -> str:
    if fact is None:
        return "-"
    return "not reported" if fact.value is None else _FORMATS[fact.unit](fact.value)


def _delta(before: _Fact | None, after: _Fact | None, unit: str) -> str:
    if before is None or after is None or before.value is None or after.value is None:
        return ""
    difference = after.value - before.value
    if not difference:
        return "="
    return ("+" if difference > 0 else "-") + _FORMATS[unit](abs(difference))
