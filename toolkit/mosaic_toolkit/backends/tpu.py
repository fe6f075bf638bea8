"""Mosaic TPU: one function over a grid, pipelined through VMEM windows."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ..errors import InvalidModule
from ..jax_compat import ir
from ..kernel import Kernel
from . import custom_call

if TYPE_CHECKING:
    from ..interpreter.execute import Executable
    from ..schedule import Schedule
    from ..targets import Target

# The payload's places in the configuration, which JAX writes as JSON by hand.
_PAYLOAD = re.compile(r'("(body|debug_locations)": ")([^"]*)(")')


class MosaicTPU:
    name = "mosaic_tpu"
    title = "Mosaic TPU"
    platform = "tpu"
    dialects: tuple[str, ...] = ("tpu",)

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
        name = call.attributes["kernel_name"].value if "kernel_name" in call.attributes else None
        template = _PAYLOAD.sub(r"\1\4", config)
        return Kernel(
            name=name or _module_name(asm) or "kernel",
            backend=self.name,
            level="dialect",
            target=target,
            asm=asm,
            **custom_call.signature(call),
            grid=_grid(asm),
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

    def embed(self, attributes: Any, payload: Mapping[str, bytes]) -> None:
        attribute = ir.StringAttr(attributes["backend_config"])
        config = attribute.value
        missing = set(payload) - {key for _, key, _, _ in _PAYLOAD.findall(config)}
        if missing:
            raise InvalidModule(f"the configuration has no place for {', '.join(sorted(missing))}")

        def fill(place: re.Match) -> str:
            # A JAX that does not keep locations apart leaves their place empty.
            part = payload.get(place[2], b"")
            return place[1] + base64.b64encode(part).decode() + place[4]

        attributes["backend_config"] = ir.StringAttr.get(
            _PAYLOAD.sub(fill, config), attribute.context
        )

    def spans_devices(self, kernel: Kernel) -> bool:
        return "\\22has_communication\\22: true" in dict(kernel.attributes)["backend_config"]

    def obstacle(self, kernel: Kernel, target: Target) -> str | None:
        return None  # libtpu names what a generation lacks

    def schedule(self, kernel: Kernel) -> Schedule:
        from .schedule_tpu import raise_schedule

        return raise_schedule(kernel, kernel.module())

    def interpret(self, kernel: Kernel) -> Executable:
        from ..interpreter.tpu import TpuProgram

        return TpuProgram(kernel)


def _module_name(asm: str) -> str | None:
    match = re.search(r'^module @"?([^"\s]+)', asm, re.MULTILINE)
    return match and match[1]


def _grid(asm: str) -> tuple[int | None, ...]:
    """Iteration bounds as MLIR prints them, which is faster than parsing the module again."""
    match = re.search(r"\biteration_bounds = array<i64(?:: ([^>]*))?>", asm)
    bounds = [int(bound) for bound in match[1].split(",")] if match and match[1] else []
    dynamic = ir.ShapedType.get_dynamic_size()
    return tuple(None if bound == dynamic else bound for bound in bounds)
