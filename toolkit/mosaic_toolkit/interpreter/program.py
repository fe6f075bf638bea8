"""Compiles the functions of a module to Python, once, for any number of executions."""

from __future__ import annotations

import linecache
from collections.abc import Callable
from typing import Any

from ..errors import Unsupported
from ..jax_compat import ir
from .findings import Site
from .meaning import MEANINGS, Constant

_TERMINATORS = frozenset(
    {"scf.yield", "func.return", "tpu.yield", "gpu.terminator", "mosaic_gpu.return"}
    | {"scf.condition", "gpu.return", "tt.return", "scf.reduce", "tt.reduce.return"}
    | {"tt.scan.return", "memref.alloca_scope.return", "vector.yield", "gpu.yield"}
)
# Operations whose one region runs in place, its arguments being the operands.
_IN_PLACE = frozenset(
    {"tpu.region", "scf.execute_region", "memref.alloca_scope", "mosaic_gpu.custom_primitive"}
)
# Operations whose meaning gets the one region as a function, which sees values around it.
_CLOSURES = frozenset({"gpu.launch"})
_STRUCTURED = _IN_PLACE | {"scf.for", "scf.if", "scf.while", "scf.index_switch", "func.call"}


class Program:
    """The functions of a module as Python functions.

    Raises:
      Unsupported: an operation has no meaning; every such operation is named.
    """

    def __init__(self, module: ir.Module):
        import mosaic_toolkit.interpreter.meanings  # noqa: F401  (fills the table)

        self.module = module
        self.functions = {
            op.attributes["sym_name"].value: op.operation
            for op in module.body.operations
            if op.operation.name in ("func.func", "tt.func", "gpu.func")
        }
        self._compiled: dict[Any, Callable[..., Any]] = {}
        self._waits: dict[str, bool] = {}

    def function(self, name: str) -> Callable[..., Any]:
        """The function ``f(thread, *arguments)``; a generator of waits where `waits` says so."""
        if name not in self._compiled:
            self._compiled[name] = self._compile(name, self.functions[name].regions[0])
        return self._compiled[name]

    def waits(self, name: str) -> bool:
        """Whether running the function may have to wait."""
        if name not in self._waits:
            self._waits[name] = self.blocks(self.functions[name].regions[0])
        return self._waits[name]

    def check(self, name: str) -> None:
        """Raises Unsupported where an operation that the function can reach has no meaning."""
        missing: dict[str, str] = {}
        for op in self._reachable(self.functions[name].regions[0], set()):
            if op.name not in MEANINGS and op.name not in _STRUCTURED | _TERMINATORS:
                missing.setdefault(op.name, str(Site.of(op)))
        if missing:
            raise Unsupported(
                f"the interpreter has no meaning for {', '.join(missing.values())}",
                hint="the other commands do not need one; see CONTRIBUTING.md for how to add it",
            )

    def _reachable(self, region: ir.Region, seen: set[str]):
        for block in region.blocks:
            for view in block.operations:
                op = view.operation
                yield op
                if op.name == "func.call":
                    callee = op.attributes["callee"].value
                    if callee not in seen:
                        seen.add(callee)
                        yield from self._reachable(self.functions[callee].regions[0], seen)
                for inner in op.regions:
                    yield from self._reachable(inner, seen)

    # --- what meanings ask --------------------------------------------------------------

    def site(self, op: ir.Operation) -> Site:
        return Site.of(op)

    def region(self, region: ir.Region) -> Callable[..., Any]:
        return self._compile(f"{region.owner.name} region", region)

    def blocks(self, region: ir.Region) -> bool:
        return any(self._may_wait(op) for op in self._reachable(region, set()))

    @staticmethod
    def _may_wait(op: ir.Operation) -> bool:
        meaning = MEANINGS.get(op.name)
        return meaning is not None and meaning.kind == "blocking"

    # --- code ---------------------------------------------------------------------------

    def _compile(self, name: str, region: ir.Region) -> Callable[..., Any]:
        return _Function(self, name, region).callable()


