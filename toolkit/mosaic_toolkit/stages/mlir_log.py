"""Splits the single log that MLIR's pass manager writes into the text after each pass."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

from ..errors import CompileError

_HEAD = re.compile(
    rb"^// -----// IR Dump (Before|After) (\S+?)(?: Failed)?(?:: | \()(.*)//----- //[ \t]*$",
    re.MULTILINE,
)


@dataclasses.dataclass(frozen=True)
class LogEntry:
    """The module after one pass, and where in the log it stands.

    Attributes:
      name: the pass as a pipeline spells it, without options; ``input`` for
        what the first pass was given.
      start, length: in bytes.
    """

    name: str
    start: int
    length: int


def split_log(path: Path) -> tuple[list[LogEntry], str | None]:
    """Entries in order, and the last pass if the log does not show its result.

    A log that prints *before* each pass shows the result of a pass as the
    input of the next.

    Raises:
      CompileError: the file holds no dump, or one is empty.
    """
    data = path.read_bytes()
    heads = list(_HEAD.finditer(data))
    if not heads:
        raise CompileError(
            f"{path.name}: no 'IR Dump' in the compiler's log", hint="compile the kernel again"
        )
    entries: list[LogEntry] = []
    pending: str | None = "input"
    for head, following in zip(heads, [*heads[1:], None]):
        start = head.end() + 1
        stop = len(data) if following is None else following.start()
        name = _pass_name(head)
        before = head[1] == b"Before"
        if not data[start:stop].strip():
            raise CompileError(f"{path.name}: nothing follows the head of pass '{name}'")
        if not before or pending is not None:
            entries.append(LogEntry(pending if before and pending else name, start, stop - start))
        pending = name if before else None
    return entries, pending


def _pass_name(head: re.Match[bytes]) -> str:
    """``canonicalize`` of ``CanonicalizerPass: canonicalize{...} ('builtin.module' ...)``."""
    argument = re.match(rb"[\w.-]+", head[3])
    plain = head[2] if argument is None or head[3].startswith(b"'") else argument[0]
    return plain.decode("utf-8", errors="replace").rstrip(":")
