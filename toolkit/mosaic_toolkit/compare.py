"""Compares two kernels: schedule first, then algebra, op counts, and operations.

Two kernels of one backend are compared operation by operation.  Two backends, or
two levels of one, tile and write down one computation differently, so there only
the kinds of compute operations and the schedules are set side by side.
"""

from __future__ import annotations

import collections
import dataclasses
from typing import TYPE_CHECKING

from .algebra import Algebra
from .kernel import Kernel
from .matching import Difference, Labels, Matching, Tree
from .operation_text import OperationWriter
from .schedule import raise_schedule
from .schedule_facts import Fact, Value, facts, outline
from .schedule_names import with_names_of

if TYPE_CHECKING:
    from .jax_compat import ir

# How many differing operations are spelled out; all are counted.
_SPELLED_OUT = 400


@dataclasses.dataclass(frozen=True)
class ScheduleDifference:
    """One fact of the schedule that differs.

    Attributes:
      subject: for example ``window x_ref`` or ``memory``.
      field: for example ``pipeline mode``; empty where the subject as a whole
        exists on one side only.
      before, after: the fact's values, None where absent or unknown.
      unit: ``bytes``, or empty.
    """

    subject: str
    field: str
    before: Value
    after: Value
    unit: str = ""


@dataclasses.dataclass(frozen=True)
class Count:
    """How often something occurs before and after."""

    name: str
    before: int
    after: int


@dataclasses.dataclass(frozen=True)
class AlgebraComparison:
    """Whether two kernels compute the same, as far as counting operations tells.

    Attributes:
      same: no difference was found.
      by: ``ops``: names, element types and counts; or ``kinds``: names alone, where
        kernels are set side by side.
      same_kinds: the names alone are the same; counts change where a pass merges or
        duplicates operations.
      differences: what differs; a kind that a backend lacks counts 0.
      unknown: operations that no table knows, so that they were not compared.
    """

    same: bool
    by: str
    same_kinds: bool
    differences: tuple[Count, ...] = ()
    unknown: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True)
class OperationDifference:
    """One operation that differs.

    Attributes:
      kind: ``removed``, ``added``, ``changed`` or ``moved``.
      where: the operations around it, outermost first.
      before, after: its text, with one number for one value on both sides.
    """

    kind: str
    where: str
    before: str | None
    after: str | None


@dataclasses.dataclass(frozen=True)
class Comparison:
    """What differs between two kernels.

    Attributes:
      before, after: the kernels, as ``name (backend, target)``.
      identical: nothing differs, up to value names, locations, symbol names and
        where constants stand.
      schedule: differing facts; or an outline of both, side by side.
      algebra: whether the same is computed.
      ops: operations of the IR whose number differs; none side by side.
      operations: differing operations, the first ones; none side by side.
      totals: number of differing operations by kind, all of them.
      side_by_side: the kernels are of two backends, or one is lowered further.
    """

    before: str
    after: str
    identical: bool
    schedule: tuple[ScheduleDifference, ...]
    algebra: AlgebraComparison
    ops: tuple[Count, ...] = ()
    operations: tuple[OperationDifference, ...] = ()
    totals: tuple[tuple[str, int], ...] = ()
    side_by_side: bool = False


def compare(before: Kernel, after: Kernel) -> Comparison:
    """Compares two kernels.

    Raises:
      InvalidModule: a module does not parse.
      Unsupported: a kernel's backend is unknown.
    """
    schedules = raise_schedule(before), raise_schedule(after)
    titles = _title(before), _title(after)
    if (before.backend, before.level) != (after.backend, after.level):
        return Comparison(
            *titles,
            identical=False,
            schedule=_side_by_side(*map(outline, schedules)),
            algebra=_compare_kinds(*(s.algebra for s in schedules)),
            side_by_side=True,
        )
    renamed = with_names_of(schedules[1], schedules[0])
    schedule = _differences(
        _facts_of_call(before) + facts(schedules[0]), _facts_of_call(after) + facts(renamed)
    )
    algebra = _compare_ops(*(s.algebra for s in schedules))
    if before.asm == after.asm:
        return Comparison(*titles, not schedule, schedule, algebra)
    modules = before.module(), after.module()
    ops = _counts(*(collections.Counter(_op_names(m)) for m in modules))
    operations, totals = _compare_operations(*modules)
    return Comparison(
        *titles,
        identical=not (schedule or ops or totals),
        schedule=schedule,
        algebra=algebra,
        ops=ops,
        operations=operations,
        totals=tuple(totals.items()),
    )


