"""Accesses that leave their memory."""

from __future__ import annotations

from .findings import OUT_OF_BOUNDS, Fault, Finding, Site
from .machine import Thread
from .memory import View


def out_of_bounds(thread: Thread, site: Site, what: str) -> Fault:
    """The fault of an access that leaves its memory."""
    return Fault(Finding(OUT_OF_BOUNDS, f"{site}: {what}, by {thread.where()}", (site,)))


def checked_slice(thread: Thread, site: Site, view: View, offsets, sizes, steps=None) -> View:
    """The box of `view`, in elements.

    Raises:
      Fault: it leaves the view.
    """
    for axis, (offset, size, extent) in enumerate(zip(offsets, sizes, view.shape)):
        last = offset + (size - 1) * (1 if steps is None else steps[axis])
        if offset < 0 or (size and last >= extent):
            box = ", ".join(f"{o}:{o + n}" for o, n in zip(offsets, sizes))
            raise out_of_bounds(
                thread, site, f"[{box}] of {view.buffer.name}, which is {list(view.shape)}"
            )
    return view.slice(offsets, sizes, steps)
