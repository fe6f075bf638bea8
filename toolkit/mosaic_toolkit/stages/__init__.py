"""Compiled stages of a kernel (Mosaic passes, LLO, bundles, MLIR, PTX, SASS) and their statistics."""

from .gpu_statistics import GpuStatistics
from .measure import Measure
from .reading import load_stages, read_stages, write_stages
from .stage import Stage, Stages
from .statistics import Statistics, read_statistics
from .tpu_statistics import TpuStatistics

__all__ = [
    "GpuStatistics",
    "Measure",
    "Stage",
    "Stages",
    "Statistics",
    "TpuStatistics",
    "load_stages",
    "read_stages",
    "read_statistics",
    "write_stages",
]
