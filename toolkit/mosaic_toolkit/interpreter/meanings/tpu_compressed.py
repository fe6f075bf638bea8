"""Stores that leave out masked elements and loads that undo them, on the SparseCore."""

from __future__ import annotations

import numpy as np

from ...jax_compat import ir
from ..bounds import out_of_bounds
from ..machine import Thread
from ..meaning import effect, load
from ..memory import View, poison_value
from ..values import flag, vector_type


def is_sparse_core(op: ir.Operation) -> bool:
    """Whether the operation is in a function of a SparseCore."""
    while op.name != "func.func":
        if op.parent is None:
            return False
        op = op.parent.operation
    return "tpu.core_type" in op.attributes and "<sc_" in str(op.attributes["tpu.core_type"])


def _targets(thread: Thread, site, view: View, indices, mask: np.ndarray, axis: int) -> View:
    """Where the enabled elements of a vector lie: one after the other along `axis`.

    Args:
      mask: of the vector's shape, which has the rank of the reference.
    """
    places = np.nonzero(mask)
    ranks = (np.cumsum(mask, axis) - 1)[places]
    where = [i + (ranks if d == axis else p) for d, (i, p) in enumerate(zip(indices, places))]
    for dimension, (position, extent) in enumerate(zip(where, view.shape)):
        if position.size and (position.min() < 0 or position.max() >= extent):
            text = f"elements {position.min()} to {position.max()} along dimension {dimension}"
            raise out_of_bounds(
                thread, site, f"{text} of {view.buffer.name}, which is {list(view.shape)}"
            )
    return view.at(tuple(where))


def _full_rank(mask: np.ndarray, shape: tuple[int, ...], rank: int) -> np.ndarray:
    """A mask of lanes or elements as one of a vector of the reference's rank."""
    mask = mask.reshape(*mask.shape, *[1] * (len(shape) - mask.ndim))
    return np.broadcast_to(mask, shape).reshape((1,) * (rank - len(shape)) + shape)


def compressed_store(op, scope, axis: int):
    """Operands: the vector, the reference, its indices, the mask."""
    site = scope.site(op)
    shape, _ = vector_type(op.operands[0].type)
    rank = len(op.operands[1].type.shape)
    along = rank - len(shape) + axis
    adds = flag(op, "add")

    def run(thread: Thread, values: np.ndarray, view: View, *operands):
        mask = _full_rank(operands[rank], shape, rank)
        cells = _targets(thread, site, view, operands[:rank], mask, along)
        kept = values.reshape(mask.shape)[mask]
        if adds:
            kept = thread.load(cells, site) + kept
        thread.store(cells, kept, site)

    return run


def expanded_load(op, scope, axis: int):
    """Operands: the reference, its indices, the mask; undefined where that is off."""
    site = scope.site(op)
    shape, dtype = vector_type(op.results[0].type)
    rank = len(op.operands[0].type.shape)
    along = rank - len(shape) + axis

    def run(thread: Thread, view: View, *operands):
        mask = _full_rank(operands[rank], shape, rank)
        cells = _targets(thread, site, view, operands[:rank], mask, along)
        result = np.full(mask.shape, poison_value(dtype, thread.machine.poison), dtype)
        result[mask] = thread.load(cells, site)
        return result.reshape(shape)

    return run


@effect("tpu.compress_store_vreg")
def compress_store_vreg(op, scope):
    """Lanes are the first dimension of the register; subelements of one move together."""
    return compressed_store(op, scope, _lanes(op.operands[0]))


@load("tpu.expand_load_vreg")
def expand_load_vreg(op, scope):
    return expanded_load(op, scope, _lanes(op.results[0]))


def _lanes(register: ir.Value) -> int:
    return len(register.type.shape) - 1  # type: ignore[attr-defined]


@effect("tpu.vector_compress_store")
def vector_compress_store(op, scope):
    return compressed_store(op, scope, int(op.attributes["compress_dim"].value))


@load("tpu.vector_expand_load")
def vector_expand_load(op, scope):
    return expanded_load(op, scope, int(op.attributes["expand_dim"].value))
