"""The `math` dialect."""

from __future__ import annotations

import numpy as np

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


_FUNCTIONS = {
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


@value(*(f"math.{name}" for name in _FUNCTIONS))
def function(op, scope):
    name = op.name.partition(".")[2]
    run = _FUNCTIONS[name]
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
    mask = (1 << bits) - 1

    def one(a: int) -> int:
        number = int(a) & mask
        if op_name == "math.ctpop":
            return number.bit_count()
        if op_name == "math.ctlz":
            return bits - number.bit_length()
        return bits if number == 0 else (number & -number).bit_length() - 1

    op_name = op.name
    if not shaped:
        return one
    each = np.frompyfunc(one, 1, 1)
    return lambda a: each(a.astype(object)).astype(dtype)
