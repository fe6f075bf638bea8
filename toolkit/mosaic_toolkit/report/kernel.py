"""What ``mosaic-dump show`` says of a kernel: where it comes from, and its schedule."""

from __future__ import annotations

from typing import Any

from ..kernel import Kernel
from ..schedule import Schedule
from .schedule import render_schedule, schedule_to_json


def render(kernel: Kernel, schedule: Schedule) -> str:
    """The kernel's facts, then its schedule."""
    rows = [
        ("kernel", kernel.name),
        ("backend", f"{kernel.backend}, {kernel.level} level"),
        ("target", kernel.target),
        ("operands", ", ".join(map(str, kernel.operands)) or "none"),
        ("results", ", ".join(map(str, kernel.results)) or "none"),
    ]
    if kernel.aliases:
        pairs = (f"operand {a} = result {b}" for a, b in kernel.aliases)
        rows.append(("aliases", ", ".join(pairs)))
    if kernel.source:
        rows.append(("source", kernel.source))
    rows += [("versions", ", ".join(f"{n} {v}" for n, v in kernel.versions))] * bool(
        kernel.versions
    )
    width = max(len(name) for name, _ in rows)
    head = "\n".join(f"{name.ljust(width)}  {text}" for name, text in rows)
    return f"{head}\n\n{render_schedule(schedule)}"


def to_json(kernel: Kernel, schedule: Schedule) -> dict[str, Any]:
    """Both as JSON; each part can be read back."""
    return {"kernel": kernel.to_json(), "schedule": schedule_to_json(schedule)}
