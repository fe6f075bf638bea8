"""The `vector` dialect."""

from __future__ import annotations

import re

import numpy as np

from ..bounds import checked_slice
from ..element_types import is_float, unsigned
from ..meaning import effect, load, value
from ..values import dtype_of_value, is_shaped, vector_type, word

_DYNAMIC = -(2**63)


@value("vector.broadcast", "vector.splat")
def broadcast(op, scope):
    shape, dtype = vector_type(op.results[0].type)
    if is_shaped(op.operands[0].type):
        return lambda a: np.broadcast_to(a, shape)
    return lambda a: np.broadcast_to(np.asarray(a, dtype), shape)


@value("vector.shape_cast")
def shape_cast(op, scope):
    shape, _ = vector_type(op.results[0].type)
    return lambda a: a.reshape(shape)


@value("vector.transpose")
def transpose(op, scope):
    permutation = list(op.attributes["permutation"])
    return lambda a: a.transpose(permutation)


@value("vector.bitcast")
def bitcast(op, scope):
    shape, dtype = vector_type(op.results[0].type)
    return lambda a: np.ascontiguousarray(a).view(dtype).reshape(shape)


@value("vector.step")
def step(op, scope):
    shape, dtype = vector_type(op.results[0].type)
    return lambda: np.arange(shape[0], dtype=dtype)


# --- parts ----------------------------------------------------------------------------


def _position(op) -> list[int]:
    return [int(n) for n in op.attributes["static_position"]]


def _index(static: list[int], dynamic) -> tuple[int, ...]:
    numbers = iter(dynamic)
    return tuple(next(numbers) if n == _DYNAMIC else n for n in static)


@value("vector.extract")
def extract(op, scope):
    static = _position(op)
    scalar = not is_shaped(op.results[0].type)
    convert = _scalar_of(dtype_of_value(op.results[0])) if scalar else None

    def run(a, *dynamic):
        part = a[_index(static, dynamic)]
        return part if convert is None else convert(part)

    return run


def _scalar_of(dtype):
    if dtype == np.bool_:
        return bool
    return (lambda x: x) if is_float(dtype) else int


@value("vector.insert")
def insert(op, scope):
    static = _position(op)

    def run(part, a, *dynamic):
        result = a.copy()
        result[_index(static, dynamic)] = part
        return result

    return run


@value("vector.extract_strided_slice", "vector.insert_strided_slice")
def strided_slice(op, scope):
    offsets = [n.value for n in op.attributes["offsets"]]
    strides = [n.value for n in op.attributes["strides"]]
    if op.name == "vector.extract_strided_slice":
        sizes = [n.value for n in op.attributes["sizes"]]
        where = _where(offsets, sizes, strides)
        return lambda a: a[where]
    sizes = list(op.operands[0].type.shape)
    lead = len(offsets) - len(sizes)
    where = (*offsets[:lead], *_where(offsets[lead:], sizes, strides))

    def run(part, a):
        result = a.copy()
        result[where] = part
        return result

    return run


def _where(offsets, sizes, strides) -> tuple[slice, ...]:
    return tuple(slice(o, o + (n - 1) * s + 1, s) for o, n, s in zip(offsets, sizes, strides))


@value("vector.from_elements")
def from_elements(op, scope):
    shape, dtype = vector_type(op.results[0].type)
    return lambda *elements: np.array(elements, dtype).reshape(shape)


@value("vector.shuffle")
def shuffle(op, scope):
    mask = [int(n) for n in op.attributes["mask"]]
    return lambda a, b: np.concatenate([np.atleast_1d(a), np.atleast_1d(b)])[mask]


@value("vector.interleave")
def interleave(op, scope):
    return lambda a, b: np.stack([a, b], -1).reshape((*a.shape[:-1], -1))


@value("vector.deinterleave")
def deinterleave(op, scope):
    return lambda a: (a[..., ::2], a[..., 1::2])


@value("vector.create_mask")
def create_mask(op, scope):
    shape, _ = vector_type(op.results[0].type)

    def run(*bounds):
        mask = np.zeros(shape, np.bool_)
        mask[tuple(slice(0, max(0, bound)) for bound in bounds)] = True
        return mask

    return run


