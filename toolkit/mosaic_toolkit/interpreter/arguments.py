"""A kernel's operands and results as arrays and buffers."""

from __future__ import annotations

from collections.abc import Sequence

import ml_dtypes
import numpy as np

from ..errors import Mismatch
from ..kernel import ArrayType, Kernel


def numpy_dtype(name: str) -> np.dtype:
    """The NumPy type that JAX names so."""
    return np.dtype(getattr(ml_dtypes, name, None) or name)


def checked(kernel: Kernel, inputs: Sequence[np.ndarray]) -> list[np.ndarray]:
    """The inputs as arrays of the kernel's operand types.

    Raises:
      Mismatch: their number, a shape or an element type differs.
    """
    arrays = [np.asarray(value) for value in inputs]
    found = [ArrayType(array.dtype.name, array.shape) for array in arrays]
    expected = list(kernel.operands)
    if found != expected:
        show = ", ".join
        raise Mismatch(
            f"kernel '{kernel.name}' takes ({show(map(str, expected))}), "
            f"not ({show(map(str, found))})"
        )
    return arrays
