"""Raises a Mosaic GPU module to a `Schedule`."""

from __future__ import annotations

import dataclasses
import re

from .. import algebra
from ..jax_compat import ir
from ..kernel import Kernel
from ..opnames import asm_statements
from ..schedule import (
    OFF_CHIP,
    Buffer,
    Copy,
    GridDimension,
    Schedule,
    Semaphore,
    Synchronisation,
    Unread,
)
from ..ssa import handed_in, producer
from . import storage
from .expressions import Expressions
from .gpu_memory import without_overlap
from .nest import Place, as_loop, tally, walk
from .warps import Warps

# Operations that hand on the buffer or the barrier of their first operand.
_VIEWS = re.compile(
    r"memref\.(subview|cast|reshape|expand_shape|collapse_shape|transpose|reinterpret_cast|view"
    r"|memory_space_cast|extract_aligned_pointer_as_index)"
    r"|mosaic_gpu\.(reinterpret_cast|with_transforms|tmem_layout_cast|get_cluster_ref)"
    r"|builtin\.unrealized_conversion_cast"
    r"|llvm\.(getelementptr|extractvalue|inttoptr|ptrtoint|add|addrspacecast|bitcast)"
    r"|nvvm\.mapa|arith\.index_cast(ui)?"
)
_LOADS = {"mosaic_gpu.async_load": "tma", "mosaic_gpu.async_store": "tma"}
_TMEM_COPIES = re.compile(r"mosaic_gpu\.async_store_(scales_|sparse_metadata_)?smem_to_tmem")
_BARRIER_BYTES = 8

# (operation or inline assembly, action, kind); the first operand is the barrier, if any.
_SYNCHRONISING = tuple(
    (re.compile(pattern), action, kind)
    for pattern, action, kind in (
        (r"mosaic_gpu\.wait", "wait", "mbarrier"),
        (r"(nvvm\.)?mbarrier\.(try_wait|test[._]wait)", "wait", "mbarrier"),
        (r"mosaic_gpu\.(arrive|tcgen05_commit_arrive)$", "signal", "mbarrier"),
        (r"mosaic_gpu\.arrive_expect_tx", "signal", "mbarrier expecting bytes"),
        (r"(nvvm\.)?mbarrier\.(arrive|complete_tx|expect_tx)", "signal", "mbarrier"),
        (r"(nvvm\.)?wgmma\.wait", "wait", "wgmma group"),
        (r"(nvvm\.)?cp\.async\.bulk\.wait", "wait", "tma group"),
        (r"(nvvm\.)?cp\.async\.wait", "wait", "cp.async group"),
        (r"(nvvm\.)?tcgen05\.wait", "wait", "tcgen05"),
        (r"(nvvm\.cluster|barrier\.cluster)\.arrive", "signal", "cluster barrier"),
        (r"(nvvm\.cluster|barrier\.cluster)\.wait", "wait", "cluster barrier"),
        (r"((multimem\.)?red|st|atom)\.(relaxed|release)", "signal", "memory semaphore"),
        (r"ld\.(relaxed|acquire)", "wait", "memory semaphore"),
        (r"gpu\.barrier", "barrier", "block"),
        (r"nvvm\.barrier\.arrive", "signal", "named barrier"),
        (r"(nvvm\.)?(barrier|bar\.sync|bar\.warp)", "barrier", "named barrier"),
        (r"(nvvm\.)?(memory\.barrier|membar|fence|wgmma\.fence|tcgen05\.fence)", "fence", "memory"),
    )
)
_PTX_COPY = re.compile(
    r"(nvvm\.)?cp\.async\.bulk\.[\w.:]*(shared[\w.:]*\.(global|shared)|global\.shared)"
)
_PTX_SPACE = re.compile(r"shared|global")
_PTX_SPACES = {"shared": "smem", "global": "hbm"}
_SET_REGISTERS = re.compile(r"setmaxnreg\.\w+\.sync\.aligned\.u32 (\d+)")


def raise_schedule(kernel: Kernel, module: ir.Module) -> Schedule:
    """The schedule that the module states; what it does not state is in `unread`."""
    launch = _find_launch(module)
    if launch is None:
        return _without_launch(kernel, module)
    return _Reader(kernel, module, launch).schedule()


