"""Pairs the two halves of asynchronous operations through what they share."""

from __future__ import annotations

import bisect
from collections.abc import Iterator
from typing import NamedTuple

from ..jax_compat import ir
from . import ModuleEffects
from .memory import Box, Resource, may_overlap, outside

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


class _Event(NamedTuple):
    """A signal or a wait on one semaphore, barrier or group."""

    number: int
    signals: bool
    box: Box | None


class _Signals:
    """The signals on one resource, by slot."""

    def __init__(self, events: list[_Event]):
        self.slots: dict[Box | None, list[int]] = {}
        for event in events:
            if event.signals:
                box = outside(event.box, 0)
                if box not in self.slots and len(self.slots) >= _MAX_SLOTS:
                    box = None
                self.slots.setdefault(box, []).append(event.number)

    def near(self, box: Box | None, number: int) -> Iterator[int]:
        """Signals that a wait on `box` may wait for."""
        for slot, numbers in self.slots.items():
            if may_overlap(slot, box):
                middle = bisect.bisect(numbers, number)
                yield from numbers[max(0, middle - _WINDOW) : middle + _WINDOW]


def pairs(effects: ModuleEffects, ops: list[ir.Operation]) -> Iterator[Pair]:
    """The pairs among `ops`, which are all of a module's operations in order."""
    events: dict[tuple[str, Resource], list[_Event]] = {}
    for number, op in enumerate(ops):
        own = effects.own(op)
        for signals, channels in ((True, own.signals), (False, own.waits)):
            for channel in channels:
                key = (channel.kind, channel.resource)
                events.setdefault(key, []).append(_Event(number, signals, channel.box))
    position = _Positions(effects)
    for (kind, resource), start, wait in dict.fromkeys(_candidates(events, ops)):
        relation = position.relation(ops[start], ops[wait], start < wait, kind)
        if relation is not None:
            yield Pair(start, wait, kind, resource, *relation)


def _candidates(
    events: dict[tuple[str, Resource], list[_Event]], ops: list[ir.Operation]
) -> Iterator[tuple[tuple[str, Resource], int, int]]:
    """Signals and waits on what may be the same semaphore, barrier or group."""
    signals = {key: _Signals(found) for key, found in events.items()}
    for key, found in events.items():
        kind, resource = key
        unknown = [k for k in signals if k != key and k[0] == kind and _related(k[1], resource)]
        matched = {} if unknown or kind != "dma" else _matched(found, ops)
        for event in found:
            if event.signals:
                continue
            starts = matched.get(event.number)
            if starts is None:
                starts = signals[key].near(outside(event.box, 0), event.number)
            yield from ((key, start, event.number) for start in starts)
            for other in unknown:
                near = signals[other].near(None, event.number)
                yield from ((key, start, event.number) for start in near)


def _related(a: Resource, b: Resource) -> bool:
    return a.within(b) or b.within(a)


def _matched(events: list[_Event], ops: list[ir.Operation]) -> dict[int, list[int]]:
    """The copies that each wait may complete, where counting them is enough.

    That is where all events on one slot are in one block: once there were as
    many waits as copies, all of these are complete.
    """
    slots: dict[Box | None, list[_Event]] = {}
    for event in events:
        slots.setdefault(event.box, []).append(event)
    result: dict[int, list[int]] = {}
    if len(slots) > _MAX_SLOTS:
        return result
    for box, own in slots.items():
        if box is None or None in box.spans:
            continue
        # A slot chosen in a loop is another one in the next iteration.
        anywhere = outside(box, 0)
        if any(other != box and may_overlap(outside(other, 0), anywhere) for other in slots):
            continue
        if all(ops[e.number].block == ops[own[0].number].block for e in own):
            result.update(_counted(own))
    return result


def _counted(events: list[_Event]) -> dict[int, list[int]]:
    """Per wait the copies under way; {} if a wait or a copy has no partner in the block."""
    result: dict[int, list[int]] = {}
    under_way: list[int] = []
    waited = 0
    for event in events:
        if event.signals:
            under_way.append(event.number)
            continue
        if not under_way:
            return {}
        result[event.number] = under_way[-_WINDOW:]
        waited += 1
        if waited >= len(under_way):
            under_way, waited = [], 0
    return {} if under_way else result


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
