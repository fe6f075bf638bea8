"""Accesses that leave their memory."""

from __future__ import annotations

from .findings import OUT_OF_BOUNDS, Fault, Finding, Site
from .machine import Thread
from .memory import View


def out_of_bounds(thread: Thread, site: Site, what: str) -> Fault:
    """The fault of an access that leaves its memory."""
    return Fault(Finding(OUT_OF_BOUNDS, f"{site}: {what}, by {thread.where()}", (site,)))


# Where memory is flat, a box may leave its array as long as it stays in the allocation.
_FLAT = "gmem"


def checked_slice(thread: Thread, site: Site, view: View, offsets, sizes, steps=None) -> View:
    """The box of `view`, in elements.

    Raises:
      Fault: it leaves the view, in memory that is not flat, or its allocation.
    """
    for axis, (offset, size, extent) in enumerate(zip(offsets, sizes, view.shape)):
        last = offset + (size - 1) * (1 if steps is None else steps[axis])
        if offset < 0 or (size and last >= extent):
            if view.buffer.space == _FLAT and view.places is None:
                part = view.slice(offsets, sizes, steps)
                if offset >= 0 and part.bounds()[1] <= len(view.buffer.data):
                    return part
            box = ", ".join(f"{o}:{o + n}" for o, n in zip(offsets, sizes))
            raise out_of_bounds(
                thread, site, f"[{box}] of {view.buffer.name}, which is {list(view.shape)}"
            )
    return view.slice(offsets, sizes, steps)
