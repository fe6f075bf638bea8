"""The compile worker: compiles kernels one after another, in a process of its own.

Reads the directories of requests from standard input, one a line; answers each
with an empty line when ``outcome.json`` stands in its directory.  Ends when its
standard input does, in the middle of a compile too: it never outlives its user.

    DIRECTORY/kernel.mlir, kernel.json   the kernel
    DIRECTORY/program.mlir               StableHLO to compile in place of the kernel alone, if any
    DIRECTORY/request.json               {"dump": directory or null}
    DIRECTORY/stage                      what it is doing, kept up to date
    DIRECTORY/outcome.json               {"seconds": ...}, or {"error", "message", "hint"}
    DIRECTORY/executable                 the serialised executable
"""

from __future__ import annotations

import json
import os
import queue
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..backends import get_backend
from ..errors import ToolkitError
from ..kernel import Kernel, load, write_atomically
from ..targets import get_target
from .environment import compiler_of

if TYPE_CHECKING:
    from ..jax_compat import ir

# What a request is doing; the compilers' own stages are in what they say.
READING = "reading the kernel"
LOWERING = "lowering the module to what its custom call carries"
LOADING = "loading the compiler"
COMPILING = "compiling"


def serve_forever() -> None:
    """Serves requests until standard input ends."""
    import resource

    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # compilers print to both
    requests: queue.SimpleQueue[str] = queue.SimpleQueue()
    threading.Thread(target=_read, args=(requests,), daemon=True).start()
    while True:
        serve(Path(requests.get()))
        answers.write("\n")
        answers.flush()


def _read(requests: queue.SimpleQueue[str]) -> None:
    for line in sys.stdin:
        requests.put(line.rstrip("\n"))
    os._exit(0)


def serve(directory: Path) -> None:
    """Compiles what a request's directory holds and writes its outcome there."""
    try:
        outcome = _compile(directory)
    except ToolkitError as error:
        outcome = {
            "error": type(error).__name__,
            "message": error.message,
            "hint": error.hint,
        }
    except Exception as error:
        outcome = {"error": type(error).__name__, "message": str(error), "hint": None}
    write_atomically(directory / "outcome.json", json.dumps(outcome))


def _compile(directory: Path) -> dict[str, Any]:
    def enter(stage: str) -> None:
        write_atomically(directory / "stage", stage)

    enter(READING)
    kernel = load(directory / "kernel.mlir")
    request = json.loads((directory / "request.json").read_text(encoding="utf-8"))
    enter(LOWERING)
    from ..jax_compat import print_module

    module = _program(directory, kernel)
    if request["dump"] is not None:
        text = print_module(module)
        (Path(request["dump"]) / "stablehlo.mlir").write_text(text, encoding="utf-8")
    enter(LOADING)
    target = get_target(kernel.target)
    compiler = compiler_of(target)
    devices = compiler.devices(target, _devices_of(kernel, module))
    enter(COMPILING)
    from ..jax_compat import topologies

    start = time.monotonic()
    executable = topologies.compile_module(module, devices)
    seconds = time.monotonic() - start
    (directory / "executable").write_bytes(executable)
    if request["dump"] is not None:
        compiler.finish(Path(request["dump"]))
    return {"seconds": seconds}


def _program(directory: Path, kernel: Kernel) -> ir.Module:
    program = directory / "program.mlir"
    if program.exists():
        from ..jax_compat import topologies

        return topologies.parse_program(program.read_text(encoding="utf-8"))
    from .stablehlo import stablehlo_module

    return stablehlo_module(kernel)


def _devices_of(kernel: Kernel, module: ir.Module) -> int | None:
    """How many devices the program runs on, None where the kernel alone does not tell."""
    partitions = module.operation.attributes.get("mhlo.num_partitions")
    if partitions is not None:
        return partitions.value
    return None if get_backend(kernel.backend).spans_devices(kernel) else 1


if __name__ == "__main__":
    serve_forever()
