"""What MLIR locations say of the Python source."""

from __future__ import annotations

import re

from .jax_compat import ir

_FILE_LINE = re.compile(r'"([^"]+\.py)":(\d+)')


def source_line(location: ir.Location) -> str | None:
    """``file:line`` of the Python line that a location names first."""
    match = _FILE_LINE.search(str(location))
    return f"{match[1].rsplit('/', 1)[-1]}:{match[2]}" if match else None


def argument_name(argument: ir.Value, default: str) -> str:
    """The name that a block argument has in its location, else `default`."""
    location = argument.location
    name = getattr(location, "name_str", "")
    named = name.isidentifier() and isinstance(location.child_loc, ir.UnknownLoc)
    return name if named else default
