"""`mosaic_gpu` operations on references, vectors and barriers; copies and products apart.

Tiling, swizzling and register layouts say where an element lies, not what it is: shared
memory holds every array in row-major order of its logical shape.
"""

from __future__ import annotations

import re
from typing import Any

import numpy as np

from ...errors import Unsupported
from ...jax_compat import ir
from ..barrier import MBarrier
from ..element_types import dtype_of
from ..findings import Site
from ..gpu_thread import (
    MBARRIER_BYTES,
    TMEM_CELL,
    TMEM_COLUMNS,
    WARPGROUP,
    GpuThread,
    Pointer,
    mbarrier,
)
from ..meaning import blocking, effect, load, value
from ..memory import View, row_major
from ..values import flag, vector_type
from .llvm import is_barrier

# --- references ----------------------------------------------------------------------------


@load("mosaic_gpu.slice_smem")
def slice_smem(op, scope):
    site, type_ = scope.site(op), op.results[0].type
    offset = int(op.attributes["offset"].value)
    if is_barrier(type_):
        return lambda thread: Pointer(thread.cta.smem, offset)
    shape, dtype = tuple(type_.shape), dtype_of(str(type_.element_type))
    if "int2" in dtype.name or "int4" in dtype.name or "float4" in dtype.name:
        raise Unsupported(f"{site} of {type_.element_type}, several to a byte")
    strides = row_major(shape, dtype.itemsize)
    return lambda thread: View(thread.cta.smem, offset, shape, strides, dtype)


@value(
    "mosaic_gpu.with_transforms",
    "mosaic_gpu.layout_cast",
    "mosaic_gpu.assume_multiple",
    "mosaic_gpu.print_layout",
)
def same(op, scope):
    return lambda operand: operand


@value("mosaic_gpu.reinterpret_cast")
def reinterpret_cast(op, scope):
    """The same bytes; between a tiled shape and the logical one, elements in row-major order."""
    shape = tuple(op.results[0].type.shape)
    if op.operands[0].type.element_type != op.results[0].type.element_type:
        raise Unsupported(f"{scope.site(op)} to {op.results[0].type.element_type}")
    return lambda view: view.reshape(shape)


# --- tensor memory ----------------------------------------------------------------------------


@blocking("mosaic_gpu.tmem_alloc")
def tmem_alloc(op, scope):
    """One warp of the CTA allocates, then all threads meet."""
    site, key = scope.site(op), object()
    shape, dtype = vector_type(op.results[0].type)
    strides = (TMEM_COLUMNS * TMEM_CELL, TMEM_CELL)

    def run(thread: GpuThread, where_to_put_it: View):
        cta = thread.cta
        yield from cta.sync_threads(thread, site)
        return View(cta.tensor_memory(key), 0, shape, strides, dtype)

    return run


@effect("mosaic_gpu.tmem_dealloc")
def tmem_dealloc(op, scope):
    """Nothing may still touch the memory, of which one warp of the CTA disposes."""
    site = scope.site(op)

    def run(thread: GpuThread, view: View):
        if thread is thread.cta.threads[0]:
            whole = View.whole(view.buffer, (len(view.buffer.data),), np.dtype(np.int8))
            thread.machine.races.check(thread.actor(site), whole, True)

    return run


@effect("mosaic_gpu.tmem_relinquish_alloc_permit", "mosaic_gpu.async_prefetch")
def nothing(op, scope):
    return lambda thread, *operands: None


@value("mosaic_gpu.slice_tmem")
def slice_tmem(op, scope):
    """Elements narrower than a cell are packed until `tmem_layout_cast` says otherwise."""
    offset = int(op.attributes["offset"].value) * TMEM_CELL
    shape, dtype = vector_type(op.results[0].type)
    strides = (TMEM_COLUMNS * TMEM_CELL, dtype.itemsize)
    return lambda view: View(view.buffer, view.offset + offset, shape, strides, dtype)


