"""How far the results of two runs agree."""

from __future__ import annotations

import dataclasses
import math
import re
from collections import Counter
from collections.abc import Sequence

import ml_dtypes
import numpy as np

from ..kernel import Kernel
from .element_types import is_float

# Adding n terms in another order moves a sum by at most about n half-ulps of the
# largest partial sum, and by their square root as a rule.  Results are taken relative
# to the largest magnitude of their array, in ulps of their own type: 256 ulps of
# float32 cover sums of some 65,000 terms; a narrower type is rounded once, at the
# end, from float32, which can go to either neighbour.
TOLERANCE_ULPS = {4: 256.0, 8: 256.0}
NARROW_TOLERANCE_ULPS = 2.0

# Operations that add up floats, in an order that a schedule may change.
_ACCUMULATING = ("matmul", "wgmma", "mma", "contract", "multi_reduction", "reduce", "addf", "dot")


@dataclasses.dataclass(frozen=True)
class Agreement:
    """How two sets of results agree.

    Attributes:
      identical: bit for bit.
      ulps: the largest difference, in units in the last place of the array's largest
        magnitude; None where one is NaN or infinite and the other not, or they are integers.
      tolerance: the ulps that a changed order of accumulation may cause in that type.
      where: the result and element that differ most.
      reordered: accumulating operations whose number differs between the kernels.
    """

    identical: bool
    ulps: float | None = 0.0
    tolerance: float = 0.0
    where: str = ""
    reordered: tuple[str, ...] = ()

    @property
    def agrees(self) -> bool:
        return self.identical or (self.ulps is not None and self.ulps <= self.tolerance)

    @staticmethod
    def worst(agreements: Sequence[Agreement]) -> Agreement:
        """The one that is furthest off."""
        return max(agreements, key=_badness, default=Agreement(True))


def _badness(agreement: Agreement) -> tuple[bool, bool, float]:
    ulps = math.inf if agreement.ulps is None else agreement.ulps
    return (not agreement.agrees, not agreement.identical, ulps)


def compare_results(
    before: Sequence[Sequence[np.ndarray]],
    after: Sequence[Sequence[np.ndarray]],
    kernel_before: Kernel,
    kernel_after: Kernel,
) -> Agreement:
    """Compares the results of two runs, device by device."""
    found = [
        compare_arrays(a, b, f"result {number}" + (f" of device {d}" if len(before) > 1 else ""))
        for d, (first, second) in enumerate(zip(before, after))
        for number, (a, b) in enumerate(zip(first, second))
    ]
    worst = Agreement.worst(found)
    if worst.identical:
        return worst
    return dataclasses.replace(worst, reordered=_reordered(kernel_before, kernel_after))


def compare_arrays(a: np.ndarray, b: np.ndarray, name: str) -> Agreement:
    """Compares two arrays of one type; NaN equals NaN, whatever its bits."""
    if a.tobytes() == b.tobytes():
        return Agreement(True)
    if not is_float(a.dtype):
        return Agreement(False, None, 0.0, _place(name, np.asarray(a != b), a, b))
    x, y = a.astype(np.float64), b.astype(np.float64)
    same = (x == y) | (np.isnan(x) & np.isnan(y))
    if same.all():
        return Agreement(True)
    scale = np.abs(x[np.isfinite(x)]).max(initial=0.0) or 1.0
    with np.errstate(all="ignore"):
        ulps = np.abs(x - y) / _ulp(scale, a.dtype)
    ulps = np.where(same, 0.0, np.where(np.isfinite(ulps), ulps, math.inf))
    worst = float(ulps.max())
    tolerance = TOLERANCE_ULPS.get(a.dtype.itemsize, NARROW_TOLERANCE_ULPS)
    return Agreement(
        False,
        worst if math.isfinite(worst) else None,
        tolerance,
        _place(name, ulps == ulps.max(), a, b),
    )


def _ulp(magnitude: float, dtype: np.dtype) -> float:
    """The distance of neighbouring numbers of the type at a magnitude."""
    precision = float(ml_dtypes.finfo(dtype).eps)
    return precision * 2.0 ** math.floor(math.log2(magnitude))


def _place(name: str, which: np.ndarray, a: np.ndarray, b: np.ndarray) -> str:
    index = tuple(int(n) for n in np.unravel_index(int(np.argmax(which)), a.shape))
    return f"{name}{list(index)}: {a[index]} and {b[index]}"


def _reordered(before: Kernel, after: Kernel) -> tuple[str, ...]:
    counts = [_accumulating(kernel) for kernel in (before, after)]
    return tuple(
        sorted(name for name in {*counts[0], *counts[1]} if counts[0][name] != counts[1][name])
    )


def _accumulating(kernel: Kernel) -> Counter[str]:
    names = re.findall(r"\b((?:tpu|mosaic_gpu|vector|arith|tt)\.\w+)", kernel.asm)
    return Counter(name for name in names if name.partition(".")[2] in _ACCUMULATING)
