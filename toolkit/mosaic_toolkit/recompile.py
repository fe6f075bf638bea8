"""`compile_kernel`: a kernel compiled by its own compiler, for a chip that need not be there.

The compilers abort, hang and print; all of that happens in a worker process.
"""

from __future__ import annotations

import concurrent.futures
import dataclasses
import itertools
import json
import os
import queue
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path

from . import errors
from .backends import get_backend
from .compiling import failure
from .compiling.environment import compiler_of, environment
from .compiling.process import WorkerProcess
from .errors import CompileError, ToolkitError
from .kernel import Kernel, save
from .targets import TARGETS, Target, get_target

GiB = 1024**3


@dataclasses.dataclass(frozen=True)
class Limits:
    """What one compile may take.

    Attributes:
      timeout_s: wall-clock seconds, starting the worker included.
      memory_bytes: resident host memory of the worker.
    """

    timeout_s: float = 120
    memory_bytes: int = 8 * GiB


@dataclasses.dataclass(frozen=True)
class Compiled:
    """A kernel's executable.

    Attributes:
      kernel: what was compiled; its target is the chip that it was compiled for.
      executable: of the program that is this one kernel, as its compiler serialises it.
      seconds: that the compiler took.
      dump: the directory with what it dumped, None where that was not asked for.
    """

    kernel: Kernel
    executable: bytes = dataclasses.field(repr=False)
    seconds: float
    dump: Path | None = None

    @property
    def target(self) -> str:
        """Name of the chip."""
        return self.kernel.target

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Writes an executable file, which `executable.Executable.load` reads.

        Raises:
          Unsupported: the kernel talks to other devices.
        """
        from .executable import Executable

        return Executable.of(self).save(path)


def compile_kernel(
    kernel: Kernel,
    target: str | Target | None = None,
    *,
    dump_to: Path | None = None,
    llo_passes: str | None = None,
    limits: Limits = Limits(),
) -> Compiled:
    """Compiles a kernel in a process of its own.

    Args:
      target: the chip; by default the one that the kernel was captured for.
      dump_to: a directory, made where missing, for all that the compiler dumps:
        ``stablehlo.mlir`` and the folders of `compiling.environment.Compiler`.
      llo_passes: a regular expression for the LLO passes to dump; None for all.
      limits: of time and memory.

    Raises:
      CompileError: the compiler is not installed, refused the kernel, crashed, or
        went over a limit; says at which stage, for which operation and Python line.
      InvalidModule: the kernel's module does not parse or verify.
      Unsupported: the kernel cannot be a program of its own.
    """
    kernel = retarget(kernel, target)
    with _worker(kernel, dump_to, llo_passes) as worker:
        return _compile_in(worker, kernel, dump_to, limits)


def compile_kernels(
    kernels: Iterable[Kernel],
    target: str | Target | None = None,
    *,
    jobs: int = 1,
    dump_to: Path | None = None,
    llo_passes: str | None = None,
    limits: Limits = Limits(),
) -> Iterator[Compiled | ToolkitError]:
    """Compiles several kernels at once; gives each one's executable or error, in their order.

    A worker goes from one kernel to the next for the same chip, which saves
    loading the compiler; one that failed to answer is not used again, and one
    that dumps is for one kernel.

    Args:
      target: the chip; by default each kernel's own.
      jobs: how many compile at a time.
      dump_to: see `compile_kernel`; each kernel has a directory there, its place from 0.
      llo_passes: see `compile_kernel`.
      limits: of time and memory, for each.
    """

    def one(place: int, kernel: Kernel) -> Compiled | ToolkitError:
        try:
            dump = None if dump_to is None else dump_to / str(place)
            return workers.compile(retarget(kernel, target), dump, llo_passes, limits)
        except ToolkitError as error:
            return error

    with _Workers() as workers, concurrent.futures.ThreadPoolExecutor(max(1, jobs)) as pool:
        try:
            yield from pool.map(one, itertools.count(), kernels)
        except BaseException:  # nobody waits for the others
            workers.stop()
            raise


def retarget(kernel: Kernel, target: str | Target | None) -> Kernel:
    """The kernel as one for another chip.

    Raises:
      CompileError: says what in the kernel that chip does not have.
    """
    chip = get_target(kernel.target) if target is None else target
    chip = get_target(chip) if isinstance(chip, str) else chip
    backend = get_backend(kernel.backend)
    if backend.platform != chip.platform:
        same = [t.name for t in TARGETS.values() if t.platform == backend.platform]
        raise CompileError(
            f"kernel '{kernel.name}' is for {backend.title}, which has no compiler for {chip}",
            hint=f"targets of {backend.title}: {', '.join(same)}",
        )
    kernel = dataclasses.replace(kernel, target=chip.name)
    obstacle = backend.obstacle(kernel, chip)
    if obstacle is not None:
        raise CompileError(
            f"kernel '{kernel.name}' does not compile for {chip} "
            f"(compute capability {chip.compute_capability}): {obstacle}",
            hint="capture the kernel for that chip, where its source has a variant for it",
        )
    return kernel


class _Workers:
    """Workers that wait for their next kernel, by chip: Mosaic GPU assembles for its first one."""

    def __init__(self) -> None:
        self._idle: dict[str, queue.SimpleQueue[WorkerProcess]] = {}
        self._busy: list[WorkerProcess] = []

    def __enter__(self) -> _Workers:
        return self

    def __exit__(self, *_: object) -> None:
        for waiting in self._idle.values():
            while not waiting.empty():
                waiting.get().__exit__()

    def compile(
        self, kernel: Kernel, dump_to: Path | None, llo_passes: str | None, limits: Limits
    ) -> Compiled:
        """Compiles in a worker that waits, else in a fresh one."""
        waiting = self._idle.setdefault(kernel.target, queue.SimpleQueue())
        try:
            worker = waiting.get_nowait()
        except queue.Empty:
            worker = _worker(kernel, dump_to, llo_passes)
        self._busy.append(worker)
        try:
            return _compile_in(worker, kernel, dump_to, limits)
        finally:
            self._busy.remove(worker)
            if worker.alive and dump_to is None:
                waiting.put(worker)
            else:
                worker.__exit__()

    def stop(self) -> None:
        """Ends those at work."""
        for worker in tuple(self._busy):
            worker.kill()


def _worker(kernel: Kernel, dump_to: Path | None, llo_passes: str | None) -> WorkerProcess:
    chip = get_target(kernel.target)
    if dump_to is not None:
        dump_to = dump_to.resolve()
        for folder in compiler_of(chip).FOLDERS:
            (dump_to / folder).mkdir(parents=True, exist_ok=True)
    return WorkerProcess(environment(chip, dump_to, llo_passes))


def _compile_in(
    worker: WorkerProcess,
    kernel: Kernel,
    dump_to: Path | None,
    limits: Limits,
    program: str | None = None,
) -> Compiled:
    """Compiles a kernel, or the StableHLO `program` that calls it, in a worker."""
    with tempfile.TemporaryDirectory(prefix="mosaic-compile-") as name:
        directory = Path(name)
        save(kernel, directory / "kernel.mlir")
        if program is not None:
            (directory / "program.mlir").write_text(program, encoding="utf-8")
        request = {"dump": None if dump_to is None else str(dump_to.resolve())}
        (directory / "request.json").write_text(json.dumps(request), encoding="utf-8")
        ending = worker.serve(
            directory, timeout_s=limits.timeout_s, memory_bytes=limits.memory_bytes
        )
        if dump_to is not None:
            (dump_to / "compiler.log").write_text(ending.said, encoding="utf-8")
        stage = _text(directory / "stage") or "starting the compiler's process"
        if ending.kind == "died":
            raise failure.crash(kernel, stage, ending, dump_to)
        if ending.kind != "answered":
            raise failure.over_limit(kernel, stage, ending, limits.timeout_s, limits.memory_bytes)
        outcome = json.loads((directory / "outcome.json").read_text(encoding="utf-8"))
        if "error" in outcome:
            raise _error(kernel, stage, outcome)
        executable = (directory / "executable").read_bytes()
    return Compiled(kernel, executable, outcome["seconds"], dump_to)


def _text(path: Path) -> str | None:
    return path.read_text(encoding="utf-8") if path.exists() else None


def _error(kernel: Kernel, stage: str, outcome: dict[str, str]) -> ToolkitError:
    known = getattr(errors, outcome["error"], None)
    if isinstance(known, type) and issubclass(known, ToolkitError):
        return known(outcome["message"], hint=outcome["hint"])
    return failure.refusal(kernel, stage, outcome["error"], outcome["message"])
