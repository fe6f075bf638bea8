"""Small TPU kernels for tests: from MLIR text, or captured from Pallas."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from mosaic_toolkit.capture import capture
from mosaic_toolkit.interpreter.execute import Execution, Setting, compile_program, execute, run_on
from mosaic_toolkit.kernel import ArrayType, Kernel

MLIR_NAMES = {
    "float32": "f32",
    "bfloat16": "bf16",
    "float16": "f16",
    "float8_e4m3fn": "f8E4M3FN",
    "float8_e5m2": "f8E5M2",
    "int4": "i4",
    "int8": "i8",
    "uint8": "i8",
    "int16": "i16",
    "int32": "i32",
    "uint32": "i32",
}


def kernel(
    asm: str, operands: Sequence[ArrayType], results: Sequence[ArrayType], **fields
) -> Kernel:
    fields = {"target": "v5e", **fields}
    return Kernel(
        "k",
        "mosaic_tpu",
        "dialect",
        asm=asm,
        operands=tuple(operands),
        results=tuple(results),
        **fields,
    )


def type_of(array: np.ndarray) -> ArrayType:
    return ArrayType(array.dtype.name, array.shape)


def shaped(word: str, type_: ArrayType, space: str | None = None) -> str:
    """``vector<8x128xf32>``, or a ``memref`` in a memory space."""
    inside = "".join(f"{n}x" for n in type_.shape) + MLIR_NAMES[type_.dtype]
    return f"{word}<{inside}, #tpu.memory_space<{space}>>" if space else f"{word}<{inside}>"


def evaluate(code: str, arrays: Sequence[np.ndarray], result: str, **fields) -> np.ndarray:
    """What MLIR code that makes ``%r`` of ``%a0``, ``%a1``, ... gives.

    Args:
      result: the type of ``%r``, such as ``int32[8,128]``.
    """
    execution = executed(code, arrays, result, **fields)
    assert not execution.findings, execution.findings
    return execution.results[0][0]


def executed(
    code: str, arrays: Sequence[np.ndarray], result: str, *, core: str = "tc", **fields
) -> Execution:
    types = [type_of(array) for array in arrays]
    made = ArrayType.parse(result)
    arguments = [f"%m{n}: {shaped('memref', t, 'vmem')}" for n, t in enumerate(types)]
    arguments.append(f"%out: {shaped('memref', made, 'vmem')}")

    def zeros(rank: int) -> str:
        return ", ".join(["%c0"] * rank)

    loads = [
        f"%a{n} = vector.load %m{n}[{zeros(len(t.shape))}] : "
        f"{shaped('memref', t, 'vmem')}, {shaped('vector', t)}"
        for n, t in enumerate(types)
    ]
    store = (
        f"vector.store %r, %out[{zeros(len(made.shape))}] : "
        f"{shaped('memref', made, 'vmem')}, {shaped('vector', made)}"
    )
    lines = "\n".join(["%c0 = arith.constant 0 : index", *loads, code, store, "return"])
    asm = (
        f"module {{ func.func @k({', '.join(arguments)}) attributes "
        f"{{dimension_semantics = [], scalar_prefetch = 0 : i64, scratch_operands = 0 : i64, "
        f"tpu.core_type = #tpu.core_type<{core}>}} {{\n{lines}\n}} }}"
    )
    return execute(kernel(asm, types, [made], **fields), arrays)


def body(
    code: str,
    arguments: str,
    operands: Sequence[ArrayType],
    results: Sequence[ArrayType],
    *,
    scratch: int = 0,
    attributes: str = "",
    **fields,
) -> Kernel:
    """A kernel whose function has these arguments and this body."""
    asm = (
        f"module {{ func.func @k({arguments}) attributes {{scalar_prefetch = 0 : i64, "
        f"scratch_operands = {scratch} : i64, tpu.core_type = #tpu.core_type<tc>{attributes}}} "
        f"{{\n{code}\nreturn\n}} }}"
    )
    return kernel(asm, operands, results, **fields)


def captured(function, *arguments, target: str = "v5e") -> Kernel:
    (only,) = capture(function, *arguments, target=target)
    return only


def on_devices(kernel: Kernel, inputs, setting: Setting | None = None) -> Execution:
    return run_on(compile_program(kernel), inputs, setting)


def kinds(execution: Execution) -> list[str]:
    return [finding.kind for finding in execution.findings]
