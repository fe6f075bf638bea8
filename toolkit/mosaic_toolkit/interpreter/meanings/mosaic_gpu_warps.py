"""`mosaic_gpu.warp_map`: the warps of a warpgroup as threads of control of their own."""

from __future__ import annotations

from typing import Any

from ..gpu_thread import WARP, WARPGROUP, GpuThread
from ..machine import Steps, Wait
from ..meaning import blocking
from ..memory import Buffer, View


@blocking("mosaic_gpu.warp_map")
def warp_map(op, scope):
    """Runs the body in every warp; they meet before and after it where barriers are automatic."""
    site = scope.site(op)
    body, blocks = scope.region(op.regions[0]), scope.blocks(op.regions[0])

    def run(thread: GpuThread, *operands):
        automatic = thread.cta.launch.automatic
        if automatic:
            thread.converge()
        warps = warps_of(thread)
        clock, proxy = thread.handed()
        thread.release()
        left = list(warps)
        for number, warp in enumerate(warps):
            warp.learn(clock, proxy)
            own = [_private(thread, number, operand) for operand in operands]
            thread.machine.add(warp, _steps(body, blocks, warp, own, left))
        if left:
            yield Wait(warps[0], lambda: not left, lambda: "its warps to end", site)
        for warp in warps if automatic else warps[:1]:
            thread.learn(*warp.handed())
            warp.release()

    return run


def _steps(body, blocks: bool, warp: GpuThread, operands: list, left: list) -> Steps:
    steps = body(warp, *operands)
    if blocks:
        yield from steps
    left.remove(warp)


def warps_of(thread: GpuThread) -> list[GpuThread]:
    """The warps of a warpgroup; what the first lane started belongs to the first one too."""
    if not thread.warps:
        first, *rest = thread.place["thread_id"]
        for number in range(WARPGROUP // WARP):
            place = {**thread.place, "thread_id": (first + WARP * number, *rest)}
            name = f"warp {number} of {thread.name}"
            thread.warps.append(GpuThread(thread.machine, name, thread.cta, place, WARP))
        leader = thread.warps[0]
        leader.bulk, leader.copies = thread.bulk, thread.copies
        leader.tensor, leader.wgmma = thread.tensor, thread.wgmma
    return thread.warps


def _private(thread: GpuThread, warp: int, operand: Any) -> Any:
    """A warp's own copy of memory that each of its lanes has for itself.

    It follows what the whole warpgroup writes between two maps.
    """
    if not (isinstance(operand, View) and operand.buffer.private and warp):
        return operand
    original = operand.buffer
    key = (warp, original)
    held = thread.private.get(key)
    now = original.data.tobytes()
    if held is None or held[1] != now:
        copy = Buffer(original.name, original.space, len(original.data))
        copy.private = True
        copy.data[...] = original.data
        held = thread.private[key] = (copy, now)
    return operand.on(held[0])
