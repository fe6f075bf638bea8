"""What every test shares."""

from __future__ import annotations

import os

import pytest

# Captures pretend to be their target; the arrays stay on the CPU.
os.environ.setdefault("JAX_PLATFORMS", "cpu")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--update-goldens",
        action="store_true",
        help="rewrite dumps/golden with what the pass pipelines now give",
    )
