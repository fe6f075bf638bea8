"""Calls of every kernel in `jax.experimental.pallas.ops.gpu`, Mosaic GPU and Triton."""

from __future__ import annotations

import functools
import importlib
from collections.abc import Iterator
from typing import Any

from .case import Call, Case, gradient, struct

OPS = "jax.experimental.pallas.ops.gpu."
HOPPER = ("h100",)
BLACKWELL = ("b200",)
TRITON = ("h100", "b200")


def cases() -> Iterator[Case]:
    yield from _hopper_matmul_cases()
    yield from _blackwell_matmul_cases()
    yield from _ragged_cases()
    yield from _attention_mgpu_cases()
    yield from _collective_cases()
    yield from _triton_attention_cases()
    yield from _triton_decode_cases()
    yield from _triton_norm_cases()


def _module(name: str) -> Any:
    return importlib.import_module(OPS + name)


def _hopper_matmul_cases() -> Iterator[Case]:
    m, n, k = 1024, 1024, 512

    def plain(dtype, addend=False, **tuning):
        def call() -> Call:
            lib = _module("hopper_matmul_mgpu")
            for key, value in tuning.items():
                if key.endswith("dim") or key.endswith("dimension"):
                    tuning[key] = lib.MatmulDimension(value)
            config = lib.TuningConfig(
                **({"tile_m": 128, "tile_n": 128, "tile_k": 64, "max_concurrent_steps": 4} | tuning)
            )
            a, b = struct((m, k), dtype), struct((k, n), dtype)
            c = (struct((m, n), dtype),) if addend else ()
            return (lambda a, b, c=None: lib.matmul(a, b, c, config)), (a, b, *c)

        return call

    for variant, case in {
        "f16": plain("float16"),
        "bf16_add": plain("bfloat16", addend=True),
        "split_m": plain("float16", wg_dimension=0, grid_minor_dim=0, grid_tile_width=4),
        "cluster_m": plain("float16", cluster_dimension=0),
        "cluster_n": plain("float16", cluster_dimension=1, tile_n=64),
        "whole_epilogue": plain("float16", epi_tile_m=None, epi_tile_n=None, tile_n=64),
        "shallow": plain("bfloat16", max_concurrent_steps=2),
    }.items():
        modules = (OPS + "hopper_matmul_mgpu",)
        yield Case(f"jax/gpu/hopper_matmul/{variant}", HOPPER, case, modules)

    def mixed(dtype, **tuning):
        def call() -> Call:
            lib = _module("hopper_mixed_type_matmul_mgpu")
            config = lib.TuningConfig(
                **({"tile_m": 128, "tile_n": 128, "tile_k": 64, "max_concurrent_steps": 4} | tuning)
            )
            fn = functools.partial(lib.mixed_matmul_kernel, out_dtype=dtype, config=config)
            return fn, (struct((m, k), "int8"), struct((k, n), dtype))

        return call

    for variant, case in {
        "int8_bf16": mixed("bfloat16"),
        "int8_f16": mixed("float16", tile_m=64, max_concurrent_steps=2),
    }.items():
        modules = (OPS + "hopper_mixed_type_matmul_mgpu",)
        yield Case(f"jax/gpu/hopper_mixed_type_matmul/{variant}", HOPPER, case, modules)


def _blackwell_matmul_cases() -> Iterator[Case]:
    def make(dtype, **tuning):
        def call() -> Call:
            lib = _module("blackwell_matmul_mgpu")
            if "grid_minor_dim" in tuning:
                tuning["grid_minor_dim"] = lib.MatmulDimension(tuning["grid_minor_dim"])
            default = {
                "tile_m": 128,
                "tile_n": 128,
                "tile_k": 64,
                "max_concurrent_steps": 4,
                "collective": False,
            }
            config = lib.TuningConfig(**(default | tuning))
            fn = functools.partial(lib.matmul_kernel, config=config)
            return fn, (struct((1024, 512), dtype), struct((512, 1024), dtype))

        return call

    for variant, case in {
        "f16": make("float16"),
        "bf16": make("bfloat16", epilogue_tile_n=32, max_concurrent_steps=6),
        "collective": make("float16", collective=True),
        "grid_m": make("float16", grid_minor_dim=0, grid_tile_width=4),
    }.items():
        modules = (OPS + "blackwell_matmul_mgpu",)
        yield Case(f"jax/gpu/blackwell_matmul/{variant}", BLACKWELL, case, modules)


