"""`tpu` operations on vectors."""

from __future__ import annotations

import math

import numpy as np

from ...errors import Unsupported
from ..element_types import is_float, unsigned
from ..meaning import value
from ..values import dtype_of_value, in_float32, is_shaped, vector_type, word


@value("tpu.iota")
def iota(op, scope):
    """Counts along the dimensions, the last of them fastest."""
    shape, dtype = vector_type(op.results[0].type)
    axes = [int(n) for n in op.attributes["dimensions"]]
    counted = np.arange(int(np.prod([shape[a] for a in axes]))).reshape([shape[a] for a in axes])
    order = np.argsort(axes)
    counted = counted.transpose(order)
    sizes = [extent if axis in axes else 1 for axis, extent in enumerate(shape)]
    result = np.broadcast_to(counted.reshape(sizes).astype(dtype), shape)
    return lambda: result


@value("tpu.reciprocal")
def reciprocal(op, scope):
    """Exact also where the chip's is approximate."""
    return in_float32(lambda x: (1 / x).astype(x.dtype), dtype_of_value(op.results[0]))


@value("tpu.logistic")
def logistic(op, scope):
    return in_float32(lambda x: 1 / (1 + np.exp(-x)), dtype_of_value(op.results[0]))


@value("tpu.transpose")
def transpose(op, scope):
    permutation = [int(n) for n in op.attributes["permutation"]]
    return lambda a: a.transpose(permutation)


@value("tpu.concatenate")
def concatenate(op, scope):
    axis = int(op.attributes["dimension"].value)
    return lambda *parts: np.concatenate(parts, axis)


@value("tpu.relayout")
def same_vector(op, scope):
    """Another layout of the same values."""
    return lambda a: a


@value("tpu.reshape")
def reshape(op, scope):
    shape, _ = vector_type(op.results[0].type)
    return lambda a: a.reshape(shape)


@value("tpu.mask_cast")
def mask_cast(op, scope):
    """A mask for another packing: subelements of one word have equal bits."""
    source = tuple(op.operands[0].type.shape)
    shape, _ = vector_type(op.results[0].type)
    if source[:2] != shape[:2]:
        raise Unsupported(f"{scope.site(op)} from {list(source)} to {list(shape)}")
    more = math.prod(shape) // math.prod(source)
    if more:
        return lambda a: np.repeat(a.reshape(*source[:2], -1), more, -1).reshape(shape)
    fewer = math.prod(source) // math.prod(shape)
    return lambda a: a.reshape(*source[:2], -1)[..., ::fewer].reshape(shape)


@value("tpu.repeat")
def repeat(op, scope):
    axis, times = (int(op.attributes[name].value) for name in ("dimension", "times"))
    return lambda a: np.concatenate([a] * times, axis)


@value("tpu.weird")
def weird(op, scope):
    """Whether a float is infinite or no number."""
    if is_shaped(op.operands[0].type):
        return lambda a: ~np.isfinite(a.astype(np.float32))
    return lambda a: not np.isfinite(np.float32(a))


