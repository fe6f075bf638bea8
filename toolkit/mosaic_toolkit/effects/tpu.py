"""Effects of the `tpu` dialect where MLIR declares too little."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from ..jax_compat import ir
from .buffers import Buffers, reads
from .memory import READ, READ_WRITE, WRITE, Access, Box, Resource, may_overlap, outside, summarise
from .operation import Channel, Effects, channels, segments, state, synchronises

COPY_STARTS = frozenset({"tpu.enqueue_dma", "tpu.enqueue_indirect_dma"})
COPY_WAITS = frozenset({"tpu.wait_dma", "tpu.wait_dma2", "tpu.wait_indirect_dma"})


def _operands(op: ir.Operation) -> tuple[ir.Value, ir.Value, list[ir.Value], list[ir.Value]]:
    """Source, target, semaphores, and further memory read, of a copy or its wait."""
    if op.name in ("tpu.enqueue_dma", "tpu.wait_dma"):
        source, source_semaphore, target, target_semaphore, *_ = segments(op)
        return source[0], target[0], source_semaphore + target_semaphore, []
    operands = list(op.operands)
    if op.name == "tpu.enqueue_indirect_dma":
        source, target, offsets = operands[:3]
        found = [v for v in operands[3:] if _is_semaphore(v)]
        return source, target, found, [offsets]
    return operands[1], operands[2], operands[:1], []


def _is_semaphore(value: ir.Value) -> bool:
    return "semaphore" in str(value.type)


def _awaited(op: ir.Operation) -> list[ir.Value]:
    """The semaphores that a wait waits on."""
    if op.name != "tpu.wait_dma":
        return [op.operands[0]]
    _, source_semaphore, _, target_semaphore, *_ = segments(op)
    on_target = "wait_target" not in op.attributes or op.attributes["wait_target"].value
    return (target_semaphore if on_target else source_semaphore) or (
        source_semaphore + target_semaphore
    )


def _touched(buffers: Buffers, op: ir.Operation) -> tuple[Access, ...]:
    """What a copy reads and writes between its start and its wait."""
    source, target, _, also_read = _operands(op)
    adds = "add" in op.attributes and op.attributes["add"].value
    return (
        *buffers.accesses(source, READ),
        *reads(buffers, also_read),
        *buffers.accesses(target, READ_WRITE if adds else WRITE),
    )


# A semaphore array with more distinct slots than this counts as one semaphore.
_MAX_SLOTS = 256


class Copies:
    """Every copy that the module starts, found by the semaphore it signals.

    A wait completes any copy that may signal its semaphore, whatever
    references the wait itself names.
    """

    def __init__(self, buffers: Buffers, starts: Iterable[ir.Operation]):
        self._buffers = buffers
        self._slots: dict[Resource, dict[Box | None, list[Access]]] = {}
        self._answers: dict[tuple[Resource, Box | None], tuple[Access, ...]] = {}
        for op in starts:
            touched = [a._replace(box=outside(a.box, 0)) for a in _touched(buffers, op)]
            for semaphore in _operands(op)[2]:
                for access in buffers.accesses(semaphore, READ_WRITE):
                    slots = self._slots.setdefault(access.resource, {})
                    box = outside(access.box, 0) if len(slots) < _MAX_SLOTS else None
                    slots.setdefault(box, []).extend(touched)

    def completed_by(self, semaphore: Access) -> tuple[Access, ...]:
        """What the copies touch that a wait on `semaphore` may complete; () if none do."""
        key = (semaphore.resource, outside(semaphore.box, 0))
        if key not in self._answers:
            self._answers[key] = summarise(self._matching(*key), 0)
        return self._answers[key]

    def _matching(self, resource: Resource, box: Box | None) -> Iterator[Access]:
        for other, slots in self._slots.items():
            if other is resource:
                for slot, touched in slots.items():
                    if may_overlap(slot, box):
                        yield from touched
            elif other.within(resource) or resource.within(other):
                for touched in slots.values():
                    yield from touched


def _start(buffers: Buffers, op: ir.Operation) -> Effects:
    semaphores = _operands(op)[2]
    accesses = list(_touched(buffers, op))
    signals: list[Channel] = []
    for semaphore in semaphores:
        accesses.extend(buffers.accesses(semaphore, READ_WRITE))
        signals.extend(channels(buffers, "dma", semaphore))
    return Effects(tuple(accesses), tuple(signals))


def copy_wait(buffers: Buffers, copies: Copies, op: ir.Operation) -> Effects:
    """A wait acts on all that the copies it may complete touch."""
    accesses = list(_touched(buffers, op))
    waits: list[Channel] = []
    for semaphore in _awaited(op):
        for access in buffers.accesses(semaphore, READ_WRITE):
            completed = copies.completed_by(access)
            accesses.extend((access, *(completed or synchronises(buffers))))
        waits.extend(channels(buffers, "dma", semaphore))
    return Effects(tuple(accesses), (), tuple(waits))


def _signal(buffers: Buffers, op: ir.Operation) -> Effects:
    return Effects(synchronises(buffers), channels(buffers, "semaphore", op.operands[0]))


def _wait(buffers: Buffers, op: ir.Operation) -> Effects:
    # A copy may signal a regular semaphore too; `dma` pairs this wait with it.
    semaphore = op.operands[0]
    waits = channels(buffers, "semaphore", semaphore) + channels(buffers, "dma", semaphore)
    return Effects(synchronises(buffers), (), waits)


def _vector(mode: int) -> Callable[[Buffers, ir.Operation], Effects]:
    """A load or store of a vector at scalar indices, maybe strided, maybe adding."""

    def effects(buffers: Buffers, op: ir.Operation) -> Effects:
        operands = list(op.operands)
        position = next(n for n, v in enumerate(operands) if isinstance(v.type, ir.MemRefType))
        base = operands[position]
        rank = len(base.type.shape)
        vector = (op.results[0] if mode == READ else operands[0]).type.shape
        sizes = [1] * (rank - len(vector)) + list(vector)[max(0, len(vector) - rank) :]
        strides = list(op.attributes["strides"]) if "strides" in op.attributes else []
        adds = "add" in op.attributes and op.attributes["add"].value
        return Effects(
            buffers.element_accesses(
                base,
                READ_WRITE if adds else mode,
                operands[position + 1 : position + 1 + rank],
                sizes,
                strides if len(strides) == rank else [1] * rank,
            )
        )

    return effects


def _any_row(mode: int) -> Callable[[Buffers, ir.Operation], Effects]:
    """Indices may be negative or spread over sublanes, and so leave the reference's box."""

    def effects(buffers: Buffers, op: ir.Operation) -> Effects:
        (base,) = (v for v in op.operands if isinstance(v.type, ir.MemRefType))
        return Effects(tuple(Access(p.resource, None, mode) for p in buffers.places(base)))

    return effects


