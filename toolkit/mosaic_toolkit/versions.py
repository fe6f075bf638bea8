"""Versions of installed packages."""

from __future__ import annotations

import contextlib


def installed(*packages: str) -> tuple[tuple[str, str], ...]:
    """(package, version) of those that are installed, in order."""
    import importlib.metadata

    found = []
    for package in packages:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            found.append((package, importlib.metadata.version(package)))
    return tuple(found)
