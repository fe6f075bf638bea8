"""Marks of tests that need a compiler which is not installed everywhere."""

from __future__ import annotations

import importlib.util

import pytest

needs_tpu = pytest.mark.skipif(
    importlib.util.find_spec("libtpu") is None, reason="libtpu is not installed"
)
needs_gpu = pytest.mark.skipif(
    importlib.util.find_spec("jax_cuda13_plugin") is None,
    reason="JAX's CUDA plugin is not installed",
)
