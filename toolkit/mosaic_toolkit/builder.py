"""`Builder`: makes operations at an insertion point, with constants folded as it goes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from .jax_compat import ir

_EQ, _NE, _SLT, _SLE, _SGT, _SGE = range(6)

# A 32-bit integer that is known, or the value that holds it.
type Index = ir.Value | int


class Builder:
    """Makes ``arith``, ``scf`` and other operations where it stands.

    Integers are i32, conditions i1.  A number that is known stays a Python ``int`` (a
    condition a ``bool``), and arithmetic on such numbers makes no operation.
    """

    def __init__(self, point: ir.InsertionPoint, location: ir.Location):
        self.point = point
        self.location = location
        self.context = location.context
        with self.context:
            self.i32 = ir.IntegerType.get_signless(32)
            self.i1 = ir.IntegerType.get_signless(1)

    def op(
        self,
        name: str,
        results: Sequence[ir.Type],
        operands: Sequence[ir.Value],
        attributes: Mapping[str, ir.Attribute] | None = None,
        regions: int = 0,
    ) -> ir.Operation:
        """Any operation, by its name."""
        return ir.Operation.create(
            name,
            results=list(results),
            operands=list(operands),
            attributes=dict(attributes or {}),
            regions=regions,
            loc=self.location,
            ip=self.point,
        )

    def attribute(self, text: str) -> ir.Attribute:
        return ir.Attribute.parse(text, self.context)

    def type(self, text: str) -> ir.Type:
        return ir.Type.parse(text, self.context)

    # --- arithmetic --------------------------------------------------------------

    def value(self, number: Index) -> ir.Value:
        """The number as a value."""
        if isinstance(number, ir.Value):
            return number
        kind = self.i1 if isinstance(number, bool) else self.i32
        attribute = ir.IntegerAttr.get(kind, int(number))
        return self.op("arith.constant", [kind], [], {"value": attribute}).results[0]

    def add(self, a: Index, b: Index) -> Index:
        if isinstance(a, int) and isinstance(b, int):
            return a + b
        if isinstance(b, int) and b == 0:
            return a
        return self._binary("arith.addi", self.i32, a, b)

    def mul(self, a: Index, b: Index) -> Index:
        if isinstance(a, int) and isinstance(b, int):
            return a * b
        if isinstance(b, int) and b == 1:
            return a
        return self._binary("arith.muli", self.i32, a, b)

    def mask(self, a: Index, bits: int) -> Index:
        """Bitwise and."""
        return a & bits if isinstance(a, int) else self._binary("arith.andi", self.i32, a, bits)

    def number(self, condition: Index) -> Index:
        """1 where the condition holds, else 0."""
        if isinstance(condition, int):
            return int(condition)
        return self.op("arith.extui", [self.i32], [condition]).results[0]

    def _binary(self, name: str, kind: ir.Type, a: Index, b: Index) -> ir.Value:
        return self.op(name, [kind], [self.value(a), self.value(b)]).results[0]

    def eq(self, a: Index, b: Index) -> Index:
        return a == b if self._known(a, b) else self._compare(_EQ, a, b)

    def ne(self, a: Index, b: Index) -> Index:
        return a != b if self._known(a, b) else self._compare(_NE, a, b)

    def lt(self, a: Index, b: Index) -> Index:
        return a < b if self._known(a, b) else self._compare(_SLT, a, b)  # type: ignore[operator]

    def ge(self, a: Index, b: Index) -> Index:
        return a >= b if self._known(a, b) else self._compare(_SGE, a, b)  # type: ignore[operator]

    @staticmethod
    def _known(a: Index, b: Index) -> bool:
        return isinstance(a, int) and isinstance(b, int)

    def _compare(self, predicate: int, a: Index, b: Index) -> ir.Value:
        i64 = ir.IntegerType.get_signless(64, self.context)
        attributes = {"predicate": ir.IntegerAttr.get(i64, predicate)}
        return self.op("arith.cmpi", [self.i1], [self.value(a), self.value(b)], attributes).results[
            0
        ]

    def either(self, a: Index, b: Index) -> Index:
        """Logical or."""
        if a is True or b is True:
            return True
        if a is False:
            return b
        return a if b is False else self._binary("arith.ori", self.i1, a, b)

    def both(self, a: Index, b: Index) -> Index:
        """Logical and."""
        if a is False or b is False:
            return False
        if a is True:
            return b
        return a if b is True else self._binary("arith.andi", self.i1, a, b)

    def select(self, condition: Index, a: Index, b: Index) -> Index:
        if isinstance(condition, int):
            return a if condition else b
        if a is b:
            return a
        operands = [condition, self.value(a), self.value(b)]
        return self.op("arith.select", [operands[1].type], operands).results[0]

    # --- control flow ------------------------------------------------------------

    @contextmanager
    def inside(self, block: ir.Block) -> Iterator[None]:
        """Builds at the end of a block for as long as the context lasts."""
        before, self.point = self.point, ir.InsertionPoint(block)
        try:
            yield
        finally:
            self.point = before

    def when(self, condition: Index, body: Callable[[], None]) -> None:
        """``scf.if`` without results; nothing, or the body alone, where the condition is known."""
        if isinstance(condition, int):
            if condition:
                body()
            return
        operation = self.op("scf.if", [], [condition], regions=2)
        with self.inside(operation.regions[0].blocks.append()):
            body()
            self.op("scf.yield", [], [])

    def loop(
        self,
        trips: Index,
        initial: Sequence[Index],
        body: Callable[[ir.Value, list[ir.Value]], Sequence[Index]],
    ) -> list[ir.Value]:
        """``scf.for`` from 0 to `trips`: `body` takes counter and carried values, returns the next ones."""
        carried = [self.value(number) for number in initial]
        types = [value.type for value in carried]
        bounds = [self.value(number) for number in (0, trips, 1)]
        operation = self.op("scf.for", types, [*bounds, *carried], regions=1)
        block = operation.regions[0].blocks.append(
            self.i32, *types, arg_locs=[self.location] * (1 + len(types))
        )
        with self.inside(block):
            counter, *values = block.arguments
            following = [self.value(number) for number in body(counter, values)]
            self.op("scf.yield", [], following)
        return list(operation.results)

    # --- copies of operations ------------------------------------------------------

    def inline(self, block: ir.Block, arguments: Sequence[Index]) -> list[Index]:
        """Copies a block's operations with values for its arguments; what its terminator hands on.

        An operand that is a constant comes back as the number that it is.
        """
        values: dict[ir.Value, Index] = dict(zip(block.arguments, arguments))
        *body, last = (view.operation for view in block.operations)
        for op in body:
            number = constant_of(op)
            if number is not None:
                values[op.results[0]] = number
                continue
            copy = op.clone(self.point)
            self._remap(copy, values)
            values.update(zip(op.results, copy.results))
        return [values[operand] for operand in last.operands]

    def _remap(self, copy: ir.Operation, values: Mapping[ir.Value, Index]) -> None:
        before, self.point = self.point, ir.InsertionPoint(copy)

        def visit(op: ir.Operation) -> ir.WalkResult:
            for position, operand in enumerate(op.operands):
                if operand in values:
                    op.operands[position] = self.value(values[operand])
            return ir.WalkResult.ADVANCE

        copy.walk(visit, ir.WalkOrder.PRE_ORDER)
        self.point = before


def constant_of(op: ir.Operation) -> int | None:
    """The number of an ``arith.constant`` of type i32, None for any other operation."""
    if op.name != "arith.constant":
        return None
    attribute: Any = op.attributes["value"]
    if str(op.results[0].type) != "i32":
        return None
    return int(attribute.value)
