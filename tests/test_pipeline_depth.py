"""`pipeline-depth`: what it sets, what it leaves alone, and what it refuses."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
import pytest
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from mosaic_passes.pipeline_depth import PipelineDepth
from mosaic_toolkit.capture import capture
from mosaic_toolkit.errors import Refused
from mosaic_toolkit.kernel import Kernel
from mosaic_toolkit.pass_pipeline import PassPipeline
from mosaic_toolkit.schedule import raise_schedule
from tests.corpus.jax_tpu import cases
from tests.golden import kernel_of

ROWS = pl.BlockSpec((256, 128), lambda i: (i, 0))
X = jax.ShapeDtypeStruct((1024, 128), jnp.float32)
WEIGHTS = jax.ShapeDtypeStruct((256, 128), jnp.float32)
SCALES = jax.ShapeDtypeStruct((32, 128), jnp.float32)


def the_kernel(fn, *args) -> Kernel:
    (kernel,) = capture(fn, *args, target="v5e")
    return kernel


@pytest.fixture(scope="module")
def scaled() -> Kernel:
    """Windows of every kind: x and o move, w never does, s is in SMEM, h stays in HBM."""

    def body(x_ref, w_ref, s_ref, h_ref, o_ref):
        del h_ref
        o_ref[...] = x_ref[...] * s_ref[0, 0] + w_ref[...]

    def call(x, w, s, h):
        return pl.pallas_call(
            body,
            grid=(4,),
            in_specs=[
                ROWS,
                pl.BlockSpec((256, 128), lambda i: (0, 0)),
                pl.BlockSpec((8, 128), lambda i: (i, 0), memory_space=pltpu.SMEM),
                pl.BlockSpec(memory_space=pl.ANY),
            ],
            out_specs=ROWS,
            out_shape=X,
        )(x, w, s, h)

    return the_kernel(call, X, WEIGHTS, SCALES, X)


def add(x_ref, y_ref, o_ref):
    o_ref[...] = x_ref[...] + y_ref[...]


def modes(kernel):
    return {window.name: window.pipeline_mode for window in raise_schedule(kernel).windows}


def depths(kernel: Kernel) -> dict[str, int | None]:
    return {window.name: window.depth for window in raise_schedule(kernel).windows}


def apply(kernel: Kernel, *args, **options) -> Kernel:
    return PassPipeline((PipelineDepth(*args, **options),)).run(kernel).kernel


def test_the_default_is_two_buffers(scaled):
    assert depths(scaled) == {"x_ref": 2, "w_ref": 1, "s_ref": 2, "o_ref": 2}
    assert apply(scaled, 2) is scaled


def test_one_buffer(scaled):
    assert set(depths(apply(scaled, 1)).values()) == {1}


def test_there_and_back(scaled):
    one = apply(scaled, 1)
    two = apply(one, 2)
    assert depths(two) == depths(scaled)
    assert apply(two, 1) == one
    assert apply(apply(two, 1), 2) == two


def test_only_the_modes_change(scaled):
    one = apply(scaled, 1)
    assert one.asm != scaled.asm
    mode = "pipeline_mode = #tpu.pipeline_mode<synchronous>, "
    assert one.text().replace(mode, "") == scaled.text().replace(mode, "")
    assert dataclasses.replace(one, asm=scaled.asm) == scaled


def test_chosen_operands(scaled):
    one = apply(scaled, 1, buffers=("x_ref", "s_ref"))
    assert depths(one) == {"x_ref": 1, "w_ref": 1, "s_ref": 1, "o_ref": 2}
    assert apply(one, 2, buffers=("s_ref",)) != one
    assert depths(apply(one, 2, buffers=("s_ref",)))["x_ref"] == 1


def test_operands_by_argument_number(scaled):
    assert apply(scaled, 1, buffers=("arg1",)) == apply(scaled, 1, buffers=("x_ref",))


def test_a_window_that_never_moves_is_set_only_if_named(scaled):
    two = apply(scaled, 2, buffers=("w_ref",))
    assert modes(two)["w_ref"] == "double_buffered"
    assert modes(apply(two, 1)) == {
        "x_ref": "synchronous",
        "w_ref": "double_buffered",
        "s_ref": "synchronous",
        "o_ref": "synchronous",
    }
    assert depths(two)["w_ref"] == 1, "the compiler makes one buffer of a block that stays"


def test_it_is_what_pallas_writes_for_buffered():
    def call(mode):
        spec = pl.BlockSpec((256, 128), lambda i: (i, 0), pipeline_mode=mode)
        fn = pl.pallas_call(add, grid=(4,), in_specs=[spec, ROWS], out_specs=ROWS, out_shape=X)
        return the_kernel(fn, X, X)

    by_hand, default = call(pl.Buffered(1)), call(None)
    assert apply(default, 1, buffers=("x_ref",)).text() == by_hand.text()
    assert apply(by_hand, 2).text() == call(pl.Buffered(2)).text()


def test_scalar_prefetch_stands_before_the_windows():
    def body(order_ref, x_ref, o_ref):
        del order_ref
        o_ref[...] = x_ref[...]

    grid = pltpu.PrefetchScalarGridSpec(
        num_scalar_prefetch=1,
        grid=(4,),
        in_specs=[pl.BlockSpec((256, 128), lambda i, order: (order[i], 0))],
        out_specs=pl.BlockSpec((256, 128), lambda i, order: (i, 0)),
    )
    order = jax.ShapeDtypeStruct((4,), jnp.int32)
    kernel = the_kernel(pl.pallas_call(body, grid_spec=grid, out_shape=X), order, X)
    assert depths(apply(kernel, 1, buffers=("x_ref",))) == {"x_ref": 1, "o_ref": 2}
    assert apply(kernel, 1, buffers=("arg2",)) == apply(kernel, 1, buffers=("x_ref",))
    with pytest.raises(Refused, match="no window 'order_ref'"):
        apply(kernel, 1, buffers=("order_ref",))


@pytest.mark.parametrize("stages", [0, -1])
def test_less_than_one_is_refused(scaled, stages):
    with pytest.raises(Refused, match="at least 1 slot"):
        apply(scaled, stages)


def test_an_unknown_operand_is_refused_with_the_names(scaled):
    with pytest.raises(Refused, match="no window 'y_ref'") as caught:
        apply(scaled, 1, buffers=("x_ref", "y_ref"))
    assert caught.value.hint == "its windows: x_ref, w_ref, s_ref, o_ref"


@pytest.mark.parametrize("name", ["h_ref", "arg4"])
def test_an_operand_that_stays_in_hbm_is_refused(scaled, name):
    with pytest.raises(Refused, match=f"'{name}' is no window: the grid pipeline does not move it"):
        apply(scaled, 1, buffers=(name,))


def test_one_name_for_two_operands_is_refused():
    def twice(same, *refs):
        (other, o_ref) = refs
        o_ref[...] = same[...] + other[...]

    fn = pl.pallas_call(twice, grid=(4,), in_specs=[ROWS, ROWS], out_specs=ROWS, out_shape=X)
    kernel = the_kernel(fn, X, X)
    asm = kernel.asm.replace('loc("refs[0]")', 'loc("same")')
    assert asm != kernel.asm
    both = dataclasses.replace(kernel, asm=asm)
    with pytest.raises(Refused, match="'same' names 2 windows") as caught:
        apply(both, 1, buffers=("same",))
    assert caught.value.hint == "write one of arg1, arg2"


def test_revisiting_in_any_order_takes_one_buffer():
    def call(x, y):
        mode = pl.Buffered(1, revisit=pl.RevisitMode.ANY)
        out = pl.BlockSpec((256, 128), lambda i: (i, 0), pipeline_mode=mode)
        return pl.pallas_call(add, grid=(4,), in_specs=[ROWS, ROWS], out_specs=out, out_shape=X)(
            x, y
        )

    if not hasattr(pl, "RevisitMode"):
        pytest.skip("this JAX has no revisit modes")
    kernel = the_kernel(call, X, X)
    assert apply(kernel, 1, buffers=("o_ref",)) is kernel
    with pytest.raises(Refused, match="window 'o_ref' is revisited in any order"):
        apply(kernel, 2)


def test_buffers_that_the_chip_has_no_room_for_are_refused():
    def call(x):
        def body(x_ref, o_ref):
            o_ref[...] = x_ref[...]

        mode = pl.Buffered(1)
        block = pl.BlockSpec((1536, 1024), lambda i: (i, 0), pipeline_mode=mode)
        return pl.pallas_call(
            body,
            grid=(4,),
            in_specs=[block],
            out_specs=block,
            out_shape=x,
            compiler_params=pltpu.CompilerParams(vmem_limit_bytes=32 * 2**20),
        )(x)

    large = jax.ShapeDtypeStruct((6144, 1024), jnp.float32)
    for_v5e = the_kernel(call, large)
    assert set(depths(apply(for_v5e, 2)).values()) == {2}
    for_v4 = dataclasses.replace(for_v5e, target="v4")
    with pytest.raises(
        Refused,
        match=r"2 stages need 24\.0 MiB of VMEM, of which the chip gives .*: 1 fit \(kernel",
    ):
        apply(for_v4, 2)
    with pytest.raises(Refused, match=r"2 stages need 18\.0 MiB of VMEM"):
        apply(for_v4, 2, buffers=("x_ref",))
    assert apply(for_v4, 1) is for_v4


def test_window_params_that_fit_no_operands_are_refused(scaled):
    asm = scaled.asm.replace("scalar_prefetch = 0", "scalar_prefetch = 3")
    with pytest.raises(Refused, match="5 window_params for 2 operands"):
        apply(dataclasses.replace(scaled, asm=asm), 1)


def test_a_kernel_without_a_grid_is_refused():
    kernel = the_kernel(pl.pallas_call(add, out_shape=X), X, X)
    with pytest.raises(Refused, match="has no grid windows: it runs once") as caught:
        apply(kernel, 1)
    assert "block specs" in caught.value.hint


def test_a_kernel_that_copies_its_operands_itself_is_refused():
    kernel = kernel_of("dumps/kernels/dma_ring_tpu.py::scale float32[1024,512]", "v5e")
    with pytest.raises(Refused, match="pipeline-depth: the kernel has no grid windows"):
        apply(kernel, 1)


def test_a_grid_without_windows_is_refused():
    def body(x_ref, o_ref):
        pltpu.sync_copy(x_ref, o_ref)

    any_space = pl.BlockSpec(memory_space=pl.ANY)
    fn = pl.pallas_call(body, grid=(4,), in_specs=[any_space], out_specs=any_space, out_shape=X)
    with pytest.raises(Refused, match=r"moves none of its operands \(x_ref, o_ref\)"):
        apply(the_kernel(fn, X), 1)


def test_a_triton_kernel_is_refused():
    kernel = kernel_of("dumps/kernels/softmax_triton.py::softmax float32[128,256]", "h100")
    with pytest.raises(Refused, match=r"^triton kernel; pipeline-depth needs mosaic_tpu"):
        apply(kernel, 1)


LIBRARY = [
    "jax/tpu/matmul/",
    "jax/tpu/flash_attention/",
    "jax/tpu/splash_attention/sinks_fwd",
    "jax/tpu/paged_attention/int8",
    "jax/tpu/ragged_paged_attention/bf16",
    "jax/tpu/megablox/gmm_bf16_bwd",
]


@pytest.mark.parametrize("prefix", LIBRARY)
def test_library_kernels(prefix):
    case = next(case for case in cases() if case.name.startswith(prefix))
    fn, args = case.make()
    kernels = capture(fn, *args, target=case.targets[0])
    assert kernels
    for kernel in kernels:
        before, still = depths(kernel), {"sinks_ref"}
        one = apply(kernel, 1)
        assert {depth for name, depth in depths(one).items() if name not in still} == {1}
        assert depths(apply(one, 2)) == before
