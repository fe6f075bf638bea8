"""`pipeline-depth` beyond two slots: the grid written out as a loop with rings of slots."""

from __future__ import annotations

import dataclasses
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from mosaic_passes.pipeline_depth import PipelineDepth
from mosaic_toolkit.capture import capture
from mosaic_toolkit.errors import Refused
from mosaic_toolkit.interpreter.execute import execute
from mosaic_toolkit.kernel import Kernel
from mosaic_toolkit.pass_pipeline import PassPipeline
from mosaic_toolkit.schedule import raise_schedule
from mosaic_toolkit.verify import verify

F32 = jnp.float32


def struct(*shape, dtype=F32):
    return jax.ShapeDtypeStruct(shape, dtype)


def the_kernel(fn, *args, target="v5e") -> Kernel:
    (kernel,) = capture(fn, *args, target=target)
    return kernel


def written_out(kernel: Kernel, stages: int, **options) -> Kernel:
    return PassPipeline((PipelineDepth(stages, **options),)).run(kernel).kernel


def add(x_ref, y_ref, o_ref):
    o_ref[...] = x_ref[...] + y_ref[...]


def stream(steps=6):
    rows = pl.BlockSpec((8, 128), lambda i: (i, 0))
    out = struct(8 * steps, 128)
    return pl.pallas_call(add, grid=(steps,), in_specs=[rows, rows], out_specs=rows, out_shape=out)


def matmul(x, y):
    def body(x_ref, y_ref, o_ref, acc_ref):
        @pl.when(pl.program_id(2) == 0)
        def _():
            acc_ref[...] = jnp.zeros_like(acc_ref)

        acc_ref[...] += jnp.dot(x_ref[...], y_ref[...], preferred_element_type=F32)

        @pl.when(pl.program_id(2) == pl.num_programs(2) - 1)
        def _():
            o_ref[...] = acc_ref[...]

    return pl.pallas_call(
        body,
        grid=(2, 2, 3),
        in_specs=[
            pl.BlockSpec((128, 128), lambda i, j, k: (i, k)),
            pl.BlockSpec((128, 128), lambda i, j, k: (k, j)),
        ],
        out_specs=pl.BlockSpec((128, 128), lambda i, j, k: (i, j)),
        out_shape=struct(256, 256),
        scratch_shapes=[pltpu.VMEM((128, 128), F32)],
    )(x, y)


def row_sums(x):
    """The output's block stays while the inner dimension goes on, and accumulates."""

    def body(x_ref, o_ref):
        @pl.when(pl.program_id(1) == 0)
        def _():
            o_ref[...] = jnp.zeros_like(o_ref)

        o_ref[...] += x_ref[...]

    return pl.pallas_call(
        body,
        grid=(3, 4),
        in_specs=[pl.BlockSpec((8, 128), lambda i, k: (i, k))],
        out_specs=pl.BlockSpec((8, 128), lambda i, k: (i, 0)),
        out_shape=struct(24, 128),
    )(x)


def gather(order, x):
    def body(order_ref, x_ref, o_ref):
        del order_ref
        o_ref[...] = x_ref[...] * 2

    grid = pltpu.PrefetchScalarGridSpec(
        num_scalar_prefetch=1,
        grid=(6,),
        in_specs=[pl.BlockSpec((8, 128), lambda i, order: (order[i], 0))],
        out_specs=pl.BlockSpec((8, 128), lambda i, order: (i, 0)),
    )
    return pl.pallas_call(body, grid_spec=grid, out_shape=struct(48, 128))(order, x)


def squeezed_and_still(x, w, s):
    """A squeezed dimension, an operand that never moves, and one in scalar memory."""

    def body(x_ref, w_ref, s_ref, o_ref):
        o_ref[...] = x_ref[...] * s_ref[0, 0] + w_ref[...]

    return pl.pallas_call(
        body,
        grid=(5,),
        in_specs=[
            pl.BlockSpec((None, 8, 128), lambda i: (i, 0, 0)),
            pl.BlockSpec((8, 128), lambda i: (0, 0)),
            pl.BlockSpec((8, 128), lambda i: (i, 0), memory_space=pltpu.SMEM),
        ],
        out_specs=pl.BlockSpec((None, 8, 128), lambda i: (i, 0, 0)),
        out_shape=struct(5, 8, 128),
    )(x, w, s)


