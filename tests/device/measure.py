"""Runs one case on the device; `__main__` starts this in a process of its own for each.

    python3 -m tests.device.measure OUTCOME.json CASE REPEATS VARIANT...

The outcome is written again after every step, so that a crash shows where it came.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np

from mosaic_toolkit import rewriting

from .cases import Case, case_named

# Calls of the kernel in one timed program, one after another: more than a launch costs.
CALLS = 10


def main(path: Path, name: str, repeats: int, variants: list[str]) -> None:
    """Checks the values of each variant, then times those that are right, in turn."""
    case = case_named(name)
    outcome: dict[str, dict[str, Any]] = {}

    def now(variant: str, **facts: Any) -> None:
        outcome.setdefault(variant, {}).update(facts)
        partial = path.with_suffix(".partial")
        partial.write_text(json.dumps(outcome))
        os.replace(partial, path)

    device = jax.devices()[0]
    operands = case.arrays()
    expected = case.reference(*(array.astype(np.float32) for array in operands))
    arrays = [jax.device_put(array, device) for array in operands]
    ready: dict[str, Callable[[], Any]] = {}
    for variant in variants:
        try:
            now(variant, status="compiling")
            once, chained = _compiled(case, variant, arrays)
            now(variant, status="running")
            error = _error(np.asarray(once(*arrays), np.float32), expected)
            right = error <= case.tolerance
            now(variant, error=error, status="right" if right else "WRONG")
            if right:
                ready[variant] = lambda chained=chained: jax.block_until_ready(chained(*arrays))
        except _Refused as refusal:
            now(variant, status="refused", why=str(refusal))
        except Exception as error:
            now(variant, status="FAILED", why=f"{type(error).__name__}: {error}"[:2000])
    samples: dict[str, list[float]] = {variant: [] for variant in ready}
    for variant, run in ready.items():
        now(variant, status="warming up")
        run()
    for _ in range(repeats):
        for variant, run in ready.items():
            start = time.perf_counter()
            run()
            samples[variant].append((time.perf_counter() - start) / CALLS)
    for variant, seconds in samples.items():
        now(variant, status="timed", seconds=seconds)


class _Refused(Exception):
    """A pass refused the kernel."""


def _compiled(case: Case, variant: str, arrays: list[Any]) -> tuple[Callable, Callable]:
    """The kernel called once, and called `CALLS` times in a row."""
    function = jax.jit(case.variants[variant])

    def chain(*operands: Any) -> Any:
        result = function(*operands)
        for _ in range(CALLS - 1):
            *operands, _ = jax.lax.optimization_barrier((*operands, result))
            result = function(*operands)
        return result

    def compiled() -> tuple[Callable, Callable]:
        once, many = jax.jit(lambda *operands: function(*operands)), jax.jit(chain)
        return once.lower(*arrays).compile(), many.lower(*arrays).compile()

    if variant != "rewritten":
        return compiled()
    with rewriting(case.pipeline) as log:
        programs = compiled()
    refused = [entry.reason for entry in log if entry.outcome == "refused"]
    if refused:
        raise _Refused(refused[0])
    if not log:
        raise RuntimeError("no kernel of it was lowered")
    return programs


def _error(found: np.ndarray, expected: np.ndarray) -> float:
    """The largest difference, relative to the largest value."""
    if not np.isfinite(found).all():
        return float("inf")
    return float(np.abs(found - expected).max() / np.abs(expected).max())


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]), sys.argv[4:])
