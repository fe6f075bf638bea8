"""Where an SSA value comes from."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .jax_compat import ir


def producer(value: ir.Value) -> ir.Operation | None:
    """The operation that a value is a result of, None for a block argument."""
    owner = value.owner
    # The bindings answer with a subclass of OpView, whose `name` may be the
    # symbol's name; and with a Block, which has no `operation`.
    return getattr(owner, "operation", None)


def handed_in(argument: ir.Value) -> ir.Value | None:
    """What a region's argument stands for at first: an operand of the operation around it."""
    parent = argument.owner.owner.operation
    if parent.name == "mosaic_gpu.warp_map":
        return parent.operands[argument.arg_number]
    if parent.name == "scf.for" and argument.arg_number > 0:
        return parent.operands[2 + argument.arg_number]
    return None
