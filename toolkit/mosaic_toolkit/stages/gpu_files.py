"""Finds a GPU kernel's stages among the files that Mosaic GPU, Triton and XLA left."""

from __future__ import annotations

from pathlib import Path

from ..errors import CompileError, Unsupported

_HINT = "compile the kernel again into an empty directory; ptxas and nvdisasm must be installed"


def one_file(directory: Path, pattern: str, what: str) -> Path:
    """The only file of that pattern in or under a directory.

    Raises:
      CompileError: there is none.
      Unsupported: there are several: more than one kernel was compiled.
    """
    found = sorted(p for p in directory.rglob(pattern) if p.is_file())
    if not found:
        raise CompileError(f"{directory}: the compiler left no {what} ({pattern})", hint=_HINT)
    if len(found) > 1:
        names = ", ".join(p.name for p in found)
        raise Unsupported(
            f"{directory}: {len(found)} files of {what}: {names}; stages are read for one kernel",
            hint="compile one kernel into an empty directory",
        )
    return found[0]


def optional_file(directory: Path, pattern: str, what: str) -> Path | None:
    """As `one_file`, with None for none."""
    return one_file(directory, pattern, what) if any(directory.rglob(pattern)) else None
