"""Capturing in this process: every way in which a program reaches a kernel."""

import functools
import os
import threading

os.environ["JAX_PLATFORMS"] = "cpu"

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu
from jax.experimental.pallas import tpu as pltpu
from jax.experimental.pallas import triton as pltriton

from mosaic_toolkit.backends import get_backend
from mosaic_toolkit.capture import capture, capturing, payload_matches, recording
from mosaic_toolkit.compare import compare
from mosaic_toolkit.errors import CaptureError
from mosaic_toolkit.kernel import load, save

X = np.linspace(0.1, 1.0, 8 * 128, dtype=np.float32).reshape(8, 128)
TPU = pltpu.CompilerParams()


def call(kernel, x, **params):
    params.setdefault("compiler_params", TPU)
    return pl.pallas_call(kernel, out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype), **params)(x)


def double(x_ref, o_ref):
    o_ref[...] = x_ref[...] * 2


def sine(x_ref, o_ref):
    o_ref[...] = jnp.sin(x_ref[...])


def cosine(x_ref, o_ref):
    o_ref[...] = jnp.cos(x_ref[...])


def unlowerable(x_ref, o_ref):
    o_ref[...] = jnp.sort(x_ref[...])


@jax.custom_vjp
def differentiable_sine(x):
    return call(sine, x)


differentiable_sine.defvjp(
    lambda x: (differentiable_sine(x), x), lambda x, g: (g * call(cosine, x),)
)

