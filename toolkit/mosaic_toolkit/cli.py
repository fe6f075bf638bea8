"""The ``mosaic-dump`` command.

Exit codes: 0 good, 1 differences or a failed check, 2 usage or unreadable input.
Data goes to stdout, talk to stderr.  JAX and MLIR are imported by the verbs that
need them, so that ``--help`` answers at once.
"""

from __future__ import annotations

import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer

from . import cli_compiled, cli_run, cli_verify
from .cli_options import JsonOption, KernelArgument, print_json, say
from .errors import CaptureError, CompileError, Mismatch, Refused, ToolkitError

app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    help="Capture, inspect, rewrite and compare the Mosaic IR that JAX Pallas kernels lower to.",
    epilog="A first argument that is no command means dump: mosaic-dump my_kernel.py",
)


@app.command()
def dump(
    script: Annotated[Path, typer.Argument(help="A Python script; it runs as __main__.")],
    arguments: Annotated[
        list[str] | None, typer.Argument(help="The script's own arguments, after --.")
    ] = None,
    target: Annotated[
        list[str] | None,
        typer.Option(
            "--target",
            "-t",
            help="Chips to lower for, comma-separated: v4 v5e v5p v6e tpu7x h100 h200 b200. "
            "By default this machine's, or without one v5e,h100.",
        ),
    ] = None,
    call: Annotated[
        str | None,
        typer.Option(help="Lower this function of the script instead of running it."),
    ] = None,
    arg: Annotated[
        list[str] | None,
        typer.Option(
            help="An argument of --call: an array such as 'bf16[8,128]' or a Python literal; "
            "NAME=... passes it by name. Repeat for more."
        ),
    ] = None,
    output: Annotated[
        Path | None, typer.Option("-o", "--output", help="Directory; default dumps/SCRIPT.")
    ] = None,
    overwrite: Annotated[bool, typer.Option(help="Replace an earlier dump.")] = False,
    run: Annotated[
        bool,
        typer.Option(
            "--run/--no-run",
            help="Whether kernels get their values from JAX's interpret mode on a machine "
            "without the device; else zeros.",
        ),
    ] = True,
    devices: Annotated[
        int, typer.Option(min=0, help="CPU devices that JAX offers the script (for shard_map).")
    ] = 0,
    as_json: JsonOption = False,
) -> None:
    """Run a script and capture every kernel that it lowers, with or without the device."""
    from .dump import check_destination, write_dump
    from .report import dump as report
    from .runner import Script, run_script

    directory = output or Path("dumps") / script.stem
    check_destination(directory, overwrite=overwrite)
    if arg and not call:
        raise typer.BadParameter("--arg goes with --call")
    what = Script(
        script,
        tuple(arguments or ()),
        call=call,
        call_args=tuple(arg or ()),
        run=run,
        devices=devices,
    )
    try:
        kernels, outcome = run_script(what, _split(target))
    except KeyboardInterrupt:
        say("interrupted; nothing was written")
        raise typer.Exit(130) from None
    if not kernels and not outcome.failures and not outcome.traceback:
        say(report.nothing_lowered(script, outcome.functions))
        raise typer.Exit(1)
    dumped = write_dump(
        directory, kernels, report.with_command(outcome, sys.argv), overwrite=overwrite
    )
    if as_json:
        print_json(report.to_json(directory, dumped))
    else:
        typer.echo(report.render(directory, dumped))
    for line in report.remarks(dumped.run):
        say(line)
    if run and report.interpreter_failed(dumped.run):
        say("\nhint: --no-run goes on with zeros for the values of kernels")
    if outcome.failures or outcome.traceback:
        raise typer.Exit(1)


def _split(values: Sequence[str] | None) -> list[str] | None:
    parts = [part.strip() for value in values or () for part in value.split(",")]
    return [part for part in parts if part] or None


