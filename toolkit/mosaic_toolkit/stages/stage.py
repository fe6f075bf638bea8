"""`Stage`: one intermediate form of a kernel on its way through a compiler."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

from ..errors import CompileError

type Level = Literal["mosaic", "mlir", "llvm", "llo", "ptx", "sass"]


@dataclasses.dataclass(frozen=True)
class Stage:
    """One stage, in a file of its own or in a part of a compiler's log.

    Attributes:
      index: its place in the compiler's order, from 0.
      name: the pass that made it, as the compiler names it; ``input`` for the
        text that the first pass of a log was given.
      level: which language it is in.
      path: the file that holds it.
      size: in bytes.
      changed: whether the pass changed anything but names and locations since
        the last stage of the same form; None for the first of its form and for
        what is no program text (an analysis, bytecode).
      span: first byte and length in `path`; None for the whole file.
    """

    index: int
    name: str
    level: Level
    path: Path
    size: int
    changed: bool | None = None
    span: tuple[int, int] | None = None

    def data(self) -> bytes:
        """The stage as bytes."""
        with self.path.open("rb") as file:
            if self.span is None:
                return file.read()
            file.seek(self.span[0])
            return file.read(self.span[1])

    def text(self) -> str:
        """The stage as text; bytes that are not UTF-8 are replaced."""
        return self.data().decode("utf-8", errors="replace")


@dataclasses.dataclass(frozen=True)
class Stages:
    """All stages of one kernel in the compiler's order.

    Attributes:
      kernel: its name in the compiler's files.
      backend: ``mosaic_tpu``, ``mosaic_gpu`` or ``triton``.
      stages: in order.
      notes: what the compiler's files cannot show, one sentence each.
    """

    kernel: str
    backend: str
    stages: tuple[Stage, ...]
    notes: tuple[str, ...] = ()

    def __iter__(self) -> Iterator[Stage]:
        return iter(self.stages)

    def __len__(self) -> int:
        return len(self.stages)

    def find(self, name: str) -> Stage:
        """The last stage of that name, or the one with that index.

        Raises:
          CompileError: there is none.
        """
        for stage in reversed(self.stages):
            if name in (stage.name, str(stage.index)):
                return stage
        near = [s.name for s in self.stages if name in s.name]
        raise CompileError(
            f"kernel '{self.kernel}' has no stage '{name}' among its {len(self)}",
            hint=f"close names: {', '.join(dict.fromkeys(near))}" if near else None,
        )


@functools.total_ordering
@dataclasses.dataclass(frozen=True)
class DumpFile:
    """A file that the compiler left, with what its name says.

    Attributes:
      time: when the compiler began its group of files, as it stamps them.
      number: its place in the group.
      name: the pass.
    """

    time: int
    number: int
    name: str
    path: Path

    def __lt__(self, other: DumpFile) -> bool:
        return (self.time, self.number) < (other.time, other.number)


def check_no_gap(files: list[DumpFile], what: str) -> None:
    """Numbers of one group of dump files must follow each other.

    Raises:
      CompileError: a stage that the compiler counted has no file.
    """
    for time in sorted({f.time for f in files}):
        numbers = sorted(f.number for f in files if f.time == time)
        missing = sorted(set(range(numbers[0], numbers[-1])) - set(numbers))
        if missing:
            raise CompileError(
                f"{what}: stages {', '.join(map(str, missing))} of {numbers[0]} to {numbers[-1]} "
                "are missing from the compiler's files",
                hint="dump into an empty directory with room on its disk, and without a filter",
            )