KERNELS = {
    "stream": (stream(), [struct(48, 128)] * 2),
    "matmul": (matmul, [struct(256, 384), struct(384, 256)]),
    "row sums": (row_sums, [struct(24, 512)]),
    "gather": (gather, [struct(6, dtype=jnp.int32), struct(48, 128)]),
    "squeezed": (squeezed_and_still, [struct(5, 8, 128), struct(8, 128), struct(40, 128)]),
}


@pytest.fixture(scope="module", params=list(KERNELS))
def kernel(request) -> Kernel:
    fn, args = KERNELS[request.param]
    return the_kernel(fn, *args)


@pytest.mark.parametrize("stages", [3, 4])
def test_it_computes_the_same_bit_for_bit(kernel, stages):
    after = written_out(kernel, stages)
    result = verify(kernel, after, runs=2, schedules=4)
    assert result.verified, result
    assert result.agreement.identical


def test_each_moving_window_becomes_a_ring(kernel):
    moving = [w for w in raise_schedule(kernel).windows if w.depth == 2]
    buffers = {b.name: b for b in raise_schedule(written_out(kernel, 4)).buffers}
    assert moving
    for window in moving:
        assert buffers[f"{window.name}_slots"].shape == (4, *window.block)
    assert not raise_schedule(written_out(kernel, 4)).windows


def test_the_grid_may_be_shorter_than_the_pipeline():
    kernel = the_kernel(stream(2), *[struct(16, 128)] * 2)
    assert verify(kernel, written_out(kernel, 5), runs=1, schedules=3).verified


def test_only_the_named_windows_get_deeper():
    kernel = the_kernel(matmul, struct(256, 384), struct(384, 256))
    buffers = {
        b.name: b for b in raise_schedule(written_out(kernel, 3, buffers=("x_ref",))).buffers
    }
    depths = {name: b.shape[0] for name, b in buffers.items() if name.endswith("_slots")}
    assert depths == {"x_ref_slots": 3, "y_ref_slots": 2, "o_ref_slots": 2}
    after = written_out(kernel, 3, buffers=("x_ref",))
    assert verify(kernel, after, runs=1, schedules=3).verified


@pytest.mark.parametrize("steps", [0, 1, 5])
def test_a_grid_of_unknown_size(steps):
    def call(n, x):
        rows = pl.BlockSpec((8, 128), lambda i: (i, 0))

        def body(x_ref, o_ref):
            o_ref[...] = x_ref[...] + 1

        return pl.pallas_call(body, grid=(n,), in_specs=[rows], out_specs=rows, out_shape=x)(x)

    before = the_kernel(call, struct(dtype=jnp.int32), struct(64, 128))
    after = written_out(before, 3)
    inputs = [np.int32(steps), np.random.default_rng(0).random((64, 128), np.float32)]
    result = verify(before, after, inputs=inputs, schedules=4)
    assert result.verified, result
    (values,) = execute(after, inputs).results
    assert np.array_equal(values[0][: 8 * steps], inputs[1][: 8 * steps] + 1)


def back_and_forth(steps, stages_map):
    """Writes the blocks of its result in an order that comes back to them."""

    def body(x_ref, o_ref):
        o_ref[...] = x_ref[...] + pl.program_id(0)

    rows = pl.BlockSpec((8, 128), lambda i: (i, 0))
    out = pl.BlockSpec((8, 128), lambda i: (stages_map(i), 0))
    return pl.pallas_call(
        body, grid=(steps,), in_specs=[rows], out_specs=out, out_shape=struct(32, 128)
    )


@pytest.mark.parametrize(("stages", "depth"), [(3, 2), (4, 2)])
def test_a_result_whose_block_comes_again_too_soon_keeps_its_slots(stages, depth):
    """Two copies to one block would be on their way at once."""
    kernel = the_kernel(back_and_forth(6, lambda i: i % 2), struct(48, 128))
    after = written_out(kernel, stages)
    slots = {b.name: b.shape[0] for b in raise_schedule(after).buffers if "_slots" in b.name}
    assert slots == {"x_ref_slots": stages, "o_ref_slots": depth}
    assert verify(kernel, after, runs=1, schedules=4).verified
    with pytest.raises(Refused, match="'o_ref' comes again after 1 others"):
        written_out(kernel, stages, buffers=("o_ref",))


def test_a_result_whose_block_comes_again_late_gets_deeper():
    kernel = the_kernel(back_and_forth(8, lambda i: i % 4), struct(64, 128))
    after = written_out(kernel, 4)
    slots = {b.name: b.shape[0] for b in raise_schedule(after).buffers if "_slots" in b.name}
    assert slots == {"x_ref_slots": 4, "o_ref_slots": 4}
    assert verify(kernel, after, runs=1, schedules=4).verified


