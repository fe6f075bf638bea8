"""Prints how fast dependence graphs are built, by number of operations.

    PYTHONPATH=toolkit python tests/bench/graph.py [OPERATIONS ...]

Each row is an unrolled kernel: copies into a ring of four slots, waits, loads,
arithmetic, and stores to disjoint rows.  Operations per second should be the
same in every row, or time does not grow linearly.
"""

from __future__ import annotations

import random
import sys
import time

from mosaic_toolkit.graph import Graph
from mosaic_toolkit.kernel import Kernel

_HBM = "memref<{rows}x128xf32, #tpu.memory_space<hbm>>"
_OUT = "memref<{rows}x128xf32, #tpu.memory_space<vmem>>"
_RING = "memref<4x8x128xf32, #tpu.memory_space<vmem>>"
_SEMAPHORES = "memref<4x!tpu.dma_semaphore, #tpu.memory_space<semaphore_mem>>"
_SEMAPHORE = "memref<!tpu.dma_semaphore, #tpu.memory_space<semaphore_mem>>"
_SEMAPHORE_SLOT = "memref<1x!tpu.dma_semaphore, #tpu.memory_space<semaphore_mem>>"
_PIECE = "memref<8x128xf32, #tpu.memory_space<hbm>>"
_SLOT = "memref<1x8x128xf32, #tpu.memory_space<vmem>>"
_BUFFER = "memref<8x128xf32, #tpu.memory_space<vmem>>"
_STEP = """
    %row{i} = arith.constant {row} : i32
    %index{i} = arith.constant {row} : index
    %piece{i} = tpu.memref_slice %x[%row{i}, %zero] : {hbm} -> {piece}
    %part{i} = tpu.memref_slice %ring[%slot{s}, %zero, %zero] : {ring} -> {slot}
    %buffer{i} = tpu.memref_squeeze %part{i} : {slot} -> {buffer}
    %sem{i} = tpu.memref_slice %sems[%slot{s}] : {semaphores} -> {semaphore_slot}
    %flag{i} = tpu.memref_squeeze %sem{i} : {semaphore_slot} -> {semaphore}
    tpu.enqueue_dma source(%piece{i} : {piece}) target(%buffer{i} : {buffer}) target_semaphore(%flag{i} : {semaphore})
    tpu.wait_dma2 semaphore(%flag{i} : {semaphore}) src(%piece{i} : {piece}) dst(%buffer{i} : {buffer})
    %value{i} = vector.load %buffer{i}[%none, %none] : {buffer}, vector<8x128xf32>
    %sum{i} = arith.addf %value{i}, %value{i} : vector<8x128xf32>
    tpu.vector_store %out[%index{i}, %none], %sum{i} {{strides = array<i32>}} : {out}, vector<8x128xf32>,
"""
_STEP_OPERATIONS = 12


def unrolled(operations: int) -> Kernel:
    """A kernel of about that many operations."""
    steps = max(1, operations // _STEP_OPERATIONS)
    types = {"hbm": _HBM.format(rows=8 * steps), "out": _OUT.format(rows=8 * steps)}
    types |= {"ring": _RING, "semaphores": _SEMAPHORES, "semaphore": _SEMAPHORE, "piece": _PIECE}
    types |= {"semaphore_slot": _SEMAPHORE_SLOT, "slot": _SLOT, "buffer": _BUFFER}
    constants = "\n".join(f"    %slot{s} = arith.constant {s} : i32" for s in range(4))
    body = "".join(_STEP.format(i=i, s=i % 4, row=8 * i, **types) for i in range(steps))
    asm = f"""module {{
  func.func @unrolled(%x: {types["hbm"]}, %out: {types["out"]}, %ring: {_RING}, %sems: {_SEMAPHORES}) {{
    %zero = arith.constant 0 : i32
    %none = arith.constant 0 : index
{constants}{body}
    return
  }}
}}
"""
    return Kernel("unrolled", "mosaic_tpu", "dialect", "v5e", asm)


def main(sizes: list[int]) -> None:
    """Prints one row per size; the graph's time includes its networkx view."""
    print(
        f"{'operations':>10} {'edges':>9} {'graph s':>8} {'op/s':>8} {'reschedule s':>13} {'op/s':>8}"
    )
    Graph(unrolled(100)).nx  # noqa: B018  Imports networkx outside of the measurement.
    for size in sizes:
        graph = Graph(unrolled(size))
        start = time.perf_counter()
        view = graph.nx
        build = time.perf_counter() - start
        rng = random.Random(0)
        start = time.perf_counter()
        graph.reschedule(lambda op, rng=rng: rng.random())
        reschedule = time.perf_counter() - start
        count = len(view)
        print(
            f"{count:>10,} {view.number_of_edges():>9,} {build:>8.2f} {count / build:>8,.0f}"
            f" {reschedule:>13.2f} {count / reschedule:>8,.0f}"
        )


if __name__ == "__main__":
    main([int(n) for n in sys.argv[1:]] or [1_000, 10_000, 100_000])
