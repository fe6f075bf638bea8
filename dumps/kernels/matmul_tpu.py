"""Tiled bf16 matrix product for TPU: one output tile per (i, j), accumulated in float32 over k."""

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

TILE_M = TILE_N = TILE_K = 256


def matmul_kernel(x_ref, y_ref, o_ref, acc_ref):
    k = pl.program_id(2)

    @pl.when(k == 0)
    def _():
        acc_ref[...] = jnp.zeros_like(acc_ref)

    acc_ref[...] += jnp.dot(x_ref[...], y_ref[...], preferred_element_type=jnp.float32)

    @pl.when(k == pl.num_programs(2) - 1)
    def _():
        o_ref[...] = acc_ref[...].astype(o_ref.dtype)


def matmul(x, y):
    m, k = x.shape
    _, n = y.shape
    return pl.pallas_call(
        matmul_kernel,
        name="matmul",
        grid=(m // TILE_M, n // TILE_N, k // TILE_K),
        in_specs=[
            pl.BlockSpec((TILE_M, TILE_K), lambda i, j, k: (i, k)),
            pl.BlockSpec((TILE_K, TILE_N), lambda i, j, k: (k, j)),
        ],
        out_specs=pl.BlockSpec((TILE_M, TILE_N), lambda i, j, k: (i, j)),
        out_shape=jax.ShapeDtypeStruct((m, n), x.dtype),
        scratch_shapes=[pltpu.VMEM((TILE_M, TILE_N), jnp.float32)],
        compiler_params=pltpu.CompilerParams(
            dimension_semantics=("parallel", "parallel", "arbitrary")
        ),
    )(x, y)


if __name__ == "__main__":
    keys = jax.random.split(jax.random.key(0))
    x = jax.random.normal(keys[0], (512, 1024), jnp.bfloat16)
    y = jax.random.normal(keys[1], (1024, 512), jnp.bfloat16)
    out = jax.jit(matmul)(x, y).astype(jnp.float32)
    expected = jnp.dot(x, y, preferred_element_type=jnp.float32)
    assert jnp.allclose(out, expected, rtol=2e-2, atol=0.5), jnp.abs(out - expected).max()
    print("matmul: values agree with jnp.dot")
