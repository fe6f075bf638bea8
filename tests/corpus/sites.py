"""Where libraries call Pallas: read from their source, and seen while they run."""

from __future__ import annotations

import ast
import contextlib
import functools
import importlib.util
import inspect
import re
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path

# Packages that the corpus promises to cover.
LIBRARIES = (
    "jax.experimental.pallas.ops",
    "tokamax._src",
)

# What makes a kernel: JAX's own entry points, and tokamax's wrappers of them.
_NAMES = {
    "core_map",
    "custom_buffered_pallas_call",
    "dynamic_scheduling_persistent_kernel",
    "not_persistent_grid_loop_kernel",
    "pallas_call",
    "static_scheduling_persistent_kernel",
}
_PALLAS_MODULES = {"pl", "plgpu", "pltpu", "plsc", "pallas"}
_MENTION = re.compile(rf"\b({'|'.join(_NAMES)}|({'|'.join(_PALLAS_MODULES)})\.kernel)\b")


def _is_test(path: Path) -> bool:
    stem = path.stem
    return "test" in stem.split("_") or "test" in path.parent.parts[-1:] or stem == "conftest"


@functools.cache
def declared(library: str) -> dict[str, set[str]]:
    """Functions that make a kernel, as qualified names, by module of `library`.

    A library that is not installed has none.
    """
    package, *inner = library.split(".")
    spec = importlib.util.find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        return {}
    found: dict[str, set[str]] = {}
    for location in spec.submodule_search_locations:
        root = Path(location, *inner)
        for path in sorted(root.rglob("*.py")):
            if _is_test(path.relative_to(root.parent)):
                continue
            names = _Finder.names(path)
            if names:
                parts = path.relative_to(root).with_suffix("").parts
                found[".".join((library, *parts))] = names
    return found


class _Finder(ast.NodeVisitor):
    def __init__(self) -> None:
        self._scope: list[str] = []
        self._found: set[str] = set()

    @classmethod
    def names(cls, path: Path) -> set[str]:
        source = path.read_text(encoding="utf-8")
        finder = cls()
        if _MENTION.search(source):
            finder.visit(ast.parse(source))
        return finder._found

    def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
        for decorator in node.decorator_list:
            self.visit(decorator)
        self._scope += [node.name, "<locals>"]
        for statement in node.body:
            self.visit(statement)
        del self._scope[-2:]

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        self._scope.append(node.name)
        self.generic_visit(node)
        self._scope.pop()

    def visit_Lambda(self, node: ast.Lambda) -> None:
        self._scope += ["<lambda>", "<locals>"]
        self.generic_visit(node)
        del self._scope[-2:]

    def visit_Attribute(self, node: ast.Attribute) -> None:
        owner = node.value.id if isinstance(node.value, ast.Name) else None
        if node.attr in _NAMES or (node.attr == "kernel" and owner in _PALLAS_MODULES):
            self._add()
        self.generic_visit(node)

    def visit_Name(self, node: ast.Name) -> None:
        if node.id in _NAMES and isinstance(node.ctx, ast.Load):
            self._add()

    def _add(self) -> None:
        self._found.add(".".join(self._scope).removesuffix(".<locals>") or "<module>")


@contextlib.contextmanager
def watching() -> Iterator[set[tuple[str, str]]]:
    """Collects (module, qualified name) of library functions that make kernels.

    It uses the interpreter's monitoring, so that no frame is added to what JAX
    records as the source of a kernel.
    """
    from jax.experimental import pallas as pl
    from jax.experimental.pallas import mosaic_gpu as plgpu

    seen: set[tuple[str, str]] = set()
    monitoring = sys.monitoring
    tool = monitoring.PROFILER_ID

    def on_call(code, offset):
        frame = sys._getframe(1)
        while frame is not None:
            module = frame.f_globals.get("__name__", "")
            if module.startswith(LIBRARIES):
                seen.add((module, frame.f_code.co_qualname))
            frame = frame.f_back

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        entries = (pl.pallas_call, pl.kernel, plgpu.kernel, pl.core_map)
    codes = [inspect.unwrap(entry).__code__ for entry in entries]
    monitoring.use_tool_id(tool, "corpus")
    try:
        monitoring.register_callback(tool, monitoring.events.PY_START, on_call)
        for code in codes:
            monitoring.set_local_events(tool, code, monitoring.events.PY_START)
        yield seen
    finally:
        for code in codes:
            monitoring.set_local_events(tool, code, monitoring.events.NO_EVENTS)
        monitoring.register_callback(tool, monitoring.events.PY_START, None)
        monitoring.free_tool_id(tool)
