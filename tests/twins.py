"""Kernels authored at several pipeline depths by one source: what a rewrite should equal.

A TPU grid has one slot or two; from three on the author writes `pltpu.emit_pipeline`
with ``pl.Buffered(N)`` instead, over the same body and the same blocks.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu


@dataclasses.dataclass(frozen=True)
class Twin:
    """A kernel that can be authored at any depth.

    Attributes:
      name: for tables.
      body: takes a reference per input block, then per output block, then scratch;
        ``pl.program_id`` tells the grid step.
      grid: its bounds.
      inputs, outputs: (array, block shape, index map) of each.
      scratch: shapes, in float32.
    """

    name: str
    body: Callable[..., None]
    grid: tuple[int, ...]
    inputs: Sequence[tuple[jax.ShapeDtypeStruct, tuple[int, ...], Callable]]
    outputs: Sequence[tuple[jax.ShapeDtypeStruct, tuple[int, ...], Callable]]
    scratch: Sequence[tuple[int, ...]] = ()

    @property
    def operands(self) -> list[jax.ShapeDtypeStruct]:
        return [array for array, _, _ in self.inputs]

    def authored(self, depth: int) -> Callable[..., Any]:
        """The kernel as its author would write it at that depth."""
        return self._grid(depth) if depth <= 2 else self._written_out(depth)

    def _specs(self, parts, depth: int) -> list[pl.BlockSpec]:
        mode = pl.Buffered(depth)
        return [pl.BlockSpec(block, index, pipeline_mode=mode) for _, block, index in parts]

    def _grid(self, depth: int) -> Callable[..., Any]:
        return pl.pallas_call(
            self.body,
            grid=self.grid,
            in_specs=self._specs(self.inputs, depth),
            out_specs=self._specs(self.outputs, depth),
            out_shape=[array for array, _, _ in self.outputs],
            scratch_shapes=[pltpu.VMEM(shape, jnp.float32) for shape in self.scratch],
        )

    def _written_out(self, depth: int) -> Callable[..., Any]:
        everything = pl.BlockSpec(memory_space=pl.ANY)

        def kernel(*refs):
            count = len(self.inputs) + len(self.outputs)
            scratch = refs[count:]
            pltpu.emit_pipeline(
                lambda *blocks: self.body(*blocks, *scratch),
                grid=self.grid,
                in_specs=self._specs(self.inputs, depth),
                out_specs=self._specs(self.outputs, depth),
            )(*refs[:count])

        return pl.pallas_call(
            kernel,
            in_specs=[everything] * len(self.inputs),
            out_specs=[everything] * len(self.outputs),
            out_shape=[array for array, _, _ in self.outputs],
            scratch_shapes=[pltpu.VMEM(shape, jnp.float32) for shape in self.scratch],
        )


def array(*shape: int, dtype: Any = jnp.float32) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, dtype)


def _stream(x_ref, y_ref, o_ref):
    o_ref[...] = x_ref[...] * 2.0 + y_ref[...]


def _matmul(x_ref, y_ref, o_ref, acc_ref):
    @pl.when(pl.program_id(2) == 0)
    def _():
        acc_ref[...] = jnp.zeros_like(acc_ref)

    acc_ref[...] += jnp.dot(x_ref[...], y_ref[...], preferred_element_type=jnp.float32)

    @pl.when(pl.program_id(2) == pl.num_programs(2) - 1)
    def _():
        o_ref[...] = acc_ref[...].astype(o_ref.dtype)


def _row_sums(x_ref, o_ref):
    @pl.when(pl.program_id(1) == 0)
    def _():
        o_ref[...] = jnp.zeros_like(o_ref)

    o_ref[...] += x_ref[...]


def _attention(q_ref, k_ref, v_ref, o_ref, m_ref, l_ref, acc_ref):
    """Forward, with a running maximum and sum over blocks of keys."""

    @pl.when(pl.program_id(1) == 0)
    def _():
        m_ref[...] = jnp.full_like(m_ref, -1e30)
        l_ref[...] = jnp.zeros_like(l_ref)
        acc_ref[...] = jnp.zeros_like(acc_ref)

    s = jnp.dot(q_ref[...], k_ref[...].T, preferred_element_type=jnp.float32)
    m = jnp.maximum(m_ref[...], s.max(axis=1, keepdims=True))
    p = jnp.exp(s - m[:, :1])
    scale = jnp.exp(m_ref[...] - m)
    l_ref[...] = l_ref[...] * scale + p.sum(axis=1, keepdims=True)
    acc_ref[...] = acc_ref[...] * scale + jnp.dot(
        p.astype(v_ref.dtype), v_ref[...], preferred_element_type=jnp.float32
    )
    m_ref[...] = m

    @pl.when(pl.program_id(1) == pl.num_programs(1) - 1)
    def _():
        o_ref[...] = (acc_ref[...] / l_ref[...]).astype(o_ref.dtype)


def _outer(x_ref, y_ref, o_ref):
    """More is written than is read."""
    o_ref[...] = jnp.dot(x_ref[...], y_ref[...], preferred_element_type=jnp.float32)


def tpu_twins() -> list[Twin]:
    """Five TPU kernels: a stream, a product, a reduction, attention, an output-bound one."""
    bf16 = jnp.bfloat16
    rows = ((256, 512), lambda i: (i, 0))
    return [
        Twin(
            "stream",
            _stream,
            (8,),
            [(array(2048, 512), *rows), (array(2048, 512), *rows)],
            [(array(2048, 512), *rows)],
        ),
        Twin(
            "matmul",
            _matmul,
            (2, 2, 4),
            [
                (array(512, 1024, dtype=bf16), (256, 256), lambda i, j, k: (i, k)),
                (array(1024, 512, dtype=bf16), (256, 256), lambda i, j, k: (k, j)),
            ],
            [(array(512, 512, dtype=bf16), (256, 256), lambda i, j, k: (i, j))],
            [(256, 256)],
        ),
        Twin(
            "row sums",
            _row_sums,
            (4, 8),
            [(array(1024, 2048), (256, 256), lambda i, k: (i, k))],
            [(array(1024, 256), (256, 256), lambda i, k: (i, 0))],
        ),
        Twin(
            "attention",
            _attention,
            (4, 8),
            [
                (array(512, 128, dtype=bf16), (128, 128), lambda i, k: (i, 0)),
                (array(1024, 128, dtype=bf16), (128, 128), lambda i, k: (k, 0)),
                (array(1024, 128, dtype=bf16), (128, 128), lambda i, k: (k, 0)),
            ],
            [(array(512, 128, dtype=bf16), (128, 128), lambda i, k: (i, 0))],
            [(128, 128), (128, 128), (128, 128)],
        ),
        Twin(
            "outer product",
            _outer,
            (4, 4),
            [
                (array(1024, 128, dtype=bf16), (256, 128), lambda i, j: (i, 0)),
                (array(128, 1024, dtype=bf16), (128, 256), lambda i, j: (0, j)),
            ],
            [(array(1024, 1024), (256, 256), lambda i, j: (i, j))],
        ),
    ]
