"""Reads the TPU's per-bundle utilization file, whose header names and sizes its columns."""

from __future__ import annotations

import dataclasses

from ..errors import CompileError


@dataclasses.dataclass(frozen=True)
class Utilization:
    """Slots that each bundle fills.

    Attributes:
      units: the columns, as the file names them.
      capacity: slots of one bundle, by unit.
      rows: slots filled, by bundle and unit.
    """

    units: tuple[str, ...]
    capacity: tuple[int, ...]
    rows: tuple[tuple[int, ...], ...]


def parse_utilization(text: str) -> Utilization:
    """Reads any number of columns and bundles.

    Raises:
      CompileError: a line has other columns than the header, or is no number.
    """
    sections: list[list[str]] = []
    for line in text.splitlines():
        if line.startswith("=="):
            sections.append([])
        elif line.strip() and sections:
            sections[-1].append(line)
    if len(sections) != 2 or len(sections[0]) != 2:
        raise CompileError("the utilization file has no header of units and their capacity")
    units = tuple(name.strip() for name in sections[0][0].split(","))
    try:
        capacity, *rows = (tuple(map(int, line.split())) for line in (sections[0][1], *sections[1]))
    except ValueError as error:
        raise CompileError(f"the utilization file has a line of no numbers: {error}") from None
    for row in (capacity, *rows):
        if len(row) != len(units):
            raise CompileError(
                f"the utilization file names {len(units)} units, but has a line of {len(row)}"
            )
    return Utilization(units, capacity, tuple(rows))
