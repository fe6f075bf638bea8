"""Compilers' words, made into a `CompileError` that says where and what to do."""

from __future__ import annotations

import re
from pathlib import Path

from ..errors import CompileError
from ..kernel import Kernel
from ..memory_budget import memory_budget
from ..report.memory import remedy_lines, render_tables
from ..report.units import size
from ..schedule import raise_schedule
from .process import Ending

_MOST_CHARACTERS = 1500

# Log lines of the compilers, and stack traces of their own code.
_NOISE = re.compile(
    r"^(?:[IW]\d{4} .*|\s*@\s+0x.*|WARNING: All log messages before absl.*|E\d{4} .*cuda.*"
    r"|\*\*\* .*|PC: @.*|\s*(?:\(|\.\.\.\s).*more.*)$"
)
_FATAL = re.compile(r"^F\d{4} [\d:.]+\s+\d+ (?P<where>[\w.]+:\d+)\] (?P<what>.*)", re.MULTILINE)
_FRAME = re.compile(r"^(?:PC:|\s)\s*@\s+0x\w+\s+\S+\s+(?!\(unknown\))(\S.*)$", re.MULTILINE)
_MACHINERY = re.compile(r"FailureSignalHandler|std::__u|absl::|Thread")
_STATUS = re.compile(r"^(?:INTERNAL|INVALID_ARGUMENT|UNIMPLEMENTED|UNKNOWN): ")
_PYTHON_LINE = re.compile(r'"([^"<>]+\.py)":(\d+)')
_OPERATION = re.compile(r"The MLIR operation involved:\s*\n\s*(?P<op>.+)")
_NAME = re.compile(r"(?:^|= )\"?(?P<name>[a-z_]\w*\.[\w.]+)\"?[ (<]")
_REPORT = re.compile(r"\n*Please report a bug at: \S+\s*")
_LOCATION = re.compile(r"^at location: .*$|^\s*at loc\(.*\)$", re.MULTILINE)

_NO_ROOM = r"exceed memory|Ran out of memory|[Ee]xceed(?:s|ed)? .*(?:vmem|smem|shared memory)"

# What to do about words of the compilers; the first that match.
_HINTS = (
    (
        r"Ran out of memory on HBM",
        "operands and results do not fit in the chip's memory: smaller arrays, or a larger chip",
    ),
    (
        _NO_ROOM,
        "smaller blocks, fewer buffers ('pipeline-depth{stages=1}' keeps one of each window) "
        "or a chip with more on-chip memory",
    ),
    (
        r"memory space: sflag|SflagMemorySpace",
        "a kernel that starts what another one waits for hands it a semaphore, which no program "
        "takes or returns: it compiles inside the user's program alone",
    ),
    (
        r"MOSAIC_GPU_NVSHMEM",
        "pip install nvidia-nvshmem-cu13, which kernels that span GPUs need",
    ),
    (
        r"Not [Ii]mplemented|[Uu]nsupported|not supported",
        "the compiler has no way to do this for this chip: other block shapes, another "
        "generation or a newer compiler may",
    ),
)
_HINT_CRASH = (
    "a bug in the compiler that this module provokes; compile with a dump directory to keep "
    "stablehlo.mlir and the stages before the crash for a report"
)
_HINT_REPORT = (
    "a bug in the compiler that this module provokes; report it with stablehlo.mlir and the "
    "stages dumped beside it"
)


def refusal(kernel: Kernel, stage: str, error: str, words: str) -> CompileError:
    """The error for a compiler that raised.

    Args:
      kernel: what was compiled, for its target.
      stage: what the worker was doing.
      error: name of the exception's type.
      words: its message.
    """
    operation = _operation(words)
    subject = f"{stage} failed" + (f" at '{operation}'" if operation else "")
    text = _trim(words) or error
    if not _STATUS.match(words) and "JaxRuntimeError" not in error:
        text = f"{error}: {text}"
    message = f"{_where(kernel, words)}: {subject}: {text}"
    if re.search(_NO_ROOM, words) and "on HBM" not in words:
        return does_not_fit(kernel, message)
    return CompileError(message, hint=_hint(words))


