"""One core of a TPU that runs a kernel: its memory, its part of the grid, its steps."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from ..errors import Unsupported
from ..jax_compat import ir
from .machine import Device, Machine, Steps, Thread
from .memory import Buffer, View
from .tpu_buffers import allocate
from .tpu_window import Window, window

if TYPE_CHECKING:
    from .tpu import TpuProgram


class Core:
    """A core or subcore with its own scratch and windows; arrays are shared with others.

    Args:
      place: its coordinates among the cores of the device.
      part: what it iterates over, per dimension of the grid.
      memory: the custom call's operands without the grid's bounds, in device memory.
      results: its results.
    """

    def __init__(
        self,
        kernel: TpuProgram,
        machine: Machine,
        device: Device,
        place: tuple[int, ...],
        grid: tuple[int, ...],
        part: Sequence[range],
        memory: Sequence[View],
        results: Sequence[View],
    ):
        self.kernel = kernel
        self.program = kernel.program
        self.machine = machine
        self.device = device
        self.grid = grid
        self.part = part
        where = {"device": device.number, "core": place, "grid": grid}
        self.thread = Thread(machine, self._name(place), device, where)
        arguments = list(kernel.block.arguments)[len(grid) :]
        references = [a for a in arguments if isinstance(a.type, ir.MemRefType)]
        first = kernel.prefetch
        last = len(references) - kernel.scratch
        self.prefetched = [self._prefetch(a, v) for a, v in zip(references[:first], memory)]
        arrays = [*memory[first:], *results]
        seen = references[first:last]
        if len(seen) != len(arrays):
            raise Unsupported(
                f"kernel '{kernel.kernel.name}': {len(seen)} operands in the function, "
                f"{len(arrays)} in the custom call"
            )
        inputs = len(memory) - first
        self.windows = [
            window(self, argument, params, view, number < inputs)
            for number, (argument, params, view) in enumerate(zip(seen, kernel.windows, arrays))
        ]
        self.scratch = [
            allocate(self.thread, a.type, ("scratch", n), f"scratch {n}")
            for n, a in enumerate(references[last:])
        ]

    def _name(self, place: tuple[int, ...]) -> str:
        many = len(self.machine.devices) > 1
        core = "the core" if not place else f"core {place[0] if len(place) == 1 else place}"
        if many and not place:
            return f"device {self.device.number}"
        return f"{core} of device {self.device.number}" if many else core

    def _prefetch(self, argument: ir.Value, view: View) -> View:
        """Scalars that are in SMEM before the kernel starts."""
        key = (self.thread.place["core"], ("prefetched", view.buffer.key[1]))
        buffer = Buffer.holding(f"prefetched {view.buffer.name}", "smem", view.read(), key)
        self.device.buffers[key] = buffer
        return View.whole(buffer, tuple(argument.type.shape), view.dtype)

    # --- the grid ------------------------------------------------------------------

    def steps(self) -> Steps:
        """This core's part of the grid in order, each step between its windows' copies."""
        thread = self.thread
        windows = [w for w in self.windows if isinstance(w, Window)]
        body, blocking = self.kernel.body, self.kernel.waits
        scratch = self.scratch
        for point, following in _with_next(itertools.product(*self.part)):
            thread.step = point if self.grid else None
            for each in windows:
                yield from each.enter(point, following)
            references = [each.current for each in self.windows]
            done = body(thread, *point, *self.prefetched, *references, *scratch)
            if blocking:
                yield from done
            for each in windows:
                yield from each.leave(following)
        thread.step = None
        for each in self.windows:
            yield from each.drain()


def _with_next(points: Iterator[tuple]) -> Iterator[tuple[tuple, tuple | None]]:
    current = next(points, None)
    while current is not None:
        following = next(points, None)
        yield current, following
        current = following
