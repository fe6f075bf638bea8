"""Every case of the corpus."""

from __future__ import annotations

import fnmatch
from collections.abc import Sequence

from . import jax_gpu, jax_tpu, tokamax_gpu, tokamax_mesh, tokamax_tpu
from .case import Case

SOURCES = (jax_tpu, jax_gpu, tokamax_tpu, tokamax_mesh, tokamax_gpu)


def all_cases() -> tuple[Case, ...]:
    return tuple(case for source in SOURCES for case in source.cases())


def selected(patterns: Sequence[str] = ()) -> list[tuple[Case, str]]:
    """(case, target) pairs whose ``name@target`` or name matches one of the patterns."""
    pairs = [(case, target) for case in all_cases() for target in case.targets]
    if not patterns:
        return pairs
    return [
        (case, target)
        for case, target in pairs
        if any(
            fnmatch.fnmatchcase(text, pattern)
            for pattern in patterns
            for text in (case.name, f"{case.name}@{target}")
        )
    ]
