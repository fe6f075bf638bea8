"""How much on-chip memory Mosaic TPU gives a kernel's buffers.

The rules were read off what libtpu 0.0.52 reports of TensorCore kernels compiled (its
list of allocations) for v4, v5e, v5p, v6e and tpu7x; `tests/corpus/budget.py` holds them
against every kernel of the corpus.
"""

from __future__ import annotations

import json
import math

from ..jax_compat import ir
from ..ssa import producer
from . import storage

_LANES = 128
_SUBLANES = 8
_WORD_BITS = 32
_ALLOCATIONS = frozenset({"memref.alloca", "memref.alloc", "tpu.internal_scratch"})
# XLA's number for VMEM.
_VMEM = 1


def tiled_size(type: ir.Type, *, whole_bytes: bool = False) -> int | None:
    """Bytes of a memref as the compiler lays it out in VMEM or SMEM.

    Elements narrower than a word are packed into one along the sublanes.  A row is
    padded to 128 lanes, the last but one dimension to a tile of 8 rows or, where it
    has fewer, to the next power of two that fills a word; an array of one dimension
    to the elements of 128 words.

    Args:
      type: a memref.
      whole_bytes: whether elements narrower than a byte take one, as in scratch operands.

    Returns:
      None where a dimension or the element's size is unknown.
    """
    bits = storage.element_bits(type.element_type)
    shape = [dim for dim in storage.shape_of(type) if dim is not None]
    if bits is None or _WORD_BITS % bits or len(shape) < type.rank:
        return None
    packing = _WORD_BITS // bits
    *outer, rows, lanes = (1, 1, *shape) if len(shape) < 2 else shape
    if len(shape) < 2:
        elements = _round_up(lanes, _LANES * packing)
    else:
        elements = math.prod(outer) * _round_up(rows, _rows(rows, packing))
        elements *= _round_up(lanes, _LANES)
    return elements * (max(bits, 8) if whole_bytes else bits) // 8


def _rows(rows: int, packing: int) -> int:
    """Rows of one tile."""
    tile = packing
    while tile < min(rows, _SUBLANES):
        tile *= 2
    return tile


def _round_up(value: int, step: int) -> int:
    return -(-value // step) * step


def moves(transform: ir.Operation, bounds: list[int | None]) -> bool:
    """Whether a window's block changes from step to step; the compiler gives one that stays 1 slot.

    Args:
      transform: the function that gives the block's index.
      bounds: of the grid; an index below a bound of 1 is always 0.
    """
    if all(bound == 1 for bound in bounds):
        return False
    block = transform.regions[0].blocks[0]
    pending, seen = list(list(block.operations)[-1].operands), set()
    while pending:
        value = pending.pop()
        if value in seen:
            continue
        seen.add(value)
        op = producer(value)
        if op is not None:
            if len(op.regions):
                return True
            pending += op.operands
        elif ir.BlockArgument(value).arg_number >= len(bounds):
            return True  # read from a scalar prefetch operand
        elif bounds[ir.BlockArgument(value).arg_number] != 1:
            return True
    return False


def overlaid(block: ir.Block) -> set[ir.Value]:
    """Allocations that are not alive when most memory is in use.

    Memory of a region's own allocations is free again at its end, so regions that
    follow each other share it.
    """
    every: set[ir.Value] = set()
    _, alive = _peak(block, every)
    return every - alive


def _peak(block: ir.Block, every: set[ir.Value]) -> tuple[int, set[ir.Value]]:
    own, size = set(), 0
    most: tuple[int, set[ir.Value]] = (0, set())
    for view in block.operations:
        op = view.operation
        if op.name in _ALLOCATIONS:
            own.add(op.results[0])
            size += tiled_size(op.results[0].type) or 0
        for region in op.regions:
            for child in region.blocks:
                most = max(most, _peak(child, every), key=lambda found: found[0])
    every |= own
    return size + most[0], own | most[1]


def limits(config: str) -> tuple[tuple[str, int], ...]:
    """(memory, bytes) that the kernel's ``vmem_limit_bytes`` asks for.

    Args:
      config: the custom call's configuration, JSON.

    Raises:
      ValueError: it is not JSON.
    """
    asked = json.loads(config).get("scoped_memory_configs", ())
    return tuple(("vmem", int(m["size"])) for m in asked if m["memory_space"] == _VMEM)
