"""Rewriting kernels in place, inside the user's own program.

A kernel's custom call is replaced as JAX lowers it.  Each `rewriting` block has
entries of its own in JAX's caches: what was compiled outside is lowered again
inside, and nothing that was rewritten is ever found outside.
"""

from __future__ import annotations

import contextlib
import dataclasses
import fnmatch
import functools
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from .capture import backend_of_call, capturing, interpreting, kernel_of, this_machine
from .dump import Dump
from .errors import Refused, ToolkitError, Unsupported
from .kernel import Kernel
from .pass_pipeline import PassPipeline
from .targets import DEFAULT_TARGETS, get_target

if TYPE_CHECKING:
    from .jax_compat.kernel_call import KernelCall
    from .jax_compat.scopes import Emitted


@dataclasses.dataclass(frozen=True)
class Rewrite:
    """What became of one kernel that was lowered in the block.

    Attributes:
      kernel: as JAX lowered it.
      outcome: ``rewritten``, ``unchanged``, ``refused`` or ``not verified``.
      reason: why it was refused, or what `verify` objects to.
      result: the kernel that JAX compiles instead; `kernel` unless rewritten.
    """

    kernel: Kernel
    outcome: str
    reason: str | None
    result: Kernel

    def __str__(self) -> str:
        where = f"{self.kernel.name} ({self.kernel.backend}, {self.kernel.target})"
        return f"{where}: {self.outcome}" + (f": {self.reason}" if self.reason else "")


class Rewriter:
    """Replaces kernels as they are lowered, and logs it.

    Args:
      result_of: the kernel to compile instead of a kernel, itself to leave it
        alone, None not to mention it in the log; raises Refused.
      verify: whether a rewritten kernel that `verify` objects to, or cannot run,
        is left as it was.
    """

    def __init__(self, result_of: Callable[[Kernel], Kernel | None], *, verify: bool = False):
        self._result_of = result_of
        self._verify = verify
        self.log: list[Rewrite] = []

    def __call__(self, emitted: Emitted) -> Emitted:
        backend = backend_of_call(emitted.op)
        kernel = kernel_of(emitted, _target(backend.platform))
        try:
            result = self._result_of(kernel)
        except Refused as error:
            self._note(Rewrite(kernel, "refused", error.message, kernel))
            return emitted
        if result is None:
            return emitted
        if result.asm == kernel.asm:
            self._note(Rewrite(kernel, "unchanged", None, kernel))
            return emitted
        if self._verify and (reason := _objection(kernel, result)):
            self._note(Rewrite(kernel, "not verified", reason, kernel))
            return emitted
        backend.embed(emitted.op.attributes, backend.encode(result))
        self._note(Rewrite(kernel, "rewritten", None, result))
        return dataclasses.replace(emitted, asm=result.asm)

    def on_cpu(self, call: KernelCall) -> Sequence[Any]:
        """Values of a call, from its rewritten kernel."""
        with interpreting() as interpreter:
            return interpreter.on_cpu(call)

    def _note(self, rewrite: Rewrite) -> None:
        if rewrite not in self.log:
            self.log.append(rewrite)


def _objection(before: Kernel, after: Kernel) -> str | None:
    from .verify import objection

    try:
        return objection(before, after)
    except Unsupported as error:
        return error.message


def by_pipeline(pipeline: PassPipeline, only: str, *, verify: bool = False) -> Rewriter:
    """Applies a pipeline to each kernel whose name matches the pattern `only`."""

    def result_of(kernel: Kernel) -> Kernel | None:
        if not fnmatch.fnmatchcase(kernel.name, only):
            return None
        return pipeline.run(kernel).kernel

    return Rewriter(result_of, verify=verify)


