"""The verb that runs: a script with its kernels rewritten, one kernel, or an executable."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from .cli_options import say
from .errors import ToolkitError

if TYPE_CHECKING:
    import numpy as np

    from .runner import Script


def run(
    program: Annotated[
        str,
        typer.Argument(
            help="A Python script, which runs as __main__; a kernel, which this toolkit's "
            "interpreter runs; or an executable that compile -o wrote, which its device does."
        ),
    ],
    arguments: Annotated[
        list[str] | None, typer.Argument(help="The script's own arguments, after --.")
    ] = None,
    pipeline: Annotated[
        str,
        typer.Option("-p", "--pipeline", help="Passes to apply to each kernel as it is lowered."),
    ] = "",
    plugin: Annotated[
        list[Path] | None, typer.Option(help="A Python file that defines passes. Repeat for more.")
    ] = None,
    only: Annotated[str, typer.Option(help="Only kernels whose name matches this pattern.")] = "*",
    override: Annotated[
        Path | None, typer.Option(help="A dump whose kernels replace those of the same name.")
    ] = None,
    target: Annotated[
        str | None,
        typer.Option(
            "--target", "-t", help="Run the script as this chip; default this machine's, or v5e."
        ),
    ] = None,
    devices: Annotated[
        int, typer.Option(min=0, help="CPU devices that JAX offers the script (for shard_map).")
    ] = 0,
    inputs: Annotated[
        Path | None,
        typer.Option(
            help="Operands of a kernel or executable: a .npz file, as np.savez(path, x, y) writes."
        ),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option("-o", "--output", help="Where its results go: a .npz file."),
    ] = None,
    verify: Annotated[
        bool,
        typer.Option(
            "--verify", help="Leave a kernel as it was where verify objects to the rewrite."
        ),
    ] = False,
) -> None:
    """Run a script with its kernels rewritten in place, a kernel, or an executable."""
    from .executable import is_executable

    of_scripts = {
        "arguments": arguments, "--pipeline": pipeline, "--plugin": plugin, "--only": only != "*",
        "--override": override, "--target": target, "--devices": devices, "--verify": verify,
    }  # fmt: skip
    of_arrays = {"--inputs": inputs, "--output": output}
    if is_executable(program):
        _refuse(of_scripts, "an executable")
        _run_executable(Path(program), inputs, output)
    elif _names_a_kernel(program):
        _refuse(of_scripts, "a kernel")
        _run_kernel(program, inputs, output)
    elif not Path(program).exists():
        raise ToolkitError(
            f"{program}: no such file",
            hint="run takes a Python script, a kernel, or an executable that compile -o wrote",
        )
    else:
        _refuse(of_arrays, "a script")
        from .runner import Rewriting, Script

        plugins = tuple(map(str, plugin or ()))
        rewrite = Rewriting(pipeline, plugins, only, str(override) if override else None, verify)
        argv = tuple(arguments or ())
        _run_script(Script(Path(program), argv, devices=devices, rewrite=rewrite), target)


def _names_a_kernel(program: str) -> bool:
    return "::" in program or program.endswith(".mlir") or Path(program).is_dir()


def _refuse(options: Mapping[str, object], kind: str) -> None:
    given = [name for name, value in options.items() if value]
    if given:
        raise typer.BadParameter(f"{', '.join(given)} does not go with {kind}")


def _run_script(script: Script, target: str | None) -> None:
    from .report import dump as report
    from .runner import run_program

    program = run_program(script, target)
    for line in (*program.rewrites, *report.remarks(program.run)):
        say(line)
    if not program.on_device:
        say(
            "note: no device here: kernels ran in this toolkit's interpreter, "
            "unless a note says otherwise"
        )
    rewrite = script.rewrite
    if rewrite and (rewrite.pipeline or rewrite.override) and not program.rewrites:
        say("error: no kernel that the script lowered was to be rewritten")
        raise typer.Exit(1)
    if program.run.failures or program.run.traceback or program.objections:
        raise typer.Exit(1)


def _run_kernel(name: str, inputs: Path | None, output: Path | None) -> None:
    from .arrays import load_inputs
    from .interpreter.execute import execute
    from .locate import find_kernel

    kernel = find_kernel(name)
    execution = execute(kernel, load_inputs(inputs, kernel.operands))
    for finding in (*execution.findings, *execution.suspects):
        say(str(finding))
    for results in execution.results:
        _give(results, output)
    if execution.findings:
        raise typer.Exit(1)


def _run_executable(path: Path, inputs: Path | None, output: Path | None) -> None:
    from .arrays import load_inputs
    from .executable import Executable

    executable = Executable.load(path)
    _give(executable.run(load_inputs(inputs, executable.kernel.operands)), output)


def _give(results: Sequence[np.ndarray], output: Path | None) -> None:
    from .arrays import save_outputs
    from .report.arrays import render

    if output is None:
        typer.echo(render(results))
        return
    save_outputs(output, results)
    say(f"wrote {output}")
