"""`Measure`: a number that a compiler's files give, or why they do not."""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(frozen=True)
class Measure:
    """A whole number, or the reason why there is none; an unknown is never 0.

    Attributes:
      value: None where the files do not say.
      why: the reason for None, else empty.
    """

    value: int | None
    why: str = ""

    def __post_init__(self) -> None:
        if (self.value is None) != bool(self.why):
            raise ValueError("a measure has a value or a reason why not")

    def __str__(self) -> str:
        return str(self.value) if self.value is not None else f"not reported ({self.why})"


def known(value: int) -> Measure:
    return Measure(value)


def not_reported(why: str) -> Measure:
    return Measure(None, why)


@dataclasses.dataclass(frozen=True)
class Allocation:
    """On-chip memory of one named buffer.

    Attributes:
      name: what the compiler says that it is for.
      space: the memory, for example ``vmem``.
      bytes: its size, all slots of a ring included.
      shape: as the compiler writes its type.
    """

    name: str
    space: str
    bytes: Measure
    shape: str


@dataclasses.dataclass(frozen=True)
class Count:
    """How often something occurs, by name."""

    name: str
    count: int
