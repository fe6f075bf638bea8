"""The verb that judges a rewrite."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from .cli_options import JsonOption, KernelArgument, print_json

if TYPE_CHECKING:
    from .kernel import Kernel


def verify(
    before: KernelArgument,
    after: KernelArgument,
    runs: Annotated[int, typer.Option(min=1, help="Sets of random inputs.")] = 5,
    seed: Annotated[int, typer.Option(help="Of the inputs and of the schedules.")] = 0,
    schedules: Annotated[
        int,
        typer.Option(min=1, help="Timings of copies and threads: late, early, then random ones."),
    ] = 8,
    inputs: Annotated[
        Path | None, typer.Option(help="Operands in a .npz file, in place of random ones.")
    ] = None,
    devices: Annotated[int, typer.Option(min=1, help="Devices that the kernel spans.")] = 1,
    as_json: JsonOption = False,
) -> None:
    """Run two kernels in the interpreter: same results? race? deadlock? Exit 1 unless all is well."""
    from .locate import find_kernel

    passed = judge(
        find_kernel(before),
        find_kernel(after),
        runs=runs,
        seed=seed,
        schedules=schedules,
        inputs=inputs,
        devices=devices,
        as_json=as_json,
    )
    if not passed:
        raise typer.Exit(1)


def judge(
    before: Kernel,
    after: Kernel,
    *,
    runs: int = 5,
    seed: int = 0,
    schedules: int = 8,
    inputs: Path | None = None,
    devices: int = 1,
    as_json: bool = False,
    err: bool = False,
) -> bool:
    """Verifies and prints; whether all is well."""
    from . import verify as verification
    from .report import verification as report

    arrays = None
    if inputs is not None:
        from .arrays import load_inputs

        arrays = load_inputs(inputs, before.operands)
    result = verification.verify(
        before, after, inputs=arrays, runs=runs, seed=seed, schedules=schedules, devices=devices
    )
    if as_json:
        print_json(report.to_json(result))
    else:
        typer.echo(report.render(result), err=err)
    return result.verified
