"""The machine code that compilers left in a dump, up to names: equal for the same instructions."""

from __future__ import annotations

import re
from pathlib import Path

from mosaic_toolkit.stages.normal_form import Form, normal_form
from mosaic_toolkit.stages.tpu_files import kernel_units, llo_files

type Code = tuple


def code_of(dump: Path) -> list[Code]:
    """The code of each kernel that was compiled into a dump, in no order."""
    if (dump / "llo").is_dir():  # of a TPU
        return [*_tensor_core(dump / "llo"), *_sparse_core(dump / "sparsecore")]
    return [code for path in sorted(dump.glob("*/*.sass*")) for code in _sass(path.read_text())]


def _tensor_core(llo: Path) -> list[Code]:
    codes = []
    for unit in kernel_units(llo):
        files = [f for f in llo.iterdir() if f.name.partition("-")[2].startswith(f"{unit}-")]
        if files:  # a SparseCore kernel leaves none here
            (bundles,) = (f.path for f in llo_files(llo, unit) if f.name == "final_bundles")
            form = normal_form(_nameless(bundles.read_text()), Form.BUNDLES)
            assert form is not None
            codes.append(("bundles", form))
    return codes


# Shapes of operands stand in the bundle that the kernel is entered through.
_ENTRY = re.compile(r" \[shape: [^\n]*?shape index: \{[^}]*\}\]")


def _nameless(bundles: str) -> str:
    return _ENTRY.sub("", bundles)


def _sparse_core(folder: Path) -> list[Code]:
    """All of a program's, which stands in one file."""
    return [
        ("sparse core", " ".join(path.read_text().split()))
        for path in sorted(folder.glob("*_bundles.txt"))
    ]


_SECTION = re.compile(r'^\s*\.section\s+\.text\.([^\s",]+)', re.MULTILINE)
_INSTRUCTION = re.compile(r"^\s*(?:[-\w:]+\s+)?/\*[0-9a-f]{4,}\*/\s+(.*?)\s*$", re.MULTILINE)
_LABEL = re.compile(r"^(\.L_\w+):", re.MULTILINE)


def _sass(text: str) -> list[Code]:
    starts = list(_SECTION.finditer(text))
    ends = [start.start() for start in starts[1:]] + [len(text)]
    return [
        ("sass", *_instructions(text[start.end() : end], start[1]))
        for start, end in zip(starts, ends)
    ]


def _instructions(section: str, kernel: str) -> list[str]:
    """Instructions with their control codes and the labels between them, numbered in order."""
    section = section.replace(kernel, "kernel")
    labels = {name: f"L{number}" for number, name in enumerate(_LABEL.findall(section))}
    lines = (
        line.strip()
        for line in section.splitlines()
        if _INSTRUCTION.match(line) or _LABEL.match(line)
    )
    return [re.sub(r"\.L_\w+", lambda m: labels.get(m[0], m[0]), line) for line in lines]
