"""Index arithmetic as sums: what is known of an integer SSA value.

Two indices that differ by a constant are told apart, and equal arithmetic on
equal operands gives equal sums although it is spelled out twice.
"""

from __future__ import annotations

from typing import NamedTuple

from ..jax_compat import ir
from ..ssa import producer
from .memory import ZERO, Terms


class Index(NamedTuple):
    """``terms + constant``."""

    terms: Terms
    constant: int


_EXTENDS = frozenset({"arith.extsi", "arith.extui", "llvm.sext", "llvm.zext"})
_SAME_VALUE = _EXTENDS | frozenset(
    {
        "arith.index_cast",
        "arith.index_castui",
        "tpu.assume_multiple",
        "mosaic_gpu.assume_multiple",
    }
)
_ADD = frozenset({"arith.addi", "llvm.add", "index.add"})
_SUB = frozenset({"arith.subi", "llvm.sub", "index.sub"})
_MUL = frozenset({"arith.muli", "llvm.mul", "index.mul"})
_FOLD = {
    "arith.divsi": lambda a, b: _quotient(a, b),
    "arith.remsi": lambda a, b: a - b * _quotient(a, b),
    "arith.minsi": min,
    "arith.maxsi": max,
}
_PREDICATES = {
    0: lambda a, b: a == b,
    1: lambda a, b: a != b,
    2: lambda a, b: a < b,
    3: lambda a, b: a <= b,
    4: lambda a, b: a > b,
    5: lambda a, b: a >= b,
}
# Dialects whose operations are functions of their operands and attributes.
_PURE_DIALECTS = ("arith.", "index.", "affine.apply", "affine.min", "affine.max", "llvm.")
_MAX_CHAIN = 200


class Indices:
    """Sums of the integer values of one module, computed on demand."""

    def __init__(self, depth_of):
        self._depth_of = depth_of
        self._known: dict[ir.Value, Index] = {}
        self._symbols: dict[object, Terms] = {}

    def index(self, value: ir.Value) -> Index:
        """What is known of `value`."""
        return self._index(value, 0)

    def _index(self, value: ir.Value, chain: int) -> Index:
        known = self._known.get(value)
        if known is None:
            known = self._compute(value, chain + 1)
            self._known[value] = known
        return known

    def _compute(self, value: ir.Value, chain: int) -> Index:
        op = producer(value)
        if op is None or chain > _MAX_CHAIN:
            return self._opaque(value)
        name = op.name
        if name in ("arith.constant", "llvm.mlir.constant"):
            return self._constant(op, value)
        if not name.startswith(_PURE_DIALECTS) and name not in _SAME_VALUE:
            return self._opaque(value)
        if len(op.results) != 1 or len(op.regions):
            return self._opaque(value)
        operands = list(op.operands)
        if name in _SAME_VALUE:
            same = self._index(operands[0], chain)
            # Truth and negative numbers change with the width.
            widened = name in _EXTENDS and (
                same.constant < 0
                or (name.endswith(("extsi", "sext")) and str(operands[0].type) == "i1")
            )
            return self._opaque(value) if widened else same
        if name in _ADD | _SUB | _MUL:
            a, b = (self._index(v, chain) for v in operands)
            return self._linear(name, a, b)
        return self._other(op, name, value, [self._index(v, chain) for v in operands])

    def _constant(self, op: ir.Operation, value: ir.Value) -> Index:
        attribute = op.attributes["value"]
        if isinstance(attribute, ir.IntegerAttr | ir.BoolAttr):
            return Index(ZERO, int(attribute.value))
        return self._opaque(value)

    def _linear(self, name: str, a: Index, b: Index) -> Index:
        if name in _ADD:
            return plus(a, b)
        if name in _SUB:
            return Index(_sum(a.terms, b.terms, -1), a.constant - b.constant)
        if a.terms.symbols and b.terms.symbols:
            return Index(self._symbol(("mul", frozenset((a, b))), (a, b)), 0)
        if b.terms.symbols:
            a, b = b, a
        return times(a, b.constant)

    def _other(self, op: ir.Operation, name: str, value: ir.Value, operands: list[Index]) -> Index:
        constants = [i.constant for i in operands if not i.terms.symbols]
        known = len(constants) == len(operands) > 0
        if name == "arith.select" and not operands[0].terms.symbols:
            return operands[1] if operands[0].constant else operands[2]
        if (
            known
            and name in _FOLD
            and (constants[1] or not name.startswith(("arith.div", "arith.rem")))
        ):
            return Index(ZERO, _FOLD[name](*constants))
        if name == "arith.cmpi":
            predicate = op.attributes["predicate"].value
            if known and predicate in _PREDICATES:
                return Index(ZERO, int(_PREDICATES[predicate](*constants)))
        if name.startswith("llvm.") and name not in _PURE_LLVM:
            return self._opaque(value)
        attributes = (
            tuple((n, op.attributes[n]) for n in op.attributes) if len(op.attributes) else ()
        )
        key = (name, attributes, value.type, tuple(operands))
        return Index(self._symbol(key, operands), 0)

    def _opaque(self, value: ir.Value) -> Index:
        depth = self._depth_of(value)
        terms = self._symbols.get(value)
        if terms is None:
            terms = self._symbols[value] = Terms(((len(self._symbols), 1),), depth)
        return Index(terms, 0)

    def _symbol(self, key: object, operands) -> Terms:
        terms = self._symbols.get(key)
        if terms is None:
            depth = max((i.terms.depth for i in operands), default=0)
            terms = self._symbols[key] = Terms(((len(self._symbols), 1),), depth)
        return terms


_PURE_LLVM = frozenset(
    f"llvm.{n}" for n in ("and", "or", "xor", "shl", "lshr", "ashr", "udiv", "sdiv", "urem", "srem")
)


def plus(a: Index, b: Index) -> Index:
    """The sum of two indices."""
    return Index(_sum(a.terms, b.terms, 1), a.constant + b.constant)


def times(a: Index, factor: int) -> Index:
    """An index times a constant."""
    return Index(_scaled(a.terms, factor), a.constant * factor)


def _quotient(a: int, b: int) -> int:
    """Division that rounds towards zero."""
    return abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)


def _sum(a: Terms, b: Terms, sign: int) -> Terms:
    if not b.symbols:
        return a
    total = dict(a.symbols)
    for symbol, coefficient in b.symbols:
        total[symbol] = total.get(symbol, 0) + sign * coefficient
    symbols = tuple(sorted((s, c) for s, c in total.items() if c))
    return Terms(symbols, max(a.depth, b.depth)) if symbols else ZERO


def _scaled(terms: Terms, factor: int) -> Terms:
    if not factor or not terms.symbols:
        return ZERO
    return Terms(tuple((s, c * factor) for s, c in terms.symbols), terms.depth)
