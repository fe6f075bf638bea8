"""DMAs and semaphores of TPUs: when copies land, what races, what never ends."""

from __future__ import annotations

import numpy as np
import pytest

from mosaic_toolkit.interpreter.execute import Setting, execute
from mosaic_toolkit.interpreter.findings import DEADLOCK, MISUSE, RACE, UNBALANCED
from mosaic_toolkit.interpreter.machine import Timing
from mosaic_toolkit.kernel import ArrayType
from tests.interpreter.tpu_kernels import body, kinds, on_devices

HBM, VMEM = (f"memref<8x128xf32, #tpu.memory_space<{space}>>" for space in ("hbm", "vmem"))
SEMAPHORES = "#tpu.memory_space<semaphore_mem>"
DMA = f"memref<!tpu.dma_semaphore, {SEMAPHORES}>"
COUNT = f"memref<!tpu.semaphore, {SEMAPHORES}>"
TYPE = ArrayType("float32", (8, 128))
X = np.arange(1024, dtype=np.float32).reshape(8, 128)

START_IN = f"tpu.enqueue_dma source(%in : {HBM}) target(%a : {VMEM}) target_semaphore(%s : {DMA})"
START_OUT = (
    START_IN.replace("%in", "%a", 1)
    .replace(f"%a : {HBM}", f"%a : {VMEM}")
    .replace(f"target(%a : {VMEM})", f"target(%out : {HBM})")
)
WAIT_IN = f"tpu.wait_dma2 semaphore(%s : {DMA}) src(%in : {HBM}) dst(%a : {VMEM})"
WAIT_OUT = f"tpu.wait_dma2 semaphore(%s : {DMA}) src(%a : {VMEM}) dst(%out : {HBM})"
DOUBLE = f"""%v = vector.load %a[%c0, %c0] : {VMEM}, vector<8x128xf32>
%w = arith.addf %v, %v : vector<8x128xf32>
vector.store %w, %a[%c0, %c0] : {VMEM}, vector<8x128xf32>"""
TIMINGS = [(timing, seed) for timing in Timing for seed in (0, 1)]


def doubling(*steps: str):
    """A kernel that has `steps` between what it allocates and its end."""
    lines = [
        "%c0 = arith.constant 0 : index",
        f"%a = memref.alloca() : {VMEM}",
        f"%s = tpu.sem_alloc : {DMA}",
        *steps,
    ]
    return body("\n".join(lines), f"%in: {HBM}, %out: {HBM}", [TYPE], [TYPE])


def found(kernel) -> set[str]:
    """Kinds of what is found under some timing."""
    runs = [execute(kernel, [X], Setting(timing=t, seed=s)) for t, s in TIMINGS]
    return {kind for run in runs for kind in kinds(run)}


@pytest.mark.parametrize(("timing", "seed"), TIMINGS)
def test_a_kernel_that_waits_is_right_whenever_copies_land(timing, seed):
    kernel = doubling(START_IN, WAIT_IN, DOUBLE, START_OUT, WAIT_OUT)
    execution = execute(kernel, [X], Setting(timing=timing, seed=seed))
    assert not execution.findings
    np.testing.assert_array_equal(execution.results[0][0], 2 * X)


def test_reading_before_the_wait_races_and_gives_another_value():
    kernel = doubling(START_IN, DOUBLE, WAIT_IN, START_OUT, WAIT_OUT)
    assert RACE in found(kernel)
    late = execute(kernel, [X], Setting(timing=Timing.LATE))
    assert not np.array_equal(late.results[0][0], 2 * X)


def test_overwriting_what_a_copy_still_reads_races():
    kernel = doubling(START_IN, WAIT_IN, START_OUT, DOUBLE, WAIT_OUT)
    assert found(kernel) == {RACE}


def test_waiting_for_what_nobody_signals_is_a_deadlock_that_names_the_wait():
    execution = execute(doubling(WAIT_IN), [X])
    assert kinds(execution) == [DEADLOCK]
    assert "tpu.wait_dma2" in str(execution.fault)


