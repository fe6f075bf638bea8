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
    steps: list[_Step] = []
    _collect(scope, value, steps, {})
    held: dict[tuple, list[Any]] = {}

    def run(thread: GpuThread) -> list[Any]:
        place = thread.place
        key = (place["thread_id"], place["cluster_block_id"])
        if key not in held:
            first, *rest = place["thread_id"]
            lanes = ({**place, "thread_id": (first + n, *rest)} for n in range(thread.width))
            held[key] = [_evaluate(steps, _Lane(lane)) for lane in lanes]
        return held[key]

    return run


# A function of the lane and of the values of its operands, and which steps those are.
type _Step = tuple[Callable[..., Any], list[int]]


def _evaluate(steps: list[_Step], lane: _Lane) -> Any:
    known: list[Any] = []
    for function, operands in steps:
        known.append(function(lane, *(known[n] for n in operands)))
    return known[-1]


def _collect(scope: Any, value: ir.Value, steps: list[_Step], found: dict[ir.Value, int]) -> int:
    """Adds the steps to compute the value; returns the number of the last."""
    if value in found:
        return found[value]
    op = _definition(value)
    if op is None or op.name not in MEANINGS or len(op.results) != 1:
        raise Unsupported("a lane's value that depends on more than its number")
    operands = [_collect(scope, operand, steps, found) for operand in op.operands]
    steps.append((_step(scope, op), operands))
    found[value] = len(steps) - 1
    return found[value]


def _step(scope: Any, op: ir.Operation) -> Callable[..., Any]:
    meaning = MEANINGS[op.name]
    if op.name == _ELECT:
        return lambda lane: lane.place["thread_id"][0] % WARP == 0
    if meaning.kind != "value" and op.name not in _PLACES | {_LANE}:
        raise Unsupported(f"a lane's value that depends on {scope.site(op)}")
    run = meaning.prepare(op, scope)
    if isinstance(run, Constant):
        return lambda lane: run.value
    return (lambda lane, *operands: run(*operands)) if meaning.kind == "value" else run
