"""`Graph`: the rewritable dependence graph of one kernel."""

from __future__ import annotations

import contextlib
import itertools
import os
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from . import graph_nodes
from .dependence import Dependences, Reason, blocks_of, operations, symbols_only
from .dominance import dominates, isolated, precedes
from .effects.memory import WRITE, conflict, covers
from .errors import Refused, first_error
from .jax_compat import ir
from .kernel import Kernel
from .linearise import arrange, linearise, orders
from .locations import source_line
from .ssa import producer

if TYPE_CHECKING:
    import networkx


class Graph:
    """The operations of one kernel and what must stay in order between them.

    The MLIR module is the only truth; everything else is derived from it and
    dropped when it changes.  A mutation that would break a dependence is refused
    and changes nothing.

    Attributes:
      module: the live module, a clone of the kernel's.
    """

    def __init__(self, kernel: Kernel):
        """Parses a module of its own; the kernel never changes.

        Raises:
          InvalidModule: the kernel's module does not parse or verify.
        """
        self._kernel = kernel
        self.module = kernel.module()
        self._dependences: Dependences | None = None
        self._ops: list[ir.Operation] | None = None
        self._numbers: dict[ir.Operation, int] = {}
        # Operations made through `inserting_before`.
        self._made: set[ir.Operation] = set()
        self._nx: networkx.MultiDiGraph | None = None

    @property
    def context(self) -> ir.Context:
        """The module's MLIR context."""
        return self.module.context

    def kernel(self) -> Kernel:
        """The kernel with the module as it is now.

        Raises:
          InvalidModule: the module does not verify.
        """
        return self._kernel.with_module(self.module)

    # --- looking ------------------------------------------------------------------

    @property
    def nx(self) -> networkx.MultiDiGraph:
        """The dependence graph, a view that is dropped when the module changes.

        Nodes are numbers in program order.  Node attributes: ``op``, ``label``,
        ``line`` (innermost Python line, or ""), ``block`` (parent's number,
        region, block), ``results`` (types).  Edge attributes: ``kind`` (``data``,
        ``region``, ``memory``, ``async``), ``detail`` (``RAW``, ``WAR``, ``WAW``, or
        what pairs the two halves, such as ``dma``), ``buffer``, ``carried`` (from
        one iteration to a later one), ``concurrent`` (between threads).  Without
        carried and concurrent edges the graph is acyclic.
        """
        if self._nx is None:
            self._nx = graph_nodes.build(self._program(), self.dependences)
        return self._nx

    @property
    def dependences(self) -> Dependences:
        """What the edges are computed from."""
        if self._dependences is None:
            self._dependences = Dependences(self.module, self._kernel)
        return self._dependences

    def op(self, node: int) -> ir.Operation:
        """The operation of a node of `nx`."""
        return self._program()[node]

    def node(self, op: ir.Operation | ir.OpView) -> int:
        """The node of an operation.

        Raises:
          KeyError: the operation is not in the module.
        """
        self._program()
        return self._numbers[op.operation]

    def ops(self, name: str | None = None) -> Iterator[ir.Operation]:
        """The module's operations in program order, or those of one name."""
        for op in list(self._program()):
            if name is None or op.name == name:
                yield op

    def _program(self) -> list[ir.Operation]:
        if self._ops is None:
            found: list[ir.Operation] = []

            def visit(op: ir.Operation) -> ir.WalkResult:
                found.append(op)
                return ir.WalkResult.ADVANCE

            self.module.operation.walk(visit, ir.WalkOrder.PRE_ORDER)
            self._ops = found
            self._numbers = {op: number for number, op in enumerate(found)}
        return self._ops

    def _reordered(self) -> None:
        """Operations changed places within blocks: effects stay as they are."""
        self._ops = None
        self._nx = None

    def _changed(self) -> None:
        self._reordered()
        self._dependences = None

    # --- moving -------------------------------------------------------------------

    def move_before(self, op: ir.Operation | ir.OpView, anchor: ir.Operation | ir.OpView) -> None:
        """Moves `op` to stand directly before `anchor`.

        Only an operation without effects can move to another block.

        Raises:
          Refused: the move would break a dependence.
        """
        op, anchor = op.operation, anchor.operation
        self._move(op.move_before, op, anchor, "before")

    def move_after(self, op: ir.Operation | ir.OpView, anchor: ir.Operation | ir.OpView) -> None:
        """Moves `op` to stand directly after `anchor`; otherwise as `move_before`."""
        op, anchor = op.operation, anchor.operation
        self._move(op.move_after, op, anchor, "after")

    def _move(
        self,
        move: Callable[[ir.Operation], None],
        op: ir.Operation,
        anchor: ir.Operation,
        side: str,
    ) -> None:
        self._check_move(op, anchor, side)
        crossed = op.block != anchor.block
        move(anchor)
        # The nesting depth of values is part of what is known of indices.
        self._changed() if crossed else self._reordered()

    def _check_move(self, op: ir.Operation, anchor: ir.Operation, side: str) -> None:
        what = f"cannot move {_name(op)} {side} {_name(anchor)}"
        if _is_terminator(op) or (side == "after" and _is_terminator(anchor)):
            raise Refused(f"{what}: a terminator stays last in its block")
        if op.parent is None or anchor.parent is None:
            raise Refused(f"{what}: the module itself cannot be moved around")
        if op.block != anchor.block:
            self._check_other_block(op, anchor, side, what)
        elif op != anchor:
            self._check_same_block(op, anchor, side, what)

    def _check_same_block(
        self, op: ir.Operation, anchor: ir.Operation, side: str, what: str
    ) -> None:
        upward = anchor.is_before_in_block(op)
        for other in _passed(op, anchor, upward, side):
            first, second = (other, op) if upward else (op, other)
            reason = self.dependences.reason(first, second)
            if reason is not None:
                raise _broken(what, first, second, reason)

    def _check_other_block(
        self, op: ir.Operation, anchor: ir.Operation, side: str, what: str
    ) -> None:
        if not self.dependences.effects.is_movable_between_blocks(op):
            raise Refused(
                f"{what}: they are in different blocks, and only an operation that has no"
                " effects, no regions and cannot trap may run more or less often",
                hint="move it within its block",
            )
        if isolated(op) != isolated(anchor):
            raise Refused(f"{what}: no value passes between the functions that they are in")
        behind = side == "after"
        for value in op.operands:
            if not dominates(value, anchor, inclusive=behind):
                source = producer(value) or value.owner.owner.operation
                raise _broken(what, source, op, _DATA)
        for result in op.results:
            for use in result.uses:
                user = use.owner.operation
                if not precedes(anchor, user, inclusive=not behind):
                    raise _broken(what, op, user, _DATA)

    # --- changing -----------------------------------------------------------------

    def erase(self, op: ir.Operation | ir.OpView) -> None:
        """Removes an operation on which nothing depends.

        Raises:
          Refused: its results are used, or something may depend on its effects.
        """
        op = op.operation
        what = f"cannot erase {_name(op)}"
        for result in op.results:
            for use in result.uses:
                raise _broken(what, op, use.owner.operation, _DATA)
        self._check_unobserved(op, what)
        self._erase(op)

    def _erase(self, op: ir.Operation) -> None:
        self._made.difference_update(_inside(op))  # an erased operation cannot be asked for again
        op.erase()
        self._changed()

    def replace(self, op: ir.Operation | ir.OpView, values: ir.Value | Sequence[ir.Value]) -> None:
        """Lets `values` stand for the results of `op`, which is then erased.

        An operation with effects can be replaced if operations that were made
        directly before it have at least the same effects, and so take over its
        place among the dependences.

        Raises:
          Refused: a value has another type or is not defined there, or something
            may depend on the effects of `op`.
        """
        op = op.operation
        new = [values] if isinstance(values, ir.Value) else list(values)
        what = f"cannot replace {_name(op)}"
        if [v.type for v in new] != [r.type for r in op.results]:
            wanted = ", ".join(str(r.type) for r in op.results)
            given = ", ".join(str(v.type) for v in new)
            raise Refused(f"{what}: it has results ({wanted}), the values are ({given})")
        for value in new:
            if not dominates(value, op):
                raise Refused(f"{what}: {value} is not defined before it")
        if not self._taken_over(op):
            self._check_unobserved(op, what)
        for result, value in zip(op.results, new):
            result.replace_all_uses_with(value)
        op.erase()
        self._changed()

    def _taken_over(self, op: ir.Operation) -> bool:
        """Whether operations made directly before `op` touch all that it touches."""
        effects = self.dependences.effects
        ops = operations(op.block)
        made = itertools.takewhile(self._made.__contains__, reversed(ops[: ops.index(op)]))
        new = [access for other in made for access in effects.summary(other)]
        return bool(new) and all(
            any(
                b.resource is a.resource and covers(b.box, a.box) and b.mode & a.mode == a.mode
                for b in new
            )
            for a in effects.summary(op)
        )

    def _check_unobserved(self, op: ir.Operation, what: str) -> None:
        """Refuses if anything may notice that the effects of `op` are gone."""
        if _is_terminator(op) or op.parent is None:
            raise Refused(f"{what}: a block needs its terminator")
        if "sym_name" in op.attributes:
            raise Refused(f"{what}: it defines '{op.attributes['sym_name'].value}'")
        effects = self.dependences.effects
        written = [a for a in effects.summary(op) if a.mode & WRITE]
        for access in written:
            if not access.resource.local:
                raise Refused(
                    f"{what}: it may change '{access.resource.name}', which outlives the kernel"
                    " or is seen by others",
                )
        if not written:
            return
        own = set(_inside(op))
        for other in self._program():
            if other in own or len(other.regions):
                continue
            for a in written:
                for b in effects.own(other).accesses:
                    if conflict(a, b) == "RAW":
                        raise _broken(what, op, other, Reason("memory", "RAW", a.resource))

    def set_attribute(
        self, op: ir.Operation | ir.OpView, name: str, attribute: ir.Attribute
    ) -> None:
        """Sets one attribute of an operation.

        Raises:
          Refused: the operation no longer verifies, or touches other memory.
        """
        op = op.operation
        what = f"cannot set '{name}' of {_name(op)} to {attribute}"
        before = self._footprint(op)
        had = name in op.attributes
        old = op.attributes[name] if had else attribute
        op.attributes[name] = attribute
        self._changed()
        try:
            op.verify()
            problem = None
        except ir.MLIRError as error:
            problem = first_error(str(error))
        if problem is None and self._footprint(op) != before:
            problem = "it would touch other memory than before, under the same dependences"
        if problem is not None:
            if had:
                op.attributes[name] = old
            else:
                del op.attributes[name]
            self._changed()
            raise Refused(f"{what}: {problem}")

    def _footprint(self, op: ir.Operation) -> list[Any]:
        """Buffers and boxes that the operation and what uses its results touch or refer to."""
        effects = self.dependences.effects
        found: list[Any] = []
        for reached in _reached(op):
            found += [(a.resource.name, a.box, a.mode) for a in effects.summary(reached)]
            for result in reached.results:
                if effects.buffers.memory_type(result) is not None:
                    places = effects.buffers.places(result)
                    found += [(p.resource.name, p.box, p.dims) for p in places]
        return found

    @contextlib.contextmanager
    def inserting_before(self, op: ir.Operation | ir.OpView) -> Iterator[ir.InsertionPoint]:
        """Context and location for MLIR's builders, which then insert before `op`."""
        op = op.operation
        there = set(operations(op.block))
        point = ir.InsertionPoint(op)
        try:
            with self.context, op.location, point:
                yield point
        finally:
            self._made.update(new for new in operations(op.block) if new not in there)
            self._changed()

    @contextlib.contextmanager
    def restructuring(self) -> Iterator[ir.Module]:
        """The live module, for a rewrite that changes the loops or threads around operations.

        What is done in the block is not held against the dependences that were there
        before: such a pass has checks of its own, and `verify` judges what it made.
        """
        try:
            with self.context:
                yield self.module
        finally:
            self._made.clear()
            self._changed()

    # --- scheduling ---------------------------------------------------------------

    def reschedule(self, key: Callable[[ir.Operation], Any], block: ir.Block | None = None) -> None:
        """Orders a block, or every block, anew: by dependences, then by `key`.

        Of the operations whose dependences are met the one with the lowest key
        comes first; equal keys keep their order, and a terminator stays last.
        """
        dependences = self.dependences
        chosen = [block] if block is not None else list(self._blocks())
        try:
            for each in chosen:
                ops = operations(each)
                if symbols_only(ops):
                    continue
                last = [ops.pop()] if _is_terminator(ops[-1]) else []
                order = linearise(ops, orders(dependences, ops), key)
                if order != list(range(len(ops))):
                    arrange(ops, order, last)
        finally:
            self._reordered()

    def _blocks(self) -> Iterator[ir.Block]:
        for op in self._program():
            if len(op.regions):
                yield from blocks_of(op)

    def export(self, path: str | os.PathLike[str]) -> None:
        """Writes `nx` as ``.dot``, ``.graphml``, ``.json`` or ``.svg``, by the name's ending.

        Raises:
          Unsupported: another ending, or no ``dot`` program for ``.svg``.
        """
        from .graph_files import export

        export(self.nx, path)


