"""What the toolkit reads off MLIR types of memory: shape, size and space."""

from __future__ import annotations

import re
from typing import NamedTuple

from ..jax_compat import ir

DYNAMIC = ir.ShapedType.get_dynamic_size()


class MemoryType(NamedTuple):
    """A memref, a pointer, or anything that carries pointers.

    Attributes:
      shape: of a memref, with None for a dynamic size; None for the others.
      bits: of one element, None where unknown.
      space: normalised name of the memory space, ``any`` where the compiler is to
        choose one; None where the type says nothing.
    """

    shape: tuple[int | None, ...] | None
    bits: int | None
    space: str | None

    @property
    def bytes(self) -> int | None:
        """Size of the whole memref, None where unknown."""
        if self.shape is None or self.bits is None:
            return None
        total = self.bits
        for size in self.shape:
            if size is None:
                return None
            total *= size
        return (total + 7) // 8


_SPACES = {
    "#gpu.address_space<workgroup>": "smem",
    "#gpu.address_space<global>": "gmem",
    "#gpu.address_space<private>": "private",
    "#mosaic_gpu.smem_cluster": "smem",
    "#mosaic_gpu.tmem": "tmem",
}
_NUMBERED = {0: None, 1: "gmem", 3: "smem", 5: "private", 6: "tmem", 7: "smem"}
_TPU_SPACE = re.compile(r"#tpu\.memory_space<(\w+)")
_POINTER = re.compile(r"!llvm\.ptr(?:<(\d+)>)?")
_BITS = re.compile(r"(?:b?f|i|si|ui|tf)(\d+)")
# Elements that are no numbers, in bits.
_OPAQUE_BITS = {"index": 64, "!mosaic_gpu.barrier": 64, "!llvm.ptr": 64}


def _space(text: str) -> str | None:
    if text in _SPACES:
        return _SPACES[text]
    match = _TPU_SPACE.match(text)
    if match:
        return match[1]
    number = text.split(" ")[0]
    return _NUMBERED.get(int(number), text) if number.isdigit() else text


def element_bits(element: ir.Type) -> int | None:
    """Size of one element in bits, None where unknown."""
    text = str(element)
    if text.startswith("!mosaic_gpu.barrier"):
        return _OPAQUE_BITS["!mosaic_gpu.barrier"]
    match = _BITS.match(text)
    return int(match[1]) if match else _OPAQUE_BITS.get(text)


def memory_type(type_: ir.Type) -> MemoryType | None:
    """The memory that a value of this type refers to, None if it refers to none."""
    if isinstance(type_, ir.MemRefType):
        shape = tuple(None if n == DYNAMIC else n for n in type_.shape)
        space = type_.memory_space
        return MemoryType(
            shape, element_bits(type_.element_type), None if space is None else _space(str(space))
        )
    text = str(type_)
    pointer = _POINTER.fullmatch(text)
    if pointer:
        return MemoryType(None, None, _NUMBERED.get(int(pointer[1] or 0), f"space {pointer[1]}"))
    if "!tt.ptr" in text or "!tt.tensordesc" in text:
        return MemoryType(None, None, "gmem")
    if "memref<" in text or "ptr" in text:
        return MemoryType(None, None, None)
    return None
