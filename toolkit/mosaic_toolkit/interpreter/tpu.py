"""Runs a Mosaic TPU kernel: one function over a grid, its windows pipelined by DMAs."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from ..backends.schedule_tpu import entry_function
from ..errors import Unsupported
from ..jax_compat import ir
from ..kernel import Kernel
from .arguments import numpy_dtype
from .element_types import SEMAPHORES, dtype_of
from .findings import Site
from .machine import Device, Machine, Semaphore, Steps, Thread
from .memory import Buffer, View
from .program import Program

_DYNAMIC = ir.ShapedType.get_dynamic_size()
_ON_CHIP_DEFAULT = "vmem"
_OFF_CHIP = frozenset({"any", "hbm", "host"})
_SINGLE_SLOT = "synchronous"
_WINDOW_KEYS = frozenset(
    {"transform_indices", "window_bounds", "pipeline_mode", "window_kind", "revisit_mode"}
)


class TpuProgram:
    """A Mosaic TPU kernel, ready to run any number of times.

    Raises:
      Unsupported: an operation or a window of it has no meaning here.
    """

    def __init__(self, kernel: Kernel):
        self.kernel = kernel
        self.program = Program(kernel.module())
        entry = entry_function(self.program.functions)
        if entry is None:
            raise Unsupported(f"kernel '{kernel.name}' has no function with a body")
        self.entry = entry
        name = self.entry.attributes["sym_name"].value
        self.program.check(name)
        self.body = self.program.function(name)
        self.waits = self.program.waits(name)
        attributes = self.entry.attributes
        self.bounds = list(_attribute(attributes, "iteration_bounds", ()))
        self.prefetch = _integer(attributes, "scalar_prefetch")
        self.scratch = _integer(attributes, "scratch_operands")
        self.semantics = [_word(a) for a in _attribute(attributes, "dimension_semantics", ())]
        self.block = self.entry.regions[0].blocks[0]
        self.dynamic = sum(bound == _DYNAMIC for bound in self.bounds)
        self.windows = self._windows()

    def _windows(self) -> Sequence[ir.DictAttr | None]:
        """The window parameters of each operand and result, None where it has none."""
        count = len(self.kernel.operands) + len(self.kernel.results) - self.prefetch - self.dynamic
        params = list(_attribute(self.entry.attributes, "window_params", ()))
        return params if params else [None] * count

    def machine(self, **options: Any) -> Machine:
        return Machine(solo=options.get("devices", 1) == 1, **options)

    def run(self, machine: Machine, inputs: Sequence[Sequence[np.ndarray]]) -> list[list[View]]:
        """Runs the kernel on every device; returns each device's results.

        Args:
          inputs: for each device, the custom call's operands.
        """
        cores = [
            _Core(self, machine, device, arrays) for device, arrays in zip(machine.devices, inputs)
        ]
        for core in cores:
            machine.add(core.thread, core.steps())
        machine.run()
        return [core.results for core in cores]


class _Core:
    """One TPU core that runs the kernel on its own arrays."""

    def __init__(
        self, program: TpuProgram, machine: Machine, device: Device, inputs: Sequence[np.ndarray]
    ):
        self.program = program
        self.machine = machine
        self.device = device
        kernel = program.kernel
        name = "the core" if len(machine.devices) == 1 else f"device {device.number}"
        self.thread = Thread(machine, name, device, {"device": device.number})
        self.grid = self._grid(inputs)
        self.thread.place["grid"] = self.grid
        arrays = inputs[program.dynamic :]
        self.results: list[View] = []
        memory = [self._operand(n, array) for n, array in enumerate(arrays)]
        aliases = {result: operand for operand, result in kernel.aliases}
        for number, type_ in enumerate(kernel.results):
            if number in aliases:
                view = memory[aliases[number] - program.dynamic]
            else:
                view = self._result(number, type_)
            self.results.append(view)
        arguments = list(program.block.arguments)[len(self.grid) :]
        references = [a for a in arguments if isinstance(a.type, ir.MemRefType)]
        first = program.prefetch
        last = len(references) - program.scratch
        self.prefetched = [self._prefetch(a, v) for a, v in zip(references[:first], memory)]
        off_chip = [*memory[first:], *self.results]
        windowed = references[first:last]
        if len(windowed) != len(off_chip):
            raise Unsupported(
                f"kernel '{kernel.name}': {len(windowed)} operands in the function, "
                f"{len(off_chip)} in the custom call"
            )
        inputs_count = len(memory) - first
        self.windows = [
            _Window(self, argument, params, view, number < inputs_count)
            for number, (argument, params, view) in enumerate(
                zip(windowed, program.windows, off_chip)
            )
        ]
        self.scratch = [
            allocate(self.thread, a.type, ("scratch", n), f"scratch {n}")
            for n, a in enumerate(references[last:])
        ]

    def _grid(self, inputs: Sequence[np.ndarray]) -> tuple[int, ...]:
        dynamic = iter(inputs)
        return tuple(
            int(next(dynamic)) if bound == _DYNAMIC else bound for bound in self.program.bounds
        )

    def _operand(self, number: int, array: np.ndarray) -> View:
        buffer = Buffer.holding(f"operand {number}", "hbm", array, ("operand", number))
        self.device.buffers[buffer.key] = buffer
        return View.whole(buffer, array.shape, array.dtype)

    def _result(self, number: int, type_) -> View:
        dtype = numpy_dtype(type_.dtype)
        key = ("result", number)
        buffer = Buffer.poisoned(
            f"result {number}", "hbm", type_.shape, dtype, self.machine.poison, key
        )
        self.device.buffers[key] = buffer
        return View.whole(buffer, type_.shape, dtype)

    def _prefetch(self, argument: ir.Value, view: View) -> View:
        buffer = Buffer.holding(view.buffer.name, "smem", view.read(), ("smem", view.buffer.key))
        self.device.buffers[buffer.key] = buffer
        return View.whole(buffer, tuple(argument.type.shape), view.dtype)

    # --- the grid ------------------------------------------------------------------

    def steps(self) -> Steps:
        """The grid in order, each step between its windows' copies."""
        thread, windows = self.thread, [w for w in self.windows if w.pipelined]
        body, blocking = self.program.body, self.program.waits
        rest = [*self.scratch]
        points = _with_next(itertools.product(*(range(n) for n in self.grid)))
        first = True
        for point, following in points:
            thread.step = point if self.grid else None
            for window in windows:
                yield from window.enter(point, following, first)
            references = [window.current for window in self.windows]
            done = body(thread, *point, *self.prefetched, *references, *rest)
            if blocking:
                yield from done
            for window in windows:
                yield from window.leave(following)
            first = False
        thread.step = None
        for window in windows:
            yield from window.drain()


