"""`TpuStatistics`: what the compiled form of a TPU kernel costs, as its compiler's files say."""

from __future__ import annotations

import dataclasses
import json
import math
import re
from pathlib import Path

from ..errors import CompileError
from .bundles import (
    Bundle,
    Copy,
    copies,
    find_loops,
    parse_bundles,
    registers,
    source_lines,
    spills,
)
from .measure import Allocation, Count, Measure, known, not_reported
from .stage import DumpFile
from .tpu_files import kernel_unit, llo_files, mosaic_files, vmem_operands
from .utilization import Utilization, parse_utilization

# For `recompile.compile_kernel`: a dump of these alone suffices for statistics.
STATISTICS_PASSES = "final|post-delay-converter|register-pressure|hlo|vmem_report"


@dataclasses.dataclass(frozen=True)
class SlotUse:
    """How much of one unit's instruction slots is used.

    Attributes:
      unit: as the compiler's file names it, for example ``MATMUL`` or ``VALU``.
      used: slots filled, over all bundles.
      available: slots of one bundle times bundles.
    """

    unit: str
    used: int
    available: int

    @property
    def occupancy(self) -> float:
        """Of 1."""
        return self.used / self.available if self.available else 0.0


@dataclasses.dataclass(frozen=True)
class BundleLoop:
    """The body of one loop, inner loops included.

    Attributes:
      depth: 1 for an outermost loop; the grid's pipeline is one.
      first, last: addresses of its first bundle and of the last delay slot of
        the branch back.
      bundles, empty_bundles: in the body, each counted once.
      slots: by unit; empty where the compiler left no utilization that fits.
      copied_bytes: of the copies that the body holds, predicated ones included:
        the most that one iteration can start.
    """

    depth: int
    first: int
    last: int
    bundles: int
    empty_bundles: int
    slots: tuple[SlotUse, ...]
    copied_bytes: Measure


@dataclasses.dataclass(frozen=True)
class TpuStatistics:
    """Static facts of one compiled kernel; how often a loop runs is not among them.

    Attributes:
      kernel: the program's instruction that it is.
      bundles, empty_bundles: in all.
      slots: by unit.
      loops: in the order of their first bundle.
      vector_spills, vector_fills, scalar_spills, scalar_fills: instructions that
        store to and load from spill slots.
      registers: physical registers that the bundles name, by file: ``v``
        vector, ``vm`` mask, ``s`` scalar, ``p`` predicate.
      pressure: values alive at once before allocation, by the compiler's name for
        the file; it reports some files of some kernels alone.
      emitted_bundles: of machine code, as the program's table of instructions says.
      code_bytes: of machine code.
      allocations: on-chip memory by named buffer.
      vmem_bytes: the compiler's total for the kernel.
      vmem_capacity: of the chip, as the compiler has it.
      copies: the asynchronous copy instructions.
      lines: instructions by Python ``file:line``, most first; empty where the
        compiler was not told to keep lines.
      without_line: instructions that name no line, the pipeline's own among them.
      notes: where two of the compiler's files disagree, and what the program
        around the kernel does in its place.
    """

    kernel: str
    bundles: Measure
    empty_bundles: Measure
    slots: tuple[SlotUse, ...]
    loops: tuple[BundleLoop, ...]
    vector_spills: Measure
    vector_fills: Measure
    scalar_spills: Measure
    scalar_fills: Measure
    registers: tuple[Count, ...]
    pressure: tuple[Count, ...]
    emitted_bundles: Measure
    code_bytes: Measure
    allocations: tuple[Allocation, ...]
    vmem_bytes: Measure
    vmem_capacity: Measure
    copies: tuple[Copy, ...]
    lines: tuple[Count, ...]
    without_line: int
    notes: tuple[str, ...]


