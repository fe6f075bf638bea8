"""Writes the pipeline of a TPU grid's windows out, at any depth.

The compiler pipelines the windows of a grid itself, with one or two slots.  Written
out, the kernel is one function without a grid: a loop over the grid's steps, whose
windows are rings of slots that explicit DMAs fill and drain.

At step ``t`` a ring of ``N`` slots that is read fetches the block of step ``t + N - 1``
if it is another one than that of the step before it; the ``c``-th block that is
fetched goes to slot ``c mod N``, whose block was last used before step ``t``.  A ring
that is written sends its block off when a step has another one, and a slot is used
again when what it sent has arrived.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Sequence
from typing import Any

from .builder import Builder, Index
from .jax_compat import ir
from .locations import argument_name


@dataclasses.dataclass(frozen=True)
class Window:
    """One operand or result that the grid moves block by block.

    Attributes:
      argument: the function's argument: a reference of one block.
      array: shape of the whole array.
      written: whether it is a result; else it is read.
      transform: block of the function that computes the block's index.
      depth: slots of the ring.
    """

    argument: ir.Value
    array: tuple[int, ...]
    written: bool
    transform: ir.Block
    depth: int


def write_out(
    entry: ir.Operation, bounds: Sequence[int | None], prefetch: int, windows: Sequence[Window]
) -> None:
    """Rewrites the kernel's function in place.

    Args:
      entry: a ``func.func`` with a grid; every operand that the grid moves block by
        block is in `windows`, and every block lies within its array.
      bounds: of the grid, slowest dimension first.  One that is known only at run
        time is an operand of the custom call, which becomes a prefetched scalar.
      prefetch: how many operands are prefetched scalars.
    """
    _Writer(entry, bounds, prefetch, windows).write()


class _Ring:
    """A window's slots: values for one step of the loop, and how they go on."""

    def __init__(
        self,
        window: Window,
        array: ir.Value,
        slots: ir.Value,
        done: ir.Value,
        bounds: Sequence[int | None],
    ):
        self.window = window
        self.depth = window.depth
        self.ahead = 0 if window.written else window.depth - 1
        self.array = array
        self.slots = slots
        self.done = done
        block = window.argument.type
        self.shape: list[int] = list(block.shape)
        self.block_type = block
        *_, last = window.transform.operations
        results = list(last.operation.operands)
        # Dimensions along which the block's index may change.
        self.moving = [
            axis
            for axis, value in enumerate(results)
            if not _is_constant(value) and self.shape[axis] != window.array[axis]
        ]
        innermost = window.transform.arguments[len(bounds) - 1] if bounds else None
        # Whether no two steps in a row have the same block.
        self.always = (
            bool(bounds)
            and (bounds[-1] or 0) > 1
            and any(results[axis] == innermost for axis in self.moving)
        )
        # Dimensions whose index has to be known from the step before.
        self.tracked = [] if self.always and not window.written else self.moving


def _is_constant(value: ir.Value) -> bool:
    owner: Any = value.owner
    return getattr(owner, "name", "") == "arith.constant"


