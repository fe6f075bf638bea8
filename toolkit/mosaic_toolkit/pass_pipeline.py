"""`PassPipeline`: passes in order, their textual form, and running them on a kernel."""

from __future__ import annotations

import dataclasses
import difflib
import hashlib
import json
import os
import re
import shlex
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from .errors import ToolkitError
from .kernel import Kernel, save, write_atomically
from .mlir_pass import MlirPass, is_registered, problem_with
from .pass_options import Option, options_of
from .pass_syntax import Element, error_at, parse_elements, parse_options
from .passes import Pass, StepResult

# Offered beside the registered passes where a name is unknown: MLIR cannot list its own.
_COMMON_MLIR_PASSES = ("canonicalize", "cse", "inline", "loop-invariant-code-motion", "sccp")


@dataclasses.dataclass(frozen=True)
class PipelineResult:
    """A kernel after a pipeline, and what each pass did to it."""

    kernel: Kernel
    steps: tuple[StepResult, ...]

    @property
    def changed(self) -> bool:
        """Whether any pass changed the module."""
        return any(step.changed for step in self.steps)


@dataclasses.dataclass(frozen=True)
class PassPipeline:
    """Passes, run in order.  ``str(pipeline)`` parses back to an equal pipeline."""

    passes: tuple[Pass, ...] = ()

    @classmethod
    def parse(cls, text: str, registry: Mapping[str, type[Pass]] | None = None) -> PassPipeline:
        """The pipeline that `text` describes, for example ``a{k=v list=x,y},canonicalize``.

        Args:
          text: as `pass_syntax` describes it; a name that is not in `registry`
            is one of MLIR's own passes and keeps its options as they stand.
          registry: passes by name; the installed ones if None.

        Raises:
          PassPipelineError: `text` is malformed, or names an unknown pass or
            option; shows where and what was expected.
        """
        if registry is None:
            from .plugins import installed_passes

            registry = installed_passes()
        return cls(tuple(_build(text, element, registry) for element in parse_elements(text)))

    def run(
        self, kernel: Kernel, *, on_change: Callable[[StepResult], None] | None = None
    ) -> PipelineResult:
        """Runs the passes, each on a module of its own that is verified afterwards.

        Args:
          kernel: stays as it is.
          on_change: called after each pass that changed the module.

        Raises:
          Refused: a pass is not for this kernel (before any has run), or its
            rewrite is illegal.
          InvalidModule: a pass left a module that does not verify.
          CompileError: one of MLIR's own passes failed.
          PassPipelineError: a pass failed for a reason of its own.
        """
        for step in self.passes:
            step.check_applies(kernel)
        steps: list[StepResult] = []
        current = kernel
        for step in self.passes:
            result = step.apply(current)
            steps.append(result)
            current = result.after
            if result.changed and on_change is not None:
                on_change(result)
        return PipelineResult(current, tuple(steps))

    def __str__(self) -> str:
        return ",".join(map(str, self.passes))


def _build(text: str, element: Element, registry: Mapping[str, type[Pass]]) -> Pass:
    if element.nested or element.name not in registry:
        return _build_mlir(text, element, registry)
    cls = registry[element.name]
    if is_registered(element.name):
        raise error_at(
            text,
            element.start,
            f"'{element.name}' is both a pass of {cls.__module__} and one of MLIR's own",
            "rename the former",
        )
    options = {option.name: option for option in options_of(cls)}
    values: dict[str, object] = {}
    for given in parse_options(text, *(element.options or (0, 0))):
        option = options.get(given.name.replace("_", "-"))
        if option is None:
            raise error_at(
                text,
                given.start,
                f"{element.name} has no option '{given.name}'",
                _usage(element.name, options.values()),
            )
        if option.field in values:
            raise error_at(text, given.start, f"option '{given.name}' is given twice")
        try:
            values[option.field] = option.parse(given.items)
        except ValueError as error:
            raise error_at(text, given.items_start, f"{element.name}: {error}") from None
    for option in options.values():
        if option.required and option.field not in values:
            usage = _usage(element.name, options.values())
            message = f"{element.name} needs the option '{option.name}'"
            raise error_at(text, element.end - bool(element.options), message, usage)
    try:
        return cls(**values)
    except ValueError as error:
        raise error_at(text, element.start, f"{element.name}: {error}") from error


def _usage(name: str, options: Iterable[Option]) -> str:
    usages = " ".join(option.usage for option in options)
    return f"it is written {name}{{{usages}}}" if usages else f"{name} has no options"


def _build_mlir(text: str, element: Element, registry: Mapping[str, type[Pass]]) -> MlirPass:
    if not element.nested and not is_registered(element.name):
        names = [*registry, *_COMMON_MLIR_PASSES]
        nearest = difflib.get_close_matches(element.name, names, n=3, cutoff=0.5)
        hint = f"did you mean {' or '.join(nearest)}?" if nearest else f"passes: {', '.join(names)}"
        raise error_at(text, element.start, f"unknown pass '{element.name}'", hint)
    step = MlirPass(text[element.start : element.end])
    problem = problem_with(step.text)
    if problem is not None:
        raise error_at(text, element.start, f"{element.name}: {problem}")
    return step


@dataclasses.dataclass(frozen=True)
class Reproducer:
    """A failure on disk: the kernel before the pipeline, and the command that fails again."""

    path: Path
    command: str


def write_reproducer(
    directory: str | os.PathLike[str],
    kernel: Kernel,
    pipeline: PassPipeline,
    error: ToolkitError,
    *,
    plugins: Iterable[str | os.PathLike[str]] = (),
) -> Reproducer:
    """Saves a kernel on which a pipeline failed, with the pipeline and the error.

    Writes ``NAME.mlir`` and ``NAME.json`` as `kernel.save` does, and
    ``NAME.reproducer.json``.  The same failure overwrites the same files.

    Args:
      plugins: the plugin files that the pipeline's passes come from.
    """
    digest = hashlib.sha256(f"{kernel.digest} {pipeline}".encode()).hexdigest()[:8]
    safe = re.sub(r"[^A-Za-z0-9_.-]+", "_", kernel.name).strip(".")[:80] or "kernel"
    path = save(kernel, Path(directory) / f"{safe}-{digest}.mlir")
    files = [str(Path(plugin).resolve()) for plugin in plugins]
    words = ["mosaic-dump", "apply", str(path), "-p", str(pipeline)]
    for file in files:
        words += ["--plugin", file]
    command = shlex.join(words)
    record = {
        "format": "mosaic-toolkit/reproducer",
        "format_version": 1,
        "pipeline": str(pipeline),
        "plugins": files,
        "error": {"type": type(error).__name__, "message": error.message, "hint": error.hint},
        "versions": dict(kernel.versions),
        "command": command,
    }
    side = path.with_suffix(".reproducer.json")
    write_atomically(side, json.dumps(record, indent=1) + "\n")
    return Reproducer(path, command)