def _ragged_cases() -> Iterator[Case]:
    m, n, k, groups = 1024, 512, 256, 8

    def hopper(dtype, **options):
        def call() -> Call:
            lib = _module("ragged_dot_mgpu")
            blocks = {"block_m": 64, "block_n": 64, "block_k": 64}
            pipeline = {"max_concurrent_steps": 2, "grid_block_n": 2}
            rhs = (groups, n, k) if options.get("transpose_rhs") else (groups, k, n)

            def fn(lhs, rhs, sizes):
                return lib.ragged_dot(lhs, rhs, group_sizes=sizes, **blocks, **pipeline, **options)

            return fn, (struct((m, k), dtype), struct(rhs, dtype), struct((groups,), "int32"))

        return call

    def hopper_transposed() -> Call:
        lib = _module("transposed_ragged_dot_mgpu")
        blocks = {"block_m": 64, "block_n": 64, "block_k": 64}

        def fn(lhs, rhs, sizes):
            return lib.transposed_ragged_dot(
                lhs, rhs, group_sizes=sizes, **blocks, max_concurrent_steps=4, grid_block_n=2
            )

        return fn, (
            struct((m, k), "float16"),
            struct((m, n), "float16"),
            struct((groups,), "int32"),
        )

    def blackwell(dtype):
        def call() -> Call:
            lib = _module("blackwell_ragged_dot_mgpu")
            dimension = _module("blackwell_matmul_mgpu").MatmulDimension
            config = lib.TuningConfig(
                tile_m=128,
                tile_n=128,
                tile_k=64,
                max_concurrent_steps=4,
                collective=True,  # it names a cluster axis that exists only then
                grid_tile_width=4,
                grid_minor_dim=dimension.N,
            )
            fn = functools.partial(lib.ragged_dot_kernel, config=config)
            return fn, (
                struct((m, k), dtype),
                struct((groups, k, n), dtype),
                struct((groups,), "int32"),
            )

        return call

    for op, variant, targets, case in (
        ("ragged_dot", "f16", HOPPER, hopper("float16")),
        ("ragged_dot", "bf16_transposed_rhs", HOPPER, hopper("bfloat16", transpose_rhs=True)),
        (
            "ragged_dot",
            "sizes_in_memory",
            HOPPER,
            hopper("float16", load_group_sizes_to_register=False),
        ),
        ("transposed_ragged_dot", "f16", HOPPER, hopper_transposed),
        ("blackwell_ragged_dot", "f16", BLACKWELL, blackwell("float16")),
        ("blackwell_ragged_dot", "bf16", BLACKWELL, blackwell("bfloat16")),
    ):
        yield Case(f"jax/gpu/{op}/{variant}", targets, case, (f"{OPS}{op}_mgpu",))


def _attention_mgpu_cases() -> Iterator[Case]:
    def make(function, dtype, backward=False, head_dim=128, kv_heads=4, residuals=False, **tuning):
        def call() -> Call:
            blocks = {"block_q": 64, "block_kv": 64, "max_concurrent_steps": 2}
            if backward:
                names = ("block_q_dkv", "block_kv_dkv", "block_q_dq", "block_kv_dq")
                blocks |= dict.fromkeys(names, 64)
            q = struct((2, 512, 4, head_dim), dtype)
            kv = struct((2, 512, kv_heads, head_dim), dtype)

            # The library asks for CUDA's version while it is imported.
            def fn(q, k, v):
                lib = _module("attention_mgpu")
                config = lib.TuningConfig(**(blocks | tuning))
                if function == "attention":  # whose options are positional only for `jax.grad`
                    return lib.attention(q, k, v, config, residuals)
                return getattr(lib, function)(q, k, v, config=config, save_residuals=residuals)

            return (gradient(fn, (0, 1, 2)) if backward else fn), (q, kv, kv)

        return call

    for variant, case in {
        "f16_fwd": make("attention", "float16"),
        "gqa_residuals_fwd": make("attention", "float16", kv_heads=2, residuals=True),
        "causal_fwd": make("attention", "float16", causal=True),
        "head_64_fwd": make("attention", "float16", head_dim=64, use_schedule_barrier=False),
        "f16_bwd": make("attention", "float16", backward=True, head_dim=64),
        "two_warpgroups_bwd": make(
            "attention", "float16", backward=True, head_dim=64, compute_wgs_bwd=2
        ),
        "pipeline_emitter_fwd": make("attention_with_pipeline_emitter", "float16"),
        "pipeline_emitter_residuals_fwd": make(
            "attention_with_pipeline_emitter",
            "float16",
            residuals=True,
            use_schedule_barrier=False,
        ),
    }.items():
        yield Case(f"jax/gpu/attention_mgpu/{variant}", HOPPER, case, (OPS + "attention_mgpu",))


