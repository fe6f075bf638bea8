"""A dump: what one run captured, as a directory.

    DIRECTORY/manifest.json                       what was run, and what came of it
    DIRECTORY/NAME.BACKEND.TARGET/kernel.mlir     one kernel, see `kernel`
    DIRECTORY/NAME.BACKEND.TARGET/kernel.json

A dump is written beside its place and renamed into it, so that no run ever sees
half of one, or two mixed.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import re
import shutil
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from .capture import Failure
from .errors import InvalidModule, ToolkitError
from .kernel import Kernel, check_version, load, save, write_atomically

FORMAT = "mosaic-toolkit/dump"
FORMAT_VERSION = 1
KERNEL_FILE = "kernel.mlir"


@dataclasses.dataclass(frozen=True)
class Run:
    """How a script, or one of its functions, was run for the dump.

    Attributes:
      command: the arguments of ``mosaic-dump``.
      targets: names of the chips.
      versions: of Python, the toolkit, JAX and the compilers.
      failures: kernels that could not be lowered.
      refusals: backends that did not accept a kernel which another accepted.
      notes: what to know of the values that the program got.
      traceback: of the script, where it raised or died.
      functions: that the script defines, where it lowered no kernel.
    """

    command: tuple[str, ...] = ()
    targets: tuple[str, ...] = ()
    versions: tuple[tuple[str, str], ...] = ()
    failures: tuple[Failure, ...] = ()
    refusals: tuple[Failure, ...] = ()
    notes: tuple[str, ...] = ()
    traceback: str | None = None
    functions: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        return {
            **dataclasses.asdict(self),
            "versions": dict(self.versions),
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Run:
        return cls(
            command=tuple(data["command"]),
            targets=tuple(data["targets"]),
            versions=tuple(data["versions"].items()),
            failures=tuple(Failure(**failure) for failure in data["failures"]),
            refusals=tuple(Failure(**failure) for failure in data["refusals"]),
            notes=tuple(data["notes"]),
            traceback=data["traceback"],
            functions=tuple(data["functions"]),
        )


@dataclasses.dataclass(frozen=True)
class Dump:
    """Kernels by the name of their directory, and the run that they come from."""

    kernels: tuple[tuple[str, Kernel], ...]
    run: Run


def directory_names(kernels: Iterable[Kernel]) -> list[str]:
    """A file name for each kernel, unique whatever the file system folds together."""
    names: list[str] = []
    taken: set[str] = set()
    for kernel in kernels:
        safe = re.sub(r"[^A-Za-z0-9_+-]+", "_", kernel.name).strip("_")[:80] or "kernel"
        name = base = f"{safe}.{kernel.backend}.{kernel.target}"
        number = 1
        while name.lower() in taken:
            number += 1
            name = f"{base}-{number}"
        taken.add(name.lower())
        names.append(name)
    return names


def check_destination(directory: Path, *, overwrite: bool) -> None:
    """Raises ToolkitError where a dump may not be written to `directory`."""
    if not directory.exists():
        parent = next(p for p in directory.absolute().parents if p.exists())
        if not (parent.is_dir() and os.access(parent, os.W_OK)):
            raise ToolkitError(f"{directory}: cannot be made in {parent}", hint="-o names another")
        return
    if not overwrite:
        raise ToolkitError(
            f"{directory} exists", hint="--overwrite replaces it, -o DIRECTORY writes elsewhere"
        )
    if not directory.is_dir() or not (directory / "manifest.json").exists():
        raise ToolkitError(
            f"{directory} is no dump (it has no manifest.json), so it is not replaced",
            hint="-o DIRECTORY writes elsewhere",
        )


def write_dump(directory: Path, kernels: Iterable[Kernel], run: Run, *, overwrite: bool) -> Dump:
    """Writes a dump and puts it in its place at once.

    Raises:
      ToolkitError: the place is taken, and is no dump or `overwrite` is not set.
    """
    kernels = list(kernels)
    named = tuple(zip(directory_names(kernels), kernels))
    check_destination(directory, overwrite=overwrite)
    with _staging(directory) as staging:
        for name, kernel in named:
            (staging / name).mkdir()
            save(kernel, staging / name / KERNEL_FILE)
        manifest = {
            "format": FORMAT,
            "format_version": FORMAT_VERSION,
            **run.to_json(),
            "kernels": [{"directory": name, **_summary(kernel)} for name, kernel in named],
        }
        write_atomically(staging / "manifest.json", json.dumps(manifest, indent=1) + "\n")
        _put_in_place(staging, directory, overwrite=overwrite)
    return Dump(named, run)


@contextlib.contextmanager
def _staging(directory: Path) -> Iterator[Path]:
    directory.parent.mkdir(parents=True, exist_ok=True)
    staging = Path(tempfile.mkdtemp(dir=directory.parent, prefix=f".{directory.name}."))
    staging.chmod(0o755)
    try:
        yield staging
    finally:
        shutil.rmtree(staging, ignore_errors=True)


def _put_in_place(staging: Path, directory: Path, *, overwrite: bool) -> None:
    check_destination(directory, overwrite=overwrite)
    if directory.exists():
        with _staging(directory) as old:
            directory.rename(old / "old")
            try:
                staging.rename(directory)
            except BaseException:
                (old / "old").rename(directory)
                raise
        return
    try:
        staging.rename(directory)
    except OSError as error:
        raise ToolkitError(
            f"{directory} appeared while the kernels were captured ({error.strerror})",
            hint="-o DIRECTORY writes elsewhere",
        ) from error


def _summary(kernel: Kernel) -> dict[str, Any]:
    data = kernel.to_json()
    keys = ("name", "backend", "level", "target", "operands", "results", "grid", "source")
    return {key: data[key] for key in keys}


def load_dump(directory: Path) -> Dump:
    """Reads a dump back.

    Raises:
      InvalidModule: the manifest or a kernel is missing, damaged, foreign or newer.
    """
    path = directory / "manifest.json"
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise InvalidModule(f"{directory}: no manifest.json; expected a dump") from None
    except OSError as error:
        raise InvalidModule(f"{path}: {error.strerror}; expected a dump") from error
    except (UnicodeDecodeError, json.JSONDecodeError) as error:
        raise InvalidModule(f"{path}: not JSON: {error}", hint="dump the script again") from error
    if not isinstance(data, dict) or data.get("format") != FORMAT:
        raise InvalidModule(f'{path}: expected a dump\'s manifest ("format": "{FORMAT}")')
    check_version(path, data, FORMAT_VERSION)
    try:
        run = Run.from_json(data)
        names = [str(entry["directory"]) for entry in data["kernels"]]
    except (KeyError, TypeError, AttributeError) as error:
        raise InvalidModule(f"{path}: damaged: {error!r}", hint="dump the script again") from error
    return Dump(tuple((name, load(directory / name / KERNEL_FILE)) for name in names), run)
