"""Lowering with capture against lowering without, per kernel, in one run.

    python tests/bench/capture.py [--repeats 7] [--only GLOB]

Each kernel is traced once; then it is lowered for its own platform, by turns with
and without a capture listening, with JAX's caches of lowered code cleared before
each.  Prints the median of each and their ratio.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time

os.environ["JAX_PLATFORMS"] = "cpu"

import jax

from mosaic_toolkit.capture import recording
from mosaic_toolkit.jax_compat import lowering
from mosaic_toolkit.targets import get_target
from tests.corpus.cases import selected


def timed(traced, platform: str) -> float:
    jax.clear_caches()  # else JAX hands out what it lowered before
    start = time.perf_counter()
    traced.lower(lowering_platforms=(platform,))
    return time.perf_counter() - start


def measure(case, target_name: str, repeats: int) -> tuple[float, float]:
    """Median seconds of lowering without and with a capture."""
    target = get_target(target_name)
    without, with_capture = [], []
    with lowering.answering(target):
        function, args = case.make()
        traced = jax.jit(function).trace(*args)
        timed(traced, target.platform)
        for turn in range(2 * repeats):
            if turn % 2:
                without.append(timed(traced, target.platform))
            else:
                with recording(target, run=False):
                    with_capture.append(timed(traced, target.platform))
    return statistics.median(without), statistics.median(with_capture)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--only", default="jax/*")
    options = parser.parse_args()
    ratios = []
    print(f"{'kernel':48} {'target':6} {'without':>10} {'with':>10} {'ratio':>6}")
    seen = set()
    for case, target in selected([options.only]):
        if case.name in seen:
            continue
        seen.add(case.name)
        try:
            without, with_capture = measure(case, target, options.repeats)
        except Exception as error:
            print(f"{case.name:48} {target:6} not lowered: {type(error).__name__}")
            continue
        ratios.append(with_capture / without)
        print(
            f"{case.name:48} {target:6} {without * 1e3:7.1f} ms {with_capture * 1e3:7.1f} ms "
            f"{ratios[-1]:6.2f}"
        )
    print(f"median ratio over {len(ratios)} kernels: {statistics.median(ratios):.3f}")


if __name__ == "__main__":
    main()
