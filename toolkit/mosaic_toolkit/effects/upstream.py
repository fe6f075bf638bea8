"""Effects of the upstream dialects where MLIR declares too little.

Precise boxes for plain loads and stores; operations without a declaration that
nevertheless touch no memory; operations whose only effects are their regions'.
"""

from __future__ import annotations

from collections.abc import Callable

from ..jax_compat import ir
from .buffers import Buffers
from .memory import READ, WRITE, Access
from .operation import Effects, anything, synchronises
from .types import element_bits
from .views import extent


def _vector_shape(value: ir.Value) -> list[int]:
    return list(value.type.shape)


def element_access(
    buffers: Buffers, base: ir.Value, mode: int, indices: list[ir.Value], shape: list[int]
) -> tuple[Access, ...]:
    """Accessing a vector of `shape` at `indices`; leading dimensions are single elements."""
    sizes = [1] * (len(indices) - len(shape)) + shape[max(0, len(shape) - len(indices)) :]
    return buffers.element_accesses(base, mode, indices, sizes, [1] * len(indices))


def _memref_load(buffers: Buffers, op: ir.Operation) -> Effects:
    base, *indices = op.operands
    return Effects(element_access(buffers, base, READ, indices, []))


def _memref_store(buffers: Buffers, op: ir.Operation) -> Effects:
    _, base, *indices = op.operands
    return Effects(element_access(buffers, base, WRITE, indices, []))


def _vector_load(buffers: Buffers, op: ir.Operation) -> Effects:
    base, *indices = op.operands
    shape = _vector_shape(op.results[0])
    return Effects(element_access(buffers, base, READ, indices, shape))


def _vector_store(buffers: Buffers, op: ir.Operation) -> Effects:
    value, base, *indices = op.operands
    return Effects(element_access(buffers, base, WRITE, indices, _vector_shape(value)))


def _llvm_access(mode: int) -> Callable[[Buffers, ir.Operation], Effects]:
    def effects(buffers: Buffers, op: ir.Operation) -> Effects:
        if _attribute(op, "volatile_") or _attribute(op, "ordering", 0):
            return anything(buffers)
        pointer = op.operands[0 if mode == READ else 1]
        value = op.results[0] if mode == READ else op.operands[0]
        size = _bytes(value.type)
        return Effects(
            tuple(Access(p.resource, extent(p, size), mode) for p in buffers.places(pointer))
        )

    return effects


def _attribute(op: ir.Operation, name: str, plain: object = None) -> bool:
    """Whether the attribute is there and is not its `plain` value."""
    if name not in op.attributes:
        return False
    return getattr(op.attributes[name], "value", None) != plain


def _atomic(buffers: Buffers, op: ir.Operation) -> Effects:
    """May acquire or release what other threads wrote."""
    return Effects(synchronises(buffers))


def _bytes(type_: ir.Type) -> int | None:
    if isinstance(type_, ir.VectorType):
        bits = element_bits(type_.element_type)
        count = 1
        for size in type_.shape:
            count *= size
        return None if bits is None else (bits * count + 7) // 8
    bits = element_bits(type_)
    return None if bits is None else (bits + 7) // 8


EFFECTS: dict[str, Callable[[Buffers, ir.Operation], Effects]] = {
    "memref.load": _memref_load,
    "memref.store": _memref_store,
    "vector.load": _vector_load,
    "vector.store": _vector_store,
    "llvm.load": _llvm_access(READ),
    "llvm.store": _llvm_access(WRITE),
    "llvm.atomicrmw": _atomic,
    "llvm.cmpxchg": _atomic,
    "llvm.fence": _atomic,
    "tt.atomic_cas": _atomic,
    "tt.atomic_load": _atomic,
    "tt.atomic_poll": _atomic,
    "tt.atomic_rmw": _atomic,
    "tt.atomic_store": _atomic,
}

# They exchange registers between the threads of a warp, and touch no memory.
CONVERGENT = frozenset(
    {
        "gpu.shuffle",
        "gpu.ballot",
        "nvvm.elect.sync",
        "nvvm.match.sync",
        "nvvm.redux.sync",
        "nvvm.shfl.sync",
        "nvvm.vote.sync",
        "nvvm.vote.ballot.sync",
        "nvvm.mma.sync",
    }
)

NO_EFFECT = CONVERGENT | {
    "builtin.module",
    "func.func",
    "gpu.func",
    "gpu.module",
    "llvm.func",
    "llvm.mlir.global",
    "memref.global",
    "tt.func",
}
