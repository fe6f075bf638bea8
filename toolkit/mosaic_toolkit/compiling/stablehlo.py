"""The program that a captured kernel is compiled in: its custom call and nothing else."""

from __future__ import annotations

from collections.abc import Sequence

from .. import jax_compat
from ..backends import custom_call, get_backend
from ..errors import InvalidModule, Unsupported
from ..jax_compat import ir
from ..kernel import ArrayType, Kernel


def stablehlo_module(kernel: Kernel, context: ir.Context | None = None) -> ir.Module:
    """A StableHLO module whose ``main`` is the kernel: its operands in, its results out.

    Args:
      kernel: Mosaic GPU lowers it for the chip that it names.
      context: to build in; a fresh one by default.

    Raises:
      InvalidModule: the kernel's module or its custom call does not parse or verify.
      Unsupported: no such program can have the kernel's operands or results.
    """
    backend = get_backend(kernel.backend)
    for array in (*kernel.operands, *kernel.results):
        _check_static(kernel, array)
    payload = backend.encode(kernel)
    with context or jax_compat.make_context(), ir.Location.name(kernel.name):
        attributes = {name: ir.Attribute.parse(text) for name, text in kernel.attributes}
        backend.embed(attributes, payload)
        operands = [custom_call.tensor_type(array) for array in kernel.operands]
        results = [custom_call.tensor_type(array) for array in kernel.results]
        module = ir.Module.create()
        module.operation.attributes["sym_name"] = ir.StringAttr.get(f"jit_{kernel.name}")
        body = _main(module, operands, results)
        with ir.InsertionPoint(body):
            call = ir.Operation.create(
                "stablehlo.custom_call", results, list(body.arguments), attributes
            )
            ir.Operation.create("func.return", [], list(call.results))
        _verify(kernel, module)
    return module


def _verify(kernel: Kernel, module: ir.Module) -> None:
    try:
        module.operation.verify()
    except ir.MLIRError as error:
        raise InvalidModule(
            f"kernel '{kernel.name}': its custom call does not verify: "
            f"{error.error_diagnostics[0].message}",
            hint="the kernel's .json was edited, or is another kernel's",
        ) from error


def _main(module: ir.Module, operands: Sequence[ir.Type], results: Sequence[ir.Type]) -> ir.Block:
    with ir.InsertionPoint(module.body):
        function = ir.Operation.create(
            "func.func",
            attributes={
                "sym_name": ir.StringAttr.get("main"),
                "function_type": ir.TypeAttr.get(ir.FunctionType.get(operands, results)),
                "sym_visibility": ir.StringAttr.get("public"),
            },
            regions=1,
        )
    return ir.Block.create_at_start(function.regions[0], operands)


def _check_static(kernel: Kernel, array: ArrayType) -> None:
    if -1 in array.shape:
        raise Unsupported(
            f"kernel '{kernel.name}': {array} has a dimension known only at run time (-1); "
            "an executable has fixed shapes",
            hint="capture the kernel with concrete shapes",
        )
