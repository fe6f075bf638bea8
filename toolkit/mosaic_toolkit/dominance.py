"""Which operations are surely executed before others, by where they stand."""

from __future__ import annotations

from .jax_compat import ir
from .ssa import producer


def ancestor_in(op: ir.Operation, block: ir.Block) -> ir.Operation | None:
    """The operation of `block` that is or contains `op`."""
    node: ir.Operation | None = op
    while node is not None and node.parent is not None:
        if node.block == block:
            return node
        node = node.parent.operation
    return None


def dominates(value: ir.Value, at: ir.Operation, *, inclusive: bool = False) -> bool:
    """Whether `value` is surely defined before `at`, or by it, here or in a block around."""
    source = producer(value)
    if source is None:
        return ancestor_in(at, value.owner) is not None
    return precedes(source, at, inclusive=inclusive)


def precedes(first: ir.Operation, second: ir.Operation, *, inclusive: bool = False) -> bool:
    """Whether `second` stands behind `first`, or in the regions of what does."""
    around = ancestor_in(second, first.block)
    if around is None:
        return False
    return inclusive if around == first else first.is_before_in_block(around)


def isolated(op: ir.Operation) -> ir.Operation:
    """The innermost operation around `op` whose regions use no value from outside."""
    node = op.parent.operation
    while node.parent is not None and not node.has_trait(ir.IsIsolatedFromAboveTrait):
        node = node.parent.operation
    return node
