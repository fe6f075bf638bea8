"""The `arith` dialect."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import numpy as np

from ...errors import Unsupported
from ...jax_compat import ir
from ..element_types import bits_of, dtype_of, is_float, unsigned, wrap
from ..meaning import Constant, value
from ..values import dtype_of_value, in_float32, is_shaped, vector_type


@value("arith.constant")
def constant(op, scope):
    return Constant(attribute_value(op.attributes["value"], op.results[0].type))


def attribute_value(attribute: Any, type_: Any) -> Any:
    """The value of a constant's attribute."""
    if not is_shaped(type_):
        if isinstance(attribute, ir.BoolAttr):
            return bool(attribute.value)
        if isinstance(attribute, ir.FloatAttr):
            return dtype_of(str(type_)).type(attribute.value)
        return int(ir.IntegerAttr(attribute).value)
    shape, dtype = vector_type(type_)
    dense: Any = attribute
    if dense.is_splat:
        array = np.full(shape, dense.get_splat_value().value, _readable(dtype)).astype(dtype)
    else:
        array = np.array(dense).astype(dtype).reshape(shape)
    array.setflags(write=False)
    return array


def _readable(dtype: np.dtype) -> Any:
    """A type that NumPy fills from a Python number."""
    if is_float(dtype):
        return np.float64
    return np.bool_ if dtype == np.bool_ else np.int64


# --- integers -------------------------------------------------------------------------


def _quotient(a: int, b: int) -> int:
    if b == 0:
        return -1  # as XLA defines it
    quotient = abs(a) // abs(b)
    return quotient if (a < 0) == (b < 0) else -quotient


def _remainder(a: int, b: int) -> int:
    return a if b == 0 else a - _quotient(a, b) * b


