"""Raises a Mosaic TPU module to a `Schedule`."""

from __future__ import annotations

import re
from collections import Counter

from .. import algebra
from ..jax_compat import ir
from ..kernel import Kernel
from ..locations import argument_name
from ..schedule import (
    OFF_CHIP,
    Buffer,
    Copy,
    GridDimension,
    Schedule,
    Semaphore,
    Synchronisation,
    Unread,
    Window,
)
from ..ssa import producer
from . import storage, tpu_memory
from .expressions import Expressions, Unreadable
from .nest import Place, as_loop, tally, walk

_DYNAMIC_BOUND = -(2**63)
_SLOTS = {"synchronous": 1, "double_buffered": 2}
_DEFAULT_MODE = "double_buffered"
_GRID_INDICES = "ijklmnpqrstuvw"
_KERNEL_ATTRIBUTES = ("scalar_prefetch", "scratch_operands", "window_params", "tpu.core_type")

# Operations whose result is another view of their first operand.
_VIEWS = frozenset(
    {
        "tpu.memref_slice",
        "tpu.memref_squeeze",
        "tpu.memref_reshape",
        "tpu.memref_bitcast",
        "tpu.reinterpret_cast",
        "tpu.erase_memref_layout",
        "tpu.assume_layout",
        "tpu.shared_memref_slice",
        "memref.cast",
        "memref.reshape",
        "memref.subview",
        "memref.collapse_shape",
        "memref.expand_shape",
        "memref.reinterpret_cast",
        "memref.transpose",
    }
)
_SEMAPHORE_KINDS = {"!tpu.dma_semaphore": "dma", "!tpu.semaphore": "regular"}
_DMAS = {"tpu.enqueue_dma": "dma", "tpu.enqueue_indirect_dma": "indirect dma"}
_DMA_WAITS = {
    "tpu.wait_dma": "dma",
    "tpu.wait_dma2": "dma",
    "tpu.wait_indirect_dma": "indirect dma",
}


def raise_schedule(kernel: Kernel, module: ir.Module) -> Schedule:
    """The schedule that the module states; what it does not state is in `unread`."""
    functions = {f.operation.attributes["sym_name"].value: f.operation for f in _functions(module)}
    entry = entry_function(functions)
    if entry is None:
        unread = Unread(
            "the kernel", "no function of the module has a kernel's attributes or a body"
        )
        return Schedule(kernel.name, kernel.backend, kernel.target, unread=(unread,))
    return _Reader(kernel, entry, functions).schedule(module)


def _functions(module: ir.Module) -> list[ir.OpView]:
    return [op for op in module.body.operations if op.operation.name == "func.func"]


def entry_function(functions: dict[str, ir.Operation]) -> ir.Operation | None:
    """The function that is the kernel: the one with a kernel's attributes, else the first with a body."""
    with_body = [f for f in functions.values() if len(f.regions[0].blocks)]
    marked = [f for f in with_body if any(name in f.attributes for name in _KERNEL_ATTRIBUTES)]
    return next(iter(marked or with_body), None)