def test_a_result_whose_block_data_chooses_keeps_its_slots():
    def call(order, x):
        def body(order_ref, x_ref, o_ref):
            del order_ref
            o_ref[...] = x_ref[...]

        grid = pltpu.PrefetchScalarGridSpec(
            num_scalar_prefetch=1,
            grid=(6,),
            in_specs=[pl.BlockSpec((8, 128), lambda i, order: (i, 0))],
            out_specs=pl.BlockSpec((8, 128), lambda i, order: (order[i], 0)),
        )
        return pl.pallas_call(body, grid_spec=grid, out_shape=struct(48, 128))(order, x)

    kernel = the_kernel(call, struct(6, dtype=jnp.int32), struct(48, 128))
    after = written_out(kernel, 4)
    order = np.array([0, 1, 0, 1, 0, 2], np.int32)
    inputs = [order, np.random.default_rng(0).random((48, 128), np.float32)]
    assert verify(kernel, after, inputs=inputs, schedules=4).verified
    with pytest.raises(Refused, match="'o_ref' may come again at once"):
        written_out(kernel, 4, buffers=("o_ref",))


# --- what is refused --------------------------------------------------------------


def test_partial_blocks_are_refused():
    rows = pl.BlockSpec((16, 128), lambda i: (i, 0))
    fn = pl.pallas_call(
        add, grid=(3,), in_specs=[rows, rows], out_specs=rows, out_shape=struct(40, 128)
    )
    with pytest.raises(Refused, match="'x_ref' has partial blocks: dimension 0 of its array is 40"):
        written_out(the_kernel(fn, struct(40, 128), struct(40, 128)), 3)


def test_windows_on_one_array_are_refused():
    def body(x_ref, o_ref):
        o_ref[...] = x_ref[...] + 1

    rows = pl.BlockSpec((8, 128), lambda i: (i, 0))
    fn = pl.pallas_call(
        body,
        grid=(4,),
        in_specs=[rows],
        out_specs=rows,
        out_shape=struct(32, 128),
        input_output_aliases={0: 0},
    )
    with pytest.raises(Refused, match="windows 'x_ref' and 'o_ref' share one array"):
        written_out(the_kernel(fn, struct(32, 128)), 3)


def test_a_grid_that_two_cores_share_is_refused():
    rows = pl.BlockSpec((8, 128), lambda i: (i, 0))
    fn = pl.pallas_call(
        add,
        grid=(4,),
        in_specs=[rows, rows],
        out_specs=rows,
        out_shape=struct(32, 128),
        compiler_params=pltpu.CompilerParams(dimension_semantics=("parallel",)),
    )
    for_one = the_kernel(fn, struct(32, 128), struct(32, 128))
    assert written_out(for_one, 3) is not for_one
    for_two = dataclasses.replace(for_one, target="v5p")
    with pytest.raises(Refused, match="dimension 0 is split among the 2 cores of v5p"):
        written_out(for_two, 3)


def test_too_many_slots_are_refused_with_the_number_that_fits():
    rows = pl.BlockSpec((1024, 1024), lambda i: (i, 0))
    big = struct(4096, 1024)
    fn = pl.pallas_call(
        add, grid=(4,), in_specs=[rows, rows], out_specs=rows, out_shape=big,
        compiler_params=pltpu.CompilerParams(vmem_limit_bytes=64 * 2**20),
    )  # fmt: skip
    kernel = the_kernel(fn, big, big)
    assert written_out(kernel, 5) is not kernel
    with pytest.raises(Refused, match=r"6 stages need 72\.0 MiB .* 5 fit"):
        written_out(kernel, 6)


# --- sabotage: breaking what the pass wrote has to be noticed ---------------------


def without(kernel: Kernel, line: int) -> Kernel:
    lines = kernel.asm.splitlines()
    return dataclasses.replace(kernel, asm="\n".join(lines[:line] + lines[line + 1 :]))


@pytest.mark.parametrize("op", ["tpu.wait_dma", "tpu.enqueue_dma"])
def test_a_wait_or_a_copy_that_is_missing_is_noticed(op):
    fn, args = KERNELS["matmul"]
    before = the_kernel(fn, *args)
    after = written_out(before, 3)
    places = [n for n, text in enumerate(after.asm.splitlines()) if re.search(rf"\b{op}\b", text)]
    assert len(places) >= 6
    for place in places:
        assert not verify(before, without(after, place), runs=1, schedules=3).verified
