"""`mosaic_gpu` copies between global and shared memory, and requests for more work."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ...errors import Unsupported
from ..barrier import MBarrier
from ..bounds import out_of_bounds
from ..element_types import bits_of
from ..findings import Site
from ..gpu_thread import WARPGROUP, Cta, GpuThread, Pointer, completion, mbarrier, observed
from ..machine import Stage, Thread, Transfer
from ..meaning import effect
from ..memory import View, poison_value
from ..races import Clock
from ..values import flag, operand_groups, word

_UNDEFINED, _PROMISED, _ZEROS = range(3)
_REDUCTIONS = (np.add, np.minimum, np.maximum, None, None, np.bitwise_and, np.bitwise_or)


class _Box:
    """A box of an array in global memory, which may reach over its edge.

    Attributes:
      inside: the part of the array that it covers.
      whole: whether it lies in the array.
    """

    def __init__(self, view: View, starts: Sequence[Any], shape: Sequence[int]):
        if any(isinstance(start, np.ndarray) for start in starts):
            self._gather(view, starts, shape)
            return
        offsets, sizes, skipped = [], [], []
        for start, size, extent in zip(starts, shape, view.shape):
            low, high = max(start, 0), min(start + size, extent)
            offsets.append(min(low, extent))
            sizes.append(max(0, high - low))
            skipped.append(low - start if high > low else 0)
        self.inside = view.slice(offsets, sizes)
        self.whole = tuple(sizes) == tuple(shape)
        self.skipped, self.sizes = skipped, sizes

    def _gather(self, view: View, starts: Sequence[Any], shape: Sequence[int]) -> None:
        lines = [
            s.astype(np.int64) if isinstance(s, np.ndarray) else np.arange(s, s + n)
            for s, n in zip(starts, shape)
        ]
        outside = [np.any((line < 0) | (line >= n)) for line, n in zip(lines, view.shape)]
        if any(outside):
            raise Unsupported("a gather over the edge of its array")
        self.inside = view.scattered(view.byte_offsets()[np.ix_(*lines)], view.dtype)
        self.whole = True
        self.skipped, self.sizes = [0] * len(shape), list(shape)

    def part(self, view: View) -> View:
        """The part of a view of the box's shape that lies in the array."""
        return view if self.whole else view.slice(self.skipped, self.sizes)

    def fill(self, view: View, values: np.ndarray, outside: int) -> None:
        """Writes what was read of the array into a view of the box's shape."""
        if not self.whole:
            spoiled = poison_value(view.dtype, view.buffer.poison or 0)
            rest = view.dtype.type(0) if outside == _ZEROS else spoiled
            view.write(np.full(view.shape, rest, view.dtype))
        self.part(view).write(values)


def _lengths(op) -> list[int]:
    """Extents of the box, 1 where its dimension is dropped."""
    return [abs(int(n)) for n in op.attributes["slice_lengths"]]


def _dimensions(op) -> list[int]:
    return [int(axis.value) for axis in op.attributes["collective"]]


# --- loads ----------------------------------------------------------------------------------


@effect("mosaic_gpu.async_load")
def async_load(op, scope):
    """Operand groups: source, destination, barrier, indices, predicate, device.

    A collective load is split among the CTAs that do it: each brings its part to all of
    them, or, where the leader tracks it, to itself.
    """
    site, groups = scope.site(op), operand_groups(op)
    lengths, dimensions = _lengths(op), _dimensions(op)
    outside = int(op.attributes["oob_fill_mode"].value)
    bits = bits_of(str(op.operands[0].type.element_type))
    axis = _partitioned(op)
    if len(groups) > 5 and len(op.operands[groups[5]]):
        raise Unsupported(f"{site} from another device")

    def run(thread: GpuThread, *operands):
        (source,), (target,), barrier, starts, predicate, *_ = (operands[g] for g in groups)
        if predicate and not predicate[0]:
            return
        if thread.cta.launch.automatic and thread.width == WARPGROUP:
            thread.converge()
        starts, shape = list(starts), list(lengths)
        peers = thread.cta.peers(dimensions)
        if axis is not None:
            target, receivers = _own_part(thread.cta, peers, axis, starts, shape, target)
        else:
            target, receivers = _shared_part(thread.cta, peers, starts, shape, target)
        box = _Box(source, starts, shape)
        if not box.whole and outside == _PROMISED:
            raise out_of_bounds(
                thread, site, f"{_show(starts, shape)} of {source.buffer.name} {list(source.shape)}"
            )
        if not barrier:
            fill = lambda view, values: box.fill(view, values, outside)  # noqa: E731
            thread.copies.start(thread, site, box.inside, target, fill)
            thread.copies.commit()
            return
        size = target.size * bits // 8
        _deliver(thread, site, box, outside, target, receivers, barrier[0], size)

    return run


def _partitioned(op) -> int | None:
    """The dimension along which each CTA of a cluster loads its own part; None if they share."""
    if "leader_tracked" not in op.attributes:
        return None
    leader = op.attributes["leader_tracked"]
    if "copy_partitioned" not in str(leader):
        raise Unsupported(f"{op.name} with {leader}")
    # It counts the dimensions that the destination has.
    kept = [n for n, size in enumerate(op.attributes["slice_lengths"]) if int(size) >= 0]
    return kept[int(word(leader).rpartition("=")[2])]