def _title(kernel: Kernel) -> str:
    level = "" if kernel.level == "dialect" else f", {kernel.level}"
    return f"{kernel.name} ({kernel.backend}, {kernel.target}{level})"


# --- schedule -----------------------------------------------------------------------


def _facts_of_call(kernel: Kernel) -> list[Fact]:
    listed = {
        "target": kernel.target,
        "level": kernel.level,
        "operands": ", ".join(map(str, kernel.operands)),
        "results": ", ".join(map(str, kernel.results)),
        "aliases": ", ".join(f"operand {a} = result {b}" for a, b in kernel.aliases) or "none",
    }
    call = [Fact("custom call", n, v) for n, v in kernel.attributes if n != "kernel_name"]
    return [Fact("kernel", field, value) for field, value in listed.items()] + call


def _differences(before: list[Fact], after: list[Fact]) -> tuple[ScheduleDifference, ...]:
    differing = (d for d in _side_by_side(before, after) if d.before != d.after)
    old, new = ({fact.subject for fact in side} for side in (before, after))
    return tuple(
        d for d in differing if (d.field == "") == ((d.subject in old) != (d.subject in new))
    )


def _side_by_side(before: list[Fact], after: list[Fact]) -> tuple[ScheduleDifference, ...]:
    """Every fact of either side; those of one subject stay together."""
    left, right = ({(f.subject, f.field): f for f in side} for side in (before, after))
    subjects = dict.fromkeys(f.subject for f in (*before, *after))
    order = {subject: number for number, subject in enumerate(subjects)}
    keys = sorted({**left, **right}, key=lambda key: order[key[0]])
    return tuple(
        ScheduleDifference(
            subject,
            field,
            left[subject, field].value if (subject, field) in left else None,
            right[subject, field].value if (subject, field) in right else None,
            (left.get((subject, field)) or right[subject, field]).unit,
        )
        for subject, field in keys
    )


# --- algebra ------------------------------------------------------------------------


def _compare_ops(before: Algebra, after: Algebra) -> AlgebraComparison:
    sides = (
        collections.Counter({f"{op.name} {op.types}": op.count for op in side.ops})
        for side in (before, after)
    )
    return _algebra("ops", _counts(*sides), before, after)


def _compare_kinds(before: Algebra, after: Algebra) -> AlgebraComparison:
    sides: list[collections.Counter[str]] = []
    for side in (before, after):
        counts: collections.Counter[str] = collections.Counter()
        for op in side.ops:
            counts[op.name] += op.count
        sides.append(counts)
    one_sided = tuple(c for c in _counts(*sides) if 0 in (c.before, c.after))
    return _algebra("kinds", one_sided, before, after)


def _algebra(
    by: str, differences: tuple[Count, ...], before: Algebra, after: Algebra
) -> AlgebraComparison:
    unknown = sorted({name for side in (before, after) for name, _ in side.unknown})
    same_kinds = before.kinds == after.kinds
    return AlgebraComparison(not differences, by, same_kinds, differences, tuple(unknown))


def _counts(before: collections.Counter[str], after: collections.Counter[str]) -> tuple[Count, ...]:
    names = sorted({*before, *after})
    return tuple(Count(n, before[n], after[n]) for n in names if before[n] != after[n])


# --- operations -----------------------------------------------------------------------


def _op_names(module: ir.Module) -> list[str]:
    from .jax_compat import ir

    names: list[str] = []

    def visit(op: ir.Operation) -> ir.WalkResult:
        names.append(op.name)
        return ir.WalkResult.ADVANCE

    module.operation.walk(visit)
    return names


def _compare_operations(
    before: ir.Module, after: ir.Module
) -> tuple[tuple[OperationDifference, ...], dict[str, int]]:
    labels = Labels()
    matching = Matching(Tree(before, labels), Tree(after, labels))
    totals: collections.Counter[str] = collections.Counter()
    spelled: list[OperationDifference] = []
    writer = OperationWriter(matching)
    for difference in matching.differences():
        totals[difference.kind] += 1
        if len(spelled) < _SPELLED_OUT:
            spelled.append(_spell(difference, writer))
    order = ("changed", "removed", "added", "moved")
    spelled.sort(key=lambda entry: order.index(entry.kind))
    return tuple(spelled), {kind: totals[kind] for kind in order if totals[kind]}


def _spell(difference: Difference, writer: OperationWriter) -> OperationDifference:
    a, b = difference.before, difference.after
    place = a if b is None else b
    assert place is not None
    return OperationDifference(
        difference.kind,
        writer.where(place),
        None if a is None else writer.text(a, b),
        None if b is None else writer.text(b, a),
    )
