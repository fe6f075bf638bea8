"""Reads a compiler's raw files as an ordered list of stages, and writes one file for each."""

from __future__ import annotations

import dataclasses
import functools
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ..errors import CompileError, Unsupported
from .gpu_files import one_file, optional_file
from .mlir_log import split_log
from .normal_form import Form, NormalForm, normal_form
from .stage import Level, Stage, Stages, check_no_gap
from .tpu_files import check_all_written, kernel_unit, llo_files, llo_stage, mosaic_files

FORMAT = "mosaic-toolkit/stages"
FORMAT_VERSION = 1


def read_stages(raw_dir: Path, backend: str) -> Stages:
    """The stages of the one kernel that was compiled into `raw_dir`.

    Args:
      raw_dir: what the compilers left, in the subdirectories ``mosaic`` and
        ``llo`` (TPU), ``mosaic_gpu`` or ``hlo`` (Triton), as
        `recompile.compile_kernel` has them dump.
      backend: a kernel's ``backend``.

    Raises:
      CompileError: a stage that the compiler must have passed through is missing.
      Unsupported: more than one kernel was compiled into `raw_dir`.
    """
    raw_dir = Path(raw_dir)
    if not raw_dir.is_dir():
        raise CompileError(f"{raw_dir}: no such directory of compiler files")
    try:
        read = _READERS[backend]
    except KeyError:
        raise Unsupported(
            f"no stages are known for backend '{backend}'", hint=f"known: {', '.join(_READERS)}"
        ) from None
    return read(raw_dir)


def write_stages(stages: Stages, out_dir: Path) -> Stages:
    """One file per stage and ``manifest.json``; returns the stages at their new places.

    Raises:
      CompileError: `out_dir` holds files already.
    """
    out_dir = Path(out_dir)
    if out_dir.is_dir() and any(out_dir.iterdir()):
        raise CompileError(f"{out_dir}: the directory is not empty", hint="name a new directory")
    out_dir.mkdir(parents=True, exist_ok=True)
    digits = len(str(len(stages)))
    written = []
    for stage in stages:
        path = out_dir / f"{stage.index:0{digits}}-{stage.level}-{_file_name(stage)}"
        path.write_bytes(stage.data())
        written.append(dataclasses.replace(stage, path=path, span=None))
    result = dataclasses.replace(stages, stages=tuple(written))
    manifest = json.dumps(to_json(result), indent=1) + "\n"
    (out_dir / "manifest.json").write_text(manifest, encoding="utf-8")
    return result


def to_json(stages: Stages) -> dict[str, Any]:
    """The manifest; paths by their file's name."""
    fields = ("index", "name", "level", "size", "changed")
    return {
        "format": FORMAT,
        "format_version": FORMAT_VERSION,
        "kernel": stages.kernel,
        "backend": stages.backend,
        "notes": list(stages.notes),
        "stages": [
            {**{f: getattr(stage, f) for f in fields}, "file": stage.path.name} for stage in stages
        ],
    }


def load_stages(out_dir: Path) -> Stages:
    """Reads what `write_stages` wrote.

    Raises:
      CompileError: the manifest is missing or damaged, or a file that it names
        is missing or of another size.
    """
    out_dir = Path(out_dir)
    manifest = out_dir / "manifest.json"
    try:
        data = json.loads(manifest.read_text(encoding="utf-8"))
        if data["format"] != FORMAT or data["format_version"] > FORMAT_VERSION:
            raise ValueError(f"format {data['format']} {data['format_version']}")
        stages = tuple(
            Stage(s["index"], s["name"], s["level"], out_dir / s["file"], s["size"], s["changed"])
            for s in data["stages"]
        )
        result = Stages(data["kernel"], data["backend"], stages, tuple(data["notes"]))
    except FileNotFoundError:
        raise CompileError(f"{manifest}: no such file; expected a manifest of stages") from None
    except (ValueError, KeyError, TypeError) as error:
        raise CompileError(f"{manifest}: not a manifest of stages: {error}") from error
    for stage in result:
        size = stage.path.stat().st_size if stage.path.is_file() else None
        if size != stage.size:
            state = "missing" if size is None else f"{size} bytes long, not {stage.size}"
            raise CompileError(f"{stage.path}: the manifest's stage is {state}")
    return result


class _Comparable:
    """A stage's text, brought to its normal form once, and only where it is asked for."""

    def __init__(self, text: str, form: Form) -> None:
        self.text = text
        self._form = form

    @functools.cached_property
    def normal(self) -> NormalForm | None:
        return normal_form(self.text, self._form)


