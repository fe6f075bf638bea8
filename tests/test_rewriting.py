"""Rewriting in place: scoped, logged, and neither finding nor leaving a stale executable."""

import os
import threading

os.environ["JAX_PLATFORMS"] = "cpu"

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from mosaic_toolkit import rewrite, rewriting
from mosaic_toolkit.backends import get_backend
from mosaic_toolkit.capture import capturing, payload_matches
from mosaic_toolkit.errors import PassPipelineError

ONE_BUFFER = "pipeline-depth{stages=1}"
ARRAY = jax.ShapeDtypeStruct((64, 128), jnp.float32)


def call(kernel, x):
    spec = pl.BlockSpec((8, 128), lambda i: (i, 0))
    return pl.pallas_call(
        kernel, grid=x.shape[0] // 8, in_specs=[spec], out_specs=spec,
        out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype), compiler_params=pltpu.CompilerParams(),
    )(x)  # fmt: skip


def sine(x_ref, o_ref):
    o_ref[...] = jnp.sin(x_ref[...])


def cosine(x_ref, o_ref):
    o_ref[...] = jnp.cos(x_ref[...])


@jax.custom_vjp
def f(x):
    return call(sine, x)


f.defvjp(lambda x: (f(x), x), lambda x, g: (g * call(cosine, x),))


def lowered(function, *args) -> str:
    return jax.jit(function).trace(*(args or (ARRAY,))).lower(lowering_platforms=("tpu",)).as_text()


def test_only_inside_the_block():
    jitted = jax.jit(f)
    before = jitted.trace(ARRAY).lower(lowering_platforms=("tpu",)).as_text()
    with rewriting(ONE_BUFFER) as log:
        inside = jitted.trace(ARRAY).lower(lowering_platforms=("tpu",)).as_text()
    after = jitted.trace(ARRAY).lower(lowering_platforms=("tpu",)).as_text()
    assert before == after != inside
    (entry,) = log
    assert (entry.kernel.name, entry.outcome) == ("sine", "rewritten")
    assert "synchronous" in entry.result.asm
    assert "synchronous" not in entry.kernel.asm


def test_the_custom_call_holds_the_rewritten_module():
    from mosaic_toolkit.jax_compat import ir, make_context

    with rewriting(ONE_BUFFER) as log:
        text = lowered(f)
    calls = []

    def find(op):
        if op.name == "stablehlo.custom_call":
            calls.append(op)
        return ir.WalkResult.ADVANCE

    module = ir.Module.parse(text, context=make_context())
    module.operation.walk(find)
    backend = get_backend("mosaic_tpu")
    assert backend.payload(calls[0]) == backend.encode(log[0].result)


def test_what_is_refused_stays_as_it_is():
    with rewriting("pipeline-depth{stages=0}") as log:
        assert lowered(f) == LOWERED
    assert log[0].outcome == "refused"
    assert "a window needs at least 1 slot" in log[0].reason


LOWERED = lowered(f)


@pytest.mark.parametrize(("only", "names"), [("s*", ["sine"]), ("nothing", [])])
def test_only_some_kernels(only, names):
    with rewriting(ONE_BUFFER, only=only) as log:
        lowered(jax.value_and_grad(lambda x: f(x).sum()))
    assert [entry.kernel.name for entry in log] == names


def test_nested_blocks_rewrite_from_the_outside_in():
    with rewriting(ONE_BUFFER) as outer:
        with rewriting("pipeline-depth{stages=2}") as inner:
            lowered(f)
        lowered(f)
    assert [str(entry).split(": ")[1] for entry in outer] == ["rewritten"]
    assert "synchronous" in inner[0].kernel.asm
    assert "synchronous" not in inner[0].result.asm


def test_other_threads_are_left_alone():
    texts = []
    with rewriting(ONE_BUFFER) as log:
        thread = threading.Thread(target=lambda: texts.append(lowered(f)))
        thread.start()
        thread.join()
    assert (texts, log) == ([LOWERED], [])


def test_cleared_caches():
    with rewriting(ONE_BUFFER) as log:
        first = lowered(f)
        jax.clear_caches()
        assert lowered(f) == first
    assert lowered(f) == LOWERED
    assert len(log) == 1


def test_values_and_captures_go_together():
    x = np.ones((64, 128), np.float32)
    with capturing("v5e") as kernels, rewriting(ONE_BUFFER) as log:
        np.testing.assert_allclose(jax.jit(f)(x), np.sin(x), rtol=1e-5)
    assert kernels[0].asm == log[0].result.asm


def test_a_typing_error_is_found_before_anything_is_lowered():
    with pytest.raises(PassPipelineError), rewriting("no-such-pass"):
        pass


@pytest.mark.parametrize(
    ("transformed", "names"),
    [
        (lambda g: g, {"sine"}),
        (lambda g: jax.jit(lambda x: g(x) + 1), {"sine"}),
        (lambda g: jax.value_and_grad(lambda x: g(x).sum()), {"sine", "cosine"}),
        (lambda g: lambda x: jax.lax.scan(lambda c, _: (g(c), None), x, length=2)[0], {"sine"}),
    ],
)
def test_a_rewritten_function_is_rewritten_wherever_it_is_lowered(transformed, names):
    g = rewrite(f, ONE_BUFFER)
    lowered(transformed(g))
    assert {entry.kernel.name for entry in g.log} == names
    assert {entry.outcome for entry in g.log} == {"rewritten"}
    assert lowered(f) == LOWERED


def test_values_of_a_rewritten_function_on_the_cpu():
    g = rewrite(f, ONE_BUFFER)
    x = np.ones((64, 128), np.float32)
    np.testing.assert_allclose(g(x), np.sin(x), rtol=1e-5)
    np.testing.assert_allclose(jax.jit(jax.vmap(g))(x[None])[0], np.sin(x), rtol=1e-5)
    assert {entry.outcome for entry in g.log} == {"rewritten"}


def test_a_rewritten_function_in_a_batch():
    g = rewrite(f, ONE_BUFFER)
    lowered(jax.vmap(g), jax.ShapeDtypeStruct((3, 64, 128), jnp.float32))
    assert g.log[0].kernel.grid == (3, 8)
    assert g.__name__ == "f"


def test_a_mosaic_gpu_kernel():
    def body(x_ref, o_ref):
        o_ref[...] = x_ref[...] * 2 + 0

    from jax.experimental.pallas import mosaic_gpu as plgpu

    double = plgpu.kernel(body, out_type=jax.ShapeDtypeStruct((128,), jnp.float32))
    array = jax.ShapeDtypeStruct((128,), jnp.float32)

    with rewriting("canonicalize,cse") as log:
        jax.jit(double).trace(array).lower(lowering_platforms=("cuda",))
    assert [entry.outcome for entry in log] == ["rewritten"]
    assert payload_matches(log[0].kernel)