def _show(starts, shape) -> str:
    return f"[{', '.join(f'{s}:{s + n}' for s, n in zip(starts, shape))}]"


def _own_part(cta: Cta, peers: list[Cta], axis: int, starts, shape, target: View):
    """A part along `axis` for this CTA's memory, told to the leader's barrier."""
    shape[axis] //= len(peers)
    starts[axis] += peers.index(cta) * shape[axis]
    return target.reshape(tuple(shape)), [(cta, peers[0])]


def _shared_part(cta: Cta, peers: list[Cta], starts, shape, target: View):
    """A part for the memory of all, told to each one's barrier."""
    target = target.reshape(tuple(shape))
    if len(peers) > 1:
        axis = next(a for a, n in enumerate(shape) if n % len(peers) == 0)
        shape[axis] //= len(peers)
        offsets = [0] * len(shape)
        offsets[axis] = peers.index(cta) * shape[axis]
        starts[axis] += offsets[axis]
        target = target.slice(offsets, shape)
    return target, [(peer, peer) for peer in peers]


def _deliver(
    thread: GpuThread,
    site: Site,
    box: _Box,
    outside: int,
    target: View,
    receivers: list[tuple[Cta, Cta]],
    pointer: Pointer,
    size: int,
) -> None:
    """Starts a copy to each receiver's memory, of which its barrier learns."""
    targets = [target.on(memory.smem) for memory, _ in receivers]
    barriers = [mbarrier(thread, Pointer(told.smem, pointer.offset), site) for _, told in receivers]

    def land(clock: Clock, proxy: Clock) -> None:
        values = observed(thread, box.inside, site)
        for view, barrier in zip(targets, barriers):
            box.fill(view, values, outside)
            barrier.transferred(size, clock, proxy, site)

    _start(thread, site, land, [box.inside], targets, barriers)


def _start(
    thread: GpuThread,
    site: Site,
    action: Callable[[Clock, Clock], None],
    reads: Sequence[View],
    writes: Sequence[View],
    barriers: Sequence[MBarrier],
) -> None:
    """Starts an operation that tells barriers of its end, for which `action` gets the clocks."""
    actor = thread.engine(site)
    known = completion(actor)
    places = thread.touch(actor, reads, writes)
    stage = Stage(lambda: action(*known), [(barrier, 0) for barrier in barriers])
    thread.machine.fly(Transfer(site, [stage], places))


# --- stores -----------------------------------------------------------------------------------


@effect("mosaic_gpu.async_store")
def async_store(op, scope):
    """Operand groups: source, destination, indices, predicate, device."""
    site, groups = scope.site(op), operand_groups(op)
    lengths = _lengths(op)
    commits = flag(op, "commit_group") or "commit_group" not in op.attributes
    combine = None
    if "reduction_op" in op.attributes:
        number = int(op.attributes["reduction_op"].value)
        combine = _REDUCTIONS[number] if number < len(_REDUCTIONS) else None
        if combine is None:
            raise Unsupported(f"{site} with reduction {op.attributes['reduction_op']}")
    if flag(op, "is_global_broadcast") or len(op.operands[groups[4]]):
        raise Unsupported(f"{site} to another device")

    def put(target: View, values: np.ndarray) -> None:
        if combine is not None:
            values = combine(target.read(), values).astype(target.dtype)
        target.write(values)

    def run(thread: GpuThread, *operands):
        (source,), (target,), starts, predicate, *_ = (operands[group] for group in groups)
        if predicate and not predicate[0]:
            return
        box = _Box(target, starts, lengths)
        source = box.part(source.reshape(tuple(lengths)))
        thread.bulk.start(thread, site, source, box.inside, put)
        if commits:
            thread.bulk.commit()

    return run


# --- more work ----------------------------------------------------------------------------------

_REQUEST_BYTES = 16


@effect("mosaic_gpu.try_cluster_cancel")
def try_cluster_cancel(op, scope):
    """Asks for a cluster that has not started; the answer comes to every CTA of this one."""
    site = scope.site(op)

    def run(thread: GpuThread, answer: View, pointer: Pointer, predicate: bool = True):
        if not predicate:
            return
        cta = thread.cta
        answers = [answer.on(peer.smem) for peer in cta.cluster]
        barriers = [
            mbarrier(thread, Pointer(peer.smem, pointer.offset), site) for peer in cta.cluster
        ]

        def land(clock: Clock, proxy: Clock) -> None:
            first = cta.launch.cancel()
            words = np.array([*(first or (0, 0, 0)), first is not None], np.int32)
            for view, barrier in zip(answers, barriers):
                view.write(words.view(view.dtype))
                barrier.transferred(_REQUEST_BYTES, clock, proxy, site)

        _start(thread, site, land, [], answers, barriers)

    return run


@effect("mosaic_gpu.query_cluster_cancel")
def query_cluster_cancel(op, scope):
    """(x, y, z) of the first CTA of the cluster, and whether there was one."""
    site = scope.site(op)

    def run(thread: Thread, answer: View):
        x, y, z, found = thread.load(answer, site).view(np.int32).tolist()
        return x, y, z, bool(found)

    return run
