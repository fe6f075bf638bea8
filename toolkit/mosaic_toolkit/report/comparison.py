"""What ``mosaic-dump diff`` says: schedule, algebra, op counts, then operations."""

from __future__ import annotations

import itertools
from typing import Any

from ..compare import AlgebraComparison, Comparison, OperationDifference, ScheduleDifference
from ..schedule_facts import Value
from . import values
from .table import table
from .units import size

_SIGNS = {"removed": "-", "added": "+"}


def render(comparison: Comparison) -> str:
    """Differences from the most telling to the most detailed."""
    head = f"{comparison.before}\n  -> {comparison.after}"
    if comparison.identical:
        return f"{head}\n\nidentical, up to names, locations and the places of constants"
    schedule = _side_by_side if comparison.side_by_side else _schedule
    parts = [
        head,
        f"schedule\n{schedule(comparison)}",
        f"algebra\n{_indented(render_algebra(comparison.algebra))}",
    ]
    if comparison.ops:
        rows = [
            (c.name, str(c.before), str(c.after), f"{c.after - c.before:+}") for c in comparison.ops
        ]
        counts = table(("operation", "before", "after", ""), rows)
        parts.append(f"operations whose number differs\n{_indented(counts)}")
    if comparison.totals:
        parts.append(_operations(comparison))
    return "\n\n".join(parts)


def to_json(comparison: Comparison) -> Any:
    return values.to_json(comparison)


def from_json(data: Any) -> Comparison:
    """The inverse of `to_json`.

    Raises:
      KeyError, TypeError, ValueError: `data` is no comparison.
    """
    return values.from_json(Comparison, data)


def _schedule(comparison: Comparison) -> str:
    if not comparison.schedule:
        return "  same"
    groups = itertools.groupby(comparison.schedule, key=lambda d: d.subject)
    return "\n".join(f"  {subject}: {', '.join(map(_change, group))}" for subject, group in groups)


def _change(difference: ScheduleDifference) -> str:
    before = _value(difference.before, difference.unit)
    after = _value(difference.after, difference.unit)
    if difference.field:
        return f"{difference.field} {before} -> {after}"
    return f"removed ({before})" if difference.after is None else f"added ({after})"


def _side_by_side(comparison: Comparison) -> str:
    rows = [
        (
            f"{d.subject} {d.field}".strip(),
            _value(d.before, d.unit),
            _value(d.after, d.unit),
        )
        for d in comparison.schedule
    ]
    return _indented(table(("", comparison.before, comparison.after), rows))


def _value(value: Value, unit: str) -> str:
    if value is None:
        return "-"
    return size(value) if unit == "bytes" and isinstance(value, int) else str(value)


def render_algebra(algebra: AlgebraComparison) -> str:
    """The verdict with its strength, then what differs."""
    kinds = "the same kinds of compute operations"
    what = (
        "the same names, element types and counts of compute operations"
        if algebra.by == "ops"
        else kinds
    )
    if algebra.same:
        lines = [f"same ops: {what}, which is evidence, not proof, of the same computation"]
    elif algebra.same_kinds:
        lines = [f"differs in counts alone: {kinds}, as after merging or duplicating some"]
    else:
        lines = [f"differs: not {kinds}"]
    if algebra.by == "kinds":
        lines.append("counts and element types are not compared: each lowering tiles differently")
    lines += [f"{c.name}: {c.before} -> {c.after}" for c in algebra.differences]
    if algebra.unknown:
        lines.append(f"unknown operations, not compared: {', '.join(algebra.unknown)}")
    return "\n".join(lines)


def _operations(comparison: Comparison) -> str:
    totals = ", ".join(f"{count} {kind}" for kind, count in comparison.totals)
    lines = [f"operations: {totals}"]
    for where, group in itertools.groupby(comparison.operations, key=lambda d: d.where):
        lines.append(f"  in {where or 'the module'}")
        lines += [f"    {line}" for difference in group for line in _operation(difference)]
    rest = sum(count for _, count in comparison.totals) - len(comparison.operations)
    if rest:
        lines.append(f"  and {rest} more")
    return "\n".join(lines)


def _operation(difference: OperationDifference) -> list[str]:
    if difference.kind == "changed":
        return [f"- {difference.before}", f"+ {difference.after}"]
    if difference.kind == "moved":
        return [f"moved {difference.after}"]
    text = difference.after if difference.before is None else difference.before
    return [f"{_SIGNS[difference.kind]} {text}"]


def _indented(text: str) -> str:
    return "\n".join(f"  {line}" for line in text.splitlines())
