"""TPU grids: windows that are revisited, cut off, aliased, prefetched; several cores."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from mosaic_toolkit.interpreter.execute import Setting, execute
from mosaic_toolkit.interpreter.findings import OUT_OF_BOUNDS, RACE
from mosaic_toolkit.interpreter.machine import Timing
from tests.interpreter.tpu_kernels import captured, kinds

F32 = jnp.float32
SETTINGS = [Setting(timing=timing, poison=poison) for timing in Timing for poison in (0, 1)]


def array(*shape: int) -> np.ndarray:
    return np.random.default_rng(0).standard_normal(shape, np.float32)


def check(kernel, inputs, expected, rtol=1e-5) -> None:
    """The kernel gives `expected` under every timing, and nothing is wrong with it."""
    for setting in SETTINGS:
        execution = execute(kernel, inputs, setting)
        assert not execution.findings, execution.findings
        np.testing.assert_allclose(execution.results[0][0], expected, rtol=rtol, atol=1e-5)


def call(kernel, grid, in_specs, out_specs, shape, **options):
    out = jax.ShapeDtypeStruct(shape, F32)
    return pl.pallas_call(
        kernel, grid=grid, in_specs=in_specs, out_specs=out_specs, out_shape=out, **options
    )


def double(x_ref, o_ref):
    o_ref[...] = x_ref[...] * 2


def test_a_block_that_is_revisited_keeps_what_it_holds():
    def accumulate(x_ref, o_ref):
        @pl.when(pl.program_id(1) == 0)
        def _():
            o_ref[...] = jnp.zeros_like(o_ref)

        o_ref[...] += x_ref[...]

    function = call(
        accumulate,
        (2, 4),
        [pl.BlockSpec((8, 128), lambda i, j: (i, j))],
        pl.BlockSpec((8, 128), lambda i, j: (i, 0)),
        (16, 128),
    )
    x = array(16, 512)
    check(captured(function, x), [x], x.reshape(16, 4, 128).sum(1))


def test_a_block_that_comes_back_later_has_lost_it():
    def accumulate(x_ref, o_ref):
        @pl.when(pl.program_id(0) == 0)
        def _():
            o_ref[...] = jnp.zeros_like(o_ref)

        o_ref[...] += x_ref[...]

    function = call(
        accumulate,
        (2, 2),
        [pl.BlockSpec((8, 128), lambda j, i: (i, j))],
        pl.BlockSpec((8, 128), lambda j, i: (i, 0)),
        (16, 128),
    )
    x = array(16, 256)
    execution = execute(captured(function, x), [x])
    assert execution.suspects
    assert np.isnan(execution.results[0][0]).any()


@pytest.mark.parametrize("rows", [13, 16, 17])
def test_blocks_at_the_edge_are_cut_off(rows):
    function = call(
        double,
        (pl.cdiv(rows, 8),),
        [pl.BlockSpec((8, 128), lambda i: (i, 0))],
        pl.BlockSpec((8, 128), lambda i: (i, 0)),
        (rows, 128),
    )
    x = array(rows, 128)
    check(captured(function, x), [x], 2 * x)


def test_a_block_outside_of_its_array_is_out_of_bounds():
    function = call(
        double,
        (2,),
        [pl.BlockSpec((8, 128), lambda i: (i + 1, 0))],
        pl.BlockSpec((8, 128), lambda i: (i, 0)),
        (16, 128),
    )
    execution = execute(captured(function, array(16, 128)), [array(16, 128)])
    assert kinds(execution) == [OUT_OF_BOUNDS]


def test_an_aliased_operand_is_overwritten_block_by_block():
    function = call(
        double,
        (2,),
        [pl.BlockSpec((8, 128), lambda i: (i, 0))],
        pl.BlockSpec((8, 128), lambda i: (i, 0)),
        (24, 128),
        input_output_aliases={0: 0},
    )
    x = array(24, 128)
    expected = np.concatenate([2 * x[:16], x[16:]])
    check(captured(jax.jit(function, donate_argnums=0), x), [x], expected)


def test_prefetched_scalars_choose_the_blocks():
    def copy(order_ref, x_ref, o_ref):
        o_ref[...] = x_ref[...] + order_ref[pl.program_id(0)].astype(F32)

    spec = pltpu.PrefetchScalarGridSpec(
        num_scalar_prefetch=1,
        grid=(4,),
        in_specs=[pl.BlockSpec((8, 128), lambda i, order: (order[i], 0))],
        out_specs=pl.BlockSpec((8, 128), lambda i, order: (i, 0)),
    )
    out = jax.ShapeDtypeStruct((32, 128), F32)
    function = pl.pallas_call(copy, grid_spec=spec, out_shape=out)
    order, x = np.array([2, 0, 3, 3], np.int32), array(32, 128)
    expected = x.reshape(4, 8, 128)[order] + order[:, None, None]
    check(captured(function, order, x), [order, x], expected.reshape(32, 128))


def test_a_grid_whose_bound_is_an_operand():
    def run(n, x):
        return call(
            double,
            (n,),
            [pl.BlockSpec((8, 128), lambda i: (i, 0))],
            pl.BlockSpec((8, 128), lambda i: (i, 0)),
            (32, 128),
        )(x)

    x = array(32, 128)
    execution = execute(captured(run, jnp.int32(3), x), [np.array(3, np.int32), x])
    assert not execution.findings
    np.testing.assert_array_equal(execution.results[0][0][:24], 2 * x[:24])
    assert execution.unwritten == 8 * 128


def test_a_window_counted_in_elements():
    def add(x_ref, o_ref):
        o_ref[...] = x_ref[:8] + x_ref[8:]

    function = call(
        add,
        (3,),
        [pl.BlockSpec((pl.Element(16), pl.Element(128)), lambda i: (i * 8, 0))],
        pl.BlockSpec((8, 128), lambda i: (i, 0)),
        (24, 128),
    )
    x = array(32, 128)
    check(captured(function, x), [x], x[:24] + x[8:])


def test_a_window_with_one_slot():
    spec = functools.partial(pl.BlockSpec, (8, 128), lambda i: (i, 0))
    function = call(double, (4,), [spec(pipeline_mode=pl.Buffered(1))], spec(), (32, 128))
    x = array(32, 128)
    check(captured(function, x), [x], 2 * x)


def test_without_a_grid_everything_is_on_the_chip():
    function = pl.pallas_call(double, out_shape=jax.ShapeDtypeStruct((8, 128), F32))
    x = array(8, 128)
    check(captured(function, x), [x], 2 * x)


# --- two cores that share a kernel --------------------------------------------------------------


def parallel(kernel, out_index, target, **options):
    function = call(
        kernel,
        (4, 2),
        [pl.BlockSpec((8, 128), lambda i, j: (i, j))],
        pl.BlockSpec((8, 128), out_index),
        (32, 256),
        compiler_params=pltpu.CompilerParams(dimension_semantics=("parallel", "arbitrary")),
        **options,
    )
    return captured(function, array(32, 256), target=target)


@pytest.mark.parametrize("target", ["v5e", "v5p"])
def test_steps_of_a_parallel_dimension_are_independent(target):
    x = array(32, 256)
    check(parallel(double, lambda i, j: (i, j), target), [x], 2 * x)


def test_two_cores_that_write_the_same_block_race():
    kernel = parallel(double, lambda i, j: (0, 0), "v5p")
    assert RACE in kinds(execute(kernel, [array(32, 256)]))


def test_a_state_carried_along_a_parallel_dimension_is_not_there_on_the_other_core():
    def running_sum(x_ref, o_ref, sum_ref):
        @pl.when((pl.program_id(0) == 0) & (pl.program_id(1) == 0))
        def _():
            sum_ref[...] = jnp.zeros_like(sum_ref)

        sum_ref[...] += x_ref[...]
        o_ref[...] = sum_ref[...]

    scratch = [pltpu.VMEM((8, 128), F32)]
    make = functools.partial(parallel, running_sum, lambda i, j: (i, j), scratch_shapes=scratch)
    x = array(32, 256)
    alone, shared = (execute(make(target=target), [x]) for target in ("v5e", "v5p"))
    assert not np.isnan(alone.results[0][0]).any()
    assert shared.suspects
    assert np.isnan(shared.results[0][0]).any()


# --- values that only the chip has ----------------------------------------------------------------


def test_random_bits_are_a_stand_in_that_the_seed_decides():
    def noise(seed_ref, o_ref):
        pltpu.prng_seed(seed_ref[0])
        o_ref[...] = pltpu.prng_random_bits(o_ref.shape)

    function = pl.pallas_call(
        noise,
        in_specs=[pl.BlockSpec(memory_space=pltpu.SMEM)],
        out_shape=jax.ShapeDtypeStruct((8, 128), jnp.int32),
    )
    seeds = [np.array([seed], np.int32) for seed in (1, 1, 2)]
    kernel = captured(function, seeds[0])
    runs = [execute(kernel, [seed]) for seed in seeds]
    first, again, other = (run.results[0][0] for run in runs)
    np.testing.assert_array_equal(first, again)
    assert not np.array_equal(first, other)
    assert "random bits" in runs[0].stand_ins[0]
