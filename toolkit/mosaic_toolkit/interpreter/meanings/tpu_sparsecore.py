"""`tpu` operations of the SparseCore: registers, scans, sorting, scattered accesses."""

from __future__ import annotations

import numpy as np

from ...errors import Unsupported
from ..bounds import checked_slice, out_of_bounds
from ..element_types import is_float, unsigned
from ..machine import Thread
from ..meaning import effect, load, value
from ..memory import View, poison_value
from ..races import join
from ..tpu_buffers import counterpart, shared
from ..values import dtype_of_value, flag, vector_type, word
from .tpu_vector import as_type, combining

# --- registers ----------------------------------------------------------------------------


def _box(op, site, shape: tuple[int, ...], reference) -> list[int]:
    """Sizes of the part of a reference that a register holds."""
    rank = len(reference.type.shape)
    if not all(op.attributes["sublane_mask"]):
        raise Unsupported(f"{site} with a mask of sublanes")
    if "sublane_stride" in op.attributes and op.attributes["sublane_stride"].value != 1:
        raise Unsupported(f"{site} with a stride of sublanes")
    kept = list(shape)[-rank:] if rank else []
    return [1] * (rank - len(kept)) + kept


@load("tpu.load")
def load_register(op, scope):
    site = scope.site(op)
    shape, _ = vector_type(op.results[0].type)
    sizes = _box(op, site, shape, op.operands[0])

    def run(thread: Thread, view: View, *indices: int):
        box = checked_slice(thread, site, view, indices, sizes)
        return thread.load(box, site).reshape(shape)

    return run


@effect("tpu.store")
def store_register(op, scope):
    site = scope.site(op)
    shape, _ = vector_type(op.operands[0].type)
    sizes = _box(op, site, shape, op.operands[1])
    rank = len(sizes)
    adds = flag(op, "add")

    def run(thread: Thread, values, view: View, *operands):
        box = checked_slice(thread, site, view, operands[:rank], sizes)
        mask = operands[rank].reshape(box.shape) if len(operands) > rank else None
        values = values.reshape(box.shape)
        if adds:
            values = thread.load(box, site) + values
        thread.store(box, values, site, mask)

    return run


# --- scattered accesses ---------------------------------------------------------------------


def _cells(thread: Thread, site, view: View, indices, mask) -> View:
    """The enabled elements at vectors of indices, one per dimension."""
    where = [index if mask is None else index[mask] for index in indices]
    for dimension, (position, extent) in enumerate(zip(where, view.shape)):
        if position.size and (position.min() < 0 or position.max() >= extent):
            wrong = position[(position < 0) | (position >= extent)][0]
            raise out_of_bounds(
                thread,
                site,
                f"index {wrong} along dimension {dimension} of {view.buffer.name}, "
                f"which is {list(view.shape)}",
            )
    return view.at(tuple(where))


@load("tpu.vector_load_idx")
def vector_load_idx(op, scope):
    site = scope.site(op)
    shape, dtype = vector_type(op.results[0].type)
    rank = len(op.operands[0].type.shape)

    def run(thread: Thread, view: View, *operands):
        mask = operands[rank] if len(operands) > rank else None
        values = thread.load(_cells(thread, site, view, operands[:rank], mask), site)
        if mask is None:
            return values.reshape(shape)
        result = np.full(shape, poison_value(dtype, thread.machine.poison), dtype)
        result[mask] = values
        return result

    return run


@effect("tpu.vector_store_idx")
def vector_store_idx(op, scope):
    """Of equal indices the highest lane wins; added up, from the lowest lane to the highest."""
    site = scope.site(op)
    rank = len(op.operands[1].type.shape)
    adds = flag(op, "add")

    def run(thread: Thread, values, view: View, *operands):
        mask = operands[rank] if len(operands) > rank else None
        cells = _cells(thread, site, view, operands[:rank], mask)
        cells = cells.reshape((cells.size,))
        kept = (values if mask is None else values[mask]).reshape(-1)
        chosen = [(i if mask is None else i[mask]).reshape(-1) for i in operands[:rank]]
        order = np.atleast_1d(np.ravel_multi_index(chosen, view.shape))
        # The last of each place, so that the order in which memory is written is ours.
        found, last = np.unique(order[::-1], return_index=True)
        once = cells.at((len(order) - 1 - last,))
        if adds:
            total = thread.load(once, site)
            np.add.at(total, np.searchsorted(found, order), kept)
            thread.store(once, total, site)
        else:
            thread.store(once, kept[::-1][last], site)

    return run


