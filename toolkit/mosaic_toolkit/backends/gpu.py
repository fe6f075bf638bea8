"""Mosaic GPU: warps that load, compute and hand over through shared memory."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ..jax_compat import ir
from ..kernel import Kernel
from ..targets import get_target
from . import custom_call

if TYPE_CHECKING:
    from ..interpreter.execute import Executable
    from ..schedule import Schedule
    from ..targets import Target


# Operations and inline PTX by the compute capabilities that have them: oldest and newest.
_GENERATIONS = (
    (r"mosaic_gpu\.wgmma|nvvm\.wgmma\.\w+|wgmma\.mma_async", (9, 0), (9, 0)),
    (r"mosaic_gpu\.(?:tcgen05|tmem)_\w+|tcgen05\.[a-z]+", (10, 0), (10, 0)),
    (r"mosaic_gpu\.async_(?:load|store|prefetch)|nvvm\.cp\.async\.bulk[\w.]*", (9, 0), None),
)


class MosaicGPU:
    name = "mosaic_gpu"
    title = "Mosaic GPU"
    platform = "cuda"
    dialects: tuple[str, ...] = ("mosaic_gpu",)

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
        return Kernel(
            name=_name(asm),
            backend=self.name,
            level=level,
            target=target,
            asm=asm,
            **custom_call.signature(call),
            grid=_grid(asm),
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

    def embed(self, attributes: Any, payload: Mapping[str, bytes]) -> None:
        # The hash is the key under which the runtime keeps a compiled kernel.
        parts = {**payload, "kernel_hash": hashlib.sha256(payload["module"]).digest()}
        custom_call.fill(attributes, "mhlo.backend_config", parts)

    def spans_devices(self, kernel: Kernel) -> bool:
        return False  # the number of devices is known only at run time

    def obstacle(self, kernel: Kernel, target: Target) -> str | None:
        if target.compute_capability is None:
            return None
        capability = tuple(map(int, target.compute_capability.split(".")))
        for pattern, oldest, newest in _GENERATIONS:
            found = re.search(pattern, kernel.asm)
            if found and not (oldest <= capability and (newest is None or capability <= newest)):
                only = "only for" if newest else "from"
                return f"'{found[0]}' exists {only} compute capability {oldest[0]}.{oldest[1]}"
        return None

    def schedule(self, kernel: Kernel) -> Schedule:
        from .schedule_gpu import raise_schedule

        return raise_schedule(kernel, kernel.module())

    def interpret(self, kernel: Kernel) -> Executable:
        from ..interpreter.gpu import GpuProgram

        return GpuProgram(kernel)


def _name(asm: str) -> str:
    match = re.search(r'func\.func @"?([^"\s(]+?)_mosaic_gpu"?\(', asm)
    return match[1] if match else "kernel"


def _grid(asm: str) -> tuple[int | None, ...]:
    """Sizes of the launch as MLIR prints them, which is faster than parsing the module again."""
    launch = re.search(r"gpu\.launch .*?blocks\([^)]*\) in \(([^)]*)\)", asm)
    if launch is None:
        return ()
    return tuple(_constant(asm, size.split("=")[1].strip()) for size in launch[1].split(","))


def _constant(asm: str, value: str) -> int | None:
    match = re.search(rf"^\s*{re.escape(value)} = arith\.constant (\d+) : index", asm, re.MULTILINE)
    return int(match[1]) if match else None
