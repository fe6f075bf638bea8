"""Hooks into JAX's lowering of Pallas, Mosaic and Triton kernels.

`hooked` installs them.  Kernels are seen at two places: where a call is lowered
(`KernelCall`, which on a CPU-only machine can be lowered for any backend on the
side) and where its custom call has just been emitted (`Emitted`).  Who listens
is a `Listener` in a JAX configuration state: it is scoped to a thread and a
block, and a function jitted before lowers again inside it.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import re
import threading
import warnings
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol

import jax.numpy as jnp
from jax._src import config, core, tpu_custom_call
from jax._src.effects import ordered_effects
from jax._src.interpreters import mlir
from jax._src.lax.control_flow import conditionals
from jax._src.pallas import core as pallas_core
from jax._src.pallas import mpmd, pallas_call
from jax._src.pallas.mosaic import core as tpu_core
from jax._src.pallas.mosaic.interpret import params as tpu_interpret
from jax._src.pallas.mosaic_gpu import core as gpu_core
from jax._src.pallas.mosaic_gpu.interpret import params as gpu_interpret
from jax._src.pallas.triton import core as triton_core
from jax._src.pallas.triton import lowering as triton_lowering
from jax._src.pallas.triton import pallas_call_registration  # noqa: F401 (registers its rule)
from jax.experimental.mosaic.gpu import core as mosaic_gpu_core
from jax.experimental.mosaic.gpu import layout_inference
from jax.experimental.xla_metadata import set_xla_metadata

from ..targets import Target
from . import gpu_pipeline, ir, print_module, register_dialects
from .devices import answering_as, replaced


class Listener(Protocol):
    """Who is told of kernels; compared by identity."""

    @property
    def target(self) -> Target | None:
        """The chip to answer as; None on a machine with the device."""
        ...

    def asked(self) -> None:
        """Code outside JAX was told about a device that is not there."""

    def on_cpu(self, call: KernelCall) -> Sequence[Any]:
        """A kernel is lowered for the CPU: returns the values of its results."""
        ...

    def emitted(self, kernel: Emitted) -> None:
        """A kernel's custom call was emitted."""

    def failed(self, call: KernelCall, error: Exception) -> None:
        """A kernel's lowering for its own platform raised."""


@dataclasses.dataclass(frozen=True)
class Emitted:
    """A custom call that was just emitted.

    Attributes:
      op: the live ``stablehlo.custom_call``.
      asm: the module before it was serialised, where it was seen.
      level: ``dialect`` or ``lowered``.
      encoding: how the module is serialised again (see `payload`).
      call: the kernel call that it comes from; None for a bare Mosaic module.
    """

    op: ir.Operation
    asm: str | None
    level: str
    encoding: dict[str, Any]
    call: KernelCall | None


# A kernel as it was emitted -> the same with its custom call, and `asm`, rewritten.
Rewriter = Callable[[Emitted], Emitted]


@functools.cache
def _state(name: str, meaning: str):
    """A configuration state: each value has its own entries in JAX's caches."""
    return config.string_or_object_state(
        name, None, meaning, include_in_jit_key=True, include_in_trace_context=True
    )


def _listener_state():
    return _state("mosaic_toolkit_listener", "who is told of the kernels that are lowered")


def _rewriters_state():
    return _state("mosaic_toolkit_rewriters", "what rewrites the kernels that are lowered")


@contextlib.contextmanager
def rewriting_with(*rewriters: Rewriter, every_thread: bool = False) -> Iterator[None]:
    """Passes every kernel lowered in the block, in this or in every thread, to `rewriters`.

    Of nested blocks the outer one rewrites first.
    """
    state = _rewriters_state()
    with hooked(), _set(state, (*(state.value or ()), *rewriters), every_thread=every_thread):
        yield


@contextlib.contextmanager
def _set(state: Any, value: Any, *, every_thread: bool) -> Iterator[None]:
    if not every_thread:
        with state(value):
            yield
        return
    before = state.get_global()
    state.set_global(value)
    try:
        yield
    finally:
        state.set_global(before)


_MARK = "mosaic_toolkit_rewriter"
_marked: weakref.WeakValueDictionary[str, Any] = weakref.WeakValueDictionary()