def _with_next(points: Iterator[tuple]) -> Iterator[tuple[tuple, tuple | None]]:
    current = next(points, None)
    while current is not None:
        following = next(points, None)
        yield current, following
        current = following


class _Window:
    """A block of an operand or result, fetched or written back when its index changes."""

    def __init__(
        self,
        core: _Core,
        argument: ir.Value,
        params: ir.DictAttr | None,
        view: View,
        reads: bool,
    ):
        self.core = core
        self.whole = view
        self.reads = reads
        type_ = argument.type
        space = space_of(type_)
        self.pipelined = (
            params is not None and "transform_indices" in params and space not in _OFF_CHIP
        )
        self.current: View = view
        if not self.pipelined:
            if space not in _OFF_CHIP:
                self._hold_whole(type_, space)
            return
        assert params is not None
        unknown = {_key(item) for item in params} - _WINDOW_KEYS
        if unknown:
            raise Unsupported(f"a window with {', '.join(sorted(unknown))}")
        self.shape = tuple(params["window_bounds"])
        self.low, self.elements = _window_kind(params, len(self.shape))
        self.site = Site(f"the window of {view.buffer.name}")
        mode = _word(params["pipeline_mode"]) if "pipeline_mode" in params else "double_buffered"
        depth = 1 if mode == _SINGLE_SLOT or not core.grid else 2
        self.slots = [self._slot(type_, space, number, view.dtype) for number in range(depth)]
        self.done = [Semaphore(f"slot {n} of {self.site}") for n in range(depth)]
        self.pending = [False] * depth
        self.slot = depth - 1
        self.index = self._index_function(params["transform_indices"])
        self.block: tuple[int, ...] | None = None
        self.fetched: tuple[int, ...] | None = None

    def _hold_whole(self, type_, space: str) -> None:
        """An operand that lives on the chip for the whole kernel."""
        key = ("on chip", self.whole.buffer.key)
        name = f"{space} of {self.whole.buffer.name}"
        if self.reads:
            buffer = Buffer.holding(name, space, self.whole.read(), key)
        else:
            poison = self.core.machine.poison
            buffer = Buffer.poisoned(name, space, self.whole.shape, self.whole.dtype, poison, key)
        self.core.device.buffers[key] = buffer
        self.current = View.whole(buffer, tuple(type_.shape), self.whole.dtype)

    def _slot(self, type_, space: str, number: int, dtype: np.dtype) -> View:
        name = f"slot {number} of the window of {self.whole.buffer.name}"
        key = ("slot", self.whole.buffer.key, number)
        shape = tuple(type_.shape)
        buffer = Buffer.poisoned(name, space, shape, dtype, self.core.machine.poison, key)
        self.core.device.buffers[key] = buffer
        return View.whole(buffer, shape, dtype)

    def _index_function(self, transform: ir.Attribute) -> Callable[..., Any]:
        thread, prefetched = self.core.thread, self.core.prefetched
        if isinstance(transform, ir.AffineMapAttr):
            raise Unsupported("a window whose index map is an affine map")
        function = self.core.program.program.function(transform.value)

        def index(point: tuple[int, ...]) -> tuple[int, ...]:
            result = function(thread, *point, *prefetched)
            return result if isinstance(result, tuple) else (result,)

        return index

    # --- a step of the grid ------------------------------------------------------------

    def enter(self, point, following, first: bool) -> Steps:
        """Makes the block of this step current, and starts to fetch the next one."""
        block = self.index(point)
        if self.reads:
            if (first or len(self.slots) == 1) and block != self.block:
                self._fetch(block)
            if block != self.block:
                self.slot = (self.slot + 1) % len(self.slots)
                yield from self._finish(self.slot)
            self.block = block
            if following is not None and len(self.slots) > 1:
                ahead = self.index(following)
                if ahead != block:
                    self._fetch(ahead)
        elif block != self.block:
            self.slot = (self.slot + 1) % len(self.slots)
            yield from self._finish(self.slot)
            self.slots[self.slot].spoil()
            self.block = block
        self.current = self.slots[self.slot]

    def leave(self, following) -> Steps:
        """Starts to write the block back if the next step has another one."""
        if self.reads:
            return
        if following is not None and self.index(following) == self.block:
            return
        assert self.block is not None
        slot = self.slot
        inside, outside = self._box(self.block)
        source, target = (
            self.slots[slot].reshape(self.shape).slice(*inside),
            self.whole.slice(*outside),
        )
        self._copy(source, target, slot)
        if len(self.slots) == 1:
            yield from self._finish(slot)

    def drain(self) -> Steps:
        for slot in range(len(self.slots)):
            yield from self._finish(slot)

    def _fetch(self, block: tuple[int, ...]) -> None:
        slot = (self.slot + 1) % len(self.slots)
        self.slots[slot].spoil()
        inside, outside = self._box(block)
        target = self.slots[slot].reshape(self.shape).slice(*inside)
        self._copy(self.whole.slice(*outside), target, slot)

    def _copy(self, source: View, target: View, slot: int) -> None:
        self.pending[slot] = True
        self.core.thread.start(
            self.site,
            lambda: target.copy_from(source),
            reads=[source],
            writes=[target],
            signals=[(self.done[slot], 1)],
        )

    def _finish(self, slot: int) -> Steps:
        if self.pending[slot]:
            self.pending[slot] = False
            yield from self.core.thread.wait(self.done[slot], 1, self.site)

    def _box(self, block: tuple[int, ...]):
        """(offsets, sizes) of the block's part that the array has: in the slot, in the array."""
        starts, offsets, sizes = [], [], []
        for axis, (index, extent) in enumerate(zip(block, self.shape)):
            start = index if self.elements else index * extent
            start -= self.low[axis]
            low, high = max(start, 0), min(start + extent, self.whole.shape[axis])
            if high <= low and extent:
                raise self._outside(block)
            starts.append(low - start)
            offsets.append(low)
            sizes.append(high - low)
        return (starts, sizes), (offsets, sizes)

    def _outside(self, block):
        from .bounds import out_of_bounds

        return out_of_bounds(
            self.core.thread,
            self.site,
            f"block {block} of {self.shape} is outside {self.whole.buffer.name} {self.whole.shape}",
        )


