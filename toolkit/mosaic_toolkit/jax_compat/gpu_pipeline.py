"""Lowering a plain `pallas_call` for Mosaic GPU, as a pipeline over its blocks.

JAX lowers a `pallas_call` without parameters for Mosaic TPU and Triton only.
Its blocks and index maps mean the same to Mosaic GPU's `emit_pipeline`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
from jax._src import core
from jax._src.interpreters import mlir
from jax._src.pallas import core as pallas_core
from jax._src.pallas.mosaic_gpu import core as gpu_core
from jax._src.pallas.mosaic_gpu import pallas_call
from jax._src.state import primitives as state
from jax._src.state.types import TransformedRef


def lower_grid(ctx: Any, *operands: Any, jaxpr: Any, grid_mapping: Any, **params: Any) -> Any:
    """A lowering rule for `pallas_call` on Mosaic GPU.

    Raises:
      NotImplementedError: the call uses what such a pipeline does not have.
    """
    if grid_mapping.num_index_operands or grid_mapping.num_dynamic_grid_bounds:
        raise NotImplementedError("Mosaic GPU has no scalar prefetch and no dynamic grid bounds")
    if params["input_output_aliases"]:
        raise NotImplementedError("a Mosaic GPU pipeline cannot alias an operand with a result")
    if grid_mapping.scratch_avals:
        raise NotImplementedError("its scratch memory is another backend's")
    specs = [_block_spec(mapping) for mapping in grid_mapping.block_mappings]
    split = grid_mapping.num_inputs

    def body(*refs: Any) -> None:
        _evaluate(jaxpr, refs)

    call = pallas_call.pallas_call(
        body,
        out_shape=[jax.ShapeDtypeStruct(aval.shape, aval.dtype) for aval in ctx.avals_out],
        grid=grid_mapping.grid,
        in_specs=specs[:split],
        out_specs=specs[split:],
    )
    return mlir.lower_fun(lambda *args: call(*args), multiple_results=True)(ctx, *operands)


def _block_spec(mapping: Any) -> Any:
    def index_map(*indices: Any) -> Any:
        return tuple(core.eval_jaxpr(mapping.index_map_jaxpr, (), *indices))

    return gpu_core.BlockSpec(tuple(map(_block_dim, mapping.block_shape)), index_map)


def _block_dim(dim: Any) -> int | None:
    if isinstance(dim, pallas_core.Blocked):
        return dim.block_size
    if dim is None or isinstance(dim, pallas_core.Squeezed):
        return None
    if isinstance(dim, int):
        return dim
    raise NotImplementedError(f"Mosaic GPU pipelines have no {type(dim).__name__} block dimension")


_REF_ACCESSES = (state.get_p, state.swap_p, state.addupdate_p)


def _evaluate(jaxpr: Any, args: Sequence[Any]) -> list[Any]:
    """Evaluates a kernel's jaxpr on the slots of a pipeline, which are views of references."""
    values: dict[Any, Any] = dict(zip(jaxpr.invars, args))

    def read(atom: Any) -> Any:
        return atom.val if isinstance(atom, core.Literal) else values[atom]

    for eqn in jaxpr.eqns:
        operands = [read(atom) for atom in eqn.invars]
        results = _apply(eqn, operands)
        values.update(zip(eqn.outvars, results if eqn.primitive.multiple_results else [results]))
    return [read(atom) for atom in jaxpr.outvars]


def _apply(eqn: Any, operands: list[Any]) -> Any:
    if not any(isinstance(operand, TransformedRef) for operand in operands):
        return eqn.primitive.bind(*operands, **eqn.params)
    if eqn.primitive in _REF_ACCESSES:
        return _access(eqn, operands)
    if eqn.primitive.name in ("jit", "pjit", "closed_call"):
        inner = eqn.params.get("jaxpr") or eqn.params["call_jaxpr"]
        return _evaluate(getattr(inner, "jaxpr", inner), operands)
    if eqn.primitive.name == "cond":
        index, *rest = operands
        branches = [getattr(branch, "jaxpr", branch) for branch in eqn.params["branches"]]
        return jax.lax.switch(index, [lambda b=b: _evaluate(b, rest) for b in branches])
    raise NotImplementedError(f"'{eqn.primitive.name}' over references in a Mosaic GPU pipeline")


def _access(eqn: Any, operands: list[Any]) -> Any:
    view, *rest = operands
    before = 0 if eqn.primitive is state.get_p else 1
    values, leaves = rest[:before], rest[before:]
    transforms = jax.tree.unflatten(eqn.params["tree"], leaves)
    flat, tree = jax.tree.flatten((*view.transforms, *transforms))
    return eqn.primitive.bind(view.ref, *values, *flat, **{**eqn.params, "tree": tree})