def _collective_cases() -> Iterator[Case]:
    def sharded(build, in_specs, out_specs, args) -> Call:
        import jax
        import numpy as np

        mesh = jax.sharding.Mesh(np.array(jax.devices()), ("x",))
        fn = jax.shard_map(
            build, mesh=mesh, in_specs=in_specs, out_specs=out_specs, check_vma=False
        )
        return fn, args

    def all_gather(dtype, dimension, **options):
        def call() -> Call:
            from jax.sharding import PartitionSpec as P

            lib = _module("all_gather_mgpu")
            spec = P("x", None) if dimension == 0 else P(None, "x")
            options.setdefault("num_blocks", 4)

            def build(x):
                return lib.all_gather(x, axis_name="x", gather_dimension=dimension, **options)

            return sharded(build, spec, P(None, None), (struct((1024, 1024), dtype),))

        return call

    def reduce_scatter(dtype, dimension, **options):
        def call() -> Call:
            from jax.sharding import PartitionSpec as P

            lib = _module("reduce_scatter_mgpu")
            options.setdefault("num_blocks", 4)
            spec = {0: P("x", None), 1: P(None, "x"), None: P(None, None)}[dimension]

            def build(x):
                return lib.reduce_scatter(x, axis_name="x", scatter_dimension=dimension, **options)

            return sharded(build, P(None, None), spec, (struct((1024, 1024), dtype),))

        return call

    def matmul(wg_dimension):
        def call() -> Call:
            from jax.sharding import PartitionSpec as P

            lib = _module("collective_matmul_mgpu")
            hopper = _module("hopper_matmul_mgpu")
            config = hopper.TuningConfig(
                tile_m=128,
                tile_n=128,
                tile_k=64,
                max_concurrent_steps=4,
                wg_dimension=hopper.MatmulDimension(wg_dimension),
            )

            def build(lhs, rhs):
                return lib.all_gather_lhs_matmul(
                    lhs, rhs, axis_name="x", config=config, dtype=lhs.dtype
                )

            args = (struct((8 * 256, 512), "bfloat16"), struct((512, 8 * 256), "bfloat16"))
            return sharded(build, (P("x", None), P(None, "x")), P(None, "x"), args)

        return call

    for op, variant, case in (
        ("all_gather", "bf16_rows", all_gather("bfloat16", 0)),
        ("all_gather", "f32_columns", all_gather("float32", 1, num_blocks=8, tile_size=1024)),
        ("reduce_scatter", "f32_rows", reduce_scatter("float32", 0)),
        ("reduce_scatter", "bf16_columns", reduce_scatter("bfloat16", 1, tile_size=2048)),
        ("reduce_scatter", "all_reduce_max", reduce_scatter("int32", None, reduction="max")),
        ("collective_matmul", "split_m", matmul(0)),
        ("collective_matmul", "split_n", matmul(1)),
    ):
        modules = (f"{OPS}{op}_mgpu",)
        yield Case(f"jax/gpu/{op}/{variant}", HOPPER, case, modules, devices=8)


