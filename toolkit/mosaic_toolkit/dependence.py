"""The dependences between the operations of a module.

Order matters between two operations of one block for three reasons: one uses
what the other computes; both touch one buffer and one of them writes it; or one
starts what the other waits for.  The third follows from the second, because a
start, a wait and a signal each change the semaphore or barrier that they share.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from .effects import ArgumentNames, ModuleEffects
from .effects.frontier import Dependence, carried_dependences, dependences
from .effects.memory import Resource, conflict, outside
from .effects.pairing import LOOPS, Pair, pairs
from .jax_compat import ir
from .kernel import Kernel
from .ssa import producer


class Reason(NamedTuple):
    """Why two operations of one block must keep their order.

    Attributes:
      kind: ``data`` or ``memory``.
      hazard: ``RAW``, ``WAR`` or ``WAW``.
      resource: the buffer; None where a value is passed.
    """

    kind: str
    hazard: str
    resource: Resource | None

    def __str__(self) -> str:
        if self.resource is None:
            return "the second uses a result of the first"
        return f"{self.hazard} through '{self.resource.name}'"


class Dependences:
    """What must stay in order in one module.

    Valid as long as its `ModuleEffects` are: until an operation is made, erased
    or changed.
    """

    def __init__(self, module: ir.Module, kernel: Kernel):
        names = ArgumentNames(len(kernel.operands), kernel.aliases)
        self.effects = ModuleEffects(module, names)

    def memory(self, ops: list[ir.Operation]) -> Iterator[Dependence]:
        """Memory dependences among the operations of one block."""
        return dependences(self.effects.summary(op) for op in ops)

    def carried(self, loop: ir.Operation, ops: list[ir.Operation]) -> Iterator[Dependence]:
        """Memory dependences of a body's operations on the iteration before."""
        depth = self.effects.depth(loop)
        body = [
            tuple(a._replace(box=outside(a.box, depth)) for a in self.effects.summary(op))
            for op in ops
        ]
        return carried_dependences(body)

    def data(self, ops: list[ir.Operation]) -> Iterator[tuple[int, int]]:
        """(producer, user) among the operations of one block, users in regions included."""
        position = {op: n for n, op in enumerate(ops)}
        for n, op in enumerate(ops):
            found = {position.get(source, n) for source in producers(op)}
            found.discard(n)
            yield from ((source, n) for source in sorted(found))

    def pairs(self, ops: list[ir.Operation]) -> Iterator[Pair]:
        """Starts and waits that may belong together, given all operations in order."""
        return pairs(self.effects, ops)

    def reason(self, first: ir.Operation, second: ir.Operation) -> Reason | None:
        """Why `second`, which stands behind `first` in a block, must stay there."""
        if first in set(producers(second)):
            return Reason("data", "RAW", None)
        for a in self.effects.summary(first):
            for b in self.effects.summary(second):
                hazard = conflict(a, b)
                if hazard:
                    inner = a.resource if a.resource.within(b.resource) else b.resource
                    return Reason("memory", hazard, inner)
        return None


def producers(op: ir.Operation) -> Iterator[ir.Operation]:
    """The operations whose results `op` uses, itself or inside its regions."""
    for value in op.operands:
        source = producer(value)
        if source is not None:
            yield source
    for inner in nested(op):
        yield from producers(inner)


def nested(op: ir.Operation) -> Iterator[ir.Operation]:
    """The operations directly in the regions of `op`."""
    if len(op.regions):
        for block in blocks_of(op):
            yield from operations(block)


def blocks_of(op: ir.Operation) -> Iterator[ir.Block]:
    """The blocks of all regions of `op`."""
    for region in op.regions:
        yield from region.blocks


def operations(block: ir.Block) -> list[ir.Operation]:
    """The operations of a block, in order."""
    return [view.operation for view in block.operations]


def is_loop(op: ir.Operation) -> bool:
    """Whether the operation's regions may run more than once."""
    return op.name in LOOPS


def symbols_only(ops: Iterable[ir.Operation]) -> bool:
    """Whether a block holds definitions rather than statements."""
    return all("sym_name" in op.attributes for op in ops)
