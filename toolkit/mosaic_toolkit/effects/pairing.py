"""Pairs the two halves of asynchronous operations through what they share."""

from __future__ import annotations

import bisect
from collections.abc import Iterator
from typing import NamedTuple

from ..jax_compat import ir
from . import ModuleEffects
from .memory import Box, Resource, may_overlap, outside
from .operation import Channel

LOOPS = frozenset({"scf.for", "scf.while", "scf.parallel", "scf.forall"})
_BRANCHES = frozenset({"scf.if", "scf.index_switch"})
# Threads and cores share these; a group of operations belongs to one thread.
_SHARED_KINDS = frozenset({"dma", "semaphore", "barrier"})
# A wait is paired with this many signals before it and after it in each slot.
_WINDOW = 16
_MAX_SLOTS = 256


class Pair(NamedTuple):
    """Completing `start` is what `wait` waits for, as far as can be told.

    Attributes:
      start, wait: numbers of the operations in program order.
      kind: ``dma``, ``barrier``, ``semaphore`` or a group's name.
      resource: the semaphore or barrier.
      carried: the wait is in a later iteration of a loop around both.
      concurrent: they are in branches that different threads run.
    """

    start: int
    wait: int
    kind: str
    resource: Resource
    carried: bool
    concurrent: bool


class _Signals:
    """The signals on one resource, by slot."""

    def __init__(self):
        self.slots: dict[Box | None, list[int]] = {}

    def add(self, box: Box | None, number: int) -> None:
        if box not in self.slots and len(self.slots) >= _MAX_SLOTS:
            box = None
        self.slots.setdefault(box, []).append(number)

    def near(self, box: Box | None, number: int) -> Iterator[int]:
        for slot, numbers in self.slots.items():
            if may_overlap(slot, box):
                middle = bisect.bisect(numbers, number)
                yield from numbers[max(0, middle - _WINDOW) : middle + _WINDOW]


def pairs(effects: ModuleEffects, ops: list[ir.Operation]) -> Iterator[Pair]:
    """The pairs among `ops`, which are all of a module's operations in order."""
    signals: dict[tuple[str, Resource], _Signals] = {}
    waits: list[tuple[int, Channel]] = []
    for number, op in enumerate(ops):
        own = effects.own(op)
        for channel in own.signals:
            key = (channel.kind, channel.resource)
            signals.setdefault(key, _Signals()).add(outside(channel.box, -1), number)
        waits.extend((number, channel) for channel in own.waits)
    position = _Positions(effects)
    for wait, channel in waits:
        starts = dict.fromkeys(_starts(signals, channel, wait))
        for start in starts:
            relation = position.relation(ops[start], ops[wait], start < wait, channel.kind)
            if relation is not None:
                yield Pair(start, wait, channel.kind, channel.resource, *relation)


def _starts(signals: dict, channel: Channel, wait: int) -> Iterator[int]:
    box = outside(channel.box, -1)
    for (kind, resource), found in signals.items():
        if kind != channel.kind:
            continue
        if resource is channel.resource:
            yield from found.near(box, wait)
        elif resource.within(channel.resource) or channel.resource.within(resource):
            yield from found.near(None, wait)


class _Positions:
    """How the places of two operations relate."""

    def __init__(self, effects: ModuleEffects):
        self._effects = effects
        self._chains: dict[ir.Operation, list[tuple[ir.Operation, ir.Block]]] = {}

    def _chain(self, op: ir.Operation) -> list[tuple[ir.Operation, ir.Block]]:
        """The operations around `op`, outermost first, and the block of each that leads to it."""
        parent = op.parent
        if parent is None:
            return []
        parent = parent.operation
        # Operations side by side share their chain.
        block = op.block
        known = self._chains.get(parent)
        if known is None:
            known = self._chains[parent] = self._chain(parent)
        return [*known, (parent, block)]

    def relation(
        self, start: ir.Operation, wait: ir.Operation, forward: bool, kind: str
    ) -> tuple[bool, bool] | None:
        """(carried, concurrent), or None if the wait never follows the start."""
        repeated = False
        for (op, first), (_, second) in zip(self._chain(start), self._chain(wait)):
            repeated = repeated or _repeats(op)
            if first == second:
                continue
            if op.name in _BRANCHES:
                if kind in _SHARED_KINDS and self._effects.depends_on_thread(op.operands[0]):
                    return False, True
                return (True, False) if repeated else None
            break
        if forward:
            return False, False
        return (True, False) if repeated else None


def _repeats(op: ir.Operation) -> bool:
    if op.name in LOOPS:
        return True
    if op.name == "func.func" and "iteration_bounds" in op.attributes:
        return True
    return any(len(region.blocks) > 1 for region in op.regions)


def is_loop(op: ir.Operation) -> bool:
    """Whether a block of the operation's regions may run more than once."""
    return op.name in LOOPS
