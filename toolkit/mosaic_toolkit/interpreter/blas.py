"""Matrix products on one thread: blocks are small, and threads that spin cost more than they save."""

from __future__ import annotations

import contextlib
import functools
from contextlib import AbstractContextManager
from typing import Any


def one_thread() -> AbstractContextManager[Any]:
    """Limits NumPy's BLAS to one thread in the block, where threadpoolctl is installed."""
    controller = _controller()
    if controller is None:
        return contextlib.nullcontext()
    return controller.limit(limits=1, user_api="blas")


@functools.cache
def _controller() -> Any:
    try:
        from threadpoolctl import ThreadpoolController
    except ImportError:
        return None
    return ThreadpoolController()
