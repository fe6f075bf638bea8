"""Locations that custom assembly leaves out.

A loop is printed without its block arguments' locations and without a ``yield``
of nothing; parsed back, both get the loop's location.  JAX gives them another
one where it lowers a loop inside another call's (SparseCore loops), and
serialises that; so those few locations are kept apart.
"""

from __future__ import annotations

from typing import Any

from . import ir

type Implied = ir.Operation | ir.BlockArgument


def of_module(module: ir.Module) -> dict[str, Any]:
    """Left-out locations that differ from the loop's, for `restore`."""
    pairs = _implied(module)
    differing = {
        str(number): str(implied.location)
        for number, (loop, implied) in enumerate(pairs)
        if implied.location != loop.location
    }
    return {"count": len(pairs), "locations": differing} if differing else {}


def restore(module: ir.Module, kept: dict[str, Any]) -> None:
    """Gives back the locations that `of_module` found, unless the loops are others by now."""
    if not kept:
        return
    pairs = _implied(module)
    if len(pairs) != kept["count"]:
        return
    for number, text in kept["locations"].items():
        location = ir.Module.parse(f"module {{}} {text}").operation.location
        _, implied = pairs[int(number)]
        if isinstance(implied, ir.BlockArgument):
            implied.set_location(location)
        else:
            implied.location = location


def _implied(module: ir.Module) -> list[tuple[ir.Operation, Implied]]:
    """(loop, block argument or terminator) of every `scf` region, in program order."""
    pairs: list[tuple[ir.Operation, Implied]] = []

    def visit(op: ir.Operation) -> ir.WalkResult:
        if op.name.startswith("scf."):
            for region in op.regions:
                for block in region:
                    pairs.extend((op, argument) for argument in block.arguments)
                    *_, last = block.operations
                    if not len(last.operands):
                        pairs.append((op, last.operation))
        return ir.WalkResult.ADVANCE

    module.operation.walk(visit, ir.WalkOrder.PRE_ORDER)
    return pairs
