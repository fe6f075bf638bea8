"""Calls of every kernel in `jax.experimental.pallas.ops.tpu`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from .case import Call, Case, gradient, struct

OPS = "jax.experimental.pallas.ops.tpu."
TPUS = ("v5e", "v6e", "tpu7x")
TPU = ("v5e",)


def cases() -> Iterator[Case]:
    yield Case("jax/tpu/example/double", TPU, _double, (OPS + "example_kernel",))
    yield from _matmul_cases()
    yield from _all_gather_cases()
    yield from _random_cases()
    yield from _flash_cases()
    yield from _splash_cases()
    yield from _paged_cases()
    yield from _ragged_paged_cases()
    yield from _megablox_cases()


def _double() -> Call:
    from jax.experimental.pallas.ops.tpu.example_kernel import double

    return double, (struct((8, 128), "float32"),)


def _matmul_cases() -> Iterator[Case]:
    modules = (OPS + "matmul",)

    def make(dtype, out_dtype, **options):
        def call() -> Call:
            from jax.experimental.pallas.ops.tpu.matmul import matmul

            def fn(x, y):
                return matmul(x, y, out_dtype=out_dtype, **options)

            return fn, (struct((1024, 512), dtype), struct((512, 1024), dtype))

        return call

    for dtype, out in (("bfloat16", None), ("bfloat16", "float32"), ("float32", None)):
        name = f"jax/tpu/matmul/{dtype}_to_{out or dtype}"
        yield Case(name, TPUS, make(dtype, out, block_shape=(256, 512)), modules)
    name = "jax/tpu/matmul/int8_to_int32"
    yield Case(name, TPU, make("int8", "int32", block_shape=(512, 256), block_k=128), modules)


def _all_gather_cases() -> Iterator[Case]:
    def make(in_hbm):
        def call() -> Call:
            import jax
            import numpy as np
            from jax.experimental import pallas as pl
            from jax.experimental.pallas.ops.tpu.all_gather import all_gather

            mesh = jax.sharding.Mesh(np.array(jax.devices()), ("x",))

            def fn(x):
                options = {"memory_space": pl.ANY} if in_hbm else {}
                return all_gather(x, mesh=mesh, axis_name="x", **options)

            return fn, (struct((8 * 16, 128), "float32"),)

        return call

    for variant in ("vmem", "hbm"):
        name = f"jax/tpu/all_gather/{variant}"
        yield Case(name, TPUS, make(variant == "hbm"), (OPS + "all_gather",), devices=8)


def _random_cases() -> Iterator[Case]:
    def make(module, function, *arguments):
        def call() -> Call:
            import importlib

            module_ = importlib.import_module(OPS + "random." + module)
            return (lambda key: getattr(module_, function)(key, *arguments)), (
                struct((2,), "uint32"),
            )

        return call

    for variant, shape in (("aligned", (512, 512)), ("padded", (3, 300, 70)), ("vector", (1000,))):
        for module, function in (
            ("threefry", "plthreefry_random_bits"),
            ("philox", "philox_random_bits"),
        ):
            name = f"jax/tpu/random/{module}_{variant}"
            yield Case(name, TPU, make(module, function, 32, shape), (OPS + "random." + module,))
    name = "jax/tpu/random/philox_split"
    yield Case(name, TPU, make("philox", "philox_split", (512, 512)), (OPS + "random.philox",))

    def through_jax_random() -> Call:
        import jax
        from jax.experimental.pallas.ops.tpu.random import philox

        def fn(seed):
            key = jax.random.key(seed, impl=philox.plphilox_prng_impl)
            return jax.random.normal(jax.random.fold_in(key, 3), (256, 256))

        return fn, (struct((), "int32"),)

    yield Case("jax/tpu/random/philox_normal", TPU, through_jax_random, (OPS + "random.philox",))


def _flash_cases() -> Iterator[Case]:
    modules = (OPS + "flash_attention",)

    def make(backward, dtype, seq, heads, dim, causal, segments, bias, blocks):
        def call() -> Call:
            from jax.experimental.pallas.ops.tpu import flash_attention as lib

            q = struct((2, heads, seq, dim), dtype)
            args: list[Any] = [q, q, q]
            if bias:
                args.append(struct((2, heads, seq, seq), dtype))
            if segments:
                args.append(struct((2, seq), "int32"))

            def fn(q, k, v, *rest):
                ab = rest[0] if bias else None
                ids = lib.SegmentIds(rest[-1], rest[-1]) if segments else None
                sizes = lib.BlockSizes(**blocks) if blocks else None
                return lib.flash_attention(
                    q, k, v, ab, ids, causal=causal, sm_scale=dim**-0.5, block_sizes=sizes
                )

            chosen = (0, 1, 2, 3) if bias else (0, 1, 2)
            return (gradient(fn, chosen) if backward else fn), args

        return call

    large = {
        "block_q": 512,
        "block_k_major": 512,
        "block_k": 256,
        "block_b": 1,
        "block_q_major_dkv": 512,
        "block_k_major_dkv": 512,
        "block_k_dkv": 256,
        "block_q_dkv": 256,
        "block_k_major_dq": 512,
        "block_k_dq": 256,
        "block_q_dq": 512,
    }
    one_pass = large | {"block_k_major": 1024, "block_k": 1024}
    variants = (
        # name, dtype, sequence, heads, head width, causal, segment ids, bias, block sizes
        ("full", "bfloat16", 1024, 4, 128, False, False, False, None),
        ("causal", "bfloat16", 1024, 4, 128, True, False, False, None),
        ("causal_f32", "float32", 512, 2, 64, True, False, False, None),
        ("segments", "bfloat16", 1024, 4, 128, True, True, False, None),
        ("bias", "float32", 512, 2, 128, False, False, True, None),
        ("bias_segments", "float32", 512, 2, 128, True, True, True, None),
        ("large_blocks", "bfloat16", 1024, 4, 128, True, False, False, large),
        ("one_pass", "bfloat16", 1024, 4, 128, False, True, False, one_pass),
    )
    for variant, *options in variants:
        targets = TPUS if variant == "causal" else TPU
        for phase in ("fwd", "bwd"):
            name = f"jax/tpu/flash_attention/{variant}_{phase}"
            yield Case(name, targets, make(phase == "bwd", *options), modules)


def _splash_cases() -> Iterator[Case]:
    modules = (OPS + "splash_attention.splash_attention_kernel",)

    def make(backward, mask, kind, fused, segments, cap, sinks, layout):
        def call() -> Call:
            import jax
            import jax.numpy as jnp
            import numpy as np
            from jax.experimental.pallas.ops.tpu import splash_attention as lib
            from jax.experimental.pallas.ops.tpu.splash_attention import (
                splash_attention_kernel as kernels,
            )
            from jax.experimental.pallas.ops.tpu.splash_attention import (
                splash_attention_mask as masks,
            )

            seq, heads, dim = 1024, 4, 128
            shape = (seq, seq)
            head_masks = {
                "causal": lambda: masks.CausalMask(shape),
                "full": lambda: masks.FullMask(shape),
                "local": lambda: masks.LocalMask(shape, (256, 0), 0),
                "chunked": lambda: masks.ChunkedCausalMask(shape, 256),
                "numpy": lambda: masks.NumpyMask(np.tril(np.ones(shape, bool))),
                "either": lambda: masks.CausalMask(shape) | masks.LocalMask(shape, (64, 64), 0),
            }
            dq = {} if fused else {"block_q_dq": 512, "block_kv_dq": 512}
            orders = {}
            if layout:
                seq_minor = kernels.QKVLayout.SEQ_MINOR
                orders = {"q_layout": seq_minor, "k_layout": seq_minor, "v_layout": seq_minor}
            sizes = kernels.BlockSizes(
                block_q=512,
                block_kv=512,
                block_kv_compute=256,
                block_q_dkv=512,
                block_kv_dkv=512,
                block_kv_dkv_compute=256,
                use_fused_bwd_kernel=fused,
                **dq,
                **orders,
            )
            build = lib.make_splash_mqa if kind == "mqa" else lib.make_splash_mha
            q = struct((heads, seq, dim), "bfloat16")
            kv_heads = {"mha": (heads,), "gqa": (2,), "mqa": ()}[kind]
            kv = struct((*kv_heads, seq, dim), "bfloat16")
            args: list[Any] = [q, kv, kv]
            if segments:
                args.append(struct((seq,), "int32"))
            if sinks:
                args.append(struct((heads,), "float32"))

            def fn(q, k, v, *rest):
                rest = list(rest)
                options = {"segment_ids": None}
                if segments:
                    ids = rest.pop(0)
                    options["segment_ids"] = lib.SegmentIds(ids, ids)
                if sinks:
                    options["sinks"] = rest.pop(0)
                with jax.ensure_compile_time_eval():
                    if mask == "dynamic":
                        every = jnp.tril(jnp.ones((heads, *shape), bool))
                    else:
                        every = masks.MultiHeadMask([head_masks[mask]() for _ in range(heads)])
                    kernel = build(
                        every,
                        block_sizes=sizes,
                        head_shards=1,
                        q_seq_shards=1,
                        attn_logits_soft_cap=cap,
                    )
                return kernel(q, k, v, **options)

            return (gradient(fn, (0, 1, 2)) if backward else fn), args

        return call

    variants = (
        # name, mask, heads, fused backward, segment ids, soft cap, sinks, sequence minor
        ("causal", "causal", "mha", False, False, None, False, False),
        ("causal_fused", "causal", "mha", True, False, None, False, False),
        ("full_mqa", "full", "mqa", False, False, None, False, False),
        ("local_gqa_segments", "local", "gqa", False, True, None, False, False),
        ("chunked_capped", "chunked", "mha", True, False, 30.0, False, False),
        ("numpy", "numpy", "mha", False, True, None, False, False),
        ("either", "either", "mha", False, False, None, False, False),
        ("sinks", "causal", "mqa", False, False, None, True, False),
        ("sequence_minor", "causal", "mha", False, False, None, False, True),
        ("dynamic_mask", "dynamic", "mha", False, False, None, False, False),
    )
    for variant, *options in variants:
        targets = TPUS if variant == "causal" else TPU
        for phase in ("fwd", "bwd"):
            name = f"jax/tpu/splash_attention/{variant}_{phase}"
            yield Case(name, targets, make(phase == "bwd", *options), modules)


def _paged_cases() -> Iterator[Case]:
    modules = (OPS + "paged_attention.paged_attention_kernel",)

    def make(dtype, quantized, heads, kv_heads, **options):
        def call() -> Call:
            from jax.experimental.pallas.ops.tpu.paged_attention import paged_attention
            from jax.experimental.pallas.ops.tpu.paged_attention.quantization_utils import (
                QuantizedTensor,
            )

            batch, pages, page, dim = 8, 256, 16, 128
            keys = struct((kv_heads, pages, page, dim), "int8" if quantized else dtype)
            scales = struct((kv_heads, pages, page, 1), "float32")

            def fn(q, k, v, lengths, indices, *scale):
                if quantized:
                    k, v = (QuantizedTensor(x, scale[0]) for x in (k, v))
                return paged_attention(
                    q, k, v, lengths, indices, pages_per_compute_block=8, **options
                )

            args = [
                struct((batch, heads, dim), dtype),
                keys,
                keys,
                struct((batch,), "int32"),
                struct((batch, 32), "int32"),
            ]
            return fn, args + ([scales] if quantized else [])

        return call

    for variant, case in {
        "f32": make("float32", False, 8, 8),
        "gqa_bf16": make("bfloat16", False, 32, 4),
        "int8": make("float32", True, 8, 2),
        "soft_cap": make("float32", False, 8, 4, attn_logits_soft_cap=50.0),
        "grid_over_sequence": make("float32", False, 8, 4, inline_seq_dim=False),
        "megacore_kv_head": make("float32", False, 8, 4, megacore_mode="kv_head"),
        "megacore_batch": make("float32", False, 8, 4, megacore_mode="batch"),
    }.items():
        targets = ("v5p",) if variant.startswith("megacore") else TPU
        yield Case(f"jax/tpu/paged_attention/{variant}", targets, case, modules)


def _ragged_paged_cases() -> Iterator[Case]:
    modules = (OPS + "ragged_paged_attention.kernel",)

    def make(dtype="bfloat16", kv_dtype="bfloat16", heads=32, kv_heads=8, blocks=True, **options):
        def call() -> Call:
            from jax.experimental.pallas.ops.tpu.ragged_paged_attention import (
                ragged_paged_attention,
            )

            sequences, pages_each, page, dim = 16, 32, 16, 128
            sizes = {"num_kv_pages_per_block": 8, "num_queries_per_block": 32} if blocks else {}

            def fn(*args):
                return ragged_paged_attention(*args, sm_scale=dim**-0.5, **sizes, **options)

            return fn, [
                struct((512, heads, dim), dtype),
                struct((1024, page, 2 * kv_heads, dim), kv_dtype),
                struct((sequences,), "int32"),
                struct((sequences, pages_each), "int32"),
                struct((sequences + 1,), "int32"),
                struct((1,), "int32"),
            ]

        return call

    for variant, case in {
        "bf16": make(),
        "f32": make("float32", "float32", 12, 2),
        "sliding_window": make(sliding_window=128),
        "soft_cap": make(soft_cap=50.0, vmem_limit_bytes=64 * 1024 * 1024),
        "fp8_cache": make(kv_dtype="float8_e5m2", k_scale=0.5, v_scale=0.25),
        "tuned_blocks": make(blocks=False),
    }.items():
        targets = TPUS if variant in ("bf16", "tuned_blocks") else TPU
        yield Case(f"jax/tpu/ragged_paged_attention/{variant}", targets, case, modules)


def _megablox_cases() -> Iterator[Case]:
    modules = (OPS + "megablox.gmm",)
    m, k, n, groups = 512, 256, 384, 8

    def grouped(dtype, backward, transposed, k=k, tiling=(128, 128, 128)):
        def call() -> Call:
            from jax.experimental.pallas.ops.tpu.megablox import gmm

            def fn(lhs, rhs, sizes):
                return gmm(lhs, rhs, sizes, "float32", tiling, None, None, transposed)

            rhs = (groups, n, k) if transposed else (groups, k, n)
            args = (struct((m, k), dtype), struct(rhs, dtype), struct((groups,), "int32"))
            return (gradient(fn, (0, 1)) if backward else fn), args

        return call

    def sharded() -> Call:
        from jax.experimental.pallas.ops.tpu.megablox.gmm import gmm

        def fn(lhs, rhs, sizes, offset, out):
            return gmm(lhs, rhs, sizes, group_offset=offset, existing_out=out)

        return fn, (
            struct((m, k), "bfloat16"),
            struct((groups // 2, k, n), "bfloat16"),
            struct((groups,), "int32"),
            struct((), "int32"),
            struct((m, n), "float32"),
        )

    def transposed() -> Call:
        from jax.experimental.pallas.ops.tpu.megablox.gmm import tgmm

        def fn(lhs, rhs, sizes, out):
            return tgmm(lhs, rhs, sizes, tiling=(128, 256, 128), existing_out=out)

        return fn, (
            struct((k, m), "bfloat16"),
            struct((m, n), "bfloat16"),
            struct((groups,), "int32"),
            struct((groups, k, n), "float32"),
        )

    for variant, case in {
        "gmm_bf16_fwd": grouped("bfloat16", False, False),
        "gmm_bf16_bwd": grouped("bfloat16", True, False),
        "gmm_f32_bwd": grouped("float32", True, False),
        "gmm_transposed_bwd": grouped("bfloat16", True, True),
        "gmm_partial_tile_fwd": grouped("bfloat16", False, False, k=320),
        "gmm_sharded": sharded,
        "tgmm_existing_out": transposed,
    }.items():
        targets = TPUS if variant == "gmm_bf16_bwd" else TPU
        yield Case(f"jax/tpu/megablox/{variant}", targets, case, modules)
