"""Runs a Mosaic GPU kernel: its host function, and the CTAs that it launches."""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ..arrays import numpy_dtype
from ..errors import Unsupported
from ..kernel import Kernel
from .findings import UNBALANCED, Site
from .gpu_thread import WARPGROUP, Cta, GpuThread, Pointer, never_written
from .machine import Device, Machine, Steps, Thread, Wait
from .memory import Buffer, View
from .program import Program
from .races import Actor, Clock, join

type Triple = tuple[int, int, int]

_LAUNCH = "gpu.launch"
_ALIGNMENT = 256  # bytes


class GpuProgram:
    """A Mosaic GPU kernel, ready to run any number of times.

    Raises:
      Unsupported: it exists below the dialect level only, or something in it has no
        meaning here.
    """

    def __init__(self, kernel: Kernel):
        if kernel.level != "dialect":
            raise Unsupported(
                f"the interpreter does not run kernel '{kernel.name}', which has no dialect level: "
                "Lane semantics",
                hint="kernels with Warpgroup semantics run",
            )
        self.kernel = kernel
        self.program = Program(kernel.module())
        entries = [n for n, f in self.program.functions.items() if _launches(f)]
        if len(entries) != 1:
            raise Unsupported(f"kernel '{kernel.name}' has {len(entries)} functions that launch")
        (self.entry,) = entries
        self.program.check(self.entry)
        self.body = self.program.function(self.entry)
        self.automatic = bool(json.loads(kernel.encoding).get("auto_barriers", True))

    def machine(self, **options: Any) -> Machine:
        return Machine(**options)

    def run(self, machine: Machine, inputs: Sequence[Sequence[np.ndarray]]) -> list[list[View]]:
        """Runs the kernel on every device; returns each device's results.

        Args:
          inputs: for each device, the custom call's operands.
        """
        if len(inputs) > 1:
            raise Unsupported("the interpreter runs Mosaic GPU kernels on one device")
        results = []
        for device, arrays in zip(machine.devices, inputs):
            operands, outputs = self._memory(machine, device, arrays)
            host = Thread(machine, "the host", device, {"auto_barriers": self.automatic})
            table = ArgumentTable([*operands, *outputs])
            machine.add(host, self.body(host, None, Pointer(table, 0)))
            results.append(outputs)
        machine.run()
        return results

    def _memory(self, machine: Machine, device: Device, arrays: Sequence[np.ndarray]):
        """Views of the operands and of the results in global memory."""
        operands, outputs = [], []
        for number, array in enumerate(arrays):
            key = ("operand", number)
            view = _global(machine, f"operand {number}", array.shape, array.dtype, key)
            view.write(array)
            device.buffers[key] = view.buffer
            operands.append(view)
        aliases = {result: operand for operand, result in self.kernel.aliases}
        for number, type_ in enumerate(self.kernel.results):
            if number in aliases:
                outputs.append(operands[aliases[number]])
                continue
            dtype, key = numpy_dtype(type_.dtype), ("result", number)
            view = _global(machine, f"result {number}", type_.shape, dtype, key)
            device.buffers[key] = view.buffer
            outputs.append(view)
        return operands, outputs


