"""Numbers with units, for people."""

from __future__ import annotations

_UNITS = ("B", "KiB", "MiB", "GiB")


def size(count: int | None) -> str:
    """For example ``512 B``, ``256.0 KiB`` or ``4.5 MiB``; ``?`` for None."""
    if count is None:
        return "?"
    value, unit = float(count), 0
    while value >= 1024 and unit < len(_UNITS) - 1:
        value, unit = value / 1024, unit + 1
    return f"{count} B" if unit == 0 else f"{value:.1f} {_UNITS[unit]}"


def shape(sizes: tuple[int | None, ...]) -> str:
    """For example ``256x256``; ``?`` for a dimension known only at run time."""
    return "x".join("?" if n is None else str(n) for n in sizes)


def number(value: int | None) -> str:
    """The number; ``?`` for None."""
    return "?" if value is None else str(value)
