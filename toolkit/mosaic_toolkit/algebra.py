"""What a kernel computes: the multiset of its compute operations, schedule taken out.

Every dialect's operations have one canonical name each, so that kernels of two
backends can be read side by side.  Operations that only move data or time
(copies, waits, views, addresses, loop counters) do not count.  Equal multisets
are evidence that two kernels compute the same, no proof: the data-flow between
the operations is not compared.
"""

from __future__ import annotations

import collections
import dataclasses
from typing import TYPE_CHECKING

from . import dataflow, opnames
from .ssa import producer

if TYPE_CHECKING:
    from collections.abc import Iterator

    from .jax_compat import ir


@dataclasses.dataclass(frozen=True)
class AlgebraOp:
    """Compute operations of one name on the same element types.

    Attributes:
      name: canonical name, one for all dialects: ``matmul``, ``add``, ``reduce-sum``, ...
      types: element types, as ``f32`` or ``bf16, bf16 -> f32``.
      count: how many operations of the module these are.
    """

    name: str
    types: str
    count: int


@dataclasses.dataclass(frozen=True)
class Algebra:
    """The compute operations of a kernel.

    Attributes:
      ops: sorted by name and types.
      unknown: (operation, count) of operations that no table knows.
    """

    ops: tuple[AlgebraOp, ...] = ()
    unknown: tuple[tuple[str, int], ...] = ()

    @property
    def kinds(self) -> frozenset[str]:
        """The canonical names alone."""
        return frozenset(op.name for op in self.ops)


def summarise(kernel: ir.Operation) -> Algebra:
    """The compute operations in the regions of `kernel`."""
    counts: collections.Counter[tuple[str, str]] = collections.Counter()
    unknown: collections.Counter[str] = collections.Counter()
    ops = list(_operations(kernel))
    data = _data_flow(ops)
    for op in ops:
        meaning = opnames.meaning(op)
        if meaning is None:
            unknown[opnames.spelling(op)] += 1
        elif meaning is not opnames.SCHEDULE and _computes(op, data):
            counts[meaning, _types(op)] += 1
    return Algebra(
        tuple(AlgebraOp(name, types, n) for (name, types), n in sorted(counts.items())),
        tuple(sorted(unknown.items())),
    )


def _operations(op: ir.Operation) -> Iterator[ir.Operation]:
    for region in op.regions:
        for block in region.blocks:
            for view in block.operations:
                inner = view.operation
                yield inner
                if inner.name not in dataflow.COMBINERS:
                    yield from _operations(inner)


def _computes(op: ir.Operation, data: set[ir.Operation | None]) -> bool:
    """Integer arithmetic computes only where its result becomes data."""
    return op in data or any(map(_is_float, (v.type for v in (*op.operands, *op.results))))


def _data_flow(ops: list[ir.Operation]) -> set[ir.Operation | None]:
    """Operations whose results become data: what is stored, multiplied, and so on.

    A use is data unless the user is known to take the value as an address, a
    predicate, a bound or a counter.  Walking backwards, integers stop at a
    broadcast: a scalar that fills a vector is an index or a constant.
    """
    pending: list[ir.Value] = []
    for op in ops:
        pending.extend(dataflow.stored_values(op))
        if opnames.meaning(op) is not opnames.SCHEDULE and not len(op.results):
            pending.extend(opnames.typed_operands(op))
    seen: set[ir.Value] = set()
    data: set[ir.Operation | None] = set()
    while pending:
        value = pending.pop()
        if value not in seen:
            seen.add(value)
            data.add(producer(value))
            pending.extend(dataflow.data_sources(value))
    return data


def _is_float(type: ir.Type) -> bool:
    return opnames.element(type).startswith(("f", "bf", "tf"))


def _types(op: ir.Operation) -> str:
    operands = [opnames.element(v.type) for v in opnames.typed_operands(op)]
    results = [opnames.element(v.type) for v in opnames.typed_results(op)]
    if set(operands) <= set(results) and len(set(results)) == 1:
        return results[0]
    return f"{', '.join(operands)} -> {', '.join(results)}"
