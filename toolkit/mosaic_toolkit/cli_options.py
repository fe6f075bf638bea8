"""What the verbs of the command share: arguments, and where words go."""

from __future__ import annotations

import json
from typing import Annotated, Any

import typer

KernelArgument = Annotated[
    str, typer.Argument(help="A .mlir file of a dump, a kernel's directory, or SCRIPT.py::NAME.")
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")]


def say(text: str) -> None:
    """Talk: to stderr, so that stdout stays data."""
    typer.echo(text, err=True)


def print_json(data: Any) -> None:
    """Data that another program reads."""
    typer.echo(json.dumps(data, indent=1))
