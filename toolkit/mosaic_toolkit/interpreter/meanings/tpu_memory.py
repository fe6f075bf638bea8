"""`tpu` operations on references: views, loads and stores, allocation."""

from __future__ import annotations

import numpy as np

from ...errors import Unsupported
from ...jax_compat import ir
from ..bits import width_of
from ..bounds import checked_slice
from ..element_types import dtype_of
from ..machine import Thread
from ..meaning import Constant, effect, load, value
from ..memory import View
from ..tpu_buffers import allocate
from ..values import dtype_of_value, flag, vector_type, word
from ..wide_view import as_type
from .memref import private_memory
from .tpu_compressed import compressed_store, expanded_load, is_sparse_core

# --- views --------------------------------------------------------------------------


@effect("tpu.memref_slice")
def memref_slice(op, scope):
    """Operands: the reference, its offsets, its dynamic sizes."""
    site = scope.site(op)
    rank = len(op.operands[0].type.shape)
    static = list(op.results[0].type.shape)
    dynamic = [n for n in range(rank) if op.results[0].type.is_dynamic_dim(n)]

    def run(thread: Thread, view: View, *numbers: int) -> View:
        sizes = static
        if dynamic:
            sizes = list(static)
            for axis, size in zip(dynamic, numbers[rank:]):
                sizes[axis] = size
        return checked_slice(thread, site, view, numbers[:rank], sizes)

    return run


@value("tpu.memref_squeeze", "tpu.memref_reshape")
def memref_reshape(op, scope):
    shape = tuple(op.results[0].type.shape)
    dynamic = any(op.results[0].type.is_dynamic_dim(n) for n in range(len(shape)))
    if not dynamic:
        return lambda view: view.reshape(shape)
    source = op.operands[0].type
    kept = _kept_dimensions(list(source.shape), list(shape))
    return lambda view: view.reshape(tuple(view.shape[n] for n in kept))


def _kept_dimensions(source: list[int], result: list[int]) -> list[int]:
    kept, position = [], 0
    for axis, extent in enumerate(source):
        if position < len(result) and result[position] == extent:
            kept.append(axis)
            position += 1
    return kept


@value("tpu.erase_memref_layout", "tpu.assume_layout", "tpu.reinterpret_cast")
def same_reference(op, scope):
    return lambda view, *_: view


@value("tpu.memref_bitcast")
def memref_bitcast(op, scope):
    """Packs or unpacks along the second-minor dimension, as rows share 32-bit words."""
    type_ = op.results[0].type
    shape, dtype = tuple(type_.shape), dtype_of(str(type_.element_type))
    widths = {width_of(dtype), width_of(dtype_of_value(op.operands[0]))}
    if len(widths) > 1 and min(widths) < 8:
        raise Unsupported(f"{scope.site(op)} between {max(widths)} and {min(widths)} bits")

    return lambda view: as_type(view, dtype, shape)


# --- loads and stores ---------------------------------------------------------------


def strides_of(op, rank: int) -> list[int] | None:
    strides = list(op.attributes["strides"]) if "strides" in op.attributes else []
    return strides if len(strides) == rank and any(s != 1 for s in strides) else None


@load("tpu.vector_load", "tpu.strided_load")
def vector_load(op, scope):
    site = scope.site(op)
    shape, dtype = vector_type(op.results[0].type)
    rank = len(op.operands[0].type.shape)
    sizes = [1] * (rank - len(shape)) + list(shape)[max(0, len(shape) - rank) :]
    steps = strides_of(op, rank)
    masked = len(op.operands) > 1 + rank
    if masked and is_sparse_core(op):
        return expanded_load(op, scope, len(shape) - 1)

    def run(thread: Thread, view: View, *operands):
        box = checked_slice(thread, site, view, operands[:rank], sizes, steps)
        values = thread.load(box, site).reshape(shape)
        if masked:
            values = np.where(operands[rank], values, np.zeros((), dtype))
        return values

    return run


@effect("tpu.vector_store", "tpu.strided_store")
def vector_store(op, scope):
    site = scope.site(op)
    shape, _ = vector_type(op.operands[0].type)
    rank = len(op.operands[1].type.shape)
    sizes = [1] * (rank - len(shape)) + list(shape)[max(0, len(shape) - rank) :]
    steps = strides_of(op, rank)
    masked = len(op.operands) > 2 + rank
    adds = flag(op, "add")
    if masked and is_sparse_core(op):
        return compressed_store(op, scope, len(shape) - 1)

    def run(thread: Thread, values, view: View, *operands):
        box = checked_slice(thread, site, view, operands[:rank], sizes, steps)
        mask = operands[rank].reshape(box.shape) if masked else None
        values = values.reshape(box.shape)
        if adds:
            values = thread.load(box, site) + values
        thread.store(box, values, site, mask)

    return run


# --- allocation ---------------------------------------------------------------------


@effect("tpu.sem_alloc", "memref.alloca", "memref.alloc")
def alloca(op, scope):
    site, type_ = scope.site(op), op.results[0].type
    if type_.memory_space is None:
        return private_memory(type_, f"the allocation of {site}")
    what = ("allocation", _position(op))
    return lambda thread: allocate(thread, type_, what, f"the allocation of {site}", site)


def _position(op: ir.Operation) -> tuple[int, ...]:
    """Where an operation stands in its module: the same on every core."""
    path = []
    while op.parent is not None:
        parent = op.parent.operation
        for number, region in enumerate(parent.regions):
            inside = [n for n, o in enumerate(region.blocks[0].operations) if o.operation == op]
            if inside:
                path += [number, *inside]
        op = parent
    return tuple(path)


@effect("tpu.internal_scratch")
def internal_scratch(op, scope):
    site, type_ = scope.site(op), op.results[0].type
    return lambda thread: allocate(thread, type_, ("internal scratch",), str(site))


@value("tpu.memref_memory_space_is")
def memory_space_is(op, scope):
    """Known from the type, unless that leaves the space open."""
    asked = word(op.attributes["memory_space"]).partition(",")[0].strip()
    space = op.operands[0].type.memory_space
    found = "vmem" if space is None else word(space).partition(",")[0].strip()
    if found == "any":
        found = "hbm"
    return Constant(found == asked)


@value("tpu.tile_size")
def tile_size(op, scope):
    """Of the first level of tiles; 1 where there are none."""
    raise Unsupported(f"{scope.site(op)}: tiles are not modelled")


# --- marks ----------------------------------------------------------------------------


@effect("tpu.trace_start", "tpu.trace_stop", "tpu.trace_value", "tpu.log", "tpu.delay")
def nothing(op, scope):
    return lambda thread, *operands: None


@effect("tpu.log_buffer")
def log_buffer(op, scope):
    """Printing a buffer reads it."""
    site = scope.site(op)

    def run(thread: Thread, view: View):
        thread.load(view, site)

    return run


@value("tpu.assume_multiple", "tpu.annotate")
def first_operand(op, scope):
    return lambda operand, *_: operand
