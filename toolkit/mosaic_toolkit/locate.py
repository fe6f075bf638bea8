"""Finding the kernel that a command-line argument names."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from .dump import KERNEL_FILE, directory_names, load_dump
from .errors import InvalidModule, ToolkitError
from .kernel import Kernel, load


def find_kernel(text: str) -> Kernel:
    """The kernel of a ``.mlir`` file, a kernel's directory, or ``SCRIPT.py::NAME``.

    A dump that holds one kernel names that kernel.  ``SCRIPT.py::NAME`` runs the
    script; NAME is a kernel's name, or its directory's where that is ambiguous.

    Raises:
      ToolkitError: there is no such kernel, or several; lists what there is.
    """
    script, separator, name = text.partition("::")
    if separator:
        return _of_script(Path(script), name)
    path = Path(text)
    if not path.is_dir():
        if path.suffix != ".mlir":
            raise InvalidModule(
                f"{text}: expected a .mlir file, a kernel's directory or SCRIPT.py::NAME",
                hint=f"mosaic-dump {text} captures the script's kernels"
                if path.suffix == ".py"
                else None,
            )
        return load(path)
    if (path / KERNEL_FILE).exists():
        return load(path / KERNEL_FILE)
    kernels = load_dump(path).kernels
    if len(kernels) != 1:
        raise InvalidModule(
            f"{path} holds {len(kernels)} kernels",
            hint=f"name one: {_listing([str(path / name) for name, _ in kernels])}",
        )
    return kernels[0][1]


def find_kernels(text: str) -> tuple[tuple[str, Kernel], ...]:
    """The kernels that `text` names, with a name for each: as `find_kernel`, or all of a dump.

    Raises:
      ToolkitError: there is none.
    """
    path = Path(text)
    if path.is_dir() and not (path / KERNEL_FILE).exists() and (found := load_dump(path).kernels):
        return found
    kernel = find_kernel(text)
    return ((kernel.name, kernel),)


def _of_script(path: Path, name: str) -> Kernel:
    from .runner import Script, run_script

    kernels, run = run_script(Script(path, run=False), None)
    named = list(zip(directory_names(kernels), kernels))
    found = [(full, kernel) for full, kernel in named if name in (full, kernel.name)]
    if len(found) == 1:
        return found[0][1]
    if not found:
        raise ToolkitError(
            f"{path} lowered no kernel '{name}'" + (f":\n{run.traceback}" if run.traceback else ""),
            hint=f"it lowered: {_listing([full for full, _ in named])}" if named else None,
        )
    raise ToolkitError(
        f"{path} lowered {len(found)} kernels named '{name}'",
        hint=f"name one: {_listing([f'{path}::{full}' for full, _ in found])}",
    )


def _listing(names: Sequence[str], most: int = 12) -> str:
    shown = "".join(f"\n  {name}" for name in names[:most])
    return shown + (f"\n  ... and {len(names) - most} more" if len(names) > most else "")
