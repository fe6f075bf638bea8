"""`KernelCall`: one call of a kernel primitive that JAX is lowering."""

from __future__ import annotations

import contextlib
import functools
import re
import threading
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax._src import callback, core
from jax._src.effects import ordered_effects
from jax._src.interpreters import mlir
from jax._src.pallas import core as pallas_core
from jax._src.pallas.mosaic import core as tpu_core
from jax._src.pallas.mosaic.interpret import params as tpu_interpret
from jax._src.pallas.mosaic_gpu import core as gpu_core
from jax._src.pallas.mosaic_gpu.interpret import params as gpu_interpret
from jax._src.pallas.triton import core as triton_core
from jax.experimental.mosaic.gpu import layout_inference

from . import gpu_pipeline, ir, register_dialects
from .devices import replaced
from .scopes import Emitted, Executor


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
        self._executor: Executor | None = None
        self.backends = _backends_of(params)
        self.name, self.source = _name_of(params)

    def emit_for(self, backend: str, platform: str) -> None:
        """Lowers the call for a backend into a module of its own, which is dropped.

        Raises whatever JAX raises where the backend does not accept the kernel.
        """
        rule, params = self._rule_for(backend)
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
                with calls.inside(self), self._brief_layout_search():
                    rule(ctx, *block.arguments, **params)

    def executed(self, backend: str, platform: str, executor: Executor) -> Sequence[Any]:
        """The call's values as `executor` computes them from the custom calls that it lowers to.

        It is lowered for the backend in place; each custom call becomes a call of Python.
        Raises whatever JAX or the executor raises.
        """
        rule, params = self._rule_for(backend)
        ctx = self._ctx.replace(module_context=_for_platform(self._ctx, platform), platforms=None)
        self._executor = executor
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", DeprecationWarning)
                with calls.inside(self), self._brief_layout_search():
                    return rule(ctx, *self._operands, **params)
        finally:
            self._executor = None

    def called_back(self, ctx: Any, emitted: Emitted) -> Sequence[Any] | None:
        """The results of a custom call that the executor takes the place of, if there is one."""
        if self._executor is None:
            return None
        operands = list(emitted.op.operands)
        try:
            executed = self._executor(emitted)
        finally:
            emitted.op.erase()
        results, _, keepalive = callback.emit_python_callback(
            ctx.replace(module_context=_for_platform(ctx, "cpu")),
            executed.run,
            None,
            operands,
            [jax.core.ShapedArray(t.shape, jnp.dtype(t.dtype)) for t in executed.operands],
            [jax.core.ShapedArray(t.shape, jnp.dtype(t.dtype)) for t in executed.results],
            has_side_effect=False,
        )
        ctx.module_context.add_keepalive(keepalive)
        return results

    def _rule_for(self, backend: str) -> tuple[Callable, dict[str, Any]]:
        """The rule and parameters that lower the call for a backend."""
        rule, params = self._rule, dict(self._params)
        if "interpret" in params:
            params["interpret"] = False
        if backend == "mosaic_gpu" and isinstance(
            params.get("grid_mapping"), pallas_core.GridMapping
        ):
            rule = gpu_pipeline.lower_grid
        elif backend == "triton" and params.get("compiler_params") is None:
            params["compiler_params"] = triton_core.CompilerParams()
        return rule, params

    def _brief_layout_search(self) -> contextlib.AbstractContextManager[None]:
        return _brief_layout_search(len(self.backends) > 1)

    def interpreted(self) -> Sequence[Any]:
        """The call's values by JAX's interpret mode: as asked for, else the first that can.

        Raises what the last mode raised where none can.
        """
        if not {"jaxpr", "jaxprs"} & set(self._params):
            raise NotImplementedError(
                "JAX can interpret Pallas kernels only, this is a bare module"
            )
        if self._params.get("interpret"):
            with calls.inside(self):
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
        """Zeros of the results' shapes and types, of what stands for them where they are semaphores."""
        avals = [core.physical_aval(aval) for aval in self._ctx.avals_out]
        return self._lower_as(lambda *_: [jnp.zeros(a.shape, a.dtype) for a in avals])

    def _bind(self, *args: Any, interpret: Any) -> Sequence[Any]:
        primitive = self._ctx.primitive
        return primitive.bind(*args, **{**self._params, "interpret": interpret})

    def _lower_as(self, function: Callable, ordered: Sequence[Any] = ()) -> Sequence[Any]:
        # The call was traced without the effects of its interpretation: it gets
        # tokens of its own for those that are ordered.
        ctx = self._ctx.replace(tokens_in=mlir.TokenSet.create(ordered), tokens_out=None)
        with calls.inside(self):
            return mlir.lower_fun(function, multiple_results=True)(ctx, *self._operands)


def _for_platform(ctx: Any, platform: str) -> Any:
    return ctx.module_context.replace(platforms=(platform,))


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


def named(params: dict[str, Any]) -> dict[str, Any]:
    """The parameters of a call that has a name: MLIR does not parse the symbol that "" makes."""

    def with_name(jaxpr: Any) -> Any:
        info = jaxpr.debug_info
        if info.func_name:
            return jaxpr
        return jaxpr.replace(debug_info=info.replace_func_name("unknown"))

    named = dict(params)
    if "jaxpr" in params:
        named["jaxpr"] = with_name(params["jaxpr"])
    if "jaxprs" in params:
        named["jaxprs"] = type(params["jaxprs"])(map(with_name, params["jaxprs"]))
    return named


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


calls = _Calls()