@contextlib.contextmanager
def marking(rewriter: Rewriter) -> Iterator[None]:
    """Marks every kernel call traced in the block, to be rewritten whenever it is lowered.

    `rewriter` has to live for as long as what is traced; it needs `hooked`.
    """
    mark = str(id(rewriter))
    _marked[mark] = rewriter
    with set_xla_metadata(**{_MARK: mark}):
        yield


def _rewriters(ctx: Any) -> tuple[Rewriter, ...]:
    eqn = getattr(ctx, "jaxpr_eqn_ctx", None)
    metadata = getattr(eqn, "xla_metadata", None) or {}
    marked = _marked.get(str(metadata.get(_MARK)))
    active = _rewriters_state().value or ()
    return active if marked is None or marked in active else (*active, marked)


def listener() -> Listener | None:
    """Who listens in this thread and block."""
    return _listener_state().value


@contextlib.contextmanager
def listening(who: Listener, *, every_thread: bool = False) -> Iterator[None]:
    """Tells `who` of every kernel lowered in the block, in this or in every thread."""
    with hooked(), _set(_listener_state(), who, every_thread=every_thread):
        yield


class _Deaf:
    """A listener that only answers as a chip."""

    def __init__(self, target: Target):
        self.target = target

    def asked(self) -> None: ...

    def emitted(self, kernel: Emitted) -> None: ...

    def failed(self, call: KernelCall, error: Exception) -> None: ...

    def on_cpu(self, call: KernelCall) -> Sequence[Any]:
        return call.interpreted()


@contextlib.contextmanager
def answering(target: Target) -> Iterator[None]:
    """Every question about the device gets the answer of `target` in the block.

    Nobody is told of kernels that are lowered in it, and nothing rewrites them.
    """
    with listening(_Deaf(target)), _rewriters_state()(None):
        yield


# --- kernel calls ---------------------------------------------------------------


class KernelCall:
    """One call of a kernel primitive that JAX is lowering.

    Attributes:
      name: of the kernel function.
      source: ``file:line`` of the kernel function, where known.
      backends: names of the backends that it can be for, in order of preference.
    """

    def __init__(self, rule: Callable, ctx: Any, operands: Sequence[Any], params: dict[str, Any]):
        self._rule = rule
        self._ctx = ctx
        self._operands = operands
        self._params = params
        self.backends = _backends_of(params)
        self.name, self.source = _name_of(params)

    def emit_for(self, backend: str, platform: str) -> None:
        """Lowers the call for a backend into a module of its own, which is dropped.

        Raises whatever JAX raises where the backend does not accept the kernel.
        """
        rule = self._rule
        params = dict(self._params)
        if "interpret" in params:
            params["interpret"] = False
        if backend == "mosaic_gpu" and isinstance(
            params.get("grid_mapping"), pallas_core.GridMapping
        ):
            rule = gpu_pipeline.lower_grid
        elif backend == "triton" and params.get("compiler_params") is None:
            params["compiler_params"] = triton_core.CompilerParams()
        old = self._ctx.module_context
        context = ir.Context()
        register_dialects(context)
        with context, ir.Location.unknown():
            module_context = mlir.ModuleContext(
                platforms=(platform,),
                backend=old.backend,
                axis_context=old.axis_context,
                keepalives=[],
                channel_iterator=old.channel_iterator,
                host_callbacks=[],
                lowering_parameters=old.lowering_parameters,
                context=context,
            )
            types = [mlir.aval_to_ir_type(module_context, aval) for aval in self._ctx.avals_in]
            with ir.InsertionPoint(module_context.module.body):
                function = mlir.func_dialect.FuncOp("main", (types, []))
                block = function.add_entry_block()
            ctx = self._ctx.replace(
                module_context=module_context,
                platforms=None,
                tokens_in=mlir.TokenSet(),
                tokens_out=None,
                const_lowering={},
            )
            with ir.InsertionPoint(block), warnings.catch_warnings():
                warnings.simplefilter("ignore", DeprecationWarning)
                with _calls.inside(self), _brief_layout_search(len(self.backends) > 1):
                    rule(ctx, *block.arguments, **params)

    def interpreted(self) -> Sequence[Any]:
        """The call's values by JAX's interpret mode: as asked for, else the first that can.

        Raises what the last mode raised where none can.
        """
        if not {"jaxpr", "jaxprs"} & set(self._params):
            raise NotImplementedError(
                "JAX can interpret Pallas kernels only, this is a bare module"
            )
        if self._params.get("interpret"):
            with _calls.inside(self):
                return self._rule(self._ctx, *self._operands, **self._params)
        modes: list[Any] = [True, tpu_interpret.InterpretParams()]
        if self.backends == ("mosaic_gpu",):
            modes = [gpu_interpret.InterpretGPUParams()]
        for mode in modes:
            try:
                effects = ordered_effects.filter_in(pallas_core.get_interpret_effects(mode))
                return self._lower_as(functools.partial(self._bind, interpret=mode), effects)
            except Exception:
                if mode is modes[-1]:
                    raise
        raise AssertionError("unreachable")

    def zeros(self) -> Sequence[Any]:
        """Zeros of the results' shapes and types."""
        avals = self._ctx.avals_out
        return self._lower_as(lambda *_: [jnp.zeros(a.shape, a.dtype) for a in avals])

    def _bind(self, *args: Any, interpret: Any) -> Sequence[Any]:
        primitive = self._ctx.primitive
        return primitive.bind(*args, **{**self._params, "interpret": interpret})

    def _lower_as(self, function: Callable, ordered: Sequence[Any] = ()) -> Sequence[Any]:
        # The call was traced without the effects of its interpretation: it gets
        # tokens of its own for those that are ordered.
        ctx = self._ctx.replace(tokens_in=mlir.TokenSet.create(ordered), tokens_out=None)
        with _calls.inside(self):
            return mlir.lower_fun(function, multiple_results=True)(ctx, *self._operands)


