"""On-chip memory before compiling, against what compilers report and numbers worked out by hand."""

from __future__ import annotations

import dataclasses
import json
import os
import re
import subprocess
import sys

import jax
import jax.numpy as jnp
import pytest
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jax.experimental.pallas import triton as plt
from jax.experimental.pallas.ops.gpu import hopper_matmul_mgpu

from mosaic_toolkit.backends.gpu_memory import without_overlap
from mosaic_toolkit.backends.tpu_memory import tiled_size
from mosaic_toolkit.capture import capture
from mosaic_toolkit.compiling import failure
from mosaic_toolkit.errors import CompileError
from mosaic_toolkit.jax_compat import ir, make_context
from mosaic_toolkit.kernel import save
from mosaic_toolkit.memory_budget import memory_budget, remedies
from mosaic_toolkit.recompile import compile_kernel
from mosaic_toolkit.report import memory as report
from mosaic_toolkit.report.schedule import render_schedule, schedule_to_json
from mosaic_toolkit.schedule import Buffer, raise_schedule
from mosaic_toolkit.targets import TARGETS
from tests.corpus import budget as corpus_budget
from tests.installed import needs_tpu

struct = jax.ShapeDtypeStruct
ANY = pl.BlockSpec(memory_space=pl.ANY)
MiB = 1024 * 1024


def kernel_of(fn, *args, target="v5e"):
    (kernel,) = capture(fn, *args, target=target)
    return kernel


def budget_of(fn, *args, target="v5e"):
    return memory_budget(raise_schedule(kernel_of(fn, *args, target=target)))


def doubling(rows, **parameters):
    """Two windows of that many rows of 512 bytes, with two slots each, over four steps."""
    spec = pl.BlockSpec((rows, 128), lambda i: (i, 0))
    out = struct((4 * rows, 128), jnp.float32)

    def body(x_ref, o_ref):
        o_ref[...] = x_ref[...] * 2

    def call(x):
        return pl.pallas_call(
            body,
            grid=4,
            in_specs=[spec],
            out_specs=spec,
            out_shape=out,
            compiler_params=pltpu.CompilerParams(**parameters),
        )(x)

    return call, out


