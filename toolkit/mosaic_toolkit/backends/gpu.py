"""Mosaic GPU: warps that load, compute and hand over through shared memory."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from .. import jax_compat
from ..kernel import Kernel
from ..targets import get_target
from . import custom_call

if TYPE_CHECKING:
    from ..schedule import Schedule

ir = jax_compat.ir


class MosaicGPU:
    name = "mosaic_gpu"
    title = "Mosaic GPU"
    platform = "cuda"
    dialects = ("mosaic_gpu",)

    def recognise(self, call_target: str) -> bool:
        return call_target == "mosaic_gpu_v2"

    def decode(
        self,
        call: ir.Operation,
        target: str,
        asm: str | None,
        level: str,
        encoding: Mapping[str, Any],
    ) -> Kernel:
        config = call.attributes["mhlo.backend_config"]
        if asm is None:
            from ..jax_compat import payload

            asm, level = payload.deserialise_gpu(config["module"].value_bytes), "lowered"
            encoding = {"forward_compat": False}
        module = jax_compat.parse_module(asm)
        return Kernel(
            name=_host_function(module).attributes["sym_name"].value.removesuffix("_mosaic_gpu"),
            backend=self.name,
            level=level,
            target=target,
            asm=asm,
            operands=custom_call.array_types(call.operands),
            results=custom_call.array_types(call.results),
            aliases=custom_call.aliases(call),
            grid=_grid(module),
            attributes=custom_call.attribute_texts(
                call,
                **{"mhlo.backend_config": custom_call.without(config, "module", "kernel_hash")},
            ),
            encoding=json.dumps(dict(encoding)),
        )

    def payload(self, call: ir.Operation) -> dict[str, bytes]:
        """What `encode` should give back for an unchanged kernel."""
        return {"module": call.attributes["mhlo.backend_config"]["module"].value_bytes}

    def encode(self, kernel: Kernel) -> dict[str, bytes]:
        from ..jax_compat import lowering, payload

        with lowering.answering(get_target(kernel.target)):
            module = kernel.module()
            return {
                "module": payload.serialise_gpu(module, kernel.level, json.loads(kernel.encoding))
            }

    def schedule(self, kernel: Kernel) -> Schedule:
        from .schedule_gpu import raise_schedule

        return raise_schedule(kernel, kernel.module())


def _host_function(module: ir.Module) -> ir.Operation:
    for op in module.body.operations:
        if op.operation.name == "func.func" and len(op.regions[0].blocks):
            return op.operation
    return module.operation


def _grid(module: ir.Module) -> tuple[int | None, ...]:
    """Operands of the launch: async dependencies, three grid and three block sizes, ..."""
    found: list[tuple[int | None, ...]] = []

    def visit(op: ir.Operation) -> ir.WalkResult:
        if op.name != "gpu.launch":
            return ir.WalkResult.ADVANCE
        tokens = [v for v in op.operands if str(v.type) == "!gpu.async.token"]
        found.append(tuple(map(_constant, list(op.operands)[len(tokens) : len(tokens) + 3])))
        return ir.WalkResult.INTERRUPT

    module.operation.walk(visit, ir.WalkOrder.PRE_ORDER)
    return found[0] if found else ()


def _constant(value: ir.Value) -> int | None:
    owner = value.owner
    if isinstance(owner, ir.Block) or owner.name != "arith.constant":
        return None
    return ir.IntegerAttr(owner.attributes["value"]).value