def does_not_fit(kernel: Kernel, message: str) -> CompileError:
    """The error for a kernel without room on the chip: what takes how much, and what to shrink."""
    budget = memory_budget(raise_schedule(kernel))
    remedies = [line for use in budget.over for line in remedy_lines(use)]
    return CompileError(
        "\n\n".join(filter(None, (message, render_tables(budget)))),
        hint="; or ".join(remedies) or _hint(message),
    )


def crash(kernel: Kernel, stage: str, ending: Ending, dump: Path | None = None) -> CompileError:
    """The error for a compiler that took its process down.

    Args:
      dump: where it dumped its stages up to the crash.
    """
    fatal = _FATAL.search(ending.said)
    words = f"{fatal['what']} ({fatal['where']})" if fatal else _innermost(ending.said)
    last = None if dump is None else _last_stage(dump)
    return CompileError(
        f"{_where(kernel, ending.said)}: the compiler crashed ({ending.status}) while {stage}"
        f"{f', after {last}' if last else ''}: {words}",
        hint=_hint(words) or (_HINT_CRASH if dump is None else _HINT_REPORT),
    )


def _last_stage(dump: Path) -> str | None:
    """The file that a compiler wrote last, less the time that libtpu begins its name with."""
    files = [path for path in dump.glob("*/*") if path.is_file()]
    latest = max(files, key=lambda path: path.stat().st_mtime_ns, default=None)
    return latest and re.sub(r"^\d{10,}-", "", latest.name)


def over_limit(kernel: Kernel, stage: str, ending: Ending, timeout_s: float, memory_bytes: int):
    """The error for a compiler that was ended because it took too long or too much."""
    if ending.kind == "timeout":
        return CompileError(
            f"{_where(kernel, '')}: not done in {timeout_s:g} s, still {stage}",
            hint="a larger time limit, or a kernel with less unrolled code",
        )
    return CompileError(
        f"{_where(kernel, '')}: took {size(ending.peak_bytes)} of host memory while {stage}, "
        f"the limit is {size(memory_bytes)}",
        hint="a larger memory limit, or a kernel with less unrolled code",
    )


def _where(kernel: Kernel, words: str) -> str:
    line = _PYTHON_LINE.search(words)
    source = f"{line[1]}:{line[2]}" if line else kernel.source or ""
    at = source.rsplit("/", 1)[-1]
    return f"kernel '{kernel.name}' for {kernel.target}" + (f" ({at})" if at else "")


def _operation(words: str) -> str | None:
    involved = _OPERATION.search(words)
    name = _NAME.search(involved["op"] if involved else words)
    if name is None or not (involved or "op" in words):
        return None
    return name["name"]


def _trim(words: str) -> str:
    words = _LOCATION.sub("", _REPORT.sub("\n", words))
    lines = [line.rstrip() for line in words.splitlines() if not _NOISE.match(line)]
    text = re.sub(r"\n{2,}", "\n", "\n".join(lines)).strip()
    if len(text) > _MOST_CHARACTERS:
        text = text[:_MOST_CHARACTERS] + f" ... ({len(text)} characters)"
    return text


def _innermost(said: str) -> str:
    """The compiler's own functions that a stack trace ends in, else its last lines."""
    frames = [name for name in _FRAME.findall(said) if not _MACHINERY.search(name)]
    if frames:
        return "in " + ", called by ".join(frames[:3])
    lines = [line for line in _trim(said).splitlines() if line.strip()]
    return "\n".join(lines[-5:]) or "it said nothing"


def _hint(words: str) -> str | None:
    return next((hint for pattern, hint in _HINTS if re.search(pattern, words)), None)