def over_budget(target="v5e", **parameters):
    call, x = doubling(9 * MiB // 2 // 512, **parameters)
    return kernel_of(call, x, target=target)


# As libtpu's list of allocations has them, in scratch and in windows of kernels of each type.
@pytest.mark.parametrize(
    ("type", "expected"),
    [
        ("1x128xf32", 512),
        ("3x128xf32", 2048),
        ("5x128xf32", 4096),
        ("12x128xf32", 8192),
        ("2x3x128xf32", 4096),
        ("2x1x128xf32", 1024),
        ("8x300xf32", 12288),
        ("100xf32", 512),
        ("1000xf32", 4096),
        ("1x128xbf16", 512),
        ("3x128xbf16", 1024),
        ("12x128xbf16", 4096),
        ("2x1x128xbf16", 1024),
        ("100xbf16", 512),
        ("1000xbf16", 2048),
        ("5x128xi8", 1024),
        ("40x128xi8", 5120),
        ("2x3x128xi8", 1024),
        ("1000xi8", 1024),
        ("8x128xi4", 512),
        ("20x128xi4", 1536),
    ],
)
def test_tiles_pad_as_the_compiler_pads(type, expected):
    with make_context():
        memref = ir.Type.parse(f"memref<{type}, 3 : i32>")
        assert tiled_size(memref) == expected


def test_scratch_below_a_byte_takes_whole_bytes():
    with make_context():
        memref = ir.Type.parse("memref<8x128xi4>")
        assert (tiled_size(memref), tiled_size(memref, whole_bytes=True)) == (512, 1024)


def test_an_unknown_dimension_gives_an_unknown_size():
    with make_context():
        assert tiled_size(ir.Type.parse("memref<?x128xf32>")) is None


def test_every_buffer_has_its_line_and_they_sum_to_the_total():
    def body(table, x_ref, o_ref, s_ref):
        o_ref[...] = x_ref[...] + s_ref[0, 0] + table[0].astype(jnp.float32)

    def call(table, x):
        return pl.pallas_call(
            body,
            grid_spec=pltpu.PrefetchScalarGridSpec(
                num_scalar_prefetch=1,
                grid=4,
                in_specs=[pl.BlockSpec((8, 128), lambda i, t: (i, 0))],
                out_specs=pl.BlockSpec((8, 128), lambda i, t: (i, 0)),
                scratch_shapes=[pltpu.VMEM((1, 100), jnp.float32)],
            ),
            out_shape=struct((32, 128), jnp.float32),
        )(table, x)

    budget = budget_of(call, struct((3,), jnp.int32), struct((32, 128), jnp.float32))
    vmem, smem = budget.use("vmem"), budget.use("smem")
    lines = [(b.name, b.kind, b.slots, b.packed_bytes, b.slot_bytes) for b in vmem.buffers]
    assert lines == [
        ("x_ref", "window", 2, 4096, 4096),
        ("o_ref", "window", 2, 4096, 4096),
        ("s_ref", "scratch", 1, 400, 512),
    ]
    assert vmem.bytes == 4 * 4096 + 512
    assert [(b.name, b.kind, b.bytes) for b in smem.buffers] == [("table", "scalar prefetch", 512)]
    assert not budget.over


def test_a_window_that_stays_has_one_slot():
    def body(x_ref, y_ref, o_ref):
        o_ref[...] = x_ref[...] + y_ref[...]

    def call(grid):
        row = pl.BlockSpec((8, 128), lambda i, j: (i, 0))
        by_j = pl.BlockSpec((8, 128), lambda i, j: (j, 0))
        return lambda x, y: pl.pallas_call(
            body, grid=grid, in_specs=[row, by_j], out_specs=row, out_shape=x
        )(x, y)

    x = struct((32, 128), jnp.float32)

    def slots(grid):
        return [b.slots for b in budget_of(call(grid), x, x).use("vmem").buffers]

    assert slots((4, 4)) == [2, 2, 2]
    assert slots((4, 1)) == [2, 1, 2]
    assert slots((1, 1)) == [1, 1, 1]


def scoped(outer_rows, *inner_rows):
    """A buffer that lives throughout and one after another inside."""

    def body(x_ref, o_ref):
        def outer(kept):
            pltpu.sync_copy(x_ref.at[pl.ds(0, outer_rows)], kept)
            for rows in inner_rows:

                def inner(buffer, rows=rows):
                    pltpu.sync_copy(x_ref.at[pl.ds(0, rows)], buffer)
                    pltpu.sync_copy(buffer, o_ref.at[pl.ds(0, rows)])

                pl.run_scoped(inner, pltpu.VMEM((rows, 128), jnp.float32))
            pltpu.sync_copy(kept, o_ref.at[pl.ds(0, outer_rows)])

        pl.run_scoped(outer, pltpu.VMEM((outer_rows, 128), jnp.float32))

    # Too large for XLA to put it into VMEM before the kernel starts.
    x = struct((512 * 1024, 128), jnp.float32)
    return lambda x: pl.pallas_call(body, in_specs=[ANY], out_specs=ANY, out_shape=x)(x), x


def test_scopes_that_follow_each_other_share_memory():
    call, x = scoped(128, 256, 320)
    vmem = budget_of(call, x).use("vmem")
    assert [(b.slot_bytes, b.overlaid) for b in vmem.buffers] == [
        (128 * 512, False),
        (256 * 512, True),
        (320 * 512, False),
    ]
    assert vmem.bytes == (128 + 320) * 512


@pytest.mark.parametrize(
    ("target", "parameters", "limit", "source"),
    [
        ("v5e", {}, 16 * MiB, "the compiler's default"),
        ("v6e", {}, 32 * MiB, "the compiler's default"),
        ("v4", {}, 16 * MiB, "the chip"),
        ("v5e", {"vmem_limit_bytes": 64 * MiB}, 64 * MiB, "the kernel"),
        ("v6e", {"vmem_limit_bytes": 1000 * MiB}, 128 * MiB - 64 * 1024, "the chip"),
    ],
)
def test_the_limit_is_the_kernels_the_compilers_or_the_chips(target, parameters, limit, source):
    vmem = memory_budget(raise_schedule(over_budget(target, **parameters))).use("vmem")
    assert (vmem.limit, vmem.limit_from) == (limit, source)
    assert vmem.excess == max(0, 18 * MiB - limit)


def test_over_budget_says_by_how_much_and_what_to_shrink():
    (vmem,) = memory_budget(raise_schedule(over_budget())).over
    assert vmem.excess == 2 * MiB
    assert [(r.action, r.buffers, r.saves) for r in remedies(vmem)] == [
        ("raise limit", (), 18 * MiB),
        ("one slot", (("x_ref", 9 * MiB // 2),), 9 * MiB // 2),
        ("shrink", (("x_ref", 9 * MiB),), 9 * MiB),
    ]
    (vmem,) = memory_budget(raise_schedule(over_budget("v4"))).over
    assert "raise limit" not in {r.action for r in remedies(vmem)}, "v4 has no more"


def test_a_buffer_that_is_mostly_padding_is_named():
    def body(x_ref, o_ref, thin_ref):
        thin_ref[...] = jnp.zeros_like(thin_ref)
        pltpu.sync_copy(x_ref, o_ref)

    def call(x):
        scratch = [pltpu.VMEM((20 * 1024, 8, 2), jnp.float32)]
        return pl.pallas_call(
            body, in_specs=[ANY], out_specs=ANY, out_shape=x, scratch_shapes=scratch
        )(x)

    budget = budget_of(call, struct((8, 128), jnp.float32))
    (vmem,) = budget.over
    assert vmem.bytes == 20 * 1024 * 4096
    assert remedies(vmem)[-1].action == "reshape"
    assert "padded from 1.2 MiB" in report.render_budget(budget)


def run(*arguments):
    return subprocess.run(
        [sys.executable, "-m", "mosaic_toolkit", *arguments],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )


def test_show_warns(tmp_path):
    path = save(over_budget(), tmp_path / "kernel.mlir")
    shown = run("show", str(path))
    assert shown.returncode == 0
    assert "vmem memory  18.0 MiB of 16.0 MiB (the compiler's default; v5e has 128.0 MiB)" in (
        shown.stdout
    )
    assert re.search(r"x_ref +window +9216x128 f32 +2 +4.5 MiB +9.0 MiB +56.2 %", shown.stdout)
    assert "warning: VMEM: 18.0 MiB of 16.0 MiB" in shown.stdout
    assert "is 2.0 MiB over" in shown.stdout
    assert "to fit: 1 slot of x_ref (4.5 MiB): 'pipeline-depth{stages=1 buffers=x_ref}'" in (
        shown.stdout
    )
    data = json.loads(run("show", str(path), "--json").stdout)["schedule"]["budget"]
    assert data["over"] == {"vmem": 2 * MiB}
    assert report.from_json(data) == memory_budget(raise_schedule(over_budget()))


def test_json_reads_back():
    schedule = raise_schedule(over_budget())
    data = json.loads(json.dumps(schedule_to_json(schedule)))
    assert report.from_json(data["budget"]) == memory_budget(schedule)
    assert data["memory"] == {"vmem": 18 * MiB}


@needs_tpu
def test_a_compile_without_room_carries_the_table():
    with pytest.raises(CompileError) as caught:
        compile_kernel(over_budget())
    assert re.search(r"total +18.0 MiB +112.5 %", caught.value.message)
    assert "1 slot of x_ref (4.5 MiB)" in (caught.value.hint or "")
    assert "vmem_limit_bytes=18874368" in (caught.value.hint or "")


@needs_tpu
def test_what_the_remedy_says_compiles():
    (vmem,) = memory_budget(raise_schedule(over_budget())).over
    (limit, *_) = remedies(vmem)
    compile_kernel(over_budget(vmem_limit_bytes=limit.saves))


def test_a_kernel_with_room_gets_the_general_hint():
    call, x = doubling(8)
    error = failure.does_not_fit(kernel_of(call, x), "Ran out of memory in memory space vmem")
    assert "total" in error.message
    assert "smaller blocks" in (error.hint or "")


@needs_tpu
def test_the_compiler_reports_what_was_budgeted(tmp_path):
    call, x = scoped(128, 256, 320)
    kernel = kernel_of(call, x)
    compiled = compile_kernel(kernel, dump_to=tmp_path)
    found = corpus_budget.check(kernel, compiled)
    (vmem,) = (memory for memory in found.memories if memory.space == "vmem")
    assert found.status == corpus_budget.WITHIN
    assert vmem.compiler == vmem.budget == (128 + 320) * 512


@needs_tpu
def test_the_corpus_check_can_fail(tmp_path):
    call, x = doubling(64 * 1024 // 512)
    kernel = kernel_of(call, x)
    compiled = compile_kernel(kernel, dump_to=tmp_path)
    assert corpus_budget.check(kernel, compiled).status == corpus_budget.WITHIN
    larger, y = doubling(128 * 1024 // 512)
    assert corpus_budget.check(kernel_of(larger, y), compiled).status == corpus_budget.OFF


# --- GPU ---------------------------------------------------------------------------


@pytest.fixture(scope="module")
def pipelined():
    """A ring of 4 slots of two tiles each, and the result's tile."""
    config = hopper_matmul_mgpu.TuningConfig(
        tile_m=128, tile_n=128, tile_k=64, max_concurrent_steps=4
    )
    square = struct((1024, 1024), jnp.float16)
    return kernel_of(
        lambda a, b: hopper_matmul_mgpu.matmul(a, b, None, config), square, square, target="h100"
    )


def test_gpu_buffers_and_barriers_sum_to_what_the_launch_reserves(pipelined):
    schedule = raise_schedule(pipelined)
    smem = memory_budget(schedule).use("smem")
    assert smem.bytes == dict(schedule.reserved)["smem"]
    assert smem.limit == TARGETS["h100"].capacity("smem")
    named = [b for b in smem.buffers if b.kind != "rest"]
    assert {"allocation", "mbarrier"} <= {b.kind for b in named}
    assert sum(b.bytes for b in named) >= 0.95 * smem.bytes


def test_gpu_over_budget(pipelined):
    launch = re.search(r"dynamic_shared_memory_size (%\w+)", pipelined.asm)
    constant = re.search(rf"{launch[1]} = arith\.constant (\d+)", pipelined.asm)
    asm = pipelined.asm.replace(constant[0], constant[0].replace(f" {constant[1]}", " 290000"))
    schedule = raise_schedule(dataclasses.replace(pipelined, asm=asm))
    budget = memory_budget(schedule)
    assert [use.excess for use in budget.over] == [290000 - 227 * 1024]
    assert "warning: SMEM: 283.2 KiB of 227.0 KiB (h100) is 56.2 KiB over" in (
        render_schedule(schedule)
    )
    assert all(name != "(rest)" for r in remedies(budget.over[0]) for name, _ in r.buffers)


def region(name, offset, size):
    return Buffer(name, "allocation", (size,), "i8", "smem", size, size, offset)


def test_of_overlapping_buffers_each_byte_counts_once():
    whole, first, second = (
        region("whole", 0, 8192),
        region("a", 0, 4096),
        region("b", 4096, 4096),
    )
    alias = region("alias", 0, 2048)
    marked = without_overlap([whole, first, second, alias])
    assert {b.name for b in marked if b.overlaid} == {"whole", "alias"}
    assert not any(b.overlaid for b in without_overlap([first, second]))


def test_triton_says_that_it_decides_later():
    def body(x_ref, o_ref):
        o_ref[...] = x_ref[...] * 2

    def call(x):
        return pl.pallas_call(body, out_shape=x, compiler_params=plt.CompilerParams(num_warps=4))(x)

    schedule = raise_schedule(kernel_of(call, struct((64, 64), jnp.float32), target="h100"))
    assert memory_budget(schedule).memories == ()
    assert "shared memory: Triton's compiler decides it" in render_schedule(schedule)