# Each program: how it reaches kernels, the right values, and the kernels' names.
PROGRAMS = {
    "eager": (lambda x: call(double, x), lambda x: x * 2, ["double"]),
    "jit": (jax.jit(lambda x: call(double, x)), lambda x: x * 2, ["double"]),
    "interpret": (lambda x: call(double, x, interpret=True), lambda x: x * 2, ["double"]),
    "interpret_tpu": (
        lambda x: call(double, x, interpret=pltpu.InterpretParams()), lambda x: x * 2, ["double"],
    ),
    "vmap": (lambda x: jax.vmap(lambda x: call(double, x))(x[None])[0], lambda x: x * 2, ["double"]),
    "grad": (jax.grad(lambda x: differentiable_sine(x).sum()), np.cos, ["sine", "cosine"]),
    "scan": (
        lambda x: jax.lax.scan(lambda c, _: (call(double, c), None), x, None, length=3)[0],
        lambda x: x * 8, ["double"],
    ),
    "while_loop": (
        lambda x: jax.lax.while_loop(lambda c: c[1] < 2, lambda c: (call(double, c[0]), c[1] + 1), (x, 0))[0],
        lambda x: x * 4, ["double"],
    ),
    "cond": (
        lambda x: jax.lax.cond(x[0, 0] > 0, lambda x: call(double, x), lambda x: call(sine, x), x),
        lambda x: x * 2, ["double", "sine"],
    ),
    "platform_dependent": (
        jax.jit(lambda x: jax.lax.platform_dependent(x, tpu=lambda x: call(double, x), default=lambda x: x)),
        lambda x: x * 2, ["double"],
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", PROGRAMS)
def test_program(name):
    function, expected, names = PROGRAMS[name]
    with recording("v5e") as captured:
        values = function(X)
    np.testing.assert_allclose(values, expected(X), rtol=1e-4)
    assert sorted({k.name for k in captured.kernels}) == sorted(names)
    assert captured.failures == captured.notes == []
    for kernel in captured.kernels:
        assert (kernel.backend, kernel.level, kernel.target) == ("mosaic_tpu", "dialect", "v5e")
        assert payload_matches(kernel)


def test_export_and_explicit_lowering():
    function = jax.jit(lambda x: call(double, x))
    with capturing("v6e") as kernels:
        jax.export.export(function, platforms=["tpu"])(jax.ShapeDtypeStruct((16, 128), jnp.float32))
        function.trace(jax.ShapeDtypeStruct((24, 128), jnp.float32)).lower(
            lowering_platforms=("tpu",)
        )
    assert [k.operands[0].shape for k in kernels] == [(16, 128), (24, 128)]
    assert all(k.target == "v6e" and payload_matches(k) for k in kernels)


def test_several_shapes_and_repeats():
    with capturing("v5e") as kernels:
        for rows in (8, 16, 8):
            call(double, np.ones((rows, 128), np.float32))
    assert [k.operands[0].shape[0] for k in kernels] == [8, 16]


def test_one_body_called_in_two_ways_is_two_kernels():
    with capturing("v5e") as kernels:
        call(double, X)
        call(double, X, input_output_aliases={0: 0})
        call(double, X, compiler_params=pltpu.CompilerParams(vmem_limit_bytes=2**20))
    assert len(kernels) == 3
    assert kernels[1].aliases == ((0, 0),)
    assert not compare(kernels[0], kernels[2]).identical


def test_a_failure_in_a_block_is_raised_at_its_end():
    with pytest.raises(CaptureError, match="'unlowerable' does not lower"), capturing("v5e"):
        call(unlowerable, X)


def test_an_explicit_platform_takes_its_own_branch():
    @jax.jit
    def choose(x):
        return jax.lax.platform_dependent(x, tpu=lambda x: call(double, x), default=lambda x: x)

    with capturing("h100") as kernels:
        choose.trace(X).lower(lowering_platforms=("tpu",))
    assert [k.backend for k in kernels] == ["mosaic_tpu"]


def test_core_map():
    with capturing("v5e") as kernels:
        mesh = pltpu.create_tensorcore_mesh("core")

        def inner(refs):
            @pl.core_map(mesh)
            def _():
                pltpu.sync_copy(*refs)

        out = jax.jit(lambda x: pl.run_state(inner)((x, jnp.zeros_like(x)))[1])(X)
    np.testing.assert_array_equal(out, X)
    assert [k.backend for k in kernels] == ["mosaic_tpu"]


def add_one(x_ref, o_ref):
    o_ref[...] = x_ref[...] + 1


def blocked(x, **params):
    spec = pl.BlockSpec((64, 128), lambda i, j: (i, j))
    return pl.pallas_call(
        add_one, grid=(2, 2), in_specs=[spec], out_specs=spec,
        out_shape=jax.ShapeDtypeStruct((128, 256), jnp.float32), **params,
    )(x)  # fmt: skip


ARRAY = jax.ShapeDtypeStruct((128, 256), jnp.float32)


def test_one_source_three_schedules():
    kernels = capture(blocked, ARRAY)
    assert [(k.backend, k.target) for k in kernels] == [
        ("mosaic_tpu", "v5e"), ("mosaic_gpu", "h100"), ("triton", "h100"),
    ]  # fmt: skip
    assert all(map(payload_matches, kernels))
    assert [k.grid for k in kernels] == [(2, 2), (2, 2, 1), (2, 2, 1)]


def test_backend_specific_parameters_choose_the_backend():
    triton = capture(functools.partial(blocked, compiler_params=pltriton.CompilerParams()), ARRAY)
    assert [k.backend for k in triton] == ["triton"]
    tpu = capture(functools.partial(blocked, compiler_params=TPU), ARRAY)
    assert [k.backend for k in tpu] == ["mosaic_tpu"]


def gpu_kernel(semantics):
    def body(x_ref, o_ref, smem, barrier):
        plgpu.copy_gmem_to_smem(x_ref, smem, barrier)
        plgpu.barrier_wait(barrier)
        o_ref[...] = smem[...] + 1.0

    return plgpu.kernel(
        body, out_type=jax.ShapeDtypeStruct((64, 128), jnp.float32),
        scratch_types=[plgpu.SMEM((64, 128), jnp.float32), plgpu.Barrier()],
        compiler_params=plgpu.CompilerParams(lowering_semantics=semantics),
    )  # fmt: skip


@pytest.mark.parametrize(("semantics", "level"), [("Warpgroup", "dialect"), ("Lane", "lowered")])
def test_mosaic_gpu_levels(semantics, level):
    function = gpu_kernel(plgpu.LoweringSemantics[semantics])
    (kernel,) = capture(function, jax.ShapeDtypeStruct((64, 128), jnp.float32), target="h100")
    assert (kernel.backend, kernel.level) == ("mosaic_gpu", level)
    assert ("mosaic_gpu.async_load" in kernel.asm) == (level == "dialect")
    assert payload_matches(kernel)


def test_gpu_values_on_the_cpu():
    x = np.ones((64, 128), np.float32)
    with recording("h100") as captured:
        out = jax.jit(gpu_kernel(plgpu.LoweringSemantics.Warpgroup))(x)
    np.testing.assert_array_equal(out, x + 1)
    assert captured.notes == []


def doubling(x_ref, o_ref):
    o_ref[...] = x_ref[...] * 2 + 0


def test_an_empty_name(tmp_path):
    """MLIR prints an empty symbol as something that it does not parse back."""
    kernels = capture(functools.partial(blocked, name=""), ARRAY)
    gpu = plgpu.kernel(doubling, out_type=jax.ShapeDtypeStruct((128,), jnp.float32), kernel_name="")
    kernels += capture(gpu, jax.ShapeDtypeStruct((128,), jnp.float32))
    assert [k.name for k in kernels] == ["add_one"] * 3 + ["doubling"]
    for number, kernel in enumerate(kernels):
        assert kernel.module().operation.verify()
        assert payload_matches(load(save(kernel, tmp_path / f"{number}.mlir")))


def test_no_run_gives_zeros():
    with capturing("v5e", run=False) as kernels:
        values = call(double, X)
    assert not np.any(values)
    assert values.shape == X.shape
    assert len(kernels) == 1


def test_a_failure_does_not_hide_the_others():
    with recording("v5e") as captured:
        call(unlowerable, X)
        call(double, X)
    assert [k.name for k in captured.kernels] == ["double"]
    (failure,) = captured.failures
    assert failure.name == "unlowerable"
    assert "sort" in failure.error
    assert failure.source.rsplit(":", 1)[0] == __file__
    with pytest.raises(
        CaptureError, match=r"'unlowerable' does not lower for mosaic_tpu on v5e .*sort"
    ):
        capture(
            lambda x: call(unlowerable, x), jax.ShapeDtypeStruct(X.shape, X.dtype), target="v5e"
        )


def test_questions_about_the_device():
    device = jax.devices()[0]
    truth = (device.platform, jax.default_backend())
    from jax import default_backend  # a name bound before the capture, as libraries have it

    with recording("v5p") as captured:
        assert captured.asked is False
        assert (device.platform, device.device_kind, device.num_cores) == ("tpu", "TPU v5", 2)
        assert default_backend() == jax.default_backend() == "tpu"
        assert jax.devices("tpu") == jax.devices()
        assert pltpu.get_tpu_info().vmem_capacity_bytes == 64 * 2**20
        assert captured.asked is True
        assert jax.extend.backend.get_default_device().platform == "tpu"
        np.testing.assert_array_equal(jnp.arange(3) + 1, [1, 2, 3])
    with capturing("b200"):
        assert (device.platform, device.core_count, device.compute_capability) == (
            "gpu",
            148,
            "10.0",
        )
        assert jax.devices("gpu")
    assert truth == (device.platform, jax.default_backend()) == ("cpu", "cpu")
    with pytest.raises(RuntimeError):
        jax.devices("tpu")


def test_a_program_that_asks_nothing():
    with recording("v5e") as captured:
        jax.jit(lambda x: call(double, x))(X)
    assert captured.asked is False


def test_blocks_are_independent():
    function = jax.jit(lambda x: call(double, x, interpret=True))
    function(X)
    with capturing("v5e") as first:
        function(X)
        with capturing("v6e") as second:
            function(X)
        function(X)
    function(X)
    assert [k.target for k in first] == ["v5e"]
    assert [k.target for k in second] == ["v6e"]


@pytest.mark.parametrize(("every_thread", "count"), [(False, 0), (True, 1)])
def test_threads(every_thread, count):
    with capturing("v5e", every_thread=every_thread) as kernels:
        thread = threading.Thread(target=lambda: call(double, X, interpret=True))
        thread.start()
        thread.join()
    assert len(kernels) == count


def test_save_and_load(tmp_path):
    for kernel in capture(blocked, ARRAY):
        assert load(save(kernel, tmp_path / f"{kernel.backend}.mlir")) == kernel


def test_payload_of_a_call_without_what_was_seen_on_the_way():
    """A custom call in a module from elsewhere decodes from its payload alone."""
    from mosaic_toolkit.jax_compat import ir, lowering

    found = {}

    class Listener(lowering._Deaf):
        def emitted(self, kernel):
            backend = get_backend("mosaic_tpu")
            found["decoded"] = backend.decode(kernel.op, "v5e", None, "dialect", {})

    from mosaic_toolkit.targets import TARGETS

    with lowering.listening(Listener(TARGETS["v5e"])):
        jax.jit(lambda x: call(double, x)).trace(X).lower(lowering_platforms=("tpu",))
    kernel = found["decoded"]
    assert kernel.name == "double"
    assert "arith.mulf" in kernel.asm
    assert ir.Module.parse(kernel.asm, kernel.module().context)
