"""The `llvm` operations around Mosaic GPU: pointers, and descriptors of memory references."""

from __future__ import annotations

import re
from typing import Any

from ...errors import Unsupported
from ...jax_compat import ir
from ..element_types import dtype_of
from ..gpu_thread import Pointer
from ..meaning import Constant, value
from ..memory import View
from .arith import attribute_value

_DYNAMIC_INDEX = -(2**31)
_SIZES = {"i8": 1, "i16": 2, "i32": 4, "i64": 8, "f32": 4, "f16": 2, "bf16": 2}

# A struct is a dictionary of its members by position.  Those of a descriptor are the
# allocated and the aligned pointer, the offset, the extents and the strides in elements.
_ALIGNED, _OFFSET, _EXTENT, _STRIDE = (1,), (2,), 3, 4


def _size_of(type_: ir.Type) -> int:
    text = str(type_)
    if text.startswith("!llvm.ptr"):
        return 8
    if text not in _SIZES:
        raise Unsupported(f"a pointer to {text}")
    return _SIZES[text]


@value("llvm.getelementptr")
def getelementptr(op, scope):
    indices = [int(n) for n in op.attributes["rawConstantIndices"]]
    size = _size_of(op.attributes["elem_type"].value)
    if len(indices) != 1:
        raise Unsupported(f"{scope.site(op)} with {len(indices)} indices")
    (index,) = indices
    if index == _DYNAMIC_INDEX:
        return lambda pointer, number: pointer + number * size
    return lambda pointer: pointer + index * size


@value("llvm.load")
def load(op, scope):
    """Of a pointer from the array of arguments."""
    if not str(op.results[0].type).startswith("!llvm.ptr"):
        raise Unsupported(f"{scope.site(op)} of {op.results[0].type}")
    return lambda pointer: pointer.buffer.load(pointer.offset)


@value("llvm.ptrtoint", "llvm.inttoptr", "llvm.addrspacecast", "llvm.bitcast")
def same_place(op, scope):
    return lambda pointer: pointer


@value("llvm.add")
def add(op, scope):
    return lambda a, b: a + b


@value("llvm.mul")
def mul(op, scope):
    return lambda a, b: a * b


@value("llvm.mlir.constant")
def constant(op, scope):
    return Constant(attribute_value(op.attributes["value"], op.results[0].type))


@value("llvm.mlir.undef", "llvm.mlir.poison")
def undef(op, scope):
    return Constant({})


def _position(op) -> tuple[int, ...]:
    return tuple(int(n) for n in op.attributes["position"])


@value("llvm.insertvalue")
def insertvalue(op, scope):
    position = _position(op)
    return lambda struct, member: {**struct, position: member}


@value("llvm.extractvalue")
def extractvalue(op, scope):
    position = _position(op)
    return lambda struct: struct[position]


# --- casts between the levels ---------------------------------------------------------------


@value("builtin.unrealized_conversion_cast")
def conversion_cast(op, scope):
    source, target = op.operands[0].type, op.results[0].type
    kinds = (_kind(source), _kind(target))
    if kinds == ("struct", "memref"):
        return _described(target)
    if kinds == ("memref", "struct"):
        return lambda view: {_ALIGNED: _pointer(view), _OFFSET: 0}
    if kinds == ("memref", "pointer"):
        return _pointer
    if kinds == ("pointer", "memref"):
        return _pointed(target)
    if kinds == ("pointer", "token"):
        return lambda pointer: None
    raise Unsupported(f"{scope.site(op)} from {source} to {target}")


def _kind(type_: ir.Type) -> str:
    text = str(type_)
    kinds = {"!llvm.struct": "struct", "memref": "memref", "!llvm.ptr": "pointer"}
    kinds["!gpu.async.token"] = "token"
    return next((kind for start, kind in kinds.items() if text.startswith(start)), text)


def _pointer(view: Any) -> Pointer:
    """References of barriers are pointers already."""
    return view if isinstance(view, Pointer) else Pointer(view.buffer, view.offset)


def _described(type_: Any):
    dtype = dtype_of(str(type_.element_type))
    rank = type_.rank

    def run(struct: dict) -> View:
        pointer = struct[_ALIGNED]
        extents, strides = (
            tuple(struct[(part, n)] for n in range(rank)) for part in (_EXTENT, _STRIDE)
        )
        offset = pointer.offset + struct[_OFFSET] * dtype.itemsize
        size = dtype.itemsize
        return View(pointer.buffer, offset, extents, tuple(s * size for s in strides), dtype)

    return run


def _pointed(type_: Any):
    if is_barrier(type_):
        return lambda pointer: pointer
    shape, dtype = tuple(type_.shape), dtype_of(str(type_.element_type))
    strides, _ = type_.get_strides_and_offset()
    steps = tuple(s * dtype.itemsize for s in strides)
    return lambda pointer: View(pointer.buffer, pointer.offset, shape, steps, dtype)


def is_barrier(type_: Any) -> bool:
    """Whether it is a reference of barriers, whose value is a pointer."""
    return re.match(r"!mosaic_gpu\.barrier", str(type_.element_type)) is not None