class _Builder:
    """Numbers stages, and compares each with the last of its own form."""

    def __init__(self) -> None:
        self.stages: list[Stage] = []
        self._last: dict[tuple[Level, Form], _Comparable] = {}

    def add(
        self,
        name: str,
        level: Level,
        path: Path,
        form: Form = Form.OTHER,
        span: tuple[int, int] | None = None,
    ) -> None:
        size = path.stat().st_size if span is None else span[1]
        if size == 0:
            raise CompileError(f"{path}: stage '{name}' is empty")
        stage = Stage(len(self.stages), name, level, path, size, None, span)
        if form is not Form.OTHER:
            after, before = _Comparable(stage.text(), form), self._last.get((level, form))
            if before is not None:
                same = after.text == before.text or after.normal == before.normal
                stage = dataclasses.replace(stage, changed=not same)
            self._last[(level, form)] = after
        self.stages.append(stage)

    def add_log(self, path: Path) -> list[str]:
        """All passes of an MLIR log; returns remarks."""
        entries, unseen = split_log(path)
        for entry in entries:
            self.add(entry.name, "mlir", path, Form.MLIR, (entry.start, entry.length))
        return [
            f"the result of the last pass, {unseen}, is not in the compiler's log, which prints "
            "before each pass"
        ] * (unseen is not None)


def _read_tpu(raw_dir: Path) -> Stages:
    kernel, mosaic = mosaic_files(_directory(raw_dir, "mosaic"))
    llo = _directory(raw_dir, "llo")
    unit = kernel_unit(llo)
    builder = _Builder()
    for file in mosaic:
        form = Form.OTHER if file.path.suffix == ".mlirbc" else Form.MLIR
        builder.add(file.name, "mosaic", file.path, form)
    low_level = llo_files(llo, unit)
    check_no_gap(low_level, f"low-level stages of '{unit}'")
    notes = check_all_written(low_level, unit)
    for file in low_level:
        level, form = llo_stage(file)
        builder.add(file.name, level, file.path, form)
    if not any(file.name == "final_bundles" for file in low_level):
        raise CompileError(
            f"{llo}: no final bundles of '{unit}'; the last stage is '{low_level[-1].name}'",
            hint="the compiler stopped before the end",
        )
    return Stages(kernel, "mosaic_tpu", tuple(builder.stages), tuple(notes))


def _read_mosaic_gpu(raw_dir: Path) -> Stages:
    directory = _directory(raw_dir, "mosaic_gpu")
    log = one_file(directory, "*.mlir-passes.log", "log of MLIR passes")
    builder = _Builder()
    # Only kernels in the dialect (Warpgroup semantics) go through layout inference.
    for name, form in (
        ("before_layout_inference", Form.MLIR),
        ("constraint_system", Form.OTHER),
        ("after_layout_inference", Form.MLIR),
    ):
        path = optional_file(directory, f"*.{name}.txt", name)
        if path is not None:
            builder.add(name, "mosaic", path, form)
    notes = builder.add_log(log)
    builder.add("ptx", "ptx", one_file(directory, "*.ptx", "PTX"))
    builder.add("sass", "sass", one_file(directory, "*.sass*", "SASS"))
    return Stages(log.name.split(".mlir-passes")[0], "mosaic_gpu", tuple(builder.stages), (*notes,))


def _read_triton(raw_dir: Path) -> Stages:
    directory = _directory(raw_dir, "hlo")
    log = one_file(directory, "*.triton-to-llvm.txt", "log of Triton's MLIR passes")
    builder = _Builder()
    notes = builder.add_log(log)
    builder.add("ir-no-opt", "llvm", one_file(directory, "*.ir-no-opt.ll", "LLVM IR"))
    builder.add("ir-with-opt", "llvm", one_file(directory, "*.ir-with-opt.ll", "optimised LLVM IR"))
    builder.add("ptx", "ptx", one_file(directory, "*.ptx", "PTX"))
    builder.add("sass", "sass", one_file(directory, "*.sass*", "SASS"))
    kernel = log.name.removesuffix(".triton-to-llvm.txt").rpartition(".")[2]
    return Stages(kernel, "triton", tuple(builder.stages), (*notes,))


_READERS: dict[str, Callable[[Path], Stages]] = {
    "mosaic_tpu": _read_tpu,
    "mosaic_gpu": _read_mosaic_gpu,
    "triton": _read_triton,
}


def _directory(raw_dir: Path, name: str) -> Path:
    path = raw_dir / name
    if not path.is_dir() or not any(path.iterdir()):
        raise CompileError(
            f"{path}: the compiler left no files there", hint="compile the kernel again"
        )
    return path


def _file_name(stage: Stage) -> str:
    suffix = {"ptx": ".ptx", "sass": ".sass", "llvm": ".ll", "mlir": ".mlir"}.get(stage.level)
    if suffix is None:
        suffix = ".mlirbc" if stage.path.suffix == ".mlirbc" else ".txt"
    return re.sub(r"[^\w.-]+", "_", stage.name) + suffix
