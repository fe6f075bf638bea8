"""`python -m tests.corpus`: captures the whole corpus and says what was missed."""

from __future__ import annotations

import argparse
import collections
import dataclasses
import json
import sys
import time

from mosaic_toolkit.targets import get_target

from . import completeness
from .cases import selected
from .outcome import CAPTURED, Outcome
from .pool import run_all


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.corpus", description=__doc__)
    parser.add_argument("--only", action="append", default=[], metavar="GLOB")
    parser.add_argument(
        "--compile",
        action="store_true",
        help="compile every kernel, too, and compare with the program that it was captured from",
    )
    parser.add_argument(
        "--values",
        action="store_true",
        help="execute every TPU and Triton kernel, instead, and compare with JAX's interpret mode",
    )
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--timeout", type=float, default=600, help="seconds for one case")
    parser.add_argument("--json", metavar="FILE", help="write every outcome there")
    parser.add_argument("-v", "--verbose", action="store_true", help="print tracebacks")
    options = parser.parse_args(argv)

    pairs = selected(options.only)
    if not pairs:
        print(f"no case matches {' '.join(options.only)}", file=sys.stderr)
        return 2
    wanted = [name for name in ("--compile", "--values") if getattr(options, name[2:])]
    if options.values:
        pairs = [
            (c, t) for c, t in pairs if get_target(t).platform == "tpu" or "/triton/" in c.name
        ]
    start = time.monotonic()
    outcomes = []
    for outcome in run_all(pairs, jobs=options.jobs, timeout=options.timeout, options=wanted):
        outcomes.append(outcome)
        print(_line(outcome), flush=True)
        if options.verbose and outcome.detail:
            print(outcome.detail)
    if options.json:
        with open(options.json, "w", encoding="utf-8") as file:
            json.dump([dataclasses.asdict(outcome) for outcome in outcomes], file, indent=1)
    unreached = [] if options.only or options.values else completeness.unreached(outcomes)
    print(_table(outcomes, unreached, time.monotonic() - start))
    return 0 if all(outcome.good for outcome in outcomes) and not unreached else 1


def _line(outcome: Outcome) -> str:
    what = f"{len(outcome.kernels)} kernels" if outcome.status == CAPTURED else outcome.cause
    compiles = collections.Counter(compile_["status"] for compile_ in outcome.compiles)
    values = collections.Counter(value["status"] for value in outcome.values)
    counts = (compiles | values).items()
    what = "; ".join([what, *(f"{n} {status}" for status, n in counts)])
    return f"{outcome.status:<20} {outcome.seconds:6.1f} s  {outcome.name}  {what}"


def _table(outcomes: list[Outcome], unreached: list[str], seconds: float) -> str:
    kernels = [kernel for outcome in outcomes for kernel in outcome.kernels]
    by_backend = collections.Counter((k["backend"], k["level"]) for k in kernels)
    lines = ["", f"{len(outcomes)} cases, {len(kernels)} kernels captured, {seconds:.0f} s"]
    lines += [f"  {n:5}  {backend} ({level})" for (backend, level), n in sorted(by_backend.items())]
    lines += _compiles(outcomes)
    lines += _values(outcomes)
    lines.append("")
    for status, n in collections.Counter(o.status for o in outcomes).most_common():
        lines.append(f"{n:7}  {status}")
        causes = collections.Counter(o.cause for o in outcomes if o.status == status and o.cause)
        lines += [f"{count:14}  {cause}" for cause, count in causes.most_common()]
    if unreached:
        lines += ["", f"{len(unreached)} kernels of the libraries that no case reached:"]
        lines += [f"  {site}" for site in unreached]
    return "\n".join(lines)


def _compiles(outcomes: list[Outcome]) -> list[str]:
    compiles = [compile_ for outcome in outcomes for compile_ in outcome.compiles]
    if not compiles:
        return []
    lines = ["", f"{len(compiles)} kernels compiled, ours against the original"]
    for status, n in collections.Counter(c["status"] for c in compiles).most_common():
        lines.append(f"{n:7}  {status}")
        causes = collections.Counter(c["cause"] for c in compiles if c["status"] == status)
        lines += [f"{count:14}  {cause}" for cause, count in causes.most_common() if cause]
    lines += ["", "memory budgets against what the compiler reports"]
    budgets = collections.Counter(c["memory"] for c in compiles if c["memory"])
    lines += [f"{n:7}  {status}" for status, n in budgets.most_common()]
    return lines


def _values(outcomes: list[Outcome]) -> list[str]:
    values = [value for outcome in outcomes for value in outcome.values]
    if not values:
        return []
    lines = ["", f"{len(values)} kernels executed, ours against JAX's interpret mode"]
    for status, n in collections.Counter(v["status"] for v in values).most_common():
        worst = max(v["ulps"] for v in values if v["status"] == status)
        largest = f", largest error {worst:.0f} ulps" if worst else ""
        lines.append(f"{n:7}  {status}{largest}")
        causes = collections.Counter(v["cause"] for v in values if v["status"] == status)
        lines += [f"{count:14}  {cause}" for cause, count in causes.most_common() if cause]
    return lines


if __name__ == "__main__":
    sys.exit(main())