class _Writer:
    def __init__(
        self,
        entry: ir.Operation,
        bounds: Sequence[int | None],
        prefetch: int,
        windows: Sequence[Window],
    ):
        self.entry = entry
        self.block: ir.Block = entry.regions[0].blocks[0]
        self.given = list(bounds)
        self.windows = list(windows)
        arguments = list(self.block.arguments)
        self.grid = arguments[: len(bounds)]
        self.prefetched = arguments[len(bounds) : len(bounds) + prefetch]

    def write(self) -> None:
        body = [view.operation for view in self.block.operations]
        with self.entry.context, self.entry.location:
            rings = self._arguments()
            *operations, self.last = body
            self.builder = Builder(ir.InsertionPoint(self.last), self.entry.location)
            self._read_bounds()
            self._pipeline(rings, operations)
            self._drop_old_arguments()
            self._attributes(rings)

    # --- the function ----------------------------------------------------------------

    def _arguments(self) -> list[_Ring]:
        """Adds arrays in the place of windows, and rings and semaphores as scratch."""
        rings = []
        arguments = list(self.block.arguments)
        places = {argument.arg_number: argument for argument in arguments}
        self.sizes = [
            self._argument("memref<i32, #tpu.memory_space<smem>>", f"grid_{axis}")
            for axis, bound in enumerate(self.given)
            if bound is None
        ]
        self.kept: list[ir.Value] = list(self.sizes)
        by_number = {window.argument.arg_number: window for window in self.windows}
        arrays: dict[int, ir.Value] = {}
        for number, argument in places.items():
            if number < len(self.grid):
                continue
            if number in by_number:
                window = by_number[number]
                element = window.argument.type.element_type
                extent = "x".join(map(str, [*window.array, element]))
                array = self._argument(
                    f"memref<{extent}, #tpu.memory_space<any>>", argument_name(argument, "")
                )
                arrays[number] = array
                self.kept.append(array)
            else:
                self.kept.append(argument)
        for number, window in by_number.items():
            type_ = window.argument.type
            space = type_.memory_space or ir.Attribute.parse("#tpu.memory_space<vmem>")
            name = argument_name(window.argument, f"arg{number}")
            extent = "x".join(map(str, [window.depth, *type_.shape, type_.element_type]))
            slots = self._argument(f"memref<{extent}, {space}>", f"{name}_slots")
            done = self._argument(
                f"memref<{window.depth}x!tpu.dma_semaphore, #tpu.memory_space<semaphore_mem>>",
                f"{name}_done",
            )
            self.kept += [slots, done]
            rings.append(_Ring(window, arrays[number], slots, done, self.given))
        return rings

    def _read_bounds(self) -> None:
        """The grid's bounds and their product, as far as they are known as numbers."""
        dynamic = iter(self.sizes)
        self.bounds: list[Index] = [
            self.builder.op("memref.load", [self.builder.i32], [next(dynamic)]).results[0]
            if bound is None
            else bound
            for bound in self.given
        ]
        self.trips: Index = 1
        for bound in self.bounds:
            self.trips = self.builder.mul(self.trips, bound)

    def _argument(self, type_: str, name: str) -> ir.Value:
        location = ir.Location.name(name) if name else self.entry.location
        return self.block.add_argument(ir.Type.parse(type_), location)

    def _drop_old_arguments(self) -> None:
        """Puts the kept arguments into order and erases the others."""
        order = []
        for value in self.kept:
            location = value.location
            copy = self.block.add_argument(value.type, location)
            value.replace_all_uses_with(copy)
            order.append(copy)
        for number in reversed(range(len(self.block.arguments) - len(order))):
            self.block.erase_argument(number)

    def _attributes(self, rings: Sequence[_Ring]) -> None:
        attributes = self.entry.attributes
        types = [argument.type for argument in self.block.arguments]
        attributes["function_type"] = ir.TypeAttr.get(ir.FunctionType.get(types, []))
        i64 = ir.IntegerType.get_signless(64)
        scratch = attributes["scratch_operands"].value if "scratch_operands" in attributes else 0
        attributes["scratch_operands"] = ir.IntegerAttr.get(i64, scratch + 2 * len(rings))
        attributes["scalar_prefetch"] = ir.IntegerAttr.get(
            i64, len(self.prefetched) + len(self.sizes)
        )
        attributes["dimension_semantics"] = ir.ArrayAttr.get([])
        for name in ("iteration_bounds", "window_params", "arg_attrs"):
            if name in attributes:
                del attributes[name]

    # --- the pipeline ------------------------------------------------------------------

    def _pipeline(self, rings: list[_Ring], operations: list[ir.Operation]) -> None:
        b = self.builder
        still = [ring for ring in rings if not ring.moving]
        moving = [ring for ring in rings if ring.moving]
        zero = [0] * len(self.bounds)
        fixed = {id(ring): self._index(ring, zero) for ring in still}
        for ring in still:
            if not ring.window.written:
                self._fetch(ring, 0, fixed[id(ring)])
        states = [self._prologue(ring) for ring in moving]
        distances = sorted({ring.ahead for ring in moving})
        for ring in still:
            if not ring.window.written:
                self._wait(ring, 0, fixed[id(ring)])

        initial: list[Index] = []
        for distance in distances:
            initial += self._unravel(distance)
        for state in states:
            initial += state.values()

        def step(counter: ir.Value, carried: list[ir.Value]) -> list[Index]:
            numbers: list[Index] = list(carried)
            rank = len(self.bounds)
            odometers = {
                distance: numbers[n * rank : (n + 1) * rank] for n, distance in enumerate(distances)
            }
            here = odometers.get(0) or self._from_counter(counter)
            rest = numbers[len(distances) * rank :]
            references: dict[int, ir.Value] = {}
            following: list[Index] = []
            for ring, state in zip(moving, states):
                width = len(state.values())
                now = state.like(rest[:width])
                rest = rest[width:]
                after, view = self._step(ring, now, counter, here, odometers[ring.ahead])
                following += after.values()
                references[id(ring)] = view
            for ring in still:
                references[id(ring)] = self._slot(ring, 0)
            self._body(rings, references, here, operations)
            stepped: list[Index] = []
            for distance in distances:
                stepped += self._next(odometers[distance])
            return [*stepped, *following]

        final = b.loop(self.trips, initial, step)
        rest: list[Index] = list(final[len(distances) * len(self.bounds) :])
        for ring, state in zip(moving, states):
            width = len(state.values())
            if ring.window.written:
                self._drain(ring, state.like(rest[:width]))
            rest = rest[width:]
        sent = [ring for ring in still if ring.window.written]

        def finish() -> None:
            for ring in sent:
                self._send(ring, 0, fixed[id(ring)])
            for ring in sent:
                self._wait(ring, 0, fixed[id(ring)])

        if sent:
            b.when(b.lt(0, self.trips), finish)

    def _body(self, rings, references, here: list[Index], operations) -> None:
        """Moves the kernel's own operations to where the loop's body is being built."""
        b = self.builder
        for argument, number in zip(self.grid, here):
            argument.replace_all_uses_with(b.value(number))
        for ring in rings:
            ring.window.argument.replace_all_uses_with(references[id(ring)])
        anchor = b.op("tpu.trace_stop", [], [])
        for operation in operations:
            operation.move_before(anchor)
        anchor.erase()
        self._replace_bounds(operations)

    def _replace_bounds(self, operations) -> None:
        """``tpu.iteration_bound`` becomes the constant that it stands for."""
        found: list[ir.Operation] = []

        def visit(op: ir.Operation) -> ir.WalkResult:
            if op.name == "tpu.iteration_bound":
                found.append(op)
            return ir.WalkResult.ADVANCE

        for operation in operations:
            operation.walk(visit, ir.WalkOrder.PRE_ORDER)
        for op in found:
            before, self.builder.point = self.builder.point, ir.InsertionPoint(op)
            bound = self.builder.value(self.bounds[op.attributes["dim"].value])
            self.builder.point = before
            op.results[0].replace_all_uses_with(bound)
            op.erase()

    # --- a ring --------------------------------------------------------------------------

    def _prologue(self, ring: _Ring) -> _State:
        """Fetches the blocks of the first steps, as far ahead as the ring reaches."""
        last = ring.depth - 1
        unknown: list[Index] = [-1] * len(ring.tracked)
        if ring.window.written:
            return _State(ring.window.written, last, list(unknown), -1, [])
        slot: Index = last
        fetched: list[Index] = unknown
        for number in range(ring.ahead):
            inside = self.builder.lt(number, self.trips)
            if inside is False:
                break
            block = self._index(ring, self._unravel(number))
            changed: Index = True if number == 0 else self._differs(ring, block, fetched)
            changed = self.builder.both(inside, changed)
            slot = self._advanced(ring, slot, changed)
            self._when_fetch(ring, changed, slot, block)
            fetched = [block[axis] for axis in ring.tracked]
        return _State(False, last, list(unknown), slot, fetched)

    def _step(self, ring: _Ring, now: _State, counter, here, there) -> tuple[_State, ir.Value]:
        b = self.builder
        if ring.window.written:
            return self._written_step(ring, now, here)
        ahead = self._index(ring, there)
        inside = True if ring.ahead == 0 else b.lt(b.add(counter, ring.ahead), self.trips)
        changed = b.both(inside, self._differs(ring, ahead, now.other))
        fetch_slot = self._advanced(ring, now.count, changed)
        self._when_fetch(ring, changed, fetch_slot, ahead)
        other = [b.select(inside, ahead[a], o) for a, o in zip(ring.tracked, now.other)]
        block = ahead if ring.ahead == 0 else self._index(ring, here)
        arrived = self._differs(ring, block, now.block)
        slot = self._advanced(ring, now.slot, arrived)
        b.when(arrived, lambda: self._wait(ring, slot, block))
        after = _State(False, slot, [block[a] for a in ring.tracked], fetch_slot, other)
        return after, self._slot(ring, slot)

    def _written_step(self, ring: _Ring, now: _State, here) -> tuple[_State, ir.Value]:
        b = self.builder
        block = self._index(ring, here)
        changed = self._differs(ring, block, now.block)
        # The number of blocks before this one; -1 before the first.
        b.when(
            b.both(changed, b.ge(now.count, 0)),
            lambda: self._send(ring, now.slot, self._whole(ring, now.block)),
        )
        slot = self._advanced(ring, now.slot, changed)
        count = b.add(now.count, b.number(changed))
        b.when(
            b.both(changed, b.ge(count, ring.depth)),
            lambda: self._wait(ring, slot, block),
        )
        after = _State(True, slot, [block[a] for a in ring.moving], count, [])
        return after, self._slot(ring, slot)

    def _drain(self, ring: _Ring, last: _State) -> None:
        """Sends the last block, and waits for what every slot has sent."""
        b = self.builder
        block = self._whole(ring, last.block)
        b.when(b.ge(last.count, 0), lambda: self._send(ring, last.slot, block))
        for slot in range(ring.depth):
            b.when(b.ge(last.count, slot), lambda slot=slot: self._wait(ring, slot, block))

    def _advanced(self, ring: _Ring, slot: Index, changed: Index) -> Index:
        b = self.builder
        if ring.depth == 1:
            return 0
        if ring.depth & (ring.depth - 1) == 0:
            return b.mask(b.add(slot, b.number(changed)), ring.depth - 1)
        following = b.add(slot, 1)
        wrapped = b.select(b.eq(following, ring.depth), 0, following)
        return b.select(changed, wrapped, slot)

    def _differs(self, ring: _Ring, block: list[Index], before: list[Index]) -> Index:
        b = self.builder
        if ring.always:
            return True
        result: Index = False
        for axis, old in zip(ring.moving, before):
            result = b.either(result, b.ne(block[axis], old))
        return result

    def _when_fetch(self, ring: _Ring, condition: Index, slot: Index, block: list[Index]) -> None:
        self.builder.when(condition, lambda: self._fetch(ring, slot, block))

    # --- addresses and copies ----------------------------------------------------------

    def _index(self, ring: _Ring, point: list[Index]) -> list[Index]:
        """The block's index at a point of the grid."""
        return self.builder.inline(ring.window.transform, [*point, *self.prefetched])

    def _whole(self, ring: _Ring, moving: list[Index]) -> list[Index]:
        """The block's index, of which only the moving part was kept."""
        *_, last = ring.window.transform.operations
        block: list[Index] = []
        kept = dict(zip(ring.moving, moving))
        for axis, value in enumerate(last.operation.operands):
            if axis in kept:
                block.append(kept[axis])
            elif _is_constant(value):
                block.append(int(value.owner.attributes["value"].value))  # type: ignore[union-attr]
            else:
                block.append(0)  # the block is as long as the array there
        return block

    def _slot(self, ring: _Ring, slot: Index) -> ir.Value:
        b = self.builder
        rank = len(ring.shape)
        extent = "x".join(map(str, [1, *ring.shape, ring.block_type.element_type]))
        space = ring.slots.type.memory_space
        offsets = [b.value(slot), *(b.value(0) for _ in range(rank))]
        sliced = self._slice(ring.slots, offsets, f"memref<{extent}, {space}>")
        return b.op("tpu.memref_squeeze", [ring.block_type], [sliced]).results[0]

    def _semaphore(self, ring: _Ring, slot: Index) -> ir.Value:
        b = self.builder
        kind = "!tpu.dma_semaphore, #tpu.memory_space<semaphore_mem>>"
        sliced = self._slice(ring.done, [b.value(slot)], f"memref<1x{kind}")
        return b.op("tpu.memref_squeeze", [b.type(f"memref<{kind}")], [sliced]).results[0]

    def _part(self, ring: _Ring, block: list[Index]) -> ir.Value:
        b = self.builder
        extent = "x".join(map(str, [*ring.shape, ring.block_type.element_type]))
        offsets = [b.value(b.mul(i, n)) for i, n in zip(block, ring.shape)]
        return self._slice(ring.array, offsets, f"memref<{extent}, #tpu.memory_space<any>>")

    def _slice(self, whole: ir.Value, offsets: list[ir.Value], type_: str) -> ir.Value:
        segments = self.builder.attribute(f"array<i32: 1, {len(offsets)}, 0>")
        return self.builder.op(
            "tpu.memref_slice",
            [self.builder.type(type_)],
            [whole, *offsets],
            {"operandSegmentSizes": segments},
        ).results[0]

    def _fetch(self, ring: _Ring, slot: Index, block: list[Index]) -> None:
        self._start(self._part(ring, block), self._slot(ring, slot), self._semaphore(ring, slot))

    def _send(self, ring: _Ring, slot: Index, block: list[Index]) -> None:
        self._start(self._slot(ring, slot), self._part(ring, block), self._semaphore(ring, slot))

    def _start(self, source: ir.Value, target: ir.Value, done: ir.Value) -> None:
        segments = self.builder.attribute("array<i32: 1, 0, 1, 1, 0, 0, 0>")
        self.builder.op(
            "tpu.enqueue_dma", [], [source, target, done], {"operandSegmentSizes": segments}
        )

    def _wait(self, ring: _Ring, slot: Index, block: list[Index]) -> None:
        """Waits for a copy of the ring: all are of the same size, wherever they go."""
        part, view = self._part(ring, block), self._slot(ring, slot)
        source, target = (view, part) if ring.window.written else (part, view)
        segments = self.builder.attribute("array<i32: 1, 0, 1, 1, 0, 0, 0>")
        attributes = {
            "operandSegmentSizes": segments,
            "wait_target": self.builder.attribute("true"),
        }
        self.builder.op(
            "tpu.wait_dma", [], [source, target, self._semaphore(ring, slot)], attributes
        )

    # --- the grid ------------------------------------------------------------------------

    def _unravel(self, number: int) -> list[Index]:
        """The point of the grid at a step; past the end it starts over."""
        point: list[Index] = [0] * len(self.bounds)
        for _ in range(number):
            point = self._next(point)
        return point

    def _from_counter(self, counter: ir.Value) -> list[Index]:
        """The point of the grid at this step, where no ring needs it carried along."""
        b = self.builder
        point: list[Index] = []
        number: ir.Value = counter
        for bound in reversed(self.bounds):
            size = b.value(bound)
            point.append(b.op("arith.remsi", [b.i32], [number, size]).results[0])
            number = b.op("arith.divsi", [b.i32], [number, size]).results[0]
        return list(reversed(point))

    def _next(self, point: list[Index]) -> list[Index]:
        b = self.builder
        carry: Index = True
        following: list[Index] = []
        for number, bound in zip(reversed(point), reversed(self.bounds)):
            stepped = b.add(number, 1)
            full = b.eq(stepped, bound)
            wrapped = b.select(full, 0, stepped)
            following.append(b.select(carry, wrapped, number))
            carry = b.both(carry, full)
        return list(reversed(following))


@dataclasses.dataclass
class _State:
    """What a ring carries from step to step.

    Attributes:
      slot: in use.
      block: the moving part of the index of the block in it; -1 before the first.
      count: read: the slot fetched last; written: how many blocks came before this one.
      other: read: the moving part of the index of the block fetched last.
    """

    written: bool
    slot: Index
    block: list[Index]
    count: Index
    other: list[Index]

    def values(self) -> list[Index]:
        return [self.slot, *self.block, self.count, *self.other]

    def like(self, values: Sequence[Index]) -> _State:
        """The same state with other values."""
        taken = iter(values)
        slot = next(taken)
        block = list(itertools.islice(taken, len(self.block)))
        count = next(taken)
        return _State(self.written, slot, block, count, list(taken))
