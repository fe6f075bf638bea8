"""`tpu` operations that move data or time between agents: DMAs, semaphores, barriers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from ...errors import Unsupported
from ..bits import width_of
from ..bounds import out_of_bounds
from ..findings import Site
from ..machine import Stage, Steps, Thread, Transfer, Wait
from ..meaning import blocking, effect
from ..memory import View
from ..races import Clock, join
from ..tpu_buffers import OFF_CHIP, allocate, counterpart, semaphore, shared, space_of
from ..values import flag, operand_groups

_COUNTS_ONE = "!tpu.semaphore"
_FAR = OFF_CHIP | {"vmem_shared"}

# --- DMAs ---------------------------------------------------------------------------------


def _bytes(view: View) -> int:
    """What a whole copy adds to a DMA semaphore: its size on the chip."""
    return view.size * width_of(view.dtype) // 8


def _counts_one(operands) -> bool:
    """Whether the semaphore counts copies, not bytes."""
    return bool(len(operands)) and str(operands[0].type.element_type) == _COUNTS_ONE


def _one(operands) -> Any:
    return operands[0] if operands else None


@effect("tpu.enqueue_dma")
def enqueue_dma(op, scope):
    """Operand groups: source, its semaphore, target, its semaphore, device, core, subcore."""
    site, groups = scope.site(op), operand_groups(op)
    of_source, of_target = (list(op.operands)[groups[n]] for n in (1, 3))
    one_each = _counts_one(of_source), _counts_one(of_target)

    def run(thread: Thread, *operands):
        (source,), sent, (target,), landed, *elsewhere = (operands[group] for group in groups)
        where = [_one(operand) for operand in elsewhere]
        if any(w is not None for w in where):
            target = counterpart(thread, target, site, *where)
            landed = [counterpart(thread, s, site, *where) for s in landed]
        signals = [(semaphore(s), 1 if one_each[1] else _bytes(target)) for s in landed]
        if not sent:
            thread.start(
                site,
                lambda: target.copy_from(source),
                reads=[source],
                writes=[target],
                signals=signals,
            )
            return
        read = [(semaphore(s), 1 if one_each[0] else _bytes(source)) for s in sent]
        _start_in_two(thread, site, source, target, read, signals)

    return run


def _start_in_two(
    thread: Thread, site: Site, source: View, target: View, sent: Sequence, landed: Sequence
) -> None:
    """Starts a copy that says when its source was read and, later, when it has landed."""
    held: list[np.ndarray] = []
    reader = thread.engine(site)
    places = thread.touch(reader, [source], [])
    writer = thread.engine(site)
    join(writer.clock, {reader.agent: reader.time})
    places_written = thread.touch(writer, [], [target])
    read = Stage(lambda: held.append(source.read()), sent)
    write = Stage(lambda: target.write(held.pop()), landed)
    transfer = Transfer(site, [read, write], places_written)
    for each, amount in sent:
        each.promise(amount, reader, Transfer(site, [], places))
    for each, amount in landed:
        each.promise(amount, writer, transfer)
    thread.machine.fly(transfer)


@blocking("tpu.wait_dma")
def wait_dma(op, scope):
    """Waits for the copy's arrival at its target, or for its source to be read."""
    site, groups = scope.site(op), operand_groups(op)
    arrival = flag(op, "wait_target") and bool(len(list(op.operands)[groups[3]]))
    one = _counts_one(list(op.operands)[groups[3 if arrival else 1]])

    def run(thread: Thread, *operands):
        (source,), sent, (target,), landed, *_ = (operands[group] for group in groups)
        awaited, moved = (landed[0], target) if arrival else (sent[0], source)
        return thread.wait(semaphore(awaited), 1 if one else _bytes(moved), site)

    return run


@blocking("tpu.wait_dma2")
def wait_dma2(op, scope):
    """Operands: semaphore, source, target, device, core."""
    site = scope.site(op)
    one = _counts_one([op.operands[0]])

    def run(thread: Thread, awaited: View, source: View, target: View, *_):
        return thread.wait(semaphore(awaited), 1 if one else _bytes(target), site)

    return run


# --- gather and scatter by a DMA ----------------------------------------------------------


def _gathers(op, site, source, target) -> bool:
    """Whether the source is indexed; else the target is."""
    near, far = space_of(source.type), space_of(target.type)
    if (near in _FAR) == (far in _FAR):
        raise Unsupported(f"{site} from {near} to {far}")
    return near in _FAR


def _rows(thread: Thread, site: Site, view: View, offsets: np.ndarray) -> View:
    """Parts of a reference along its first dimension (after a leading 1, if need be)."""
    if len(view.shape) > 1 and view.shape[0] == 1 and offsets.size > 1:
        view = view.reshape(view.shape[1:])
    extent = next(iter(view.shape))
    if offsets.size and (offsets.min() < 0 or offsets.max() >= extent):
        wrong = offsets[(offsets < 0) | (offsets >= extent)][0]
        raise out_of_bounds(
            thread, site, f"offset {wrong} into {view.buffer.name}, which is {list(view.shape)}"
        )
    return view.at((offsets,))


