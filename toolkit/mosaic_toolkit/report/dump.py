"""What ``mosaic-dump SCRIPT`` says: the table of kernels, failures and remarks."""

from __future__ import annotations

import dataclasses
import re
import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from ..capture import Failure
from ..dump import Dump, Run
from .table import table


def render(directory: Path, dump: Dump) -> str:
    """One row per kernel captured or failed, then where it was written."""
    rows = [
        (
            kernel.name,
            kernel.backend,
            kernel.level,
            kernel.target,
            _grid(kernel.grid),
            ", ".join(map(str, kernel.operands)),
            ", ".join(map(str, kernel.results)),
            _tail(kernel.source),
        )
        for _, kernel in dump.kernels
    ]
    rows += [
        (f.name, f.backend, "FAILED", f.target, "", "", "", _tail(f.source))
        for f in dump.run.failures
    ]
    head = ("kernel", "backend", "level", "target", "grid", "operands", "results", "source")
    paths = "\n".join(str(directory / name) for name, _ in dump.kernels)
    return f"{table(head, rows)}\n\n{paths}" if paths else table(head, rows)


def _grid(grid: Sequence[int | None]) -> str:
    return "x".join("?" if bound is None else str(bound) for bound in grid) or "-"


def _tail(source: str | None) -> str:
    return Path(source).name if source else "-"


def remarks(run: Run) -> Iterator[str]:
    """Failures with their reasons, notes, and the script's traceback."""
    for failure in run.failures:
        yield f"error: {_sentence(failure)}"
    for refusal in run.refusals:
        yield f"note: {_sentence(refusal)}"
    for note in run.notes:
        yield f"note: {note}"
    if run.traceback:
        yield f"the script did not finish; what it lowered before was kept\n{run.traceback}"


def interpreter_failed(run: Run) -> bool:
    """Whether a script ended because JAX's interpret mode failed while a kernel ran in it."""
    return re.search(r"/jax/_src/pallas/[\w/]*interpret", run.traceback or "") is not None


def _sentence(failure: Failure) -> str:
    at = f" ({failure.source})" if failure.source else ""
    return (
        f"kernel '{failure.name}' does not lower for {failure.backend} "
        f"on {failure.target}{at}: {failure.error}"
    )


def nothing_lowered(script: Path, functions: Sequence[str]) -> str:
    """What to do about a script that lowers no kernel."""
    text = f"error: {script} ran, and lowered no kernel"
    if not functions:
        return f"{text}\n\nhint: it defines no function either; call one under jax.jit"
    names = ", ".join(functions)
    return (
        f"{text}; it defines: {names}\n\nhint: lower one of them: "
        f"mosaic-dump {shlex.quote(str(script))} --call {functions[0]} --arg 'bf16[128,128]' ..."
    )


def with_command(run: Run, argv: Sequence[str]) -> Run:
    """The run, with the command line that it came from."""
    return dataclasses.replace(run, command=("mosaic-dump", *argv[1:]))


def to_json(directory: Path, dump: Dump) -> dict[str, Any]:
    """The dump without the modules."""
    return {
        "directory": str(directory),
        **dump.run.to_json(),
        "kernels": [
            {"path": str(directory / name), **_described(kernel.to_json())}
            for name, kernel in dump.kernels
        ],
    }


def _described(data: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in data.items() if key not in ("attributes", "encoding")}
