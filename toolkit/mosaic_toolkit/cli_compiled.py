"""The verbs that compile a kernel, without a device, and show what it became."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from .cli_options import JsonOption, KernelArgument, print_json, say

if TYPE_CHECKING:
    from .recompile import Compiled

TargetOption = Annotated[
    str | None,
    typer.Option(
        "--target",
        "-t",
        help="Chip: v4 v5e v5p v6e tpu7x h100 h200 b200; default the one it was captured for.",
    ),
]
TimeoutOption = Annotated[float, typer.Option(min=1, help="Seconds that the compiler may take.")]


@contextmanager
def _compiled(
    kernel: str, target: str | None, timeout: float, *, only_statistics: bool = False
) -> Iterator[Compiled]:
    """The kernel compiled, with all that the compiler dumps for as long as the block lasts."""
    from .locate import find_kernel
    from .recompile import Limits, compile_kernel
    from .stages.tpu_statistics import STATISTICS_PASSES

    passes = STATISTICS_PASSES if only_statistics else None
    with tempfile.TemporaryDirectory(prefix="mosaic-dump-") as raw:
        limits = Limits(timeout_s=timeout)
        yield compile_kernel(
            find_kernel(kernel), target, dump_to=Path(raw), llo_passes=passes, limits=limits
        )


def compile_(
    kernel: KernelArgument,
    target: TargetOption = None,
    stages: Annotated[
        Path | None, typer.Option(help="Write every stage below the kernel here, one file each.")
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option("-o", "--output", help="Write an executable file, which run takes."),
    ] = None,
    timeout: TimeoutOption = 120,
) -> None:
    """Compile a kernel with its own compiler for a chip, with no device on the machine."""
    if stages is None:
        from .locate import find_kernel
        from .recompile import Limits, compile_kernel

        compiled = compile_kernel(find_kernel(kernel), target, limits=Limits(timeout_s=timeout))
        _say_compiled(compiled, output)
        return
    from .stages import read_stages, write_stages

    with _compiled(kernel, target, timeout) as compiled:
        _say_compiled(compiled, output)
        assert compiled.dump is not None
        write_stages(read_stages(compiled.dump, compiled.kernel.backend), stages)
    say(f"wrote {stages}")


def _say_compiled(compiled: Compiled, output: Path | None) -> None:
    kernel = compiled.kernel
    say(f"{kernel.name} ({kernel.backend}, {kernel.target}) compiled in {compiled.seconds:.1f} s")
    if output is not None:
        compiled.save(output)
        say(f"wrote {output}")


def stages(
    kernel: KernelArgument,
    target: TargetOption = None,
    show: Annotated[
        str | None, typer.Option(help="Print this stage, by its name or number, and no list.")
    ] = None,
    changed: Annotated[bool, typer.Option("--changed", help="List those that changed it.")] = False,
    timeout: TimeoutOption = 120,
) -> None:
    """List the stages that a kernel goes through on its way to the chip, or print one."""
    from .report import stages as report
    from .stages import read_stages

    with _compiled(kernel, target, timeout) as compiled:
        assert compiled.dump is not None
        found = read_stages(compiled.dump, compiled.kernel.backend)
        if show is not None:
            stage = found.find(show)
            typer.echo(stage.text().rstrip())
        else:
            typer.echo(report.render_stages(found, changed_only=changed))


def stats(
    kernel: KernelArgument,
    other: Annotated[
        str | None, typer.Argument(help="A second kernel, to print side by side with the first.")
    ] = None,
    target: TargetOption = None,
    as_json: JsonOption = False,
    timeout: TimeoutOption = 120,
) -> None:
    """Print a digest of a compiled kernel to paste into a bug; of two, side by side."""
    from .report import stages as report
    from .stages import read_statistics

    found = []
    titles = []
    for one in filter(None, (kernel, other)):
        with _compiled(one, target, timeout, only_statistics=True) as compiled:
            assert compiled.dump is not None
            found.append(read_statistics(compiled.dump, compiled.kernel.backend))
            titles.append(f"{compiled.kernel.name} ({compiled.kernel.target})")
    if as_json:
        print_json([report.to_json(statistics) for statistics in found])
    elif len(found) == 1:
        typer.echo(report.render_digest(found[0], titles[0]))
    else:
        typer.echo(report.render_side_by_side(found[0], found[1], (titles[0], titles[1])))