def _find_launch(module: ir.Module) -> ir.Operation | None:
    found: list[ir.Operation] = []

    def visit(op: ir.Operation) -> ir.WalkResult:
        if op.name == "gpu.launch":
            found.append(op)
            return ir.WalkResult.INTERRUPT
        return ir.WalkResult.ADVANCE

    module.operation.walk(visit, ir.WalkOrder.PRE_ORDER)
    return found[0] if found else None


def _without_launch(kernel: Kernel, module: ir.Module) -> Schedule:
    why = (
        "the kernel exists only below the mosaic_gpu dialect, lowered to LLVM"
        if kernel.level == "lowered"
        else "the module has no gpu.launch"
    )
    names = ("threads", "buffers", "copies", "semaphores", "waits", "loops", "roles")
    return Schedule(
        kernel=kernel.name,
        backend=kernel.backend,
        target=kernel.target,
        grid=tuple(GridDimension(bound, "parallel") for bound in kernel.grid),
        algebra=algebra.summarise(module.operation),
        unread=tuple(Unread(name, why) for name in names),
    )


class _Reader:
    def __init__(self, kernel: Kernel, module: ir.Module, launch: ir.Operation):
        self.kernel = kernel
        self.module = module
        self.launch = launch
        self.expressions = Expressions()
        self.threads = self._sizes("block")
        self.warps = Warps(self.threads)
        self.buffers: list[Buffer] = []
        self.semaphores: list[Semaphore] = []
        self.copies: list[Copy] = []
        self.synchronisation: list[Synchronisation] = []
        self.reserved: dict[str, int] = {}
        self.names: dict[ir.Value, str] = {}
        self.unread: list[Unread] = []

    def schedule(self) -> Schedule:
        self._shared_memory()
        loops = []
        for function in self.module.body.operations:
            self._operands(function.operation)
        for op, place in walk(
            self.launch.regions[0].blocks[0], self.expressions, self.warps.places
        ):
            loop = as_loop(op, place, self.expressions)
            if loop is not None:
                loops.append(loop)
            self._operation(op, place)
        if self.kernel.level == "lowered":
            why = "below the mosaic_gpu dialect shared memory is addressed by pointers"
            self._unread("semaphores", why)
            self._unread("buffers in shared memory", why)
        self._unread("registers", "the assembler allocates them")
        return Schedule(
            kernel=self.kernel.name,
            backend=self.kernel.backend,
            target=self.kernel.target,
            grid=tuple(GridDimension(size, "parallel") for size in self._sizes("grid")),
            threads=self.threads,
            cluster=self._sizes("cluster"),
            reserved=tuple(self.reserved.items()),
            buffers=without_overlap(self.buffers),
            copies=tally(self.copies),
            semaphores=tuple(self.semaphores),
            synchronisation=tally(self.synchronisation),
            loops=tuple(loops),
            roles=self.warps.roles(),
            algebra=algebra.summarise(self.launch),
            unread=tuple(dict.fromkeys(self.unread)),
        )

    def _sizes(self, what: str) -> tuple[int | None, ...]:
        return tuple(self.expressions.constant(v) for v in _launch_operands(self.launch)[what])

    def _shared_memory(self) -> None:
        for value in _launch_operands(self.launch)["shared"]:
            size = self.expressions.constant(value)
            if size is None:
                self._unread("size of dynamic shared memory", "it is known only at run time")
            else:
                self.reserved["smem"] = size

    def _operands(self, function: ir.Operation) -> None:
        mark = "mosaic_gpu.from_kernel_arg_idx"
        views = (
            v for region in function.regions for block in region.blocks for v in block.operations
        )
        for op in (view.operation for view in views):
            if mark in op.attributes:
                name = f"arg{op.attributes[mark].value}"
                self._buffer(op.results[0], name, "operand", "hbm")

    def _buffer(
        self, value: ir.Value, name: str, kind: str, space: str, offset: int | None = None
    ) -> None:
        type = value.type
        self.names[value] = name
        size = storage.size_of(type)
        self.buffers.append(
            Buffer(
                name,
                kind,
                storage.shape_of(type),
                str(type.element_type),
                space,
                size,
                padded_bytes=None if space in OFF_CHIP else size,
                offset=offset,
            )
        )

    # --- operations ---------------------------------------------------------------

    def _operation(self, op: ir.Operation, place: Place) -> None:
        name = op.name
        if name in ("mosaic_gpu.slice_smem", "mosaic_gpu.alloc_smem"):
            self._shared_slice(op)
        elif name == "mosaic_gpu.tmem_alloc":
            self.names[op.results[0]] = "tmem"
            size = storage.size_of(op.results[0].type)
            if size is not None:
                self.reserved["tmem"] = self.reserved.get("tmem", 0) + size
        elif name == "mosaic_gpu.slice_tmem":
            self._buffer(op.results[0], self._numbered("tmem"), "allocation", "tmem")
        elif name in ("mosaic_gpu.initialize_barrier", "nvvm.mbarrier.init"):
            self._arrivals(op)
        elif name in _LOADS:
            self._tma(op.opview, place)
        elif name == "mosaic_gpu.async_prefetch":
            self._prefetch(op.opview, place)
        elif _TMEM_COPIES.fullmatch(name):
            self._copy("tcgen05.cp", op.operands[0], op.operands[1], None, False, place)
        elif name == "mosaic_gpu.async_store_smem":
            self._remote_store(op.opview, place)
        else:
            for text in asm_statements(op) if name == "llvm.inline_asm" else [name]:
                self._instruction(op, text, place)

    def _numbered(self, prefix: str) -> str:
        return f"{prefix}{sum(n.startswith(prefix) and n != prefix for n in self.names.values())}"

    def _shared_slice(self, op: ir.Operation) -> None:
        value = op.results[0]
        if str(value.type.element_type).startswith("!mosaic_gpu.barrier"):
            name = self.names[value] = self._numbered("barrier")
            count = storage.count(storage.shape_of(value.type))
            size = None if count is None else count * _BARRIER_BYTES
            self.semaphores.append(Semaphore(name, "mbarrier", count, bytes=size))
            return
        offset = op.attributes["offset"].value if "offset" in op.attributes else None
        if "alias_id" not in op.attributes:
            return self._buffer(value, self._numbered("region"), "allocation", "smem", offset)
        # Canonicalisation makes several slices, of other shapes, of one allocation.
        name = f"smem{op.attributes['alias_id'].value}"
        if name in self.names.values():
            self.names[value] = name
        else:
            self._buffer(value, name, "allocation", "smem", offset)
        return None

    def _arrivals(self, op: ir.Operation) -> None:
        name = self._root_name(op.operands[0])
        if "arrival_count" in op.attributes:
            count = op.attributes["arrival_count"].value
        else:
            count = self.expressions.constant(op.operands[1])
        for number, semaphore in enumerate(self.semaphores):
            if semaphore.name == name:
                self.semaphores[number] = dataclasses.replace(semaphore, arrivals=count)

    def _tma(self, op: ir.OpView, place: Place) -> None:
        attributes = op.operation.attributes
        kind = "tma reduce" if "reduction_op" in attributes else "tma"
        if "collective" in attributes and len(attributes["collective"]):
            kind = "tma multicast"
        remote = getattr(op, "gmem_peer_id", None) is not None
        barrier = getattr(op, "barrier", None)
        self._copy(kind, op.source, op.destination, barrier, remote, place)

    def _prefetch(self, op: ir.OpView, place: Place) -> None:
        shape = tuple(1 if n < 0 else n for n in op.operation.attributes["slice_lengths"])
        element = op.source.type.element_type
        record = Copy(
            "tma prefetch",
            self._root_name(op.source),
            storage.space_of(op.source.type, "hbm"),
            "l2",
            "l2",
            shape,
            str(element),
            storage.size(shape, element),
            None,
            False,
            1,
            place.executions,
            place.role,
            place.outside,
        )
        self.copies.append(record)

    def _remote_store(self, op: ir.OpView, place: Place) -> None:
        target, type = op.destination, op.value_to_store.type
        self.copies.append(
            Copy(
                "st.async",
                "registers",
                "registers",
                self._root_name(target),
                "smem",
                storage.shape_of(type),
                str(type.element_type),
                storage.size_of(type),
                self._root_name(op.barrier),
                True,
                1,
                place.executions,
                place.role,
                place.outside,
            )
        )

    def _copy(
        self,
        kind: str,
        source: ir.Value,
        target: ir.Value,
        barrier: ir.Value | None,
        remote: bool,
        place: Place,
    ) -> None:
        # A whole operand is sliced by the copy itself, so the on-chip end has its shape.
        on_chip = target if storage.space_of(target.type, "hbm") != "hbm" else source
        self.copies.append(
            Copy(
                kind=kind,
                source=self._root_name(source),
                source_space=storage.space_of(source.type, "hbm"),
                target=self._root_name(target),
                target_space=storage.space_of(target.type, "hbm"),
                shape=storage.shape_of(on_chip.type),
                dtype=str(on_chip.type.element_type),
                bytes=storage.size_of(on_chip.type),
                semaphore=None if barrier is None else self._root_name(barrier),
                remote=remote,
                operations=1,
                executions=place.executions,
                role=place.role,
                outside=place.outside,
            )
        )

    def _instruction(self, op: ir.Operation, text: str, place: Place) -> None:
        """An operation, or a PTX statement of inline assembly, by its name."""
        registers = _SET_REGISTERS.match(text)
        if registers:
            self.warps.set_registers(place.role, int(registers[1]))
        if _PTX_COPY.match(text):
            self._ptx_copy(text, place)
        for pattern, action, kind in _SYNCHRONISING:
            if pattern.match(text):
                self._synchronisation(op, action, kind, place)
                return

    def _ptx_copy(self, text: str, place: Place) -> None:
        """A copy below the dialect: its ends are pointers and its shape is in a descriptor."""
        target, source = [_PTX_SPACES[word] for word in _PTX_SPACE.findall(text)][:2]
        remote = source == target
        self._unread("ends and shapes of copies", "below the dialect they are pointers")
        self.copies.append(
            Copy(
                "tma",
                "?",
                source,
                "?",
                target,
                (None,),
                "?",
                None,
                None,
                remote,
                1,
                place.executions,
                place.role,
                place.outside,
            )
        )

    def _synchronisation(self, op: ir.Operation, action: str, kind: str, place: Place) -> None:
        barriers = [v for v in op.operands if re.match(r"memref|!llvm\.ptr", str(v.type))]
        on_barrier = kind.startswith("mbarrier") and barriers
        self.synchronisation.append(
            Synchronisation(
                action,
                kind,
                self._root_name(barriers[0]) if on_barrier else None,
                kind in ("cluster barrier", "memory semaphore") or self._is_remote(op),
                1,
                place.executions,
                place.role,
                place.outside,
            )
        )

    def _is_remote(self, op: ir.Operation) -> bool:
        """Whether the barrier is one of another block of the cluster."""
        if "collective" in op.attributes:
            return op.attributes["collective"].value
        if op.name == "llvm.inline_asm":
            return any(text.startswith("mapa") for text in asm_statements(op))
        return len(op.operands) > 0 and "nvvm.mapa" in self._trace(op.operands[0])[1]

    def _root_name(self, value: ir.Value) -> str:
        name, crossed = self._trace(value)
        if name is None:
            what = "which buffer or barrier an operation uses"
            self._unread(what, f"it comes through {crossed[-1]}")
        return name or "?"

    def _trace(self, value: ir.Value) -> tuple[str | None, list[str]]:
        """The name of a value's buffer or barrier, and the operations on the way to it."""
        crossed: list[str] = []
        while value not in self.names:
            step = producer(value)
            crossed.append("a block argument" if step is None else step.name)
            origin = handed_in(value) if step is None else None
            if origin is not None:
                value = origin
            elif step is not None and _VIEWS.fullmatch(step.name):
                value = step.operands[0]
            else:
                return None, crossed
        return self.names[value], crossed

    def _unread(self, what: str, why: str) -> None:
        self.unread.append(Unread(what, why))


def _launch_operands(launch: ir.Operation) -> dict[str, list[ir.Value]]:
    """Operands of a ``gpu.launch`` by what they mean."""
    segments = list(launch.attributes["operandSegmentSizes"])
    operands = iter(launch.operands)
    groups = [[next(operands) for _ in range(size)] for size in segments]
    return {
        "grid": [v for group in groups[1:4] for v in group],
        "block": [v for group in groups[4:7] for v in group],
        "cluster": [v for group in groups[7:10] for v in group],
        "shared": [v for group in groups[10:11] for v in group],
    }
