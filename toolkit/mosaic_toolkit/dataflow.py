"""Which values of a kernel are data, and which only addresses, predicates and counters."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from .opnames import element
from .ssa import handed_in, producer

if TYPE_CHECKING:
    from .jax_compat import ir

# Regions that say how to combine two elements, part of the operation's own name.
COMBINERS = frozenset({"tt.reduce", "tt.scan", "gpu.all_reduce", "memref.generic_atomic_rmw"})

# Position of the value that is stored; the other operands are addresses and masks.
_STORES = {
    "vector.store": 0,
    "vector.maskedstore": 2,
    "vector.compressstore": 2,
    "vector.scatter": 3,
    "vector.transfer_write": 0,
    "memref.store": 0,
    "memref.atomic_rmw": 0,
    "tpu.store": 0,
    "tpu.vector_store": 0,
    "tpu.vector_store_idx": 0,
    "tpu.vector_compress_store": 0,
    "tpu.strided_store": 0,
    "tpu.shuffled_store": 0,
    "mosaic_gpu.vector_store": 0,
    "mosaic_gpu.async_store_tmem": 0,
    "mosaic_gpu.async_store_smem": 0,
    "tt.store": 1,
    "tt.atomic_rmw": 1,
    "tt.atomic_cas": 2,
    "tt.atomic_store": 1,
    "tt.descriptor_store": 1,
    "tt.descriptor_reduce": 1,
    "tt.descriptor_scatter": 3,
    "llvm.store": 0,
    "nvvm.tcgen05.st": 1,
}
_REFERENCE = re.compile(r"memref<|!llvm\.ptr|!tt\.ptr|!tt\.tensordesc|tensor<[\dx]*!tt\.ptr")
_LOADS = frozenset(
    {"vector.load", "vector.maskedload", "vector.gather", "vector.transfer_read", "memref.load"}
    | {
        "tpu.load",
        "tpu.vector_load",
        "tpu.vector_load_idx",
        "tpu.strided_load",
        "tpu.shuffled_load",
    }
    | {"mosaic_gpu.vector_load", "mosaic_gpu.async_load_tmem", "mosaic_gpu.multimem_load_reduce"}
    | {"tt.load", "tt.descriptor_load", "tt.descriptor_gather", "tt.atomic_load"}
    | {"llvm.load", "nvvm.ldmatrix", "nvvm.tcgen05.ld"}
)
_FILLS = frozenset(
    {"vector.broadcast", "tt.splat", "mosaic_gpu.broadcast_in_dim", "llvm.insertelement"}
)


def stored_values(op: ir.Operation) -> list[ir.Value]:
    """The values that a store puts into memory, as far as they are data.

    An integer stored into a private cell is a counter or a parity bit.
    """
    position = _STORES.get(op.name)
    if position is None or position >= len(op.operands):
        return []
    value = op.operands[position]
    if op.name == "memref.store" and not element(value.type).startswith(("f", "bf")):
        cell: ir.Value | None = op.operands[1]
        while cell is not None and producer(cell) is None:
            cell = handed_in(cell)
        cell_maker = None if cell is None else producer(cell)
        if cell_maker is not None and cell_maker.name == "memref.alloca":
            return []
    return [value]


def data_sources(value: ir.Value) -> list[ir.Value]:
    """The values that `value` is computed from, addresses and predicates left out."""
    if _REFERENCE.match(str(value.type)):
        return []
    owner = producer(value)
    if owner is None:
        return _argument_sources(value.owner, value.arg_number)
    if owner.name in _LOADS:
        return []
    if owner.name in _FILLS and _is_integer_scalar(owner.operands[0].type):
        return []
    number = value.result_number
    if owner.name == "scf.if" or owner.name == "scf.index_switch":
        return [terminator.operands[number] for terminator in _terminators(owner)]
    if owner.name == "scf.for":
        return [owner.operands[3 + number], _terminators(owner)[0].operands[number]]
    if owner.name == "scf.while":
        return [_terminators(owner)[0].operands[1 + number]]
    inner = [] if owner.name in COMBINERS else _terminators(owner)
    return [*owner.operands, *(v for terminator in inner for v in terminator.operands)]


def _argument_sources(block: ir.Block, number: int) -> list[ir.Value]:
    parent = block.owner.operation
    if parent.name == "scf.for" and number > 0:
        return [parent.operands[2 + number], _terminators(parent)[0].operands[number - 1]]
    if parent.name == "scf.while":
        condition, repeat = _terminators(parent)
        if block == parent.regions[0].blocks[0]:
            return [parent.operands[number], repeat.operands[number]]
        return [condition.operands[1 + number]]
    if parent.name == "mosaic_gpu.warp_map":
        return [parent.operands[number]]
    return []


def _terminators(op: ir.Operation) -> list[ir.Operation]:
    last = (list(b.operations)[-1:] for region in op.regions for b in list(region.blocks)[-1:])
    return [view.operation for views in last for view in views]


def _is_integer_scalar(type: ir.Type) -> bool:
    return re.fullmatch(r"i\d+|index", str(type)) is not None
