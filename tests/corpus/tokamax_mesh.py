"""Calls of tokamax's TPU kernels that span several chips, and of its unexported ones."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from typing import Any

from .case import Call, Case, gradient, struct
from .tokamax_specs import OPS, Op, call

EXPERIMENTAL = OPS + "experimental."
TPU7X = ("tpu7x",)
DEVICES = 8


def cases() -> Iterator[Case]:
    yield from _fused_moe_cases()
    yield from _routing_moe_cases()
    yield from _context_parallel_cases()
    yield from _unexported_cases()


def _mesh(*axes: tuple[str, int]) -> Any:
    import jax
    import numpy as np

    names, sizes = zip(*axes)
    return jax.sharding.Mesh(np.array(jax.devices()).reshape(sizes), names)


def _fused_moe_cases() -> Iterator[Case]:
    op = Op(
        "experimental.fused_moe",
        "pallas_mosaic_tpu",
        "PallasMosaicTpuFusedMoe",
        ("kernel", "router_ops"),
    )

    def fused(weights):
        def make() -> Call:
            import jax

            mesh = _mesh(("d", DEVICES))
            sharding = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("d"))
            tokens, experts, hidden, inner = 256, 64, 1024, 512

            def sharded(shape, dtype):
                return jax.ShapeDtypeStruct(shape, dtype, sharding=sharding)

            arguments = {
                "x": sharded((tokens, hidden), "bfloat16"),
                "w1": sharded((experts, hidden, 2 * inner), weights),
                "w2": sharded((experts, inner, hidden), weights),
                "gating": sharded((tokens, experts), "float32"),
                "topk": 8,
                "renormalize": True,
                "act_fn": "silu",
                "mesh": mesh,
            }
            if weights != "bfloat16":
                arguments["w1_scale"] = sharded((experts, 2 * inner), "float32")
                arguments["w2_scale"] = sharded((experts, hidden), "float32")
            return call(op, arguments)

        return make

    for weights in ("float8_e4m3fn", "bfloat16", "int8"):
        name = f"tokamax/tpu/fused_moe/{weights}"
        yield Case(name, TPU7X, fused(weights), op.modules, devices=DEVICES)

    def decode(**options):
        def make() -> Call:
            import jax

            kernel = importlib.import_module(
                EXPERIMENTAL + "fused_moe_decode.fused_moe_decode_kernel"
            )
            spec = jax.sharding.PartitionSpec("d")
            experts, hidden, inner, shared, tokens, topk = 64, 1024, 256, 128, 32, 10
            fp8, wide = "float8_e4m3fn", "float32"

            def fn(*args):
                def local(*each):
                    each = [x[0] for x in each]
                    return kernel.fused_moe_decode(*each, n_ranks=DEVICES, **options)[None]

                return jax.shard_map(
                    local,
                    mesh=_mesh(("d", DEVICES)),
                    in_specs=(spec,) * len(args),
                    out_specs=spec,
                    check_vma=False,
                )(*args)

            each = [
                ((1,), "int32"),
                ((tokens, hidden), "bfloat16"),
                ((experts, hidden, 2 * inner), fp8),
                ((experts, inner, hidden), fp8),
                ((experts, 1, 1, 2 * inner), wide),
                ((experts, 1, 1, hidden), wide),
                ((hidden, 2 * shared), fp8),
                ((1, 2 * shared), wide),
                ((shared, hidden), fp8),
                ((1, hidden), wide),
                ((hidden, 1), "bfloat16"),
                ((tokens, topk), wide),
                ((tokens, topk), "int32"),
            ]
            return fn, [struct((DEVICES, *shape), dtype) for shape, dtype in each]

        return make

    modules = (EXPERIMENTAL + "fused_moe_decode.fused_moe_decode_kernel",)
    for variant, options in {
        "whole": {},
        "blocked": {"i_block": 128},
        "scatter_rows": {"scatter_rows": True},
    }.items():
        name = f"tokamax/tpu/fused_moe_decode/{variant}"
        yield Case(name, TPU7X, decode(**options), modules, devices=DEVICES)

    def reduce_scatter(quantized, **options):
        def make() -> Call:
            lib = importlib.import_module(EXPERIMENTAL + "fused_moe_rs")
            mesh = _mesh(("data", 1), ("model", 1), ("expert", DEVICES))
            tokens, experts, hidden, inner = 128, 64, 1024, 512
            weights = "float8_e4m3fn" if quantized else "bfloat16"
            scales = (
                (
                    struct((experts, 1, 1, 2 * inner), "float32"),
                    struct((experts, 1, 1, hidden), "float32"),
                )
                if quantized
                else (None, None)
            )

            def fn(x, w1, w2, w1_scale, w2_scale, gating):
                return lib.fused_moe_func_rs(
                    x,
                    w1,
                    w2,
                    w1_scale,
                    w2_scale,
                    None,
                    None,
                    gating,
                    topk=8,
                    renormalize=True,
                    mesh=mesh,
                    activation="silu",
                    scoring_fn="softmax",
                    **options,
                )

            return fn, (
                struct((tokens, hidden), "bfloat16"),
                struct((experts, hidden, 2 * inner), weights),
                struct((experts, inner, hidden), weights),
                *scales,
                struct((tokens, experts), "bfloat16"),
            )

        return make

    modules = (EXPERIMENTAL + "fused_moe_rs.gmm_fused_rs_nodedup",)
    for variant, make in {
        "bf16": reduce_scatter(False),
        "fp8": reduce_scatter(True),
        "fp8_gathered": reduce_scatter(True, fp8_post_gather=True),
    }.items():
        yield Case(f"tokamax/tpu/fused_moe_rs/{variant}", TPU7X, make, modules, devices=DEVICES)


def _routing_moe_cases() -> Iterator[Case]:
    def routed(quantized=False, **options):
        def make() -> Call:
            lib = importlib.import_module(EXPERIMENTAL + "routing_moe.layer.wrapper")
            mesh = _mesh(("data", 1), ("model", DEVICES))
            tokens, experts, hidden, inner = 256, 64, 1024, 2048
            weights = "float8_e4m3fn" if quantized else "bfloat16"
            scales = (
                (
                    struct((experts, 1, 1, 2 * inner), "float32"),
                    struct((experts, 1, 1, hidden), "float32"),
                )
                if quantized
                else (None, None)
            )
            axes = {"tp_axis": None, "ep_axis": None} | options

            def fn(x, w1, w2, w1_scale, w2_scale, gating):
                return lib.routing_moe(
                    x,
                    w1,
                    w2,
                    w1_scale,
                    w2_scale,
                    None,
                    None,
                    gating,
                    topk=8,
                    renormalize=True,
                    mesh=mesh,
                    activation="silu",
                    scoring_fn="softmax",
                    **axes,
                )

            return fn, (
                struct((tokens, hidden), "bfloat16"),
                struct((experts, hidden, 2 * inner), weights),
                struct((experts, inner, hidden), weights),
                *scales,
                struct((tokens, experts), "bfloat16"),
            )

        return make

    modules = (EXPERIMENTAL + "routing_moe.gmm.kernel",)
    for variant, make in {
        "tensor_parallel": routed(tp_axis="model"),
        "expert_parallel": routed(ep_axis="model", use_sp=True),
        "expert_parallel_fp8": routed(True, ep_axis="model"),
        "remote_combine": routed(ep_axis="model", remote_combine=True),
    }.items():
        yield Case(f"tokamax/tpu/routing_moe/{variant}", TPU7X, make, modules, devices=DEVICES)


def _context_parallel_cases() -> Iterator[Case]:
    kernels = ("common", "pallas_mosaic_tpu_fwd_kernel", "pallas_mosaic_tpu_bwd_kernel")
    modules = tuple(f"{OPS}kda.{name}" for name in kernels)

    def make(backward):
        def build() -> Call:
            import jax
            from tokamax._src import jaxtyping
            from tokamax._src.ops.kda import pallas_mosaic_tpu
            from tokamax._src.ops.kda.cp_utils import ContextParallelMetadata

            mesh = _mesh(("context", DEVICES))
            heads, batch, seq, dim = 2, 1, 512 * DEVICES, 128
            x = struct((heads, batch, seq, dim), "bfloat16")
            wide = jax.sharding.PartitionSpec(None, None, "context", None)
            args = (
                x,
                x,
                x,
                x,
                struct((heads, batch, seq), "bfloat16"),
                struct((batch, seq), "int32"),
                struct((heads,), "float32"),
            )
            specs = (
                wide,
                wide,
                wide,
                wide,
                jax.sharding.PartitionSpec(None, None, "context"),
                jax.sharding.PartitionSpec(None, "context"),
                jax.sharding.PartitionSpec(),
            )

            def local(q, k, v, gate, beta, ids, a_log):
                attention = pallas_mosaic_tpu.PallasMosaicTpuKimiDeltaAttention()
                out, _ = attention(
                    q,
                    k,
                    v,
                    gate,
                    beta,
                    a_log=a_log,
                    segment_ids=ids,
                    max_num_segments=8,
                    use_qk_l2norm=True,
                    use_gate_in_kernel=True,
                    lower_bound=-5.0,
                    context_parallel_metadata=ContextParallelMetadata(mesh=mesh),
                )
                return out

            def fn(*args):
                local_ = gradient(local, (0, 1, 2, 3, 4)) if backward else local
                grads = (wide, (wide, wide, wide, wide, specs[4]))
                # Its annotations describe the arrays of a single chip.
                with jaxtyping.disable_jaxtyping():
                    return jax.shard_map(
                        local_,
                        mesh=mesh,
                        in_specs=specs,
                        out_specs=grads if backward else wide,
                        check_vma=False,
                    )(*args)

            return fn, args

        return build

    for phase in ("fwd", "bwd"):
        name = f"tokamax/tpu/kda/context_parallel_{phase}"
        yield Case(name, TPU7X, make(phase == "bwd"), modules, devices=DEVICES)


def _unexported_cases() -> Iterator[Case]:
    def function(module, function_name, *args, **options):
        def make() -> Call:
            fn = getattr(importlib.import_module(OPS + module), function_name)
            return (lambda *each: fn(*each, **options)), [struct(*arg) for arg in args]

        return make

    tokens, heads, pages, page = 64, 128, 64, 256

    def latent(**options):
        return function(
            "experimental.mla.v2.kernel",
            "mla_ragged_paged_attention",
            ((heads, tokens, 512), "float8_e4m3fn"),
            ((tokens, heads, 64), "float8_e4m3fn"),
            ((tokens, 512), "float8_e4m3fn"),
            ((tokens, 64), "float8_e4m3fn"),
            ((pages, page // 4, 4, 640), "float8_e4m3fn"),
            ((8,), "int32"),
            ((64,), "int32"),
            ((9,), "int32"),
            ((3,), "int32"),
            **({"num_kv_pages_per_block": 2, "num_queries_per_block": 8} | options),
        )

    transposed = "experimental.mla.v2.transpose"
    x = ((128, 256, 128), "bfloat16")
    for variant, module, make in (
        ("mla_v2/mixed", "experimental.mla.v2.kernel", latent()),
        ("mla_v2/soft_cap", "experimental.mla.v2.kernel", latent(soft_cap=30.0)),
        ("mla_v2/decode_batch", "experimental.mla.v2.kernel", latent(decode_batch_size=4)),
        (
            "mla_v2/transpose_full",
            transposed,
            function(transposed, "xpose_full", x, transpose_axes=(1, 0, 2)),
        ),
        (
            "mla_v2/transpose_pipeline",
            transposed,
            function(transposed, "xpose_pipeline", x, transpose_axes=(1, 0, 2), m_tile=32),
        ),
        ("mla_v2/pin", transposed, function(transposed, "pin_vmem_custom_call", x)),
        (
            "mhc_pre/mixes",
            "mhc.pre_kernel",
            function(
                "mhc.pre_kernel",
                "mhc_pre_mixes",
                ((512, 4 * 1024), "bfloat16"),
                ((24, 4 * 1024), "float32"),
            ),
        ),
        (
            "fused_moe/select",
            "experimental.fused_moe.router_ops",
            function("experimental.fused_moe.router_ops", "pallas_select", ((512, 256), "float32")),
        ),
        (
            "masked_dense_mla/scatter_rows",
            "masked_dense_mla.scatter_utils",
            function(
                "masked_dense_mla.scatter_utils",
                "scatter_rows",
                ((64 * 256, 128), "uint32"),
                ((256, 128), "uint32"),
                ((256,), "int32"),
                name="scatter",
            ),
        ),
    ):
        yield Case(f"tokamax/tpu/{variant}", TPU7X, make, (OPS + module,))
