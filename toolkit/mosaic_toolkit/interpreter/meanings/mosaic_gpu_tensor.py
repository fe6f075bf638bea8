"""`mosaic_gpu` matrix products, and moves between registers and tensor memory."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from ...errors import Unsupported
from ..element_types import is_float
from ..gpu_thread import GpuThread, Pointer, completion, mbarrier, observed
from ..machine import Stage, Transfer
from ..meaning import effect, value
from ..memory import View, poison_value
from ..values import dtype_of_value, flag, operand_groups, vector_type
from .mosaic_gpu import tensor_loads_of

_TF32_MASK = np.uint32(0xFFFFE000)


def product(dtype: np.dtype, result: np.dtype) -> Callable[..., np.ndarray]:
    """``a @ b`` of matrices of `dtype` as tensor cores do it, in float32 or int32.

    float32 operands lose the bits that tf32 lacks.
    """
    if not is_float(dtype):
        return lambda a, b: (a.astype(np.float64) @ b.astype(np.float64)).astype(result)

    def wide(a: np.ndarray) -> np.ndarray:
        return a.astype(np.float32)

    if dtype == np.float32:

        def wide(a: np.ndarray) -> np.ndarray:
            return (np.ascontiguousarray(a).view(np.uint32) & _TF32_MASK).view(np.float32)

    return lambda a, b: wide(a) @ wide(b)


def _added(accumulator: np.ndarray, term: np.ndarray) -> np.ndarray:
    if accumulator.dtype == np.float32 or not is_float(accumulator.dtype):
        return accumulator + term
    return (accumulator.astype(np.float32) + term).astype(accumulator.dtype)


# --- products in registers ---------------------------------------------------------------------


@effect("mosaic_gpu.wgmma")
def wgmma(op, scope):
    """The result holds nothing until the group of the product was waited for."""
    site = scope.site(op)
    shape, dtype = vector_type(op.results[0].type)
    multiply = product(dtype_of_value(op.operands[1]), dtype)
    nothing = poison_value(dtype, 0)

    def run(thread: GpuThread, accumulator, a, b: View):
        result = np.full(shape, nothing, dtype)
        reads = [a, b] if isinstance(a, View) else [b]

        def land() -> None:
            left = observed(thread, a, site) if isinstance(a, View) else a
            result[...] = _added(accumulator, multiply(left, observed(thread, b, site)))

        thread.wgmma.start(thread, thread.wgmma.next(thread, site), land, reads)
        return result

    return run


@value("mosaic_gpu.mma")
def mma(op, scope):
    _, dtype = vector_type(op.results[0].type)
    multiply = product(dtype_of_value(op.operands[1]), dtype)
    return lambda accumulator, a, b: _added(accumulator, multiply(a, b))


# --- tensor memory -------------------------------------------------------------------------------


@effect("mosaic_gpu.tcgen05_mma")
def tcgen05_mma(op, scope):
    """Operand groups: accumulator, a, b, whether to accumulate, scales, metadata.

    A collective product is that of the rows of two CTAs and the columns of both.
    """
    site, groups = scope.site(op), operand_groups(op)
    if any(len(op.operands[group]) for group in groups[4:]):
        raise Unsupported(f"{site} with scales or sparsity")
    collective = flag(op, "collective")
    dtype = dtype_of_value(op.operands[0])
    multiply = product(dtype_of_value(op.operands[1]), dtype)

    def run(thread: GpuThread, accumulator: View, a: View, b: View, accumulate: bool):
        ctas = thread.cta.peers([0]) if collective else [thread.cta]
        targets, lefts, rights = (
            [thread.cta.counterpart(cta, view) for cta in ctas] for view in (accumulator, a, b)
        )

        def land() -> None:
            right = np.concatenate([observed(thread, view, site) for view in rights], 1)
            for target, left in zip(targets, lefts):
                term = multiply(observed(thread, left, site), right)
                if accumulate:
                    term = _added(observed(thread, target, site), term)
                target.write(term.astype(dtype))

        thread.tensor.start(
            thread, thread.tensor.next(thread, site), land, [*lefts, *rights], targets
        )

    return run


@effect("mosaic_gpu.tcgen05_commit_arrive")
def commit_arrive(op, scope):
    """Arrives when all that the thread started in tensor memory so far has ended."""
    site = scope.site(op)
    collective = flag(op, "collective")

    def run(thread: GpuThread, pointer: Pointer, predicate: bool = True):
        if not predicate:
            return
        ctas = thread.cta.peers([0]) if collective else [thread.cta]
        barriers = [mbarrier(thread, Pointer(cta.smem, pointer.offset), site) for cta in ctas]

        def land() -> None:
            for barrier in barriers:
                barrier.arrived(1, *known, site)

        actor = thread.tensor.next(thread, site)
        known = completion(actor)
        thread.tensor.start(thread, actor, land, [], [], [(barrier, 0) for barrier in barriers])

    return run


@effect("mosaic_gpu.async_load_tmem")
def async_load_tmem(op, scope):
    """The values are there when they are used; that the memory was read, then or after a wait."""
    site = scope.site(op)
    if "reduce" in op.attributes:
        raise Unsupported(f"{site} with a reduction")

    def run(thread: GpuThread, view: View) -> np.ndarray:
        actor = thread.tensor_actor(site)
        thread.touch(actor, [view], [])
        thread.tensor_loads.setdefault(op, {})[actor.agent] = actor.time
        return observed(thread, view, site)

    return run


@effect("mosaic_gpu.async_store_tmem")
def async_store_tmem(op, scope):
    site = scope.site(op)
    loads = tensor_loads_of(op.operands[0])

    def run(thread: GpuThread, values: np.ndarray, view: View):
        thread.wait_tensor_loads(loads)
        actor = thread.tensor_actor(site)
        places = thread.touch(actor, [], [view])
        transfer = Transfer(site, [Stage(lambda: view.write(values), ())], places)
        thread.machine.fly(transfer)
        thread.tensor_stores.append((transfer, {actor.agent: actor.time}))

    return run


@effect("mosaic_gpu.async_store_smem_to_tmem")
def async_store_smem_to_tmem(op, scope):
    site = scope.site(op)
    if flag(op, "collective"):
        raise Unsupported(f"{site} by two CTAs")

    def run(thread: GpuThread, source: View, target: View):
        land = lambda: target.write(observed(thread, source, site))  # noqa: E731
        thread.tensor.start(thread, thread.tensor.next(thread, site), land, [source], [target])

    return run
