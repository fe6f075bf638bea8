"""A kernel's operands and results as arrays."""

from __future__ import annotations

from ..arrays import checked, numpy_dtype

__all__ = ["checked", "numpy_dtype"]
