"""Windows of a TPU kernel: blocks of operands and results in slots, moved by DMAs."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from ..errors import Unsupported
from ..jax_compat import ir
from .bounds import out_of_bounds
from .findings import Site
from .machine import Semaphore, Steps
from .memory import Buffer, View
from .tpu_buffers import OFF_CHIP, space_of
from .values import word

if TYPE_CHECKING:
    from .tpu_core import Core

_SINGLE_SLOT = "synchronous"
_RESTORED = "any"
_KEYS = frozenset(
    {"transform_indices", "window_bounds", "pipeline_mode", "window_kind", "revisit_mode"}
)
type Block = tuple[int, ...]


def window(core: Core, argument: ir.Value, params: Any, view: View, reads: bool):
    """How one operand or result of the kernel appears on a core.

    Args:
      argument: of the kernel's function.
      params: its window parameters, None where the kernel has no windows.
      view: the array in device memory.
      reads: whether it is an operand.
    """
    space = space_of(argument.type)
    if space in OFF_CHIP:
        return Whole(view, view, reads)
    if params is None or "transform_indices" not in params:
        return _on_chip(core, argument.type, space, view, reads)
    return Window(core, argument.type, params, view, reads)


class Whole:
    """An operand or result that the kernel sees as a whole.

    Attributes:
      array: it in device memory.
      current: what the kernel sees: the same, or a copy on the chip for all the time.
    """

    def __init__(self, array: View, current: View, reads: bool):
        self.array = array
        self.current = current
        self.reads = reads

    def enter(self, point, following) -> Steps:
        yield from ()

    def leave(self, following) -> Steps:
        yield from ()

    def drain(self) -> Steps:
        if not self.reads and self.current is not self.array:
            self.array.copy_from(self.current.reshape(self.array.shape))
            missing = self.current.buffer.uninitialised
            if missing is not None:
                self.array.buffer.uninitialised = missing.copy()
        yield from ()


def _on_chip(core: Core, type_, space: str, view: View, reads: bool) -> Whole:
    """An array that is on the chip before the kernel starts; aliases share the memory."""
    what = ("on chip", space, view.buffer.key)
    key = (core.thread.place["core"], what)
    buffer = core.device.buffers.get(key)
    if buffer is None:
        name = f"{space} of {view.buffer.name}"
        if view.buffer.uninitialised is None:
            buffer = Buffer.holding(name, space, view.read(), key)
        else:
            poison = core.machine.poison
            buffer = Buffer.poisoned(name, space, view.shape, view.dtype, poison, key)
        core.device.buffers[key] = buffer
    return Whole(view, View.whole(buffer, tuple(type_.shape), view.dtype), reads)


class Window:
    """A block of an operand or result, fetched or written back when its index changes."""

    def __init__(self, core: Core, type_, params: Any, view: View, reads: bool):
        unknown = {item if isinstance(item, str) else item.name for item in params} - _KEYS
        if unknown:
            raise Unsupported(f"a window with {', '.join(sorted(unknown))}")
        self.core = core
        self.whole = view
        self.reads = reads
        bounded = "window_bounds" in params
        self.shape: Block = tuple(params["window_bounds"]) if bounded else view.shape
        self.padding = _padding(params, len(self.shape))
        self.site = Site(f"the window of {view.buffer.name}")
        mode = word(params["pipeline_mode"]) if "pipeline_mode" in params else "double_buffered"
        revisit = word(params["revisit_mode"]) if "revisit_mode" in params else ""
        self.restores = not reads and revisit == _RESTORED
        depth = 1 if mode == _SINGLE_SLOT or not core.grid else 2
        space = space_of(type_)
        self.slots = [self._slot(type_, space, number, view.dtype) for number in range(depth)]
        self.done = [Semaphore(f"slot {n} of {self.site}") for n in range(depth)]
        self.pending = [False] * depth
        self.slot = depth - 1
        self.index = self._index_function(params["transform_indices"])
        self.block: Block | None = None
        self.fetched: Block | None = None
        self.current = self.slots[0]

    def _slot(self, type_, space: str, number: int, dtype: np.dtype) -> View:
        name = f"slot {number} of the window of {self.whole.buffer.name}"
        key = (self.core.thread.place["core"], ("slot", self.whole.buffer.key, self.reads, number))
        shape = tuple(type_.shape)
        buffer = Buffer.poisoned(name, space, shape, dtype, self.core.machine.poison, key)
        self.core.device.buffers[key] = buffer
        return View.whole(buffer, shape, dtype)

    def _index_function(self, transform: ir.Attribute) -> Callable[[Block], Block]:
        if isinstance(transform, ir.AffineMapAttr):
            return _affine(transform)
        thread, prefetched = self.core.thread, self.core.prefetched
        function = self.core.program.function(ir.FlatSymbolRefAttr(transform).value)

        def index(point: Block) -> Block:
            result = function(thread, *point, *prefetched)
            return result if isinstance(result, tuple) else (result,)

        return index

    # --- a step of the grid ------------------------------------------------------------

    def enter(self, point: Block, following: Block | None) -> Steps:
        """Makes the block of this step current, and starts to fetch the next one."""
        block = self.index(point)
        if block != self.block:
            if self.reads or self.restores:
                if block != self.fetched:
                    self._fetch(block)
                self.slot = (self.slot + 1) % len(self.slots)
                yield from self._finish(self.slot)
            else:
                self.slot = (self.slot + 1) % len(self.slots)
                yield from self._finish(self.slot)
                self.slots[self.slot].spoil()
            self.block = block
            self.fetched = None
        if self.reads and following is not None and len(self.slots) > 1:
            ahead = self.index(following)
            if ahead != block and ahead != self.fetched:
                self._fetch(ahead)
        self.current = self.slots[self.slot]

    def leave(self, following: Block | None) -> Steps:
        """Starts to write the block back if the next step has another one."""
        if self.reads:
            return
        if following is not None and self.index(following) == self.block:
            return
        assert self.block is not None
        slot = self.slot
        inside, outside = self._box(self.block)
        self._copy(self._part(slot, inside), self.whole.slice(*outside), slot)
        if len(self.slots) == 1:
            yield from self._finish(slot)

    def drain(self) -> Steps:
        for slot in range(len(self.slots)):
            yield from self._finish(slot)

    def _fetch(self, block: Block) -> None:
        slot = (self.slot + 1) % len(self.slots)
        self.slots[slot].spoil()
        inside, outside = self._box(block)
        self._copy(self.whole.slice(*outside), self._part(slot, inside), slot)
        self.fetched = block

    def _part(self, slot: int, box) -> View:
        return self.slots[slot].reshape(self.shape).slice(*box)

    def _copy(self, source: View, target: View, slot: int) -> None:
        self.pending[slot] = True
        self.core.thread.start(
            self.site,
            lambda: target.copy_from(source),
            reads=[source],
            writes=[target],
            signals=[(self.done[slot], 1)],
        )

    def _finish(self, slot: int) -> Iterator[Any]:
        if self.pending[slot]:
            self.pending[slot] = False
            yield from self.core.thread.wait(self.done[slot], 1, self.site)

    def _box(self, block: Block):
        """(offsets, sizes) of the block's part that the array has: in the slot, in the array."""
        starts, offsets, sizes = [], [], []
        for axis, (index, extent) in enumerate(zip(block, self.shape)):
            size = self.whole.shape[axis]
            if self.padding is None:
                start, low, high = index * extent, 0, size
            else:
                before, after = self.padding[axis]
                start, low, high = index - before, -before, size + after
            if extent and (start < low or start >= high):
                raise self._outside(block)
            first, last = max(start, 0), min(start + extent, size)
            starts.append(min(first - start, extent))
            offsets.append(min(first, size))
            sizes.append(max(0, last - first))
        return (starts, sizes), (offsets, sizes)

    def _outside(self, block: Block):
        return out_of_bounds(
            self.core.thread,
            self.site,
            f"block {block} of {self.shape} is outside {self.whole.buffer.name} {self.whole.shape}",
        )


