"""A memory budget as text, and as JSON that can be read back."""

from __future__ import annotations

from typing import Any

from ..memory_budget import BufferUse, MemoryBudget, MemoryUse, Remedy, remedies
from . import values
from .table import table
from .units import number, shape, size


def render_budget(budget: MemoryBudget) -> str:
    """Each memory's buffers against what the kernel can have; a warning where it is over."""
    return "\n\n".join(
        "\n".join([_table(use), *_over(use, budget.target)]) for use in budget.memories
    )


def render_tables(budget: MemoryBudget) -> str:
    """As `render_budget`, without the warnings."""
    return "\n\n".join(map(_table, budget.memories))


def total(use: MemoryUse, target: str) -> str:
    """For example ``1.0 MiB of 16.0 MiB (the compiler's default; v5e has 128.0 MiB)``."""
    if use.limit is None:
        return size(use.bytes)
    has = target if use.limit_from == "the chip" else _lower_limit(use, target)
    return f"{size(use.bytes)} of {size(use.limit)} ({has})"


def remedy_lines(use: MemoryUse) -> list[str]:
    """What would make it fit, each on its own; empty where it fits."""
    return [_remedy(remedy) for remedy in remedies(use)]


def to_json(budget: MemoryBudget) -> dict[str, Any]:
    """The budget, and the bytes by which it is over, by memory."""
    return {**values.to_json(budget), "over": {use.space: use.excess for use in budget.over}}


def from_json(data: Any) -> MemoryBudget:
    """The inverse of `to_json`.

    Raises:
      KeyError, TypeError, ValueError: `data` is no budget.
    """
    return values.from_json(MemoryBudget, data)


def _lower_limit(use: MemoryUse, target: str) -> str:
    source = "vmem_limit_bytes" if use.limit_from == "the kernel" else use.limit_from
    return f"{source}; {target} has {size(use.capacity)}"


def _table(use: MemoryUse) -> str:
    head = (use.space, "kind", "shape", "slots", "slot", "total", "of limit", "")
    rows = [_row(buffer, use) for buffer in use.buffers]
    rows.append(("total", "", "", "", "", size(use.bytes), _part(use.bytes, use.limit), ""))
    if use.later:
        rows.append((f"({use.later})", "", "", "", "", "?", "", "known once compiled"))
    return table(head, rows)


def _row(buffer: BufferUse, use: MemoryUse) -> tuple[str, ...]:
    return (
        buffer.name,
        buffer.kind,
        f"{shape(buffer.shape) or 'scalar'} {buffer.dtype}" if buffer.dtype else "",
        number(buffer.slots),
        size(buffer.slot_bytes),
        "shared" if buffer.overlaid else size(buffer.bytes),
        "" if buffer.overlaid else _part(buffer.bytes, use.limit),
        _padding(buffer),
    )


def _part(bytes: int | None, limit: int | None) -> str:
    return "" if bytes is None or not limit else f"{100 * bytes / limit:.1f} %"


def _padding(buffer: BufferUse) -> str:
    if buffer.packed_bytes in (None, 0) or buffer.slot_bytes in (None, buffer.packed_bytes):
        return ""
    return f"padded from {size(buffer.packed_bytes)}"


def _over(use: MemoryUse, target: str) -> list[str]:
    if not use.excess:
        return []
    over = f"{use.space.upper()}: {total(use, target)} is {size(use.excess)} over"
    return [f"warning: {over}", *(f"  to fit: {line}" for line in remedy_lines(use))]


def _remedy(remedy: Remedy) -> str:
    named = ", ".join(f"{name} ({size(saved)})" for name, saved in remedy.buffers)
    match remedy.action:
        case "raise limit":
            return f"pltpu.CompilerParams(vmem_limit_bytes={remedy.saves}) or more"
        case "one slot":
            names = ",".join(name for name, _ in remedy.buffers)
            return f"1 slot of {named}: 'pipeline-depth{{stages=1 buffers={names}}}'"
        case "shrink":
            return f"smaller {named}"
        case _:
            return f"another shape for what is mostly padding: {named}"
