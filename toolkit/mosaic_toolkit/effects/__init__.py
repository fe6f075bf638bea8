"""What the operations of a module read, write, start and wait for.

`ModuleEffects` answers for one module.  What is known of an operation comes, in
this order, from the toolkit's tables, one file per dialect; from MLIR's own
declaration of its effects; and else it may do anything.
"""

from __future__ import annotations

from ..jax_compat import ir
from ..ssa import producer
from . import gpu, tpu, upstream
from .buffers import ArgumentNames, Buffers
from .indices import Indices
from .memory import READ, Access, summarise
from .operation import NOTHING, Effects, anything, declared
from .shared_memory import SharedMemory, carves

__all__ = ["ArgumentNames", "Effects", "ModuleEffects"]

_TABLE = upstream.EFFECTS | tpu.EFFECTS | gpu.EFFECTS
_NO_EFFECT = upstream.NO_EFFECT | tpu.NO_EFFECT | gpu.NO_EFFECT
_CALLS = frozenset({"func.call", "tt.call", "llvm.call"})
_THREAD_IDS = ("gpu.thread_id", "gpu.lane_id", "gpu.subgroup_id", "nvvm.elect.sync")
_THREAD_REGISTERS = ("nvvm.read.ptx.sreg.tid", "nvvm.read.ptx.sreg.warpid")
_CORE_IDS = ("tpu.core_id", "tpu.subcore_id")
# They put a value in memory of its own, so that moving them moves the memory.
_ALLOCATES = ("memref.alloc", "llvm.alloca", "tpu.sem_alloc", "mosaic_gpu.tmem_alloc")
# They may trap, or may not be executed where they were not before.
_SPECULATION = (".div", ".rem", ".ceildiv", ".floordiv")


class ModuleEffects:
    """Effects of every operation of one module, computed on demand.

    Valid until operations are made, erased or changed; moving one within its
    block changes nothing.
    """

    def __init__(self, module: ir.Module, names: ArgumentNames):
        carvers: list[ir.Operation] = []
        starts: list[ir.Operation] = []
        filling: list[ir.Operation] = []
        called: set[str] = set()

        def note(op: ir.Operation) -> ir.WalkResult:
            name = op.name
            if name in tpu.COPY_STARTS:
                starts.append(op)
            elif name in _CALLS and "callee" in op.attributes:
                called.add(str(op.attributes["callee"]).lstrip("@"))
            elif carves(op, name):
                carvers.append(op)
            elif gpu.fills_registers(op, name):
                filling.append(op)
            return ir.WalkResult.ADVANCE

        module.operation.walk(note, ir.WalkOrder.PRE_ORDER)
        self._called = called
        self._depths: dict[ir.Operation, int] = {}
        self._effects: dict[ir.Operation, Effects] = {}
        self._summaries: dict[ir.Operation, tuple[Access, ...]] = {}
        indices = Indices(self._depth_of_value)
        self.buffers = Buffers(indices, names, SharedMemory(carvers), self._is_entry)
        self._copies = tpu.Copies(self.buffers, starts)
        self._pending_users = gpu.users_of_pending(filling)

    # --- effects ------------------------------------------------------------------

    def own(self, op: ir.Operation) -> Effects:
        """What the operation does itself, its regions aside."""
        effects = self._effects.get(op)
        if effects is None:
            effects = self._own(op)
            if op in self._pending_users:
                pending = Access(self.buffers.pending, None, READ)
                effects = effects._replace(accesses=(*effects.accesses, pending))
            self._effects[op] = effects
        return effects

    def _own(self, op: ir.Operation) -> Effects:
        name = op.name
        if name in _NO_EFFECT:
            return NOTHING
        known = _TABLE.get(name)
        if known is not None:
            return known(self.buffers, op)
        if name in tpu.COPY_WAITS:
            return tpu.copy_wait(self.buffers, self._copies, op)
        effects = declared(self.buffers, op)
        if gpu.uses_ptx(name):
            return gpu.PTX(self.buffers, op, effects)
        if effects is not None:
            return effects
        if op.has_trait(ir.RecursiveMemoryEffectsTrait) or name in gpu.REGION_ONLY:
            return NOTHING
        return NOTHING if op.has_trait(ir.IsTerminatorTrait) else anything(self.buffers)

    def summary(self, op: ir.Operation) -> tuple[Access, ...]:
        """What the operation and everything in its regions touch, as seen beside it."""
        known = self._summaries.get(op)
        if known is None:
            known = self._summaries[op] = self._summarise(op)
        return known

    def _summarise(self, op: ir.Operation) -> tuple[Access, ...]:
        own = self.own(op).accesses
        if not len(op.regions) or "sym_name" in op.attributes:
            return own
        inner = [
            access
            for region in op.regions
            for block in region.blocks
            for child in block.operations
            for access in self.summary(child.operation)
        ]
        return summarise((*own, *inner), self.depth(op))

    # --- position -----------------------------------------------------------------

    def depth(self, op: ir.Operation) -> int:
        """How many operations the operation is nested in."""
        known = self._depths.get(op)
        if known is None:
            parent = op.parent
            known = 0 if parent is None else self.depth(parent.operation) + 1
            self._depths[op] = known
        return known

    def _depth_of_value(self, value: ir.Value) -> int:
        op = producer(value)
        return self.depth(value.owner.owner.operation) + 1 if op is None else self.depth(op)

    def _is_entry(self, function: ir.Operation) -> bool:
        """Whether the arguments of `function` come from outside of the module."""
        attributes = function.attributes
        return "sym_name" in attributes and attributes["sym_name"].value not in self._called

    # --- questions ----------------------------------------------------------------

    def is_movable_between_blocks(self, op: ir.Operation) -> bool:
        """Whether executing `op` more or less often, or elsewhere, changes nothing."""
        name = op.name
        if name in upstream.CONVERGENT or name.startswith(_ALLOCATES) or gpu.uses_ptx(name):
            return False
        if any(text in name for text in _SPECULATION) or len(op.regions) or len(op.successors):
            return False
        if op.has_trait(ir.IsTerminatorTrait) or "sym_name" in op.attributes:
            return False
        return not self.own(op).accesses

    def depends_on_thread(self, value: ir.Value) -> bool:
        """Whether `value` is computed from the number of the thread, warp or core."""
        pending, seen = [value], set()
        while pending:
            current = pending.pop()
            if current in seen:
                continue
            seen.add(current)
            op = producer(current)
            if op is None:
                continue
            if op.name in _THREAD_IDS + _CORE_IDS or op.name.startswith(_THREAD_REGISTERS):
                return True
            if not len(op.regions):
                pending.extend(op.operands)
        return False
