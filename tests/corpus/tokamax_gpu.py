"""Calls of every Mosaic GPU and Pallas-Triton kernel of tokamax."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from .case import Case, struct
from .tokamax_specs import Op, arguments_call, spec_cases

GPU = "pallas_mosaic_gpu"
AMPERE, HOPPER, BLACKWELL = ("a100",), ("h100",), ("b200",)
GPUS = AMPERE + HOPPER + BLACKWELL


def cases() -> Iterator[Case]:
    yield from _attention_cases()
    yield from _gated_linear_unit_cases()
    yield from _ragged_dot_cases()


def _attention(generation: str) -> Op:
    kernels = (f"{GPU}_kernel_{generation}",)
    if generation != "sm80":
        kernels += (f"{GPU}_vjp_kernel_{generation}", "tokamax._src.mosaic_gpu")
    return Op("attention", GPU, "PallasMosaicGpuFlashAttention", kernels)


def _attention_arguments(
    dtype="bfloat16", heads=4, kv_heads=None, dim=64, seq=512, **options
) -> Callable[[], dict[str, Any]]:
    def arguments() -> dict[str, Any]:
        from tokamax._src.ops.attention import base

        q = struct((2, seq, heads, dim), dtype)
        kv = struct((2, 512, kv_heads or heads, dim), dtype)
        made = {"q": q, "k": kv, "v": kv}
        for name, value in options.items():
            if name == "bias":
                value = struct((2, heads, seq, 512), dtype)
            elif name == "mask":
                value = base.Mask(struct((2, 1, seq, 512), "bool"))
            elif name == "local":
                starts = struct((1, seq), "int32")
                name, value = "mask", base.Mask(k_start=starts, is_causal=True)
            elif name == "dropout_mask":
                value = struct((2, heads, seq, 512), "bool")
            made[name] = value
        return made

    return arguments


_ATTENTION_VARIANTS = {
    "causal": {"is_causal": True},
    "grouped": {"kv_heads": 2},
    "f16": {"dtype": "float16"},
    "bias_mask": {"bias": True, "mask": True},
    "soft_cap": {"logits_soft_cap": 20.0},
    "unnormalized": {"normalize_output": False},
    "local": {"local": True},
    "odd": {"seq": 500, "dim": 96},
}


def _attention_cases() -> Iterator[Case]:
    modes = {"fwd": "forward", "bwd": "forward_and_vjp"}
    for generation, targets in (("sm80", AMPERE), ("sm90", HOPPER), ("sm100", BLACKWELL)):
        op = _attention(generation)
        both = generation != "sm80"  # which has no backward kernel of its own
        prefix = f"tokamax/gpu/attention_{generation}"
        specs = ("mixtral_8x7b_bf16", "deepseek2_16b_bf16", "alphafold_384x384x4x64")
        yield from spec_cases(prefix, op, targets, *specs, backward=both)
        for variant, options in _ATTENTION_VARIANTS.items():
            for phase in ("fwd", "bwd") if both and variant != "unnormalized" else ("fwd",):
                make = arguments_call(op, _attention_arguments(**options), modes[phase])
                yield Case(
                    f"{prefix}/{variant}_{phase}",
                    targets,
                    make,
                    op.modules,
                    refusal="supported for precision=" if variant == "f16" else None,
                )
    for name, generation, targets, options in (
        ("persistent", "sm90", HOPPER, {"config": "ConfigSM90", "persistent": True}),
        ("split_k", "sm90", HOPPER, {"config": "ConfigSM90", "split_k": 2}),
        ("folded_heads", "sm90", HOPPER, {"config": "ConfigSM90", "fold_q_sequence_heads": True}),
        (
            "persistent",
            "sm100",
            BLACKWELL,
            {"config": "ConfigSM100", "persistent": True, "block_q": 256, "block_kv": 128},
        ),
        (
            "static",
            "sm100",
            BLACKWELL,
            {"config": "ConfigSM100", "persistent": "static", "block_q": 256, "block_kv": 128},
        ),
        (
            "one_cta",
            "sm100",
            BLACKWELL,
            {"config": "ConfigSM100", "collective": False, "block_q": 128, "block_kv": 128},
        ),
    ):
        op = _attention(generation)
        make = arguments_call(op, _attention_arguments(dim=128), **options)
        yield Case(f"tokamax/gpu/attention_{generation}/{name}", targets, make, op.modules)

    triton = Op(
        "attention",
        "pallas_triton",
        "PallasTritonFlashAttention",
        ("pallas_triton", "pallas_triton_vjp", "tokamax._src.pallas.block"),
    )
    prefix = "tokamax/triton/attention"
    specs = ("mixtral_8x7b_bf16", "alphafold_384x384x4x64")
    yield from spec_cases(prefix, triton, HOPPER, *specs, backward=True)
    dropout = {"dropout": {"dropout_mask": True, "dropout_rate": 0.1}}
    for variant, options in (_ATTENTION_VARIANTS | dropout).items():
        for phase, mode in modes.items():
            if variant == "unnormalized" and phase == "bwd":
                continue
            make = arguments_call(triton, _attention_arguments(**options), mode)
            lacks_gradient = phase == "bwd" and variant in ("soft_cap", "dropout")
            yield Case(
                f"{prefix}/{variant}_{phase}",
                ("a100", "h100"),
                make,
                triton.modules,
                refusal="` unsupported" if lacks_gradient else None,
            )
    make = arguments_call(
        triton, _attention_arguments(), block_q=64, block_k=64, num_stages=2, num_warps=4, split_k=2
    )
    yield Case(f"{prefix}/split_k", HOPPER, make, triton.modules)


def _gated_linear_unit_cases() -> Iterator[Case]:
    def arguments(dtype, activation, fused=True):
        def make() -> dict[str, Any]:
            import jax

            m, k, n = 1024, 512, 256
            weights = struct((k, 2, n), dtype)
            if not fused:
                weights = (struct((k, n), dtype), struct((k, n), dtype))
            name = activation and getattr(jax.nn, activation)
            return {"x": struct((m, k), dtype), "weights": weights, "activation": name}

        return make

    for generation, targets in (("sm80", AMPERE), ("sm90", HOPPER), ("sm100", BLACKWELL)):
        op = Op(
            "gated_linear_unit",
            GPU,
            "PallasMosaicGpuGatedLinearUnit",
            (f"{GPU}_kernel_{generation}",),
        )
        for variant, options in {
            "bf16_swish": ("bfloat16", "swish"),
            "f16_sigmoid": ("float16", "sigmoid"),
            "bf16_unfused": ("bfloat16", "gelu", False),
            "bf16_linear": ("bfloat16", None),
        }.items():
            make = arguments_call(op, arguments(*options))
            yield Case(
                f"tokamax/gpu/gated_linear_unit_{generation}/{variant}", targets, make, op.modules
            )


def _ragged_dot(*kernels: str) -> Op:
    names = tuple(f"{GPU}_kernel_{kernel}" for kernel in kernels)
    return Op("ragged_dot", GPU, "PallasMosaicGpuRaggedDot", names)


def _ragged_arguments(
    dtype="bfloat16", lhs: str | None = None, rhs: str | None = None, tile=256, scale="bfloat16"
) -> Callable[[], dict[str, Any]]:
    """Operands of a ragged dot, quantized to the types `lhs` and `rhs` where given.

    A scale covers `tile` elements of the contracting dimension.
    """

    def arguments() -> dict[str, Any]:
        import jax.numpy as jnp
        from tokamax._src.ops.ragged_dot import base

        m, k, n, groups = 1024, 1024, 1024, 8

        def quantized(shape, qtype, scales):
            values, scales = struct(shape, qtype), struct(scales, scale)
            return base.QArray(
                qvalue=values, scale=scales, zero_point=None, qtype=getattr(jnp, qtype)
            )

        left = quantized((m, k), lhs, (m, k // tile)) if lhs else struct((m, k), dtype)
        right = struct((groups, k, n), dtype)
        if rhs:
            right = quantized((groups, k, n), rhs, (groups, k // tile, n))
        return {"lhs": left, "rhs": right, "group_sizes": struct((groups,), "int32")}

    return arguments


def _ragged_dot_cases() -> Iterator[Case]:
    prefix = "tokamax/gpu/ragged_dot_"
    spec = "maxtext_deepseek-v3-262144x1024_256x1024x7168"
    yield from spec_cases(prefix + "sm90", _ragged_dot("sm90"), HOPPER, spec, backward=True)
    yield from spec_cases(prefix + "sm100", _ragged_dot("sm100"), BLACKWELL, spec)
    small = {"block_m": 64, "block_n": 128, "block_k": 64, "num_stages": 2, "split_k": 1}
    blackwell = {"block_m": 64, "block_n": 128, "block_k": 128, "num_stages": 2, "split_k": 1}
    for variant, kernel, targets, arguments, options in (
        ("bf16", "sm80", AMPERE, _ragged_arguments(), small),
        ("f16", "sm90", HOPPER, _ragged_arguments("float16"), {}),
        ("persistent", "sm90", HOPPER, _ragged_arguments(), small | {"persistent": True}),
        ("int4", "sm90_quant", HOPPER, _ragged_arguments(rhs="int4"), {}),
        ("int8", "sm90_quant", HOPPER, _ragged_arguments(rhs="int8"), {}),
        ("int4", "sm100_quant", BLACKWELL, _ragged_arguments(rhs="int4"), blackwell),
        (
            "int4_post_scale",
            "sm100_quant_post_scale",
            BLACKWELL,
            _ragged_arguments(rhs="int4"),
            blackwell | {"post_scale": True},
        ),
        (
            "int8_int4",
            "sm100_i8_quant",
            BLACKWELL,
            _ragged_arguments(lhs="int8", rhs="int4"),
            {},
        ),
        (
            "fp8_int4",
            "sm100_fp8_quant",
            BLACKWELL,
            _ragged_arguments(lhs="float8_e4m3fn", rhs="int4"),
            {},
        ),
    ):
        op = _ragged_dot(kernel)
        make = arguments_call(op, arguments, **options)
        yield Case(f"{prefix}{kernel}/{variant}", targets, make, op.modules)
