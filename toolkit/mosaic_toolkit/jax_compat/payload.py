"""Modules to and from the bytes that JAX embeds in a custom call.

Going back uses JAX's own serialisation, so that an unchanged module gives the
very bytes that were captured.  What JAX decides by context when it serialises
(IR version, launch parameters, version of PTX) is the kernel's `encoding`.
"""

from __future__ import annotations

import contextlib
import inspect
import io
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

from jax._src import sharding_impls, tpu_custom_call
from jax.experimental.mosaic.gpu import core as mosaic_gpu_core
from jax.experimental.mosaic.gpu import fragmented_array, launch_context

from . import implied, ir, make_context, parse_module, print_module, run_passes, to_bytecode
from .devices import replaced


def serialise_tpu(module: ir.Module, encoding: dict[str, Any]) -> tuple[bytes, bytes | None]:
    """Bytecode of a ``tpu`` dialect module, and of its locations where kept apart."""
    # A kernel may have been captured by a JAX that had other options than this one: without
    # the option, locations stay in the body.
    given = {"unzip_debug_locations": False, **encoding}
    known = inspect.signature(tpu_custom_call._lower_mosaic_module_to_asm).parameters
    wanted = ("ir_version", "unzip_debug_locations")
    options = {k: given[k] for k in wanted if k in known and k in given}
    with module.context:
        implied.restore(module, encoding.get("implied", {}))
    body, _, *locations = tpu_custom_call._lower_mosaic_module_to_asm(module, **options)
    if "downgrade" in encoding:
        body = _downgrade_tpu(body, encoding["downgrade"])
    return body, locations[0] if locations else None


def _downgrade_tpu(body: bytes, version: int) -> bytes:
    module = _parse_stable(body)
    run_passes(
        module,
        "builtin.module(mosaic-serde{serialize=false},"
        f"mosaic-serde{{serialize=true target-version={version}}})",
    )
    return to_bytecode(module)


def deserialise_tpu(body: bytes) -> tuple[str, dict[str, Any]]:
    """Text of the ``tpu`` dialect module in a custom call, and its encoding.

    Locations that JAX embeds apart from the body are lost.
    """
    module = _parse_stable(body)
    version = module.operation.attributes["stable_mosaic.version"].value
    run_passes(module, "builtin.module(mosaic-serde{serialize=false})")
    del module.operation.attributes["stable_mosaic.version"]
    return print_module(module), {"ir_version": version, "unzip_debug_locations": False}


def deserialise_gpu(body: bytes) -> str:
    """Text of the lowered Mosaic GPU module in a custom call."""
    module = _parse_stable(body)
    run_passes(module, "builtin.module(mosaic_gpu-serde{serialize=false})")
    return print_module(module)


def _parse_stable(body: bytes) -> ir.Module:
    context = make_context()
    context.allow_unregistered_dialects = True  # the versioned dialects have no definition
    return ir.Module.parse(body, context=context)


def serialise_gpu(module: ir.Module, level: str, encoding: dict[str, Any]) -> bytes:
    """Bytecode of a Mosaic GPU module, lowered first where it is at dialect level.

    The chip is that of the default device (see `devices.answering_as`).
    """
    context = module.context
    with context, ir.Location.unknown():
        if level == "dialect":
            _lower_gpu(module, encoding)
        scratch = ir.Module.create()
        with ir.InsertionPoint(scratch.body):
            mosaic_gpu_core._mosaic_gpu_lowering_rule(
                _bare_lowering_context(encoding["forward_compat"]),
                module=module,
                out_types=(),
                inout_types=(),
            )
        (call,) = scratch.body.operations
        return call.attributes["mhlo.backend_config"]["module"].value_bytes


def _bare_lowering_context(forward_compat: bool) -> Any:
    """As much of a lowering context as serialising a module asks for."""
    return SimpleNamespace(
        module_context=SimpleNamespace(axis_context=sharding_impls.ShardingContext(1)),
        avals_in=(),
        avals_out=(),
        is_forward_compat=lambda: forward_compat,
    )


def ptx_isa() -> int | None:
    """The newest PTX that Mosaic GPU's lowering writes here, as ``10 * major + minor``.

    It is that of the ptxas which JAX's CUDA plugin finds, 0 without the plugin, None
    without a ptxas: lowering what asks for it then fails in JAX itself.
    """
    library = fragmented_array.mgpu_lib
    if library is None:
        return 0
    try:
        return library._mosaic_gpu_ext._get_ptxas_isa_version()
    except Exception:
        return None


@contextlib.contextmanager
def _writing_ptx(isa: int | None) -> Iterator[None]:
    """Lowers as where that is the newest PTX; as here for None."""
    extension = SimpleNamespace(_get_ptxas_isa_version=lambda: isa)
    library = (
        fragmented_array.mgpu_lib if isa is None else SimpleNamespace(_mosaic_gpu_ext=extension)
    )
    with replaced(fragmented_array, "mgpu_lib", library):
        yield


def _lower_gpu(module: ir.Module, encoding: dict[str, Any]) -> None:
    if encoding.get("profiled"):
        raise NotImplementedError(
            "a Mosaic GPU kernel that records a profile cannot be lowered again"
        )
    launches: list[ir.Operation] = []

    def find(op: ir.Operation) -> ir.WalkResult:
        if op.name == "gpu.launch":
            launches.append(op)
        return ir.WalkResult.ADVANCE

    module.operation.walk(find)
    (launch,) = launches
    host = launch.parent
    if "dump_basename" in encoding:
        name = ir.StringAttr.get(encoding["dump_basename"])
        module.operation.attributes["mosaic_gpu.dump_basename"] = name
    with host.location, _writing_ptx(encoding.get("ptx_isa")):
        mosaic_gpu_core.lower_mgpu_module(
            module,
            launch_context.LaunchContext(
                module,
                launch_context.Scratch(launch.opview),
                tuple(encoding["cluster"]),
                host.regions[0].blocks[0].arguments[1],
                num_peers=encoding["num_peers"],
                num_params=encoding["num_params"],
                multihost_kernel=encoding["multihost"],
            ),
            mosaic_gpu_core.LoweringSemantics.Warpgroup,
            auto_barriers=encoding["auto_barriers"],
        )


def serialise_triton(module: ir.Module) -> bytes:
    """Bytecode of a Triton module."""
    buffer = io.BytesIO()
    module.operation.write_bytecode(buffer)
    return buffer.getvalue()


def deserialise_triton(body: bytes) -> str:
    """Text of the Triton module in a custom call."""
    return print_module(parse_module(body))