def _triton_attention_cases() -> Iterator[Case]:
    def make(dtype, backward=False, segments=False, dim=64, **options):
        def call() -> Call:
            lib = _module("attention")
            x = struct((2, 256, 4, dim), dtype)
            ids = (struct((2, 256), "int32"),) if segments else ()

            def fn(q, k, v, ids=None):
                return lib.mha(q, k, v, ids, **options)

            return (gradient(fn, (0, 1, 2)) if backward else fn), (x, x, x, *ids)

        return call

    for variant, case in {
        "f16_fwd": make("float16"),
        "causal_fwd": make("bfloat16", causal=True, dim=128),
        "segments_fwd": make("float16", segments=True),
        "padded_head_fwd": make("float16", dim=80),
        "residuals_fwd": make("float32", return_residuals=True, num_warps=4),
        "f16_bwd": make("float16", backward=True),
        "causal_segments_bwd": make("float16", backward=True, segments=True, causal=True),
    }.items():
        yield Case(f"jax/triton/attention/{variant}", TRITON, case, (OPS + "attention",))


def _triton_decode_cases() -> Iterator[Case]:
    batch, seq, dim = 2, 1024, 64

    def decode(function, dtype, lengths=False, **options):
        def call() -> Call:
            lib = _module("decode_attention")
            q = struct((batch, 16, dim), dtype)
            kv = struct((batch, seq, 4, dim) if function == "gqa" else (batch, seq, dim), dtype)
            bounds = (struct((batch,), "int32"),) * 2 if lengths else ()
            fn = functools.partial(getattr(lib, function), **options)
            return fn, (q, kv, kv, *bounds)

        return call

    def paged(dtype, lengths=True, quantized=False, **options):
        def call() -> Call:
            lib = _module("paged_attention")
            pages = struct((4, 64, 16, dim), "int8" if quantized else dtype)
            scales = (struct((4, 64, 16), dtype),) * 2 if quantized else ()
            bounds = (struct((batch,), "int32") if lengths else None,)

            def fn(q, k, v, table, length, *scales):
                return lib.paged_attention(q, k, v, table, length, *scales, **options)

            args = (struct((batch, 16, dim), dtype), pages, pages, struct((batch, 32), "int32"))
            return fn, args + bounds + scales

        return call

    for op, variant, case in (
        ("decode_attention", "mqa_f16", decode("mqa", "float16")),
        ("decode_attention", "mqa_bounds", decode("mqa", "float16", lengths=True)),
        ("decode_attention", "gqa_bf16", decode("gqa", "bfloat16", lengths=True)),
        (
            "decode_attention",
            "gqa_residuals",
            decode("gqa", "float16", return_residuals=True, normalize_output=False, k_splits=4),
        ),
        ("paged_attention", "f16", paged("float16", k_splits=2)),
        ("paged_attention", "no_lengths", paged("float16", lengths=False, k_splits=4)),
        ("paged_attention", "int8", paged("float16", quantized=True, k_splits=2)),
        ("paged_attention", "soft_cap", paged("bfloat16", k_splits=1, attn_logits_soft_cap=30.0)),
    ):
        yield Case(f"jax/triton/{op}/{variant}", TRITON, case, (OPS + op,))


def _triton_norm_cases() -> Iterator[Case]:
    def norm(op, dtype, width, backward):
        def call() -> Call:
            fn = getattr(_module(op), op)
            args = (
                struct((2, 128, width), dtype),
                struct((width,), dtype),
                struct((width,), dtype),
            )
            return (gradient(fn, (0, 1, 2)) if backward else fn), args

        return call

    for op in ("layer_norm", "rms_norm"):
        for dtype, width in (("float32", 256), ("float16", 384), ("bfloat16", 8192)):
            for phase in ("fwd", "bwd"):
                name = f"jax/triton/{op}/{dtype}_{width}_{phase}"
                yield Case(name, TRITON, norm(op, dtype, width, phase == "bwd"), (OPS + op,))

    def softmax(shape, dtype):
        def call() -> Call:
            return _module("softmax").softmax, (struct(shape, dtype),)

        return call

    for variant, case in {
        "f32": softmax((4, 256), "float32"),
        "f16_padded": softmax((2, 3, 100), "float16"),
        "bf16_vector": softmax((1000,), "bfloat16"),
    }.items():
        yield Case(f"jax/triton/softmax/{variant}", TRITON, case, (OPS + "softmax",))
