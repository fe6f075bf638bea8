"""Runs one kernel on arrays, on the CPU."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np

from ..errors import Unsupported
from ..kernel import Kernel
from .arguments import checked
from .blas import one_thread
from .findings import Fault, Finding
from .machine import Timing
from .tpu import TpuProgram


@dataclasses.dataclass(frozen=True)
class Execution:
    """One run of a kernel.

    Attributes:
      results: one array per result of the custom call; empty where it did not end.
      findings: races, deadlocks, accesses out of bounds, unbalanced semaphores.
      suspects: reads of memory that was never written.
    """

    results: tuple[np.ndarray, ...]
    findings: tuple[Finding, ...]
    suspects: tuple[Finding, ...]


def execute(
    kernel: Kernel, inputs: Sequence[np.ndarray], *, seed: int = 0, timing: Timing = Timing.LATE
) -> Execution:
    """Runs a kernel.

    Args:
      inputs: the custom call's operands, of the types in `kernel.operands`.
      seed: of the scheduler and of what uninitialised memory holds (0: NaN).
      timing: when asynchronous operations land.

    Raises:
      Unsupported: an operation has no meaning; found before anything runs.
      Mismatch: the inputs are not of the operands' types.
    """
    arrays = checked(kernel, inputs)
    program = compile_program(kernel)
    machine = program.machine(seed=seed, timing=timing)
    with np.errstate(all="ignore"), one_thread():
        try:
            (results,) = program.run(machine, [arrays])
        except Fault as fault:
            findings = (*machine.findings, fault.finding)
            return Execution((), findings, tuple(machine.suspects.values()))
        values = tuple(view.read() for view in results)
    return Execution(values, machine.findings, tuple(machine.suspects.values()))


def compile_program(kernel: Kernel) -> TpuProgram:
    """The kernel as a program that runs any number of times."""
    if kernel.backend != "mosaic_tpu":
        raise Unsupported(f"the interpreter does not run {kernel.backend} kernels")
    return TpuProgram(kernel)
