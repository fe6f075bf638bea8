"""The `memref` dialect."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np

from ...errors import Unsupported
from ..bounds import checked_slice
from ..element_types import dtype_of, is_float
from ..machine import Thread
from ..meaning import effect, load, value
from ..memory import Buffer, View
from ..values import dtype_of_value

_DYNAMIC = -(2**63)


@load("memref.load")
def memref_load(op, scope):
    site = scope.site(op)
    sizes = [1] * (len(op.operands) - 1)
    dtype = dtype_of_value(op.results[0])
    convert = bool if dtype == np.bool_ else (lambda x: x) if is_float(dtype) else int

    def run(thread: Thread, view: View, *indices: int):
        cell = checked_slice(thread, site, view, indices, sizes)
        return convert(thread.load(cell, site).reshape(())[()])

    return run


@effect("memref.store")
def memref_store(op, scope):
    site = scope.site(op)
    sizes = [1] * (len(op.operands) - 2)

    def run(thread: Thread, value, view: View, *indices: int) -> None:
        thread.store(checked_slice(thread, site, view, indices, sizes), value, site)

    return run


@effect("memref.subview")
def subview(op, scope):
    """Operand groups: the source, dynamic offsets, sizes and strides."""
    site = scope.site(op)
    offsets, sizes, strides = (
        [int(n) for n in op.attributes[name]]
        for name in ("static_offsets", "static_sizes", "static_strides")
    )
    shape = tuple(op.results[0].type.shape)
    dropped = len(shape) < len(sizes)

    def run(thread: Thread, view: View, *dynamic: int) -> View:
        numbers = iter(dynamic)
        box = [
            [next(numbers) if n == _DYNAMIC else n for n in group]
            for group in (offsets, sizes, strides)
        ]
        part = checked_slice(thread, site, view, *box)
        return part.reshape(shape) if dropped else part

    return run


@value("memref.cast", "memref.memory_space_cast")
def same_memory(op, scope):
    return lambda view: view


@value("memref.dim")
def dimension(op, scope):
    return lambda view, axis: view.shape[axis]


@value("memref.transpose")
def transpose(op, scope):
    permutation = [
        int(n) for n in re.findall(r"d(\d+)", str(op.attributes["permutation"]).rpartition("->")[2])
    ]
    return lambda view: view.transpose(permutation)


@value("memref.expand_shape", "memref.collapse_shape")
def reshape(op, scope):
    type_ = op.results[0].type
    if not type_.has_static_shape:
        raise Unsupported(f"{scope.site(op)} to a dynamic shape")
    shape = tuple(type_.shape)
    return lambda view: view.reshape(shape)


def private_memory(type_: Any, name: str) -> Callable[[Thread], View]:
    """Fresh memory that only the thread which asks for it can reach."""
    shape, dtype = tuple(type_.shape), dtype_of(str(type_.element_type))

    def run(thread: Thread) -> View:
        buffer = Buffer.poisoned(name, "private", shape, dtype, thread.machine.poison)
        buffer.private = True
        return View.whole(buffer, shape, dtype)

    return run
