"""Matrix product for Hopper: TMA loads in a pipeline of shared-memory slots feed wgmma."""

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

TILE_M, TILE_N, TILE_K = 64, 128, 64
STAGES = 3


def swizzled(columns, dtype):
    """How wgmma and TMA want a tile with that many columns laid out in shared memory."""
    bytes_per_element = jnp.dtype(dtype).itemsize
    swizzle = plgpu.find_swizzle(columns * bytes_per_element * 8)
    return (
        plgpu.TilingTransform((8, swizzle // bytes_per_element)),
        plgpu.SwizzleTransform(swizzle),
    )


def matmul_kernel(a_gmem, b_gmem, o_gmem, o_smem):
    m = pl.ds(jax.lax.axis_index("m") * TILE_M, TILE_M)
    n = pl.ds(jax.lax.axis_index("n") * TILE_N, TILE_N)

    def accumulate(acc_ref):
        def step(_, a_smem, b_smem):
            plgpu.wgmma(acc_ref, a_smem, b_smem)
            # The slot of the step before is released, so its product must be done.
            plgpu.wgmma_wait(1)

        plgpu.emit_pipeline(
            step,
            grid=(a_gmem.shape[1] // TILE_K,),
            in_specs=[
                plgpu.BlockSpec(
                    (TILE_M, TILE_K),
                    lambda k: (0, k),
                    transforms=swizzled(TILE_K, a_gmem.dtype),
                    delay_release=1,
                ),
                plgpu.BlockSpec(
                    (TILE_K, TILE_N),
                    lambda k: (k, 0),
                    transforms=swizzled(TILE_N, b_gmem.dtype),
                    delay_release=1,
                ),
            ],
            max_concurrent_steps=STAGES,
        )(a_gmem.at[m, :], b_gmem.at[:, n])
        return acc_ref[...]

    acc = pl.run_scoped(accumulate, plgpu.ACC((TILE_M, TILE_N), jnp.float32))
    o_smem[...] = acc.astype(o_smem.dtype)
    plgpu.commit_smem()
    plgpu.copy_smem_to_gmem(o_smem, o_gmem.at[m, n])
    plgpu.wait_smem_to_gmem(0)


def matmul(a, b):
    m, n = a.shape[0], b.shape[1]
    o_smem = plgpu.SMEM((TILE_M, TILE_N), a.dtype, transforms=swizzled(TILE_N, a.dtype))
    return plgpu.kernel(
        matmul_kernel,
        out_type=jax.ShapeDtypeStruct((m, n), a.dtype),
        scratch_types=[o_smem],
        grid=(m // TILE_M, n // TILE_N),
        grid_names=("m", "n"),
        compiler_params=plgpu.CompilerParams(lowering_semantics=plgpu.LoweringSemantics.Warpgroup),
    )(a, b)


if __name__ == "__main__":
    keys = jax.random.split(jax.random.key(0))
    a = jax.random.normal(keys[0], (128, 256), jnp.float16)
    b = jax.random.normal(keys[1], (256, 256), jnp.float16)
    out = jax.jit(matmul)(a, b).astype(jnp.float32)
    expected = jnp.dot(a, b, preferred_element_type=jnp.float32)
    assert jnp.allclose(out, expected, rtol=1e-2, atol=1e-1), jnp.abs(out - expected).max()
    print("matmul: values agree with jnp.dot")
