"""`GpuStatistics`: what the compiled form of a GPU kernel costs, as its compilers' files say."""

from __future__ import annotations

import dataclasses
import math
import re
from pathlib import Path

from ..errors import CompileError
from .gpu_files import one_file, optional_file
from .measure import Allocation, Measure, known, not_reported
from .mlir_log import split_log
from .ptxas import Resources, parse_ptxas
from .sass import Sass, parse_sass


@dataclasses.dataclass(frozen=True)
class GpuStatistics:
    """Static facts of one compiled kernel; how often a loop runs is not among them.

    Attributes:
      kernel: its name in the compiler's files.
      sass: the machine code.
      resources: what ptxas reports.
      dynamic_shared: bytes that a launch asks for on top of ``resources.shared``.
      allocations: shared memory by buffer, where the module names any.
    """

    kernel: str
    sass: Sass
    resources: Resources
    dynamic_shared: Measure
    allocations: tuple[Allocation, ...]


def read_mosaic_gpu_statistics(raw_dir: Path) -> GpuStatistics:
    """Reads the files of one Mosaic GPU kernel that was compiled into `raw_dir`.

    Raises:
      CompileError: SASS or ptxas's report is missing or damaged.
      Unsupported: more than one kernel was compiled.
    """
    directory = _directory(raw_dir, "mosaic_gpu")
    log = one_file(directory, "*.mlir-passes.log", "log of MLIR passes")
    first = _log_text(log, 0)
    dialect = optional_file(directory, "*.before_layout_inference.txt", "dialect module")
    buffers = _slices(dialect.read_text(encoding="utf-8")) if dialect else ()
    kernel = log.name.split(".mlir-passes")[0]
    return _statistics(directory, kernel, _launch_shared(first), buffers)


def read_triton_statistics(raw_dir: Path) -> GpuStatistics:
    """As `read_mosaic_gpu_statistics`, of a Triton kernel."""
    directory = _directory(raw_dir, "hlo")
    log = one_file(directory, "*.triton-to-llvm.txt", "log of Triton's MLIR passes")
    found = re.search(r"\bttg\.shared = (\d+)", _log_text(log, -1))
    shared = known(int(found[1])) if found else not_reported("the module has no ttg.shared")
    kernel = log.name.removesuffix(".triton-to-llvm.txt").rpartition(".")[2]
    return _statistics(directory, kernel, shared, ())


def _statistics(
    directory: Path, kernel: str, shared: Measure, buffers: tuple[Allocation, ...]
) -> GpuStatistics:
    sass = one_file(directory, "*.sass*", "SASS").read_text(encoding="utf-8", errors="replace")
    report = one_file(directory, "*.ptxas", "report of ptxas")
    resources = parse_ptxas(report.read_text(encoding="utf-8", errors="replace"))
    return GpuStatistics(kernel, parse_sass(sass), resources, shared, buffers)


def _directory(raw_dir: Path, name: str) -> Path:
    path = Path(raw_dir) / name
    if not path.is_dir():
        raise CompileError(f"{path}: no such directory of compiler files")
    return path


def _log_text(log: Path, entry: int) -> str:
    place = split_log(log)[0][entry]
    data = log.read_bytes()[place.start : place.start + place.length]
    return data.decode("utf-8", errors="replace")


def _launch_shared(module: str) -> Measure:
    """Of ``gpu.launch ... dynamic_shared_memory_size %c90136_i32`` in a Mosaic GPU module."""
    launch = re.search(r"\bdynamic_shared_memory_size (%[\w$.-]+)", module)
    if launch is None:
        return not_reported("the module's launch names no dynamic shared memory")
    constant = re.search(rf"{re.escape(launch[1])} = arith\.constant (\d+) ", module)
    if constant is None:
        return not_reported("the size of dynamic shared memory is not a constant")
    return known(int(constant[1]))


_SLICE = re.compile(
    r'"mosaic_gpu\.slice_smem"\(\) <\{[^}]*?offset = (\d+) : i32[^}]*\}> : \(\) -> '
    r"memref<((?:\d+x)*)([^,>]+)"
)


def _slices(module: str) -> tuple[Allocation, ...]:
    """Buffers that the dialect cuts out of shared memory, by offset."""
    found = {}
    for offset, dims, element in _SLICE.findall(module):
        shape = f"{dims}{element}"
        sizes = [int(n) for n in dims.split("x") if n]
        found[(int(offset), shape)] = _slice_bytes(sizes, element)
    return tuple(
        Allocation(f"at offset {offset}", "smem", size, shape)
        for (offset, shape), size in sorted(found.items(), key=lambda item: item[0])
    )


def _slice_bytes(sizes: list[int], element: str) -> Measure:
    if element == "!mosaic_gpu.barrier":
        return known(8 * math.prod(sizes))
    bits = re.fullmatch(r"(?:bf|f|i|ui|si)(\d+)(?:E\w+)?", element)
    if bits is None:
        return not_reported(f"the size of {element} is not known")
    return known(math.prod(sizes) * int(bits[1]) // 8)
