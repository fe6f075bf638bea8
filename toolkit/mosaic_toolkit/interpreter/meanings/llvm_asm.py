"""`llvm.inline_asm` by its PTX text."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from ...errors import Unsupported
from ..gpu_lanes import lanes_of, varies
from ..gpu_thread import GpuThread, Pointer, mbarrier
from ..meaning import blocking

# Pattern of the text without predicate -> (operation, its matched groups) -> action.
_TABLE: list[tuple[re.Pattern[str], Callable[..., Any]]] = []


def _text(pattern: str):
    def decorate(prepare):
        _TABLE.append((re.compile(pattern), prepare))
        return prepare

    return decorate


@blocking("llvm.inline_asm")
def inline_asm(op, scope):
    text = " ".join(str(op.attributes["asm_string"].value).split())
    for pattern, prepare in _TABLE:
        match = pattern.fullmatch(text)
        if match:
            return prepare(op, scope, *match.groups())
    raise Unsupported(f"the interpreter has no meaning for the PTX of {scope.site(op)}: {text}")


def _at_once(action: Callable[..., Any]) -> Callable[..., Any]:
    """An action that never waits, as the generator that all of them are."""

    def run(thread, *operands):
        return action(thread, *operands)
        yield

    return run


# --- what orders nothing by itself -------------------------------------------------------------


@_text(r"fence\.mbarrier_init\.release\.cluster;")
@_text(r"wgmma\.fence\.sync\.aligned;")
@_text(r"fence\.proxy\.async::generic\.(?:acquire|release)\.sync_restrict::\S+;")
@_text(r"(?:griddepcontrol\.\w+|nanosleep\.u32 \$0);")
def _nothing(op, scope):
    return _at_once(lambda thread, *operands: None)


@_text(r"setmaxnreg\.(?:inc|dec)\.sync\.aligned\.u32 (\d+);")
def _registers(op, scope, count):
    if int(count) % 8 or not 24 <= int(count) <= 256:
        raise Unsupported(f"{scope.site(op)}: {count} registers, not a multiple of 8 in [24, 256]")
    return _at_once(lambda thread: None)


# --- barriers -----------------------------------------------------------------------------------


@_text(r"(?:bar|barrier)\.sync (\$0|\d+), (\d+);")
def _sync(op, scope, number, count):
    site, threads = scope.site(op), int(count)
    if number != "$0":
        fixed = int(number)
        return lambda thread: thread.cta.barrier(fixed).sync(thread, threads, site)
    return lambda thread, number: thread.cta.barrier(number).sync(thread, threads, site)


@_text(r"(?:bar|barrier)\.arrive (\$0|\d+), (\d+);")
def _arrive(op, scope, number, count):
    site, threads = scope.site(op), int(count)
    if number != "$0":
        fixed = int(number)
        return _at_once(lambda thread: thread.cta.barrier(fixed).arrive(thread, threads, site))
    return _at_once(lambda thread, number: thread.cta.barrier(number).arrive(thread, threads, site))


@_text(r"barrier\.cluster\.arrive(?:\.relaxed)?\.aligned;")
def _cluster_arrive(op, scope):
    """Relaxed too: what it is to order, a fence before it orders."""
    site = scope.site(op)

    def run(thread: GpuThread) -> None:
        width, height, depth = thread.cta.launch.block
        count = width * height * depth * len(thread.cta.cluster)
        barrier = thread.cta.cluster_barrier
        thread.cluster_generation = barrier.arrive(thread, count, site)

    return _at_once(run)


@_text(r"barrier\.cluster\.wait\.aligned;")
def _cluster_wait(op, scope):
    site = scope.site(op)
    return lambda thread: thread.cta.cluster_barrier.wait(thread, thread.cluster_generation, site)


# --- arrivals at mbarriers ------------------------------------------------------------------------


@_text(r"mbarrier\.arrive\.release\.cta\.shared::cta\.b64 _, \[\$0\](?:, (\d+))?;")
def _mbarrier_arrive(op, scope, count):
    """Every lane arrives."""
    site, times = scope.site(op), int(count or 1)

    def run(thread: GpuThread, pointer: Pointer) -> None:
        barrier = mbarrier(thread, pointer, site)
        barrier.arrive_from(thread, times * thread.width, site)

    return _at_once(run)


@_text(r"@\$1 mbarrier\.arrive\.release\.cta\.shared::cta\.b64 _, \[\$0\](?:, (\d+))?;")
def _mbarrier_arrive_if(op, scope, count):
    """The elected lane arrives, or all do where the predicate is that of all."""
    site, times = scope.site(op), int(count or 1)
    single = varies(op.operands[1])

    def run(thread: GpuThread, pointer: Pointer, predicate: bool) -> None:
        if predicate:
            lanes = 1 if single else thread.width
            mbarrier(thread, pointer, site).arrive_from(thread, times * lanes, site)

    return _at_once(run)


@_text(
    r"\{ \.reg \.b32 mapped_addr; @\$0 mapa\.shared::cluster\.u32 mapped_addr, \$1, \$2; "
    r"@\$0 mbarrier\.arrive\.shared::cluster\.b64 _, \[mapped_addr\]; \}"
)
def _cluster_mbarrier_arrive(op, scope):
    """Each lane for which the predicate holds arrives at the barrier of a CTA of its own."""
    site = scope.site(op)
    chosen, ranks = lanes_of(scope, op.operands[0]), lanes_of(scope, op.operands[2])

    def run(thread: GpuThread, predicate: bool, pointer: Pointer, rank: int) -> None:
        for arrives, number in zip(chosen(thread), ranks(thread)):
            if arrives:
                memory = thread.cta.peer(number).smem
                barrier = mbarrier(thread, Pointer(memory, pointer.offset), site)
                barrier.arrive_from(thread, 1, site)

    return _at_once(run)


# --- groups of asynchronous operations ---------------------------------------------------------------


@_text(r"wgmma\.commit_group\.sync\.aligned;")
def _wgmma_commit(op, scope):
    return _at_once(lambda thread: thread.wgmma.commit())


@_text(r"wgmma\.wait_group\.sync\.aligned (\d+);")
def _wgmma_wait(op, scope, pending):
    groups = int(pending)
    return _at_once(lambda thread: thread.wgmma.wait(thread, groups))


@_text(r"cp\.async\.bulk\.commit_group;")
def _bulk_commit(op, scope):
    return _at_once(lambda thread: thread.commit_bulk())


@_text(r"tcgen05\.wait::ld\.sync\.aligned;")
def _tensor_loads(op, scope):
    return _at_once(lambda thread: thread.wait_tensor_loads())


@_text(r"tcgen05\.wait::st\.sync\.aligned;")
def _tensor_stores(op, scope):
    return _at_once(lambda thread: thread.wait_tensor_stores())
