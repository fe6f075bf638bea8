"""The `tt` dialect: loads, stores and atomic operations, and which program this is."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ...errors import Unsupported
from ..bits import to_bits
from ..element_types import dtype_of, is_float, unsigned
from ..meaning import blocking, effect, load
from ..memory import poison_value
from ..triton import ProgramThread
from ..values import is_shaped
from .tt import integer, pointee

_RELAXED, _ACQUIRE, _RELEASE, _ACQUIRE_RELEASE = 1, 2, 3, 4
_AND, _OR, _XOR, _ADD, _FADD, _MAX, _MIN, _UMAX, _UMIN, _EXCHANGE = range(1, 11)


@load("tt.get_program_id", "tt.get_num_programs")
def program_id(op, scope):
    axis = integer(op, "axis")
    if op.name == "tt.get_program_id":
        return lambda thread: thread.number[axis]
    return lambda thread: thread.launch.extents[axis]


class _Lanes:
    """The pointers that an operation follows: all, or those under a mask."""

    def __init__(self, pointers: Any, mask: Any):
        every = np.asarray(pointers, np.int64)
        self.shape = every.shape
        self.mask: np.ndarray | None = None
        if mask is not None:
            self.mask = np.broadcast_to(np.asarray(mask, np.bool_), every.shape)
        self.pointers = self.of(every)

    def of(self, values: np.ndarray) -> np.ndarray:
        """Their part of a tensor, as one dimension."""
        return values.reshape(-1) if self.mask is None else values[self.mask]

    def spread(self, values: np.ndarray, others: np.ndarray) -> np.ndarray:
        """A tensor of their values, and of `others` for the rest."""
        if self.mask is None:
            return values.reshape(self.shape)
        result = np.array(np.broadcast_to(others, self.shape))
        result[self.mask] = values
        return result


def _result(type_: Any, dtype: np.dtype) -> Callable[[np.ndarray], Any]:
    """From an array to the value of a type."""
    if is_shaped(type_):
        return lambda array: array
    return (lambda array: array[()]) if is_float(dtype) else (lambda array: array.item())


@load("tt.load")
def load_elements(op, scope):
    """Lanes under no mask hold `other`, or what nobody may use."""
    site, dtype = scope.site(op), _element(op, scope)
    result = _result(op.results[0].type, dtype)

    def run(thread: ProgramThread, pointers: Any, mask: Any = None, other: Any = None) -> Any:
        lanes = _Lanes(pointers, mask)
        values = np.empty(lanes.pointers.shape, dtype)
        for which, view in thread.views(lanes.pointers, dtype, site):
            values[which] = thread.load(view, site)
        if other is None:
            other = poison_value(dtype, thread.machine.poison)
        return result(lanes.spread(values, np.asarray(other, dtype)))

    return run


@effect("tt.store")
def store_elements(op, scope):
    site, dtype = scope.site(op), _element(op, scope)

    def run(thread: ProgramThread, pointers: Any, values: Any, mask: Any = None) -> None:
        lanes = _Lanes(pointers, mask)
        kept = lanes.of(np.asarray(values, dtype))
        for which, view in thread.views(lanes.pointers, dtype, site):
            thread.store(view, kept[which], site)

    return run


def _element(op, scope) -> np.dtype:
    name = pointee(op.operands[0].type)
    if name.startswith("!"):
        raise Unsupported(f"{scope.site(op)} of {name}")
    return dtype_of(name)


# --- atomic operations --------------------------------------------------------------------------

type _Update = Callable[[np.ndarray, np.ndarray], np.ndarray]


def _floats_or(update: _Update) -> _Update:
    """The sum of narrow floats is one rounding of the sum in float32."""

    def run(old: np.ndarray, new: np.ndarray) -> np.ndarray:
        if is_float(old.dtype) and old.dtype.itemsize < 4:
            return update(old.astype(np.float32), new.astype(np.float32)).astype(old.dtype)
        return update(old, new)

    return run


def _unsigned(update: _Update) -> _Update:
    def run(old: np.ndarray, new: np.ndarray) -> np.ndarray:
        kind = unsigned(old.dtype)
        return update(old.view(kind), new.view(kind)).view(old.dtype)

    return run


_UPDATES: dict[int, _Update] = {
    _AND: np.bitwise_and,
    _OR: np.bitwise_or,
    _XOR: np.bitwise_xor,
    _ADD: np.add,
    _FADD: _floats_or(np.add),
    _MAX: _floats_or(np.fmax),
    _MIN: _floats_or(np.fmin),
    _UMAX: _unsigned(np.maximum),
    _UMIN: _unsigned(np.minimum),
    _EXCHANGE: lambda old, new: new,
}


def _ordering(op) -> tuple[bool, bool]:
    """Whether an atomic operation acquires, and whether it releases."""
    semantics = integer(op, "sem")
    return (
        semantics in (_ACQUIRE, _ACQUIRE_RELEASE),
        semantics in (_RELEASE, _ACQUIRE_RELEASE),
    )


@blocking("tt.atomic_rmw")
def read_modify_write(op, scope):
    update = _UPDATES[integer(op, "atomic_rmw_op")]
    return _atomic(op, scope, lambda old, new: update(old, new))


@blocking("tt.atomic_cas")
def compare_and_swap(op, scope):
    def update(old: np.ndarray, expected: np.ndarray, new: np.ndarray) -> np.ndarray:
        return np.where(to_bits(old) == to_bits(expected), new, old)

    return _atomic(op, scope, update)


def _atomic(op, scope, update: Callable[..., np.ndarray]):
    site, dtype, ordering = scope.site(op), _element(op, scope), _ordering(op)
    result = _result(op.results[0].type, dtype)
    operands = 2 if op.name == "tt.atomic_cas" else 1

    def run(thread: ProgramThread, pointers: Any, *rest: Any):
        yield from thread.turn(site)
        values, (mask,) = rest[:operands], rest[operands:] or (None,)
        lanes = _Lanes(pointers, mask)
        kept = [lanes.of(np.asarray(value, dtype)) for value in values]
        before = np.empty(lanes.pointers.shape, dtype)
        for which, view in thread.views(lanes.pointers, dtype, site):
            parts = [value[which] for value in kept]

            def new(among: np.ndarray, old: np.ndarray, parts=parts) -> np.ndarray:
                return update(old, *(part[among] for part in parts))

            before[which] = thread.atomically(view, site, ordering, new)
        nothing = poison_value(dtype, thread.machine.poison)
        return result(lanes.spread(before, np.asarray(nothing, dtype)))

    return run