@value("mosaic_gpu.tmem_layout_cast")
def tmem_layout_cast(op, scope):
    """The layout's tiles are as wide as elements share a cell, or wider."""
    shape, dtype = vector_type(op.results[0].type)
    tile = re.search(r"\[\[\d+, (\d+)\]", str(op.attributes["new_layout"]))
    if tile is None:
        raise Unsupported(f"{scope.site(op)} to {op.attributes['new_layout']}")
    packed = min(int(tile[1]), TMEM_CELL // dtype.itemsize)
    strides = (TMEM_COLUMNS * TMEM_CELL, TMEM_CELL // packed)
    return lambda view: View(view.buffer, view.offset, shape, strides, dtype)


# --- vectors ----------------------------------------------------------------------------------


@load("mosaic_gpu.vector_load")
def vector_load(op, scope):
    site = scope.site(op)
    return lambda thread, view: thread.load(view, site)


def tensor_loads_of(value: ir.Value) -> list[ir.Operation]:
    """The loads from tensor memory that a stored value was computed from, which it waits for."""
    found: list[ir.Operation] = []
    seen: set[ir.Value] = set()
    pending = [value]
    while pending:
        current = pending.pop()
        if current in seen:
            continue
        seen.add(current)
        owner: Any = current.owner
        if isinstance(owner, ir.Block):
            pending += owner.owner.operands
        elif owner.name == "mosaic_gpu.async_load_tmem":
            found.append(owner.operation)
        else:
            pending += owner.operands
            for region in owner.operation.regions:
                for block in region.blocks:
                    pending += list(block.operations)[-1].operands
    return found


@effect("mosaic_gpu.vector_store")
def vector_store(op, scope):
    site = scope.site(op)
    loads = tensor_loads_of(op.operands[0])
    if "atomic_type" in op.attributes or flag(op, "multimem"):
        raise Unsupported(f"{site} that is atomic or goes to all devices")

    def run(thread: GpuThread, values, view: View):
        automatic = thread.cta.launch.automatic
        if loads:
            thread.wait_tensor_loads(loads)
        if automatic:
            thread.converge()
        thread.store(view, values, site)
        if automatic:
            thread.converge()

    return run


@value("mosaic_gpu.broadcast_in_dim")
def broadcast_in_dim(op, scope):
    shape, _ = vector_type(op.results[0].type)
    source = list(op.operands[0].type.shape)
    spread = [1] * len(shape)
    for extent, axis in zip(source, op.attributes["broadcast_dimensions"]):
        spread[int(axis)] = extent
    return lambda a: np.broadcast_to(a.reshape(spread), shape)


@value("mosaic_gpu.broadcasted_iota")
def broadcasted_iota(op, scope):
    shape, dtype = vector_type(op.results[0].type)
    axis = int(op.attributes["dimension"].value)
    line = np.arange(shape[axis]).astype(dtype)
    line = line.reshape([-1 if d == axis else 1 for d in range(len(shape))])
    return lambda: np.broadcast_to(line, shape)


@value("mosaic_gpu.vector_concat")
def vector_concat(op, scope):
    axis = int(op.attributes["dimension"].value)
    return lambda *parts: np.concatenate(parts, axis)


@value("mosaic_gpu.optimization_barrier")
def optimization_barrier(op, scope):
    if len(op.operands) == 1:
        return lambda operand: operand
    return lambda *operands: operands


# --- barriers -----------------------------------------------------------------------------------


def initialise(thread: GpuThread, pointer: Pointer, count: int, site: Site) -> None:
    """Makes an mbarrier for `count` threads at a pointer."""
    name = f"the barrier at byte {pointer.offset} of {pointer.buffer.cta.name}"
    barrier = MBarrier(thread.machine, name, count, thread, site)
    pointer.buffer.barriers[pointer.offset] = barrier


@effect("mosaic_gpu.initialize_barrier")
def initialize_barrier(op, scope):
    """One thread of the CTA initialises; each arrival of a warpgroup is one of all its lanes."""
    site = scope.site(op)
    number = int(op.attributes["num_barriers"].value)
    lanes = 1 if flag(op, "orders_tensor_core") else WARPGROUP
    count = int(op.attributes["arrival_count"].value) * lanes

    def run(thread: GpuThread, pointer: Pointer):
        if thread is thread.cta.threads[0]:
            for n in range(number):
                initialise(thread, pointer + n * MBARRIER_BYTES, count, site)

    return run


@effect("mosaic_gpu.arrive")
def arrive(op, scope):
    site = scope.site(op)
    single = flag(op, "orders_tensor_core")

    def run(thread: GpuThread, pointer: Pointer, predicate: bool = True):
        if single:
            thread.converge()
        if predicate:
            barrier = mbarrier(thread, pointer, site)
            barrier.arrive_from(thread, 1 if single else WARPGROUP, site)

    return run


@effect("mosaic_gpu.arrive_expect_tx")
def arrive_expect_tx(op, scope):
    site = scope.site(op)
    single = "orders_tensor_core" in str(op.operands[0].type)
    fixed = int(op.attributes["expect_tx"].value) if "expect_tx" in op.attributes else 0

    def run(thread: GpuThread, pointer: Pointer, expected: int = fixed):
        if single:
            thread.converge()
        barrier = mbarrier(thread, pointer, site)
        barrier.arrive_from(thread, 1 if single else WARPGROUP, site, expected)

    return run
