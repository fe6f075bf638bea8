"""Puts the operations of one block into another order."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from typing import Any

from .dependence import Dependences
from .jax_compat import ir


def orders(dependences: Dependences, ops: list[ir.Operation]) -> set[tuple[int, int]]:
    """The (before, after) positions that a new order of `ops` must keep."""
    found = set(dependences.data(ops))
    found.update((d.source, d.target) for d in dependences.memory(ops))
    return found


def linearise(
    ops: list[ir.Operation], edges: set[tuple[int, int]], key: Callable[[ir.Operation], Any]
) -> list[int]:
    """A topological order of the positions, lowest key first."""
    missing = [0] * len(ops)
    onward: list[list[int]] = [[] for _ in ops]
    for source, target in edges:
        onward[source].append(target)
        missing[target] += 1
    keys = [key(op) for op in ops]
    ready = [(keys[n], n) for n in range(len(ops)) if not missing[n]]
    heapq.heapify(ready)
    order = []
    while ready:
        _, n = heapq.heappop(ready)
        order.append(n)
        for target in onward[n]:
            missing[target] -= 1
            if not missing[target]:
                heapq.heappush(ready, (keys[target], target))
    return order


def arrange(ops: list[ir.Operation], order: list[int], last: list[ir.Operation]) -> None:
    """Moves `ops`, all of a block but its terminator `last`, into `order`."""
    if last:
        for n in order:
            ops[n].move_before(last[0])
        return
    previous = ops[-1]
    for n in order:
        if ops[n] != previous:
            ops[n].move_after(previous)
            previous = ops[n]