@value("tpu.create_mask")
def create_mask(op, scope):
    """True in the box between the lower bounds and the upper ones."""
    shape = tuple(op.results[0].type.shape)

    def run(*bounds):
        mask = np.zeros(shape, np.bool_)
        lows, highs = bounds[: len(bounds) // 2], bounds[len(bounds) // 2 :]
        mask[tuple(slice(max(0, low), max(0, high)) for low, high in zip(lows, highs))] = True
        return mask

    return run


# --- moving elements ------------------------------------------------------------------------


def _integer(op, name: str) -> int | None:
    return int(op.attributes[name].value) if name in op.attributes else None


@value("tpu.rotate", "tpu.dynamic_rotate")
def rotate(op, scope):
    """Element i goes to ``i + amount``, ``+ stride * index`` along another dimension."""
    axis = int(op.attributes["dimension"].value)
    stride, along = _integer(op, "stride"), _integer(op, "stride_dimension")
    fixed = _integer(op, "amount")
    extent = op.results[0].type.shape[axis]

    def run(a, *amount):
        by = fixed if fixed is not None else amount[0]
        if stride is None or along is None:
            return np.roll(a, by, axis)
        shift = by + stride * np.arange(a.shape[along])
        sizes = [a.shape[d] if d == along else 1 for d in range(a.ndim)]
        where = np.arange(extent).reshape([-1 if d == axis else 1 for d in range(a.ndim)])
        return np.take_along_axis(a, (where - shift.reshape(sizes)) % extent, axis)

    return run


@value("tpu.gather")
def gather(op, scope):
    """Rows of one dimension by fixed indices."""
    axis = int(op.attributes["dimension"].value)
    indices = [int(n) for n in op.attributes["indices"]]
    return lambda a: a.take(indices, axis)


@value("tpu.dynamic_gather")
def dynamic_gather(op, scope):
    """``np.take_along_axis`` over dimensions that are counted as one; indices wrap around."""
    axes = [int(n) for n in op.attributes["dimensions"]]
    source = tuple(op.operands[0].type.shape)
    if len(axes) == 1:
        (axis,) = axes
        size = source[axis]
        return lambda a, indices: np.take_along_axis(a, indices.astype(np.int64) % size, axis)
    shape = tuple(op.results[0].type.shape)
    kept = [axis for axis in range(len(source)) if axis not in axes]
    size = math.prod(source[axis] for axis in axes)

    def run(a, indices):
        lines = a.transpose([*kept, *axes]).reshape(*(source[axis] for axis in kept), size)
        grid = np.ogrid[tuple(slice(n) for n in shape)]
        return lines[(*(grid[axis] for axis in kept), indices.astype(np.int64) % size)]

    return run


@value("tpu.broadcast_in_sublanes")
def broadcast_in_sublanes(op, scope):
    """Sublane i holds what the source has in lane ``lane + i``; undefined past its end."""
    lane = int(op.attributes["lane"].value)
    shape, _ = vector_type(op.results[0].type)

    def run(a):
        chosen = a[0].take(range(lane, lane + shape[0]), mode="clip")
        return np.broadcast_to(chosen.reshape(-1, *[1] * (len(shape) - 1)), shape)

    return run


@value("tpu.roll_vectors")
def roll_vectors(op, scope):
    """Vectors side by side in row-major order of the larger one's tiles."""
    shape, _ = vector_type(op.results[0].type)
    return lambda *parts: _tiled(np.stack(parts), shape)


@value("tpu.unroll_vectors")
def unroll_vectors(op, scope):
    part = tuple(op.results[0].type.shape)
    count = len(op.results)

    def run(a):
        parts = _tiles(a, part)
        return parts[0] if count == 1 else tuple(parts)

    return run


def _tiles(a: np.ndarray, part: tuple[int, ...]) -> np.ndarray:
    counts = [n // m for n, m in zip(a.shape, part)]
    split = a.reshape([x for pair in zip(counts, part) for x in pair])
    order = [*range(0, 2 * a.ndim, 2), *range(1, 2 * a.ndim, 2)]
    return split.transpose(order).reshape(-1, *part)


def _tiled(parts: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    part = parts.shape[1:]
    counts = [n // m for n, m in zip(shape, part)]
    rank = len(shape)
    order = [axis for d in range(rank) for axis in (d, rank + d)]
    return parts.reshape(*counts, *part).transpose(order).reshape(shape)


# --- reductions -------------------------------------------------------------------------------

_REDUCTIONS = {"sum": np.add, "max": np.maximum, "min": np.minimum}


def combining(kind: str, dtype: np.dtype):
    """(function, type to compute in) of a reduction kind; a plain ``max`` of integers is unsigned."""
    name = kind[:3]
    if name not in _REDUCTIONS or kind.startswith("arg"):
        raise Unsupported(f"a reduction of kind {kind}")
    if is_float(dtype):
        return _REDUCTIONS[name], np.dtype(np.float32) if dtype.itemsize < 4 else dtype
    is_signed = name == "sum" or kind.endswith("si")
    return _REDUCTIONS[name], dtype if is_signed else unsigned(dtype)


def as_type(a: np.ndarray, dtype: np.dtype) -> np.ndarray:
    """A float rounded to another type; the bits of an integer as signed or unsigned."""
    return a.astype(dtype) if is_float(a.dtype) else np.ascontiguousarray(a).view(dtype)


@value("tpu.reduce")
def reduce(op, scope):
    """Keeps the reduced dimensions, of size 1."""
    dtype = dtype_of_value(op.results[0])
    axes = tuple(int(n) for n in op.attributes["dimensions"])
    function, kind = combining(word(op.attributes["kind"]), dtype)
    return lambda a: as_type(
        function.reduce(as_type(a, kind), axis=axes, keepdims=True, dtype=kind), dtype
    )


@value("tpu.reduce_index")
def reduce_index(op, scope):
    """Where the largest or smallest element is, the first of equal ones."""
    axis = int(op.attributes["axis"].value)
    dtype = dtype_of_value(op.results[0])
    largest = word(op.attributes["kind"]) == "arg_max"
    find = np.argmax if largest else np.argmin
    shape = tuple(op.results[0].type.shape)

    def run(a):
        wide = a.astype(np.float32) if is_float(a.dtype) else a
        return find(wide, axis).astype(dtype).reshape(shape)

    return run


@value("tpu.all_reduce")
def all_reduce(op, scope):
    """The reduction along a dimension in every place of it.

    Of a mask: how many are set, or where the first one is (the extent where none is).
    """
    axis = int(op.attributes["dim"].value)
    kind = word(op.attributes["kind"])
    shape, dtype = vector_type(op.results[0].type)
    source = dtype_of_value(op.operands[0])

    if kind == "find_first_set":

        def first(a):
            found = np.where(
                a.any(axis, keepdims=True), a.argmax(axis, keepdims=True), a.shape[axis]
            )
            return np.broadcast_to(found.astype(dtype), shape)

        return first
    if kind.startswith("arg"):
        find = np.argmax if kind == "arg_max" else np.argmin
        return lambda a: np.broadcast_to(np.expand_dims(find(a, axis), axis).astype(dtype), shape)
    if source == np.bool_:
        return lambda a: np.broadcast_to(a.sum(axis, keepdims=True).astype(dtype), shape)
    function, wide = combining(kind, dtype)

    def run(a):
        total = function.reduce(as_type(a, wide), axis=axis, keepdims=True, dtype=wide)
        return np.broadcast_to(as_type(total, dtype), shape)

    return run