# How many assignments Mosaic GPU's layout inference may try for a kernel that was not
# written for it.  JAX's own limit takes minutes where there is no solution.
_BRIEF_SEARCH = 2_000


@contextlib.contextmanager
def _brief_layout_search(brief: bool) -> Iterator[None]:
    infer = functools.partial(layout_inference.infer_layout, fuel=_BRIEF_SEARCH)
    with replaced(layout_inference, "infer_layout", infer) if brief else contextlib.nullcontext():
        yield


def _backends_of(params: dict[str, Any]) -> tuple[str, ...]:
    meshes = params.get("meshes") or (params.get("mesh"),)
    compiler_params = params.get("compiler_params")
    if isinstance(compiler_params, triton_core.CompilerParams):
        return ("triton",)
    if isinstance(compiler_params, gpu_core.CompilerParams) or any(
        isinstance(mesh, gpu_core.Mesh) for mesh in meshes
    ):
        return ("mosaic_gpu",)
    if isinstance(compiler_params, tpu_core.CompilerParams) or any(
        mesh is not None for mesh in meshes
    ):
        return ("mosaic_tpu",)
    if "config" in params:  # a bare Mosaic TPU module
        return ("mosaic_tpu",)
    if "module" in params:  # a bare Mosaic GPU module
        return ("mosaic_gpu",)
    return ("mosaic_tpu", "mosaic_gpu", "triton")


def _name_of(params: dict[str, Any]) -> tuple[str, str | None]:
    jaxpr = params.get("jaxpr") or next(iter(params.get("jaxprs", ())), None)
    info = jaxpr.debug_info if jaxpr is not None else None
    name = params.get("name") or params.get("kernel_name") or (info and info.func_name)
    source = None
    if info is not None and " at " in info.func_src_info:
        where = info.func_src_info.rsplit(" at ", 1)[1]
        source = where if not is_jax_internal(where) else None
    return name or "kernel", source


def is_jax_internal(path: str) -> bool:
    """Whether a source file is JAX's own machinery, rather than a kernel that it ships."""
    return re.search(r"/jax/_src/|/jaxlib/|/jax/experimental/mosaic/", path) is not None


# --- hooks ----------------------------------------------------------------------


class _Calls(threading.local):
    """The kernel call that this thread is lowering."""

    current: KernelCall | None = None

    @contextlib.contextmanager
    def inside(self, call: KernelCall) -> Iterator[None]:
        before, self.current = self.current, call
        try:
            yield
        finally:
            self.current = before


_calls = _Calls()


class _Seen:
    """Modules seen before they were serialised, for as long as the hooks are in place."""

    def __init__(self) -> None:
        self.tpu: dict[bytes, tuple[str, dict[str, Any]]] = {}
        self.gpu: dict[int, tuple[ir.Module, str, dict[str, Any]]] = {}
        self.triton: dict[int, str] = {}  # by the thread that lowers it


_seen = _Seen()