class _Function:
    """Writes one region as the body of a Python function."""

    def __init__(self, program: Program, name: str, region: ir.Region):
        self.program = program
        self.name = name
        self.lines: list[str] = []
        self.names: dict[ir.Value, str] = {}
        self.environment: dict[str, Any] = {}
        self.region = region
        self.dead: dict[ir.Operation, bool] = {}

    def callable(self) -> Callable[..., Any]:
        (block,) = self.region.blocks
        arguments = [self._name(argument) for argument in block.arguments]
        self._block(block, 1, self._return)
        if self.program.blocks(self.region):
            self.lines.append("    yield from ()  # a generator, whatever of it was left out")
        head = f"def run({', '.join(['t', *arguments])}):"
        source = "\n".join([head, *self.lines, "    return None"])
        filename = f"<mosaic-toolkit {self.name}>"
        linecache.cache[filename] = (len(source), None, source.splitlines(True), filename)
        exec(compile(source, filename, "exec"), self.environment)
        return self.environment["run"]

    def _name(self, value: ir.Value) -> str:
        if value not in self.names:
            self.names[value] = f"v{len(self.names)}"
        return self.names[value]

    def _list(self, values) -> str:
        return ", ".join(self.names[value] for value in values)

    def _bind(self, thing: Any) -> str:
        name = f"f{len(self.environment)}"
        self.environment[name] = thing
        return name

    def _line(self, depth: int, text: str) -> None:
        self.lines.append("    " * depth + text)

    def _assign(self, depth: int, targets, values) -> None:
        """Assigns all at once, as a terminator does."""
        if targets:
            self._line(depth, f"{', '.join(targets)} = {self._list(values)}")

    def _return(self, depth: int, values) -> None:
        self._line(depth, f"return {self._list(values)}" if len(values) else "return None")

    def _block(self, block: ir.Block, depth: int, finish: Callable[[int, Any], None]) -> None:
        """Writes a block; `finish` writes what its terminator hands on."""
        before = len(self.lines)
        for view in block.operations:
            op = view.operation
            if op.name in _TERMINATORS:
                finish(depth, op.operands)
            else:
                self._operation(op, depth)
        if len(self.lines) == before:
            self._line(depth, "pass")

    def _operation(self, op: ir.Operation, depth: int) -> None:
        if op.name in _IN_PLACE:
            results = [self._name(result) for result in op.results]
            (block,) = op.regions[0].blocks
            for argument, operand in zip(block.arguments, op.operands):
                self.names[argument] = self.names[operand]
            self._block(block, depth, lambda d, values: self._assign(d, results, values))
        elif op.name in _STRUCTURED:
            getattr(self, "_" + op.name.replace(".", "_"))(op, depth)
        else:
            self._plain(op, depth)

    def _plain(self, op: ir.Operation, depth: int) -> None:
        meaning = MEANINGS.get(op.name)
        if meaning is None:
            raise Unsupported(f"the interpreter has no meaning for {Site.of(op)}")
        if self._is_dead(op):
            return
        run = meaning.prepare(op, self.program)
        if isinstance(run, Constant):
            self.names[op.results[0]] = self._bind(run.value)
            return
        arguments = self._list(op.operands)
        if op.name in _CLOSURES:
            arguments = ", ".join([self._closure(op.regions[0], depth), *arguments.split(", ")])
        if meaning.kind != "value":
            arguments = f"t, {arguments}" if arguments else "t"
        call = f"{self._bind(run)}({arguments})"
        if meaning.kind == "blocking":
            call = f"yield from {call}"
        results = ", ".join(self._name(result) for result in op.results)
        self._line(depth, f"{results} = {call}" if results else call)

    def _closure(self, region: ir.Region, depth: int) -> str:
        (block,) = region.blocks
        name = f"region{len(self.lines)}"
        arguments = ", ".join(["t", *(self._name(argument) for argument in block.arguments)])
        self._line(depth, f"def {name}({arguments}):")
        self._block(block, depth + 1, self._return)
        if self.program.blocks(region):
            self._line(depth + 1, "yield from ()")
        return name

    def _is_dead(self, op: ir.Operation) -> bool:
        """Whether only operations use its results that are left out themselves."""
        if op not in self.dead:
            meaning = MEANINGS.get(op.name)
            self.dead[op] = (
                meaning is not None
                and meaning.kind in ("value", "load")
                and all(self._is_dead(use.owner.operation) for r in op.results for use in r.uses)
            )
        return self.dead[op]

    # --- structured control flow ----------------------------------------------------------

    def _scf_for(self, op: ir.Operation, depth: int) -> None:
        lower, upper, step, *initial = op.operands
        (block,) = op.regions[0].blocks
        counter, *carried = (self._name(argument) for argument in block.arguments)
        self._assign(depth, carried, initial)
        bounds = ", ".join(self.names[value] for value in (lower, upper, step))
        self._line(depth, f"for {counter} in range({bounds}):")
        self._block(block, depth + 1, lambda d, values: self._assign(d, carried, values))
        self._assign_names(depth, op.results, carried)

    def _assign_names(self, depth: int, results, names) -> None:
        if names:
            targets = ", ".join(self._name(result) for result in results)
            self._line(depth, f"{targets} = {', '.join(names)}")

    def _scf_if(self, op: ir.Operation, depth: int) -> None:
        results = [self._name(result) for result in op.results]
        self._line(depth, f"if {self.names[op.operands[0]]}:")
        for number, region in enumerate(op.regions):
            blocks = list(region.blocks)
            if number and blocks:
                self._line(depth, "else:")
            if blocks:
                self._block(
                    blocks[0], depth + 1, lambda d, values: self._assign(d, results, values)
                )

    def _scf_index_switch(self, op: ir.Operation, depth: int) -> None:
        results = [self._name(result) for result in op.results]
        default, *cases = op.regions
        selector = self.names[op.operands[0]]
        word = "if"
        for number, region in zip(op.attributes["cases"], cases):
            self._line(depth, f"{word} {selector} == {number}:")
            self._case(region, depth + 1, results)
            word = "elif"
        self._line(depth, "else:" if word == "elif" else "if True:")
        self._case(default, depth + 1, results)

    def _case(self, region: ir.Region, depth: int, results: list[str]) -> None:
        (block,) = region.blocks
        self._block(block, depth, lambda d, values: self._assign(d, results, values))

    def _scf_while(self, op: ir.Operation, depth: int) -> None:
        before, after = (region.blocks[0] for region in op.regions)
        carried = [self._name(argument) for argument in before.arguments]
        handed = [self._name(argument) for argument in after.arguments]
        self._assign(depth, carried, op.operands)
        self._line(depth, "while True:")

        def condition(inner: int, values) -> None:
            go_on, *rest = values
            self._assign(inner, handed, rest)
            self._line(inner, f"if not {self.names[go_on]}:")
            self._assign_names(inner + 1, op.results, handed)
            self._line(inner + 1, "break")

        self._block(before, depth + 1, condition)
        self._block(after, depth + 1, lambda d, values: self._assign(d, carried, values))

    def _func_call(self, op: ir.Operation, depth: int) -> None:
        name = op.attributes["callee"].value
        arguments = ", ".join(["t", *(self.names[v] for v in op.operands)])
        call = f"{self._bind(self.program.function(name))}({arguments})"
        if self.program.waits(name):
            call = f"(yield from {call})"
        results = ", ".join(self._name(result) for result in op.results)
        self._line(depth, f"{results} = {call}" if results else call)
