"""Where a value comes from when it is passed between regions or chosen."""

from __future__ import annotations

from ..jax_compat import ir
from ..ssa import producer

_YIELDING = frozenset(
    {
        "scf.if",
        "scf.index_switch",
        "scf.execute_region",
        "tpu.region",
        "tpu.trace",
        "memref.alloca_scope",
    }
)
_CALLED_WITH_OPERANDS = frozenset({"mosaic_gpu.custom_primitive", "mosaic_gpu.warp_map"})


def sources_of(value: ir.Value) -> list[ir.Value]:
    """The values that `value` may equal; empty if it is computed where it is defined."""
    op = producer(value)
    if op is None:
        return _argument_sources(value, value.owner)
    name = op.name
    if name == "arith.select":
        return list(op.operands)[1:]
    if name == "mosaic_gpu.optimization_barrier":
        return [op.operands[value.result_number]]
    if name in _YIELDING:
        return _all_yielded(op, value.result_number)
    if name == "scf.for":
        number = value.result_number
        return [op.operands[3 + number], _yielded(op.regions[0], number)]
    if name == "scf.while":
        return [_yielded(op.regions[0], value.result_number + 1)]
    return []


def _argument_sources(value: ir.Value, block: ir.Block) -> list[ir.Value]:
    op = block.owner.operation
    number = value.arg_number
    if op.name in _CALLED_WITH_OPERANDS:
        return [op.operands[number]]
    if op.name == "scf.for" and number > 0:
        return [op.operands[2 + number], _yielded(op.regions[0], number - 1)]
    if op.name == "scf.while":
        before, after = op.regions
        if block == before.blocks[0]:
            return [op.operands[number], _yielded(after, number)]
        return [_yielded(before, number + 1)]
    return []


def _all_yielded(op: ir.Operation, number: int) -> list[ir.Value]:
    regions = list(op.regions)
    if any(len(region.blocks) != 1 for region in regions):
        return []
    return [_yielded(region, number) for region in regions]


def _yielded(region: ir.Region, number: int) -> ir.Value:
    *_, last = region.blocks[0].operations
    return last.operation.operands[number]
