"""Which buffer, and which box of it, a memref or a pointer refers to."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from ..jax_compat import ir
from ..locations import argument_name, source_line
from ..ssa import producer
from . import views
from .indices import Indices
from .memory import READ, ZERO, Access, Box, Resource, Span
from .shared_memory import SharedMemory
from .sources import sources_of
from .types import MemoryType, memory_type
from .views import Place


class ArgumentNames(NamedTuple):
    """How the kernel's operands and results are bound to buffers.

    Attributes:
      operands: the number of the custom call's operands.
      aliases: (operand, result) pairs that share one buffer.
    """

    operands: int
    aliases: tuple[tuple[int, int], ...]

    def canonical(self, argument: int) -> int:
        """The first argument, counting operands then results, in the same buffer."""
        if self.aliases and not self.operands:
            return 0  # Which arguments are results is not known.
        for operand, result in self.aliases:
            if argument == self.operands + result:
                return operand
        return argument


_ALLOCATIONS = {
    "memref.alloca": "alloca",
    "memref.alloc": "alloc",
    "llvm.alloca": "alloca",
    "tpu.sem_alloc": "semaphore",
    "mosaic_gpu.tmem_alloc": "tmem",
}
_SINGLETONS = {"tpu.sem_barrier": "barrier semaphore", "tpu.internal_scratch": "internal scratch"}
_SYMBOLS = {"memref.get_global": "name", "llvm.mlir.addressof": "global_name"}
# A value that may refer to more buffers than this is taken to refer to any.
_MAX_BUFFERS = 8


class Buffers:
    """The buffers of one module, found on demand.

    Attributes:
      everything: all memory and state.
      shared: memory that other threads, cores or devices can see.
      private: memory of one thread.
      pending: registers that an asynchronous operation has yet to fill.
    """

    def __init__(
        self,
        indices: Indices,
        names: ArgumentNames,
        shared_memory: SharedMemory,
        is_entry: Callable[[ir.Operation], bool],
    ):
        self.indices = indices
        self.everything = Resource("everything")
        self.shared = Resource("memory", self.everything)
        self.private = Resource("private memory", self.everything)
        self.pending = Resource("registers of asynchronous operations", self.everything)
        self._names = names
        self._shared_memory = shared_memory
        self._is_entry = is_entry
        self._resources: dict[object, Resource] = {}
        self._places: dict[ir.Value, tuple[Place, ...]] = {}
        self._types: dict[ir.Type, MemoryType | None] = {}

    # --- resources --------------------------------------------------------------

    def state(self, name: str) -> Resource:
        """A piece of machine state that is no memory, such as a random generator."""
        return self._resource(("state", name), name, self.everything)

    def space(self, name: str | None) -> Resource:
        """All memory of one space; None where the space is unknown."""
        if name is None:
            return self.everything
        if name == "any":
            return self.shared
        if name == "private":
            return self.private
        return self._resource(("space", name), name, self.shared)

    def _resource(
        self, key: object, name: str, parent: Resource, *, local: bool = False
    ) -> Resource:
        resource = self._resources.get(key)
        if resource is None:
            resource = self._resources[key] = Resource(name, parent, local=local)
        return resource

    def memory_type(self, value: ir.Value) -> MemoryType | None:
        """`types.memory_type` of the value's type."""
        type_ = value.type
        if type_ not in self._types:
            self._types[type_] = memory_type(type_)
        return self._types[type_]

    # --- accesses ---------------------------------------------------------------

    def accesses(self, value: ir.Value, mode: int) -> tuple[Access, ...]:
        """Accessing all that `value` refers to."""
        type_ = self.memory_type(value)
        size = type_.bytes if type_ is not None else None
        return tuple(Access(p.resource, views.extent(p, size), mode) for p in self.places(value))

    def element_accesses(
        self,
        value: ir.Value,
        mode: int,
        indices: Sequence[ir.Value],
        sizes: Sequence[int | None],
        strides: Sequence[int],
    ) -> tuple[Access, ...]:
        """Accessing `sizes` elements from `indices` on, `strides` apart, one per dimension."""
        offsets = [self.indices.index(i) for i in indices]
        return tuple(
            Access(p.resource, views.sliced(p, offsets, sizes, strides).box, mode)
            for p in self.places(value)
        )

    # --- places -----------------------------------------------------------------

    def places(self, value: ir.Value) -> tuple[Place, ...]:
        """Where `value` may point to; never empty."""
        known = self._places.get(value)
        if known is None:
            known = self._places[value] = self._find(value)
        return known

    def _find(self, value: ir.Value) -> tuple[Place, ...]:
        merged = sources_of(value)
        if merged:
            return self._merge(value, merged)
        op = producer(value)
        if op is None:
            return (self._argument(value, value.owner),)
        view = views.VIEWS.get(op.name)
        if view is not None:
            place = self._carved(op, value)
            if place is not None:
                return (place,)
            return tuple(view(self, op, value, p) for p in self.places(op.operands[0]))
        return (self._root(op, value),)

    def _merge(self, value: ir.Value, sources: Iterable[ir.Value]) -> tuple[Place, ...]:
        found: dict[Resource, None] = {}
        pending, seen = list(sources), {value}
        while pending:
            source = pending.pop()
            if source in seen:
                continue
            seen.add(source)
            onward = sources_of(source)
            if onward:
                pending.extend(onward)
                continue
            op = producer(source)
            if op is not None and op.name in views.VIEWS and self._carved(op, source) is None:
                pending.append(op.operands[0])
                continue
            found.update((p.resource, None) for p in self.places(source))
        if 0 < len(found) <= _MAX_BUFFERS:
            return tuple(Place(resource, None) for resource in found)
        return (self._unknown(value),)

    def _unknown(self, value: ir.Value) -> Place:
        type_ = self.memory_type(value)
        return Place(self.space(type_.space if type_ else None), None)

    def _whole(self, value: ir.Value, resource: Resource) -> Place:
        type_ = self.memory_type(value)
        if type_ is None or type_.shape is None:
            return Place(resource, None, position=views.ORIGIN)
        if type_.space == "tmem":
            return views.tensor_memory(resource, type_.shape, 0)
        return views.whole(resource, type_.shape)

    def _argument(self, value: ir.Value, block: ir.Block) -> Place:
        function = block.owner.operation
        type_ = self.memory_type(value)
        if not self._is_entry(function) or type_ is None:
            return self._unknown(value)
        number = value.arg_number
        if type_.space in (None, "any", "hbm", "gmem"):
            first = function.regions[0].blocks[0].arguments
            memory = [a.arg_number for a in first if self.memory_type(a) is not None]
            number = memory[self._names.canonical(memory.index(number))]
        parent = self.shared if type_.space is None else self.space(type_.space)
        resource = self._resource(
            ("argument", number), argument_name(value, f"arg{value.arg_number}"), parent
        )
        return self._whole(value, resource)

    def _root(self, op: ir.Operation, value: ir.Value) -> Place:
        name = op.name
        if name in _ALLOCATIONS:
            return self._whole(value, self._allocation(op, value))
        if name in _SINGLETONS:
            return self._whole(value, self._resource(name, _SINGLETONS[name], self.shared))
        if name in _SYMBOLS:
            symbol = str(op.attributes[_SYMBOLS[name]]).lstrip("@")
            return self._whole(value, self._resource(("symbol", symbol), symbol, self.shared))
        place = self._carved(op, value)
        return self._unknown(value) if place is None else place

    def _allocation(self, op: ir.Operation, value: ir.Value) -> Resource:
        type_ = self.memory_type(value)
        space = type_.space if type_ else None
        # Only GPU kernels allocate without a space: on the thread's own stack.
        parent = self.private if space is None else self.space(space)
        return self._resource(op, _allocation_name(op), parent, local=True)

    def _carved(self, op: ir.Operation, value: ir.Value) -> Place | None:
        kernel_argument = "mosaic_gpu.from_kernel_arg_idx"
        if op.name == "builtin.unrealized_conversion_cast" and kernel_argument in op.attributes:
            number = self._names.canonical(op.attributes[kernel_argument].value)
            key, name = ("argument", number), f"arg{number}"
            return self._whole(value, self._resource(key, name, self.space("gmem")))
        slot = self._shared_memory.slot(op)
        if slot is None:
            return None
        resource = self._resource(("smem", slot.group), slot.name, self.space("smem"), local=True)
        if slot.exclusive:
            return self._whole(value, resource)
        if slot.offset is None:
            return Place(resource, None)
        box = Box("bytes", (Span(ZERO, slot.offset, slot.offset + slot.bytes),))
        return Place(resource, box)


def _allocation_name(op: ir.Operation) -> str:
    line = source_line(op.location)
    return f"{_ALLOCATIONS[op.name]} at {line}" if line else _ALLOCATIONS[op.name]


def reads(buffers: Buffers, values: Iterable[ir.Value]) -> tuple[Access, ...]:
    """Reading all that the memory operands among `values` refer to."""
    return tuple(
        access
        for value in values
        if buffers.memory_type(value) is not None
        for access in buffers.accesses(value, READ)
    )
