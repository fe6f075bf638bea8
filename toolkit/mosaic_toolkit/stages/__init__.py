"""Compiled stages of a kernel: Mosaic passes, LLO and bundles, MLIR passes, PTX, SASS."""

from .reading import load_stages, read_stages, write_stages
from .stage import Stage, Stages

__all__ = ["Stage", "Stages", "load_stages", "read_stages", "write_stages"]
