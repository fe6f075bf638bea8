"""What ``run`` says of the arrays that a kernel gives."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ..arrays import type_of


def render(results: Sequence[np.ndarray]) -> str:
    """Each result's name in a file, its type, and its values as far as NumPy prints them."""
    return "\n".join(
        f"arr_{number}: {type_of(array)}\n{array}" for number, array in enumerate(results)
    )
