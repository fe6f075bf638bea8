"""The `gpu` dialect: launching a grid, and who and where a thread is."""

from __future__ import annotations

from ...errors import Unsupported
from ..gpu import Launch
from ..gpu_thread import GpuThread, SharedMemory
from ..machine import Thread
from ..meaning import blocking, effect, load
from ..memory import View
from ..values import operand_groups


@blocking("gpu.launch")
def launch(op, scope):
    """Operand groups: dependences, extents of grid, block and cluster, dynamic shared memory."""
    site, groups = scope.site(op), operand_groups(op)
    blocks = scope.blocks(op.regions[0])

    def run(thread: Thread, body, *operands):
        parts = [operands[group] for group in groups]
        grid, block = ((x[0], y[0], z[0]) for x, y, z in (parts[1:4], parts[4:7]))
        clustered = all(parts[7:10])
        cluster = (parts[7][0], parts[8][0], parts[9][0]) if clustered else (1, 1, 1)
        (memory,) = parts[10] or (0,)
        started = Launch(thread, body, blocks, (cluster, grid, block), clustered, memory)
        yield from started.steps(site)

    return run


@load(
    "gpu.thread_id",
    "gpu.block_id",
    "gpu.block_dim",
    "gpu.grid_dim",
    "gpu.cluster_block_id",
    "gpu.cluster_dim_blocks",
)
def place(op, scope):
    """Of a warpgroup or warp, the numbers of its first lane."""
    name = op.name.partition(".")[2]
    axis = "xyz".index(str(op.attributes["dimension"]).partition("<")[2].rstrip(">"))
    return lambda thread: thread.place[name][axis]


@load("gpu.dynamic_shared_memory")
def dynamic_shared_memory(op, scope):
    if str(op.results[0].type.element_type) != "i8":
        raise Unsupported(f"{scope.site(op)} of {op.results[0].type}")

    def run(thread: GpuThread) -> View:
        memory: SharedMemory = thread.cta.smem
        return View.whole(memory, (len(memory.data),), memory.data.dtype)

    return run


@blocking("gpu.barrier")
def barrier(op, scope):
    site = scope.site(op)
    return lambda thread: thread.cta.sync_threads(thread, site)


@effect("gpu.printf")
def nothing(op, scope):
    return lambda thread, *operands: None
