"""Whether our recompile of an unchanged kernel gives what the user's own program compiles to.

The original is JAX's StableHLO as it lowered it, which nothing of the toolkit has read
or written; ours is the captured kernel, encoded again, in a program of its own.
"""

from __future__ import annotations

import dataclasses
import re
import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from mosaic_toolkit import recompile
from mosaic_toolkit.errors import ToolkitError
from mosaic_toolkit.kernel import Kernel
from mosaic_toolkit.recompile import Compiled, Limits
from mosaic_toolkit.stages.tpu_statistics import STATISTICS_PASSES

from . import budget
from .code import Code, code_of
from .outcome import cause_of

IDENTICAL = "identical"
# XLA puts operands of the program's kernel into on-chip memory, or fuses: not in the kernel
# alone.  The original's custom call alone in a program is the fair comparison.
IDENTICAL_ALONE = "identical, each as a program of its own"
ORIGINAL_FAILS = "original does not compile"
# Ours to mend.
DIFFERS = "differs"
OURS_FAILS = "ours does not compile"

GOOD = (IDENTICAL, IDENTICAL_ALONE, ORIGINAL_FAILS)


@dataclasses.dataclass(frozen=True)
class Comparison:
    """What became of one kernel.

    Attributes:
      kernel: its name.
      status: one of the module's constants.
      cause: why it does not compile, one line.
      memory: how close its memory budget is to what the compiler reports, a constant of
        `budget`; "" where ours does not compile.
      memory_cause: which memories are off.
    """

    kernel: str
    status: str
    cause: str = ""
    memory: str = ""
    memory_cause: str = ""

    @property
    def good(self) -> bool:
        return not self.defect

    @property
    def defect(self) -> str:
        """What is ours to mend, "" where nothing is."""
        if self.status not in GOOD:
            return f"{self.status} {self.cause}".strip()
        if self.memory and self.memory not in budget.GOOD:
            return f"memory budget {self.memory_cause}"
        return ""


@dataclasses.dataclass(frozen=True)
class Original:
    """What JAX lowered.

    Attributes:
      program: its StableHLO, as text.
      calls: each kernel's custom call, unchanged, in a program of its own, as text.
    """

    program: str
    calls: tuple[str, ...]


def original(module: Any) -> Original:
    """Of JAX's StableHLO module."""
    calls = []

    def visit(op):
        from jaxlib.mlir import ir

        if op.name == "stablehlo.custom_call" and _is_kernel(op):
            calls.append(_alone(op))
        return ir.WalkResult.ADVANCE

    module.operation.walk(visit)
    return Original(_text(module), tuple(dict.fromkeys(calls)))


def _is_kernel(op: Any) -> bool:
    from mosaic_toolkit.backends import all_backends

    target = op.attributes["call_target_name"].value
    return any(backend.recognise(target) for backend in all_backends())


def _alone(op: Any) -> str:
    from jaxlib.mlir import ir
    from jaxlib.mlir.dialects import func

    with op.context, op.location:
        module = ir.Module.create()
        types = [operand.type for operand in op.operands]
        with ir.InsertionPoint(module.body):
            main = func.FuncOp("main", (types, [result.type for result in op.results]))
        with ir.InsertionPoint(main.add_entry_block()):
            call = op.operation.clone()
            for index, argument in enumerate(main.arguments):
                call.operation.operands[index] = argument
            func.ReturnOp(call.operation.results)
    return _text(module)


def _text(module: Any) -> str:
    return module.operation.get_asm(enable_debug_info=True)


_LIMITS = Limits(timeout_s=300)


class Compilers:
    """Compiles into one directory after another; a context manager.

    A worker that compiled a Mosaic GPU kernel remembers its code by its hash and leaves
    nothing of it the next time: those get fresh ones.
    """

    def __init__(self) -> None:
        self._target = ""
        self._process: Any = None
        self._directory = Path(tempfile.mkdtemp(prefix="corpus-compile-"))

    def __enter__(self) -> Compilers:
        return self

    def __exit__(self, *_: object) -> None:
        self._end()
        shutil.rmtree(self._directory, ignore_errors=True)

    def compile(self, kernel: Kernel, program: str | None = None) -> Compiled:
        """The kernel, or a program that calls it; what was dumped before is gone.

        Raises:
          ToolkitError: it does not compile.
        """
        dump = self._directory / kernel.target
        if self._process is None or self._target != kernel.target or not self._process.alive:
            self._end()
            self._target = kernel.target
            self._process = recompile._worker(kernel, dump, STATISTICS_PASSES)
        for path in dump.glob("*/*"):
            shutil.rmtree(path) if path.is_dir() else path.unlink()
        try:
            return recompile._compile_in(self._process, kernel, dump, _LIMITS, program)
        finally:
            if kernel.backend == "mosaic_gpu":
                self._end()

    def _end(self) -> None:
        if self._process is not None:
            self._process.__exit__()
        self._process = None


def compare(kernels: Sequence[Kernel], lowered: Original, compilers: Compilers) -> list[Comparison]:
    """Compares each captured kernel with those of the program that it was captured from."""
    theirs, fails = _codes(compilers, kernels[0], [lowered.program])
    results = []
    for kernel in kernels:
        ours, failure, memory = _ours(kernel, compilers)
        alone, fail = [], ""
        if not ours or not all(code in theirs for code in ours):
            alone, fail = _codes(compilers, kernel, lowered.calls)
        if not theirs and not alone:
            status, cause = ORIGINAL_FAILS, fails or fail
        elif not ours:
            status, cause = OURS_FAILS, failure
        elif all(code in theirs for code in ours):
            status, cause = IDENTICAL, ""
        elif all(code in alone for code in ours):
            status, cause = IDENTICAL_ALONE, ""
        else:
            status, cause = DIFFERS, ""
        results.append(Comparison(kernel.name, status, cause, *memory))
    return results


def _ours(kernel: Kernel, compilers: Compilers) -> tuple[list[Code], str, tuple[str, str]]:
    """The kernel's code, or why it does not compile, and what became of its memory budget."""
    try:
        compiled = compilers.compile(kernel)
    except ToolkitError as error:
        return [], _cause(error), ("", "")
    assert compiled.dump is not None
    try:
        memory = budget.check(kernel, compiled)
    except ToolkitError as error:
        return code_of(compiled.dump), "", (budget.UNKNOWN, _cause(error))
    return code_of(compiled.dump), "", (memory.status, memory.cause)


def _codes(compilers: Compilers, kernel: Kernel, programs: Sequence[str]) -> tuple[list[Code], str]:
    """The code of all the programs that compile, and why the last of the others does not."""
    codes, cause = [], ""
    for program in programs:
        try:
            dump = compilers.compile(kernel, program).dump
            assert dump is not None
            codes += code_of(dump)
        except ToolkitError as error:
            cause = _cause(error)
    return codes, cause


def _cause(error: ToolkitError) -> str:
    """As `cause_of`, less which kernel it was."""
    return re.sub(r"kernel '.*?' for ", "", cause_of(error))
