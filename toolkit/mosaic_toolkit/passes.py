"""`Pass`: a named rewrite of one kernel, the class that built-in passes and plugins derive from."""

from __future__ import annotations

import dataclasses
import inspect
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from .errors import InvalidModule, PassPipelineError, Refused, ToolkitError, first_error
from .kernel import Kernel
from .pass_options import options_of

if TYPE_CHECKING:
    from .graph import Graph


@dataclasses.dataclass(frozen=True)
class Pass:
    """A named rewrite of one kernel.

    A pass is a frozen dataclass that derives from this class and has a `run`.
    Its fields are its options: int, str, bool or ``tuple[str, ...]``, with help
    in ``dataclasses.field(metadata={"help": ...})``.  Its docstring's first line
    is its summary, and says further down ``Rewrite: before -> after``.

    Attributes:
      name: what a pipeline's text calls it.
      backends: the backends whose kernels it rewrites, by name; None for any.
      level: the kernel's level that it needs, ``dialect`` or ``lowered``; None for any.
    """

    name: ClassVar[str]
    backends: ClassVar[frozenset[str] | None] = None
    level: ClassVar[str | None] = None

    def run(self, graph: Graph) -> None:
        """Rewrites `graph` in place.

        Raises:
          Refused: the rewrite is illegal for this kernel; says why.  The
            pipeline adds the names of the pass and the kernel.
        """
        raise NotImplementedError(f"{type(self).__qualname__} has no run(graph)")

    def check_applies(self, kernel: Kernel) -> None:
        """Raises Refused where the pass is not for kernels of this backend or level."""
        if self.backends is not None and kernel.backend not in self.backends:
            needed = " or ".join(sorted(self.backends))
            raise Refused(f"{kernel.backend} kernel; {self.name} needs {needed} ({where(kernel)})")
        if self.level is not None and kernel.level != self.level:
            hint = None
            if kernel.level == "lowered":
                hint = (
                    "a Mosaic GPU kernel has a dialect level under Warpgroup lowering semantics: "
                    "CompilerParams(lowering_semantics=LoweringSemantics.Warpgroup)"
                )
            raise Refused(
                f"the kernel exists only at the {kernel.level} level; "
                f"{self.name} needs the {self.level} level ({where(kernel)})",
                hint=hint,
            )

    def apply(self, kernel: Kernel) -> StepResult:
        """The kernel after this pass, verified; `kernel` stays as it is.

        Raises:
          Refused: the rewrite is illegal for this kernel.
          InvalidModule: the pass left a module that does not verify.
          PassPipelineError: the pass itself failed; says at which line.
        """
        from . import jax_compat
        from .graph import Graph

        graph = Graph(kernel)
        before = jax_compat.print_module(graph.module)
        try:
            self.run(graph)
        except ToolkitError as error:
            message = f"{self.name}: {error.message} ({where(kernel)})"
            raise type(error)(message, hint=error.hint) from error
        except (Exception, SystemExit) as error:
            line = _failing_line(error, type(self))
            raise PassPipelineError(
                f"pass '{self.name}' raised {type(error).__name__}: {error} ({line})",
                hint="this is a bug in the pass, not in the kernel",
            ) from error
        try:
            graph.module.operation.verify()
        except jax_compat.ir.MLIRError as error:
            raise InvalidModule(
                f"after pass '{self.name}': {first_error(str(error))} ({where(kernel)})",
                hint="the pass left a module that does not verify; nothing was kept of it",
            ) from error
        changed = jax_compat.print_module(graph.module) != before
        return StepResult(self, kernel, graph.kernel() if changed else kernel)

    def __str__(self) -> str:
        """The pass as a pipeline's text has it; an option at its default is left out."""
        given = (
            option.format(getattr(self, option.field))
            for option in options_of(type(self))
            if option.required or getattr(self, option.field) != option.default
        )
        options = " ".join(given)
        return f"{self.name}{{{options}}}" if options else self.name


@dataclasses.dataclass(frozen=True)
class StepResult:
    """What one pass of a pipeline did.

    Attributes:
      applied: the pass.
      before: the kernel before it.
      after: the kernel after it, `before` itself if nothing changed.
      output: what the pass printed, for passes that only report.
    """

    applied: Pass
    before: Kernel
    after: Kernel
    output: str = ""

    @property
    def changed(self) -> bool:
        """Whether the pass changed the module."""
        return self.after is not self.before


def where(kernel: Kernel) -> str:
    """The kernel's name and Python line, for an error message."""
    at = f", {Path(kernel.source).name}" if kernel.source else ""
    return f"kernel '{kernel.name}'{at}"


def _failing_line(error: BaseException, cls: type) -> str:
    """``file:line`` where `error` left the file of `cls`, or where it was raised."""
    frames = traceback.extract_tb(error.__traceback__)
    own = inspect.getsourcefile(cls)
    frame = [frame for frame in frames if frame.filename == own][-1:] or frames[-1:]
    return f"{Path(frame[0].filename).name}:{frame[0].lineno}"
