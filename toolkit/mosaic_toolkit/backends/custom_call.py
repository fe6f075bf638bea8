"""What the three backends' custom calls have in common."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from ..jax_compat import ir
from ..kernel import ArrayType

_DTYPES = {
    "bf16": "bfloat16",
    "f16": "float16",
    "f32": "float32",
    "f64": "float64",
    "i1": "bool",
    "complex<f32>": "complex64",
    "complex<f64>": "complex128",
}


def _dtype(element: str) -> str:
    if element in _DTYPES:
        return _DTYPES[element]
    if match := re.fullmatch(r"(ui|i)(\d+)", element):
        return ("uint" if match[1] == "ui" else "int") + match[2]
    if match := re.fullmatch(r"f(\d+)(E\w+)", element):
        return f"float{match[1]}_{match[2].lower()}"
    return re.sub(r"\W", "", element)


_ELEMENTS = {dtype: element for element, dtype in _DTYPES.items()}


def tensor_type(array: ArrayType) -> ir.RankedTensorType:
    """The MLIR type of an operand or result, in the current context.

    Raises:
      ValueError: the element type has no such name in MLIR.
    """
    element = _element(array.dtype)
    dynamic = ir.ShapedType.get_dynamic_size()
    shape = [dynamic if dim < 0 else dim for dim in array.shape]
    return ir.RankedTensorType.get(shape, ir.Type.parse(element))


def _element(dtype: str) -> str:
    if dtype in _ELEMENTS:
        return _ELEMENTS[dtype]
    if match := re.fullmatch(r"(u?)int(\d+)", dtype):
        return ("ui" if match[1] else "i") + match[2]
    if match := re.fullmatch(r"float(\d+)_(e\w+)", dtype):
        numbers, letters = re.fullmatch(r"(e\d+m\d+)(\w*)", match[2]).groups()  # type: ignore[union-attr]
        return f"f{match[1]}{numbers.upper()}{letters.upper()}"
    raise ValueError(f"MLIR has no element type for '{dtype}'")


def array_types(values: Any) -> tuple[ArrayType, ...]:
    """Types of a custom call's operands or results; -1 for a dynamic dimension."""
    types = [ir.RankedTensorType(value.type) for value in values]
    dynamic = ir.ShapedType.get_dynamic_size()
    return tuple(
        ArrayType(_dtype(str(t.element_type)), tuple(-1 if d == dynamic else d for d in t.shape))
        for t in types
    )


def aliases(call: ir.Operation) -> tuple[tuple[int, int], ...]:
    """(operand, result) pairs of ``output_operand_aliases``."""
    pairs = []
    for alias in call.attributes.get("output_operand_aliases") or ():
        text = str(alias)
        operand = int(re.search(r"operand_index = (\d+)", text)[1])  # type: ignore[index]
        result = re.search(r"output_tuple_indices = \[(\d+)\]", text)
        pairs.append((operand, int(result[1]) if result else 0))
    return tuple(sorted(pairs))


def signature(call: ir.Operation) -> dict[str, Any]:
    """What a kernel takes, gives and shares, as fields of `Kernel`."""
    return {
        "operands": array_types(call.operands),
        "results": array_types(call.results),
        "aliases": aliases(call),
    }


def attribute_texts(call: ir.Operation, **replacements: str) -> tuple[tuple[str, str], ...]:
    """The custom call's attributes as MLIR text, some of them replaced."""
    return tuple(
        (name, replacements[name] if name in replacements else str(call.attributes[name]))
        for name in call.attributes
    )


def without(attribute: ir.DictAttr, *names: str) -> str:
    """A dictionary attribute as MLIR text, less some of its entries."""
    kept = [f"{entry.name} = {entry.attr}" for entry in attribute if entry.name not in names]
    return "{" + ", ".join(kept) + "}"


def fill(attributes: Any, name: str, entries: Mapping[str, bytes]) -> None:
    """Adds entries to the dictionary attribute of that name."""
    config = ir.DictAttr(attributes[name])
    kept = {entry.name: entry.attr for entry in config}
    added = {key: ir.StringAttr.get(value, config.context) for key, value in entries.items()}
    attributes[name] = ir.DictAttr.get(kept | added, config.context)
