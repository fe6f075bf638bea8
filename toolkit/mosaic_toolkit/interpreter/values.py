"""What meanings share: types of values, attributes, and arithmetic in a wider type."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from .element_types import dtype_of, is_float

if TYPE_CHECKING:
    from ..jax_compat import ir

# Types whose arithmetic NumPy does itself, at its own precision.
_NATIVE = frozenset({np.dtype(np.float32), np.dtype(np.float64)})


def vector_type(type_: ir.Type) -> tuple[tuple[int, ...], np.dtype]:
    """Shape and element type of a vector or tensor type."""
    shaped: Any = type_
    return tuple(shaped.shape), dtype_of(str(shaped.element_type))


def is_shaped(type_: ir.Type) -> bool:
    """Whether values of the type are arrays; else they are scalars."""
    return hasattr(type_, "shape")


def dtype_of_value(value: ir.Value) -> np.dtype:
    """Element type of an array, or type of a scalar."""
    type_: Any = value.type
    return dtype_of(str(type_.element_type if is_shaped(type_) else type_))


def integers(text: Any) -> list[int]:
    """The integers in an attribute's text, in order."""
    return [int(n) for n in re.findall(r"-?\d+", str(text).partition(":")[2] or str(text))]


def word(attribute: ir.Attribute) -> str:
    """``maximumf`` of ``#vector.kind<maximumf>``."""
    return str(attribute).partition("<")[2].rstrip(">") or str(attribute)


def flag(op: ir.Operation, name: str) -> bool:
    """A boolean attribute, false where it is missing."""
    if name not in op.attributes:
        return False
    attribute: Any = op.attributes[name]
    return bool(attribute.value)


def operand_groups(op: ir.Operation) -> list[slice]:
    """Where each group of operands of an operation with segments stands."""
    ends = np.cumsum(list(op.attributes["operandSegmentSizes"])).tolist()
    return [slice(a, b) for a, b in zip([0, *ends], ends)]


def in_float32(function: Callable[..., Any], dtype: np.dtype) -> Callable[..., Any]:
    """A function of floats computed in float32 where `dtype` is narrower, and rounded back."""
    if dtype in _NATIVE or not is_float(dtype):
        return function

    def narrow(*operands: Any) -> Any:
        wide = function(*(operand.astype(np.float32) for operand in operands))
        return wide.astype(dtype)

    return narrow
