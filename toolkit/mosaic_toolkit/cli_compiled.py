"""The verbs that compile kernels, without a device, and show what they became."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from .cli_options import JsonOption, print_json, say
from .errors import ToolkitError

if TYPE_CHECKING:
    from .kernel import Kernel
    from .recompile import Compiled, Limits

KernelsArgument = Annotated[
    str,
    typer.Argument(
        help="A .mlir file of a dump, a kernel's directory, SCRIPT.py::NAME, "
        "or a dump for each of its kernels."
    ),
]
TargetOption = Annotated[
    str | None,
    typer.Option(
        "--target",
        "-t",
        help="Chip: v4 v5e v5p v6e tpu7x h100 h200 b200; default the one it was captured for.",
    ),
]
JobsOption = Annotated[
    int, typer.Option("--jobs", "-j", min=1, help="How many kernels compile at a time.")
]
TimeOption = Annotated[
    float, typer.Option("--time-limit", min=1, help="Seconds that a compile may take.")
]
MemoryOption = Annotated[
    float,
    typer.Option("--memory-limit", min=0.1, help="GiB of host memory that a compile may take."),
]


def compile_(
    kernel: KernelsArgument,
    target: TargetOption = None,
    stages: Annotated[
        Path | None, typer.Option(help="Write every stage below the kernel here, one file each.")
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option("-o", "--output", help="Write an executable file, which run takes."),
    ] = None,
    jobs: JobsOption = 1,
    time_limit: TimeOption = 120,
    memory_limit: MemoryOption = 8,
) -> None:
    """Compile kernels with their own compiler for a chip, with no device on the machine."""
    from .locate import find_kernels
    from .stages import read_stages, write_stages

    kernels = find_kernels(kernel)
    if output is not None and len(kernels) > 1:
        raise typer.BadParameter(f"-o goes with one kernel, {kernel} holds {len(kernels)}")

    def use(name: str, compiled: Compiled) -> None:
        say(f"{_title(compiled)} compiled in {compiled.seconds:.1f} s")
        if output is not None:
            compiled.save(output)
            say(f"wrote {output}")
        if compiled.dump is not None and stages is not None:
            directory = stages / name if len(kernels) > 1 else stages
            write_stages(read_stages(compiled.dump, compiled.kernel.backend), directory)
            say(f"wrote {directory}")

    limits = _limits(time_limit, memory_limit)
    good = _for_each(kernels, target, use, jobs=jobs, limits=limits, dump=stages is not None)
    raise typer.Exit(0 if good else 1)


def stages(
    kernel: KernelsArgument,
    target: TargetOption = None,
    show: Annotated[
        str | None, typer.Option(help="Print this stage, by its name or number, and no list.")
    ] = None,
    changed: Annotated[bool, typer.Option("--changed", help="List those that changed it.")] = False,
    jobs: JobsOption = 1,
    time_limit: TimeOption = 120,
    memory_limit: MemoryOption = 8,
) -> None:
    """List the stages that kernels go through on their way to the chip, or print one."""
    from .locate import find_kernels
    from .report import stages as report
    from .stages import read_stages

    kernels = find_kernels(kernel)
    if show is not None and len(kernels) > 1:
        raise typer.BadParameter(f"--show goes with one kernel, {kernel} holds {len(kernels)}")

    def use(_: str, compiled: Compiled) -> None:
        assert compiled.dump is not None
        found = read_stages(compiled.dump, compiled.kernel.backend)
        if show is not None:
            typer.echo(found.find(show).text().rstrip())
            return
        text = report.render_stages(found, changed_only=changed)
        typer.echo(text if len(kernels) == 1 else f"{_title(compiled)}\n{text}\n")

    limits = _limits(time_limit, memory_limit)
    good = _for_each(kernels, target, use, jobs=jobs, limits=limits, dump=True)
    raise typer.Exit(0 if good else 1)


def stats(
    kernel: KernelsArgument,
    other: Annotated[
        str | None, typer.Argument(help="A second kernel, to print side by side with the first.")
    ] = None,
    target: TargetOption = None,
    as_json: JsonOption = False,
    jobs: JobsOption = 1,
    time_limit: TimeOption = 120,
    memory_limit: MemoryOption = 8,
) -> None:
    """Print a digest of compiled kernels to paste into a bug; of two, side by side."""
    from .locate import find_kernel, find_kernels
    from .report import stages as report
    from .stages import Statistics, read_statistics
    from .stages.tpu_statistics import STATISTICS_PASSES

    if other is None:
        kernels = find_kernels(kernel)
    else:
        kernels = (("before", find_kernel(kernel)), ("after", find_kernel(other)))
    found: list[tuple[str, Statistics]] = []

    def use(_: str, compiled: Compiled) -> None:
        assert compiled.dump is not None
        statistics = read_statistics(compiled.dump, compiled.kernel.backend)
        found.append((_title(compiled), statistics))
        if other is None and not as_json:
            gap = "\n" if len(found) > 1 else ""
            typer.echo(gap + report.render_digest(statistics, _title(compiled)))

    limits = _limits(time_limit, memory_limit)
    good = _for_each(
        kernels, target, use, jobs=jobs, limits=limits, dump=True, llo_passes=STATISTICS_PASSES
    )
    if as_json:
        print_json([report.to_json(statistics) for _, statistics in found])
    elif other is not None and good:
        (before, left), (after, right) = found
        typer.echo(report.render_side_by_side(left, right, (before, after)))
    raise typer.Exit(0 if good else 1)


def _title(compiled: Compiled) -> str:
    return f"{compiled.kernel.name} ({compiled.target})"


def _limits(time_limit: float, memory_limit: float) -> Limits:
    from .recompile import GiB, Limits

    return Limits(timeout_s=time_limit, memory_bytes=int(memory_limit * GiB))


def _for_each(
    kernels: Sequence[tuple[str, Kernel]],
    target: str | None,
    use: Callable[[str, Compiled], None],
    *,
    jobs: int,
    limits: Limits,
    dump: bool,
    llo_passes: str | None = None,
) -> bool:
    """Compiles named kernels and uses each; its dump lasts as long as that.

    Where one of several fails, that is said and the others go on.

    Returns:
      Whether none failed.

    Raises:
      ToolkitError: the only one failed.
    """
    from .recompile import compile_kernels

    failed = 0
    with tempfile.TemporaryDirectory(prefix="mosaic-dump-") as raw:
        results = compile_kernels(
            [kernel for _, kernel in kernels],
            target,
            jobs=jobs,
            dump_to=Path(raw) if dump else None,
            llo_passes=llo_passes,
            limits=limits,
        )
        for (name, _), result in zip(kernels, results):
            try:
                if isinstance(result, ToolkitError):
                    raise result
                use(name, result)
                if result.dump is not None:
                    shutil.rmtree(result.dump)
            except ToolkitError as error:
                if len(kernels) == 1:
                    raise
                say(f"error: {error}")
                failed += 1
    if failed:
        say(f"{failed} of {len(kernels)} kernels failed")
    return not failed
