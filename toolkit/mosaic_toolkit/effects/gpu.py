"""Effects of the `mosaic_gpu` and `nvvm` dialects, and of PTX, where MLIR declares too little.

What is not here and not declared by MLIR may do anything, which is right for
barriers, fences and waits on groups of asynchronous operations.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from ..jax_compat import ir
from .buffers import Buffers, reads
from .memory import READ, READ_WRITE, WRITE, Access
from .operation import Channel, Effects, anything, channels, group, segments, state, synchronises


def _barrier(signals: bool) -> Callable[[Buffers, ir.Operation], Effects]:
    """An arrival or a wait: the barrier is the first operand."""

    def effects(buffers: Buffers, op: ir.Operation) -> Effects:
        found = channels(buffers, "barrier", op.operands[0])
        accesses = synchronises(buffers)
        return Effects(accesses, found) if signals else Effects(accesses, (), found)

    return effects


def _async_load(buffers: Buffers, op: ir.Operation) -> Effects:
    source, destination, barrier = list(op.operands)[:3]
    accesses = (
        *buffers.accesses(source, READ),
        *buffers.accesses(destination, WRITE),
        *buffers.accesses(barrier, READ_WRITE),
    )
    return Effects(accesses, channels(buffers, "barrier", barrier))


def _async_store(buffers: Buffers, op: ir.Operation) -> Effects:
    source, destination = list(op.operands)[:2]
    accesses = (
        *buffers.accesses(source, READ),
        *buffers.accesses(destination, READ_WRITE if "reduction_op" in op.attributes else WRITE),
        *state(buffers, "bulk copy group"),
    )
    return Effects(accesses, group(buffers, "bulk copy"))


def _async_store_smem(buffers: Buffers, op: ir.Operation) -> Effects:
    return Effects(synchronises(buffers), channels(buffers, "barrier", op.operands[2]))


def _vector_store(buffers: Buffers, op: ir.Operation) -> Effects:
    attributes = op.attributes
    if "multimem" in attributes and attributes["multimem"].value:
        return Effects(synchronises(buffers))
    mode = READ_WRITE if "atomic_type" in attributes else WRITE
    return Effects(buffers.accesses(op.operands[1], mode))


def _fills_registers(name: str) -> Callable[[Buffers, ir.Operation], Effects]:
    """An asynchronous operation whose results are valid only after a later wait."""

    def effects(buffers: Buffers, op: ir.Operation) -> Effects:
        accesses = (
            *reads(buffers, op.operands),
            Access(buffers.pending, None, READ_WRITE),
            *state(buffers, f"{name} group"),
        )
        return Effects(accesses, group(buffers, name))

    return effects


def _tensor_core(buffers: Buffers, op: ir.Operation) -> Effects:
    """tcgen05: asynchronous, in order among themselves, complete at a commit."""
    if op.name == "mosaic_gpu.tcgen05_mma":
        accumulator, *rest = op.operands
        touched = (*buffers.accesses(accumulator, READ_WRITE), *reads(buffers, rest))
    else:
        source, destination = list(op.operands)[:2]
        touched = (*buffers.accesses(source, READ), *buffers.accesses(destination, WRITE))
    return Effects(touched + state(buffers, "tcgen05 group"), group(buffers, "tcgen05"))


def _tensor_core_commit(buffers: Buffers, op: ir.Operation) -> Effects:
    accesses = synchronises(buffers) + state(buffers, "tcgen05 group")
    return Effects(
        accesses, channels(buffers, "barrier", op.operands[0]), group(buffers, "tcgen05")
    )


def _store_tmem(buffers: Buffers, op: ir.Operation) -> Effects:
    return Effects(buffers.accesses(op.operands[1], WRITE) + state(buffers, "tmem access group"))


def _cluster_cancel(buffers: Buffers, op: ir.Operation) -> Effects:
    return Effects(synchronises(buffers), channels(buffers, "barrier", op.operands[1]))


def _query_cancel(buffers: Buffers, op: ir.Operation) -> Effects:
    return Effects(buffers.accesses(op.operands[0], READ))


def _matrix(mode: int) -> Callable[[Buffers, ir.Operation], Effects]:
    """ldmatrix and stmatrix: every thread of the warp gives an address of its own."""

    def effects(buffers: Buffers, op: ir.Operation) -> Effects:
        places = buffers.places(op.operands[0])
        return Effects(tuple(Access(p.resource, None, mode) for p in places))

    return effects


def _thread_copy(buffers: Buffers, op: ir.Operation) -> Effects:
    """cp.async of one thread: complete after its group's wait."""
    target, source = list(op.operands)[:2]
    accesses = (
        *(Access(p.resource, None, WRITE) for p in buffers.places(target)),
        *(Access(p.resource, None, READ) for p in buffers.places(source)),
        *state(buffers, "async copy group"),
    )
    return Effects(accesses, group(buffers, "async copy"))


def _bulk_load(buffers: Buffers, op: ir.Operation) -> Effects:
    """A TMA copy into shared memory: the barrier follows the coordinates."""
    barrier = segments(op)[3]
    return anything(buffers)._replace(signals=channels(buffers, "barrier", barrier[0]))


# --- PTX --------------------------------------------------------------------------

# What a PTX instruction starts or waits for: (prefix, group, it starts one).
_PTX = (
    ("wgmma.mma_async", "wgmma", True),
    ("wgmma.wait_group", "wgmma", False),
    ("cp.async.bulk.commit_group", "bulk copy", True),
    ("cp.async.bulk.wait_group", "bulk copy", False),
    ("cp.async.commit_group", "async copy", True),
    ("cp.async.wait_group", "async copy", False),
    ("cp.async.wait_all", "async copy", False),
    ("tcgen05.mma", "tcgen05", True),
    ("tcgen05.commit", "tcgen05", False),
    ("tcgen05.ld", "tmem access", True),
    ("tcgen05.st", "tmem access", True),
    ("tcgen05.wait", "tmem access", False),
)