@app.command()
def show(
    kernel: KernelArgument,
    graph: Annotated[
        Path | None,
        typer.Option(help="Write the dependence graph: .dot .graphml .json .svg, by its ending."),
    ] = None,
    mlir: Annotated[
        bool, typer.Option("--mlir", help="Print the module, without locations.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Show a kernel: where it comes from and its schedule."""
    from .locate import find_kernel

    found = find_kernel(kernel)
    if graph is not None:
        from .graph import Graph

        Graph(found).export(graph)
        say(f"wrote {graph}")
    if mlir and not as_json:
        typer.echo(found.text().rstrip())
        return
    from .report import kernel as report
    from .schedule import raise_schedule

    schedule = raise_schedule(found)
    if as_json:
        module = {"mlir": found.text()} if mlir else {}
        print_json({**report.to_json(found, schedule), **module})
    else:
        typer.echo(report.render(found, schedule))


@app.command()
def apply(
    kernel: KernelArgument,
    pipeline: Annotated[
        str, typer.Option("-p", "--pipeline", help="Passes, e.g. 'pipeline-depth{stages=1},cse'.")
    ],
    plugin: Annotated[
        list[Path] | None, typer.Option(help="A Python file that defines passes. Repeat for more.")
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option("-o", "--output", help="Write the kernel here (.mlir, and .json beside it)."),
    ] = None,
    verify: Annotated[
        bool, typer.Option("--verify", help="Run kernel and result side by side, as verify does.")
    ] = False,
    print_ir_after_change: Annotated[
        bool, typer.Option(help="Print the module after each pass that changed it, to stderr.")
    ] = False,
    reproducer_dir: Annotated[
        Path, typer.Option(help="Where a failure's reproducer is written.")
    ] = Path("reproducers"),
    as_json: JsonOption = False,
) -> None:
    """Apply a pass pipeline to a kernel; print the result, or write it with -o."""
    from .kernel import save
    from .locate import find_kernel
    from .pass_pipeline import PassPipeline, write_reproducer
    from .report import passes as report

    if output is not None and output.suffix != ".mlir":
        raise typer.BadParameter(f"a kernel is written as .mlir, not '{output}'")
    passes = PassPipeline.parse(pipeline, _registry(plugin))
    found = find_kernel(kernel)

    def print_ir(step: Any) -> None:
        if print_ir_after_change:
            say(f"// -----// IR after {step.applied} //----- //\n{step.after.text()}")

    try:
        result = passes.run(found, on_change=print_ir)
    except ToolkitError as error:
        reproducer = write_reproducer(reproducer_dir, found, passes, error, plugins=plugin or ())
        say(f"error: {error}\n\nreproduce with: {reproducer.command}")
        raise typer.Exit(1) from error
    for line in report.step_lines(result):
        say(line)
    good = not verify or cli_verify.judge(found, result.kernel, err=True)
    if output is not None:
        save(result.kernel, output)
        say(f"wrote {output}")
    if as_json:
        print_json(report.to_json(result))
    elif output is None:
        typer.echo(result.kernel.text().rstrip())
    if not good:
        raise typer.Exit(1)


@app.command()
def diff(
    before: KernelArgument,
    after: KernelArgument,
    as_json: JsonOption = False,
) -> None:
    """Compare two kernels: schedule first, then op counts, then text. Exit 1 if they differ."""
    from .compare import compare
    from .locate import find_kernel
    from .report import comparison as report

    result = compare(find_kernel(before), find_kernel(after))
    if as_json:
        print_json(report.to_json(result))
    else:
        typer.echo(report.render(result))
    if not result.identical:
        raise typer.Exit(1)


@app.command()
def passes(
    plugin: Annotated[
        list[Path] | None, typer.Option(help="A Python file that defines passes. Repeat for more.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """List the passes, their options, and the package that each comes from."""
    from .report import passes as report

    infos = _registry(plugin).describe()
    if as_json:
        print_json(report.listing_to_json(infos))
    else:
        typer.echo(report.render_listing(infos))


app.command()(cli_run.run)
app.command("compile")(cli_compiled.compile_)
app.command()(cli_compiled.stages)
app.command()(cli_compiled.stats)
app.command()(cli_verify.verify)


def _registry(plugins: Sequence[Path] | None) -> Any:
    from .plugins import installed_passes

    registry = installed_passes()
    for path in plugins or ():
        registry = registry.with_plugin(path)
    return registry


def main(argv: Sequence[str] | None = None) -> None:
    """Runs the command and exits the process with its code."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _end)
    command = typer.main.get_command(app)
    verbs = command.commands  # type: ignore[attr-defined]
    if arguments and arguments[0] not in {*verbs, "--help"}:
        arguments.insert(0, "dump")
    try:
        code = command.main(arguments, prog_name="mosaic-dump", standalone_mode=True)
    except ToolkitError as error:
        say(f"error: {error}")
        code = 1 if _is_a_failed_check(error) else 2
    except OSError as error:
        say(f"error: {error.filename or 'a file'}: {error.strerror}")
        code = 2
    sys.exit(code)


def _end(number: int, frame: object) -> NoReturn:
    """Unwinds the stack on a signal to end: what was started is ended on the way."""
    del frame
    sys.exit(128 + number)


def _is_a_failed_check(error: ToolkitError) -> bool:
    return isinstance(error, CaptureError | CompileError | Mismatch | Refused)
