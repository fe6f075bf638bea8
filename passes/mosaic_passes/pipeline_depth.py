"""`pipeline-depth`: how many on-chip buffers a TPU kernel's grid pipeline gives each window."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from mosaic_toolkit.backends.storage import size_of, space_of
from mosaic_toolkit.errors import Refused
from mosaic_toolkit.jax_compat import ir
from mosaic_toolkit.locations import argument_name
from mosaic_toolkit.passes import Pass
from mosaic_toolkit.schedule import raise_schedule
from mosaic_toolkit.targets import MiB, get_target

if TYPE_CHECKING:
    from mosaic_toolkit.graph import Graph

_MODES = {1: "#tpu.pipeline_mode<synchronous>", 2: "#tpu.pipeline_mode<double_buffered>"}
_DEFAULT_MODE = _MODES[2]


@dataclasses.dataclass(frozen=True)
class PipelineDepth(Pass):
    """Sets how many buffers the grid pipeline gives each window: 1 (no overlap) or 2.

    With one buffer, a block is copied between grid steps; with two, the next
    block arrives while this one is in use.  An operand is a window where the
    grid pipeline moves it block by block; operands that the kernel copies
    itself are not.  Unless it is named, a window whose block never changes is
    left alone: it has no next block to copy.

    Rewrite: pipeline_mode = #tpu.pipeline_mode<double_buffered> (or none)
      -> pipeline_mode = #tpu.pipeline_mode<synchronous>
    """

    name = "pipeline-depth"
    backends = frozenset({"mosaic_tpu"})
    level = "dialect"

    stages: int = dataclasses.field(metadata={"help": "buffers of each window: 1 or 2"})
    buffers: tuple[str, ...] = dataclasses.field(
        default=(),
        metadata={"help": "the windows to set, by operand name or argN; every window if left out"},
    )

    def run(self, graph: Graph) -> None:
        check_stages_supported(self.stages)
        entry = check_has_grid_windows(graph)
        windows = _windows(entry)
        check_any_pipelined(windows)
        chosen = check_buffers_exist(windows, self.buffers) or _moving(windows, graph)
        for window in chosen:
            check_revisit_allows(window, self.stages)
        changed = [window for window in chosen if window.mode != _MODES[self.stages]]
        if not changed:
            return
        check_memory_fits(graph, changed, self.stages)
        params = list(entry.attributes["window_params"])
        for window in changed:
            params[window.number] = _with_mode(window.params, _MODES[self.stages])
        with graph.context:
            graph.set_attribute(entry, "window_params", ir.ArrayAttr.get(params))


@dataclasses.dataclass(frozen=True)
class _Window:
    """An operand of the kernel in the grid pipeline's eyes.

    Attributes:
      names: what a user may call it; the first is its own name if it has one.
      number: its place among the kernel's inputs and outputs.
      type: of the memref that the kernel's body sees: one block.
      params: its entry of ``window_params``.
    """

    names: tuple[str, ...]
    number: int
    type: ir.Type
    params: dict[str, ir.Attribute]

    @property
    def pipelined(self) -> bool:
        """Whether the pipeline moves it: else it stays in HBM, or is on chip as a whole."""
        return "window_bounds" in self.params and "transform_indices" in self.params

    @property
    def mode(self) -> str:
        return str(self.params.get("pipeline_mode", _DEFAULT_MODE))

    def __str__(self) -> str:
        return self.names[0]


def check_stages_supported(stages: int) -> None:
    """One buffer or two: the grid pipeline has no other modes."""
    if stages in _MODES:
        return
    if stages > 2:
        raise Refused(
            f"{stages} stages: a window of the grid pipeline has at most 2 buffers",
            hint="a deeper pipeline has to be written out, as pltpu.emit_pipeline does",
        )
    raise Refused(f"{stages} stages: a window needs at least 1 buffer")


def check_has_grid_windows(graph: Graph) -> ir.Operation:
    """The kernel's function, which must have a grid and windows over it."""
    for op in graph.ops("func.func"):
        if "window_params" in op.attributes and "iteration_bounds" in op.attributes:
            return op
    raise Refused(
        "the kernel has no grid windows: it runs once, on whole operands",
        hint="give pallas_call a grid and block specs, or let the kernel pipeline its own copies",
    )