_DATA = Reason("data", "RAW", None)


def _is_terminator(op: ir.Operation) -> bool:
    return op.has_trait(ir.IsTerminatorTrait)


def _passed(op: ir.Operation, anchor: ir.Operation, upward: bool, side: str) -> list[ir.Operation]:
    """What `op` passes on its way, from its destination backwards: the anchor tells most."""
    ops = operations(op.block)
    start, end = ops.index(op), ops.index(anchor)
    stop = end if side == "before" else end + 1
    return ops[stop:start] if upward else ops[start + 1 : stop][::-1]


def _name(op: ir.Operation) -> str:
    line = source_line(op.location)
    return f"'{op.name}' ({line})" if line else f"'{op.name}'"


def _broken(what: str, first: ir.Operation, second: ir.Operation, reason: Reason) -> Refused:
    return Refused(
        f"{what}: {_name(second)} must stay after {_name(first)}: {reason.kind} dependence,"
        f" {reason}",
        hint="graph.nx holds every dependence; move or rewrite what stands between first",
    )


def _inside(op: ir.Operation) -> list[ir.Operation]:
    """The operation and all that its regions hold."""
    found: list[ir.Operation] = []

    def visit(inner: ir.Operation) -> ir.WalkResult:
        found.append(inner)
        return ir.WalkResult.ADVANCE

    op.walk(visit)
    return found


def _reached(op: ir.Operation) -> list[ir.Operation]:
    """The operation, and all that its results reach through other operations."""
    found = {op: None}
    waiting = [op]
    while waiting:
        current = waiting.pop()
        users = [use.owner.operation for result in current.results for use in result.uses]
        if _is_terminator(current) and current.parent is not None and current is not op:
            users.append(current.parent.operation)
        for user in users:
            if user not in found:
                found[user] = None
                waiting.append(user)
    return list(found)
