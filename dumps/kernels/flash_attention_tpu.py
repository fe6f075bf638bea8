"""Flash attention for TPU: softmax(q k^T) v in one sweep over the keys, never holding all scores."""

import functools

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

LANES = 128
MASKED = -1e30


def flash_attention_kernel(
    q_ref, k_ref, v_ref, o_ref, max_ref, sum_ref, acc_ref, *, causal, block_q, block_k
):
    i, j = pl.program_id(1), pl.program_id(2)

    @pl.when(j == 0)
    def _():
        max_ref[...] = jnp.full_like(max_ref, MASKED)
        sum_ref[...] = jnp.zeros_like(sum_ref)
        acc_ref[...] = jnp.zeros_like(acc_ref)

    # A block of keys that lies wholly after the block of queries adds nothing.
    @pl.when(jnp.logical_or(not causal, j * block_k < (i + 1) * block_q))
    def _():
        scores = jax.lax.dot_general(
            q_ref[...], k_ref[...], (((1,), (1,)), ((), ())), preferred_element_type=jnp.float32
        )
        scores *= q_ref.shape[-1] ** -0.5
        if causal:
            query = i * block_q + jax.lax.broadcasted_iota(jnp.int32, scores.shape, 0)
            key = j * block_k + jax.lax.broadcasted_iota(jnp.int32, scores.shape, 1)
            scores = jnp.where(key <= query, scores, MASKED)
        old_max = max_ref[:, :1]
        new_max = jnp.maximum(old_max, jnp.max(scores, axis=1, keepdims=True))
        weights = jnp.exp(scores - new_max)
        rescale = jnp.exp(old_max - new_max)
        new_sum = rescale * sum_ref[:, :1] + jnp.sum(weights, axis=1, keepdims=True)
        max_ref[...] = jnp.broadcast_to(new_max, max_ref.shape)
        sum_ref[...] = jnp.broadcast_to(new_sum, sum_ref.shape)
        acc_ref[...] = rescale * acc_ref[...] + jnp.dot(
            weights.astype(v_ref.dtype), v_ref[...], preferred_element_type=jnp.float32
        )

    @pl.when(j == pl.num_programs(2) - 1)
    def _():
        o_ref[...] = (acc_ref[...] / sum_ref[:, :1]).astype(o_ref.dtype)


def flash_attention(q, k, v, *, causal=True, block_q=128, block_k=128):
    """Attention of `q`, `k`, `v`, each [heads, sequence, head_dim]."""
    heads, length, head_dim = q.shape
    queries = pl.BlockSpec((None, block_q, head_dim), lambda h, i, j: (h, i, 0))
    keys = pl.BlockSpec((None, block_k, head_dim), lambda h, i, j: (h, j, 0))
    return pl.pallas_call(
        functools.partial(flash_attention_kernel, causal=causal, block_q=block_q, block_k=block_k),
        name="flash_attention",
        grid=(heads, length // block_q, k.shape[1] // block_k),
        in_specs=[queries, keys, keys],
        out_specs=queries,
        out_shape=jax.ShapeDtypeStruct(q.shape, q.dtype),
        scratch_shapes=[
            pltpu.VMEM((block_q, LANES), jnp.float32),
            pltpu.VMEM((block_q, LANES), jnp.float32),
            pltpu.VMEM((block_q, head_dim), jnp.float32),
        ],
        compiler_params=pltpu.CompilerParams(
            dimension_semantics=("parallel", "parallel", "arbitrary")
        ),
    )(q, k, v)


def reference_attention(q, k, v):
    scores = jnp.einsum("hqd,hkd->hqk", q, k, preferred_element_type=jnp.float32)
    scores *= q.shape[-1] ** -0.5
    visible = jnp.tril(jnp.ones(scores.shape[1:], bool))
    weights = jax.nn.softmax(jnp.where(visible, scores, -jnp.inf), axis=-1)
    return jnp.einsum("hqk,hkd->hqd", weights, v.astype(jnp.float32))


if __name__ == "__main__":
    q, k, v = (
        jax.random.normal(key, (2, 256, 128), jnp.bfloat16)
        for key in jax.random.split(jax.random.key(0), 3)
    )
    out = jax.jit(flash_attention)(q, k, v).astype(jnp.float32)
    expected = reference_attention(q, k, v)
    assert jnp.allclose(out, expected, rtol=5e-2, atol=5e-2), jnp.abs(out - expected).max()
    print("flash_attention: values agree with softmax(q k^T) v")
