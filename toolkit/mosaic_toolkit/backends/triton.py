"""Pallas-Triton: blocks over pointers; Triton itself makes the schedule."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ..jax_compat import ir
from ..kernel import Kernel
from . import custom_call

if TYPE_CHECKING:
    from ..interpreter.execute import Executable
    from ..schedule import Schedule
    from ..targets import Target


class Triton:
    name = "triton"
    title = "Triton"
    platform = "cuda"
    dialects: tuple[str, ...] = ("tt",)

    def recognise(self, call_target: str) -> bool:
        return call_target == "__gpu$xla.gpu.triton"

    def decode(
        self,
        call: ir.Operation,
        target: str,
        asm: str | None,
        level: str,
        encoding: Mapping[str, Any],
    ) -> Kernel:
        from ..jax_compat import payload

        config = call.attributes["mhlo.backend_config"]
        return Kernel(
            name=config["name"].value,
            backend=self.name,
            level="dialect",
            target=target,
            asm=asm or payload.deserialise_triton(config["ir"].value_bytes),
            **custom_call.signature(call),
            grid=tuple(config[f"grid_{axis}"].value for axis in "xyz"),
            attributes=custom_call.attribute_texts(
                call, **{"mhlo.backend_config": custom_call.without(config, "ir")}
            ),
            encoding=json.dumps(dict(encoding)),
        )

    def payload(self, call: ir.Operation) -> dict[str, bytes]:
        """What `encode` should give back for an unchanged kernel."""
        return {"ir": call.attributes["mhlo.backend_config"]["ir"].value_bytes}

    def encode(self, kernel: Kernel) -> dict[str, bytes]:
        from ..jax_compat import payload

        return {"ir": payload.serialise_triton(kernel.module())}

    def embed(self, attributes: Any, payload: Mapping[str, bytes]) -> None:
        custom_call.fill(attributes, "mhlo.backend_config", payload)

    def spans_devices(self, kernel: Kernel) -> bool:
        return False  # the number of devices is known only at run time

    def obstacle(self, kernel: Kernel, target: Target) -> str | None:
        return None  # Triton compiles one module for every generation

    def schedule(self, kernel: Kernel) -> Schedule:
        from .schedule_triton import raise_schedule

        return raise_schedule(kernel, kernel.module())

    def interpret(self, kernel: Kernel) -> Executable:
        from ..interpreter.triton import TritonProgram

        return TritonProgram(kernel)