# --- memory ----------------------------------------------------------------------------


def allocate(thread: Thread, type_, key: Any, name: str) -> View:
    """A fresh buffer of a memref type: poisoned memory, or semaphores that hold 0."""
    shape = tuple(type_.shape)
    element = str(type_.element_type)
    space = space_of(type_)
    if element in SEMAPHORES:
        buffer = Buffer(name, space, 8 * math.prod(shape), key)
        thread.machine.semaphores_of(buffer, math.prod(shape))
        dtype = np.dtype(np.int64)
    else:
        dtype = dtype_of(element)
        buffer = Buffer.poisoned(name, space, shape, dtype, thread.machine.poison, key)
    thread.device.buffers[key] = buffer
    return View.whole(buffer, shape, dtype)


def semaphore(view: View) -> Semaphore:
    """The semaphore that a reference of one cell refers to."""
    return view.buffer.semaphores[int(view.array.reshape(()))]


def space_of(type_) -> str:
    """``vmem`` of ``#tpu.memory_space<vmem>``."""
    space = type_.memory_space
    return _ON_CHIP_DEFAULT if space is None else _word(space).partition(",")[0].strip()


def _window_kind(params: ir.DictAttr, rank: int) -> tuple[list[int], bool]:
    """Low padding in elements, and whether indices count elements, not blocks."""
    if "window_kind" not in params:
        return [0] * rank, False
    import re

    low = re.search(r"\[([\d, ]*)\]", str(params["window_kind"]))
    if low is None:
        raise Unsupported(f"a window of kind {params['window_kind']}")
    return [int(n) for n in low[1].split(",") if n.strip()], True


def _attribute(attributes, name: str, default):
    if name not in attributes:
        return default
    return attributes[name]


def _integer(attributes, name: str) -> int:
    return attributes[name].value if name in attributes else 0


def _word(attribute: ir.Attribute) -> str:
    return str(attribute).partition("<")[2].rstrip(">") or str(attribute)


def _key(item) -> str:
    return item if isinstance(item, str) else item.name
