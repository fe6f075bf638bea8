"""Mosaic TPU: one function over a grid, pipelined through VMEM windows."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from .. import jax_compat
from ..kernel import Kernel
from . import custom_call

if TYPE_CHECKING:
    from ..schedule import Schedule

ir = jax_compat.ir

# The payload's places in the configuration, which JAX writes as JSON by hand.
_PAYLOAD = re.compile(r'("(body|debug_locations)": ")([^"]*)(")')


class MosaicTPU:
    name = "mosaic_tpu"
    title = "Mosaic TPU"
    platform = "tpu"
    dialects = ("tpu",)

    def recognise(self, call_target: str) -> bool:
        return call_target == "tpu_custom_call"

    def decode(
        self,
        call: ir.Operation,
        target: str,
        asm: str | None,
        level: str,
        encoding: Mapping[str, Any],
    ) -> Kernel:
        config = call.attributes["backend_config"].value
        payload = {key: text for _, key, text, _ in _PAYLOAD.findall(config)}
        if asm is None:
            from ..jax_compat import payload as payloads

            asm, encoding = payloads.deserialise_tpu(base64.b64decode(payload["body"]))
        module = jax_compat.parse_module(asm)
        name = call.attributes["kernel_name"].value if "kernel_name" in call.attributes else None
        template = _PAYLOAD.sub(r"\1\4", config)
        return Kernel(
            name=name or _module_name(module),
            backend=self.name,
            level="dialect",
            target=target,
            asm=asm,
            operands=custom_call.array_types(call.operands),
            results=custom_call.array_types(call.results),
            aliases=custom_call.aliases(call),
            grid=_grid(module),
            attributes=custom_call.attribute_texts(
                call, backend_config=str(ir.StringAttr.get(template, call.context))
            ),
            encoding=json.dumps(dict(encoding)),
        )

    def payload(self, call: ir.Operation) -> dict[str, bytes]:
        """What `encode` should give back for an unchanged kernel."""
        config = call.attributes["backend_config"].value
        return {key: base64.b64decode(text) for _, key, text, _ in _PAYLOAD.findall(config)}

    def encode(self, kernel: Kernel) -> dict[str, bytes]:
        from ..jax_compat import payload

        body, locations = payload.serialise_tpu(kernel.module(), json.loads(kernel.encoding))
        return {"body": body} | ({"debug_locations": locations} if locations else {})

    def schedule(self, kernel: Kernel) -> Schedule:
        from .schedule_tpu import raise_schedule

        return raise_schedule(kernel, kernel.module())


def _module_name(module: ir.Module) -> str:
    attributes = module.operation.attributes
    return attributes["sym_name"].value if "sym_name" in attributes else "kernel"


def _grid(module: ir.Module) -> tuple[int | None, ...]:
    dynamic = ir.ShapedType.get_dynamic_size()
    for op in module.body.operations:
        if "iteration_bounds" in op.attributes:
            bounds = ir.DenseI64ArrayAttr(op.attributes["iteration_bounds"])
            return tuple(None if bound == dynamic else bound for bound in bounds)
    return ()
