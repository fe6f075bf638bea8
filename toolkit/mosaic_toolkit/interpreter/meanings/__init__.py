"""The meanings of operations, one file per dialect; importing this fills the table."""

from . import arith, math, memref, tpu_memory, tpu_vector, vector

__all__ = ["arith", "math", "memref", "tpu_memory", "tpu_vector", "vector"]
