"""What an execution finds wrong with a kernel's synchronisation and memory use."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from ..errors import ToolkitError
from ..locations import source_line

if TYPE_CHECKING:
    from ..jax_compat import ir

RACE = "race"
DEADLOCK = "deadlock"
OUT_OF_BOUNDS = "out of bounds"
UNINITIALISED = "uninitialised read"
UNBALANCED = "unbalanced"
MISUSE = "misuse"


@dataclasses.dataclass(frozen=True)
class Site:
    """An operation of the kernel, as a report names it."""

    op: str
    line: str | None = None

    @classmethod
    def of(cls, op: ir.Operation) -> Site:
        return cls(op.name, source_line(op.location))

    def __str__(self) -> str:
        return f"{self.op} ({self.line})" if self.line else self.op


@dataclasses.dataclass(frozen=True)
class Finding:
    """One thing that is wrong, once per pair of operations however often it happens.

    Attributes:
      kind: ``race``, ``deadlock``, ``out of bounds``, ``uninitialised read``,
        ``unbalanced`` (a semaphore or barrier at the end) or ``misuse``.
      message: what happened, with buffer, thread, grid step and the missing edge.
      sites: the operations concerned, earliest first.
    """

    kind: str
    message: str
    sites: tuple[Site, ...] = ()

    def __str__(self) -> str:
        return f"{self.kind}: {self.message}"


class Fault(ToolkitError):
    """An access or a wait after which execution cannot go on; carries its `Finding`."""

    def __init__(self, finding: Finding):
        super().__init__(str(finding))
        self.finding = finding
