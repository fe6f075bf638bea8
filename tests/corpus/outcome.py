"""What became of one case on one target."""

from __future__ import annotations

import dataclasses
import re
from typing import Any

# JAX lowers the case, we capture every kernel of it, and every check holds.
CAPTURED = "captured"
# JAX itself cannot lower the case, for the reason that the case declares.
REFUSED = "JAX cannot lower it"
# Ours to mend: JAX lowers kernels that we did not capture, or captured differently.
MISSED = "missed"
CHECK_FAILED = "check failed"
COMPILES_DIFFERENTLY = "compiles differently"
VALUES_DIFFER = "values differ"
# The corpus' to mend: the case does not lower, or lowers to no kernel at all.
WRONG_CASE = "wrong case"
DIED = "worker died"

GOOD = (CAPTURED, REFUSED)


@dataclasses.dataclass
class Outcome:
    """What became of one case on one target.

    Attributes:
      name: the case and its target, ``name@target``.
      status: one of the module's constants.
      cause: one line; equal for failures of one kind.
      detail: a traceback, where there is one.
      kernels: what was captured, for each its name, backend, level and size.
      sites: functions of the library that made a kernel, as [module, name].
      compiles: for each kernel, the fields of its `noop.Comparison`, where asked for.
      values: for each kernel, the fields of its `values.Agreement`, where asked for.
      seconds: wall-clock time, capture, checks and compiles together.
    """

    name: str
    status: str
    cause: str = ""
    detail: str = ""
    kernels: list[dict[str, Any]] = dataclasses.field(default_factory=list)
    sites: list[list[str]] = dataclasses.field(default_factory=list)
    compiles: list[dict[str, str]] = dataclasses.field(default_factory=list)
    values: list[dict[str, Any]] = dataclasses.field(default_factory=list)
    seconds: float = 0.0

    @property
    def good(self) -> bool:
        return self.status in GOOD


def cause_of(error: BaseException) -> str:
    """An error as one line, without what differs between two of a kind."""
    text = str(error).strip() or "no message"
    line = re.sub(r"0x[0-9a-f]+|(?<=[^\w.])/\S+/", "", " ".join(text.split()))
    return f"{type(error).__name__}: {line}"[:200]