def ptx_text(op: ir.Operation) -> str:
    """The PTX of an inline-assembly operation, the instruction's name of an nvvm one."""
    for attribute in ("asm_string", "ptxCode"):
        if attribute in op.attributes:
            return op.attributes[attribute].value
    return (
        op.name.removeprefix("nvvm.")
        .replace("wgmma.wait.group", "wgmma.wait_group")
        .replace("commit.group", "commit_group")
    )


def _ptx(buffers: Buffers, op: ir.Operation, known: Effects | None) -> Effects:
    """Inline assembly and nvvm: what they may touch, and the groups they name."""
    effects = anything(buffers) if known is None else known
    text = ptx_text(op)
    signals: list[Channel] = []
    waits: list[Channel] = []
    for instruction, name, starts in _PTX:
        if instruction in text:
            (signals if starts else waits).extend(group(buffers, name))
    if "mbarrier" in text:
        for value in op.operands:
            type_ = buffers.memory_type(value)
            if type_ is not None and type_.space == "smem":
                found = channels(buffers, "barrier", value)
                (waits if "wait" in text else signals).extend(found)
    return effects._replace(signals=tuple(signals), waits=tuple(waits))


def uses_ptx(name: str) -> bool:
    """Whether an operation of this name stands for PTX instructions."""
    return name == "llvm.inline_asm" or name.startswith("nvvm.")


EFFECTS: dict[str, Callable[[Buffers, ir.Operation], Effects]] = {
    "mosaic_gpu.arrive": _barrier(signals=True),
    "mosaic_gpu.arrive_expect_tx": _barrier(signals=True),
    "mosaic_gpu.wait": _barrier(signals=False),
    "mosaic_gpu.async_load": _async_load,
    "mosaic_gpu.async_store": _async_store,
    "mosaic_gpu.async_store_smem": _async_store_smem,
    "mosaic_gpu.vector_store": _vector_store,
    "mosaic_gpu.wgmma": _fills_registers("wgmma"),
    "mosaic_gpu.async_load_tmem": _fills_registers("tmem access"),
    "mosaic_gpu.async_store_tmem": _store_tmem,
    "mosaic_gpu.tcgen05_mma": _tensor_core,
    "mosaic_gpu.async_store_smem_to_tmem": _tensor_core,
    "mosaic_gpu.async_store_scales_smem_to_tmem": _tensor_core,
    "mosaic_gpu.async_store_sparse_metadata_smem_to_tmem": _tensor_core,
    "mosaic_gpu.tcgen05_commit_arrive": _tensor_core_commit,
    "mosaic_gpu.try_cluster_cancel": _cluster_cancel,
    "mosaic_gpu.query_cluster_cancel": _query_cancel,
    "nvvm.cp.async.shared.global": _thread_copy,
    "nvvm.ldmatrix": _matrix(READ),
    "nvvm.stmatrix": _matrix(WRITE),
    "nvvm.cp.async.bulk.tensor.shared.cluster.global": _bulk_load,
}
PTX = _ptx

NO_EFFECT = frozenset(
    {
        "mosaic_gpu.async_prefetch",
        "mosaic_gpu.broadcast_in_dim",
        "mosaic_gpu.broadcasted_iota",
        "mosaic_gpu.mma",
    }
)

# Their bodies run in place and are all that they do.
REGION_ONLY = frozenset(
    {"mosaic_gpu.custom_primitive", "mosaic_gpu.warp_map", "mosaic_gpu.run_scoped"}
)

# --- registers that fill later ------------------------------------------------------

_FILLS = frozenset({"mosaic_gpu.wgmma", "mosaic_gpu.async_load_tmem"})
_FILLING_PTX = ("wgmma.mma_async", "wgmma.mma.async", "tcgen05.ld")
_FORWARDS = frozenset(
    {
        "builtin.unrealized_conversion_cast",
        "llvm.bitcast",
        "llvm.extractelement",
        "llvm.extractvalue",
        "llvm.insertelement",
        "llvm.insertvalue",
        "mosaic_gpu.layout_cast",
        "mosaic_gpu.optimization_barrier",
        "vector.bitcast",
        "vector.shape_cast",
    }
)


def fills_registers(op: ir.Operation, name: str) -> bool:
    """Whether the operation's results are valid only after a later wait."""
    if name in _FILLS:
        return True
    return uses_ptx(name) and any(text in ptx_text(op) for text in _FILLING_PTX)


def users_of_pending(seeds: list[ir.Operation]) -> set[ir.Operation]:
    """Every operation that uses, maybe through copies and regions, a result of `seeds`."""
    users: set[ir.Operation] = set()
    seen: set[ir.Value] = set()
    pending = [result for op in seeds for result in op.results]
    while pending:
        value = pending.pop()
        if value in seen:
            continue
        seen.add(value)
        for use in value.uses:
            user = use.owner.operation
            users.add(user)
            pending.extend(_onward(user))
    return users


def _onward(user: ir.Operation) -> Iterator[ir.Value]:
    if user.name in _FORWARDS:
        yield from user.results
    elif user.has_trait(ir.IsTerminatorTrait):
        yield from user.parent.results
        yield from _arguments(user.parent)
    elif len(user.regions):
        yield from user.results
        yield from _arguments(user)


def _arguments(op: ir.Operation) -> Iterator[ir.Value]:
    for region in op.regions:
        for block in region.blocks:
            yield from block.arguments
