"""Builds the networkx view of a module's dependences."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from .dependence import Dependences, is_loop, operations
from .jax_compat import ir
from .locations import source_line
from .ssa import producer

if TYPE_CHECKING:
    import networkx

Edge = tuple[int, int, dict[str, Any]]


def build(program: list[ir.Operation], dependences: Dependences) -> networkx.MultiDiGraph:
    """The graph of all operations, which `program` holds in order."""
    import networkx

    return _Builder(program, dependences).build(networkx.MultiDiGraph())


def _edge(
    source: int,
    target: int,
    kind: str,
    detail: str = "",
    buffer: str = "",
    *,
    carried: bool = False,
    concurrent: bool = False,
) -> Edge:
    data = {"kind": kind, "detail": detail, "buffer": buffer}
    return source, target, data | {"carried": carried, "concurrent": concurrent}


class _Builder:
    def __init__(self, program: list[ir.Operation], dependences: Dependences):
        self._program = program
        self._numbers = {op: number for number, op in enumerate(program)}
        self._dependences = dependences
        self._lines: dict[ir.Location, str] = {}
        self._types: dict[ir.Type, str] = {}
        self._blocks: dict[int, str] = {}

    def build(self, graph: networkx.MultiDiGraph) -> networkx.MultiDiGraph:
        graph.add_nodes_from(range(len(self._program)))
        graph.add_edges_from(self._edges())
        graph.add_nodes_from((n, self._attributes(n, op)) for n, op in enumerate(self._program))
        return graph

    def _edges(self) -> Iterator[Edge]:
        for number, op in enumerate(self._program):
            yield from self._data_edges(number, op)
            if len(op.regions):
                yield from self._region_edges(number, op)
        yield from self._async_edges()

    def _attributes(self, number: int, op: ir.Operation) -> dict[str, Any]:
        line = self._line(op)
        name = op.name
        return {
            "op": name,
            "label": f"{name}\n{line}" if line else name,
            "line": line,
            "block": self._blocks.get(number, ""),
            "results": ", ".join([self._type(r.type) for r in op.results]),
        }

    def _line(self, op: ir.Operation) -> str:
        location = op.location
        line = self._lines.get(location)
        if line is None:
            line = self._lines[location] = source_line(location) or ""
        return line

    def _type(self, type_: ir.Type) -> str:
        text = self._types.get(type_)
        if text is None:
            text = self._types[type_] = str(type_)
        return text

    def _region_edges(self, number: int, op: ir.Operation) -> Iterator[Edge]:
        """From an operation to what its regions hold, and the memory edges in there."""
        for r, region in enumerate(op.regions):
            for b, block in enumerate(region.blocks):
                ops = operations(block)
                numbers = [self._numbers[child] for child in ops]
                for child in numbers:
                    self._blocks[child] = f"{number}.{r}.{b}"
                    yield _edge(number, child, "region")
                yield from self._memory_edges(op, ops, numbers)

    def _memory_edges(
        self, parent: ir.Operation, ops: list[ir.Operation], numbers: list[int]
    ) -> Iterator[Edge]:
        for d in self._dependences.memory(ops):
            source, target = numbers[d.source], numbers[d.target]
            yield _edge(source, target, "memory", d.hazard, d.resource.name)
        if not is_loop(parent):
            return
        for d in self._dependences.carried(parent, ops):
            source, target = numbers[d.source], numbers[d.target]
            yield _edge(source, target, "memory", d.hazard, d.resource.name, carried=True)

    def _data_edges(self, number: int, op: ir.Operation) -> Iterator[Edge]:
        for value in op.operands:
            source = producer(value)
            if source is not None:
                yield _edge(self._numbers[source], number, "data", "RAW")
                continue
            # A region's argument comes from the operation around it, and in a
            # loop from the end of the iteration before.
            block = value.owner
            parent = block.owner.operation
            yield _edge(self._numbers[parent], number, "data", f"argument {value.arg_number}")
            if parent.name == "scf.for" and value.arg_number > 0:
                *_, last = block.operations
                back = self._numbers[last.operation]
                yield _edge(back, number, "data", f"argument {value.arg_number}", carried=True)

    def _async_edges(self) -> Iterator[Edge]:
        for pair in self._dependences.pairs(self._program):
            yield _edge(
                pair.start,
                pair.wait,
                "async",
                pair.kind,
                pair.resource.name,
                carried=pair.carried,
                concurrent=pair.concurrent,
            )
