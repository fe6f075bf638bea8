"""Properties of dependences, for any sequence of accesses and any legal order."""

from __future__ import annotations

import functools
import random

import networkx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mosaic_toolkit.effects import frontier, memory
from mosaic_toolkit.effects.memory import ZERO, Access, Box, Resource, Span, Terms
from mosaic_toolkit.graph import Graph
from tests.graphs import REAL_KERNELS, real_kernel

# --- the frontier against comparing all pairs -------------------------------------

_EVERYTHING = Resource("everything")
_MEMORY = Resource("memory", _EVERYTHING)
_BUFFERS = [Resource(name, _MEMORY) for name in "xyz"]
_STATE = Resource("state", _EVERYTHING)
_SYMBOLS = [ZERO, ZERO, ZERO, Terms(((1, 1),), 3), Terms(((2, 8),), 3)]


@st.composite
def _spans(draw) -> Span | None:
    if draw(st.integers(0, 9)) == 0:
        return None
    start = draw(st.integers(0, 40))
    terms = draw(st.sampled_from(_SYMBOLS))
    return Span(terms, start, start + draw(st.sampled_from([1, 1, 4, 8, 64])))


@st.composite
def _accesses(draw) -> Access:
    resource = draw(st.sampled_from([*_BUFFERS * 4, _STATE, _MEMORY, _EVERYTHING]))
    box = None
    if resource in _BUFFERS and draw(st.integers(0, 5)):
        coordinates = draw(st.sampled_from([(64, 64), (64, 64), (64, 64), "bytes"]))
        box = Box(coordinates, (draw(_spans()), draw(_spans())))
    return Access(resource, box, draw(st.sampled_from([1, 1, 2, 3])))


_SEQUENCES = st.lists(st.lists(_accesses(), max_size=3).map(tuple), max_size=40)


def _conflicts(sequence) -> set[tuple[int, int]]:
    return {
        (i, j)
        for j, second in enumerate(sequence)
        for i, first in enumerate(sequence[:j])
        if any(memory.conflict(a, b) for a in first for b in second)
    }


@pytest.mark.parametrize("crowded", [128, 2])
@given(sequence=_SEQUENCES)
@settings(max_examples=150, deadline=None)
def test_every_conflict_is_a_path(crowded, sequence):
    limit, frontier._CROWDED = frontier._CROWDED, crowded
    try:
        found = list(frontier.dependences(sequence))
    finally:
        frontier._CROWDED = limit
    order = networkx.DiGraph((d.source, d.target) for d in found)
    order.add_nodes_from(range(len(sequence)))
    assert all(d.source < d.target for d in found)
    reachable = {n: networkx.descendants(order, n) for n in order}
    conflicts = _conflicts(sequence)
    assert all(j in reachable[i] for i, j in conflicts)
    if crowded == 128:  # nothing was merged, so no edge is made up
        assert {(d.source, d.target) for d in found} <= conflicts


@given(body=_SEQUENCES)
@settings(max_examples=75, deadline=None)
def test_every_carried_conflict_is_a_path_through_two_iterations(body):
    count = len(body)
    order = networkx.DiGraph()
    order.add_nodes_from(range(2 * count))
    for d in frontier.dependences(body):
        order.add_edge(d.source, d.target)
        order.add_edge(d.source + count, d.target + count)
    for d in frontier.carried_dependences(body):
        order.add_edge(d.source, d.target + count)
    for i, j in _conflicts([*body, *body]):
        assert j in networkx.descendants(order, i)


@given(accesses=st.lists(_accesses(), max_size=80), depth=st.integers(0, 4))
@settings(max_examples=150, deadline=None)
def test_a_summary_conflicts_with_all_that_its_parts_conflict_with(accesses, depth):
    summary = memory.summarise(accesses, depth)
    for access in accesses:
        assert any(
            s.resource is access.resource
            and s.mode & access.mode == access.mode
            and memory.covers(s.box, memory.outside(access.box, depth))
            for s in summary
        )


# --- any legal order of real kernels -------------------------------------------------


@functools.cache
def _must_keep(script: str) -> list[tuple[int, int]]:
    """Positions in program order of the pairs, side by side, that must keep their order."""
    graph = Graph(real_kernel(script))
    siblings: dict[str, list[int]] = {}
    for node, data in graph.nx.nodes(data=True):
        siblings.setdefault(data["block"], []).append(node)
    return [
        (a, b)
        for nodes in siblings.values()
        for i, a in enumerate(nodes)
        for b in nodes[i + 1 : i + 60]
        if graph.dependences.reason(graph.op(a), graph.op(b)) is not None
    ]


@pytest.mark.parametrize("script", REAL_KERNELS)
@given(seed=st.integers(0, 2**32))
@settings(max_examples=12, deadline=None)
def test_any_legal_reschedule_verifies_and_keeps_every_dependence(script, seed):
    graph = Graph(real_kernel(script))
    before = list(graph.ops())
    shuffle = random.Random(seed)
    graph.reschedule(lambda op: shuffle.random())
    graph.kernel()  # raises if the module does not verify
    for a, b in _must_keep(script):
        assert before[a].is_before_in_block(before[b])
    assert sorted(op.name for op in before) == sorted(op.name for op in graph.ops())


@pytest.mark.parametrize("script", ["dma_ring_tpu", "matmul_hopper"])
@given(seed=st.integers(0, 2**32))
@settings(max_examples=10, deadline=None)
def test_the_same_edges_stand_after_a_reschedule(script, seed):
    graph = Graph(real_kernel(script))
    before = list(graph.ops())
    paths = {(a, b) for a, b, d in graph.nx.edges(data=True) if d["kind"] == "async"}
    shuffle = random.Random(seed)
    graph.reschedule(lambda op: shuffle.random())
    after = {(a, b) for a, b, d in graph.nx.edges(data=True) if d["kind"] == "async"}
    assert {(graph.node(before[a]), graph.node(before[b])) for a, b in paths} == after


@given(seed=st.integers(0, 2**32))
@settings(max_examples=15, deadline=None)
def test_random_legal_moves_verify(seed):
    from mosaic_toolkit.errors import Refused

    graph = Graph(real_kernel("dma_ring_tpu"))
    choose = random.Random(seed)
    moved = 0
    for _ in range(30):
        op, anchor = (graph.op(choose.randrange(1, len(graph.nx))) for _ in range(2))
        try:
            (graph.move_before if choose.random() < 0.5 else graph.move_after)(op, anchor)
            moved += 1
        except Refused:
            continue
    graph.kernel()
