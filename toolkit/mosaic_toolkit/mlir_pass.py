"""`MlirPass`: one of MLIR's own passes, run by its name in a process of its own.

Some of the passes that are registered in jaxlib are meant for other modules
than kernels and abort on one; only that process ends.
"""

from __future__ import annotations

import dataclasses
import os
import re
import subprocess
import sys

from .child import ending, importing_as_here
from .errors import CompileError, first_error
from .kernel import Kernel
from .passes import Pass, StepResult, where

_TIMEOUT_SECONDS = 600
_FAILED = 3
_UNREGISTERED = "does not refer to a registered pass"


@dataclasses.dataclass(frozen=True)
class MlirPass(Pass):
    """One of MLIR's own passes; `text` is its element of a pipeline, options included."""

    text: str

    @property
    def name(self) -> str:  # type: ignore[override]
        """The pass's name, or that of the operation that its pipeline is nested in."""
        return re.split(r"[{(]", self.text, maxsplit=1)[0]

    def __str__(self) -> str:
        return self.text

    def apply(self, kernel: Kernel) -> StepResult:
        """The kernel after this pass.

        Raises:
          CompileError: MLIR refused the kernel, crashed on it, or did not finish.
        """
        try:
            done = subprocess.run(
                [sys.executable, "-m", __name__, f"builtin.module({self.text})"],
                input=kernel.asm,
                capture_output=True,
                text=True,
                encoding="utf-8",
                errors="replace",
                timeout=_TIMEOUT_SECONDS,
                env=importing_as_here(),
            )
        except subprocess.TimeoutExpired:
            raise CompileError(
                f"{self.name}: did not finish in {_TIMEOUT_SECONDS} s ({where(kernel)})"
            ) from None
        if done.returncode == _FAILED:
            raise CompileError(f"{self.name}: {done.stdout.strip()} ({where(kernel)})")
        if done.returncode != 0:
            raise CompileError(
                f"{self.name}: MLIR crashed ({ending(done.returncode)}): "
                f"{_last_line(done.stderr)} ({where(kernel)})",
                hint="the kernel is unchanged; some of MLIR's passes are not meant for kernels",
            )
        after = dataclasses.replace(kernel, asm=done.stdout) if done.stdout else kernel
        return StepResult(self, kernel, after, output=done.stderr)


def problem_with(text: str) -> str | None:
    """Why `text` is no element of an MLIR pass pipeline, or None if it is one."""
    from . import jax_compat

    with jax_compat.make_context() as context:
        for operation in re.findall(r"([\w.-]+)\(", text):
            if not context.is_registered_operation(operation):
                return f"'{operation}' is no operation that a pipeline can be nested in"
        try:
            jax_compat.PassManager.parse(f"builtin.module({text})")
        except ValueError as error:
            return _message(str(error))
    return None


def is_registered(name: str) -> bool:
    """Whether MLIR has a pass of that name."""
    return _UNREGISTERED not in (problem_with(name) or "")


def _message(text: str) -> str:
    line = next((line for line in text.splitlines() if line.strip()), "no message")
    return re.sub(r"^.*?(error:|<Pass-Options-Parser>:)\s*", "", line).strip()


def _last_line(text: str) -> str:
    return next((line for line in reversed(text.splitlines()) if line.strip()), "no message")


def _serve(pipeline: str) -> int:
    """Runs `pipeline` on standard input; prints the module if it changed, or MLIR's error."""
    import resource

    from . import jax_compat

    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    out = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # what passes print must not mix with the module
    module = jax_compat.parse_module(sys.stdin.buffer.read().decode("utf-8"))
    before = jax_compat.print_module(module)
    try:
        jax_compat.run_passes(module, pipeline)
    except jax_compat.ir.MLIRError as error:
        out.write(first_error(str(error)))
        out.close()
        return _FAILED
    after = jax_compat.print_module(module)
    if after != before:
        out.write(after)
    out.close()
    return 0


if __name__ == "__main__":
    sys.exit(_serve(sys.argv[1]))
