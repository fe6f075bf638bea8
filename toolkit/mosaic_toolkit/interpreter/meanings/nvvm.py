"""The `nvvm` dialect: mbarriers, fences and waits."""

from __future__ import annotations

from ...errors import Unsupported
from ..gpu_thread import GpuThread, Pointer, mbarrier
from ..meaning import blocking, effect, load, value
from ..values import word
from .mosaic_gpu import initialise


@load("nvvm.elect.sync")
def elect(op, scope):
    """A thread of control is the first lane of its warps, which is the elected one."""
    return lambda thread: True


@value("nvvm.shfl.sync")
def shuffle(op, scope):
    """What the first lane has, of values that it shows to its warp."""
    if word(op.attributes["kind"]) != "idx":
        raise Unsupported(f"{scope.site(op)} of kind {word(op.attributes['kind'])}")
    return lambda mask, value, lane, clamp: value


# --- mbarriers ----------------------------------------------------------------------------


@effect("nvvm.mbarrier.init")
def mbarrier_init(op, scope):
    site = scope.site(op)

    def run(thread: GpuThread, pointer: Pointer, count: int, predicate: bool = True):
        if predicate:
            initialise(thread, pointer, count, site)

    return run


@blocking("nvvm.mbarrier.try_wait.parity")
def try_wait(op, scope):
    """Tries until the phase of that parity is complete."""
    site = scope.site(op)

    def run(thread: GpuThread, pointer: Pointer, parity: int, ticks: int):
        return mbarrier(thread, pointer, site).wait(thread, parity & 1, site)

    return run


# --- fences and waits ---------------------------------------------------------------------


@effect("nvvm.fence.proxy")
def fence_proxy(op, scope):
    kind = word(op.attributes["kind"])
    if not kind.startswith("async"):
        raise Unsupported(f"{scope.site(op)} of kind {kind}")
    return lambda thread: thread.fence()


@effect("nvvm.tcgen05.fence")
def tensor_fence(op, scope):
    """Orders operations in tensor memory as the barriers around it do; see `tensor_wait`."""
    return lambda thread: None


@effect("nvvm.tcgen05.wait")
def tensor_wait(op, scope):
    """Waits for the loads from, or stores to, tensor memory that the lanes started."""
    if word(op.attributes["kind"]) == "load":
        return lambda thread: thread.wait_tensor_loads()
    return lambda thread: thread.wait_tensor_stores()


@effect("nvvm.cp.async.bulk.wait_group")
def bulk_wait(op, scope):
    pending = int(op.attributes["group"].value)
    read = "read" in op.attributes
    return lambda thread: thread.wait_bulk(pending, read)


@effect("nvvm.cp.async.bulk.commit.group")
def bulk_commit(op, scope):
    return lambda thread: thread.commit_bulk()


@effect("nvvm.cp.async.wait.group")
def copies_wait(op, scope):
    pending = int(op.attributes["n"].value)
    return lambda thread: thread.copies.wait(thread.machine, pending, thread.learn_apart)


@effect("nvvm.cp.async.commit.group")
def copies_commit(op, scope):
    return lambda thread: thread.copies.commit()


@effect("nvvm.wgmma.fence.aligned")
def wgmma_fence(op, scope):
    return lambda thread: None


@effect("nvvm.wgmma.commit.group.sync.aligned")
def wgmma_commit(op, scope):
    return lambda thread: thread.wgmma.commit()


@effect("nvvm.wgmma.wait.group.sync.aligned")
def wgmma_wait(op, scope):
    pending = int(op.attributes["group"].value)
    return lambda thread: thread.wgmma.wait(thread, pending)


@effect("nvvm.bar.warp.sync")
def warp_sync(op, scope):
    """The lanes of each warp meet, which are one thread of control."""

    return lambda thread, mask: None


@effect("nvvm.setmaxregister")
def registers(op, scope):
    return lambda thread: None