class _Reader:
    def __init__(self, kernel: Kernel, entry: ir.Operation, functions: dict[str, ir.Operation]):
        self.kernel = kernel
        self.entry = entry
        self.functions = functions
        self.unread: list[Unread] = []
        self.buffers: list[Buffer] = []
        self.windows: list[Window] = []
        self.semaphores: list[Semaphore] = []
        self.copies: list[Copy] = []
        self.synchronisation: list[Synchronisation] = []
        self.names: dict[ir.Value, str] = {}
        self.allocated: Counter[str] = Counter()
        self.overlaid = tpu_memory.overlaid(entry.regions[0].blocks[0])
        self.expressions = Expressions(lambda value: self.names.get(value))

    def schedule(self, module: ir.Module) -> Schedule:
        grid = self._grid()
        self._arguments(len(grid))
        loops = []
        for op, place in walk(self.entry.regions[0].blocks[0], self.expressions):
            loop = as_loop(op, place, self.expressions)
            if loop is not None:
                loops.append(loop)
            self._operation(op, place)
        return Schedule(
            kernel=self.kernel.name,
            backend=self.kernel.backend,
            target=self.kernel.target,
            core_type=self._core_type(),
            grid=grid,
            limits=self._limits(),
            windows=tuple(self.windows),
            buffers=tuple(self.buffers),
            copies=tally(self.copies),
            semaphores=tuple(self.semaphores),
            synchronisation=tally(self.synchronisation),
            loops=tuple(loops),
            algebra=algebra.summarise(self.entry),
            unread=tuple(dict.fromkeys(self.unread)),
        )

    def _has(self, name: str) -> bool:
        return name in self.entry.attributes

    def _core_type(self) -> str | None:
        return _word(self.entry.attributes["tpu.core_type"]) if self._has("tpu.core_type") else None

    def _padded(self, type: ir.Type, *, scratch: bool = False) -> int | None:
        """Of one buffer on the chip; a SparseCore's memory has no tiles."""
        if self._core_type() in (None, "tc"):
            return tpu_memory.tiled_size(type, whole_bytes=scratch)
        return storage.size_of(type)

    def _limits(self) -> tuple[tuple[str, int], ...]:
        text = dict(self.kernel.attributes).get("backend_config")
        if text is None:
            return ()
        config = ir.StringAttr(ir.Attribute.parse(text, self.entry.context)).value
        try:
            return tpu_memory.limits(config)
        except ValueError as error:
            self._unread("vmem_limit_bytes", f"the custom call's configuration: {error}")
            return ()

    def _grid(self) -> tuple[GridDimension, ...]:
        bounds = (
            list(self.entry.attributes["iteration_bounds"]) if self._has("iteration_bounds") else []
        )
        semantics = (
            [_word(a) for a in self.entry.attributes["dimension_semantics"]]
            if self._has("dimension_semantics")
            else []
        )
        semantics += ["arbitrary"] * (len(bounds) - len(semantics))
        return tuple(
            GridDimension(None if bound == _DYNAMIC_BOUND else bound, word)
            for bound, word in zip(bounds, semantics)
        )

    # --- arguments: grid indices, scalar prefetch, windows, scratch ------------

    def _arguments(self, grid_rank: int) -> None:
        arguments = list(self.entry.regions[0].blocks[0].arguments)
        for number, argument in enumerate(arguments):
            self.names[argument] = argument_name(argument, f"arg{number}")
        for index, argument in zip(_GRID_INDICES, arguments[:grid_rank]):
            self.names[argument] = index
        rest = [a for a in arguments[grid_rank:] if isinstance(a.type, ir.MemRefType)]
        prefetch, scratch = self._count("scalar_prefetch"), self._count("scratch_operands")
        operands = rest[prefetch : len(rest) - scratch]
        for argument in rest[:prefetch]:
            self._buffer(argument, "scalar prefetch")
        params = list(self.entry.attributes["window_params"]) if self._has("window_params") else []
        if params and len(params) != len(operands):
            self._unread("windows", f"{len(params)} window_params for {len(operands)} operands")
            params = []
        windowed = [
            number for number, p in enumerate(params) if self._is_window(operands[number], p)
        ]
        directions = self._directions(len(operands), prefetch, grid_rank) if windowed else []
        for number, argument in enumerate(operands):
            if number in windowed:
                self._window(argument, params[number], directions[number], grid_rank)
            else:
                self._buffer(argument, "operand")
        for argument in rest[len(rest) - scratch :]:
            self._buffer(argument, "scratch")

    def _is_window(self, argument: ir.Value, params: ir.DictAttr) -> bool:
        """An operand that stays off the chip has parameters too, but no slots."""
        off_chip = storage.space_of(argument.type, "vmem") in OFF_CHIP
        return "transform_indices" in params and not off_chip

    def _count(self, name: str) -> int:
        return self.entry.attributes[name].value if self._has(name) else 0

    def _directions(self, operands: int, prefetch: int, grid_rank: int) -> list[str | None]:
        """Inputs stand before outputs; their number is that of the custom call."""
        dynamic = sum(bound.bound is None for bound in self._grid()[:grid_rank])
        inputs = len(self.kernel.operands) - prefetch - dynamic
        outputs = len(self.kernel.results)
        if inputs >= 0 and inputs + outputs == operands:
            return [*["in"] * inputs, *["out"] * outputs]
        if operands:
            self._unread(
                "directions of the windows",
                f"{operands} operands of the kernel are not the custom call's "
                f"{len(self.kernel.operands)} operands and {outputs} results",
            )
        return [None] * operands

    def _window(
        self, argument: ir.Value, params: ir.DictAttr, direction: str | None, grid_rank: int
    ) -> None:
        mode = _word(params["pipeline_mode"]) if "pipeline_mode" in params else _DEFAULT_MODE
        known = {"transform_indices", "window_bounds", "pipeline_mode"}
        extra = sorted((_key(item), _value(item, params)) for item in params)
        window = Window(
            name=self.names[argument],
            direction=direction,
            block=storage.shape_of(argument.type),
            dtype=str(argument.type.element_type),
            space=storage.space_of(argument.type, "vmem"),
            index_map=self._index_map(self.names[argument], params["transform_indices"], grid_rank),
            pipeline_mode=mode,
            depth=self._depth(self.names[argument], mode, params["transform_indices"]),
            slot_bytes=storage.size_of(argument.type),
            padded_bytes=self._padded(argument.type),
            notes=tuple(f"{key} {value}" for key, value in extra if key not in known),
        )
        self.windows.append(window)

    def _depth(self, window: str, mode: str, transform: ir.Attribute) -> int | None:
        """Slots that the mode asks for; the compiler makes 1 where the block stays the same."""
        if mode not in _SLOTS:
            self._unread(f"depth of window {window}", f"pipeline mode '{mode}'")
            return None
        bounds = [dimension.bound for dimension in self._grid()]
        if isinstance(transform, ir.AffineMapAttr):
            used = re.findall(r"\bd(\d+)\b", str(transform).rpartition("-> ")[2])
            moves = any(bounds[int(number)] != 1 for number in used)
        else:
            function = self.functions.get(transform.value)
            moves = function is None or tpu_memory.moves(function, bounds)
        return _SLOTS[mode] if moves else 1

    def _index_map(self, window: str, transform: ir.Attribute, grid_rank: int) -> str | None:
        names = self._map_arguments(grid_rank)
        if isinstance(transform, ir.AffineMapAttr):
            results = str(transform).rpartition("-> ")[2].removesuffix(">")
            return re.sub(r"\bd(\d+)\b", lambda match: names[int(match[1])], results)
        function = self.functions.get(transform.value)
        if function is None:
            self._unread(f"index map of {window}", f"the module has no function @{transform.value}")
            return None
        block = function.regions[0].blocks[0]
        leaves = dict(zip(block.arguments, names))
        expressions = Expressions(leaves.get)
        try:
            results = [str(expressions.read(v)) for v in list(block.operations)[-1].operands]
        except Unreadable as error:
            self._unread(f"index map of {window}", str(error))
            return None
        return f"({', '.join(results)}{',' if len(results) == 1 else ''})"

    def _map_arguments(self, grid_rank: int) -> list[str]:
        arguments = self.entry.regions[0].blocks[0].arguments
        return [self.names[a] for a in arguments[: grid_rank + self._count("scalar_prefetch")]]

    def _buffer(self, argument: ir.Value, kind: str) -> None:
        if self._semaphore(argument):
            return
        type = argument.type
        space = storage.space_of(type, "vmem")
        padded = None if space in OFF_CHIP else self._padded(type, scratch=kind == "scratch")
        self.buffers.append(
            Buffer(
                name=self.names[argument],
                kind=kind,
                shape=storage.shape_of(type),
                dtype=str(type.element_type),
                space=space,
                bytes=storage.size_of(type),
                padded_bytes=padded,
                overlaid=argument in self.overlaid,
            )
        )

    def _semaphore(self, value: ir.Value) -> bool:
        kind = _SEMAPHORE_KINDS.get(str(value.type.element_type))
        if kind is None:
            return False
        count = storage.count(storage.shape_of(value.type))
        self.semaphores.append(Semaphore(self.names[value], kind, count))
        return True

    # --- operations -------------------------------------------------------------

    def _operation(self, op: ir.Operation, place: Place) -> None:
        name = op.name
        if name in ("memref.alloca", "memref.alloc", "tpu.internal_scratch"):
            self._allocation(op, "alloca")
        elif name == "tpu.sem_alloc":
            self._allocation(op, "sem_alloc")
        elif name == "tpu.sem_barrier":
            self.names[op.results[0]] = "barrier semaphore"
            if not any(s.kind == "barrier" for s in self.semaphores):
                self.semaphores.append(Semaphore("barrier semaphore", "barrier", 1))
        elif name in _DMAS:
            self._dma(op.opview, _DMAS[name], place)
        elif name in _DMA_WAITS:
            self._dma_wait(op.opview, _DMA_WAITS[name], place)
        elif name == "tpu.sem_wait":
            self._synchronise("wait", "semaphore", op.operands[0], False, place)
        elif name == "tpu.sem_signal":
            remote = _optional(op.opview, "device_id") is not None
            remote = remote or _optional(op.opview, "core_id") is not None
            self._synchronise("signal", "semaphore", op.operands[0], remote, place)
        elif name == "tpu.barrier":
            self._synchronise("barrier", "barrier", None, False, place)
        elif name == "func.call":
            self._unread(f"the body of @{op.attributes['callee'].value}", "calls are not followed")

    def _allocation(self, op: ir.Operation, prefix: str) -> None:
        self.allocated[prefix] += 1
        self.names[op.results[0]] = f"{prefix}{self.allocated[prefix] - 1}"
        self._buffer(op.results[0], "allocation")

    def _dma(self, op: ir.OpView, kind: str, place: Place) -> None:
        source, target = op.source, op.target
        moved = source if kind == "dma" else _smaller(source, target)
        semaphore = _optional(op, "target_semaphore")
        if semaphore is None:
            semaphore = _optional(op, "semaphore")
        remote = _optional(op, "device_id") is not None or _optional(op, "core_id") is not None
        self.copies.append(
            Copy(
                kind=kind,
                source=self._root_name(source),
                source_space=storage.space_of(source.type, "vmem"),
                target=self._root_name(target),
                target_space=storage.space_of(target.type, "vmem"),
                shape=storage.shape_of(moved.type),
                dtype=str(moved.type.element_type),
                bytes=storage.size_of(moved.type),
                semaphore=None if semaphore is None else self._root_name(semaphore),
                remote=remote,
                operations=1,
                executions=place.executions,
                outside=place.outside,
            )
        )

    def _dma_wait(self, op: ir.OpView, kind: str, place: Place) -> None:
        attributes = op.operation.attributes
        sends = "wait_target" in attributes and not attributes["wait_target"].value
        ends = (
            ("source_semaphore",)
            if sends
            else ("target_semaphore", "semaphore", "source_semaphore")
        )
        found = (_optional(op, name) for name in ends)
        semaphore = next((value for value in found if value is not None), None)
        self._synchronise("wait", kind, semaphore, False, place)

    def _synchronise(
        self, action: str, kind: str, semaphore: ir.Value | None, remote: bool, place: Place
    ) -> None:
        name = None if semaphore is None else self._root_name(semaphore)
        self.synchronisation.append(
            Synchronisation(action, kind, name, remote, 1, place.executions, outside=place.outside)
        )

    def _root_name(self, value: ir.Value) -> str:
        while value not in self.names:
            op = producer(value)
            if op is None or op.name not in _VIEWS:
                through = "a block argument" if op is None else op.name
                self._unread("which buffer an operation uses", f"it comes through {through}")
                return "?"
            value = op.operands[0]
        return self.names[value]

    def _unread(self, what: str, why: str) -> None:
        self.unread.append(Unread(what, why))


def _optional(op: ir.OpView, name: str) -> ir.Value | None:
    return getattr(op, name, None)


def _smaller(a: ir.Value, b: ir.Value) -> ir.Value:
    """The end of an indirect DMA that holds what is moved; the other is the table."""
    first, second = storage.size_of(a.type), storage.size_of(b.type)
    return b if first is not None and second is not None and second < first else a


def _word(attribute: ir.Attribute) -> str:
    """``parallel`` of ``#tpu.dimension_semantics<parallel>``."""
    return str(attribute).partition("<")[2].rstrip(">") or str(attribute)


def _key(item) -> str:
    return item if isinstance(item, str) else item.name


def _value(item, params: ir.DictAttr) -> str:
    return _word(params[_key(item)])