def _changes(name: str) -> Callable[[Buffers, ir.Operation], Effects]:
    def effects(buffers: Buffers, op: ir.Operation) -> Effects:
        return Effects(state(buffers, name) + reads(buffers, op.operands))

    return effects


EFFECTS: dict[str, Callable[[Buffers, ir.Operation], Effects]] = {
    "tpu.enqueue_dma": _start,
    "tpu.enqueue_indirect_dma": _start,
    "tpu.sem_signal": _signal,
    "tpu.sem_wait": _wait,
    "tpu.sem_read": _wait,
    "tpu.vector_load": _vector(READ),
    "tpu.strided_load": _vector(READ),
    "tpu.vector_store": _vector(WRITE),
    "tpu.strided_store": _vector(WRITE),
    "tpu.load": _any_row(READ),
    "tpu.store": _any_row(READ_WRITE),
    "tpu.shuffled_load": _any_row(READ),
    "tpu.shuffled_store": _any_row(WRITE),
    "tpu.matmul_push_rhs": _changes("matrix unit"),
    "tpu.matmul_acc_lhs": _changes("matrix unit"),
    "tpu.matmul_pop": _changes("matrix unit"),
    "tpu.matmul_lhs_fifo": _changes("matrix unit"),
    "tpu.matmul_pop_fifo": _changes("matrix unit"),
    "tpu.prng_set_seed_32": _changes("random generator"),
    "tpu.prng_random_bits": _changes("random generator"),
    "tpu.trace_start": _changes("trace"),
    "tpu.trace_stop": _changes("trace"),
    "tpu.trace_value": _changes("trace"),
    "tpu.log": _changes("log"),
    "tpu.log_buffer": _changes("log"),
}

NO_EFFECT = frozenset(
    {
        "tpu.annotate",
        "tpu.internal_scratch",
        "tpu.iteration_bound",
        "tpu.scan",
        "tpu.sem_alloc",
        "tpu.sem_barrier",
        "tpu.sublane_shuffle",
        "tpu.tile_size",
    }
)