def _padding(params: Any, rank: int) -> list[tuple[int, int]] | None:
    """(low, high) padding per dimension where indices count elements, None where blocks."""
    if "window_kind" not in params:
        return None
    lists = re.findall(r"\[([\d, ]*)\]", str(params["window_kind"]))
    if len(lists) != 2:
        raise Unsupported(f"a window of kind {params['window_kind']}")
    low, high = ([int(n) for n in text.split(",") if n.strip()] for text in lists)
    return list(zip(low or [0] * rank, high or [0] * rank))


def _affine(attribute: ir.Attribute) -> Callable[[Block], Block]:
    """The map of an affine index map, which is of the grid's dimensions alone."""
    text = str(attribute)
    match = re.fullmatch(r"affine_map<\(([^)]*)\) -> \((.*)\)>", text)
    if match is None:
        raise Unsupported(f"a window whose index map is {text}")
    names = [name.strip() for name in match[1].split(",") if name.strip()]
    if not re.fullmatch(r"[\w\s+*(),-]*", match[2]):
        raise Unsupported(f"a window whose index map is {text}")
    body = re.sub(r"\bfloordiv\b", "//", re.sub(r"\bmod\b", "%", match[2]))
    body = re.sub(r"([\w)]+) ceildiv (\w+)", r"-(-\1 // \2)", body)
    code = (
        f"lambda {', '.join(names)}: ({body},)"
        if body.strip()
        else f"lambda {', '.join(names)}: ()"
    )
    function = eval(code, {"__builtins__": {}})
    return lambda point: function(*point)
