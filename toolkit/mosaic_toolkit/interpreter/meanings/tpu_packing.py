"""`tpu` operations that reinterpret, pack and round elements."""

from __future__ import annotations

import ml_dtypes
import numpy as np

from ...errors import Unsupported
from ..bits import bitcast, from_bits, join, split, to_bits, width_of
from ..element_types import dtype_of, is_float, unsigned
from ..meaning import value
from ..values import dtype_of_value, flag, is_shaped, vector_type, word


@value("tpu.bitcast", "tpu.bitcast_vreg")
def bitcast_vector(op, scope):
    """Elements that share a 32-bit word are neighbours along the dimension that changes."""
    source = tuple(op.operands[0].type.shape)
    shape, dtype = vector_type(op.results[0].type)
    changed = [axis for axis, (a, b) in enumerate(zip(source, shape)) if a != b]
    if len(source) != len(shape) or len(changed) > 1:
        raise Unsupported(f"{scope.site(op)} from {list(source)} to {list(shape)}")
    axis = changed[0] if changed else len(shape) - 1
    return lambda a: bitcast(a, dtype, axis)


# --- packing ------------------------------------------------------------------------------


def _converted(values: np.ndarray, dtype: np.dtype, is_unsigned: bool) -> np.ndarray:
    """Rounded to nearest even, or the low bits of an integer; an integer target saturates."""
    if not is_float(values.dtype) and is_float(dtype):
        kind = unsigned(values.dtype) if is_unsigned else values.dtype
        return values.view(kind).astype(np.float32).astype(dtype)
    if not is_float(values.dtype):
        return from_bits(to_bits(values), dtype)
    if is_float(dtype):
        return values.astype(dtype)
    bits = width_of(dtype)
    low, high = (0, 2**bits - 1) if is_unsigned else (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)
    rounded = np.clip(np.rint(values.astype(np.float64)), low, high)
    return from_bits(np.nan_to_num(rounded).astype(np.int64).view(np.uint64), dtype)


def _widened(values: np.ndarray, dtype: np.dtype, is_unsigned: bool) -> np.ndarray:
    if is_float(values.dtype):
        return values.astype(dtype)
    number = to_bits(values).astype(np.int64) if is_unsigned else values.astype(np.int64)
    return number.astype(dtype)


