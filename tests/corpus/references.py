"""What SparseCore kernels compute, in NumPy: JAX's interpret mode does not run them.

Asked to, it fails, or takes the cores for steps of a grid and gives wrong values.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

import numpy as np

type Reference = Callable[[Sequence[np.ndarray]], list[np.ndarray]]


def _scatter(operands: Sequence[np.ndarray]) -> list[np.ndarray]:
    rows, updates, array = operands
    result = array.copy()
    result[rows] = updates
    return [result]


def _gather(operands: Sequence[np.ndarray]) -> list[np.ndarray]:
    _, _, array, rows = operands
    return [array[rows]]


# Name of a kernel -> what it gives of its operands.
REFERENCES: dict[str, Reference] = {
    r"scatter": _scatter,
    r"sc_ragged_gather_v2": _gather,
}


def reference_of(name: str) -> Reference | None:
    return next((f for pattern, f in REFERENCES.items() if re.fullmatch(pattern, name)), None)