def read_tpu_statistics(raw_dir: Path) -> TpuStatistics:
    """Reads the files of one kernel that was compiled into `raw_dir`.

    Raises:
      CompileError: the final bundles are missing, or a file is damaged.
      Unsupported: more than one kernel was compiled.
    """
    llo = Path(raw_dir) / "llo"
    if not llo.is_dir():
        raise CompileError(f"{llo}: no such directory of compiler files")
    unit = kernel_unit(llo)
    files = llo_files(llo, unit)
    final = _last(files, "final_bundles")
    if final is None:
        raise CompileError(
            f"{llo}: no final bundles of '{unit}'", hint="the compiler stopped before the end"
        )
    bundles = parse_bundles(_text(final))
    use, notes = _utilization(files, len(bundles))
    notes += _disagreements(files, bundles) + _prefetched(llo, unit)
    moved = copies(bundles, _copy_sizes(Path(raw_dir) / "mosaic"))
    spilled = spills(bundles)
    lines, without_line = source_lines(bundles)
    vmem, capacity = _vmem(llo, unit)
    allocations = _allocations(files)
    if not allocations:
        notes.append("memory by buffer: not reported (no stage in the dump declares any)")
    return TpuStatistics(
        kernel=unit,
        bundles=known(len(bundles)),
        empty_bundles=known(_empty(bundles)),
        slots=_slots(use, 0, len(bundles)),
        loops=tuple(_loop(bundles, use, moved, *place) for place in find_loops(bundles)),
        vector_spills=known(spilled["vst"]),
        vector_fills=known(spilled["vld"]),
        scalar_spills=known(spilled["sst"]),
        scalar_fills=known(spilled["sld"]),
        registers=tuple(Count(file, count) for file, count in registers(bundles).items()),
        pressure=_pressure(files),
        emitted_bundles=_emitted(llo, unit),
        code_bytes=not_reported("no file says how long an encoded bundle is"),
        allocations=allocations,
        vmem_bytes=vmem,
        vmem_capacity=capacity,
        copies=tuple(moved),
        lines=tuple(Count(line, count) for line, count in lines.items()),
        without_line=without_line,
        notes=tuple(notes),
    )


def _last(files: list[DumpFile], name: str) -> Path | None:
    return next((f.path for f in reversed(files) if f.name == name), None)


def _text(path: Path) -> str:
    return path.read_text(encoding="utf-8", errors="replace")


def _empty(bundles: list[Bundle]) -> int:
    return sum(not bundle.code for bundle in bundles)


def _utilization(files: list[DumpFile], bundles: int) -> tuple[Utilization | None, list[str]]:
    path = _last(files, "final_hlo-static-per-bundle-utilization")
    if path is None:
        return None, ["slot occupancy: not reported (the compiler left no utilization file)"]
    use = parse_utilization(_text(path))
    if len(use.rows) != bundles:
        why = f"the utilization file has {len(use.rows)} bundles, the final bundles {bundles}"
        return None, [f"slot occupancy: not reported ({why})"]
    return use, []


def _slots(use: Utilization | None, first: int, stop: int) -> tuple[SlotUse, ...]:
    if use is None:
        return ()
    rows = use.rows[first:stop]
    return tuple(
        SlotUse(unit, sum(row[column] for row in rows), capacity * len(rows))
        for column, (unit, capacity) in enumerate(zip(use.units, use.capacity))
    )


def _loop(
    bundles: list[Bundle],
    use: Utilization | None,
    moved: list[Copy],
    depth: int,
    first: int,
    last: int,
) -> BundleLoop:
    body = bundles[first : last + 1]
    sizes = [copy.bytes for copy in moved if first <= copy.address <= last]
    unknown = next((size for size in sizes if size.value is None), None)
    copied = unknown or known(sum(size.value or 0 for size in sizes))
    slots = _slots(use, first, last + 1)
    return BundleLoop(depth, first, last, len(body), _empty(body), slots, copied)


_ENQUEUE = re.compile(r"\benqueue_dma\b[^\n]*?: memref<((?:\d+x)*)(?:bf|f|i|ui|si)(\d+)\b")


def _copy_sizes(mosaic: Path) -> set[int]:
    """Bytes of the copies that the module asks for, before any pass."""
    if not mosaic.is_dir():
        return set()
    _, files = mosaic_files(mosaic)
    return {
        math.prod(int(n) for n in dims.split("x") if n) * int(bits) // 8
        for dims, bits in _ENQUEUE.findall(_text(files[0].path))
    }


_ANALYSIS = re.compile(r"^\s*(total|empty) scheduled bundles:\s+(\d+)", re.MULTILINE)


