"""Random operands for a kernel: floats of ordinary size, integers that are valid as indices."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np

from ..arrays import numpy_dtype
from ..kernel import Kernel
from .element_types import is_float

# Integers may be indices, lengths or offsets.  Ranges are tried from wide to narrow
# until the kernel stays inside its memory; the last is right for every index.
RANGES = (128, 16, 4, 2, 1)


@dataclasses.dataclass(frozen=True)
class Distribution:
    """How random operands are drawn.

    Attributes:
      integers_below: integers are uniform in ``[0, integers_below)``.
    """

    integers_below: int

    def draw(self, kernel: Kernel, seed: int) -> list[np.ndarray]:
        """One array per operand of the kernel."""
        generator = np.random.default_rng(seed)
        return [self._array(generator, t.shape, numpy_dtype(t.dtype)) for t in kernel.operands]

    def _array(self, generator: np.random.Generator, shape: Sequence[int], dtype: np.dtype):
        if dtype == np.bool_:
            return generator.random(shape) < 0.5
        if is_float(dtype):
            return generator.standard_normal(shape, np.float32).astype(dtype)
        if "int2" in dtype.name or "int4" in dtype.name or dtype.itemsize == 1:
            return generator.integers(0, min(self.integers_below, 2), shape).astype(dtype)
        return generator.integers(0, self.integers_below, shape).astype(dtype)

    def describe(self, kernel: Kernel) -> str:
        """How the kernel's operands were drawn, for people."""
        kinds = {numpy_dtype(type_.dtype).kind for type_ in kernel.operands}
        text = "floats normal (0, 1)"
        return (
            f"{text}, integers uniform in [0, {self.integers_below})" if kinds & {*"iu"} else text
        )
