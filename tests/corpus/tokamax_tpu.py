"""Calls of every TPU kernel of tokamax that one chip can run, on tokamax's own shapes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from .case import Call, Case, gradient, struct
from .tokamax_specs import OPS, Op, arguments_call, spec_cases

TPU = "pallas_mosaic_tpu"
KERNEL = "pallas_mosaic_tpu_kernel"
SPLASH = OPS + "experimental.tpu.splash_attention.splash_attention_kernel"
TPU7X = ("tpu7x",)
V6_V7 = ("v6e", "tpu7x")


def cases() -> Iterator[Case]:
    yield from _attention_cases()
    yield from _ragged_dot_cases()
    yield from _moe_cases()
    yield from _latent_attention_cases()
    yield from _state_space_cases()
    yield from _sparse_core_cases()
    yield from _other_cases()


def _attention_cases() -> Iterator[Case]:
    flash = Op("attention", TPU, "PallasMosaicTpuFlashAttention", (SPLASH,))
    yield from spec_cases(
        "tokamax/tpu/attention",
        flash,
        ("v5e", "tpu7x"),
        "mixtral_8x7b_bf16",
        "deepseek2_16b_bf16",
        backward=True,
    )

    def attention(**options):
        def arguments() -> dict[str, Any]:
            from tokamax._src.ops.attention import base

            x = struct((2, 1024, 4, 128), options.get("dtype", "bfloat16"))
            mask = base.Mask(struct((2, 1, 1024, 1024), "bool")) if "mask" in options else None
            others = {k: v for k, v in options.items() if k not in ("dtype", "mask")}
            return {"q": x, "k": x, "v": x} | ({"mask": mask} if mask else {}) | others

        return arguments

    for variant, arguments in {
        "soft_cap": attention(logits_soft_cap=30.0, is_causal=True),
        "f32": attention(dtype="float32"),
        "mask": attention(mask=True),
    }.items():
        for phase, mode in (("fwd", "forward"), ("bwd", "forward_and_vjp")):
            make = arguments_call(flash, arguments, mode)
            yield Case(f"tokamax/tpu/attention/{variant}_{phase}", ("v6e",), make, (SPLASH,))

    splash = Op(
        "experimental.tpu.splash_attention", TPU, "PallasMosaicTpuSplashAttention", (SPLASH,)
    )
    yield from spec_cases(
        "tokamax/tpu/splash_attention",
        splash,
        V6_V7,
        "q64_kv8_s8192_dqk128_dv128",
        "q128_kv128_s4096_dqk192_dv128",
        backward=True,
    )
    rpa = Op("batched_rpa", TPU, "PallasTpuBatchedRpa", ("kernel.kernel", "kernel.schedule"))
    yield from spec_cases(
        "tokamax/tpu/batched_rpa",
        rpa,
        V6_V7,
        "qwen3.5_qwen35_decode_bs16",
        "qwen3.5_qwen35_prefill_q4096",
    )


def _ragged_dot_cases() -> Iterator[Case]:
    v1 = Op(
        "ragged_dot",
        TPU,
        "PallasMosaicTpuRaggedDot",
        (KERNEL, "tokamax._src.mosaic_tpu"),
    )
    v2 = Op(
        "ragged_dot",
        "pallas_mosaic_tpu_v2",
        "PallasMosaicTpuV2RaggedDot",
        (OPS + "gmm_v2.gmm_v2", OPS + "gmm_v2.tgmm_v2"),
    )
    plain = "maxtext_deepseek-v3-262144x1024_256x1024x7168"
    quantized = "qwen3_5_qwen_3_5_decode_conc64_down"
    fp4 = "ullm_gmm_v2_ullm_fp4_prefill_down"
    prefix = "tokamax/tpu/ragged_dot"
    yield from spec_cases(prefix, v1, ("v5e", "tpu7x"), plain, backward=True)
    yield from spec_cases(prefix, v1, ("v5e", "tpu7x"), quantized, fp4)
    yield from spec_cases(f"{prefix}_v2", v2, V6_V7, plain, backward=True)
    yield from spec_cases(f"{prefix}_v2", v2, V6_V7, fp4)
    yield from spec_cases(f"{prefix}_v2", v2, TPU7X, quantized)


def _moe_cases() -> Iterator[Case]:
    router = Op("router_topk", TPU, "PallasTpuRouterTopK", (KERNEL,))
    yield from spec_cases(
        "tokamax/tpu/router_topk", router, V6_V7, "inference_e512_k10_t64", "inference_e256_k8_t64"
    )

    fp8 = Op(
        "experimental.fused_fp8_matmul",
        TPU,
        "PallasMosaicTpuFusedFp8Matmul",
        (KERNEL, "pallas_mosaic_tpu_dlhs_kernel"),
    )

    def operands(m, k, n, dtype):
        return lambda: {"lhs": struct((m, k), dtype), "rhs": struct((k, n), dtype)}

    for variant, shape, options in (
        ("bf16", (2048, 3072, 4096, "bfloat16"), {}),
        ("f32", (512, 256, 256, "float32"), {}),
        (
            "k_blocks",
            (256, 6144, 512, "bfloat16"),
            {"block_m": 256, "block_k": 1024, "block_n": 512},
        ),
    ):
        for phase, mode in (("fwd", "forward"), ("bwd", "forward_and_vjp")):
            make = arguments_call(fp8, operands(*shape), mode, **options)
            yield Case(f"tokamax/tpu/fused_fp8_matmul/{variant}_{phase}", TPU7X, make, fp8.modules)


def _latent_attention_cases() -> Iterator[Case]:
    mla = Op("experimental.mla", TPU, "PallasTpuMultiHeadLatentAttention", (KERNEL,))
    yield from spec_cases(
        "tokamax/tpu/mla",
        mla,
        TPU7X,
        "deepseek_v3_decode_bf16",
        "deepseek_v3_prefill_bf16",
        "deepseek_v3_decode_f8",
    )
    dense = Op("masked_dense_mla", TPU, "PallasTpuMaskedDenseMla", (KERNEL, "csa_mask"))
    yield from spec_cases(
        "tokamax/tpu/masked_dense_mla",
        dense,
        TPU7X,
        "inference_decode_b64_q1_kv9216_p1024",
        "inference_prefill_b1_q1024_kv8192_p1024",
    )
    sparse = Op(
        "sparse_mla",
        TPU,
        "PallasTpuSparseMla",
        (KERNEL, OPS + "csa_gather.pallas_mosaic_tpu_kernel"),
    )
    yield from spec_cases(
        "tokamax/tpu/sparse_mla",
        sparse,
        TPU7X,
        "inference_decode_b256_q1_kv9216_topk1024_h128",
        "inference_prefill_b1_q1024_kv8192_topk512_h64",
    )
    swa = Op("experimental.mla_swa", TPU, "PallasTpuMlaSwa", (KERNEL,))

    def window(tokens, **options):
        def arguments() -> dict[str, Any]:
            sequences, heads, dim, size, pages_each = 8, 64, 512, 64, 20
            return {
                "q": struct((tokens, heads, dim), "bfloat16"),
                "new_kv": struct((tokens, dim), "bfloat16"),
                "cache_kv": struct((sequences * pages_each, (size + 4) * 2, 4, 128), "uint8"),
                "kv_lens": struct((sequences,), "int32"),
                "page_indices": struct((sequences * pages_each,), "int32"),
                "cu_q_lens": struct((sequences + 1,), "int32"),
                "distribution": struct((3,), "int32"),
                "attention_sinks": struct((heads,), "float32"),
                "sliding_window": 128,
                "logical_page_size": size,
                "sm_scale": dim**-0.5,
                **options,
            }

        return arguments

    for variant, arguments in {
        "mixed": window(256),
        "unnormalized": window(256, unnormalized_output=True),
        "non_causal": window(64, non_causal_block=True),
        "chunked_prefill": window(512, chunk_prefill_size=64),
    }.items():
        make = arguments_call(swa, arguments)
        yield Case(f"tokamax/tpu/mla_swa/{variant}", TPU7X, make, swa.modules)


def _state_space_cases() -> Iterator[Case]:
    conv = Op(
        "causal_conv1d_gated_delta_rule",
        TPU,
        "PallasMosaicTpuCausalConv1dGatedDeltaRule",
        ("wrapper",),
    )
    yield from spec_cases(
        "tokamax/tpu/causal_conv1d_gated_delta_rule",
        conv,
        V6_V7,
        "qwen3_5_397b_tp8_prefill_2048",
        "qwen3_5_397b_tp8_decode_cached_4_ctx8192",
        "qwen3_5_397b_tp8_padded_mixed_16",
    )
    yield from _kda_cases()


def _kda_cases() -> Iterator[Case]:
    kernels = ("common", "pallas_mosaic_tpu_fwd_kernel", "pallas_mosaic_tpu_bwd_kernel")
    modules = tuple(f"{OPS}kda.{name}" for name in kernels)

    def make(backward, packed=False, final=False, rematerialized=False, **options):
        def build() -> Call:
            from tokamax._src.ops.kda import pallas_mosaic_tpu as lib

            op = lib.PallasMosaicTpuKimiDeltaAttention(
                config=lib.Config(rematerialize_for_backward=rematerialized)
            )

            heads, batch, seq, dim = 2, 1, 512, 128
            x = struct((heads, batch, seq, dim), "bfloat16")
            args: list[Any] = [x, x, x, x, struct((heads, batch, seq), "bfloat16")]
            args += [struct((heads,), "float32"), struct((heads * dim,), "float32")]
            if packed:
                args.append(struct((batch, seq), "int32"))

            def fn(q, k, v, gate, beta, a_log, bias, ids=None):
                fused = {"a_log": a_log, "delta_time_bias": bias, "lower_bound": -5.0}
                activation = fused if options.get("use_gate_in_kernel", True) else {}
                out, state = op(
                    q,
                    k,
                    v,
                    gate,
                    beta,
                    output_final_state=final,
                    use_qk_l2norm=True,
                    segment_ids=ids,
                    max_num_segments=4 if packed else None,
                    **({"use_gate_in_kernel": True} | activation | options),
                )
                return (out, state) if final else out

            return (gradient(fn, (0, 1, 2, 3, 4)) if backward else fn), args

        return build

    for variant, options in {
        "fixed": {},
        "packed": {"packed": True},
        "final_state": {"final": True},
        "log_gate": {"use_gate_in_kernel": False},
        "rematerialized": {"rematerialized": True},
        "rematerialized_packed": {"rematerialized": True, "packed": True},
    }.items():
        for phase in ("fwd", "bwd"):
            name = f"tokamax/tpu/kda/{variant}_{phase}"
            yield Case(name, TPU7X, make(phase == "bwd", **options), modules)


def _sparse_core_cases() -> Iterator[Case]:
    gather = Op("csa_gather", TPU, "PallasTpuCsaGather", (KERNEL,))
    yield from spec_cases(
        "tokamax/tpu/csa_gather",
        gather,
        TPU7X,
        "inference_dsv4_1000x256_n4096_topk512",
        "inference_dsv4_1000x256_n131072_topk2048",
    )
    indexer = Op(
        "lightning_indexer",
        TPU,
        "PallasTpuLightningIndexer",
        ("kernel.streamindex_topk", OPS + "topk.pallas_mosaic_tpu_kernel"),
    )
    yield from spec_cases(
        "tokamax/tpu/lightning_indexer",
        indexer,
        TPU7X,
        "inference_decode_b256_q1_kv9216_k512",
        "inference_prefill_b1_q1024_kv8192_k512",
    )
    ragged = Op("ragged_gather", TPU, "PallasTpuRaggedGather", (KERNEL,))
    yield from spec_cases(
        "tokamax/tpu/ragged_gather",
        ragged,
        TPU7X,
        "inference_8192x81920_4096_bf16",
        "inference_512x1024_512_bf16",
    )
    reduce = Op("ragged_gather_reduce", TPU, "PallasTpuRaggedGatherReduce", (KERNEL,))
    yield from spec_cases(
        "tokamax/tpu/ragged_gather_reduce",
        reduce,
        TPU7X,
        "inference_8192x4096_group8_bf16",
        "inference_16384x7168_group8_bf16",
    )
    topk = Op("topk", TPU, "PallasTpuTopK", (KERNEL,))
    yield from spec_cases(
        "tokamax/tpu/topk",
        topk,
        TPU7X,
        "inference_b16_n10240_k2048",
        "inference_b256_n2304_k1024",
    )

    def packed() -> Call:
        from tokamax._src.ops.lightning_indexer.kernel.dcp_sc_compact import pack_nonnegative

        return pack_nonnegative, (struct((100, 512), "int32"),)

    modules = (OPS + "lightning_indexer.kernel.dcp_sc_compact",)
    yield Case("tokamax/tpu/lightning_indexer/pack_nonnegative", TPU7X, packed, modules)


def _other_cases() -> Iterator[Case]:
    rope = Op("deepseek_rope", TPU, "PallasTpuDeepseekRope", (KERNEL,))
    yield from spec_cases(
        "tokamax/tpu/deepseek_rope",
        rope,
        TPU7X,
        "inference_dsv4_qnorm_rope_q_t128_h128_d512",
        "inference_dsv4_rope_kv_t4096_d512",
        "inference_dsv4_rope_quant_indexer_q_t4096_h64_d128",
    )
    compressor = Op("dsv4_compressor", TPU, "PallasTpuDsv4Compressor", (KERNEL,))
    yield from spec_cases(
        "tokamax/tpu/dsv4_compressor",
        compressor,
        TPU7X,
        "inference_dsv4_csa_decode_b128",
        "inference_dsv4_hca_prefill_t8192",
        "inference_dsv4_csa_indexer_prefill_t8192",
    )
    lowrank = Op("grouped_lowrank_proj", TPU, "PallasTpuGroupedLowrankProj", (KERNEL,))
    yield from spec_cases(
        "tokamax/tpu/grouped_lowrank_proj", lowrank, TPU7X, "inference_dsv4_t128_g16_r1024"
    )
    loss = Op(
        "linear_softmax_cross_entropy_loss",
        TPU,
        "PallasMosaicTpuLinearSoftmaxCrossEntropyLoss",
        (KERNEL,),
    )
    yield from spec_cases(
        "tokamax/tpu/linear_softmax_cross_entropy_loss", loss, V6_V7, "qwen3-8b", backward=True
    )
    for part, cls, kernels in (
        ("PRE", "PallasTpuMhcPre", ("pre_kernel",)),
        ("POST", "PallasTpuMhcPost", ("post_kernel",)),
        ("FUSED_POST_PRE", "PallasTpuMhcFusedPostPre", ("fused_post_pre_kernel",)),
    ):
        mhc = Op("mhc", TPU, cls, kernels, f"{part}_ARG_SPECS")
        prefix = f"tokamax/tpu/mhc_{part.lower()}"
        yield from spec_cases(prefix, mhc, V6_V7, "inference_dsv4_t512_m4_h7168")
    state = Op("proj_and_save_state", TPU, "PallasTpuProjAndSaveState", (KERNEL,))
    prefix = "tokamax/tpu/proj_and_save_state"
    yield from spec_cases(prefix, state, V6_V7, "inference_dsv4_csa_decode_t128_h7168")
    # On a TPU7x it unrolls to 1.7 MB of bytecode, which adds minutes and no new operation.
    yield from spec_cases(prefix, state, ("v6e",), "inference_dsv4_hca_prefill_t4096_h7168")