def check_any_pipelined(windows: list[_Window]) -> None:
    """At least one operand is moved block by block by the grid pipeline."""
    if not any(window.pipelined for window in windows):
        operands = ", ".join(map(str, windows)) or "none"
        raise Refused(
            f"the kernel has a grid but no windows: the pipeline moves none of its operands "
            f"({operands})",
            hint="the kernel copies its operands itself; its own loops set that depth",
        )


def check_buffers_exist(windows: list[_Window], buffers: tuple[str, ...]) -> list[_Window]:
    """The windows called `buffers`; each must name exactly one that is pipelined."""
    pipelined = ", ".join(str(window) for window in windows if window.pipelined)
    chosen: list[_Window] = []
    for name in buffers:
        found = [window for window in windows if name in window.names]
        if not found:
            raise Refused(f"the kernel has no window '{name}'", hint=f"its windows: {pipelined}")
        if len(found) > 1:
            arguments = ", ".join(window.names[-1] for window in found)
            raise Refused(f"'{name}' names {len(found)} windows", hint=f"write one of {arguments}")
        if not found[0].pipelined:
            raise Refused(
                f"'{name}' is no window: the grid pipeline does not move it",
                hint=f"the kernel's windows: {pipelined}",
            )
        chosen += [window for window in found if window not in chosen]
    return chosen


def check_revisit_allows(window: _Window, stages: int) -> None:
    """A block that may be revisited at any later step must be in the only buffer."""
    revisit = str(window.params.get("revisit_mode", ""))
    if stages > 1 and revisit == "#tpu.revisit_mode<any>":
        raise Refused(
            f"window '{window}' is revisited in any order, which takes 1 buffer, not {stages}"
        )


def check_memory_fits(graph: Graph, changed: list[_Window], stages: int) -> None:
    """The chip has room for the second buffers, as far as sizes are known.

    Sizes are packed: the compiler's tiling can only make them larger.
    """
    kernel = graph.kernel()
    memory, target = raise_schedule(kernel).memory(), get_target(kernel.target)
    for space in {space_of(window.type, "vmem") for window in changed} if stages > 1 else ():
        used, capacity = memory.get(space), target.capacity(space)
        blocks = [size_of(w.type) for w in changed if space_of(w.type, "vmem") == space]
        if used is None or capacity is None or None in blocks:
            continue
        needed = used + sum(filter(None, blocks))
        if needed > capacity:
            raise Refused(
                f"{stages} stages need {needed / MiB:.1f} MiB of {space.upper()}, "
                f"{target} has {capacity / MiB:.1f} MiB",
                hint="use smaller blocks, or name fewer windows: buffers=A,B",
            )


def _windows(entry: ir.Operation) -> list[_Window]:
    """The kernel's inputs and outputs; they follow grid indices and scalar prefetch."""
    first = len(entry.attributes["iteration_bounds"])
    if "scalar_prefetch" in entry.attributes:
        first += entry.attributes["scalar_prefetch"].value
    arguments, every = list(entry.regions[0].blocks[0].arguments), entry.attributes["window_params"]
    if first + len(every) > len(arguments):
        raise Refused(f"{len(every)} window_params for {len(arguments) - first} operands")
    windows = []
    for number, params in enumerate(every):
        argument, by_index = arguments[first + number], f"arg{first + number}"
        names = dict.fromkeys([argument_name(argument, by_index), by_index])
        fields = {item.name: item.attr for item in params}
        windows.append(_Window(tuple(names), number, argument.type, fields))
    return windows


def _moving(windows: list[_Window], graph: Graph) -> list[_Window]:
    still = _constant_functions(graph)
    return [
        window
        for window in windows
        if window.pipelined and window.params["transform_indices"].value not in still
    ]


def _constant_functions(graph: Graph) -> frozenset[str]:
    """Names of the index maps that return the same block at every grid step."""
    constant = set()
    for op in graph.ops("func.func"):
        *body, last = op.regions[0].blocks[0].operations
        if all(inner.operation.name == "arith.constant" for inner in body):
            arguments = set(op.regions[0].blocks[0].arguments)
            if not any(value in arguments for value in last.operands):
                constant.add(op.attributes["sym_name"].value)
    return frozenset(constant)


def _with_mode(params: dict[str, ir.Attribute], mode: str) -> ir.DictAttr:
    context = next(iter(params.values())).context
    return ir.DictAttr.get(
        {**params, "pipeline_mode": ir.Attribute.parse(mode, context)}, context=context
    )
