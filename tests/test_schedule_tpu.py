"""The schedule of Mosaic TPU kernels, against numbers worked out by hand."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import pytest
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from mosaic_toolkit.capture import capture
from mosaic_toolkit.kernel import Kernel
from mosaic_toolkit.schedule import GridDimension, Loop, Schedule, Unread, raise_schedule

struct = jax.ShapeDtypeStruct
ROWS = pl.BlockSpec((128, 128), lambda i: (i, 0))


def schedule_of(fn, *args) -> Schedule:
    (kernel,) = capture(fn, *args, target="v5e")
    return raise_schedule(kernel)


def written(text: str) -> Schedule:
    return raise_schedule(Kernel("k", "mosaic_tpu", "dialect", "v5e", text))


def matmul(x, y, mode=None):
    def body(x_ref, y_ref, o_ref, acc_ref):
        @pl.when(pl.program_id(2) == 0)
        def _():
            acc_ref[...] = jnp.zeros_like(acc_ref)

        acc_ref[...] += jnp.dot(x_ref[...], y_ref[...], preferred_element_type=jnp.float32)

        @pl.when(pl.program_id(2) == pl.num_programs(2) - 1)
        def _():
            o_ref[...] = acc_ref[...].astype(o_ref.dtype)

    return pl.pallas_call(
        body,
        grid=(2, 4, 8),
        in_specs=[
            pl.BlockSpec((256, 128), lambda i, j, k: (i, k), pipeline_mode=mode),
            pl.BlockSpec((128, 256), lambda i, j, k: (k, j)),
        ],
        out_specs=pl.BlockSpec((256, 256), lambda i, j, k: (i, j)),
        out_shape=struct((512, 1024), jnp.bfloat16),
        scratch_shapes=[pltpu.VMEM((256, 256), jnp.float32)],
        compiler_params=pltpu.CompilerParams(
            dimension_semantics=("parallel", "parallel", "arbitrary")
        ),
    )(x, y)


MATMUL = (struct((512, 1024), jnp.bfloat16), struct((1024, 1024), jnp.bfloat16))


def test_grid_and_windows_of_a_matmul():
    schedule = schedule_of(matmul, *MATMUL)
    assert schedule.core_type == "tc"
    assert schedule.grid == (
        GridDimension(2, "parallel"),
        GridDimension(4, "parallel"),
        GridDimension(8, "arbitrary"),
    )
    facts = [
        (w.name, w.direction, w.block, w.dtype, w.space, w.index_map, w.depth, w.slot_bytes)
        for w in schedule.windows
    ]
    assert facts == [
        ("x_ref", "in", (256, 128), "bf16", "vmem", "(i, k)", 2, 65536),
        ("y_ref", "in", (128, 256), "bf16", "vmem", "(k, j)", 2, 65536),
        ("o_ref", "out", (256, 256), "bf16", "vmem", "(i, j)", 2, 131072),
    ]
    (acc,) = schedule.buffers
    assert (acc.name, acc.kind, acc.bytes) == ("acc_ref", "scratch", 256 * 256 * 4)
    assert schedule.memory() == {"vmem": 2 * (65536 + 65536 + 131072) + 262144}
    assert schedule.unread == ()


def test_synchronous_window_has_one_slot():
    window = schedule_of(functools.partial(matmul, mode=pl.Buffered(1)), *MATMUL).windows[0]
    assert (window.pipeline_mode, window.depth, window.bytes) == ("synchronous", 1, 65536)


@pytest.mark.parametrize(
    ("dtype", "element", "slot_bytes"),
    [
        (jnp.float32, "f32", 64 * 128 * 4),
        (jnp.bfloat16, "bf16", 64 * 128 * 2),
        (jnp.int8, "i8", 64 * 128),
        (jnp.int4, "i4", 64 * 128 // 2),
        (jnp.float8_e4m3fn, "f8E4M3FN", 64 * 128),
        (jnp.bool_, "i32", 64 * 128 * 4),  # Pallas hands a bool to Mosaic as an i32
    ],
)
def test_slots_are_counted_packed(dtype, element, slot_bytes):
    def call(x):
        block = pl.BlockSpec((64, 128), lambda i: (i, 0))

        def body(x_ref, o_ref):
            o_ref[...] = x_ref[...].astype(jnp.float32)

        out = struct(x.shape, jnp.float32)
        return pl.pallas_call(body, grid=(2,), in_specs=[block], out_specs=block, out_shape=out)(x)

    window = schedule_of(call, struct((128, 128), dtype)).windows[0]
    assert (window.dtype, window.slot_bytes) == (element, slot_bytes)


def test_explicit_dma_with_scratch_and_semaphores():
    def body(x_hbm, o_ref, buffer, sems):
        rows = pl.ds(pl.program_id(0) * 128, 128)
        copy = pltpu.make_async_copy(x_hbm.at[rows], buffer, sems.at[1])
        copy.start()
        copy.wait()
        o_ref[...] = buffer[...] * 2

    def call(x):
        return pl.pallas_call(
            body,
            grid=(8,),
            in_specs=[pl.BlockSpec(memory_space=pl.ANY)],
            out_specs=ROWS,
            out_shape=x,
            scratch_shapes=[pltpu.VMEM((128, 128), jnp.float32), pltpu.SemaphoreType.DMA((2,))],
        )(x)

    schedule = schedule_of(call, struct((1024, 128), jnp.float32))
    (copy,) = schedule.copies
    assert (copy.source, copy.target, copy.semaphore) == ("x_hbm", "buffer", "sems")
    assert (copy.direction, copy.bytes) == ("any -> vmem", 65536)
    assert (copy.operations, copy.executions, copy.remote) == (1, 1, False)
    (semaphore,) = schedule.semaphores
    assert (semaphore.name, semaphore.kind, semaphore.count) == ("sems", "dma", 2)
    (wait,) = schedule.waits
    assert (wait.kind, wait.semaphore) == ("dma", "sems")
    assert schedule.memory() == {"vmem": 2 * 65536 + 65536}
    assert [w.name for w in schedule.windows] == ["o_ref"]


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_remote_dma_is_remote_and_waits_for_both_ends():
    def body(x_hbm, o_hbm, sent, received):
        copy = pltpu.make_async_remote_copy(
            x_hbm, o_hbm, sent, received, device_id=1, device_id_type=pl.DeviceIdType.LOGICAL
        )
        copy.start()
        copy.wait()

    def call(x):
        anywhere = pl.BlockSpec(memory_space=pl.ANY)
        return pl.pallas_call(
            body,
            in_specs=[anywhere],
            out_specs=anywhere,
            out_shape=x,
            scratch_shapes=[pltpu.SemaphoreType.DMA] * 2,
        )(x)

    schedule = schedule_of(call, struct((1024, 128), jnp.float32))
    (copy,) = schedule.copies
    assert copy.remote
    assert copy.semaphore == "received"
    assert [(w.kind, w.semaphore) for w in schedule.waits] == [
        ("dma", "sent"),
        ("dma", "received"),
    ]


def test_written_out_pipeline_shows_its_rings_and_its_loop():
    def body(x_hbm, o_hbm):
        def step(x_ref, o_ref):
            o_ref[...] = x_ref[...] + 1

        pltpu.emit_pipeline(
            step,
            grid=(8,),
            in_specs=[pl.BlockSpec((128, 128), lambda i: (i, 0), pipeline_mode=pl.Buffered(3))],
            out_specs=[ROWS],
        )(x_hbm, o_hbm)

    def call(x):
        anywhere = pl.BlockSpec(memory_space=pl.ANY)
        return pl.pallas_call(body, in_specs=[anywhere], out_specs=anywhere, out_shape=x)(x)

    schedule = schedule_of(call, struct((1024, 128), jnp.float32))
    assert schedule.windows == ()
    rings = [b for b in schedule.buffers if b.kind == "allocation"]
    assert [(b.shape, b.bytes) for b in rings] == [
        ((3, 128, 128), 3 * 65536),
        ((2, 128, 128), 2 * 65536),
    ]
    assert [(c.source, c.target) for c in schedule.copies] == [
        ("x_hbm", rings[0].name),
        (rings[1].name, "o_hbm"),
    ]
    assert schedule.copies[0].operations == 3  # two in the prologue, one in the loop
    assert [s.count for s in schedule.semaphores] == [3, 2]
    (loop,) = schedule.loops
    assert (loop.kind, loop.trip_count, loop.nesting) == ("for", 8, 0)
    assert schedule.memory() == {"vmem": 5 * 65536}


WRITTEN = """
module @k {
  func.func @k(%i: i32, %j: i32, %table: memref<7xi32, #tpu.memory_space<smem>> loc("table"),
      %x: memref<8x128xf32, #tpu.memory_space<vmem>> loc("x_ref"),
      %o: memref<8x128xf32, #tpu.memory_space<vmem>>)
      attributes {dimension_semantics = [#tpu.dimension_semantics<arbitrary>,
        #tpu.dimension_semantics<arbitrary>],
      iteration_bounds = array<i64: 3, -9223372036854775808>, scalar_prefetch = 1 : i64,
      scratch_operands = 0 : i64, tpu.core_type = #tpu.core_type<tc>, window_params = [
      {transform_indices = @transform_0, window_bounds = array<i64: 8, 128>},
      {transform_indices = @transform_1, window_bounds = array<i64: 8, 128>}]} {
    %c0 = arith.constant 0 : i32
    %c1 = arith.constant 1 : i32
    %c9 = arith.constant 9 : i32
    scf.for %s = %c1 to %c9 step %c1 : i32 {
      scf.for %t = %c0 to %j step %c1 : i32 {
      }
    }
    return
  }
  func.func @transform_0(%i: i32, %j: i32, %table: memref<7xi32, #tpu.memory_space<smem>>)
      -> (i32, i32) {
    %c2 = arith.constant 2 : i32
    %double = arith.muli %j, %c2 : i32
    %at = arith.index_cast %i : i32 to index
    %block = memref.load %table[%at] : memref<7xi32, #tpu.memory_space<smem>>
    %row = arith.addi %block, %double : i32
    %c6 = arith.constant 6 : i32
    %last = arith.minsi %row, %c6 : i32
    %zero = arith.subi %c2, %c2 : i32
    return %last, %zero : i32, i32
  }
  func.func @transform_1(%i: i32, %j: i32, %table: memref<7xi32, #tpu.memory_space<smem>>)
      -> (i32, i32) {
    %size = math.absi %i : i32
    return %size, %j : i32, i32
  }
}
"""


def test_dynamic_bounds_index_maps_and_loops_are_read_or_named():
    schedule = written(WRITTEN)
    assert [d.bound for d in schedule.grid] == [3, None]
    x, o = schedule.windows
    assert (x.name, x.index_map) == ("x_ref", "(min(table[i] + j * 2, 6), 0)")
    assert (o.name, o.index_map, o.direction) == ("arg4", None, None)
    assert Unread("index map of arg4", "it depends on math.absi") in schedule.unread
    assert any(u.what == "directions of the windows" for u in schedule.unread)
    (table,) = schedule.buffers
    assert (table.name, table.kind, table.bytes) == ("table", "scalar prefetch", 28)
    assert schedule.loops == (Loop("for", 8, 0, 0), Loop("for", None, 1, 0))


def test_module_without_a_kernel_is_named():
    schedule = written("module { func.func private @f() }")
    assert [u.what for u in schedule.unread] == ["the kernel"]
