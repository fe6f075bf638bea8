"""SASS of kernels whose compiler dumps PTX and no more."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

from ..errors import CompileError

_TARGET = re.compile(r"^\.target (\w+)", re.MULTILINE)


def disassemble(folder: Path, toolkit: Path) -> None:
    """Assembles each ``.ptx`` in a folder again and disassembles the result.

    Writes ``.cubin``, ``.ptxas`` (what ptxas says of registers, spills and memory)
    and ``.sass`` beside it.

    Args:
      folder: of the dump.
      toolkit: a directory with ``bin/ptxas`` and ``bin/nvdisasm``.

    Raises:
      CompileError: a tool is missing or refuses its input.
    """
    for ptx in sorted(folder.glob("*.ptx")):
        chip = _TARGET.search(ptx.read_text(encoding="utf-8"))
        if chip is None:
            raise CompileError(f"{ptx.name} has no .target line", hint="is it truncated?")
        cubin = ptx.with_suffix(".cubin")
        arguments = ["-v", f"--gpu-name={chip[1]}", f"--output-file={cubin}", str(ptx)]
        ptx.with_suffix(".ptxas").write_text(_run(toolkit / "bin/ptxas", *arguments).stderr)
        sass = _run(toolkit / "bin/nvdisasm", "--print-code", "--print-line-info", str(cubin))
        ptx.with_suffix(".sass").write_text(sass.stdout)


def _run(tool: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run([str(tool), *arguments], capture_output=True, text=True, check=True)
    except FileNotFoundError as error:
        raise CompileError(
            f"{tool.name}, which dumps need, is not installed",
            hint="pip install 'mosaic-toolkit[gpu]'",
        ) from error
    except subprocess.CalledProcessError as error:
        raise CompileError(f"{tool.name}: {error.stderr.strip()}") from error