def _array_quotient(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    safe = np.where(b == 0, np.ones_like(b), b)
    quotient = np.floor_divide(np.abs(a), np.abs(safe))
    quotient = np.where((a < 0) == (safe < 0), quotient, -quotient)
    return np.where(b == 0, ~np.zeros_like(b), quotient).astype(a.dtype)


def _array_remainder(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return np.where(b == 0, a, a - _array_quotient(a, b) * b).astype(a.dtype)


def _ceildiv(a: Any, b: Any) -> Any:
    return -((-a) // b)


# name -> (of Python integers, of arrays, whether operands are unsigned)
_INTEGER: dict[str, tuple[Callable, Callable, bool]] = {
    "addi": (operator.add, np.add, False),
    "subi": (operator.sub, np.subtract, False),
    "muli": (operator.mul, np.multiply, False),
    "divsi": (_quotient, _array_quotient, False),
    "remsi": (_remainder, _array_remainder, False),
    "divui": (lambda a, b: a // b if b else -1, _array_quotient, True),
    "remui": (lambda a, b: a % b if b else a, _array_remainder, True),
    "floordivsi": (lambda a, b: a // b if b else -1, np.floor_divide, False),
    "ceildivsi": (lambda a, b: _ceildiv(a, b) if b else -1, _ceildiv, False),
    "ceildivui": (lambda a, b: _ceildiv(a, b) if b else -1, _ceildiv, True),
    "maxsi": (max, np.maximum, False),
    "minsi": (min, np.minimum, False),
    "maxui": (max, np.maximum, True),
    "minui": (min, np.minimum, True),
}
# On one bit, where addition and subtraction are exclusive or.
_BOOLEAN = {
    "addi": operator.xor,
    "subi": operator.xor,
    "muli": operator.and_,
    "maxui": operator.or_,
    "minui": operator.and_,
    "maxsi": operator.and_,
    "minsi": operator.or_,
}


@value(*(f"arith.{name}" for name in _INTEGER))
def integer_binary(op, scope):
    name = op.name.partition(".")[2]
    scalar, array, is_unsigned = _INTEGER[name]
    dtype = dtype_of_value(op.results[0])
    if dtype == np.bool_:
        if name not in _BOOLEAN:
            raise Unsupported(f"{op.name} of i1")
        return _BOOLEAN[name]
    if is_shaped(op.results[0].type):
        if not is_unsigned:
            return array
        kind = unsigned(dtype)
        return lambda a, b: array(a.view(kind), b.view(kind)).view(dtype)
    bits = bits_of(str(op.results[0].type))
    if is_unsigned:
        mask = (1 << bits) - 1
        return lambda a, b: wrap(scalar(a & mask, b & mask), bits)
    half = 1 << (bits - 1)

    def run(a: int, b: int) -> int:
        result = scalar(a, b)
        return result if -half <= result < half else wrap(result, bits)

    return run


@value("arith.andi", "arith.ori", "arith.xori")
def bitwise(op, scope):
    return {"andi": operator.and_, "ori": operator.or_, "xori": operator.xor}[op.name[6:]]


@value("arith.shli", "arith.shrsi", "arith.shrui")
def shift(op, scope):
    """A shift by the width or more gives 0, or the sign."""
    left, arithmetic = op.name == "arith.shli", op.name == "arith.shrsi"
    dtype = dtype_of_value(op.results[0])
    bits = bits_of(_element(op.results[0].type))
    mask = (1 << bits) - 1
    if not is_shaped(op.results[0].type):
        if left:
            return lambda a, b: wrap(a << b, bits) if 0 <= b < bits else 0
        if arithmetic:
            return lambda a, b: a >> (b if 0 <= b < bits else bits - 1)
        return lambda a, b: wrap((a & mask) >> b, bits) if 0 <= b < bits else 0
    kind = dtype if arithmetic else unsigned(dtype)
    function = np.left_shift if left else np.right_shift

    def run(a: np.ndarray, b: np.ndarray) -> np.ndarray:
        inside = (b >= 0) & (b < bits)
        amount = np.where(inside, b, bits - 1 if arithmetic else 0).astype(dtype).view(kind)
        result = function(a.view(kind), amount)
        if not arithmetic:
            result = np.where(inside, result, np.zeros((), kind))
        return result.view(dtype)

    return run


def _element(type_: Any) -> str:
    return str(type_.element_type if is_shaped(type_) else type_)


@value("arith.mulsi_extended", "arith.mului_extended")
def multiply_extended(op, scope):
    """(low, high) halves of the product."""
    dtype = dtype_of_value(op.results[0])
    bits = bits_of(_element(op.results[0].type))
    mask = 0 if op.name == "arith.mulsi_extended" else (1 << bits) - 1

    def whole(a: int, b: int) -> int:
        return (a & mask) * (b & mask) if mask else a * b

    def scalar(a: int, b: int) -> tuple[int, int]:
        product = whole(a, b)
        return wrap(product, bits), wrap(product >> bits, bits)

    def narrow(a: np.ndarray, b: np.ndarray):
        kind = unsigned(dtype) if mask else dtype
        wide = np.dtype(np.uint64 if mask else np.int64)
        product = a.view(kind).astype(wide) * b.view(kind).astype(wide)
        return product.astype(kind).view(dtype), (product >> bits).astype(kind).view(dtype)

    def array(a: np.ndarray, b: np.ndarray):
        exact = np.frompyfunc(scalar, 2, 2)
        low, high = exact(a.astype(object), b.astype(object))
        return np.asarray(low).astype(dtype), np.asarray(high).astype(dtype)

    if is_shaped(op.results[0].type):
        return narrow if 8 <= bits <= 32 else array
    return scalar


_SIGNED = (operator.eq, operator.ne, operator.lt, operator.le, operator.gt, operator.ge)
_UNSIGNED = _SIGNED[2:]


@value("arith.cmpi")
def compare_integers(op, scope):
    predicate = int(op.attributes["predicate"].value)
    if predicate < 6:
        compare = _SIGNED[predicate]
        if dtype_of_value(op.operands[0]) == np.bool_ and predicate > 1:
            # The one value of a signed bit is -1.
            return lambda a, b: compare(b, a)
        return compare
    compare = _UNSIGNED[predicate - 6]
    if is_shaped(op.operands[0].type):
        kind = unsigned(dtype_of_value(op.operands[0]))
        return lambda a, b: compare(a.view(kind), b.view(kind))
    mask = (1 << bits_of(str(op.operands[0].type))) - 1
    return lambda a, b: compare(a & mask, b & mask)


# --- floats -----------------------------------------------------------------------------

_FLOAT = {
    "addf": np.add,
    "subf": np.subtract,
    "mulf": np.multiply,
    "divf": np.divide,
    "remf": np.fmod,
    "maximumf": np.maximum,
    "minimumf": np.minimum,
    "maxnumf": np.fmax,
    "minnumf": np.fmin,
    "maximumnumf": np.fmax,
    "minimumnumf": np.fmin,
    "negf": np.negative,
}


@value(*(f"arith.{name}" for name in _FLOAT))
def float_arithmetic(op, scope):
    return in_float32(_FLOAT[op.name.partition(".")[2]], dtype_of_value(op.results[0]))


def _ordered(compare: Callable) -> Callable:
    return lambda a, b: compare(a, b) & (a == a) & (b == b)


def _unordered(compare: Callable) -> Callable:
    return lambda a, b: compare(a, b) | (a != a) | (b != b)


_ORDER = (operator.eq, operator.gt, operator.ge, operator.lt, operator.le, operator.ne)
_FLOAT_COMPARE: tuple[Callable, ...] = (
    lambda a, b: (a != a) & (a == a),
    *map(_ordered, _ORDER),
    lambda a, b: (a == a) & (b == b),
    *map(_unordered, _ORDER),
    lambda a, b: (a != a) | (b != b),
    lambda a, b: (a == a) | (a != a),
)


@value("arith.cmpf")
def compare_floats(op, scope):
    compare = _FLOAT_COMPARE[int(op.attributes["predicate"].value)]
    if is_shaped(op.operands[0].type):
        return compare
    return lambda a, b: bool(compare(a, b))


# --- conversions -------------------------------------------------------------------------


@value("arith.extf", "arith.truncf")
def convert_float(op, scope):
    dtype = dtype_of_value(op.results[0])
    return lambda a: a.astype(dtype)


@value("arith.sitofp", "arith.uitofp")
def to_float(op, scope):
    source, dtype = dtype_of_value(op.operands[0]), dtype_of_value(op.results[0])
    is_unsigned = op.name == "arith.uitofp"
    if is_shaped(op.operands[0].type):
        return lambda a: _widened(a, source, is_unsigned).astype(np.float64).astype(dtype)
    bits = bits_of(str(op.operands[0].type))
    if is_unsigned:
        mask = (1 << bits) - 1
        return lambda a: dtype.type(float(a & mask))
    return lambda a: dtype.type(float(wrap_signed(a, bits)))


def wrap_signed(value: int, bits: int) -> int:
    """The integer that the bits mean, where one set bit means -1."""
    return -int(value) if bits == 1 else value


def _widened(a: np.ndarray, source: np.dtype, is_unsigned: bool) -> np.ndarray:
    if source == np.bool_:
        return a.astype(np.int64) if is_unsigned else -a.astype(np.int64)
    return a.view(unsigned(source)) if is_unsigned else a


@value("arith.fptosi", "arith.fptoui")
def to_integer(op, scope):
    """Towards zero; what does not fit becomes the nearest that does, NaN becomes 0."""
    dtype = dtype_of_value(op.results[0])
    bits = bits_of(_element(op.results[0].type))
    if op.name == "arith.fptosi" and bits > 1:
        low, high = -(1 << (bits - 1)), (1 << (bits - 1)) - 1
    else:
        low, high = 0, (1 << bits) - 1

    def array(a: np.ndarray) -> np.ndarray:
        wide = np.nan_to_num(np.trunc(a.astype(np.float64)), nan=0.0, posinf=high, neginf=low)
        clipped = np.clip(wide, low, high)
        if bits == 64:
            exact = np.where(wide >= high, high, np.minimum(clipped, 2.0**62).astype(np.int64))
            return np.where(clipped < 2.0**62, clipped.astype(np.int64), exact).astype(dtype)
        return clipped.astype(np.int64).astype(unsigned(dtype) if low == 0 else dtype).view(dtype)

    def scalar(a: Any) -> Any:
        number = float(a)
        if number != number:
            return 0
        clipped = low if number <= low else high if number >= high else int(number)
        return bool(clipped) if bits == 1 else wrap(clipped, bits)

    return array if is_shaped(op.results[0].type) else scalar


@value("arith.extsi", "arith.extui", "arith.trunci")
def resize(op, scope):
    source, dtype = dtype_of_value(op.operands[0]), dtype_of_value(op.results[0])
    is_unsigned = op.name == "arith.extui"
    if is_shaped(op.operands[0].type):
        if op.name == "arith.trunci":
            if dtype == np.bool_:
                return lambda a: (a & 1).astype(np.bool_)
            return lambda a: a.astype(dtype)
        return lambda a: _widened(a, source, is_unsigned).astype(dtype)
    bits = bits_of(str(op.operands[0].type))
    if op.name == "arith.extui":
        mask = (1 << bits) - 1
        return lambda a: int(a) & mask
    if op.name == "arith.extsi":
        return lambda a: wrap_signed(a, bits)
    width = bits_of(str(op.results[0].type))
    return (lambda a: bool(a & 1)) if width == 1 else (lambda a: wrap(a, width))


@value("arith.index_cast", "arith.index_castui")
def index_cast(op, scope):
    source, target = (bits_of(_element(v.type)) for v in (op.operands[0], op.results[0]))
    dtype = dtype_of_value(op.results[0])
    if is_shaped(op.operands[0].type):
        return lambda a: a.astype(dtype)
    if op.name == "arith.index_castui" and source < target:
        mask = (1 << source) - 1
        return lambda a: int(a) & mask
    return lambda a: wrap(int(a), target)


@value("arith.bitcast")
def bitcast(op, scope):
    dtype = dtype_of_value(op.results[0])
    if is_shaped(op.operands[0].type):
        return lambda a: np.ascontiguousarray(a).view(dtype)
    source = dtype_of_value(op.operands[0])
    if is_float(dtype):
        return lambda a: np.array(a, source).view(dtype)[()]
    return lambda a: int(np.array(a, source).view(dtype))


@value("arith.select")
def select(op, scope):
    if is_shaped(op.operands[0].type):
        return np.where
    return lambda condition, a, b: a if condition else b
