"""Sizes and names of what MLIR types store in memory."""

from __future__ import annotations

import math
import re

from ..jax_compat import ir

# Sizes in bits of element types that are neither integers nor floats.  A TPU's
# semaphores live in a memory of their own that is not counted in bytes.
_OPAQUE_BITS = {"!mosaic_gpu.barrier": 64, "!llvm.ptr": 64, "!tt.ptr": 64}
_SPACES = {
    "workgroup": "smem",
    "semaphore_mem": "semaphore",
    "global": "hbm",
    "private": "registers",
}
_LLVM_SPACES = {1: "hbm", 3: "smem", 5: "registers"}


def element_bits(element: ir.Type) -> int | None:
    """Bits of one element in memory: sub-byte integers are packed, a bool is a byte."""
    if isinstance(element, ir.IntegerType):
        return 8 if element.width == 1 else element.width
    width = getattr(element, "width", None)
    if isinstance(width, int):
        return width
    return _OPAQUE_BITS.get(str(element).split("<")[0])


def shape_of(type: ir.Type) -> tuple[int | None, ...]:
    """The shape of a memref, vector or tensor, None for a dynamic dimension."""
    unknown = ir.ShapedType.get_dynamic_size()
    return tuple(None if dim == unknown else dim for dim in type.shape)


def count(shape: tuple[int | None, ...]) -> int | None:
    """Number of elements, None where a dimension is known only at run time."""
    known = [dim for dim in shape if dim is not None]
    return math.prod(known) if len(known) == len(shape) else None


def size_of(type: ir.Type) -> int | None:
    """Bytes of a memref, vector or tensor, packed; None where the type does not say."""
    return size(shape_of(type), type.element_type)


def size(shape: tuple[int | None, ...], element: ir.Type) -> int | None:
    """Bytes of that many elements, packed; None where a dimension or the type is unknown."""
    bits, elements = element_bits(element), count(shape)
    return None if bits is None or elements is None else -(-elements * bits // 8)


def space_of(type: ir.Type, default: str) -> str:
    """The memory that a memref lives in, one word for all backends.

    Args:
      type: a memref type.
      default: the meaning of a memref that names no memory.
    """
    if type.memory_space is None:
        return default
    if isinstance(type.memory_space, ir.IntegerAttr):
        return _LLVM_SPACES.get(type.memory_space.value, str(type.memory_space))
    word: str = re.findall(r"\w+", str(type.memory_space))[-1]
    return _SPACES.get(word, word)