@effect("tpu.enqueue_indirect_dma")
def enqueue_indirect_dma(op, scope):
    """Operands: source, target, offsets, semaphore, the offset that is left out."""
    site = scope.site(op)
    gathers = _gathers(op, site, *list(op.operands)[:2])
    adds = flag(op, "add")

    def run(thread: Thread, source: View, target: View, offsets, done: View, *skipped: int):
        reads: list[View] = []
        if isinstance(offsets, View):
            reads.append(offsets)
            numbers = thread.load(offsets, site).reshape(-1)
        else:
            numbers = offsets.reshape(-1)
        kept = np.ones(numbers.shape, np.bool_)
        for value_ in skipped:
            kept &= numbers != value_
        indexed, dense = (source, target) if gathers else (target, source)
        far = _rows(thread, site, indexed, numbers[kept])
        rows = dense.reshape((numbers.size, math.prod(dense.shape) // max(1, numbers.size)))
        near = rows if kept.all() else _rows(thread, site, rows, np.flatnonzero(kept))
        far = far.reshape(near.shape)
        origin, goal = (far, near) if gathers else (near, far)
        thread.start(
            site,
            lambda: _deliver(origin, goal, adds),
            reads=[origin, *reads],
            writes=[goal],
            signals=[(semaphore(done), _bytes(dense))],
        )

    return run


def _deliver(source: View, target: View, adds: bool) -> None:
    values = source.read()
    if not adds:
        target.write(values)
        return
    places = target.byte_offsets().reshape(-1)
    _, first, where = np.unique(places, return_index=True, return_inverse=True)
    cells = target.reshape((target.size,)).at((first,))
    total = cells.read()
    np.add.at(total, where.reshape(-1), values.reshape(-1))
    cells.write(total)


@blocking("tpu.wait_indirect_dma")
def wait_indirect_dma(op, scope):
    """Operands: semaphore, source, target."""
    site = scope.site(op)
    gathers = _gathers(op, site, *list(op.operands)[1:3])

    def run(thread: Thread, awaited: View, source: View, target: View):
        return thread.wait(semaphore(awaited), _bytes(target if gathers else source), site)

    return run


# --- semaphores -----------------------------------------------------------------------------


@effect("tpu.sem_signal")
def sem_signal(op, scope):
    """Operand groups: semaphore, amount, device, core, subcore."""
    site, groups = scope.site(op), operand_groups(op)

    def run(thread: Thread, *operands):
        (signalled,), (amount,), *elsewhere = (operands[group] for group in groups)
        where = [_one(operand) for operand in elsewhere]
        if any(w is not None for w in where):
            signalled = counterpart(thread, signalled, site, *where)
        thread.signal(semaphore(signalled), amount, site)

    return run


@blocking("tpu.sem_wait")
def sem_wait(op, scope):
    site = scope.site(op)
    return lambda thread, awaited, amount: thread.wait(semaphore(awaited), amount, site)


@effect("tpu.sem_read")
def sem_read(op, scope):
    """What it holds at this moment; it orders nothing."""
    return lambda thread, view: semaphore(view).count


@effect("tpu.sem_barrier")
def sem_barrier(op, scope):
    """The semaphore that every core of every device has for a barrier among them."""
    type_ = op.results[0].type
    return lambda thread: allocate(thread, type_, ("barrier semaphore",), "the barrier semaphore")


# --- who and where ----------------------------------------------------------------------------


@effect("tpu.device_id")
def device_id(op, scope):
    return lambda thread: thread.place["device"]


@effect("tpu.core_id")
def core_id(op, scope):
    return lambda thread: (*thread.place["core"], 0)[0]


@effect("tpu.subcore_id")
def subcore_id(op, scope):
    return lambda thread: (*thread.place["core"], 0, 0)[1]


@effect("tpu.iteration_bound")
def iteration_bound(op, scope):
    dimension = int(op.attributes["dim"].value)
    return lambda thread: thread.place["grid"][dimension]


# --- barriers ---------------------------------------------------------------------------------


class _Barrier:
    """Where the subcores of a core meet.

    Attributes:
      arrived: how many are there in this round.
      round: how many rounds were completed.
      before: what those who arrived know; `met` what all of the last round knew.
    """

    def __init__(self):
        self.arrived = 0
        self.round = 0
        self.before: Clock = {}
        self.met: Clock = {}
        self.signallers: dict[Site, None] = {}


@blocking("tpu.barrier")
def barrier(op, scope):
    site = scope.site(op)

    def run(thread: Thread, number: int) -> Steps:
        core = thread.place["core"]
        meeting: _Barrier = shared(thread.device, ("barrier", core[:1], number), _Barrier)
        count = thread.place["subcores"]
        meeting.signallers[site] = None
        meeting.arrived += 1
        join(meeting.before, thread.knows())
        thread.release()
        mine = meeting.round
        if meeting.arrived == count:
            meeting.round += 1
            meeting.arrived, meeting.met, meeting.before = 0, meeting.before, {}
        while meeting.round == mine:
            yield Wait(
                meeting,
                lambda: meeting.round > mine,
                lambda: f"barrier {number}, where {meeting.arrived} of {count} subcores are",
                site,
            )
        thread.learn(meeting.met)

    return run
