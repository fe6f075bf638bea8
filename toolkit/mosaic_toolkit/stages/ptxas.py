"""Reads what ptxas, NVIDIA's assembler, reports of a kernel's resources."""

from __future__ import annotations

import dataclasses
import re

from ..errors import CompileError
from .measure import Measure, known, not_reported


@dataclasses.dataclass(frozen=True)
class Resources:
    """What ptxas reports of one kernel.

    Attributes:
      registers: of one thread.
      stack, spill_stores, spill_loads: bytes of one thread.
      shared: bytes, declared at compile time, of one block.
      barriers: of one block.
      warnings: ptxas's warnings and remarks on lost performance, verbatim.
    """

    registers: Measure
    stack: Measure
    spill_stores: Measure
    spill_loads: Measure
    shared: Measure
    barriers: Measure
    warnings: tuple[str, ...]


_REMARK = re.compile(r"^.*(?:\bwarning\b|\bPotential Performance Loss\b).*$", re.MULTILINE | re.I)


def parse_ptxas(text: str) -> Resources:
    """Reads ``ptxas -v``'s report.

    Raises:
      CompileError: it reports on no kernel, or on several.
    """
    kernels = re.findall(r"Compiling entry function '([^']+)'", text)
    if len(kernels) != 1:
        raise CompileError(
            f"ptxas reports on {len(kernels)} kernels"
            + (f": {', '.join(kernels)}" if kernels else "")
        )

    def of(pattern: str, why: str = "ptxas does not say") -> Measure:
        found = re.search(pattern, text)
        return known(int(found[1])) if found else not_reported(why)

    unused = "ptxas leaves out what a kernel does not use"
    return Resources(
        of(r"Used (\d+) registers"),
        of(r"(\d+) bytes stack frame"),
        of(r"(\d+) bytes spill stores"),
        of(r"(\d+) bytes spill loads"),
        of(r"(\d+) bytes smem", unused),
        of(r"used (\d+) barriers", unused),
        tuple(dict.fromkeys(m.strip() for m in _REMARK.findall(text))),
    )