def _kernel_rule(rule: Callable) -> Callable:
    """Wraps a kernel primitive's lowering rule."""

    @functools.wraps(rule)
    def lower(ctx: Any, *operands: Any, **params: Any) -> Any:
        who = listener()
        if _calls.current is not None or (who is None and not _rewriters(ctx)):
            return rule(ctx, *operands, **params)
        call = KernelCall(rule, ctx, operands, params)
        if who is not None and tuple(ctx.platforms or ctx.module_context.platforms) == ("cpu",):
            return who.on_cpu(call)
        try:
            with _calls.inside(call):
                return rule(ctx, *operands, **params)
        except Exception as error:
            if who is not None:
                who.failed(call, error)
            raise

    return lower


def _last_op() -> ir.Operation:
    *_, last = ir.InsertionPoint.current.block.operations
    return last.operation


def _emission(level: Callable[[dict[str, Any]], tuple[str | None, str, dict[str, Any]]]):
    """Wraps a rule that emits one custom call, to report it."""

    def wrap(rule: Callable) -> Callable:
        @functools.wraps(rule)
        def lower(ctx: Any, *operands: Any, **params: Any) -> Any:
            results = rule(ctx, *operands, **params)
            who, rewriters = listener(), _rewriters(ctx)
            if who is not None or rewriters:
                op = results[0].owner if len(results) else _last_op()
                asm, at, encoding = level({"ctx": ctx, **params})
                emitted = Emitted(op, asm, at, encoding, _calls.current)
                for rewriter in rewriters:
                    emitted = rewriter(emitted)
                if who is not None:
                    who.emitted(emitted)
            return results

        return lower

    return wrap


@_emission
def _tpu_emission(params: dict[str, Any]) -> tuple[str | None, str, dict[str, Any]]:
    seen = _seen.tpu.get(params["config"].lowered_module_asm)
    asm, encoding = seen or (None, {})
    wanted = tpu_custom_call.get_ir_version(params["ctx"])
    if wanted is not None and encoding.get("ir_version", wanted) != wanted:
        encoding = {**encoding, "downgrade": wanted}
    return asm, "dialect", encoding


@_emission
def _gpu_emission(params: dict[str, Any]) -> tuple[str | None, str, dict[str, Any]]:
    module = params["module"]
    forward = {"forward_compat": params["ctx"].is_forward_compat()}
    if id(module) not in _seen.gpu:
        return print_module(module), "lowered", forward
    _, asm, encoding = _seen.gpu[id(module)]
    attributes, name = module.operation.attributes, "mosaic_gpu.dump_basename"
    dump = {"dump_basename": attributes[name].value} if name in attributes else {}
    return asm, "dialect", {**encoding, **forward, **dump}


@_emission
def _triton_emission(params: dict[str, Any]) -> tuple[str | None, str, dict[str, Any]]:
    return _seen.triton.pop(threading.get_ident(), None), "dialect", {}


def _anyone() -> bool:
    """Whether someone may want the module that is being lowered."""
    return listener() is not None or bool(_rewriters_state().value) or bool(_marked)


def _see_tpu_module(original: Callable) -> Callable:
    @functools.wraps(original)
    def to_asm(module: ir.Module, **options: Any) -> Any:
        result = original(module, **options)
        if _anyone():
            _seen.tpu[result[0]] = (print_module(module), dict(options))
        return result

    return to_asm


def _see_gpu_module(original: Callable) -> Callable:
    @functools.wraps(original)
    def lower(module: ir.Module, launch: Any, semantics: Any, **options: Any) -> None:
        dialect = semantics == mosaic_gpu_core.LoweringSemantics.Warpgroup
        asm = print_module(module) if dialect and _anyone() else None
        original(module, launch, semantics, **options)
        if asm is not None:
            encoding = {
                "auto_barriers": options.get("auto_barriers", True),
                "cluster": list(launch.cluster_size),
                "num_peers": launch.num_peers,
                "num_params": launch.num_params,
                "multihost": launch.multihost_kernel,
                "profiled": launch.profiler is not None,
            }
            _seen.gpu[id(module)] = (
                module,
                asm,
                encoding,
            )  # holds the module: its id stays its own

    return lower


def _see_triton_module(original: Callable) -> Callable:
    @functools.wraps(original)
    def lower(*args: Any, **options: Any) -> Any:
        result = original(*args, **options)
        if _anyone():
            _seen.triton[threading.get_ident()] = print_module(result.module)
        return result

    return lower


