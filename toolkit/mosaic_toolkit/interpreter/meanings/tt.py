"""The `tt` dialect: tensors, pointers as integers, and products."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import numpy as np

from ...errors import Unsupported
from ..bits import from_bits, to_bits
from ..element_types import bits_of, dtype_of, is_float, unsigned
from ..findings import MISUSE, Fault, Finding
from ..meaning import effect, value
from ..values import dtype_of_value, in_float32, is_shaped
from .mosaic_gpu_tensor import product

_POINTER = "!tt.ptr<"
_INPUT_PRECISION_TF32 = 0
_ROUND_TO_ZERO = 0
_BYTE = 8


def element(type_: Any) -> str:
    """Element type of a tensor, or type of a scalar."""
    return str(type_.element_type if is_shaped(type_) else type_)


def pointee(type_: Any) -> str:
    """``f32`` of ``tensor<8x!tt.ptr<f32>>``."""
    return element(type_).removeprefix(_POINTER).rstrip(">").partition(",")[0]


def _dtype(type_: Any) -> np.dtype:
    name = element(type_)
    return np.dtype(np.int64) if name.startswith(_POINTER) else dtype_of(name)


def integer(op, name: str) -> int:
    """An integer or an enumerator among the attributes."""
    return int(op.attributes[name].value)


# --- shapes -------------------------------------------------------------------------------------


@value("tt.splat", "tt.broadcast")
def broadcast(op, scope):
    shape, dtype = tuple(op.results[0].type.shape), _dtype(op.results[0].type)
    if is_shaped(op.operands[0].type) or dtype.isbuiltin != 1:
        return lambda a: np.broadcast_to(np.asarray(a, dtype), shape)
    strides = (0,) * len(shape)  # what broadcast_to gives, in a tenth of the time
    return lambda a: np.ndarray(shape, dtype, np.array(a, dtype), 0, strides)


@value("tt.unsplat")
def unsplat(op, scope):
    dtype = _dtype(op.results[0].type)
    return lambda a: a.reshape(())[()] if is_float(dtype) else a.reshape(()).item()


@value("tt.expand_dims")
def expand_dims(op, scope):
    axis = integer(op, "axis")
    return lambda a: np.expand_dims(a, axis)


@value("tt.reshape")
def reshape(op, scope):
    """In row-major order, which is one of those that ``allow_reorder`` allows."""
    shape = tuple(op.results[0].type.shape)
    return lambda a: a.reshape(shape)


@value("tt.trans")
def transpose(op, scope):
    order = list(op.attributes["order"])
    return lambda a: a.transpose(order)


@value("tt.join")
def join(op, scope):
    return lambda a, b: np.stack([a, b], -1)


@value("tt.split")
def split(op, scope):
    return lambda a: (a[..., 0], a[..., 1])


@value("tt.cat")
def concatenate(op, scope):
    return lambda a, b: np.concatenate([a, b])


@value("tt.make_range")
def make_range(op, scope):
    start, end = integer(op, "start"), integer(op, "end")
    dtype = dtype_of_value(op.results[0])
    return lambda: np.arange(start, end).astype(dtype)


@value("tt.gather")
def gather(op, scope):
    axis = integer(op, "axis")
    return lambda source, indices: np.take_along_axis(source, indices.astype(np.int64), axis)


@value("tt.histogram")
def histogram(op, scope):
    """What lies outside of the bins is not counted."""
    (bins,) = op.results[0].type.shape
    dtype = dtype_of_value(op.results[0])

    def run(source: np.ndarray, mask: np.ndarray | None = None) -> np.ndarray:
        inside = (source >= 0) & (source < bins)
        kept = source[inside if mask is None else inside & mask]
        return np.bincount(kept, minlength=bins).astype(dtype)

    return run


# --- pointers -----------------------------------------------------------------------------------


@value("tt.addptr")
def add_pointer(op, scope):
    name = pointee(op.results[0].type)
    bits = 64 if name.startswith(_POINTER) else max(bits_of(name), _BYTE if name == "i1" else 0)
    if bits % _BYTE:
        raise Unsupported(f"{scope.site(op)} of elements of {bits} bits")
    size = bits // _BYTE
    if not is_shaped(op.results[0].type):
        return lambda pointer, offset: pointer + offset * size
    return lambda pointers, offsets: pointers + offsets.astype(np.int64) * size


@value("tt.int_to_ptr", "tt.ptr_to_int")
def same(op, scope):
    return lambda a: a


@value("tt.bitcast")
def bitcast(op, scope):
    if element(op.results[0].type).startswith(_POINTER):
        return lambda a: a
    source, dtype = dtype_of_value(op.operands[0]), dtype_of_value(op.results[0])
    if is_shaped(op.results[0].type):
        return lambda a: from_bits(to_bits(a), dtype)
    if is_float(dtype):
        return lambda a: from_bits(to_bits(np.asarray(a, source)), dtype)[()]
    return lambda a: from_bits(to_bits(np.asarray(a, source)), dtype).item()


# --- arithmetic ---------------------------------------------------------------------------------


@value("tt.dot")
def dot(op, scope):
    """Accumulates in float32, float64 or int32; float32 operands lose what tf32 lacks if told so."""
    source, other, dtype = (dtype_of_value(v) for v in (*op.operands[:2], op.results[0]))
    if source != other and not (is_float(source) and is_float(other)):
        raise Unsupported(f"{scope.site(op)} of {source} and {other}")
    multiply = _multiply(source, other, dtype, _input_precision(op))
    wide = dtype if dtype in (np.int32, np.float64) else np.dtype(np.float32)

    def run(a: np.ndarray, b: np.ndarray, accumulator: np.ndarray) -> np.ndarray:
        return (multiply(a, b) + accumulator.astype(wide)).astype(dtype, copy=False)

    return run


def _input_precision(op) -> int | None:
    if "inputPrecision" not in op.attributes:
        return None
    return integer(op, "inputPrecision")


def _multiply(source, other, dtype, precision: int | None) -> Callable:
    if dtype == np.float64:
        return lambda a, b: a.astype(np.float64) @ b.astype(np.float64)
    if not is_float(source):
        return product(source, dtype)
    if source == np.float32 and precision == _INPUT_PRECISION_TF32:
        return product(source, np.dtype(np.float32))
    return lambda a, b: a.astype(np.float32) @ b.astype(np.float32)


@value("tt.fp_to_fp")
def convert(op, scope):
    dtype = dtype_of_value(op.results[0])
    rounding = integer(op, "rounding") if "rounding" in op.attributes else None
    if rounding != _ROUND_TO_ZERO:
        return lambda a: a.astype(dtype)

    def towards_zero(a: Any) -> Any:
        nearest = np.asarray(a).astype(dtype)
        larger = np.abs(nearest.astype(np.float64)) > np.abs(np.asarray(a, np.float64))
        bits = to_bits(nearest)
        return from_bits(np.where(larger, bits - bits.dtype.type(1), bits), dtype)[()]

    return towards_zero


@value("tt.clampf")
def clamp(op, scope):
    """A NaN among the limits is no limit; one to be clamped stays where NaNs propagate."""
    propagates = integer(op, "propagateNan") != 0

    def run(x: Any, low: Any, high: Any) -> Any:
        clamped = np.fmin(np.fmax(x, low), high)
        return np.where(x != x, x, clamped)[()] if propagates else clamped

    return in_float32(run, dtype_of_value(op.results[0]))


@value("tt.precise_divf", "tt.approx_divf")
def divide(op, scope):
    return np.divide


@value("tt.precise_sqrt")
def square_root(op, scope):
    return np.sqrt


@value("tt.mulhiui")
def multiply_high(op, scope):
    """The high half of the product of unsigned integers."""
    dtype = dtype_of_value(op.results[0])
    kind, bits = unsigned(dtype), 8 * dtype.itemsize

    def narrow(a: np.ndarray, b: np.ndarray) -> np.ndarray:
        return a.astype(np.uint64) * b.astype(np.uint64) >> np.uint64(bits)

    exact: Any = narrow
    if bits > 32:
        exact = np.frompyfunc(lambda a, b: int(a) * int(b) >> bits, 2, 1)

    def run(a: Any, b: Any) -> Any:
        wide = exact(np.asarray(a, dtype).view(kind), np.asarray(b, dtype).view(kind))
        return np.asarray(wide).astype(kind).view(dtype)

    if is_shaped(op.results[0].type):
        return run
    return lambda a, b: operator.index(run(a, b)[()])


# --- messages -----------------------------------------------------------------------------------


@effect("tt.assert")
def assertion(op, scope):
    site, message = scope.site(op), op.attributes["message"].value

    def run(thread, condition: Any, mask: Any = True) -> None:
        if not np.all(condition | np.logical_not(mask)):
            text = f"{site} failed, by {thread.where()}: {message}"
            raise Fault(Finding(MISUSE, text, (site,)))

    return run


@effect("tt.print")
def nothing(op, scope):
    return lambda thread, *operands: None
