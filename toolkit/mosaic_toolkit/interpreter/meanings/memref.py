"""The `memref` dialect."""

from __future__ import annotations

import numpy as np

from ..bounds import checked_slice
from ..element_types import is_float
from ..machine import Thread
from ..meaning import effect, load
from ..memory import View
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
