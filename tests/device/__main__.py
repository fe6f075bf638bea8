"""Kernels on this machine's device: values against a float32 reference, and times.

    PYTHONPATH=toolkit:passes python3 -m tests.device [--only TEXT] [--repeats N]
    PYTHONPATH=toolkit:passes python3 -m tests.device --dry-run --target h200

Each kernel runs as it is written, rewritten, and as written by hand at that schedule, in
one process of its own: one that fails does not lose the table.  Times are medians of the
repeats, the three taken in turn, with half of the repeats inside the spread.  Writes
device.json into the directory $OUT, if set.  --dry-run needs no device: it lowers, rewrites
and, where the compiler is installed, compiles everything.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
Outcome = dict[str, dict[str, Any]]

COLUMNS = (("kernel", 30), ("variant", 9), ("status", 8), ("error", 7), ("median", 18),
           ("spread", 6), ("ratio", 5))  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--only", default="", help="cases whose name holds this text")
    parser.add_argument("--repeats", type=int, default=30, help="timed repeats of each variant")
    parser.add_argument("--case-seconds", type=float, default=75, help="limit of one process")
    parser.add_argument("--total-seconds", type=float, default=270, help="limit of everything")
    parser.add_argument("--dry-run", action="store_true", help="lower and compile, run nothing")
    parser.add_argument("--target", help="chip of a dry run")
    options = parser.parse_args()
    if options.target and not options.dry_run:
        parser.error("--target goes with --dry-run: kernels run on the device that is there")
    target = options.target or (None if options.dry_run else _this_chip())
    if target is None:
        parser.error(
            "--dry-run needs a --target" if options.dry_run else
            "this machine has no TPU or GPU that JAX uses; --dry-run --target h200 needs none"
        )  # fmt: skip
    if options.dry_run:
        os.environ["JAX_PLATFORMS"] = "cpu"
    from mosaic_toolkit.targets import get_target

    from .cases import all_cases

    platform = get_target(target).platform
    cases = [c for c in all_cases() if c.platform == platform and options.only in c.name]
    if not cases:
        parser.error(f"no case for {target} has '{options.only}' in its name")
    outcomes: dict[str, Outcome] = {}
    deadline = time.monotonic() + options.total_seconds
    print(f"{target}, {len(cases)} kernels\n{_row([name for name, _ in COLUMNS])}", flush=True)
    for case in cases:
        if options.dry_run:
            outcomes[case.name] = _dry(case, target)
        else:
            limit = min(options.case_seconds, deadline - time.monotonic())
            outcomes[case.name] = _on_device(case, options.repeats, limit)
        for line in _lines(case.name, outcomes[case.name]):
            print(line, flush=True)
    for problem in _problems(outcomes):
        print(problem)
    _write(target, outcomes)
    return 1 if any(_bad(o) for outcome in outcomes.values() for o in outcome.values()) else 0


def _this_chip() -> str | None:
    """Name of this machine's chip; JAX is asked in a process of its own, which lets go of it."""
    from mosaic_toolkit.runner import this_machines_chip

    return this_machines_chip()


# --- on the device ---------------------------------------------------------------------


def _on_device(case: Any, repeats: int, limit: float) -> Outcome:
    """Measures all variants; again without one that took the process down."""
    outcome: Outcome = {}
    left = list(case.variants)
    deadline = time.monotonic() + limit
    while left:
        seconds = min(deadline - time.monotonic(), limit / 2)
        if seconds < LEAST_SECONDS:
            return outcome | {v: {"status": "FAILED", "why": "no time left"} for v in left}
        outcome |= _measured(case.name, repeats, left, seconds)
        fatal = [variant for variant in left if outcome.get(variant, {}).get("fatal")]
        if not fatal:
            break
        left = [v for v in left if v not in fatal and outcome.get(v, {}).get("status") not in FINAL]
    return {variant: outcome[variant] for variant in case.variants}


LEAST_SECONDS = 5
FINAL = ("timed", "refused", "WRONG", "FAILED")


