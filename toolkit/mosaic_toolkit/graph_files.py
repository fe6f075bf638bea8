"""Writes a dependence graph to a file."""

from __future__ import annotations

import io
import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

from .errors import Unsupported
from .kernel import write_atomically

if TYPE_CHECKING:
    import networkx

_STYLES = {"data": "black", "region": "grey80", "memory": "red3", "async": "blue3"}


def export(graph: networkx.MultiDiGraph, path: str | os.PathLike[str]) -> None:
    """Writes `graph` in the format that the path's ending names.

    Raises:
      Unsupported: another ending, or no ``dot`` program for ``.svg``.
    """
    path = Path(path)
    writer = _WRITERS.get(path.suffix.lower())
    if writer is None:
        raise Unsupported(
            f"{path.name}: no graph format '{path.suffix}'",
            hint=f"one of {' '.join(_WRITERS)}",
        )
    write_atomically(path, writer(graph))


def to_dot(graph: networkx.MultiDiGraph) -> str:
    """Graphviz text: one box per operation, nested as the regions are."""
    lines = ["digraph kernel {", '  node [shape=box fontname="monospace" fontsize=10];']
    for node, data in graph.nodes(data=True):
        lines.append(f"  {node} [label={_quote(data['label'])}];")
    for source, target, data in graph.edges(data=True):
        lines.append(f"  {source} -> {target} [{_edge_style(data)}];")
    return "\n".join([*lines, "}", ""])


def _edge_style(data: dict) -> str:
    style = f"color={_STYLES[data['kind']]}"
    if data["carried"]:
        style += " style=dashed constraint=false"
    if data["concurrent"]:
        style += " style=dotted constraint=false"
    if data["kind"] in ("memory", "async"):
        style += f" tooltip={_quote(f'{data["detail"]} {data["buffer"]}')}"
    return style


def _quote(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{escaped}"'


def to_graphml(graph: networkx.MultiDiGraph) -> str:
    """GraphML, which ``networkx.read_graphml(..., node_type=int)`` reads back."""
    import networkx

    stream = io.BytesIO()
    networkx.write_graphml_xml(graph, stream)
    return stream.getvalue().decode()


def to_json(graph: networkx.MultiDiGraph) -> str:
    """Node-link JSON, which ``networkx.node_link_graph(..., edges="edges")`` reads back."""
    import networkx

    return json.dumps(networkx.node_link_data(graph, edges="edges"), indent=1) + "\n"


def to_svg(graph: networkx.MultiDiGraph) -> str:
    """The `to_dot` picture, drawn by Graphviz."""
    program = shutil.which("dot")
    if program is None:
        raise Unsupported(
            "an .svg needs the program 'dot', which is not on PATH",
            hint="install Graphviz (apt-get install graphviz), or write .dot, .graphml or .json",
        )
    done = subprocess.run([program, "-Tsvg"], input=to_dot(graph), capture_output=True, text=True)
    if done.returncode:
        raise Unsupported(f"dot failed: {done.stderr.strip().splitlines()[-1:]}")
    return done.stdout


_WRITERS = {".dot": to_dot, ".graphml": to_graphml, ".json": to_json, ".svg": to_svg}
