"""The `math` dialect."""

from __future__ import annotations

import numpy as np

from ..bits import to_bits
from ..element_types import bits_of
from ..meaning import value
from ..values import dtype_of_value, in_float32, is_shaped


def _erf(x):
    from scipy.special import erf

    return erf(x)


def _erfc(x):
    from scipy.special import erfc

    return erfc(x)


def _round_half_away(x):
    return np.trunc(x + np.copysign(np.asarray(0.5, x.dtype), x))


FUNCTIONS = {
    "absf": np.abs,
    "acos": np.arccos,
    "acosh": np.arccosh,
    "asin": np.arcsin,
    "asinh": np.arcsinh,
    "atan": np.arctan,
    "atan2": np.arctan2,
    "atanh": np.arctanh,
    "cbrt": np.cbrt,
    "ceil": np.ceil,
    "copysign": np.copysign,
    "cos": np.cos,
    "cosh": np.cosh,
    "erf": _erf,
    "erfc": _erfc,
    "exp": np.exp,
    "exp2": np.exp2,
    "expm1": np.expm1,
    "floor": np.floor,
    "fma": lambda a, b, c: a * b + c,
    "isfinite": np.isfinite,
    "isinf": np.isinf,
    "isnan": np.isnan,
    "log": np.log,
    "log10": np.log10,
    "log1p": np.log1p,
    "log2": np.log2,
    "powf": np.power,
    "round": _round_half_away,
    "roundeven": np.round,
    "rsqrt": lambda x: (1 / np.sqrt(x)).astype(x.dtype),
    "sin": np.sin,
    "sinh": np.sinh,
    "sqrt": np.sqrt,
    "tan": np.tan,
    "tanh": np.tanh,
    "trunc": np.trunc,
    "clampf": lambda x, low, high: np.minimum(np.maximum(x, low), high),
}
_PREDICATES = frozenset({"isfinite", "isinf", "isnan"})


@value(*(f"math.{name}" for name in FUNCTIONS))
def function(op, scope):
    name = op.name.partition(".")[2]
    run = FUNCTIONS[name]
    if name in _PREDICATES:
        wide = lambda x: run(x.astype(np.float32))  # noqa: E731
        return wide if is_shaped(op.results[0].type) else lambda x: bool(wide(x))
    return in_float32(run, dtype_of_value(op.results[0]))


@value("math.absi")
def absolute(op, scope):
    return np.abs if is_shaped(op.results[0].type) else abs


@value("math.fpowi")
def power(op, scope):
    dtype = dtype_of_value(op.results[0])
    return lambda a, n: np.power(a.astype(np.float32), n).astype(dtype)


@value("math.ctpop", "math.ctlz", "math.cttz")
def count_bits(op, scope):
    """How many bits are set; are zero before the first set one; after the last one."""
    dtype = dtype_of_value(op.results[0])
    shaped = is_shaped(op.results[0].type)
    bits = bits_of(str(op.results[0].type.element_type if shaped else op.results[0].type))
    name = op.name

    def count(a: np.ndarray) -> np.ndarray:
        number = to_bits(a)
        if name == "math.ctlz":
            for step in (1, 2, 4, 8, 16, 32):
                number = number | number >> np.uint8(step) if step < bits else number
            return bits - np.bitwise_count(number).astype(np.int64)
        if name == "math.cttz":
            lowest = number & (~number + number.dtype.type(1))
            below = lowest - number.dtype.type(1)
            return np.minimum(np.bitwise_count(below), bits)
        return np.bitwise_count(number)

    if not shaped:
        return lambda a: int(count(np.asarray(a, dtype)))
    return lambda a: count(a).astype(dtype)
