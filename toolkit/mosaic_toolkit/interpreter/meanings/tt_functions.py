"""The `tt` dialect: functions of libdevice, and instructions of PTX, element by element."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np

from ...errors import Unsupported
from ..element_types import is_float, unsigned
from ..meaning import value
from ..values import dtype_of_value, in_float32, is_shaped
from .math import FUNCTIONS

_PREFIX = "__nv_"


def _special(name: str) -> Callable[..., Any]:
    def run(*operands: Any) -> Any:
        from scipy import special

        return getattr(special, name)(*operands)

    return run


def _integer_power(x: Any, n: Any) -> Any:
    return np.power(x, np.asarray(n, x.dtype))[()]


# libdevice's names for doubles; those for floats end in f.
_FLOATS: dict[str, Callable[..., Any]] = {
    **{name: run for name, run in FUNCTIONS.items() if not name.endswith("f")},
    **{name: FUNCTIONS[name] for name in ("erf",)},
    "fabs": np.abs,
    "pow": np.power,
    "powi": _integer_power,
    "fmax": np.fmax,
    "fmin": np.fmin,
    "fmod": np.fmod,
    "fdim": lambda x, y: np.maximum(x - y, np.zeros_like(x)),
    "fma": FUNCTIONS["fma"],
    "hypot": np.hypot,
    "ldexp": np.ldexp,
    "nextafter": np.nextafter,
    "copysign": np.copysign,
    "rint": np.round,
    "nearbyint": np.round,
    "exp10": lambda x: np.power(x.dtype.type(10), x),
    "cospi": lambda x: np.cos(np.pi * x).astype(x.dtype),
    "sinpi": lambda x: np.sin(np.pi * x).astype(x.dtype),
    "lgamma": _special("gammaln"),
    "tgamma": _special("gamma"),
    "erfinv": _special("erfinv"),
    "erfcx": _special("erfcx"),
    "normcdf": _special("ndtr"),
    "normcdfinv": _special("ndtri"),
    "saturate": lambda x: np.clip(x, x.dtype.type(0), x.dtype.type(1)),
    "fdivide": np.divide,
    "div_rn": np.divide,
    "sqrt_rn": np.sqrt,
    "rcp_rn": np.reciprocal,
}
_PREDICATES = {
    "isinf": np.isinf,
    "isnan": np.isnan,
    "finite": np.isfinite,
    "isfinited": np.isfinite,
    "signbit": np.signbit,
    "signbitd": np.signbit,
}


def _leading_zeros(a: np.ndarray) -> np.ndarray:
    bits = a.view(unsigned(a.dtype))
    width = 8 * a.dtype.itemsize
    for step in (1, 2, 4, 8, 16, 32):
        bits = bits | bits >> bits.dtype.type(step) if step < width else bits
    return width - np.bitwise_count(bits).astype(np.int64)


def _unsigned_high(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    wide = a.view(np.uint32).astype(np.uint64) * b.view(np.uint32).astype(np.uint64)
    return wide >> np.uint64(32)


_INTEGERS: dict[str, Callable[..., Any]] = {
    "abs": np.abs,
    "llabs": np.abs,
    "max": np.maximum,
    "min": np.minimum,
    "clz": _leading_zeros,
    "clzll": _leading_zeros,
    "popc": lambda a: np.bitwise_count(a.view(unsigned(a.dtype))),
    "popcll": lambda a: np.bitwise_count(a.view(unsigned(a.dtype))),
    "ffs": lambda a: np.bitwise_count((a ^ (a - 1)).view(unsigned(a.dtype))) * (a != 0),
    "mulhi": lambda a, b: a.astype(np.int64) * b.astype(np.int64) >> 32,
    "umulhi": _unsigned_high,
    "mul24": lambda a, b: (a << 8 >> 8) * (b << 8 >> 8),
}


def _libdevice(symbol: str) -> Callable[..., Any] | None:
    name = symbol.removeprefix(_PREFIX).removeprefix("fast_")
    known = {**_FLOATS, **_PREDICATES, **_INTEGERS}
    return known.get(name) or known.get(name.removesuffix("f"))


@value("tt.extern_elementwise")
def external(op, scope):
    """A function of libdevice, as NumPy computes it."""
    symbol = op.attributes["symbol"].value
    run = _libdevice(symbol)
    if run is None or not symbol.startswith(_PREFIX):
        raise Unsupported(f"{scope.site(op)} of {symbol}")
    return _elementwise(op, run)


def _elementwise(op, run: Callable[..., Any]) -> Callable[..., Any]:
    """A function of arrays for the types of the operation's operands and result."""
    dtypes = [dtype_of_value(operand) for operand in op.operands]
    result = dtype_of_value(op.results[0])
    if all(is_float(dtype) for dtype in (*dtypes, result)):
        return in_float32(run, result)

    def mixed(*operands: Any) -> Any:
        arrays = (np.asarray(a, dtype) for a, dtype in zip(operands, dtypes))
        return np.asarray(run(*arrays)).astype(result)

    if is_shaped(op.results[0].type):
        return mixed
    return lambda *operands: mixed(*operands)[()] if is_float(result) else mixed(*operands).item()


# --- inline assembly ----------------------------------------------------------------------------

_INSTRUCTION = re.compile(
    r"\s*([a-z0-9]+)\.(?:approx\.|rn\.|rna\.)?(?:ftz\.)?(?:sat\.)?(f16|bf16|f32|f64|tf32\.f32)"
    r"\s+\$0((?:\s*,\s*\$\d+)+)\s*;?\s*"
)
_INSTRUCTIONS: dict[str, Callable[..., Any]] = {
    "tanh": np.tanh,
    "ex2": np.exp2,
    "lg2": np.log2,
    "rcp": np.reciprocal,
    "rsqrt": FUNCTIONS["rsqrt"],
    "sqrt": np.sqrt,
    "sin": np.sin,
    "cos": np.cos,
    "abs": np.abs,
    "neg": np.negative,
    "add": np.add,
    "sub": np.subtract,
    "mul": np.multiply,
    "div": np.divide,
    "fma": FUNCTIONS["fma"],
    "max": np.fmax,
    "min": np.fmin,
}


@value("tt.elementwise_inline_asm")
def inline_assembly(op, scope):
    """One instruction from the operands in order to one result; exactly, where it approximates."""
    text = op.attributes["asm_string"].value
    match = _INSTRUCTION.fullmatch(text)
    run = _INSTRUCTIONS.get(match[1]) if match else None
    order = re.findall(r"\d+", match[3]) if match else []
    plain = order == [str(n + 1) for n in range(len(op.operands))]
    alike = {dtype_of_value(v) for v in (*op.operands, *op.results)}
    saturates = ".sat." in text
    if run is None or not plain or len(op.results) != 1 or len(alike) != 1 or saturates:
        raise Unsupported(f"{scope.site(op)} of '{' '.join(text.split())}'")
    return _elementwise(op, run)
