"""Arrays as the bits of their elements: what bitcasts, packing and sub-byte types need."""

from __future__ import annotations

import ml_dtypes
import numpy as np

from .element_types import is_float

_WIDTHS = {
    np.dtype(ml_dtypes.int2): 2,
    np.dtype(ml_dtypes.uint2): 2,
    np.dtype(ml_dtypes.int4): 4,
    np.dtype(ml_dtypes.uint4): 4,
    np.dtype(ml_dtypes.float4_e2m1fn): 4,
    np.dtype(ml_dtypes.float6_e2m3fn): 6,
    np.dtype(ml_dtypes.float6_e3m2fn): 6,
    np.dtype(np.bool_): 1,
}


def width_of(dtype: np.dtype) -> int:
    """Bits of an element on the chip; NumPy has at least a byte for each."""
    return _WIDTHS.get(dtype, 8 * dtype.itemsize)


def to_bits(array: np.ndarray) -> np.ndarray:
    """The elements' bits as unsigned integers of at least a byte."""
    dtype = array.dtype
    if dtype == np.bool_:
        return array.astype(np.uint8)
    if width_of(dtype) < 8 and not is_float(dtype):
        return array.astype(np.int8).view(np.uint8) & np.uint8((1 << width_of(dtype)) - 1)
    return np.ascontiguousarray(array).view(f"u{dtype.itemsize}").reshape(array.shape)


def from_bits(bits: np.ndarray, dtype: np.dtype) -> np.ndarray:
    """The elements whose bits are the low ones of unsigned integers; undoes `to_bits`."""
    if dtype == np.bool_:
        return (bits & 1).astype(np.bool_)
    width = width_of(dtype)
    if width < 8 and not is_float(dtype):
        low = (bits & ((1 << width) - 1)).astype(np.int16)
        if dtype.name.startswith("int"):
            low = low - ((low >> (width - 1)) << width)
        return low.astype(np.int8).astype(dtype)
    unsigned = np.dtype(f"u{dtype.itemsize}")
    mask = (1 << width) - 1 if width < 8 else None
    kept = bits if mask is None else bits & mask
    return np.ascontiguousarray(kept.astype(unsigned)).view(dtype).reshape(bits.shape)


def split(words: np.ndarray, width: int, axis: int) -> np.ndarray:
    """Parts of `width` bits of unsigned words, the lowest first, along an axis of their own.

    The axis follows `axis` and holds ``word width / width`` parts.
    """
    count = 8 * words.dtype.itemsize // width
    mask = words.dtype.type((1 << width) - 1)
    parts = [(words >> words.dtype.type(n * width)) & mask for n in range(count)]
    return np.stack(parts, axis + 1)


def join(parts: np.ndarray, width: int, axis: int) -> np.ndarray:
    """Undoes `split`: the words of the parts that lie along `axis`."""
    count = parts.shape[axis]
    kind = np.dtype(f"u{count * width // 8}")
    words = np.zeros(parts.shape[:axis] + parts.shape[axis + 1 :], kind)
    for n in range(count):
        words |= parts.take(n, axis).astype(kind) << kind.type(n * width)
    return words


def bitcast(array: np.ndarray, dtype: np.dtype, axis: int) -> np.ndarray:
    """The same bits as elements of another type; their number changes along `axis`."""
    source, target = width_of(array.dtype), width_of(dtype)
    if source == target:
        return from_bits(to_bits(array), dtype)
    axis %= array.ndim
    shape = list(array.shape)
    shape[axis] = shape[axis] * source // target
    bits = to_bits(array)
    if target < source:
        return from_bits(split(bits, target, axis).reshape(shape), dtype)
    count = target // source
    grouped = bits.reshape(*shape[: axis + 1], count, *shape[axis + 1 :])
    return from_bits(join(grouped, source, axis + 1), dtype)
