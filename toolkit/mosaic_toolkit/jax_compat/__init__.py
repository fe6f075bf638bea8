"""The one door to private JAX and to jaxlib.

Nothing outside this package imports ``jax._src`` or ``jaxlib``; a test names
each private thing that is used here.  This file is the MLIR half: it needs only
jaxlib and imports fast.  ``devices``, ``lowering`` and ``payload`` import JAX.
"""

from __future__ import annotations

import functools
import io
import re
import sys

import jaxlib.mosaic.python.mosaic_gpu as mosaic_gpu
import jaxlib.mosaic.python.tpu as tpu
from jaxlib import version as jaxlib_version
from jaxlib.mlir import ir
from jaxlib.mlir._mlir_libs import _jax_mlir_ext
from jaxlib.mlir.dialects import stablehlo
from jaxlib.mlir.passmanager import PassManager
from jaxlib.triton import dialect as triton

# Where the bindings look for the Python classes of Triton's operations.  They do not
# remember a failed import: without this, each operation that they return costs four.
sys.modules.setdefault("jaxlib.mlir.dialects.tt", triton)

__all__ = ["PassManager", "ir", "jaxlib_version", "mosaic_gpu", "tpu", "triton"]


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


# Custom assembly leaves out implied terminators and the locations of block
# arguments; parsed back, both have a location in the parser's own buffer, "-".
_IN_PARSER_BUFFER = re.compile(r'loc\("-":\d+:\d+\)')


def parse_module(asm: str | bytes, context: ir.Context | None = None) -> ir.Module:
    """Parses MLIR text or bytecode.

    What custom assembly does not print is restored as JAX makes it, so that
    printing and parsing back changes no byte of the serialised module.

    Raises:
      ir.MLIRError: the text does not parse or does not verify.
    """
    module = ir.Module.parse(asm, context=context or make_context())
    if isinstance(asm, str):
        module.operation.walk(_restore_elided, ir.WalkOrder.PRE_ORDER)
    return module


def _restore_elided(op: ir.Operation) -> ir.WalkResult:
    for region in op.regions:
        for block in region:
            for argument in block.arguments:
                if _IN_PARSER_BUFFER.fullmatch(str(argument.location)):
                    argument.set_location(op.location)
            *_, last = block.operations or (op,)
            if _IN_PARSER_BUFFER.fullmatch(str(last.location)):
                last.operation.location = op.location
    if op.name == "llvm.mlir.global":
        unnamed = op.attributes.get("unnamed_addr")
        if unnamed is not None and unnamed.value == 0:  # the parser's default for "absent"
            del op.attributes["unnamed_addr"]
    return ir.WalkResult.ADVANCE


def print_module(module: ir.Module, *, locations: bool = True) -> str:
    """MLIR text that parses back to the same module."""
    return str(module.operation.get_asm(enable_debug_info=locations))


def run_passes(module: ir.Module, pipeline: str) -> None:
    """Runs an MLIR pass pipeline, ``builtin.module(...)``, on `module` in place."""
    with module.context:
        PassManager.parse(pipeline).run(module.operation)


def to_bytecode(module: ir.Module) -> bytes:
    """The module as MLIR bytecode of the oldest version, as JAX embeds it."""
    buffer = io.BytesIO()
    module.operation.write_bytecode(buffer, desired_version=0)
    return buffer.getvalue()