@value("tpu.pack_subelements")
def pack_subelements(op, scope):
    """Joins vectors into one of a narrower type: word by word, or one vector after another."""
    shape, dtype = vector_type(op.results[0].type)
    positions = [int(n) for n in op.attributes["positions"]]
    interleaved = word(op.attributes["pack_format"]) == "interleaved"
    is_unsigned = flag(op, "unsigned_integers")
    if len(shape) > 1 and not (len(shape) == 2 and shape[1] == len(positions)):
        raise Unsupported(f"{scope.site(op)} to a vector of {list(shape)}")
    if sorted(positions) != list(
        range(width_of(dtype_of_value(op.operands[0])) // width_of(dtype))
    ):
        raise Unsupported(f"{scope.site(op)} at positions {positions}")

    def run(*sources):
        ordered: list[np.ndarray] = [sources[0]] * len(sources)
        for position, source in zip(positions, sources):
            ordered[position] = _converted(source, dtype, is_unsigned)
        if interleaved:
            return np.stack(ordered, -1).reshape(shape)
        return np.concatenate(ordered).reshape(shape)

    return run


@value("tpu.unpack_subelements")
def unpack_subelements(op, scope):
    shape, dtype = vector_type(op.results[0].type)
    index = int(op.attributes["index"].value)
    interleaved = word(op.attributes["pack_format"]) == "interleaved"
    is_unsigned = flag(op, "unsigned_integers")
    parts = width_of(dtype) // width_of(dtype_of_value(op.operands[0]))

    def run(a):
        flat = a.reshape(-1)
        size = flat.size // parts
        part = flat[index::parts] if interleaved else flat[index * size : (index + 1) * size]
        return _widened(part, dtype, is_unsigned).reshape(shape)

    return run


@value("tpu.pack_elementwise")
def pack_elementwise(op, scope):
    """The first source in the lowest bits of each word."""
    target = dtype_of(str(op.attributes["target_type"].value))
    dtype = dtype_of_value(op.results[0])

    def run(*sources):
        parts = np.stack([to_bits(_converted(source, target, False)) for source in sources])
        return from_bits(join(parts, width_of(target), 0), dtype)

    return run


@value("tpu.unpack_elementwise")
def unpack_elementwise(op, scope):
    source = dtype_of(str(op.attributes["source_type"].value))
    index = int(op.attributes["index"].value)
    dtype = dtype_of_value(op.results[0])

    def run(a):
        part = split(to_bits(a), width_of(source), a.ndim - 1)[..., index]
        return _widened(from_bits(part, source), dtype, False)

    return run


# --- rounding -------------------------------------------------------------------------------


@value("tpu.stochastic_convert")
def stochastic_convert(op, scope):
    """Rounds up where the random bits, added below the last place, carry into it."""
    dtype = dtype_of_value(op.results[0])
    return lambda a, random: _stochastic(a, random, dtype)


@value("tpu.stochastic_convert_elementwise")
def stochastic_convert_elementwise(op, scope):
    dtype = dtype_of(str(op.attributes["dst_type"].value))
    return lambda a, random: to_bits(_stochastic(a, random, dtype)).astype(np.uint32).view(np.int32)


def _stochastic(a: np.ndarray, random: np.ndarray, dtype: np.dtype) -> np.ndarray:
    if dtype == ml_dtypes.bfloat16:
        bits = a.view(np.uint32)
        carried = bits + (random.view(np.uint32) & np.uint32(0xFFFF))
        rounded = (carried & np.uint32(0xFFFF0000)).view(np.float32)
        return np.where(np.isfinite(a), rounded, a).astype(dtype)
    down, up = _neighbours(a, dtype)
    gap = np.where(up > down, up - down, np.float32(1))
    chance = random.view(np.uint32).astype(np.float64) / 2.0**32
    inside = np.isfinite(a) & (up > down)
    chosen = np.where(chance < (a - down) / gap, up, down)
    return np.where(inside, chosen, a).astype(dtype)


def _neighbours(a: np.ndarray, dtype: np.dtype) -> tuple[np.ndarray, np.ndarray]:
    """The values of a narrow type just below and above each number, itself where it is one."""
    every = from_bits(np.arange(2 ** width_of(dtype), dtype=np.uint8), dtype).astype(np.float32)
    every = np.unique(every[np.isfinite(every)])
    last = len(every) - 1
    above = np.clip(np.searchsorted(every, a, "left"), 0, last)
    below = np.clip(np.searchsorted(every, a, "right") - 1, 0, last)
    return every[below], every[above]


@value("tpu.reduce_precision")
def reduce_precision(op, scope):
    """Rounds to nearest even to fewer exponent and mantissa bits, in the same type."""
    exponent, mantissa = (
        int(op.attributes[name].value) for name in ("exponent_bits", "mantissa_bits")
    )
    dtype = dtype_of_value(op.results[0])

    def run(a):
        wide = a.astype(np.float64)
        fraction, power = np.frexp(wide)
        bias = 2 ** (exponent - 1) - 1
        scale = mantissa + 1
        rounded = np.ldexp(np.rint(np.ldexp(fraction, scale)), power - scale)
        largest = (2 - 2.0**-mantissa) * 2.0**bias
        rounded = np.where(np.abs(rounded) > largest, np.copysign(np.inf, wide), rounded)
        rounded = np.where(np.abs(rounded) < 2.0 ** (1 - bias), np.copysign(0.0, wide), rounded)
        return np.where(np.isfinite(wide), rounded, wide).astype(dtype)

    return run


@value("tpu.fptosi", "tpu.fptoui")
def float_to_integer(op, scope):
    dtype = dtype_of_value(op.results[0])
    nearest = word(op.attributes["rounding_mode"]) == "to_nearest_even"
    is_unsigned = op.name == "tpu.fptoui"

    def run(a):
        whole = (np.rint if nearest else np.trunc)(np.asarray(a, np.float64))
        return _converted(whole, dtype, is_unsigned)

    return run if is_shaped(op.results[0].type) else lambda a: int(run(a))


@value("tpu.sitofp", "tpu.uitofp")
def integer_to_float(op, scope):
    source, dtype = dtype_of_value(op.operands[0]), dtype_of_value(op.results[0])
    is_unsigned = op.name == "tpu.uitofp"

    def run(a):
        values = np.asarray(a, source)
        number = to_bits(values).astype(np.int64) if is_unsigned else values.astype(np.int64)
        return number.astype(np.float64).astype(dtype)

    return run if is_shaped(op.results[0].type) else lambda a: run(a)[()]


@value("tpu.extf", "tpu.truncf")
def resize_float(op, scope):
    dtype = dtype_of_value(op.results[0])
    if op.name == "tpu.truncf" and word(op.attributes["rounding_mode"]) == "towards_zero":
        raise Unsupported(f"{scope.site(op)} towards zero")
    return lambda a: a.astype(dtype)
