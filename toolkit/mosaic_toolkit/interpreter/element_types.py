"""MLIR types as NumPy ones, and the values that uninitialised memory holds."""

from __future__ import annotations

import functools
import re

import ml_dtypes
import numpy as np

from ..errors import Unsupported

_FLOATS = {
    "f16": np.float16,
    "f32": np.float32,
    "f64": np.float64,
    "tf32": np.float32,
    "bf16": ml_dtypes.bfloat16,
    "f8E3M4": ml_dtypes.float8_e3m4,
    "f8E4M3": ml_dtypes.float8_e4m3,
    "f8E4M3FN": ml_dtypes.float8_e4m3fn,
    "f8E4M3FNUZ": ml_dtypes.float8_e4m3fnuz,
    "f8E4M3B11FNUZ": ml_dtypes.float8_e4m3b11fnuz,
    "f8E5M2": ml_dtypes.float8_e5m2,
    "f8E5M2FNUZ": ml_dtypes.float8_e5m2fnuz,
    "f8E8M0FNU": ml_dtypes.float8_e8m0fnu,
    "f6E2M3FN": ml_dtypes.float6_e2m3fn,
    "f6E3M2FN": ml_dtypes.float6_e3m2fn,
    "f4E2M1FN": ml_dtypes.float4_e2m1fn,
}
_INTEGERS = {
    1: np.bool_,
    2: ml_dtypes.int2,
    4: ml_dtypes.int4,
    8: np.int8,
    16: np.int16,
    32: np.int32,
    64: np.int64,
}
_UNSIGNED = {2: ml_dtypes.uint2, 4: ml_dtypes.uint4}
_INTEGER = re.compile(r"(?:[su])?i(\d+)")
# What a semaphore's cell holds is its number among the semaphores of its buffer.
SEMAPHORES = {"!tpu.semaphore", "!tpu.dma_semaphore", "!mosaic_gpu.barrier"}


@functools.cache
def dtype_of(name: str) -> np.dtype:
    """The NumPy type of an MLIR element type; integers are signed, one element a byte at least.

    Raises:
      Unsupported: there is none.
    """
    if name in _FLOATS:
        return np.dtype(_FLOATS[name])
    if name == "index" or name in SEMAPHORES:
        return np.dtype(np.int64)
    match = _INTEGER.fullmatch(name)
    if match and int(match[1]) in _INTEGERS:
        return np.dtype(_INTEGERS[int(match[1])])
    raise Unsupported(f"the interpreter has no element type {name}")


def bits_of(name: str) -> int:
    """Size of one element in memory, in bits."""
    if name == "index":
        return 64
    match = re.match(r"(?:tf|bf|f|[su]?i)(\d+)", name)
    if match is None:
        return 32
    return 32 if name == "tf32" else int(match[1])


@functools.cache
def is_float(dtype: np.dtype) -> bool:
    return dtype.kind == "f" or (dtype.kind == "V" and "float" in dtype.name)


@functools.cache
def unsigned(dtype: np.dtype) -> np.dtype:
    """The unsigned integer type of the same width."""
    if dtype == np.bool_:
        return dtype
    if "int2" in dtype.name or "int4" in dtype.name:
        return np.dtype(_UNSIGNED[int(dtype.name[-1])])
    return np.dtype(f"u{dtype.itemsize}")


@functools.cache
def signless(dtype: np.dtype) -> np.dtype:
    """The type that MLIR's signless integers of this width have here; others unchanged."""
    for signed in _INTEGERS.values():
        if np.dtype(signed) != np.bool_ and unsigned(np.dtype(signed)) == dtype:
            return np.dtype(signed)
    return dtype


def wrap(value: int, bits: int) -> int:
    """The signed integer of `bits` bits that has the low bits of `value`."""
    if bits == 1:
        return value & 1
    half = 1 << (bits - 1)
    return ((value + half) & ((half << 1) - 1)) - half


def shape_of(type_) -> tuple[int, ...]:
    return tuple(type_.shape)
