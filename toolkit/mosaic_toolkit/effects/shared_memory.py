"""GPU shared memory: one byte array that a kernel carves up by constant offsets."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from ..jax_compat import ir
from ..ssa import producer
from .types import memory_type


class Slot(NamedTuple):
    """One piece of shared memory.

    Attributes:
      group: number of the set of pieces that overlap, directly or not.
      exclusive: every piece of the group is the same range of bytes.
      offset: first byte; None if unknown.
      bytes: its length.
    """

    group: int
    exclusive: bool
    offset: int | None
    bytes: int

    @property
    def name(self) -> str:
        """For people."""
        return "smem" if self.offset is None else f"smem+{self.offset}"


class SharedMemory:
    """The pieces that the operations of one module carve out."""

    def __init__(self, carvers: Iterable[ir.Operation]):
        self._slots: dict[ir.Operation, Slot] = {}
        ranges = {}
        for op in carvers:
            if any(True for _ in op.results[0].uses):
                ranges[op] = _range(op)
        if any(r is None for r in ranges.values()):
            self._slots = {op: Slot(0, False, None, 0) for op in ranges}
            return
        ordered = sorted(ranges.items(), key=lambda item: item[1])
        group: list[tuple[ir.Operation, tuple[int, int]]] = []
        end, number = 0, 0
        for op, (start, stop) in ordered:
            if group and start >= end:
                self._close(group, number)
                group, number = [], number + 1
            group.append((op, (start, stop)))
            end = max(end, stop)
        self._close(group, number)

    def _close(self, group, number: int) -> None:
        exclusive = len({r for _, r in group}) == 1
        for op, (start, stop) in group:
            self._slots[op] = Slot(number, exclusive, start, stop - start)

    def slot(self, op: ir.Operation) -> Slot | None:
        """The piece that `op` carves out, None if it carves none."""
        return self._slots.get(op)


def carves(op: ir.Operation, name: str) -> bool:
    """Whether `op`, of that name, makes a piece of dynamic shared memory of its own."""
    if name == "mosaic_gpu.slice_smem":
        return True
    if name == "gpu.dynamic_shared_memory":
        return any(use.owner.operation.name != "memref.view" for use in op.results[0].uses)
    if name != "memref.view":
        return False
    source = producer(op.operands[0])
    return source is not None and source.name == "gpu.dynamic_shared_memory"


def _range(op: ir.Operation) -> tuple[int, int] | None:
    type_ = memory_type(op.results[0].type)
    size = None if type_ is None else type_.bytes
    if size is None:
        return None
    if op.name == "mosaic_gpu.slice_smem":
        offset = op.attributes["offset"].value
    else:
        source = producer(op.operands[1])
        if source is None or source.name != "arith.constant":
            return None
        offset = source.attributes["value"].value
    return offset, offset + size