def by_override(dump: Dump, *, verify: bool = False) -> Rewriter:
    """Puts a dump's kernels, edited by hand, in the place of those of the same name.

    Backend and target have to be the same too.  Where several have one name, that
    of the same operands and results is taken; where none agrees it is refused.
    """

    def result_of(kernel: Kernel) -> Kernel | None:
        def identity(k: Kernel) -> tuple[str, str, str, str]:
            return k.name, k.backend, k.target, k.level

        named = [k for _, k in dump.kernels if identity(k) == identity(kernel)]
        for edited in named:
            if (edited.operands, edited.results) == (kernel.operands, kernel.results):
                return dataclasses.replace(kernel, asm=edited.asm)
        if not named:
            return None
        raise Refused(
            f"the edited kernel takes {_types(named[0])}, the program calls it with {_types(kernel)}"
        )

    return Rewriter(result_of, verify=verify)


def _types(kernel: Kernel) -> str:
    return f"({', '.join(map(str, kernel.operands))}) -> ({', '.join(map(str, kernel.results))})"


def _target(platform: str) -> str:
    """The chip that this thread lowers for."""
    from .jax_compat.scopes import listener

    who = listener()
    if who is not None and who.target is not None and who.target.platform == platform:
        return who.target.name
    here = this_machine()
    return (here if here and here.platform == platform else DEFAULT_TARGETS[platform]).name


def _pipeline(pipeline: str | PassPipeline) -> PassPipeline:
    return PassPipeline.parse(pipeline) if isinstance(pipeline, str) else pipeline


@contextlib.contextmanager
def rewriting(
    pipeline: str | PassPipeline,
    *,
    only: str = "*",
    target: str | None = None,
    verify: bool = False,
) -> Iterator[list[Rewrite]]:
    """Rewrites the kernels that this thread lowers in the block.

    A kernel that a pass refuses is compiled as it is, and the log says why.  On a
    machine without the device the rewritten kernels run in this toolkit's interpreter;
    where that cannot, the unmodified ones in JAX's interpret mode.  Of nested blocks the outer one
    rewrites first.

    Args:
      pipeline: passes, or their text.
      only: a pattern that the kernel's name has to match, as in a shell.
      target: the chip, where this machine has none; by default a TPU v5e.
      verify: leave a kernel as it was where `verify` objects to the rewrite.

    Yields:
      The log, which fills while the block runs.

    Raises:
      PassPipelineError: the text is malformed or a pass has a bug.
      InvalidModule: a pass left a module that does not verify.
      CaptureError: when the block ends, on a machine without the device, if a kernel
        in it could not be lowered.
      ToolkitError: `target` is given inside another such block or a capture.
    """
    from .jax_compat import lowering
    from .jax_compat.scopes import listener

    rewriter = by_pipeline(_pipeline(pipeline), only, verify=verify)
    with contextlib.ExitStack() as stack:
        if listener() is not None and target is not None:
            raise ToolkitError("a target was named already by what this block stands in")
        if listener() is None and (target is not None or this_machine() is None):
            chip = get_target(target) if target else None
            stack.enter_context(capturing(chip, execute=True))
        stack.enter_context(lowering.rewriting_with(rewriter))
        yield rewriter.log


def rewrite(
    function: Callable[..., Any], pipeline: str | PassPipeline, *, only: str = "*"
) -> Callable[..., Any]:
    """A function like `function` whose kernels are rewritten wherever it is lowered.

    It can be jitted, differentiated and batched like `function`.  Its attribute
    ``log`` is the list of what became of its kernels.

    Raises: see `rewriting`; when the function is lowered.
    """
    from .jax_compat import lowering

    passes = _pipeline(pipeline)
    rewriter = by_pipeline(passes, only)
    mark = lowering.mark_for(rewriter, str(passes))

    @functools.wraps(function)
    def rewritten(*args: Any, **kwargs: Any) -> Any:
        with lowering.marking(mark):
            return function(*args, **kwargs)

    rewritten.log = rewriter.log  # type: ignore[attr-defined]
    return rewritten
