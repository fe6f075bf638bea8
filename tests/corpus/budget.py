"""Whether the memory budget says before compiling what the compiler reports afterwards.

`python -m tests.corpus.budget --only 'jax/tpu/*@v5e'` captures, compiles and prints counts.
"""

from __future__ import annotations

import argparse
import collections
import dataclasses
import re
import sys
from collections.abc import Iterator
from pathlib import Path

from mosaic_toolkit.kernel import Kernel
from mosaic_toolkit.memory_budget import BufferUse, MemoryBudget, MemoryUse, memory_budget
from mosaic_toolkit.recompile import Compiled
from mosaic_toolkit.schedule import raise_schedule
from mosaic_toolkit.stages import read_statistics
from mosaic_toolkit.stages.gpu_statistics import GpuStatistics
from mosaic_toolkit.stages.tpu_files import kernel_unit, vmem_operands
from mosaic_toolkit.stages.tpu_statistics import TpuStatistics

TOLERANCE = 0.05

WITHIN = "within 5 %"
# The backend's compiler alone decides; the budget does not claim to know.
UNKNOWN = "not known before compiling"
# Ours to mend.
OFF = "more than 5 % off"

GOOD = (WITHIN, UNKNOWN)


@dataclasses.dataclass(frozen=True)
class Memory:
    """One memory, as budgeted and as the compiler reports it; bytes.

    Attributes:
      space: the memory.
      budget: without what XLA had placed before the kernel starts; None where unknown.
      compiler: of the kernel's named allocations, those alive at once.
      placed: windows that have no memory of their own because XLA put their operand or
        result there.
      spilled: what registers spill to, on top of `compiler`; no budget can know it.
    """

    space: str
    budget: int | None
    compiler: int
    placed: int = 0
    spilled: int = 0

    @property
    def status(self) -> str:
        if self.budget is None:
            return UNKNOWN
        close = abs(self.budget - self.compiler) <= TOLERANCE * self.compiler
        return WITHIN if close else OFF


@dataclasses.dataclass(frozen=True)
class Comparison:
    """What became of one kernel.

    Attributes:
      kernel: its name.
      status: the worst of its memories'.
      cause: the memories that are off, with both numbers; or why nothing is known.
      memories: each that the budget or the compiler has.
    """

    kernel: str
    status: str
    cause: str
    memories: tuple[Memory, ...]


def check(kernel: Kernel, compiled: Compiled) -> Comparison:
    """Compares a kernel's budget with what its compiler reports.

    Args:
      kernel: as captured.
      compiled: the same kernel, compiled into a directory of dumped files.

    Raises:
      CompileError, Unsupported: the compiler's files cannot be read.
    """
    assert compiled.dump is not None
    budget = memory_budget(raise_schedule(kernel))
    statistics = read_statistics(compiled.dump, kernel.backend)
    if isinstance(statistics, TpuStatistics):
        memories = tuple(_tpu(budget, statistics, compiled.dump / "llo"))
    else:
        memories = tuple(_gpu(budget, statistics))
    order = (OFF, UNKNOWN, WITHIN)
    status = min((m.status for m in memories), key=order.index, default=WITHIN)
    off = [f"{m.space}: {m.budget} B, compiler {m.compiler} B" for m in memories if m.status == OFF]
    if budget.over:
        status = OFF
        off += [f"{use.space}: over by {use.excess} B, yet it compiles" for use in budget.over]
    return Comparison(kernel.name, status, "; ".join(off), memories)


_WINDOW = "window allocation"
_SPILLED = "spilled"
# Words of the runtime, at addresses that are the same in every kernel.
_FIXED = "constant byte address"


def _tpu(budget: MemoryBudget, statistics: TpuStatistics, llo: Path) -> Iterator[Memory]:
    operands_in_vmem = len(vmem_operands(llo, statistics.kernel)) + _results_in_vmem(llo)
    for space in ("vmem", "smem"):
        found = [a for a in statistics.allocations if a.space == space and _FIXED not in a.name]
        spilled = sum(a.bytes.value or 0 for a in found if a.name.startswith(_SPILLED))
        named = [a for a in found if not a.name.startswith(_SPILLED)]
        windows = [a.bytes.value for a in named if _WINDOW in a.name]
        use = budget.use(space)
        placed = _without(use, windows) if use and space == "vmem" else []
        total = use.bytes if use else 0
        if total is not None and len(placed) <= operands_in_vmem:
            total -= sum(buffer.bytes or 0 for buffer in placed)
        compiler = sum(a.bytes.value or 0 for a in named)
        if space == "vmem" and statistics.vmem_bytes.value is not None:
            # Counts once what scopes that follow each other share.
            compiler = statistics.vmem_bytes.value - spilled
        if use or compiler:
            yield Memory(space, total, compiler, len(placed), spilled)


def _without(use: MemoryUse, windows: list[int | None]) -> list[BufferUse]:
    """The windows, and operands that are kept whole, for which the compiler allocates nothing."""
    left = collections.Counter(windows)
    found = []
    for buffer in use.buffers:
        if buffer.kind in ("window", "operand"):
            left[buffer.bytes] -= 1
            if left[buffer.bytes] < 0:
                found.append(buffer)
    return found


def _results_in_vmem(llo: Path) -> int:
    """How many of the kernel's results XLA leaves in VMEM."""
    program = "\n".join(p.read_text(errors="replace") for p in sorted(llo.glob("*-hlo.txt")))
    call = re.search(rf"%{re.escape(kernel_unit(llo))} = (.*?) custom-call\(", program)
    return call[1].count("S(1)") if call else 0


def _gpu(budget: MemoryBudget, statistics: GpuStatistics) -> Iterator[Memory]:
    use, reported = budget.use("smem"), statistics.dynamic_shared.value
    if reported is None and use is None:
        return
    named = None
    if use is not None and use.bytes is not None:
        named = sum(b.bytes or 0 for b in use.buffers if b.kind != "rest" or len(use.buffers) == 1)
    yield Memory("smem", named, reported or 0)


def main(argv: list[str] | None = None) -> int:
    from mosaic_toolkit.capture import capture
    from mosaic_toolkit.errors import ToolkitError

    from .cases import selected
    from .noop import Compilers

    parser = argparse.ArgumentParser(prog="python -m tests.corpus.budget", description=__doc__)
    parser.add_argument("--only", action="append", default=[], metavar="GLOB")
    counts: collections.Counter[str] = collections.Counter()
    seen = set()
    with Compilers() as compilers:
        for case, target in selected(parser.parse_args(argv).only):
            function, arguments = case.make()
            for kernel in capture(function, *arguments, target=target):
                if kernel.identity in seen:
                    continue
                seen.add(kernel.identity)
                try:
                    comparison = check(kernel, compilers.compile(kernel))
                except ToolkitError as error:
                    counts["does not compile"] += 1
                    print(f"{case.name}@{target}  {kernel.name}: {error.message[:200]}", flush=True)
                    continue
                counts[comparison.status] += 1
                if comparison.status not in GOOD:
                    print(f"{case.name}@{target}  {kernel.name}: {comparison.cause}", flush=True)
    print("\n".join(f"{n:7}  {status}" for status, n in counts.most_common()))
    return 1 if counts[OFF] else 0


if __name__ == "__main__":
    sys.exit(main())
