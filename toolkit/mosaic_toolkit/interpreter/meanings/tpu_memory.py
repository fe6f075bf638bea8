"""`tpu` operations that move data or time: views, loads and stores, DMAs, semaphores."""

from __future__ import annotations

import numpy as np

from ...errors import Unsupported
from ..bounds import checked_slice
from ..element_types import dtype_of
from ..machine import Thread
from ..meaning import blocking, effect, load, value
from ..memory import View
from ..tpu import allocate, semaphore
from ..values import flag, operand_groups, vector_type

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

    def run(view: View) -> View:
        if dtype.itemsize == view.dtype.itemsize:
            return View(view.buffer, view.offset, view.shape, view.strides, dtype, view.places)
        places = view.byte_offsets()
        if dtype.itemsize < view.dtype.itemsize:
            parts = view.dtype.itemsize // dtype.itemsize
            split = places[..., None, :] + (np.arange(parts) * dtype.itemsize)[:, None]
            return view.scattered(split.reshape(shape), dtype)
        parts = dtype.itemsize // view.dtype.itemsize
        return view.scattered(places[..., ::parts, :].reshape(shape), dtype)

    return run


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
    adds = "add" in op.attributes and op.attributes["add"].value

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

    def run(thread: Thread) -> View:
        number = thread.allocations = thread.allocations + 1
        return allocate(thread, type_, ("allocation", number), f"the allocation of {site}")

    return run


# --- DMAs and semaphores -------------------------------------------------------------


def _amount(view: View) -> int:
    """What a whole copy of the reference adds to a DMA semaphore: its bytes."""
    return view.nbytes


@effect("tpu.enqueue_dma")
def enqueue_dma(op, scope):
    """Operand groups: source, its semaphore, target, its semaphore, device, core, subcore."""
    site, groups = scope.site(op), operand_groups(op)

    def run(thread: Thread, *operands):
        (source,), sent, (target,), landed, *elsewhere = (operands[group] for group in groups)
        if any(elsewhere):
            raise Unsupported(f"{site} to another core")
        signals = [(semaphore(s), _amount(target)) for s in landed]
        thread.start(
            site,
            lambda: target.copy_from(source),
            reads=[source],
            writes=[target],
            signals=signals,
        )

    return run


@blocking("tpu.wait_dma")
def wait_dma(op, scope):
    """Waits for the copy's arrival at its target, or for its source to be read."""
    site, groups = scope.site(op), operand_groups(op)
    arrival = flag(op, "wait_target")

    def run(thread: Thread, *operands):
        (source,), sent, (target,), landed, *_ = (operands[group] for group in groups)
        (awaited,), moved = (landed, target) if arrival else (sent, source)
        return thread.wait(semaphore(awaited), _amount(moved), site)

    return run


@blocking("tpu.wait_dma2")
def wait_dma2(op, scope):
    """Operand groups: semaphore, source, target, device, core."""
    site = scope.site(op)

    def run(thread: Thread, awaited: View, source: View, target: View, *_):
        return thread.wait(semaphore(awaited), _amount(target), site)

    return run


@effect("tpu.sem_signal")
def sem_signal(op, scope):
    """Operand groups: semaphore, amount, device, core, subcore."""
    site, groups = scope.site(op), operand_groups(op)

    def run(thread: Thread, *operands):
        (signalled,), (amount,), *elsewhere = (operands[group] for group in groups)
        if any(elsewhere):
            raise Unsupported(f"{site} to another core")
        thread.signal(semaphore(signalled), amount, site)

    return run


@blocking("tpu.sem_wait")
def sem_wait(op, scope):
    site = scope.site(op)
    return lambda thread, awaited, amount: thread.wait(semaphore(awaited), amount, site)


# --- marks ----------------------------------------------------------------------------


@effect("tpu.trace_start", "tpu.trace_stop", "tpu.trace_value", "tpu.annotate", "tpu.log")
def nothing(op, scope):
    return lambda thread, *operands: None


@value("tpu.assume_multiple")
def first_operand(op, scope):
    return lambda operand, *_: operand
