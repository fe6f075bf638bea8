"""Running a user's script to capture its kernels, in a process of its own.

A script may exit, crash, change the process's environment or ask JAX for
another configuration; a fresh process per target keeps that out of the caller
and the targets apart.  `run_script` is the caller's side, `main` the script's.
"""

from __future__ import annotations

import ast
import contextlib
import dataclasses
import glob
import importlib.metadata
import json
import os
import pickle
import platform
import re
import runpy
import signal
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .dump import Run, load_dump
from .errors import ToolkitError
from .kernel import Kernel, load, save
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
    """

    pipeline: str = ""
    plugins: tuple[str, ...] = ()
    only: str = "*"
    override: str | None = None

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
            found.append(by_pipeline(PassPipeline.parse(self.pipeline, registry), self.only))
        if self.override:
            found.append(by_override(load_dump(Path(self.override))))
        return found


# --- the caller's side --------------------------------------------------------------


def has_accelerator() -> bool:
    """Whether this machine shows a TPU or an NVIDIA GPU, without asking their drivers."""
    return any(map(glob.glob, ("/dev/accel[0-9]*", "/dev/nvidia[0-9]*", "/dev/vfio/[0-9]*")))


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
        return _merged([_run_once(script, None)])
    by_default = targets is None
    chips = [get_target(t).name for t in targets or [t.name for t in DEFAULT_TARGETS.values()]]
    chips = list(dict.fromkeys(chips))
    outcomes: list[_Outcome] = []
    for chip in chips:
        # Kernels are lowered for all the chips; the first is what the script is told.
        outcome = _run_once(script, [chip] + [other for other in chips if other != chip])
        if by_default and outcome.kernels and outcome.run.traceback is None:
            return _merged([outcome])
        if not outcome.asked:  # another answer could not have changed what it did
            return _merged([*outcomes, outcome])
        outcomes.append(outcome.only_for(chip, chips))
    if by_default and len(outcomes) > 1:
        return _merged([max(outcomes, key=lambda o: (len(o.kernels), o.run.traceback is None))])
    return _merged(outcomes)


@dataclasses.dataclass(frozen=True)
class _Outcome:
    """One run: its kernels, what else came of it, and whether it asked for the device."""

    kernels: list[Kernel]
    run: Run
    asked: bool
    rewrites: tuple[str, ...] = ()

    def only_for(self, chip: str, chips: list[str]) -> _Outcome:
        """Less what was lowered for the other chips, which the script was not told of."""
        others = set(chips) - {chip}
        kept = [kernel for kernel in self.kernels if kernel.target not in others]
        failures = tuple(f for f in self.run.failures if f.target not in others)
        return _Outcome(kept, dataclasses.replace(self.run, failures=failures), self.asked)


def _merged(outcomes: list[_Outcome]) -> tuple[list[Kernel], Run]:
    def union(field: str) -> tuple:
        return tuple(dict.fromkeys(item for o in outcomes for item in getattr(o.run, field)))

    distinct: dict[tuple[str, ...], Kernel] = {}
    for kernel in (kernel for outcome in outcomes for kernel in outcome.kernels):
        distinct.setdefault((kernel.name, kernel.backend, kernel.target, kernel.asm), kernel)
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


def run_program(script: Script, target: str | None) -> tuple[tuple[str, ...], Run]:
    """Runs a script with its kernels rewritten; what it prints goes to stdout.

    Returns:
      What became of each kernel, a line each, and what else there is to say.

    Raises:
      ToolkitError: no such script, target, pass or dump.
    """
    if script.rewrite is not None:
        script.rewrite.rewriters()  # finds mistakes before anything runs
    targets = [get_target(target).name] if target else None
    if targets is None and not has_accelerator():
        targets = [DEFAULT_TARGETS["tpu"].name]
    outcome = _run_once(script, targets, stdout=None)
    return outcome.rewrites, outcome.run


# What a script prints is talk; the data on stdout is the command's own.
_STDERR = 2


def _run_once(script: Script, targets: list[str] | None, stdout: int | None = _STDERR) -> _Outcome:
    if not script.path.is_file():
        raise ToolkitError(f"{script.path}: no such file", hint="the argument is a Python script")
    with tempfile.TemporaryDirectory(prefix="mosaic-dump-") as directory:
        out = Path(directory)
        (out / "spec.pickle").write_bytes(pickle.dumps((script, targets)))
        environment = dict(os.environ)
        environment["PYTHONPATH"] = os.pathsep.join(
            filter(None, [*_roots(), environment.get("PYTHONPATH")])
        )
        if targets is not None:
            environment["JAX_PLATFORMS"] = "cpu"
            environment.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
        process = subprocess.Popen(
            [sys.executable, "-m", "mosaic_toolkit.runner", directory],
            env=environment,
            stdout=stdout,
        )
        try:
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
        return _Outcome(kernels, Run.from_json(data["run"]), data["asked"], tuple(data["rewrites"]))


def _roots() -> list[str]:
    """Where this process imports the toolkit and its passes from."""
    package = Path(__file__).parent
    passes = package.parent.parent / "passes"
    return [str(package.parent)] + ([str(passes)] if (passes / "mosaic_passes").is_dir() else [])


def _death(code: int) -> str:
    if code < 0:
        return f"the script's process was killed by {signal.Signals(-code).name}"
    return f"the script ended its process with exit code {code}"


# --- the script's side --------------------------------------------------------------


def main(directory: Path) -> None:
    script, targets = pickle.loads((directory / "spec.pickle").read_bytes())
    from .capture import recording
    from .jax_compat.lowering import rewriting_with

    if script.devices:
        import jax

        jax.config.update("jax_num_cpu_devices", script.devices)
    count = 0

    def keep(kernel: Kernel) -> None:
        nonlocal count
        save(kernel, directory / f"kernel-{count:05d}.mlir")
        count += 1

    error: str | None = None
    names: list[str] = []
    rewriters = script.rewrite.rewriters() if script.rewrite else []
    with (
        recording(targets, run=script.run, every_thread=True, on_kernel=keep) as captured,
        rewriting_with(*rewriters, every_thread=True),
    ):
        try:
            names = _execute(script)
        except _UsageError as problem:
            _write(directory, {"usage_error": problem.message, "hint": problem.hint})
            return
        except SystemExit as stop:
            if stop.code not in (None, 0):
                error = f"the script exited with {stop.code!r}"
        except BaseException:
            error = _user_traceback(script.path)
    run = Run(
        targets=tuple(targets or ()),
        versions=_versions(),
        failures=tuple(captured.failures),
        refusals=tuple(captured.refusals),
        notes=tuple(captured.notes),
        traceback=error,
        functions=tuple(names) if not captured.kernels else (),
    )
    rewrites = [str(entry) for rewriter in rewriters for entry in rewriter.log]
    _write(directory, {"run": run.to_json(), "asked": captured.asked, "rewrites": rewrites})


class _UsageError(ToolkitError):
    """The command line asks for something that the script does not have."""


def _write(directory: Path, data: dict[str, Any]) -> None:
    partial = directory / "result.partial"
    partial.write_text(json.dumps(data))
    partial.rename(directory / "result.json")


def _execute(script: Script) -> list[str]:
    """Runs the script or its function; returns the names of the functions it defines."""
    path = script.path.resolve()
    sys.argv = [str(script.path), *script.argv]
    sys.path[0] = str(path.parent)
    if script.call is None:
        runpy.run_path(str(script.path), run_name="__main__")
        return _function_names(path)
    module = runpy.run_path(str(script.path), run_name=path.stem)
    function: Any = module.get(script.call.split(".")[0])
    for attribute in script.call.split(".")[1:]:
        function = getattr(function, attribute, None)
    if not callable(function):
        raise _UsageError(
            f"{script.path} defines no function '{script.call}'",
            hint=f"it defines: {', '.join(_function_names(path)) or 'none'}",
        )
    args, kwargs = parse_call_args(script.call_args)
    from .capture import lower

    lower(function, *args, **kwargs)
    return []


def _function_names(path: Path) -> list[str]:
    tree = ast.parse(path.read_bytes())
    return [node.name for node in tree.body if isinstance(node, ast.FunctionDef)]


_SHORT_DTYPES = {
    "bf16": "bfloat16", "f16": "float16", "f32": "float32", "f64": "float64",
    "s4": "int4", "s8": "int8", "s16": "int16", "s32": "int32", "s64": "int64",
    "i4": "int4", "i8": "int8", "i16": "int16", "i32": "int32", "i64": "int64",
    "u4": "uint4", "u8": "uint8", "u16": "uint16", "u32": "uint32", "u64": "uint64",
    "pred": "bool", "i1": "bool", "f8e4m3fn": "float8_e4m3fn", "f8e5m2": "float8_e5m2",
}  # fmt: skip


def parse_call_args(texts: Sequence[str]) -> tuple[list[Any], dict[str, Any]]:
    """Arguments of a function: ``bf16[8,128]`` is an array, else a Python literal.

    ``NAME=...`` passes it by name.

    Raises:
      ToolkitError: it is neither.
    """
    args: list[Any] = []
    kwargs: dict[str, Any] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if equals and name.isidentifier():
            kwargs[name] = _parse_value(value)
        else:
            args.append(_parse_value(text))
    return args, kwargs


def _parse_value(text: str) -> Any:
    import jax
    import jax.numpy as jnp

    array = re.fullmatch(r"\s*(\w+)\s*\[([\d,\s]*)\]\s*", text)
    if array:
        try:
            dtype = jnp.dtype(_SHORT_DTYPES.get(array[1].lower(), array[1]))
        except TypeError:
            raise _UsageError(
                f"'{text}': no element type '{array[1]}'", hint="for example bf16[8,128]"
            ) from None
        return jax.ShapeDtypeStruct(tuple(int(d) for d in array[2].split(",") if d.strip()), dtype)
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        raise _UsageError(
            f"'{text}' is neither an array such as bf16[8,128] nor a Python literal",
            hint="quote a string: \"'causal'\"",
        ) from None


def _user_traceback(path: Path) -> str:
    """The traceback from the script's first frame on."""
    kind, value, trace = sys.exc_info()
    frame = trace
    while frame and Path(frame.tb_frame.f_code.co_filename).resolve() != path.resolve():
        frame = frame.tb_next
    return "".join(traceback.format_exception(kind, value, frame or trace)).rstrip()


def _versions() -> tuple[tuple[str, str], ...]:
    from . import __version__

    found = [("python", platform.python_version()), ("mosaic-toolkit", __version__)]
    for package in ("jax", "jaxlib", "libtpu", "jax-cuda13-plugin"):
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            found.append((package, importlib.metadata.version(package)))
    return tuple(found)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
