"""What the lanes of a warpgroup have each for itself, where a thread of control is their first."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..errors import Unsupported
from ..jax_compat import ir
from .gpu_thread import WARP, GpuThread
from .meaning import MEANINGS, Constant

_LANE = "gpu.thread_id"
_ELECT = "nvvm.elect.sync"
# Whose results all lanes share, whatever they are given.
_UNIFORM = frozenset({"nvvm.shfl.sync"})
_PLACES = frozenset({"gpu.block_dim", "gpu.cluster_block_id", "gpu.cluster_dim_blocks"})


def _definition(value: ir.Value) -> ir.Operation | None:
    owner: Any = value.owner
    return None if isinstance(owner, ir.Block) else owner.operation


def varies(value: ir.Value) -> bool:
    """Whether the value depends on which lane of a warp has it."""
    op = _definition(value)
    if op is None or op.name in _UNIFORM:
        return False
    return op.name in (_LANE, _ELECT) or any(varies(operand) for operand in op.operands)


class _Lane:
    """A lane, for the operations that ask who they are."""

    def __init__(self, place: dict[str, Any]):
        self.place = place


def lanes_of(scope: Any, value: ir.Value) -> Callable[[GpuThread], list[Any]]:
    """The value in every lane of a thread: a function of constants and of who the lane is.

    Raises:
      Unsupported: it depends on anything else.
    """
    order: dict[ir.Operation, Any] = {}
    _collect(scope, value, order)

    def run(thread: GpuThread) -> list[Any]:
        first, *rest = thread.place["thread_id"]
        values = []
        for lane in range(thread.width):
            here = _Lane({**thread.place, "thread_id": (first + lane, *rest)})
            known: dict[ir.Value, Any] = {}
            for op, evaluate in order.items():
                known[op.results[0]] = evaluate(here, [known[o] for o in op.operands])
            values.append(known[value])
        return values

    held: dict[GpuThread, list[Any]] = {}

    def once(thread: GpuThread) -> list[Any]:
        if thread not in held:
            held.clear()
            held[thread] = run(thread)
        return held[thread]

    return once


def _collect(scope: Any, value: ir.Value, order: dict[ir.Operation, Any]) -> None:
    op = _definition(value)
    meaning = None if op is None else MEANINGS.get(op.name)
    if op is None or meaning is None:
        raise Unsupported("a lane's value that depends on more than its number")
    if op in order:
        return
    for operand in op.operands:
        _collect(scope, operand, order)
    if op.name == _ELECT:
        order[op] = lambda lane, operands: lane.place["thread_id"][0] % WARP == 0
        return
    if meaning.kind != "value" and op.name not in _PLACES | {_LANE}:
        raise Unsupported(f"a lane's value that depends on {scope.site(op)}")
    run = meaning.prepare(op, scope)
    if isinstance(run, Constant):
        order[op] = lambda lane, operands: run.value
    elif meaning.kind == "value":
        order[op] = lambda lane, operands: run(*operands)
    else:
        order[op] = lambda lane, operands: run(lane, *operands)
