"""`pipeline-depth`: how many on-chip slots a TPU kernel's grid pipeline gives each window."""

from __future__ import annotations

import dataclasses
import itertools
import math
from typing import TYPE_CHECKING, Any

from mosaic_toolkit import grid_pipeline
from mosaic_toolkit.backends.storage import size_of, space_of
from mosaic_toolkit.errors import Refused
from mosaic_toolkit.interpreter.program import Program
from mosaic_toolkit.jax_compat import ir
from mosaic_toolkit.locations import argument_name
from mosaic_toolkit.memory_budget import memory_budget
from mosaic_toolkit.passes import Pass
from mosaic_toolkit.schedule import raise_schedule
from mosaic_toolkit.targets import MiB, get_target

if TYPE_CHECKING:
    from mosaic_toolkit.graph import Graph
    from mosaic_toolkit.kernel import Kernel

_MODES = {1: "#tpu.pipeline_mode<synchronous>", 2: "#tpu.pipeline_mode<double_buffered>"}
_DEFAULT_MODE = _MODES[2]


@dataclasses.dataclass(frozen=True)
class PipelineDepth(Pass):
    """Sets how many slots the grid pipeline gives each window: 1 (no overlap), 2, or more.

    With one slot, a block is copied between grid steps; with two, the next
    block arrives while this one is in use; with N, the next N - 1 blocks.  An
    operand is a window where the grid pipeline moves it block by block;
    operands that the kernel copies itself are not.  Unless it is named, a
    window whose block never changes is left alone: it has no next block to copy.

    The compiler knows one slot and two.  For more the grid is written out as a
    loop, its windows as rings of slots with DMAs and semaphores of their own.
    A result keeps its slots, unless it is named, where one of its blocks may
    come again before its earlier write is sure to have arrived.

    Rewrite: pipeline_mode = #tpu.pipeline_mode<double_buffered> (or none)
      -> pipeline_mode = #tpu.pipeline_mode<synchronous>
    Rewrite: iteration_bounds, window_params -> scf.for { enqueue_dma; wait_dma; ... }
    """

    name = "pipeline-depth"
    backends = frozenset({"mosaic_tpu"})
    level = "dialect"

    stages: int = dataclasses.field(metadata={"help": "slots of each window, 1 or more"})
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
        changed = [window for window in chosen if window.depth != self.stages]
        if not changed:
            return
        check_memory_fits(graph, changed, self.stages)
        if self.stages not in _MODES:
            write_out_grid(graph, entry, windows, changed, self)
            return
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
      argument: of the kernel's function: a reference of one block.
      params: its entry of ``window_params``.
    """

    names: tuple[str, ...]
    number: int
    argument: ir.Value
    params: dict[str, ir.Attribute]

    @property
    def type(self) -> ir.Type:
        return self.argument.type

    @property
    def pipelined(self) -> bool:
        """Whether the pipeline moves it: else it stays in HBM, or is on chip as a whole."""
        return "window_bounds" in self.params and "transform_indices" in self.params

    @property
    def depth(self) -> int:
        mode = str(self.params.get("pipeline_mode", _DEFAULT_MODE))
        return next(depth for depth, name in _MODES.items() if name == mode)

    def __str__(self) -> str:
        return self.names[0]


def check_stages_supported(stages: int) -> None:
    """A window needs a slot."""
    if stages < 1:
        raise Refused(f"{stages} stages: a window needs at least 1 slot")


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
    """The kernel may have the memory that the slots take, as far as sizes are known."""
    schedule = raise_schedule(graph.kernel())
    slots = {window.name: window.padded_bytes for window in schedule.windows}
    for use in memory_budget(schedule).memories:
        windows = [w for w in changed if space_of(w.type, "vmem") == use.space]
        sizes = [slots.get(str(window)) or size_of(window.type) for window in windows]
        known = [size for size in sizes if size is not None]
        if not windows or use.bytes is None or use.limit is None or len(known) < len(sizes):
            continue
        fixed = use.bytes - sum(size * w.depth for size, w in zip(known, windows))
        needed = fixed + stages * sum(known)
        if needed > use.limit and stages > min(window.depth for window in windows):
            fits = max((use.limit - fixed) // sum(known), 0)
            raise Refused(
                f"{stages} stages need {needed / MiB:.1f} MiB of {use.space.upper()}, of which "
                f"{use.limit_from} gives {use.limit / MiB:.1f} MiB on {schedule.target}: "
                f"{fits} fit",
                hint="use smaller blocks, name fewer windows (buffers=A,B), or where the chip has "
                "more, raise vmem_limit_bytes in pltpu.CompilerParams",
            )


# --- writing the grid out ---------------------------------------------------------


def write_out_grid(
    graph: Graph,
    entry: ir.Operation,
    windows: list[_Window],
    chosen: list[_Window],
    options: PipelineDepth,
) -> None:
    """Replaces the grid by a loop whose windows are rings of slots."""
    kernel = graph.kernel()
    bounds = [None if n < 0 else int(n) for n in entry.attributes["iteration_bounds"]]
    check_one_core(entry, bounds, kernel)
    moved = [window for window in windows if window.pipelined]
    arrays = _array_shapes(kernel, entry, windows)
    functions = {f.attributes["sym_name"].value: f for f in graph.ops("func.func")}
    rings = []
    for window in moved:
        array = arrays[window.number]
        check_window_can_be_written_out(window, array)
        written = window.number >= len(windows) - len(kernel.results)
        depth = options.stages if window in chosen else window.depth
        if written and depth > max(_MODES):
            returns = _first_return(kernel, window, bounds)
            if returns is None or returns < depth:
                check_blocks_return_late(window, returns, options)
                depth = window.depth
        rings.append(
            grid_pipeline.Window(
                argument=window.argument,
                array=array,
                written=written,
                transform=functions[window.params["transform_indices"].value].regions[0].blocks[0],
                depth=depth,
            )
        )
    if all(ring.depth in _MODES for ring in rings):
        return
    check_aliases_never_meet(kernel, windows)
    prefetch = _prefetch(entry)
    transforms = {window.params["transform_indices"].value for window in moved}
    with graph.restructuring():
        grid_pipeline.write_out(entry, bounds, prefetch, rings)
        for name in transforms:
            functions[name].erase()


def check_one_core(entry: ir.Operation, bounds: list[int | None], kernel: Kernel) -> None:
    """Nothing splits the grid among cores: a loop runs on one."""
    words = [str(a) for a in entry.attributes["dimension_semantics"]]
    for axis, (word, bound) in enumerate(zip(words, bounds)):
        split = "core_parallel" in word
        target = get_target(kernel.target)
        megacore = "parallel" in word and bound != 1 and target.num_cores > 1
        if split or megacore:
            raise Refused(
                f"the grid's dimension {axis} is split among the {target.num_cores} cores of "
                f"{target}; written out, the loop would run on one",
                hint="make the dimension 'arbitrary', or use 2 stages",
            )


def check_window_can_be_written_out(window: _Window, array: tuple[int, ...]) -> None:
    """Its blocks are whole, and where they start is a multiple of their size."""
    unknown = set(window.params) - {"transform_indices", "window_bounds", "pipeline_mode"}
    if unknown:
        raise Refused(
            f"window '{window}' has {', '.join(sorted(unknown))}, which is not written out yet"
        )
    if not isinstance(window.params["transform_indices"], ir.FlatSymbolRefAttr):
        raise Refused(f"window '{window}' has an index map that is no function")
    block = tuple(window.params["window_bounds"])
    for axis, (extent, size) in enumerate(zip(array, block)):
        if extent % size:
            raise Refused(
                f"window '{window}' has partial blocks: dimension {axis} of its array is {extent}, "
                f"which is no multiple of {size}",
                hint="pad the array, or use 2 stages",
            )


def check_blocks_return_late(window: _Window, returns: int | None, options: PipelineDepth) -> None:
    """A result that was named has no block that is sent again while its last copy may be in flight.

    Two copies to one place arrive in any order.
    """
    if not options.buffers:
        return
    when = (
        "may come again at once" if returns is None else f"comes again after {returns - 1} others"
    )
    why = "its index depends on the program's data" if returns is None else "in the grid's order"
    raise Refused(
        f"{options.stages} stages: a block of result '{window}' {when} ({why}), when its earlier "
        "write may still be on its way",
        hint="leave the result out of buffers=..., so that it keeps its slots",
    )


_MOST_STEPS = 200_000


def _first_return(kernel: Kernel, window: _Window, bounds: list[int | None]) -> int | None:
    """After how many other blocks, plus one, the window first has a block again.

    None where that is not known: the index depends on data, or the grid's size does.
    """
    steps = math.prod(bound or _MOST_STEPS + 1 for bound in bounds)
    if None in bounds or steps > _MOST_STEPS:
        return None
    program = Program(kernel.module())
    name = window.params["transform_indices"].value
    arguments = list(program.functions[name].regions[0].blocks[0].arguments)
    scalars = arguments[len(bounds) :]
    if any(next(iter(scalar.uses), None) is not None for scalar in scalars):
        return None
    index = program.function(name)
    last: dict[Any, int] = {}
    number, before, shortest = -1, None, steps + 1
    for point in itertools.product(*(range(bound or 0) for bound in bounds)):
        block = index(None, *point, *scalars)
        if block == before:
            continue
        number, before = number + 1, block
        shortest = min(shortest, number - last.get(block, -steps - 1))
        last[block] = number
    return shortest


def check_aliases_never_meet(kernel: Kernel, windows: list[_Window]) -> None:
    """No window is read from an array that another window writes: it would be read too early."""
    inputs = len(windows) - len(kernel.results)
    for operand, result in kernel.aliases:
        reading = operand - (len(kernel.operands) - inputs)
        writing = inputs + result
        pair = [w for w in windows if w.number in (reading, writing) and w.pipelined]
        if len(pair) == 2:
            raise Refused(
                f"windows '{pair[0]}' and '{pair[1]}' share one array: blocks that are read "
                "further ahead could be read before they are written"
            )


def _prefetch(entry: ir.Operation) -> int:
    return entry.attributes["scalar_prefetch"].value if "scalar_prefetch" in entry.attributes else 0


def _array_shapes(
    kernel: Kernel, entry: ir.Operation, windows: list[_Window]
) -> list[tuple[int, ...]]:
    """Shape of each window's array, by number."""
    prefetch = _prefetch(entry)
    dynamic = sum(bound < 0 for bound in entry.attributes["iteration_bounds"])
    types = [*kernel.operands[dynamic + prefetch :], *kernel.results]
    if len(types) != len(windows):
        raise Refused(f"{len(windows)} windows for {len(types)} operands and results")
    return [type_.shape for type_ in types]


def _windows(entry: ir.Operation) -> list[_Window]:
    """The kernel's inputs and outputs; they follow grid indices and scalar prefetch."""
    first = len(entry.attributes["iteration_bounds"]) + _prefetch(entry)
    arguments, every = list(entry.regions[0].blocks[0].arguments), entry.attributes["window_params"]
    if first + len(every) > len(arguments):
        raise Refused(f"{len(every)} window_params for {len(arguments) - first} operands")
    windows = []
    for number, params in enumerate(every):
        argument, by_index = arguments[first + number], f"arg{first + number}"
        names = dict.fromkeys([argument_name(argument, by_index), by_index])
        fields = {item.name: item.attr for item in params}
        windows.append(_Window(tuple(names), number, argument, fields))
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
