"""The files that a graph is written to, and reading them back."""

from __future__ import annotations

import json
import os
import shutil
import subprocess

import networkx
import pytest

from mosaic_toolkit.errors import Unsupported
from mosaic_toolkit.graph import Graph
from tests.graphs import REAL_KERNELS, real_kernel


def _edges(graph) -> list:
    return sorted((a, b, sorted(data.items())) for a, b, data in graph.edges(data=True))


@pytest.fixture(params=REAL_KERNELS)
def graph(request) -> Graph:
    return Graph(real_kernel(request.param))


def test_graphml_reads_back(graph, tmp_path):
    path = tmp_path / "g.graphml"
    graph.export(path)
    back = networkx.read_graphml(path, node_type=int, force_multigraph=True)
    assert dict(back.nodes(data=True)) == dict(graph.nx.nodes(data=True))
    assert _edges(back) == _edges(graph.nx)


def test_json_reads_back(graph, tmp_path):
    path = tmp_path / "g.json"
    graph.export(path)
    back = networkx.node_link_graph(json.loads(path.read_text()), edges="edges")
    assert isinstance(back, networkx.MultiDiGraph)
    assert dict(back.nodes(data=True)) == dict(graph.nx.nodes(data=True))
    assert _edges(back) == _edges(graph.nx)


def test_dot_has_every_node_and_edge(graph, tmp_path):
    path = tmp_path / "g.dot"
    graph.export(path)
    text = path.read_text()
    assert text.startswith("digraph")
    assert text.endswith("}\n")
    assert text.count("label=") == len(graph.nx)
    assert text.count(" -> ") == graph.nx.number_of_edges()


def test_svg_is_drawn_by_dot(tmp_path, monkeypatch):
    program = tmp_path / "dot"
    program.write_text("#!/bin/sh\necho '<svg>'; head -c 7\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    path = tmp_path / "g.svg"
    Graph(real_kernel("matmul_tpu")).export(path)
    assert path.read_text() == "<svg>\ndigraph"


def test_svg_without_dot_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(Unsupported, match="install Graphviz"):
        Graph(real_kernel("matmul_tpu")).export(tmp_path / "g.svg")
    assert not (tmp_path / "g.svg").exists()


def test_svg_that_dot_refuses(tmp_path, monkeypatch):
    program = tmp_path / "dot"
    program.write_text("#!/bin/sh\necho 'out of ink' >&2; exit 3\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    with pytest.raises(Unsupported, match="out of ink"):
        Graph(real_kernel("matmul_tpu")).export(tmp_path / "g.svg")


@pytest.mark.skipif(shutil.which("dot") is None, reason="Graphviz is not installed")
def test_dot_accepts_our_text(tmp_path):
    path = tmp_path / "g.dot"
    Graph(real_kernel("softmax_triton")).export(path)
    subprocess.run(["dot", "-Tplain", str(path)], check=True, capture_output=True)


def test_an_unknown_ending(tmp_path):
    with pytest.raises(Unsupported, match=r"\.png.*\n\nhint: one of \.dot \.graphml \.json \.svg"):
        Graph(real_kernel("matmul_tpu")).export(tmp_path / "g.png")
