"""`Settings`: what a compiler is told when it is loaded."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence


@dataclasses.dataclass(frozen=True)
class Settings:
    """Environment variables of one compiler.

    Attributes:
      variables: to set.
      flags: to append to what a variable holds already.
    """

    variables: Mapping[str, str]
    flags: Mapping[str, Sequence[str]] = dataclasses.field(default_factory=dict)
