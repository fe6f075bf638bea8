"""The one door to private JAX and to jaxlib.

Nothing else in the toolkit imports ``jax._src`` or ``jaxlib``; a test names
each private thing that is used here.  The MLIR half needs only jaxlib and
imports fast; the functions of the JAX half import JAX when they are called.
"""

from __future__ import annotations

import functools
import io
import re

import jaxlib.mosaic.python.mosaic_gpu as mosaic_gpu  # noqa: F401
import jaxlib.mosaic.python.tpu as tpu
from jaxlib import version as jaxlib_version
from jaxlib.mlir import ir
from jaxlib.mlir._mlir_libs import _jax_mlir_ext
from jaxlib.mlir.dialects import stablehlo
from jaxlib.mlir.passmanager import PassManager
from jaxlib.triton import dialect as triton

__all__ = ["PassManager", "ir", "jaxlib_version", "mosaic_gpu", "tpu", "triton"]

# --- MLIR -------------------------------------------------------------------


@functools.cache
def _upstream_dialects() -> ir.DialectRegistry:
    registry = ir.DialectRegistry()
    _jax_mlir_ext.register_dialects(registry)
    return registry


def make_context() -> ir.Context:
    """A fresh MLIR context with every dialect that a captured kernel can use."""
    context = ir.Context()
    register_dialects(context)
    return context


def register_dialects(context: ir.Context) -> None:
    """Loads into `context` every dialect that a captured kernel can use."""
    context.append_dialect_registry(_upstream_dialects())
    for dialect in (tpu, mosaic_gpu, triton, stablehlo):
        dialect.register_dialect(context)
    context.load_all_available_dialects()


# Custom assembly elides the terminator of an `scf.if` or `scf.for`; parsed back,
# such an operation has a location in the parser's own buffer, named "-".
_IN_PARSER_BUFFER = re.compile(r'loc\("-":\d+:\d+\)')


def parse_module(asm: str | bytes, context: ir.Context | None = None) -> ir.Module:
    """Parses MLIR text or bytecode; an implied terminator gets its parent's location.

    Raises:
      ir.MLIRError: the text does not parse or does not verify.
    """
    module = ir.Module.parse(asm, context=context or make_context())

    def relocate(op: ir.Operation) -> ir.WalkResult:
        if _IN_PARSER_BUFFER.fullmatch(str(op.location)):
            op.location = op.parent.location if op.parent else ir.Location.unknown(op.context)
        return ir.WalkResult.ADVANCE

    if isinstance(asm, str):
        module.operation.walk(relocate, ir.WalkOrder.PRE_ORDER)
    return module


def print_module(module: ir.Module, *, locations: bool = True) -> str:
    """MLIR text that parses back to the same module."""
    return module.operation.get_asm(enable_debug_info=locations)


def run_passes(module: ir.Module, pipeline: str) -> None:
    """Runs an MLIR pass pipeline, ``builtin.module(...)``, on `module` in place."""
    with module.context:
        PassManager.parse(pipeline).run(module.operation)


def to_bytecode(module: ir.Module) -> bytes:
    """The module as MLIR bytecode of the oldest version, as JAX embeds it."""
    buffer = io.BytesIO()
    module.operation.write_bytecode(buffer, desired_version=0)
    return buffer.getvalue()
