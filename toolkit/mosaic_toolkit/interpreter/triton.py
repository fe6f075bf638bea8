"""Runs a Triton kernel: the programs of its grid, in any order, over global memory."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from ..arrays import numpy_dtype
from ..errors import Unsupported
from ..kernel import Kernel
from .bits import width_of
from .bounds import out_of_bounds
from .element_types import signless
from .findings import MISUSE, Fault, Finding, Site
from .machine import Device, Machine, Steps, Thread, Wait
from .memory import Buffer, View
from .program import Program
from .shadow import Log, Shadow

# A pointer is an integer: a buffer's number, and a byte of it counted from the middle of
# the range that is its own, so that a negative offset is seen to be one.
_RANGE_BITS = 44
_MIDDLE = 1 << (_RANGE_BITS - 1)
# Atomic operations after which a program that changed nothing, nor saw a change, is waiting.
_PATIENCE = 512


class TritonProgram:
    """A Triton kernel, ready to run any number of times.

    Raises:
      Unsupported: something in it has no meaning here.
    """

    def __init__(self, kernel: Kernel):
        self.kernel = kernel
        self.program = Program(kernel.module())
        public = [name for name, f in self.program.functions.items() if f.regions[0].blocks]
        if len(public) != 1:
            raise Unsupported(f"kernel '{kernel.name}' has {len(public)} functions with a body")
        (self.entry,) = public
        function = self.program.functions[self.entry]
        self.site = Site.of(function)
        expected = len(kernel.operands) + len(kernel.results)
        found = len(function.regions[0].blocks[0].arguments)
        if found != expected:
            raise Unsupported(
                f"kernel '{kernel.name}' takes {found} pointers for {expected} operands and results"
            )
        packed = {t.dtype for t in (*kernel.operands, *kernel.results) if _is_packed(t.dtype)}
        if packed:
            raise Unsupported(f"kernel '{kernel.name}' has {', '.join(sorted(packed))} in memory")
        self.program.check(self.entry)
        self.body = self.program.function(self.entry)
        self.waits = self.program.waits(self.entry)

    def machine(self, **options: Any) -> Machine:
        return Machine(**options)

    def run(self, machine: Machine, inputs: Sequence[Sequence[np.ndarray]]) -> list[list[View]]:
        """Runs the kernel on every device; returns each device's results.

        Args:
          inputs: for each device, the custom call's operands.
        """
        if len(inputs) > 1:
            raise Unsupported("the interpreter runs Triton kernels on one device")
        results = []
        for device, arrays in zip(machine.devices, inputs):
            operands = [_operand(n, array) for n, array in enumerate(arrays)]
            outputs = self._outputs(machine, operands)
            launch = Launch(self, machine, device, [*operands, *outputs])
            machine.add(Thread(machine, "the host", device, {}), launch.steps())
            results.append(
                [
                    View.whole(view.buffer, view.shape, numpy_dtype(type_.dtype))
                    for view, type_ in zip(outputs, self.kernel.results)
                ]
            )
        machine.run()
        return results

    def _outputs(self, machine: Machine, operands: Sequence[View]) -> list[View]:
        aliases = {result: operand for operand, result in self.kernel.aliases}
        return [
            operands[aliases[number]] if number in aliases else _result(machine, number, type_)
            for number, type_ in enumerate(self.kernel.results)
        ]


def _is_packed(dtype: str) -> bool:
    """Whether a GPU has several elements of the type in a byte, where NumPy has one."""
    return dtype != "bool" and width_of(numpy_dtype(dtype)) < 8


def _operand(number: int, array: np.ndarray) -> View:
    buffer = Buffer.holding(f"operand {number}", "gmem", array)
    return View.whole(buffer, array.shape, signless(array.dtype))


def _result(machine: Machine, number: int, type_) -> View:
    dtype = signless(numpy_dtype(type_.dtype))
    buffer = Buffer.poisoned(f"result {number}", "gmem", type_.shape, dtype, machine.poison)
    return View.whole(buffer, type_.shape, dtype)


class Launch:
    """One launch of a grid, whose programs start in an order drawn from the seed.

    Attributes:
      arguments: the pointers that every program is given.
      version: counts the changes of memory.
    """

    def __init__(
        self, program: TritonProgram, machine: Machine, device: Device, views: Sequence[View]
    ):
        self.program = program
        self.machine = machine
        self.device = device
        self.log = Log(machine.races)
        self.buffers = list(dict.fromkeys(view.buffer for view in views))
        cells = {view.buffer: view.dtype.itemsize for view in views}
        self.shadows = {b: Shadow(b, self.log, cells[b]) for b in self.buffers}
        self.arguments = [self.base(self.buffers.index(view.buffer)) for view in views]
        extents = [1 if bound is None else bound for bound in program.kernel.grid]
        self.extents = (*extents, *(1,) * (3 - len(extents)))
        self.order = list(range(math.prod(self.extents)))
        machine.random.shuffle(self.order)
        self.running = 0
        self.version = 0

    @staticmethod
    def base(number: int) -> int:
        return (number + 1 << _RANGE_BITS) + _MIDDLE

    def steps(self) -> Steps:
        """Runs the whole grid."""
        self.machine.stalled = self.start
        while self.start():
            yield Wait(self, lambda: not self.running, lambda: "the grid to end", self.program.site)

    def start(self) -> bool:
        """Starts the next program; false where there is none."""
        if not self.order:
            return False
        number = self.order.pop()
        width, height, _ = self.extents
        place = (number % width, number // width % height, number // (width * height))
        thread = ProgramThread(self, place)
        self.running += 1
        self.machine.add(thread, self._thread(thread))
        return True

    def _thread(self, thread: ProgramThread) -> Steps:
        if self.program.waits:
            yield from self.program.body(thread, *self.arguments)
        else:
            self.program.body(thread, *self.arguments)
            yield from ()
        self.running -= 1


class ProgramThread(Thread):
    """One program of the grid.

    Attributes:
      number: its place in the grid.
    """

    def __init__(self, launch: Launch, number: tuple[int, int, int]):
        super().__init__(launch.machine, f"program {number}", launch.device, {})
        self.launch = launch
        self.number = number
        self._idle = 0
        self._seen = -1

    def access(self, view: View, site: Site, write: bool) -> None:
        """Checks an access of this program against those of the others."""
        self.launch.shadows[view.buffer].access(self.actor(site), view, write)
        if write:
            self.launch.version += 1

    def views(
        self, addresses: np.ndarray, dtype: np.dtype, site: Site
    ) -> Iterator[tuple[Any, View]]:
        """What pointers point to, buffer by buffer: which of them, and the elements there.

        Args:
          addresses: one dimension, int64.

        Raises:
          Fault: one of them points to no element of a buffer.
        """
        if not addresses.size:
            return
        numbers = addresses >> _RANGE_BITS
        if numbers[0] == numbers[-1] and (numbers == numbers[0]).all():
            yield slice(None), self._view(int(numbers[0]) - 1, addresses, dtype, site)
            return
        for number in np.unique(numbers).tolist():
            which = np.flatnonzero(numbers == number)
            yield which, self._view(number - 1, addresses[which], dtype, site)

    def _view(self, number: int, addresses: np.ndarray, dtype: np.dtype, site: Site) -> View:
        buffers = self.launch.buffers
        if not 0 <= number < len(buffers):
            raise out_of_bounds(self, site, f"address {int(addresses[0])} in no operand or result")
        buffer = buffers[number]
        offsets = addresses - Launch.base(number)
        low, high = int(offsets.min()), int(offsets.max()) + dtype.itemsize
        if low < 0 or high > len(buffer.data):
            raise out_of_bounds(
                self, site, f"bytes {low}:{high} of {buffer.name}, which has {len(buffer.data)}"
            )
        if (offsets % dtype.itemsize).any():
            text = (
                f"{site}: an address in {buffer.name} that is no multiple of {dtype.itemsize} bytes"
            )
            raise Fault(Finding(MISUSE, f"{text}, by {self.where()}", (site,)))
        return View(buffer, 0, offsets.shape, (), dtype, offsets)

    # --- atomic operations ----------------------------------------------------------------------

    def turn(self, site: Site) -> Steps:
        """Lets other programs go first, before an atomic operation."""
        launch = self.launch
        if self.machine.random.random() < 0.5:
            launch.start()
        if self._seen != launch.version:
            self._seen, self._idle = launch.version, 0
        self._idle += 1
        if self._idle < _PATIENCE:
            yield None
            return
        seen = launch.version
        yield Wait(
            launch,
            lambda: launch.version != seen,
            lambda: f"memory to change, as it did not in {_PATIENCE} atomic operations",
            site,
        )

    def atomically(
        self,
        view: View,
        site: Site,
        ordering: tuple[bool, bool],
        update: Callable[[np.ndarray, np.ndarray], np.ndarray],
    ) -> np.ndarray:
        """Replaces elements one after the other where several are the same.

        Args:
          ordering: whether it acquires, and whether it releases.
          update: new values, of which elements and their old values.

        Returns:
          The old values.
        """
        acquires, releases = ordering
        shadow = self.launch.shadows[view.buffer]
        if acquires:
            for clock in shadow.acquire(view):
                self.learn(clock)
        shadow.access(self.actor(site), view, True, atomic=True)
        if view.unwritten():
            self.machine.note_unwritten(view, site, self)
        places = view.byte_offsets()
        before = np.empty(places.shape, view.dtype)
        for which in _rounds(places):
            part = view.scattered(places[which], view.dtype)
            before[which] = old = part.read()
            new = update(which, old).astype(view.dtype, copy=False)
            if new.tobytes() != old.tobytes():
                self.launch.version += 1
            part.write(new)
        if releases:
            shadow.publish(view, self.knows())
            self.release()
        return before


def _rounds(places: np.ndarray) -> Iterator[np.ndarray]:
    """Which elements to treat at once, so that none of them is another's place."""
    order = np.argsort(places, kind="stable")
    ordered = places[order]
    count = np.arange(len(places))
    first = np.concatenate([[True], ordered[1:] != ordered[:-1]])
    rank = count - np.maximum.accumulate(np.where(first, count, 0))
    for number in range(int(rank.max()) + 1):
        yield order[rank == number]
