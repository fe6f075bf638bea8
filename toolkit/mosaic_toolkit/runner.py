"""Running a user's script to capture its kernels, in a process of its own.

A script may exit, crash, change the process's environment or ask JAX for
another configuration; a fresh process per target keeps that out of the caller
and the targets apart.  `script_process` is what runs there.
"""

from __future__ import annotations

import contextlib
import dataclasses
import glob
import json
import os
import pickle
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .dump import Run, load_dump
from .errors import ToolkitError
from .kernel import Kernel, load
from .replayed_input import ReplayedInput
from .targets import DEFAULT_TARGETS, get_target

if TYPE_CHECKING:
    from .in_place import Rewriter


@dataclasses.dataclass(frozen=True)
class Script:
    """What to run.

    Attributes:
      path: the Python file.
      argv: its arguments.
      call: a function of it to lower instead of running it as ``__main__``.
      call_args: the function's arguments as text, ``bf16[8,128]`` or ``NAME=3``.
      run: whether kernels get values (else zeros).
      devices: CPU devices that JAX offers the script; 0 leaves it alone.
    """

    path: Path
    argv: tuple[str, ...] = ()
    call: str | None = None
    call_args: tuple[str, ...] = ()
    run: bool = True
    devices: int = 0
    rewrite: Rewriting | None = None


@dataclasses.dataclass(frozen=True)
class Rewriting:
    """How a script's kernels are replaced while it runs.

    Attributes:
      pipeline: the text of a pass pipeline, "" for none.
      plugins: Python files that define passes.
      only: a pattern that a kernel's name has to match.
      override: a dump whose kernels replace those of the same name.
      verify: whether a rewritten kernel that `verify` objects to is left as it was.
    """

    pipeline: str = ""
    plugins: tuple[str, ...] = ()
    only: str = "*"
    override: str | None = None
    verify: bool = False

    def rewriters(self) -> list[Rewriter]:
        """What replaces kernels, pass pipeline before override."""
        from .in_place import by_override, by_pipeline
        from .pass_pipeline import PassPipeline
        from .plugins import installed_passes

        found: list[Rewriter] = []
        if self.pipeline:
            registry = installed_passes()
            for plugin in self.plugins:
                registry = registry.with_plugin(plugin)
            pipeline = PassPipeline.parse(self.pipeline, registry)
            found.append(by_pipeline(pipeline, self.only, verify=self.verify))
        if self.override:
            found.append(by_override(load_dump(Path(self.override)), verify=self.verify))
        return found


def has_accelerator() -> bool:
    """Whether this machine shows a TPU or an NVIDIA GPU, without asking their drivers."""
    return any(map(glob.glob, ("/dev/accel[0-9]*", "/dev/nvidia[0-9]*", "/dev/vfio/[0-9]*")))


def this_machines_chip() -> str | None:
    """The known chip of this machine, None where it has none; asks JAX in a process of its own."""
    if not has_accelerator():
        return None
    code = "from mosaic_toolkit.capture import this_machine as m; print((m() or type('', (), {'name': ''})).name)"
    done = subprocess.run(
        [sys.executable, "-c", code], env=_environment(), capture_output=True, text=True
    )
    return done.stdout.strip() or None


def run_script(script: Script, targets: Sequence[str] | None) -> tuple[list[Kernel], Run]:
    """Runs a script and captures its kernels.

    Args:
      script: what to run.
      targets: names of chips: the script runs as each of them, once where it does
        not ask for the device.  None runs it on this machine's device; where there
        is none as a v5e, and if that lowers nothing or raises, as an H100.

    Returns:
      The distinct kernels in order of lowering, and what else there is to say.
      A script that raises or dies still gives what was captured before.

    Raises:
      ToolkitError: no such script, function or target.
    """
    if targets is None and has_accelerator():
        return _merged([_run_once(script, None, pretend=False)])
    by_default = targets is None
    chips = [get_target(t).name for t in targets or [t.name for t in DEFAULT_TARGETS.values()]]
    chips = list(dict.fromkeys(chips))
    here = this_machines_chip()
    outcomes: list[_Outcome] = []
    stdin = ReplayedInput() if len(chips) > 1 else None
    for chip in chips:
        # Kernels are lowered for all the chips; the first is what the script is told.
        order = [chip] + [other for other in chips if other != chip]
        outcome = _run_once(script, order, pretend=chip != here, stdin=stdin)
        if by_default and outcome.kernels and outcome.run.traceback is None:
            return _merged([outcome])
        if not outcome.asked:  # another answer could not have changed what it did
            return _merged([*outcomes, outcome])
        outcomes.append(outcome if by_default else outcome.only_for(chip, chips))
    kernels, run = _merged(outcomes)
    if by_default and outcomes[-1].run.traceback is None:
        run = dataclasses.replace(run, traceback=None)  # it was a script for the last chip
    return kernels, run


