"""Raises a Triton module to a `Schedule`: what Triton is told; the rest it decides itself."""

from __future__ import annotations

import re

from .. import algebra
from ..jax_compat import ir
from ..kernel import ArrayType, Kernel
from ..locations import argument_name
from ..schedule import Buffer, GridDimension, Schedule, Unread
from . import storage
from .expressions import Expressions
from .nest import as_loop, walk

_WARP = 32
_DECIDED_LATER = "Triton's compiler decides it below this level"


def raise_schedule(kernel: Kernel, module: ir.Module) -> Schedule:
    """The schedule that the module and the custom call state."""
    warps, stages = _option(kernel, "num_warps"), _option(kernel, "num_stages")
    functions = [op.operation for op in module.body.operations if op.operation.name == "tt.func"]
    unread = [
        Unread(what, _DECIDED_LATER)
        for what in ("shared memory", "copies", "semaphores", "waits", "registers")
    ]
    unread += [
        Unread(what, "the custom call's configuration does not state it")
        for what, number in (("number of warps", warps), ("pipeline depth", stages))
        if number is None
    ]
    entry = next(iter(functions), None)
    if entry is None:
        unread.append(Unread("the kernel", "the module has no tt.func"))
    buffers = [] if entry is None else _operands(kernel, entry, unread)
    return Schedule(
        kernel=kernel.name,
        backend=kernel.backend,
        target=kernel.target,
        grid=tuple(GridDimension(bound, "parallel") for bound in kernel.grid),
        threads=() if warps is None else (_WARP * warps, 1, 1),
        stages=stages,
        buffers=tuple(buffers),
        loops=() if entry is None else _loops(entry),
        algebra=algebra.summarise(module.operation),
        unread=tuple(unread),
    )


def _option(kernel: Kernel, name: str) -> int | None:
    for _, text in kernel.attributes:
        match = re.search(rf"\b{name} = (\d+)", text)
        if match:
            return int(match[1])
    return None


def _operands(kernel: Kernel, entry: ir.Operation, unread: list[Unread]) -> list[Buffer]:
    """Pointers have no shapes: those are the custom call's operands and results, in order."""
    arguments = entry.regions[0].blocks[0].arguments
    arrays: list[ArrayType] = [*kernel.operands, *kernel.results]
    if len(arrays) != len(arguments):
        why = f"{len(arguments)} pointers are not the custom call's {len(arrays)} operands and results"
        unread.append(Unread("operands", why))
        return []
    buffers = []
    for number, (argument, array) in enumerate(zip(arguments, arrays)):
        match = re.fullmatch(r"!tt\.ptr<(\w+)(, \d+)?>", str(argument.type))
        dtype = match[1] if match else str(argument.type)
        element = ir.Type.parse(dtype, context=argument.type.context) if match else argument.type
        name = argument_name(argument, f"arg{number}")
        size = storage.size(array.shape, element)
        buffers.append(Buffer(name, "operand", array.shape, dtype, "hbm", size))
    return buffers


def _loops(entry: ir.Operation):
    expressions = Expressions()
    placed = walk(entry.regions[0].blocks[0], expressions)
    loops = (as_loop(op, place, expressions) for op, place in placed)
    return tuple(loop for loop in loops if loop is not None)