def _disagreements(files: list[DumpFile], bundles: list[Bundle]) -> list[str]:
    path = _last(files, "schedule-analysis_final_bundles")
    if path is None:
        return []
    said = {name: int(count) for name, count in _ANALYSIS.findall(_text(path))}
    ours = {"total": len(bundles), "empty": _empty(bundles)}
    return [
        f"{name} bundles: the schedule analysis says {count}, the final bundles hold {ours[name]}"
        for name, count in said.items()
        if count != ours[name]
    ]


_PRESSURE = re.compile(r"Register pressure for (\w+) is (\d+)")


def _pressure(files: list[DumpFile]) -> tuple[Count, ...]:
    reports = [_text(f.path) for f in files if f.name.endswith("register-pressure")]
    peaks: dict[str, int] = {}
    for name, count in _PRESSURE.findall("\n".join(reports)):
        peaks[name] = max(peaks.get(name, 0), int(count))
    return tuple(Count(name, count) for name, count in peaks.items())


def _prefetched(llo: Path, unit: str) -> list[str]:
    moved = vmem_operands(llo, unit)
    if not moved:
        return []
    which = (
        f"operand {moved[0]} is"
        if len(moved) == 1
        else (f"operands {', '.join(map(str, moved))} are")
    )
    return [f"{which} in VMEM before the kernel starts: XLA, not the kernel, copies from HBM"]


_RANGE = re.compile(r"range: \[\w+:\d+:(0x[0-9a-f]+), \w+:\d+:(0x[0-9a-f]+)\)")


def _emitted(llo: Path, unit: str) -> Measure:
    tables = sorted(llo.glob("*-hlo-details.txt"))
    for entry in re.split(r"^HLO:", _text(tables[-1]), flags=re.M) if tables else ():
        place = _RANGE.search(entry)
        if f"operation: %{unit} = " in entry and place:
            return known(int(place[2], 16) - int(place[1], 16))
    return not_reported("the program's table of instructions does not place the kernel")


_ALLOCATION = re.compile(
    r"^\s*#allocation\d+\w* \[shape = '([^']*)', space=(\w+), size = (0x[0-9a-f]+)"
    r"[^\n]*?tag = '([^\n]*)'\]",
    re.MULTILINE,
)
_UNSIZED = 0xFFFFFFFFFFFFFFFF


def _allocations(files: list[DumpFile]) -> tuple[Allocation, ...]:
    """Of the last stage that declares any, for the final bundles do not."""
    for file in reversed(files):
        found = _ALLOCATION.findall(_text(file.path)) if file.name.startswith("post-") else ()
        if found:
            return tuple(
                Allocation(
                    tag.partition(". ")[0], space, _size(int(size, 16)), _window(tag) or shape
                )
                for shape, space, size, tag in found
            )
    return ()


def _window(tag: str) -> str | None:
    """``bf16[256,256] x 2`` of a window's tag, whose declared shape is bytes alone."""
    shape = re.search(r"The window shape is ([^ ]+), while", tag)
    slots = re.search(r"This allocation has (\d+) buffering levels", tag)
    return shape and shape[1] + (f" x {slots[1]}" if slots else "")


def _size(count: int) -> Measure:
    return known(count) if count != _UNSIZED else not_reported("sized when the program is linked")


def _vmem(llo: Path, unit: str) -> tuple[Measure, Measure]:
    """The kernel's bytes, and the chip's."""
    reports = sorted(llo.glob("*-vmem_report.html"))
    if not reports:
        missing = not_reported("the compiler left no VMEM report")
        return missing, missing
    text = _text(reports[-1])
    start = re.search(r"\bDATA\s*=\s*", text)
    try:
        data = json.JSONDecoder().raw_decode(text, start.end())[0] if start else {}
        capacity = known(int(data["global_info"]["vmem_capacity"]))
        kernel = data["hlo_breakdowns"].get(unit)
        total = known(int(kernel["total_size"])) if kernel else None
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        missing = not_reported(f"the VMEM report is in another form: {type(error).__name__}")
        return missing, missing
    return total or not_reported("the VMEM report does not list the kernel"), capacity