def test_a_copy_that_nobody_waits_for_leaves_its_semaphore_unbalanced():
    for timing, seed in TIMINGS:
        execution = execute(doubling(START_IN), [X], Setting(timing=timing, seed=seed))
        assert kinds(execution) == [UNBALANCED]


def test_waiting_for_more_than_was_copied_is_a_deadlock():
    wait_twice = [START_IN, WAIT_IN, DOUBLE, START_OUT, WAIT_OUT, WAIT_OUT]
    assert found(doubling(*wait_twice)) == {DEADLOCK}


# --- several devices ---------------------------------------------------------------------------


def ring(*steps: str):
    """Sends the input to the right neighbour's output, over the devices of a ring of 2."""
    lines = [
        "%one = arith.constant 1 : i32",
        "%two = arith.constant 2 : i32",
        "%me = tpu.device_id : i32",
        "%next = arith.addi %me, %one : i32",
        "%right = arith.remui %next, %two : i32",
        f"%barrier = tpu.sem_barrier : {COUNT}",
        f"%sent = tpu.sem_alloc : {DMA}",
        f"%landed = tpu.sem_alloc : {DMA}",
        *steps,
    ]
    return body("\n".join(lines), f"%in: {HBM}, %out: {HBM}", [TYPE], [TYPE])


MEET = f"""tpu.sem_signal %barrier, %one device_id %right : {COUNT}
tpu.sem_wait %barrier, %one : {COUNT}"""
SEND = (
    f"tpu.enqueue_dma source(%in : {HBM}) target(%out : {HBM}) "
    f"source_semaphore(%sent : {DMA}) target_semaphore(%landed : {DMA}) device_id(%right)"
)
WAIT_SENT = f"tpu.wait_dma2 semaphore(%sent : {DMA}) src(%in : {HBM}) dst(%in : {HBM})"
WAIT_LANDED = f"tpu.wait_dma2 semaphore(%landed : {DMA}) src(%in : {HBM}) dst(%out : {HBM})"


@pytest.mark.parametrize(("timing", "seed"), TIMINGS)
def test_a_remote_copy_arrives_on_the_other_device(timing, seed):
    kernel = ring(MEET, SEND, WAIT_SENT, WAIT_LANDED)
    execution = on_devices(kernel, [[X], [X + 1]], Setting(timing=timing, seed=seed))
    assert not execution.findings
    np.testing.assert_array_equal(execution.results[0][0], X + 1)
    np.testing.assert_array_equal(execution.results[1][0], X)


def test_the_sender_does_not_know_that_its_copy_has_landed():
    """Its write of the neighbour's output is ordered before nothing of the neighbour's."""
    write = f"""%z = arith.constant 0 : index
    %a = memref.alloca() : {VMEM}
    %w = tpu.sem_alloc : {DMA}
    tpu.enqueue_dma source(%a : {VMEM}) target(%out : {HBM}) target_semaphore(%w : {DMA})
    tpu.wait_dma2 semaphore(%w : {DMA}) src(%a : {VMEM}) dst(%out : {HBM})"""
    kernel = ring(MEET, SEND, WAIT_SENT, write, WAIT_LANDED)
    kinds_found = set()
    for timing, seed in TIMINGS:
        execution = on_devices(kernel, [[X], [X]], Setting(timing=timing, seed=seed))
        kinds_found |= set(kinds(execution))
    assert kinds_found == {RACE}


def test_a_device_that_is_not_there():
    far = "%far = arith.constant 7 : i32"
    kernel = ring(far, SEND.replace("%right", "%far"))
    execution = on_devices(kernel, [[X], [X]])
    assert kinds(execution)[-1] == MISUSE
    assert "device 7 of 2" in str(execution.fault)


def test_devices_that_wait_for_each_other_for_ever():
    kernel = ring(f"tpu.sem_wait %barrier, %one : {COUNT}")
    execution = on_devices(kernel, [[X], [X]])
    assert kinds(execution)[-1] == DEADLOCK
    assert "device 0" in str(execution.fault)
    assert "device 1" in str(execution.fault)
