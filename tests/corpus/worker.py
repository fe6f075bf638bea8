"""Runs cases one after another in a process of its own.

Reads ``name@target``, one a line; answers each with one line of JSON.  A crash
of MLIR or a case that hangs then costs that case alone.  With ``--compile`` each
kernel is compiled as well, see `noop`.  With ``--values`` it is executed instead, see
`values`.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import logging
import os
import sys
import time
import traceback
import warnings

from . import noop, oracle, sites, values
from .case import Case
from .outcome import (
    CAPTURED,
    CHECK_FAILED,
    COMPILES_DIFFERENTLY,
    MISSED,
    REFUSED,
    WRONG_CASE,
    Outcome,
    cause_of,
)


def run(case: Case, target: str, compilers: noop.Compilers | None = None) -> Outcome:
    """Captures one case, compares with what JAX lowers, and checks every kernel.

    Compiles them too, where there is something to compile them with.
    """
    start = time.monotonic()
    outcome = _run(case, target, compilers)
    outcome.seconds = round(time.monotonic() - start, 2)
    return outcome


def _run(case: Case, target: str, compilers: noop.Compilers | None) -> Outcome:
    import jax

    from mosaic_toolkit.capture import capture

    name = f"{case.name}@{target}"
    captured, failure = [], None
    jax.clear_caches()
    try:
        fn, args = case.make()
        captured = capture(fn, *args, target=target)
    except Exception as error:
        failure = error
    kernels = [
        {"name": k.name, "backend": k.backend, "level": k.level, "bytes": len(k.asm)}
        for k in captured
    ]
    jax.clear_caches()
    try:
        with sites.watching() as seen:
            lowered = oracle.lower(case.make, target)
    except Exception as error:
        status = REFUSED if case.may_refuse(cause_of(error)) else WRONG_CASE
        if captured:
            return Outcome(
                name, MISSED, "captured what JAX refuses: " + cause_of(error), _text(error)
            )
        return Outcome(name, status, cause_of(error), _text(error))
    found = sorted(map(list, seen))
    if not lowered.payloads:
        return Outcome(name, WRONG_CASE, "lowers to no kernel", kernels=kernels)
    if failure is not None:
        return Outcome(name, MISSED, cause_of(failure), _text(failure), kernels, found)
    outcome = _checked(Outcome(name, CAPTURED, "", "", kernels, found), captured, lowered)
    if compilers is not None and outcome.status == CAPTURED:
        _compile(outcome, captured, lowered, compilers)
    return outcome


def _compile(
    outcome: Outcome, captured: list, lowered: oracle.Lowered, compilers: noop.Compilers
) -> None:
    comparisons = noop.compare(captured, noop.original(lowered.module), compilers)
    outcome.compiles = [dataclasses.asdict(comparison) for comparison in comparisons]
    bad = [c for c in comparisons if not c.good]
    if bad:
        outcome.status = COMPILES_DIFFERENTLY
        outcome.cause = "; ".join(f"{c.kernel}: {c.defect}" for c in bad)


def _checked(outcome: Outcome, captured: list, lowered: oracle.Lowered) -> Outcome:
    from .checks import CHECKS

    if difference := _difference(captured, lowered):
        outcome.status, outcome.cause = MISSED, difference
        return outcome
    failed = []
    for kernel in captured:
        for check in CHECKS:
            try:
                check(kernel)
            except Exception as error:
                failed.append(f"{check.__name__}: {cause_of(error)}")
                outcome.detail += f"kernel {kernel.name}\n{_text(error)}"
    if failed:
        outcome.status = CHECK_FAILED
        outcome.cause = "; ".join(dict.fromkeys(failed))
    return outcome


def _difference(captured: list, lowered: oracle.Lowered) -> str:
    """How the captured kernels differ from JAX's, "" where they are the same."""
    warpgroup = [k for k in captured if k.backend == "mosaic_gpu" and k.level == "dialect"]
    ours = {oracle.text(kernel.module()) for kernel in warpgroup}
    theirs = set(lowered.warpgroup)
    if ours != theirs:
        return f"{len(theirs - ours)} of JAX's {len(theirs)} Warpgroup modules differ from ours"
    ours = {_module(kernel) for kernel in captured if kernel not in warpgroup}
    theirs = set(lowered.payloads)
    if warpgroup and not lowered.lane:
        return f"{len(ours)} kernels are none of JAX's" if ours else ""
    if ours != theirs:
        ours, theirs = (set(map(oracle.text_of_bytecode, some)) for some in (ours, theirs))
    if warpgroup:
        return f"{len(ours - theirs)} kernels are none of JAX's" if ours - theirs else ""
    return f"{len(theirs - ours)} of JAX's {len(theirs)} kernels differ" if ours != theirs else ""


def _module(kernel) -> bytes:
    """The kernel's module as it is embedded, less what JAX stores beside it."""
    from mosaic_toolkit.backends import get_backend

    parts = get_backend(kernel.backend).encode(kernel)
    (module,) = (parts[key] for key in ("body", "module", "ir") if key in parts)
    return module


def _text(error: BaseException) -> str:
    return "".join(traceback.format_exception(error))[-6000:]


def main(argv: list[str]) -> None:
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # what libraries print must not mix with the answers
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    from .cases import all_cases

    cases = {case.name: case for case in all_cases()}
    with noop.Compilers() if "--compile" in argv else contextlib.nullcontext() as compilers:
        for line in sys.stdin:
            name, _, target = line.strip().rpartition("@")
            if "--values" in argv:
                outcome = values.run(cases[name], target)
            else:
                outcome = run(cases[name], target, compilers)
            print(json.dumps(dataclasses.asdict(outcome)), file=answers, flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
