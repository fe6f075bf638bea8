"""Walks the operations of a kernel with the loops and conditions around each."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator

from ..jax_compat import ir
from ..locations import source_line
from ..schedule import Copy, Loop, Synchronisation
from .expressions import Expressions

_LOOPS = {
    "scf.for": "for",
    "scf.while": "while",
    "scf.parallel": "parallel",
    "scf.forall": "parallel",
}
_CONDITIONS = frozenset({"scf.if", "scf.index_switch", "gpu.warp_execute_on_lane_0"})


@dataclasses.dataclass(frozen=True)
class Place:
    """What surrounds an operation.

    Attributes:
      executions: how often it runs per grid step, None where data decides.
      nesting: number of loops around it.
      role: name of the role that runs it, empty for all.
    """

    executions: int | None = 1
    nesting: int = 0
    role: str = ""

    @property
    def outside(self) -> int:
        """1 outside every loop, else 0."""
        return int(self.nesting == 0)

    def inside(self, trip_count: int | None) -> Place:
        times = _product(self.executions, trip_count)
        return dataclasses.replace(self, executions=times, nesting=self.nesting + 1)

    def under_condition(self) -> Place:
        return self if self.executions == 0 else dataclasses.replace(self, executions=None)

    def never(self) -> Place:
        return dataclasses.replace(self, executions=0)


def _product(a: int | None, b: int | None) -> int | None:
    if 0 in (a, b):
        return 0
    return None if a is None or b is None else a * b


def _sum(a: int | None, b: int | None) -> int | None:
    return None if a is None or b is None else a + b


# Where each region of a branch between roles runs; None for any other operation.
PlacesOf = Callable[[ir.Operation, Place], list[Place] | None]


def walk(
    block: ir.Block,
    expressions: Expressions,
    places_of: PlacesOf = lambda op, place: None,
    place: Place = Place(),
) -> Iterator[tuple[ir.Operation, Place]]:
    """Every operation under `block` in order, each before the ones inside it."""
    for view in block.operations:
        op = view.operation
        yield op, place
        if not len(op.regions):
            continue
        if op.name in _LOOPS:
            places = [place.inside(trip_count(op, expressions))] * len(op.regions)
        elif op.name in _CONDITIONS:
            places = places_of(op, place) or [place.under_condition()] * len(op.regions)
        else:
            places = [place] * len(op.regions)
        for region, inner in zip(op.regions, places):
            for child in region.blocks:
                yield from walk(child, expressions, places_of, inner)


def as_loop(op: ir.Operation, place: Place, expressions: Expressions) -> Loop | None:
    """The operation as a loop of the schedule, None where it is none."""
    kind = _LOOPS.get(op.name)
    if kind is None:
        return None
    trips = trip_count(op, expressions)
    return Loop(kind, trips, place.nesting, len(op.results), source_line(op.location), place.role)


def trip_count(op: ir.Operation, expressions: Expressions) -> int | None:
    """Steps of an ``scf.for`` with constant bounds; None for any other loop."""
    if op.name != "scf.for":
        return None
    lower, upper, step = (expressions.constant(v) for v in list(op.operands)[:3])
    if lower is None or upper is None or step is None or step <= 0:
        return None
    return max(0, -(-(upper - lower) // step))


def tally[Record: (Copy, Synchronisation)](records: Iterable[Record]) -> tuple[Record, ...]:
    """Records that differ only in their counts become one with the sums, in first order."""
    totals: dict[Record, tuple[int, int | None, int]] = {}
    for record in records:
        key = dataclasses.replace(record, operations=0, executions=0, outside=0)
        operations, executions, outside = totals.get(key, (0, 0, 0))
        totals[key] = (
            operations + record.operations,
            _sum(executions, record.executions),
            outside + record.outside,
        )
    return tuple(
        dataclasses.replace(key, operations=operations, executions=executions, outside=outside)
        for key, (operations, executions, outside) in totals.items()
    )
