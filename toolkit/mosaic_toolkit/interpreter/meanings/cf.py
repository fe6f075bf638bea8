"""The `cf` dialect: what Pallas emits of it, assertions."""

from __future__ import annotations

from ..findings import MISUSE, Fault, Finding
from ..machine import Thread
from ..meaning import effect


@effect("cf.assert")
def assertion(op, scope):
    site, message = scope.site(op), op.attributes["msg"].value

    def run(thread: Thread, holds: bool) -> None:
        if not holds:
            raise Fault(Finding(MISUSE, f"{site} failed, by {thread.where()}: {message}", (site,)))

    return run