def _global(machine: Machine, name: str, shape, dtype: np.dtype, key: Any) -> View:
    """An allocation in global memory, whose end is that of a block of XLA's allocator."""
    size = math.prod(shape) * dtype.itemsize
    buffer = Buffer(name, "gmem", -(-size // _ALIGNMENT) * _ALIGNMENT, key)
    never_written(buffer, machine.poison)
    view = View.whole(buffer, shape, dtype)
    view.spoil()
    return view


def _launches(function: Any) -> bool:
    return any(op.operation.name == _LAUNCH for block in function.regions[0].blocks for op in block)


class ArgumentTable:
    """The array of pointers to the operands and then the results, which the host is given."""

    def __init__(self, views: Sequence[View]):
        self.pointers = [Pointer(view.buffer, 0) for view in views]

    def load(self, offset: int) -> Pointer:
        return self.pointers[offset // 8]


class Launch:
    """One launch of a grid.

    Clusters start in an order drawn from the seed, each when the one before it has ended
    or cannot go on.

    Attributes:
      cluster: extents of a cluster in CTAs.
      grid: extents of the grid in CTAs.
      block: extents of a CTA in threads.
      automatic: whether the compiler adds a barrier of the warpgroup around its stores.
    """

    def __init__(
        self,
        host: Thread,
        body: Callable[..., Any],
        blocks: bool,
        extents: tuple[Triple, Triple, Triple],
        clustered: bool,
        smem_bytes: int,
    ):
        self.host = host
        self.machine = host.machine
        self.device = host.device
        self.automatic: bool = host.place["auto_barriers"]
        self.body = body
        self.blocks = blocks
        self.cluster, self.grid, self.block = extents
        self.clustered = clustered
        self.smem_bytes = smem_bytes
        counts = [range(0, n, c) for n, c in zip(self.grid, self.cluster)]
        self.waiting: list[Triple] = [(x, y, z) for z, y, x in itertools.product(*counts[::-1])]
        self.machine.random.shuffle(self.waiting)
        self.running: list[list[Cta]] = []

    def steps(self, site: Site) -> Steps:
        """Runs the whole grid."""
        self.machine.stalled = self.start
        while self.start():
            yield Wait(self, lambda: not self.running, lambda: "the grid to end", site)
        machine = self.machine
        while machine.flying:
            machine.land(machine.flying[0])

    def start(self) -> bool:
        """Starts the next cluster; false where there is none."""
        if not self.waiting:
            return False
        first = self.waiting.pop()
        cluster: list[Cta] = []
        ranks = itertools.product(*(range(n) for n in self.cluster[::-1]))
        for z, y, x in ranks:
            number = (first[0] + x, first[1] + y, first[2] + z)
            cluster.append(Cta(self, number, cluster, (x, y, z)))
        self.running.append(cluster)
        for cta in cluster:
            for start in range(0, math.prod(self.block), WARPGROUP):
                self._add(cta, start)
        return True

    def cancel(self) -> Triple | None:
        """Takes a cluster that has not started away from the grid."""
        return self.waiting.pop() if self.waiting else None

    def _add(self, cta: Cta, first: int) -> None:
        width, height, _ = self.block
        number = (first % width, first // width % height, first // (width * height))
        place = {
            "thread_id": number,
            "block_id": cta.number,
            "block_dim": self.block,
            "grid_dim": self.grid,
            "cluster_block_id": cta.rank,
            "cluster_dim_blocks": self.cluster,
        }
        name = f"warpgroup {first // WARPGROUP} of {cta.name}"
        thread = GpuThread(self.machine, name, cta, place, WARPGROUP)
        cta.threads.append(thread)
        self.machine.add(thread, self._thread(thread))

    def _thread(self, thread: GpuThread) -> Steps:
        cta = thread.cta
        arguments = (*cta.number, *thread.place["thread_id"], *self.grid, *self.block)
        if self.clustered:
            place = (n // c for n, c in zip(cta.number, self.cluster))
            arguments = (*arguments, *place, *self.cluster)
        steps = self.body(thread, *arguments)
        if self.blocks:
            yield from steps
        cta.left.append(thread)
        if all(len(peer.left) == len(peer.threads) for peer in cta.cluster):
            for peer in cta.cluster:
                self._end(peer)
            self.running.remove(cta.cluster)

    def _end(self, cta: Cta) -> None:
        """The memory of a CTA goes: nothing in flight may still touch it."""
        clock: Clock = {}
        for thread in cta.threads:
            for holder in (thread, *thread.warps):
                holder.bulk.land(self.machine)
            join(clock, thread.handed()[0])
        actor = Actor(self.machine.new_agent(), 1, clock, cta.name, Site("the end of the CTA"))
        whole = View.whole(cta.smem, (len(cta.smem.data),), np.dtype(np.int8))
        self.machine.races.check(actor, whole, True)
        for barrier in cta.smem.barriers.values():
            if barrier.bytes:
                self.machine.report(
                    UNBALANCED,
                    f"{barrier.name} lacks {barrier.bytes} bytes at the end of its CTA",
                    *barrier.signallers,
                )
