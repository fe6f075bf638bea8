"""Does a rewritten kernel compute what the kernel before it did, without races?

Both run on the same inputs in the interpreter, over several schedules of copies and
threads.  Agreement is evidence, not proof.
"""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Sequence

import numpy as np

from .arrays import numpy_dtype
from .errors import Mismatch
from .interpreter.agreement import Agreement, compare_results
from .interpreter.execute import Executable, Execution, Setting, compile_program, run_on
from .interpreter.findings import OUT_OF_BOUNDS, Finding
from .interpreter.machine import Timing
from .interpreter.random_inputs import RANGES, Distribution
from .kernel import Kernel

# The operands of each device.
type Inputs = Sequence[Sequence[np.ndarray]]


@dataclasses.dataclass(frozen=True)
class Verification:
    """What was tried, and what came of it.

    Attributes:
      before, after: the kernels' names.
      inputs: how the operands were made.
      settings: the schedules that ran.
      runs: how many pairs of runs there were.
      agreement: of the values, the worst over all runs; None where none could be compared.
      unwritten: elements of the results that each kernel never writes.
      unstable: how results of one kernel differ between schedules, by kernel.
      before_findings, after_findings: races, deadlocks and misuse, each once.
      suspects: reads of memory never written, of the kernels in `unstable`.
    """

    before: str
    after: str
    inputs: str
    settings: tuple[Setting, ...]
    runs: int
    agreement: Agreement | None
    unwritten: tuple[int, int]
    unstable: tuple[str, ...]
    before_findings: tuple[Finding, ...]
    after_findings: tuple[Finding, ...]
    suspects: tuple[Finding, ...]

    @property
    def verified(self) -> bool:
        """Whether the values agree and nothing is wrong with either kernel."""
        agrees = self.agreement is not None and self.agreement.agrees
        writes = self.unwritten[1] <= self.unwritten[0]
        return (
            agrees and writes and not (self.before_findings or self.after_findings or self.unstable)
        )


def settings_for(schedules: int, seed: int) -> tuple[Setting, ...]:
    """Copies as late as allowed, then as early as possible, then at random moments."""
    fixed = (Setting(Timing.LATE, seed, 0), Setting(Timing.EARLY, seed, 1))
    random = (Setting(Timing.RANDOM, seed + n, n) for n in range(2, schedules))
    return (*fixed, *random)[:schedules]


def verify(
    before: Kernel,
    after: Kernel,
    *,
    inputs: Sequence[np.ndarray] | None = None,
    runs: int = 5,
    seed: int = 0,
    schedules: int = 8,
    devices: int = 1,
) -> Verification:
    """Runs two kernels side by side.

    The first set of inputs runs under every schedule, each further set under one.

    Args:
      inputs: operands for every device; random ones by default.
      runs: sets of random inputs.
      schedules: settings of timing, scheduler and uninitialised memory.
      devices: how many devices the kernel spans.

    Raises:
      Mismatch: they do not take the same operands or give the same results.
      Unsupported: the interpreter cannot run one of them.
    """
    _check_signatures(before, after)
    programs = compile_program(before), compile_program(after)
    settings = settings_for(max(1, schedules), seed)
    sets, how = _input_sets(programs[0], inputs, runs, seed, devices)
    plan = [(sets[0], setting) for setting in settings]
    plan += [(arrays, settings[n % len(settings)]) for n, arrays in enumerate(sets[1:], 1)]
    pairs = [
        tuple(run_on(program, arrays, setting) for program in programs) for arrays, setting in plan
    ]
    agreements = [
        compare_results(first.results, second.results, before, after)
        for first, second in pairs
        if first.results and second.results
    ]
    unstable, suspects = [], []
    for position, kernel in enumerate((before, after)):
        under = [pair[position] for pair in pairs[: len(settings)]]
        if difference := _instability(under):
            unstable.append(f"{('before', 'after')[position]} ('{kernel.name}'): {difference}")
            suspects += [s for execution in under for s in execution.suspects]
    return Verification(
        before=before.name,
        after=after.name,
        inputs=how,
        settings=settings,
        runs=len(pairs),
        agreement=Agreement.worst(agreements) if len(agreements) == len(pairs) else None,
        unwritten=(pairs[0][0].unwritten, pairs[0][1].unwritten),
        unstable=tuple(unstable),
        before_findings=_distinct(pair[0] for pair in pairs),
        after_findings=_distinct(pair[1] for pair in pairs),
        suspects=tuple(dict.fromkeys(suspects)),
    )


def objection(before: Kernel, after: Kernel) -> str | None:
    """Why a rewrite should not be trusted, in a line; None where a short `verify` found nothing.

    Raises: as `verify`.
    """
    result = verify(before, after, runs=2, schedules=4)
    if result.verified:
        return None
    for finding in (*result.after_findings, *result.before_findings):
        return str(finding)
    if result.agreement is None or not result.agreement.agrees:
        where = result.agreement.where if result.agreement else "it did not come to its end"
        return f"its values differ: {where}"
    return "; ".join(result.unstable) or "it writes less of its results"


def _check_signatures(before: Kernel, after: Kernel) -> None:
    for what in ("operands", "results"):
        first, second = getattr(before, what), getattr(after, what)
        if first != second:
            raise Mismatch(
                f"'{before.name}' and '{after.name}' differ in {what}: "
                f"({', '.join(map(str, first))}) and ({', '.join(map(str, second))})"
            )


def _input_sets(
    program: Executable, inputs: Sequence[np.ndarray] | None, runs: int, seed: int, devices: int
) -> tuple[list[Inputs], str]:
    """Sets of operands, each a list of operands per device; and how they were made."""
    if inputs is not None:
        return [[inputs] * devices], "given"
    kernel = program.kernel
    distributions = [Distribution(below) for below in RANGES]
    if not any(numpy_dtype(type_.dtype).kind in "iu" for type_ in kernel.operands):
        distributions = distributions[:1]
    for distribution in distributions:
        sets: list[Inputs] = [
            [distribution.draw(kernel, seed * 1009 + n * devices + d) for d in range(devices)]
            for n in range(runs)
        ]
        fault = run_on(program, sets[0]).fault
        if fault is None or fault.kind != OUT_OF_BOUNDS or distribution is distributions[-1]:
            return sets, f"{runs} random sets, seed {seed}: {distribution.describe(kernel)}"
    raise AssertionError("the last distribution is always taken")


def _instability(executions: Sequence[Execution]) -> str | None:
    """How results differ between schedules of the same inputs."""
    whole = [execution.results for execution in executions if execution.results]
    for number, results in enumerate(whole[1:], 1):
        for device, other in zip(whole[0], results):
            for position, (a, b) in enumerate(zip(device, other)):
                different = a.view(np.uint8) != b.view(np.uint8) if a.ndim else a != b
                if np.any(different):
                    return (
                        f"result {position} depends on timing or on uninitialised memory "
                        f"(schedules 0 and {number})"
                    )
    return None


def _distinct(executions) -> tuple[Finding, ...]:
    found = collections.OrderedDict()
    for execution in executions:
        for finding in execution.findings:
            found.setdefault((finding.kind, finding.sites), finding)
    return tuple(found.values())
