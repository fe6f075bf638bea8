"""The process that runs a user's script, started by `runner` with the directory of its files."""

from __future__ import annotations

import ast
import atexit
import contextlib
import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import json
import pickle
import platform
import re
import runpy
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import ModuleType, TracebackType
from typing import Any

from .capture import Captured, recording
from .dump import Run
from .errors import ToolkitError
from .kernel import Kernel, save
from .runner import Script
from .versions import installed


def main(directory: Path) -> None:
    """Runs the script of ``spec.pickle``; leaves kernels as they come, and ``result.json``."""
    script, targets, pretend = pickle.loads((directory / "spec.pickle").read_bytes())
    count = 0

    def keep(kernel: Kernel) -> None:
        nonlocal count
        save(kernel, directory / f"kernel-{count:05d}.mlir")
        count += 1

    captured = Captured()
    error: str | None = None
    rewriters = script.rewrite.rewriters() if script.rewrite else []
    hooks = contextlib.ExitStack()

    def listen() -> None:
        nonlocal captured
        from .jax_compat.lowering import rewriting_with

        _configure(pretend, script.devices)
        listening = recording(
            targets,
            run=script.run,
            execute=script.rewrite is not None,
            every_thread=True,
            on_kernel=keep,
        )
        captured = hooks.enter_context(listening)
        hooks.enter_context(rewriting_with(*rewriters, every_thread=True))

    def finish() -> None:
        hooks.close()
        run = Run(
            targets=tuple(targets or ()),
            versions=_versions(),
            failures=tuple(captured.failures),
            refusals=tuple(captured.refusals),
            notes=(*captured.notes, *captured.findings),
            traceback=error,
            functions=() if captured.kernels else tuple(_function_names(script.path)),
        )
        rewrites = [str(entry) for rewriter in rewriters for entry in rewriter.log]
        objections = [*captured.findings] + [
            str(entry)
            for rewriter in rewriters
            for entry in rewriter.log
            if entry.outcome == "not verified"
        ]
        _write(
            directory,
            {
                "run": run.to_json(),
                "asked": captured.asked,
                "rewrites": rewrites,
                "objections": objections,
            },
        )

    # Called last, since it is registered first: when the script's threads have ended and
    # what it registered itself has run.  Both may lower kernels.
    atexit.register(finish)
    _when_jax_is_imported(listen)
    try:
        _execute(script)
    except _UsageError as problem:
        atexit.unregister(finish)
        _write(directory, {"usage_error": problem.message, "hint": problem.hint})
    except SystemExit as stop:
        if stop.code not in (None, 0):
            error = f"the script exited with {stop.code!r}"
    except BaseException:
        error = _user_traceback(script.path)


def _configure(pretend: bool, devices: int) -> None:
    import jax

    if pretend:
        jax.config.update("jax_platforms", "cpu")  # whatever the script put into its environment
    if devices:
        jax.config.update("jax_num_cpu_devices", devices)


def _when_jax_is_imported(act: Callable[[], None]) -> None:
    """Calls `act` once JAX has been imported: a script may set its environment before."""
    sys.meta_path.insert(0, _FirstImport(act))


class _FirstImport(importlib.abc.MetaPathFinder):
    """Finds JAX as usual when it is first asked for, and acts when it has been executed."""

    def __init__(self, act: Callable[[], None]):
        self._act = act

    def find_spec(self, name: str, path: Any, target: Any = None) -> Any:
        if name != "jax":
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec("jax")
        if spec is not None:
            spec.loader = _Then(spec.loader, self._act)
        return spec


class _Then(importlib.abc.Loader):
    """Loads as another loader does, then acts."""

    def __init__(self, loader: Any, act: Callable[[], None]):
        self._loader = loader
        self._act = act

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        assert module.__spec__ is not None
        module.__spec__.loader = module.__loader__ = self._loader
        self._loader.exec_module(module)
        self._act()


class _UsageError(ToolkitError):
    """The command line asks for something that the script does not have."""


def _write(directory: Path, data: dict[str, Any]) -> None:
    partial = directory / "result.partial"
    partial.write_text(json.dumps(data))
    partial.rename(directory / "result.json")


def _execute(script: Script) -> None:
    """Runs the script, or lowers its function."""
    path = script.path.resolve()
    sys.argv = [str(script.path), *script.argv]
    sys.path[0] = str(path.parent)
    if script.call is None:
        runpy.run_path(str(path), run_name="__main__")
        return
    module = runpy.run_path(str(path), run_name=path.stem)
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


def _function_names(path: Path) -> list[str]:
    try:
        tree = ast.parse(path.read_bytes())
    except (SyntaxError, ValueError):
        return []
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
    """The traceback from the script's first frame on, else from the first that is not ours."""
    kind, value, trace = sys.exc_info()
    frames = list(_frames(trace))
    files = [Path(frame.tb_frame.f_code.co_filename) for frame in frames]
    of_script = [frame for frame, file in zip(frames, files) if file.resolve() == path.resolve()]
    foreign = [frame for frame, file in zip(frames, files) if not _is_ours(file)]
    first = next(iter(of_script or foreign), None)
    return "".join(traceback.format_exception(kind, value, first)).rstrip()


def _frames(trace: TracebackType | None) -> Iterator[TracebackType]:
    while trace is not None:
        yield trace
        trace = trace.tb_next


def _is_ours(file: Path) -> bool:
    return file.name in ("<frozen runpy>", "runpy.py") or file.parent == Path(__file__).parent


def _versions() -> tuple[tuple[str, str], ...]:
    from . import __version__

    own = (("python", platform.python_version()), ("mosaic-toolkit", __version__))
    return own + installed("jax", "jaxlib", "libtpu", "jax-cuda13-plugin")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