@dataclasses.dataclass(frozen=True)
class _Outcome:
    """One run: its kernels, what else came of it, and whether it asked for the device."""

    kernels: list[Kernel]
    run: Run
    asked: bool
    rewrites: tuple[str, ...] = ()
    objections: tuple[str, ...] = ()

    def only_for(self, chip: str, chips: list[str]) -> _Outcome:
        """Less what was lowered for the other chips, which the script was not told of."""
        others = set(chips) - {chip}
        kept = [kernel for kernel in self.kernels if kernel.target not in others]
        failures = tuple(f for f in self.run.failures if f.target not in others)
        return _Outcome(kept, dataclasses.replace(self.run, failures=failures), self.asked)


def _merged(outcomes: list[_Outcome]) -> tuple[list[Kernel], Run]:
    def union(field: str) -> tuple:
        return tuple(dict.fromkeys(item for o in outcomes for item in getattr(o.run, field)))

    distinct: dict[tuple[Any, ...], Kernel] = {}
    for kernel in (kernel for outcome in outcomes for kernel in outcome.kernels):
        distinct.setdefault(kernel.identity, kernel)
    tracebacks = [o.run.traceback for o in outcomes if o.run.traceback]
    merged = Run(
        targets=union("targets"),
        versions=outcomes[0].run.versions,
        failures=union("failures"),
        refusals=union("refusals"),
        notes=union("notes"),
        traceback=tracebacks[0] if tracebacks else None,
        functions=union("functions"),
    )
    return list(distinct.values()), merged


@dataclasses.dataclass(frozen=True)
class Program:
    """What came of a program whose kernels were rewritten.

    Attributes:
      rewrites: what became of each kernel, a line each.
      objections: what `verify` or running the kernels here found wrong with them.
      run: what else there is to say.
      on_device: whether the kernels ran on their device; else they were interpreted.
    """

    rewrites: tuple[str, ...]
    objections: tuple[str, ...]
    run: Run
    on_device: bool


def run_program(script: Script, target: str | None) -> Program:
    """Runs a script with its kernels rewritten; what it prints goes to stdout.

    Raises:
      ToolkitError: no such script, target, pass or dump.
    """
    if script.rewrite is not None:
        script.rewrite.rewriters()  # finds mistakes before anything runs
    chip = get_target(target).name if target else None
    here = this_machines_chip()
    on_device = here is not None and chip in (None, here)
    targets = None if on_device else [chip or DEFAULT_TARGETS["tpu"].name]
    outcome = _run_once(script, targets, pretend=not on_device, stdout=None)
    return Program(outcome.rewrites, outcome.objections, outcome.run, on_device)


# What a script prints is talk; the data on stdout is the command's own.
_STDERR = 2


def _run_once(
    script: Script,
    targets: list[str] | None,
    *,
    pretend: bool,
    stdin: ReplayedInput | None = None,
    stdout: int | None = _STDERR,
) -> _Outcome:
    """Runs the script once; `pretend` keeps JAX on the CPU while it is told of a chip."""
    if not script.path.is_file():
        what = "is a directory" if script.path.is_dir() else "no such file"
        raise ToolkitError(f"{script.path}: {what}", hint="the argument is a Python script")
    with tempfile.TemporaryDirectory(prefix="mosaic-dump-") as directory:
        out = Path(directory)
        (out / "spec.pickle").write_bytes(pickle.dumps((script, targets, pretend)))
        environment = _environment()
        if pretend:
            environment["JAX_PLATFORMS"] = "cpu"
            environment.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
        process = subprocess.Popen(
            [sys.executable, "-m", "mosaic_toolkit.script_process", directory],
            env=environment,
            stdin=None if stdin is None else stdin.stdin,
            stdout=stdout,
        )
        try:
            with contextlib.nullcontext() if stdin is None else stdin.feeding(process):
                code = process.wait()
        except BaseException:
            process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(5)
            process.kill()
            raise
        kernels = [
            load(path)
            for path in sorted(out.glob("kernel-*.mlir"))
            if path.with_suffix(".json").exists()
        ]
        result = out / "result.json"
        if not result.exists():
            run = Run(targets=tuple(targets or ()), traceback=_death(code))
            return _Outcome(kernels, run, asked=True)
        data = json.loads(result.read_text())
        if "usage_error" in data:
            raise ToolkitError(data["usage_error"], hint=data["hint"])
        rewrites, objections = tuple(data["rewrites"]), tuple(data["objections"])
        return _Outcome(kernels, Run.from_json(data["run"]), data["asked"], rewrites, objections)


def _environment() -> dict[str, str]:
    roots = filter(None, [*_roots(), os.environ.get("PYTHONPATH")])
    return {**os.environ, "PYTHONPATH": os.pathsep.join(roots)}


def _roots() -> list[str]:
    """Where this process imports the toolkit and its passes from."""
    package = Path(__file__).parent
    passes = package.parent.parent / "passes"
    return [str(package.parent)] + ([str(passes)] if (passes / "mosaic_passes").is_dir() else [])


def _death(code: int) -> str:
    if code < 0:
        return f"the script's process was killed by {signal.Signals(-code).name}"
    return f"the script ended its process with exit code {code}"
