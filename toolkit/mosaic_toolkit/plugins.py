"""Where passes come from: installed packages, this project's tree, and plugin files.

A package offers passes by entry points of the group ``mosaic_toolkit.passes``,
``name = "module:Class"``.  When the toolkit runs from its source tree, its own
entry points are those of the tree's ``pyproject.toml``, so that a new line
there counts without another installation.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import importlib.metadata
import importlib.util
import inspect
import os
import sys
import tomllib
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path

from .errors import PassPipelineError
from .pass_options import Option, options_of
from .pass_syntax import is_name
from .passes import Pass

GROUP = "mosaic_toolkit.passes"
_PROJECT = "mosaic-toolkit"


@dataclasses.dataclass(frozen=True)
class PassEntry:
    """A pass by name, its class not yet imported.

    Attributes:
      provider: the package and its version, or the plugin file.
      load: imports the class; anything that it raises is the provider's fault.
    """

    name: str
    provider: str
    load: Callable[[], type]


@dataclasses.dataclass(frozen=True)
class PassInfo:
    """What there is to know about a pass without running it.

    Attributes:
      summary: the first line of its docstring.
      backends: names of the backends it is for; None for any.
      provider: the package and its version, or the plugin file.
      file: where its class is written; None if it did not load.
      error: why it did not load, or None.
    """

    name: str
    summary: str
    options: tuple[Option, ...]
    backends: tuple[str, ...] | None
    level: str | None
    provider: str
    file: str | None
    error: str | None = None


class PassRegistry(Mapping[str, type[Pass]]):
    """Passes by name; a pass is imported when it is first asked for.

    Raises:
      PassPipelineError: two entries have one name; names both providers.
    """

    def __init__(self, entries: Iterable[PassEntry] = ()):
        self._entries: dict[str, PassEntry] = {}
        for entry in entries:
            other = self._entries.setdefault(entry.name, entry)
            if other is not entry:
                raise PassPipelineError(
                    f"pass '{entry.name}' is provided twice: "
                    f"by {other.provider} and by {entry.provider}",
                    hint="rename one of them, or leave one of the two out",
                )

    def __getitem__(self, name: str) -> type[Pass]:
        return _load(self._entries[name])

    def __contains__(self, name: object) -> bool:
        return name in self._entries

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)

    def provider(self, name: str) -> str:
        """The package and its version, or the plugin file, that the pass comes from."""
        return self._entries[name].provider

    def with_plugin(self, path: str | os.PathLike[str]) -> PassRegistry:
        """This registry and the passes that the Python file `path` defines.

        Raises:
          PassPipelineError: the file cannot be run, defines no pass, or defines
            one of a name that is taken.
        """
        return PassRegistry([*self._entries.values(), *load_plugin(path)])

    def describe(self) -> list[PassInfo]:
        """Every pass, by name; one that does not load is listed with the reason."""
        return [_describe(self._entries[name]) for name in sorted(self._entries)]


def installed_passes() -> PassRegistry:
    """The passes of every installed package, and of this project's tree."""
    own = _tree_entry_points()
    entries = [_entry(point, f"{_PROJECT} (source tree)") for point in own]
    for distribution in _distributions():
        if own and _same_project(distribution.name, _PROJECT):
            continue
        provider = f"{distribution.name} {distribution.version}"
        points = distribution.entry_points.select(group=GROUP)
        entries += [_entry(point, provider) for point in points]
    return PassRegistry(entries)


def load_plugin(path: str | os.PathLike[str]) -> list[PassEntry]:
    """Runs a Python file; the passes that it defines.

    Raises:
      PassPipelineError: the file is missing, fails (with its line), or defines no pass.
    """
    path = Path(path)
    if not path.is_file():
        raise PassPipelineError(f"plugin {path}: no such file")
    module = _run_file(path)
    classes = [
        value
        for value in vars(module).values()
        if isinstance(value, type)
        and issubclass(value, Pass)
        and value.__module__ == module.__name__
    ]
    entries = [
        PassEntry(name, str(path), functools.partial(_identity, cls))
        for cls in dict.fromkeys(classes)
        if isinstance(name := getattr(cls, "name", None), str)
    ]
    if not entries:
        raise PassPipelineError(
            f"plugin {path} defines no pass",
            hint="a pass is a class with a `name` that derives from mosaic_toolkit.passes.Pass",
        )
    for entry in entries:
        _load(entry)
    return entries


