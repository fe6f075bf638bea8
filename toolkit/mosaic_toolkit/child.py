"""Python processes that this one starts."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Mapping


def importing_as_here(environment: Mapping[str, str] = os.environ) -> dict[str, str]:
    """An environment in which a child imports what this process would import."""
    return {**environment, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}


def ending(code: int) -> str:
    """How a process ended, from its return code: a signal's name, or ``exit N``."""
    return signal.Signals(-code).name if code < 0 else f"exit {code}"
