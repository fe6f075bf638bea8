"""Capture, inspect, rewrite and compare the Mosaic IR that Pallas kernels lower to.

Importing the package is cheap: JAX and MLIR are imported by what needs them.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

# At once, since the module of that name would otherwise take the function's place.
from .capture import capture, capturing

if TYPE_CHECKING:
    from .dump import load_dump
    from .errors import (
        CaptureError,
        CompileError,
        InvalidModule,
        Mismatch,
        PassPipelineError,
        Refused,
        ToolkitError,
        Unsupported,
    )
    from .graph import Graph
    from .in_place import rewrite, rewriting
    from .kernel import Kernel, load, save
    from .pass_pipeline import PassPipeline
    from .passes import Pass
    from .schedule import Schedule, raise_schedule
    from .targets import TARGETS, Target

__version__ = "0.1.0"

_MODULE_OF = {
    "CaptureError": "errors",
    "CompileError": "errors",
    "Graph": "graph",
    "InvalidModule": "errors",
    "Kernel": "kernel",
    "Mismatch": "errors",
    "Pass": "passes",
    "PassPipeline": "pass_pipeline",
    "PassPipelineError": "errors",
    "Refused": "errors",
    "Schedule": "schedule",
    "TARGETS": "targets",
    "Target": "targets",
    "ToolkitError": "errors",
    "Unsupported": "errors",
    "load": "kernel",
    "load_dump": "dump",
    "raise_schedule": "schedule",
    "rewrite": "in_place",
    "rewriting": "in_place",
    "save": "kernel",
}

__all__ = [
    "TARGETS",
    "CaptureError",
    "CompileError",
    "Graph",
    "InvalidModule",
    "Kernel",
    "Mismatch",
    "Pass",
    "PassPipeline",
    "PassPipelineError",
    "Refused",
    "Schedule",
    "Target",
    "ToolkitError",
    "Unsupported",
    "capture",
    "capturing",
    "load",
    "load_dump",
    "raise_schedule",
    "rewrite",
    "rewriting",
    "save",
]


def __getattr__(name: str) -> object:
    if name not in _MODULE_OF:
        raise AttributeError(f"module '{__name__}' has no attribute '{name}'")
    return getattr(importlib.import_module(f".{_MODULE_OF[name]}", __name__), name)
