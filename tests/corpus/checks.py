"""What must hold of every captured kernel.

A check is a function of the kernel that raises where it does not hold; its name
is the name in reports.  Append to `CHECKS` to add one.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path

from mosaic_toolkit import jax_compat
from mosaic_toolkit.capture import payload_matches
from mosaic_toolkit.graph import Graph
from mosaic_toolkit.kernel import Kernel, load, save


def prints_parses_prints(kernel: Kernel) -> None:
    printed = jax_compat.print_module(kernel.module())
    assert printed == kernel.asm, "printing the parsed module gives another text"


def saves_and_loads(kernel: Kernel) -> None:
    with tempfile.TemporaryDirectory() as directory:
        loaded = load(save(kernel, Path(directory) / "kernel.mlir"))
    assert loaded == kernel, "a saved and loaded kernel differs"


def encodes_to_the_captured_payload(kernel: Kernel) -> None:
    assert payload_matches(kernel), "the module serialises to other bytes than were captured"


def builds_a_graph(kernel: Kernel) -> None:
    assert Graph(kernel).nx.number_of_nodes() > 0, "the graph is empty"


CHECKS: tuple[Callable[[Kernel], None], ...] = (
    prints_parses_prints,
    saves_and_loads,
    encodes_to_the_captured_payload,
    builds_a_graph,
)