@effect("tpu.fetch_and_add_sync")
def fetch_and_add(op, scope):
    """Atomic: orders every thread that adds after those that did before."""
    site = scope.site(op)
    rank = len(op.operands[0].type.shape)

    def run(thread: Thread, view: View, *operands: int):
        indices, amount, core = operands[:rank], operands[rank], operands[rank + 1]
        own = thread.place["core"]
        there = counterpart(thread, view, site, None, *own[:-1], core)
        cell = checked_slice(thread, site, there, indices, [1] * rank)
        clock: dict[int, int] = shared(
            thread.device, ("atomic", there.buffer.key, cell.layout()), dict
        )
        thread.learn(clock)
        before = int(thread.load(cell, site).reshape(()))
        thread.store(cell, np.asarray(before + amount).astype(np.int32), site)
        join(clock, thread.knows())
        thread.release()
        return before

    return run


# --- across lanes ---------------------------------------------------------------------------


@load("tpu.scan")
def scan(op, scope):
    """Running reduction; undefined before the first enabled element."""
    shape, dtype = vector_type(op.results[0].type)
    axis = int(op.attributes["dimension"].value) if "dimension" in op.attributes else len(shape) - 1
    source = dtype_of_value(op.operands[0])
    function, wide = combining(word(op.attributes["kind"]), dtype)
    masks = source == np.bool_

    def run(thread: Thread, a, mask=None):
        values = a.astype(dtype) if masks else a
        values = as_type(values, wide)
        if mask is not None:
            values = np.where(mask, values, _neutral(function, wide))
        total = as_type(function.accumulate(values, axis, dtype=wide), dtype)
        if mask is None:
            return total
        seen = np.logical_or.accumulate(mask, axis)
        return np.where(seen, total, poison_value(dtype, thread.machine.poison)).astype(dtype)

    return run


def _neutral(function: np.ufunc, dtype: np.dtype):
    if function is np.add:
        return dtype.type(0)
    if is_float(dtype):
        return dtype.type(-np.inf if function is np.maximum else np.inf)
    limits = np.iinfo(dtype)
    return dtype.type(limits.min if function is np.maximum else limits.max)


@value("tpu.scan_count")
def scan_count(op, scope):
    """(last occurrence of each counted value, how often each value occurred so far)."""

    def run(mask, values):
        flat, enabled = values.reshape(-1), mask.reshape(-1)
        same = (flat[:, None] == flat[None, :]) & enabled[:, None] & enabled[None, :]
        counts = np.where(enabled, np.tril(same).sum(1), 1)
        last = enabled & ~np.triu(same, 1).any(1)
        return last.reshape(mask.shape), counts.astype(np.int32).reshape(mask.shape)

    return run


@value("tpu.sort")
def sort(op, scope):
    """Stable, integers as unsigned; what the mask leaves out goes to the end."""
    descending = flag(op, "descending")

    def run(keys, values, mask=None):
        enabled = np.ones(keys.shape, np.bool_) if mask is None else mask
        comparable = keys if is_float(keys.dtype) else keys.view(unsigned(keys.dtype))
        ranks = np.unique(comparable, return_inverse=True)[1].reshape(keys.shape)
        ranks = -ranks if descending else ranks
        order = np.lexsort((ranks, ~enabled))
        valid = np.arange(keys.size) < np.count_nonzero(enabled)
        return valid, keys[order], values[order]

    return run


@value("tpu.shared_memref_slice")
def shared_memref_slice(op, scope):
    raise Unsupported(f"{scope.site(op)}: which subcore has which stripe is not modelled")
