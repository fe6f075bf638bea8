"""Kernels to run on a device: as written, as rewritten, and written by hand at that schedule."""

from __future__ import annotations

import dataclasses
import importlib.util
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu
from jax.experimental.pallas import tpu as pltpu

KERNELS = Path(__file__).parents[2] / "dumps/kernels"


@dataclasses.dataclass(frozen=True)
class Case:
    """One kernel and its rewrite.

    Attributes:
      name: for tables.
      platform: whose chips it is for, ``tpu`` or ``cuda``.
      original: a function of arrays with one kernel in it.
      operands: what it takes.
      reference: the same in NumPy, of float32 arrays.
      pipeline: the passes of the rewrite.
      by_hand: the kernel written at the schedule that the rewrite makes, if somebody did.
      tolerance: of a value, relative to the largest one in size.
    """

    name: str
    platform: str
    original: Callable[..., Any]
    operands: tuple[jax.ShapeDtypeStruct, ...]
    reference: Callable[..., np.ndarray]
    pipeline: str
    by_hand: Callable[..., Any] | None = None
    tolerance: float = 1e-5

    @property
    def variants(self) -> dict[str, Callable[..., Any]]:
        """Functions by name; the rewritten one is lowered inside a `rewriting` block."""
        found = {"original": self.original, "rewritten": self.original}
        return found | ({"by hand": self.by_hand} if self.by_hand else {})

    def arrays(self) -> list[np.ndarray]:
        """The same random operands whenever they are asked for."""
        generator = np.random.default_rng(0)
        return [
            generator.standard_normal(o.shape, np.float32).astype(o.dtype) for o in self.operands
        ]


def example(name: str, **constants: Any) -> Any:
    """A module of its own of an example kernel, with other values for its constants."""
    spec = importlib.util.spec_from_file_location(name, KERNELS / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    for constant, value in constants.items():
        assert hasattr(module, constant)
        setattr(module, constant, value)
    return module


def _array(*shape: int, dtype: Any = jnp.float32) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, dtype)


def _softmax(x: np.ndarray) -> np.ndarray:
    numerator = np.exp(x - x.max(axis=-1, keepdims=True))
    return numerator / numerator.sum(axis=-1, keepdims=True)


def _causal_attention(q: np.ndarray, k: np.ndarray, v: np.ndarray) -> np.ndarray:
    scores = np.einsum("hqd,hkd->hqk", q, k) * q.shape[-1] ** -0.5
    visible = np.tril(np.ones(scores.shape[1:], bool))
    return _softmax(np.where(visible, scores, -np.inf)) @ v


def stream_hopper(stages: int) -> Callable[..., Any]:
    """2 x + 1, block by block through shared memory with that many slots."""
    rows, columns, per_block = 16, 256, 1024

    def kernel(x_gmem, o_gmem):
        mine = pl.ds(jax.lax.axis_index("i") * per_block, per_block)

        def step(_, x_smem, o_smem):
            o_smem[...] = x_smem[...] * 2.0 + 1.0

        block = plgpu.BlockSpec((rows, columns), lambda k: (k, 0))
        plgpu.emit_pipeline(
            step,
            grid=(per_block // rows,),
            in_specs=[block],
            out_specs=[block],
            max_concurrent_steps=stages,
        )(x_gmem.at[mine, :], o_gmem.at[mine, :])

    def stream(x):
        return plgpu.kernel(
            kernel,
            out_type=jax.ShapeDtypeStruct(x.shape, x.dtype),
            grid=(x.shape[0] // per_block,),
            grid_names=("i",),
            compiler_params=plgpu.CompilerParams(
                lowering_semantics=plgpu.LoweringSemantics.Warpgroup
            ),
        )(x)

    return stream


def stream_tpu(depth: int) -> Callable[..., Any]:
    """2 x + 1 over a grid whose windows have that many slots."""

    def kernel(x_ref, o_ref):
        o_ref[...] = x_ref[...] * 2.0 + 1.0

    def stream(x):
        block = pl.BlockSpec((256, 512), lambda i: (i, 0), pipeline_mode=pl.Buffered(depth))
        return pl.pallas_call(
            kernel,
            name="stream",
            grid=(x.shape[0] // 256,),
            in_specs=[block],
            out_specs=block,
            out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype),
            compiler_params=pltpu.CompilerParams(),
        )(x)

    return stream


def all_cases() -> list[Case]:
    """Every case, for GPUs and TPUs."""
    half, brain = jnp.float16, jnp.bfloat16
    product = (_array(4096, 4096, dtype=half), _array(4096, 4096, dtype=half))
    rows = _array(64 * 1024, 256)
    tiles = _array(4096, 8192)
    scaled = lambda x: 2.0 * x + 1.0  # noqa: E731
    heads = (_array(8, 2048, 128, dtype=brain),) * 3
    blocks = (_array(2048, 2048, dtype=brain),) * 2
    return [
        Case("matmul, clean-up", "cuda", example("matmul_hopper").matmul, product, np.matmul,
             "canonicalize,cse", tolerance=5e-3),
        Case("matmul, 3 to 2 slots", "cuda", example("matmul_hopper").matmul, product, np.matmul,
             "pipeline-depth{stages=2}", example("matmul_hopper", STAGES=2).matmul, 5e-3),
        Case("matmul, 3 to 4 slots", "cuda", example("matmul_hopper").matmul, product, np.matmul,
             "pipeline-depth{stages=4}", example("matmul_hopper", STAGES=4).matmul, 5e-3),
        Case("stream, 2 to 4 slots", "cuda", stream_hopper(2), (rows,), scaled,
             "pipeline-depth{stages=4}", stream_hopper(4)),
        Case("softmax, clean-up", "cuda", example("softmax_triton").softmax,
             (_array(16 * 1024, 1000),), _softmax, "canonicalize,cse"),
        Case("add, clean-up", "cuda", example("add_any").add, (tiles, tiles), np.add,
             "canonicalize,cse"),
        Case("matmul, 2 to 1 slots", "tpu", example("matmul_tpu").matmul, blocks, np.matmul,
             "pipeline-depth{stages=1}", tolerance=2e-2),
        Case("stream, 2 to 1 slots", "tpu", stream_tpu(2), (_array(16 * 1024, 512),), scaled,
             "pipeline-depth{stages=1}", stream_tpu(1)),
        Case("flash attention, 2 to 1 slots", "tpu", example("flash_attention_tpu").flash_attention,
             heads, _causal_attention, "pipeline-depth{stages=1}", tolerance=2e-2),
        Case("ring of copies, clean-up", "tpu", example("dma_ring_tpu").scale,
             (_array(16 * 1024, 256),), lambda x: 2.0 * x, "canonicalize,cse"),
    ]  # fmt: skip


def case_named(name: str) -> Case:
    """The case of that name."""
    (found,) = [case for case in all_cases() if case.name == name]
    return found