def _measured(name: str, repeats: int, variants: Sequence[str], seconds: float) -> Outcome:
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "outcome.json"
        command = [sys.executable, *MEASURE, str(path), name, str(repeats)]
        ended = "did not end in time"
        said = ""
        try:
            done = subprocess.run(
                [*command, *variants],
                cwd=ROOT, timeout=seconds, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                text=True, errors="replace",
                env={**os.environ, "XLA_PYTHON_CLIENT_PREALLOCATE": "false"},
            )  # fmt: skip
            said = done.stdout
            ended = f"its process ended with {done.returncode}" if done.returncode else ""
        except subprocess.TimeoutExpired as error:
            said = (error.stdout or b"").decode(errors="replace")
        outcome: Outcome = json.loads(path.read_text()) if path.exists() else {}
    if ended:
        active = [v for v, o in outcome.items() if o["status"] in ACTIVE] or list(variants)[:1]
        why = f"{ended} while {outcome.get(active[-1], {}).get('status', 'starting')}"
        last = "\n".join(said.strip().splitlines()[-15:])
        outcome[active[-1]] = {"status": "FAILED", "why": f"{why}\n{last}", "fatal": True}
    return outcome


MEASURE = ("-m", "tests.device.measure")
ACTIVE = ("compiling", "running", "warming up")


# --- without one -----------------------------------------------------------------------


def _dry(case: Any, target: str) -> Outcome:
    """Lowers, rewrites and compiles each variant."""
    return {variant: _dry_variant(case, variant, target) for variant in case.variants}


def _dry_variant(case: Any, variant: str, target: str) -> dict[str, Any]:
    from mosaic_toolkit.capture import capture
    from mosaic_toolkit.errors import Refused, ToolkitError
    from mosaic_toolkit.pass_pipeline import PassPipeline
    from mosaic_toolkit.recompile import compile_kernel

    try:
        kernels = capture(case.variants[variant], *case.operands, target=target)
        if variant == "rewritten":
            passes = PassPipeline.parse(case.pipeline)
            kernels = [passes.run(kernel).kernel for kernel in kernels]
    except Refused as error:
        return {"status": "refused", "why": error.message}
    except Exception as error:
        return {"status": "FAILED", "why": f"{type(error).__name__}: {error}"}
    try:
        seconds = [compile_kernel(kernel).seconds for kernel in kernels]
    except ToolkitError as error:
        missing = "installed" in error.message  # what compilers say that are not
        return {"status": "lowered" if missing else "FAILED", "why": error.message}
    return {"status": "compiled", "compile_seconds": seconds}


# --- what is said ----------------------------------------------------------------------


def _lines(name: str, outcome: Outcome) -> Iterator[str]:
    original = _median(outcome.get("original", {}))
    for variant, found in outcome.items():
        median = _median(found)
        cells = [name if found is next(iter(outcome.values())) else "", variant, found["status"]]
        cells.append(f"{found['error']:.1e}" if "error" in found else "")
        if median is not None:
            low, _, high = statistics.quantiles(found["seconds"], n=4)
            cells += [f"{median * 1e6:.1f} us", f"{(high - low) / median:.1%}"]
            cells.append(f"{median / original:.3f}" if original else "")
        elif "compile_seconds" in found:
            cells.append(f"{sum(found['compile_seconds']):.1f} s to compile")
        yield _row(cells)


def _row(cells: Sequence[str]) -> str:
    return "  ".join(f"{cell:<{width}}" for cell, (_, width) in zip(cells, COLUMNS)).rstrip()


def _median(found: dict[str, Any]) -> float | None:
    return statistics.median(found["seconds"]) if len(found.get("seconds", ())) > 1 else None


def _problems(outcomes: dict[str, Outcome]) -> Iterator[str]:
    for name, outcome in outcomes.items():
        for variant, found in outcome.items():
            if "why" in found:
                yield f"\n{name}, {variant}: {found['status']}: {found['why']}"


def _bad(found: dict[str, Any]) -> bool:
    return found["status"] not in ("timed", "refused", "compiled", "lowered")


def _write(target: str, outcomes: dict[str, Outcome]) -> None:
    if not os.environ.get("OUT"):
        return
    import importlib.metadata

    packages = ("jax", "jaxlib", "libtpu", "jax-cuda13-plugin", "jax-cuda12-plugin")
    versions = {}
    for package in packages:
        try:
            versions[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    data = {"target": target, "versions": versions, "cases": outcomes}
    (Path(os.environ["OUT"]) / "device.json").write_text(json.dumps(data, indent=1))


if __name__ == "__main__":
    sys.exit(main())
