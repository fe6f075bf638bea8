"""Runs one kernel on arrays, on the CPU."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np

from ..arrays import checked
from ..backends import get_backend
from ..kernel import Kernel
from .blas import one_thread
from .findings import Fault, Finding
from .machine import Machine, Timing
from .memory import View


class Executable(Protocol):
    """A kernel that was compiled for the interpreter."""

    kernel: Kernel

    def machine(self, **options: Any) -> Machine: ...

    def run(self, machine: Machine, inputs: Sequence[Sequence[np.ndarray]]) -> list[list[View]]:
        """Runs it on every device's operands; returns every device's results."""
        ...


@dataclasses.dataclass(frozen=True)
class Setting:
    """What a run depends on besides its inputs.

    Attributes:
      timing: when asynchronous operations land.
      seed: of the scheduler.
      poison: what uninitialised memory holds: 0 is NaN, others differ from each other.
    """

    timing: Timing = Timing.LATE
    seed: int = 0
    poison: int = 0


@dataclasses.dataclass(frozen=True)
class Execution:
    """One run of a kernel.

    Attributes:
      results: per device, one array per result of the custom call, with zeros where
        nothing was written; empty where it did not come to its end.
      unwritten: how many elements of the results were never written.
      findings: races, deadlocks, accesses out of bounds, unbalanced semaphores.
      suspects: reads of memory that was never written.
      stand_ins: values of ours that stand in for what only the chip has, such as
        random bits; one line each.
    """

    results: tuple[tuple[np.ndarray, ...], ...]
    unwritten: int
    findings: tuple[Finding, ...]
    suspects: tuple[Finding, ...]
    stand_ins: tuple[str, ...] = ()

    @property
    def fault(self) -> Finding | None:
        """What ended it early."""
        return None if self.results else self.findings[-1]


def execute(
    kernel: Kernel, inputs: Sequence[np.ndarray], setting: Setting | None = None
) -> Execution:
    """Runs a kernel on one device.

    Args:
      inputs: the custom call's operands, of the types in `kernel.operands`.

    Raises:
      Unsupported: an operation has no meaning; found before anything runs.
      Mismatch: the inputs are not of the operands' types.
    """
    return run_on(compile_program(kernel), [inputs], setting)


def run_on(
    program: Executable, inputs: Sequence[Sequence[np.ndarray]], setting: Setting | None = None
) -> Execution:
    """Runs a compiled kernel on as many devices as there are lists of operands."""
    setting = setting or Setting()
    arrays = [checked(program.kernel, operands) for operands in inputs]
    machine = program.machine(
        seed=setting.seed, timing=setting.timing, poison=setting.poison, devices=len(arrays)
    )
    results: tuple[tuple[np.ndarray, ...], ...] = ()
    findings: tuple[Finding, ...] = ()
    unwritten = 0
    with np.errstate(all="ignore"), one_thread():
        try:
            views = program.run(machine, arrays)
        except Fault as fault:
            findings = (fault.finding,)
        else:
            results = tuple(tuple(map(_written, device)) for device in views)
            unwritten = sum(_unwritten(view) for device in views for view in device)
    suspects = tuple(machine.suspects.values())
    every = (*machine.findings, *findings)
    return Execution(results, unwritten, every, suspects, tuple(machine.stand_ins))


def _written(view: View) -> np.ndarray:
    """What a result holds: of no other value can a user make anything."""
    values = view.read()
    mask = view.unwritten_elements()
    if mask is not None:
        values[mask] = np.zeros((), values.dtype)
    return values


def _unwritten(view: View) -> int:
    mask = view.unwritten_elements()
    return 0 if mask is None else int(np.count_nonzero(mask))


def compile_program(kernel: Kernel) -> Executable:
    """The kernel as a program that runs any number of times.

    Raises:
      Unsupported: something in it has no meaning here.
    """
    return get_backend(kernel.backend).interpret(kernel)