@value("vector.constant_mask")
def constant_mask(op, scope):
    shape, _ = vector_type(op.results[0].type)
    mask = np.zeros(shape, np.bool_)
    mask[tuple(slice(0, int(n)) for n in op.attributes["mask_dim_sizes"])] = True
    return lambda: mask


# --- arithmetic -------------------------------------------------------------------------

_REDUCTIONS = {
    "add": np.add,
    "mul": np.multiply,
    "minimumf": np.minimum,
    "maximumf": np.maximum,
    "minnumf": np.fmin,
    "maxnumf": np.fmax,
    "minsi": np.minimum,
    "maxsi": np.maximum,
    "minui": np.minimum,
    "maxui": np.maximum,
    "and": np.bitwise_and,
    "or": np.bitwise_or,
    "xor": np.bitwise_xor,
}


def reduce(kind: str, a: np.ndarray, axes: tuple[int, ...] | None) -> np.ndarray:
    """The reduction of an array over axes; floats narrower than 32 bits are added in float32."""
    function, dtype = _REDUCTIONS[kind], a.dtype
    if kind in ("minui", "maxui"):
        return function.reduce(a.view(unsigned(dtype)), axis=axes).view(dtype)
    if dtype == np.bool_ and kind == "add":
        return np.bitwise_xor.reduce(a, axis=axes)
    if is_float(dtype) and dtype.itemsize < 4:
        return function.reduce(a.astype(np.float32), axis=axes).astype(dtype)
    return function.reduce(a, axis=axes, dtype=dtype if dtype.kind in "iuf" else None)


@value("vector.multi_reduction")
def multi_reduction(op, scope):
    kind = word(op.attributes["kind"])
    axes = tuple(int(n) for n in op.attributes["reduction_dims"])
    combine = _REDUCTIONS[kind]
    scalar = not is_shaped(op.results[0].type)
    dtype = dtype_of_value(op.results[0])
    convert = _scalar_of(dtype)
    # Combining with the neutral element changes nothing.

    def run(a, accumulator):
        result = combine(reduce(kind, a, axes), np.asarray(accumulator, dtype)).astype(dtype)
        return convert(result[()]) if scalar else result

    return run


@value("vector.reduction")
def reduction(op, scope):
    kind = word(op.attributes["kind"])
    dtype = dtype_of_value(op.results[0])
    convert = _scalar_of(dtype)

    def run(a, *accumulator):
        result = reduce(kind, a, None)
        for start in accumulator:
            result = _REDUCTIONS[kind](result, np.asarray(start, dtype))
        return convert(np.asarray(result, dtype)[()])

    return run


@value("vector.fma")
def fma(op, scope):
    return lambda a, b, c: a * b + c


@value("vector.contract")
def contract(op, scope):
    """A product and sum by three affine maps of plain dimensions."""
    maps = [
        re.findall(r"d(\d+)", str(m).rpartition("->")[2]) for m in op.attributes["indexing_maps"]
    ]
    letters = ["".join(chr(ord("a") + int(d)) for d in dims) for dims in maps]
    equation = f"{letters[0]},{letters[1]}->{letters[2]}"
    dtype = dtype_of_value(op.results[0])
    wide = np.float32 if is_float(dtype) and dtype.itemsize <= 4 else dtype

    def run(a, b, accumulator):
        product = np.einsum(equation, a.astype(wide), b.astype(wide), optimize=True)
        return (product + np.asarray(accumulator, dtype).astype(wide)).astype(dtype)

    return run


# --- memory -------------------------------------------------------------------------------


def _box(rank: int, shape: tuple[int, ...]) -> list[int]:
    return [1] * (rank - len(shape)) + list(shape)


@load("vector.load")
def vector_load(op, scope):
    site = scope.site(op)
    shape, _ = vector_type(op.results[0].type)
    sizes = _box(len(op.operands[0].type.shape), shape)

    def run(thread, view, *indices):
        return thread.load(checked_slice(thread, site, view, indices, sizes), site).reshape(shape)

    return run


@effect("vector.store")
def vector_store(op, scope):
    site = scope.site(op)
    shape, _ = vector_type(op.operands[0].type)
    sizes = _box(len(op.operands[1].type.shape), shape)

    def run(thread, values, view, *indices):
        box = checked_slice(thread, site, view, indices, sizes)
        thread.store(box, values.reshape(box.shape), site)

    return run