def _identity(cls: type) -> type:
    return cls


def _run_file(path: Path):
    # Dataclasses look their module up in sys.modules to read string annotations.
    name = f"mosaic_plugin_{hashlib.sha256(str(path.resolve()).encode()).hexdigest()[:12]}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise PassPipelineError(f"plugin {path} is no Python file", hint="its name must end in .py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        del sys.modules[name]
        raise PassPipelineError(
            f"plugin {_location(error, path)}: {type(error).__name__}: {_text(error)}"
        ) from error
    return module


def _location(error: BaseException, path: Path) -> str:
    if isinstance(error, SyntaxError) and error.filename:
        return f"{error.filename}:{error.lineno}"
    lines = [f.lineno for f in traceback.extract_tb(error.__traceback__) if f.filename == str(path)]
    return f"{path}:{lines[-1]}" if lines else str(path)


def _text(error: BaseException) -> str:
    return error.msg if isinstance(error, SyntaxError) else str(error)


def _entry(point: importlib.metadata.EntryPoint, provider: str) -> PassEntry:
    return PassEntry(point.name, provider, point.load)


def _distributions() -> Iterator[importlib.metadata.Distribution]:
    """Installed packages; of several copies of one, that which an import would find."""
    seen: list[str] = []
    for distribution in importlib.metadata.distributions():
        name = distribution.name
        if name and not any(_same_project(name, other) for other in seen):
            seen.append(name)
            yield distribution


def _same_project(name: str, other: str) -> bool:
    normalise = importlib.metadata.Prepared.normalize
    return normalise(name) == normalise(other)


def _tree_entry_points() -> list[importlib.metadata.EntryPoint]:
    """The project's own entry points if it runs from its tree, else none."""
    pyproject = Path(__file__).resolve().parents[2] / "pyproject.toml"
    if not pyproject.is_file():
        return []
    project = tomllib.loads(pyproject.read_text(encoding="utf-8")).get("project", {})
    if project.get("name") != _PROJECT:
        return []
    points = project.get("entry-points", {}).get(GROUP, {})
    return [importlib.metadata.EntryPoint(name, value, GROUP) for name, value in points.items()]


def _load(entry: PassEntry) -> type[Pass]:
    """The class of `entry`; raises PassPipelineError, naming the provider, if it is no pass."""
    try:
        cls = entry.load()
    except Exception as error:
        raise PassPipelineError(
            f"pass '{entry.name}' of {entry.provider} does not load: {type(error).__name__}: {error}"
        ) from error
    problem = _problem(entry.name, cls)
    if problem is not None:
        raise PassPipelineError(f"pass '{entry.name}' of {entry.provider}: {problem}")
    return cls


def _problem(name: str, cls: object) -> str | None:
    if not (isinstance(cls, type) and issubclass(cls, Pass)):
        return f"{cls!r} is no class that derives from mosaic_toolkit.passes.Pass"
    if "__dataclass_fields__" not in vars(cls):
        return f"class {cls.__qualname__} needs @dataclasses.dataclass(frozen=True)"
    if getattr(cls, "name", None) != name:
        return f"class {cls.__qualname__} calls itself '{getattr(cls, 'name', None)}'"
    if not is_name(name):
        return "a name is letters, digits, '-', '_' and '.', and starts with a letter"
    try:
        options_of(cls)
    except (PassPipelineError, NameError) as error:
        return str(error)
    return None


def _describe(entry: PassEntry) -> PassInfo:
    try:
        cls = _load(entry)
    except PassPipelineError as error:
        return PassInfo(entry.name, "", (), None, None, entry.provider, None, error.message)
    return PassInfo(
        name=entry.name,
        summary=_summary(cls),
        options=options_of(cls),
        backends=None if cls.backends is None else tuple(sorted(cls.backends)),
        level=cls.level,
        provider=entry.provider,
        file=inspect.getsourcefile(cls),
    )


def _summary(cls: type) -> str:
    doc = inspect.cleandoc(cls.__doc__ or "").partition("\n")[0]
    # A dataclass without a docstring is given its signature as one.
    return "" if doc.startswith(f"{cls.__name__}(") else doc