def _cond_rule(rule: Callable) -> Callable:
    """`lax.platform_dependent` takes the branch of the chip that we answer as."""

    @functools.wraps(rule)
    def lower(ctx: Any, index: Any, *operands: Any, branches: Any, **params: Any) -> Any:
        who = listener()
        by_platform = params.get("branches_platforms")
        if who is None or who.target is None or by_platform is None:
            return rule(ctx, index, *operands, branches=branches, **params)
        for platforms, branch in zip(by_platform, branches):
            if platforms is None or who.target.platform in platforms:
                ctx = ctx.replace(avals_in=ctx.avals_in[1:])
                return mlir.lower_fun(core.jaxpr_as_fun(branch), multiple_results=True)(
                    ctx, *operands
                )
        return rule(ctx, index, *operands, branches=branches, **params)

    return lower


def _lowering(
    primitive: Any, wrap: Callable, platform: str | None = None, source: str | None = None
):
    """Replaces a primitive's lowering rule, for one platform or for all."""
    table = mlir._lowerings if platform is None else mlir._platform_specific_lowerings[platform]
    origin = table if source is None else mlir._platform_specific_lowerings[source]
    return _item(
        table, primitive, lambda entry: dataclasses.replace(entry, rule=wrap(entry.rule)), origin
    )


@contextlib.contextmanager
def _item(table: dict, key: Any, change: Callable, origin: dict) -> Iterator[None]:
    before = table.get(key)
    table[key] = change(origin[key])
    try:
        yield
    finally:
        if before is None:
            del table[key]
        else:
            table[key] = before


_install = threading.RLock()
_installed: list[contextlib.ExitStack] = []
_depth = 0


@contextlib.contextmanager
def hooked() -> Iterator[None]:
    """Installs the hooks for a block; nested blocks share them."""
    global _depth
    with _install:
        if _depth == 0:
            _installed.append(_install_hooks())
        _depth += 1
    try:
        yield
    finally:
        with _install:
            _depth -= 1
            if _depth == 0:
                _installed.pop().close()
                _seen.tpu.clear()
                _seen.gpu.clear()
                _seen.triton.clear()


def _install_hooks() -> contextlib.ExitStack:
    def current() -> Target | None:
        who = listener()
        return who.target if who is not None else None

    def asked() -> None:
        who = listener()
        if who is not None:
            who.asked()

    tcc, gpu = tpu_custom_call, mosaic_gpu_core
    tpu_rule = _tpu_emission(tcc._tpu_custom_call_lowering)
    gpu_rule = _gpu_emission(gpu._mosaic_gpu_lowering_rule)
    triton_rule, triton_platform = pallas_core._backend_lowering_rules[triton_core.CompilerParams]
    patches = [
        replaced(
            tcc, "_lower_mosaic_module_to_asm", _see_tpu_module(tcc._lower_mosaic_module_to_asm)
        ),
        replaced(tcc, "_tpu_custom_call_lowering", tpu_rule),
        replaced(gpu, "lower_mgpu_module", _see_gpu_module(gpu.lower_mgpu_module)),
        replaced(gpu, "_mosaic_gpu_lowering_rule", gpu_rule),
        replaced(
            triton_lowering,
            "lower_jaxpr_to_triton_module",
            _see_triton_module(triton_lowering.lower_jaxpr_to_triton_module),
        ),
        _item(
            pallas_core._backend_lowering_rules,
            triton_core.CompilerParams,
            lambda _: (_triton_emission(triton_rule), triton_platform),
            pallas_core._backend_lowering_rules,
        ),
        _lowering(tcc.tpu_custom_call_p, lambda _: tpu_rule, "tpu"),
        _lowering(gpu.mosaic_gpu_p, lambda _: gpu_rule, "cuda"),
        _lowering(tcc.tpu_custom_call_p, lambda _: _kernel_rule(tpu_rule), "cpu", source="tpu"),
        _lowering(gpu.mosaic_gpu_p, lambda _: _kernel_rule(gpu_rule), "cpu", source="cuda"),
        _lowering(pallas_call.pallas_call_p, _kernel_rule),
        _lowering(mpmd.mpmd_map_p, _kernel_rule),
        _lowering(conditionals.cond_p, _cond_rule),
        answering_as(current, asked),
    ]
    stack = contextlib.ExitStack()
    with stack:
        for patch in patches:
            stack.enter_context(patch)
        return stack.pop_all()
