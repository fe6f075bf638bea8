"""Runs kernels inside a JAX program on the CPU, from the Mosaic IR that was captured."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from ..backends import get_backend
from ..errors import ToolkitError, Unsupported
from ..kernel import Kernel
from .execute import compile_program, run_on
from .findings import Finding

if TYPE_CHECKING:
    from ..jax_compat.scopes import Executed


def executed(kernel: Kernel, on_finding: Callable[[Kernel, Finding], None]) -> Executed:
    """What computes the kernel's results, and tells `on_finding` of races and the like.

    Raises:
      Unsupported: the interpreter cannot run it, or it talks to other devices.
    """
    from ..jax_compat.scopes import Executed

    if get_backend(kernel.backend).spans_devices(kernel):
        raise Unsupported("it talks to other devices: each of them would run on its own")
    program = compile_program(kernel)

    def run(*operands: np.ndarray) -> tuple[np.ndarray, ...]:
        execution = run_on(program, [[np.asarray(operand) for operand in operands]])
        for finding in execution.findings:
            on_finding(kernel, finding)
        if execution.fault is not None:
            raise ToolkitError(f"kernel '{kernel.name}': {execution.fault}")
        return execution.results[0]

    return Executed(run, kernel.operands, kernel.results)
