"""Hooks into JAX's lowering of Pallas, Mosaic and Triton kernels.

`hooked` installs them.  Kernels are seen at two places: where a call is lowered
(`KernelCall`, which on a CPU-only machine can be lowered for any backend on the
side) and where its custom call has just been emitted (`Emitted`).
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from jax._src import core, tpu_custom_call
from jax._src.interpreters import mlir
from jax._src.lax.control_flow import conditionals
from jax._src.pallas import core as pallas_core
from jax._src.pallas import mpmd, pallas_call
from jax._src.pallas.triton import core as triton_core
from jax._src.pallas.triton import lowering as triton_lowering
from jax._src.pallas.triton import pallas_call_registration  # noqa: F401 (registers its rule)
from jax.experimental.mosaic.gpu import core as mosaic_gpu_core
from jax.experimental.xla_metadata import set_xla_metadata

from ..targets import Target
from . import implied, ir, payload, print_module
from .devices import answering_as, replaced
from .kernel_call import KernelCall, calls, named
from .scopes import (
    MARK,
    Emitted,
    Listener,
    Mark,
    Rewriter,
    anyone,
    assigned,
    listener,
    listener_state,
    rewriters_of,
    rewriters_state,
)


@contextlib.contextmanager
def listening(who: Listener, *, every_thread: bool = False) -> Iterator[None]:
    """Tells `who` of every kernel lowered in the block, in this or in every thread."""
    with hooked(), assigned(listener_state(), who, every_thread=every_thread):
        yield


@contextlib.contextmanager
def rewriting_with(*rewriters: Rewriter, every_thread: bool = False) -> Iterator[None]:
    """Passes every kernel lowered in the block, in this or in every thread, to `rewriters`.

    Of nested blocks the outer one rewrites first.
    """
    state = rewriters_state()
    with hooked(), assigned(state, (*(state.value or ()), *rewriters), every_thread=every_thread):
        yield


def mark_for(rewriter: Rewriter, text: str) -> Mark:
    """A mark for kernel calls; the hooks are in place for as long as it lives."""
    mark = Mark(rewriter, text)
    hooks = contextlib.ExitStack()
    hooks.enter_context(hooked())
    weakref.finalize(mark, hooks.close)
    return mark


@contextlib.contextmanager
def marking(mark: Mark) -> Iterator[None]:
    """Marks every kernel call traced in the block, to be rewritten whenever it is lowered."""
    with set_xla_metadata(**{MARK: mark}):
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
    with listening(_Deaf(target)), rewriters_state()(None):
        yield


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
        who, rewriters = listener(), rewriters_of(ctx)
        if calls.current is not None or (who is None and not rewriters):
            return rule(ctx, *operands, **params)
        params = named(params)
        call = KernelCall(rule, ctx, operands, params)
        if tuple(ctx.platforms or ctx.module_context.platforms) == ("cpu",):
            return (who or rewriters[-1]).on_cpu(call)
        try:
            with calls.inside(call):
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
            who, rewriters = listener(), rewriters_of(ctx)
            if who is not None or rewriters:
                op = results[0].owner if len(results) else _last_op()
                asm, at, encoding = level({"ctx": ctx, **params})
                emitted = Emitted(op, asm, at, encoding, calls.current)
                for rewriter in rewriters:
                    emitted = rewriter(emitted)
                if who is not None:
                    who.emitted(emitted)
                if calls.current is not None:
                    results = calls.current.called_back(ctx, emitted) or results
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


def _see_tpu_module(original: Callable) -> Callable:
    @functools.wraps(original)
    def to_asm(module: ir.Module, **options: Any) -> Any:
        result = original(module, **options)
        if anyone():
            kept = implied.of_module(module)
            encoding = {**options, "implied": kept} if kept else dict(options)
            _seen.tpu[result[0]] = (print_module(module), encoding)
        return result

    return to_asm


def _see_gpu_module(original: Callable) -> Callable:
    @functools.wraps(original)
    def lower(module: ir.Module, launch: Any, semantics: Any, **options: Any) -> None:
        dialect = semantics == mosaic_gpu_core.LoweringSemantics.Warpgroup
        asm = print_module(module) if dialect and anyone() else None
        original(module, launch, semantics, **options)
        if asm is not None:
            encoding = {
                "auto_barriers": options.get("auto_barriers", True),
                "cluster": list(launch.cluster_size),
                "num_peers": launch.num_peers,
                "num_params": launch.num_params,
                "multihost": launch.multihost_kernel,
                "profiled": launch.profiler is not None,
                "ptx_isa": payload.ptx_isa(),
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
        if anyone():
            _seen.triton[threading.get_ident()] = print_module(result.module)
        return result

    return lower


def _cond_rule(rule: Callable) -> Callable:
    """`lax.platform_dependent` takes the branch of the chip that we answer as."""

    @functools.wraps(rule)
    def lower(ctx: Any, index: Any, *operands: Any, branches: Any, **params: Any) -> Any:
        who = listener()
        by_platform = params.get("branches_platforms")
        on_cpu = tuple(ctx.platforms or ctx.module_context.platforms) == ("cpu",)
        if who is None or who.target is None or by_platform is None or not on_cpu:
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
