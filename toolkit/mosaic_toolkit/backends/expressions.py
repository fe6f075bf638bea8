"""Integer SSA values as readable expressions, or as numbers where they fold."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from ..jax_compat import ir
from ..ssa import producer

_LONGEST = 400  # characters; an expression that is longer helps nobody


class Unreadable(Exception):
    """A value that is no expression of the named ones; says why."""


class _Term(NamedTuple):
    text: str
    precedence: int


_ATOM = 9


def _truncating_division(a: int, b: int) -> int:
    quotient = abs(a) // abs(b)
    return quotient if (a < 0) == (b < 0) else -quotient


def _truncating_remainder(a: int, b: int) -> int:
    return a - b * _truncating_division(a, b)


# name -> (symbol, precedence, meaning); "/" and "%" truncate towards zero, as in C.
_BINARY: dict[str, tuple[str, int, Callable[[int, int], int]]] = {
    "addi": ("+", 5, lambda a, b: a + b),
    "subi": ("-", 5, lambda a, b: a - b),
    "muli": ("*", 6, lambda a, b: a * b),
    "divsi": ("/", 6, _truncating_division),
    "divui": ("/", 6, _truncating_division),
    "floordivsi": ("//", 6, lambda a, b: a // b),
    "remsi": ("%", 6, _truncating_remainder),
    "remui": ("%", 6, _truncating_remainder),
    "shli": ("<<", 4, lambda a, b: a << b),
    "shrsi": (">>", 4, lambda a, b: a >> b),
    "shrui": (">>", 4, lambda a, b: a >> b),
    "andi": ("&", 3, lambda a, b: a & b),
    "xori": ("^", 2, lambda a, b: a ^ b),
    "ori": ("|", 1, lambda a, b: a | b),
}
_CALLS = {"minsi": min, "minui": min, "maxsi": max, "maxui": max}
_COMPARE: dict[int, tuple[str, Callable[[int, int], bool]]] = {
    0: ("==", lambda a, b: a == b),
    1: ("!=", lambda a, b: a != b),
    2: ("<", lambda a, b: a < b),
    3: ("<=", lambda a, b: a <= b),
    4: (">", lambda a, b: a > b),
    5: (">=", lambda a, b: a >= b),
}
_COMPARE |= {code + 4: _COMPARE[code] for code in (2, 3, 4, 5)}  # the unsigned ones
_PASS_THROUGH = frozenset(
    {"arith.index_cast", "arith.index_castui", "arith.extui", "arith.trunci"}
    | {"arith.extsi", "tpu.assume_multiple", "mosaic_gpu.assume_multiple"}
)


class Expressions:
    """Reads integer values of one module.

    Args:
      leaf: the name or the number of a value, None where it has neither.
      placeholder: what stands for a value that cannot be read; None to raise.
    """

    def __init__(
        self,
        leaf: Callable[[ir.Value], str | int | None] = lambda value: None,
        placeholder: str | None = None,
    ):
        self._leaf = leaf
        self._placeholder = placeholder
        self._cache: dict[ir.Value, _Term | int] = {}

    def read(self, value: ir.Value) -> str | int:
        """The value as a number, or else as text.

        Raises:
          Unreadable: it depends on something that has no name.
        """
        term = self._term(value)
        return term if isinstance(term, int) else term.text

    def constant(self, value: ir.Value) -> int | None:
        """The value where it folds to a number."""
        try:
            term = self._term(value)
        except Unreadable:
            return None
        return term if isinstance(term, int) else None

    def _term(self, value: ir.Value) -> _Term | int:
        if value not in self._cache:
            try:
                term = self._read(value)
                if isinstance(term, _Term) and len(term.text) > _LONGEST:
                    raise Unreadable(f"the expression is longer than {_LONGEST} characters")
            except Unreadable:
                if self._placeholder is None:
                    raise
                term = _Term(self._placeholder, _ATOM)
            self._cache[value] = term
        return self._cache[value]

    def _read(self, value: ir.Value) -> _Term | int:
        leaf = self._leaf(value)
        if leaf is not None:
            return leaf if isinstance(leaf, int) else _Term(leaf, _ATOM)
        op = producer(value)
        if op is None:
            raise Unreadable("it depends on a block argument")
        if op.name == "arith.constant":
            return _constant(op)
        if op.name in _PASS_THROUGH:
            return self._term(op.operands[0])
        dialect, _, name = op.name.partition(".")
        if dialect in ("arith", "llvm"):
            name = {"add": "addi", "sub": "subi", "mul": "muli"}.get(name, name)
            if name in _BINARY:
                return self._binary(name, *op.operands)
            if name in _CALLS:
                return self._call(name, *op.operands)
            if name == "cmpi":
                return self._compare(op)
            if name == "select":
                return self._select(*op.operands)
        if op.name == "memref.load":
            return self._load(*op.operands)
        if op.name == "scf.if":
            return self._if(value, op)
        raise Unreadable(f"it depends on {op.name}")

    def _binary(self, name: str, a: ir.Value, b: ir.Value) -> _Term | int:
        symbol, precedence, meaning = _BINARY[name]
        left, right = self._term(a), self._term(b)
        if isinstance(left, int) and isinstance(right, int):
            if symbol in "/%//" and right == 0:
                raise Unreadable("it divides by zero")
            if name.endswith("ui") and min(left, right) < 0:
                raise Unreadable("it is unsigned arithmetic on a negative number")
            return meaning(left, right)
        if symbol == "+" and 0 in (left, right):
            return right if left == 0 else left
        if (symbol == "-" and right == 0) or (symbol in "*/" and right == 1):
            return left
        if symbol == "*" and left == 1:
            return right
        if symbol in "*&" and 0 in (left, right):
            return 0
        return _Term(
            f"{_wrap(left, precedence)} {symbol} {_wrap(right, precedence + 1)}", precedence
        )

    def _call(self, name: str, a: ir.Value, b: ir.Value) -> _Term | int:
        left, right = self._term(a), self._term(b)
        if isinstance(left, int) and isinstance(right, int):
            return _CALLS[name](left, right)
        return _Term(f"{_CALLS[name].__name__}({_wrap(left, 0)}, {_wrap(right, 0)})", _ATOM)

    def _compare(self, op: ir.Operation) -> _Term | int:
        symbol, meaning = _COMPARE[ir.IntegerAttr(op.attributes["predicate"]).value]
        left, right = self._term(op.operands[0]), self._term(op.operands[1])
        if isinstance(left, int) and isinstance(right, int):
            return int(meaning(left, right))
        return _Term(f"({_wrap(left, 0)} {symbol} {_wrap(right, 0)})", _ATOM)

    def _select(self, condition: ir.Value, a: ir.Value, b: ir.Value) -> _Term | int:
        chosen = self._term(condition)
        if isinstance(chosen, int):
            return self._term(a if chosen else b)
        left, right = self._term(a), self._term(b)
        if left == right:
            return left
        return _Term(f"({_wrap(left, 0)} if {chosen.text} else {_wrap(right, 0)})", _ATOM)

    def _load(self, ref: ir.Value, *indices: ir.Value) -> _Term:
        name = self._leaf(ref)
        if not isinstance(name, str):
            raise Unreadable("it loads from memory that has no name")
        return _Term(f"{name}[{', '.join(_wrap(self._term(i), 0) for i in indices)}]", _ATOM)

    def _if(self, value: ir.Value, op: ir.Operation) -> _Term | int:
        number = ir.OpResult(value).result_number
        yields = [list(region.blocks[0].operations)[-1] for region in op.regions]
        return self._select(op.operands[0], *(y.operands[number] for y in yields))


def _constant(op: ir.Operation) -> int:
    attribute = op.attributes["value"]
    if isinstance(attribute, ir.BoolAttr):
        return int(attribute.value)
    if isinstance(attribute, ir.IntegerAttr):
        return attribute.value
    raise Unreadable("it depends on a constant that is no integer")


def _wrap(term: _Term | int, precedence: int) -> str:
    if isinstance(term, int):
        return str(term) if term >= 0 or precedence == 0 else f"({term})"
    return term.text if term.precedence >= precedence else f"({term.text})"
