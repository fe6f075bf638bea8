"""Finds a TPU kernel's stages among the files that Mosaic and the low-level optimizer left."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

from ..errors import CompileError, Unsupported
from .normal_form import Form, llo_form
from .stage import DumpFile, Level, check_no_gap

_MOSAIC = re.compile(r"(\d+)-(\d+)-mosaic-dump-(.+)\.(?:txt|mlirbc|mlir)")
_STAMPED = re.compile(r"(\d+)-(.+)")
_NUMBERED = re.compile(r"-(\d+)-(.+)\.\w+")
_KERNEL = re.compile(r'^\s*(?:ROOT )?%([^\s=]+) = .*custom_call_target="tpu_custom_call"', re.M)


# XLA marks an array's memory space after its layout; 1 is VMEM.
_IN_VMEM = r"%{name} = [^=(]*\{{[^}}]*S\(1\)\}}"


def vmem_operands(llo: Path, unit: str) -> list[int]:
    """Operands of the kernel that XLA has put into VMEM before it starts."""
    program = "\n".join(p.read_text(errors="replace") for p in sorted(llo.glob("*-hlo.txt")))
    call = re.search(rf"%{re.escape(unit)} = .*?custom-call\(([^)]*)\)", program)
    names = re.findall(r"%([^\s,]+)", call[1]) if call else []
    return [
        index
        for index, name in enumerate(names)
        if re.search(_IN_VMEM.format(name=re.escape(name)), program)
    ]


def kernel_units(llo: Path) -> list[str]:
    """The instructions of the XLA program that are Mosaic kernels, after which files are named.

    Raises:
      CompileError: the compiler left no program.
    """
    programs = sorted(llo.glob("*-hlo.txt"))
    if not programs:
        raise CompileError(
            f"{llo}: no '*-hlo.txt': the compiler left no program",
            hint="compile with --xla_jf_dump_to and --xla_jf_dump_llo_text=true",
        )
    names = _KERNEL.findall("\n".join(p.read_text(errors="replace") for p in programs))
    return list(dict.fromkeys(names))


def kernel_unit(llo: Path) -> str:
    """The one of `kernel_units`.

    Raises:
      CompileError: the compiler left no program.
      Unsupported: the program calls more than one kernel, or none.
    """
    found = kernel_units(llo)
    if len(found) != 1:
        raise Unsupported(
            f"{llo}: the program calls {len(found)} Mosaic kernels"
            + (f": {', '.join(found)}" if found else "")
            + "; stages are read for one",
            hint="compile one kernel into an empty directory",
        )
    return found[0]


def llo_files(llo: Path, unit: str) -> list[DumpFile]:
    """Every file of one unit in the optimizer's order, analyses included.

    Raises:
      CompileError: there is none.
    """
    files = []
    for path in llo.iterdir():
        stamped = _STAMPED.fullmatch(path.name)
        if stamped and stamped[2].startswith(f"{unit}-"):
            numbered = _NUMBERED.fullmatch(stamped[2][len(unit) :])
            if numbered:
                files.append(DumpFile(int(stamped[1]), int(numbered[1]), numbered[2], path))
    if not files:
        raise CompileError(f"{llo}: no stage of '{unit}' among the compiler's files")
    return sorted(files)


def mosaic_files(mosaic: Path) -> tuple[str, list[DumpFile]]:
    """The kernel's name, and Mosaic's passes in order.

    The compiler reads the module several times before it compiles it; of
    equal texts of one pass in a row the last is kept.

    Raises:
      CompileError: there is none, or one in the middle is missing.
    """
    matches = {p: m for p in mosaic.iterdir() if (m := _MOSAIC.fullmatch(p.name))}
    if not matches:
        raise CompileError(
            f"{mosaic}: no stage of Mosaic among the compiler's files",
            hint="compile with --xla_mosaic_dump_to",
        )
    prefix = _kernel_prefix([m[3] for m in matches.values()])
    files = sorted(
        DumpFile(int(m[1]), int(m[2]), m[3][len(prefix) :], path) for path, m in matches.items()
    )
    check_no_gap(files, f"Mosaic stages of '{prefix[:-1]}'")
    kept = [
        file
        for file, following in zip(files, [*files[1:], None])
        if following is None
        or file.name != following.name
        or file.path.read_bytes() != following.path.read_bytes()
    ]
    return prefix[:-1], kept


def _kernel_prefix(names: list[str]) -> str:
    """``matmul-`` of ``matmul-original``, ``matmul-post-simplify``, ...

    The kernel's name may itself hold ``post-``: the prefix is the longest that
    every name has, and ``original`` ends it where a pass's own name would not.
    """
    ends = {name[: m.start()] for name in names for m in re.finditer("post-", name)}
    return max((e for e in ends if all(n.startswith(e) for n in names)), key=len, default="")


_FINGERPRINT = re.compile(r"^\S+=:i=\S* (\S+)$", re.MULTILINE)


def check_all_written(files: list[DumpFile], unit: str) -> list[str]:
    """Compares with the list of passes that the optimizer writes at its end; returns remarks.

    Raises:
      CompileError: it lists a pass that has no file.
    """
    path = next((file.path for file in files if file.name == "fingerprints"), None)
    if path is None:
        return ["the optimizer left no list of its passes: stages may be missing from this dump"]
    ran = Counter(_FINGERPRINT.findall(path.read_text(errors="replace")))
    missing = list(ran - Counter(file.name for file in files))
    if missing:
        raise CompileError(
            f"low-level stages of '{unit}': {', '.join(missing)} ran, but left no file",
            hint="dump into an empty directory with room on its disk, and without a filter",
        )
    return []


def llo_stage(file: DumpFile) -> tuple[Level, Form]:
    """Level and form of one of `llo_files`."""
    with file.path.open(encoding="utf-8", errors="replace") as text:
        return "llo", llo_form(text.read(4096))
