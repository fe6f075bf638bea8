"""What JAX itself lowers, with no help from the toolkit.

Only the table of chips is shared: it holds facts, no code that captures.
"""

from __future__ import annotations

import base64
import contextlib
import dataclasses
import json
import sys
import types
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

from mosaic_toolkit.targets import get_target

from .case import Call


@dataclasses.dataclass(frozen=True)
class Lowered:
    """The kernels that JAX made of one call.

    Attributes:
      payloads: each kernel's module as JAX embedded it in StableHLO, bytecode.
      warpgroup: text of each Mosaic GPU module with Warpgroup semantics before JAX
        lowers it further.  What that gives depends on locations and on the context,
        so that two equal modules need not lower to equal bytes.
      lane: how many Mosaic GPU modules have Lane semantics.
      module: the StableHLO that calls them.
    """

    payloads: list[bytes]
    warpgroup: list[str]
    lane: int
    module: Any = dataclasses.field(repr=False)


@contextlib.contextmanager
def pretending(target: str) -> Iterator[str]:
    """Makes JAX's devices answer as `target`; yields the platform to lower for."""
    import jax
    from jaxlib._jax import Device

    chip = get_target(target)
    answers: dict[str, Any] = {
        "platform": chip.device_platform,
        "device_kind": chip.device_kind,
    }
    if chip.platform == "tpu":
        answers["num_cores"] = chip.num_cores
    else:
        answers["core_count"] = chip.num_cores
        answers["compute_capability"] = chip.compute_capability
    jax.devices()
    before = {name: vars(Device)[name] for name in answers if name in vars(Device)}
    try:
        for name, answer in answers.items():
            setattr(Device, name, property(lambda _, answer=answer: answer))
        with (
            mock.patch.object(jax, "default_backend", return_value=chip.device_platform),
            _cuda_versions(chip.platform),
        ):
            yield chip.platform
    finally:
        for name in answers:
            if name in before:
                setattr(Device, name, before[name])
            else:
                delattr(Device, name)


@contextlib.contextmanager
def _cuda_versions(platform: str) -> Iterator[None]:
    """Stands in for the version numbers that JAX has where its CUDA plugin is installed."""
    import jax._src.lib

    if platform != "cuda" or jax._src.lib.cuda_versions is not None:
        yield
        return
    versions = types.SimpleNamespace(cuda_runtime_get_version=lambda: 13000)
    with contextlib.ExitStack() as stack:
        for module in list(sys.modules.values()):
            if vars(module).get("cuda_versions", versions) is None:
                stack.enter_context(mock.patch.object(module, "cuda_versions", versions))
        yield


def lower(make: Callable[[], Call], target: str) -> Lowered:
    """What JAX lowers the call to."""
    import jax
    from jax.experimental.mosaic.gpu import core
    from jax.experimental.pallas.mosaic_gpu import LoweringSemantics

    warpgroup: list[str] = []
    lane = 0
    lower_further = core.lower_mgpu_module

    def seen(module, launch, semantics, **options):
        nonlocal lane
        if semantics == LoweringSemantics.Warpgroup:
            warpgroup.append(text(module))
        else:
            lane += 1
        return lower_further(module, launch, semantics, **options)

    fn, args = make()
    with pretending(target) as platform, mock.patch.object(core, "lower_mgpu_module", seen):
        lowered = jax.jit(fn).trace(*args).lower(lowering_platforms=(platform,))
    module = lowered.compiler_ir("stablehlo")
    return Lowered(_payloads(module), warpgroup, lane, module)


def _payloads(module: Any) -> list[bytes]:
    from jaxlib.mlir import ir

    found: list[bytes] = []

    def visit(op):
        if op.name == "stablehlo.custom_call":
            target = ir.StringAttr(op.attributes["call_target_name"]).value
            if (payload := _payload(target, op.attributes)) is not None:
                found.append(payload)
        return ir.WalkResult.ADVANCE

    module.operation.walk(visit)
    return found


def text(module: Any) -> str:
    """A module less its locations: whoever calls JAX leaves frames of its own in those."""
    return module.operation.get_asm(print_generic_op_form=True)


def text_of_bytecode(payload: bytes) -> str:
    """`text` of a module as JAX embeds it, in versioned dialects that nothing defines."""
    from jaxlib.mlir import ir

    from mosaic_toolkit import jax_compat

    context = jax_compat.make_context()
    context.allow_unregistered_dialects = True
    return text(ir.Module.parse(payload, context))


def _payload(target: str, attributes: Any) -> bytes | None:
    if target == "tpu_custom_call":
        config = json.loads(attributes["backend_config"].value)["custom_call_config"]
        return base64.b64decode(config["body"])
    if target == "mosaic_gpu_v2":
        return attributes["mhlo.backend_config"]["module"].value_bytes
    if target == "__gpu$xla.gpu.triton":
        return attributes["mhlo.backend_config"]["ir"].value_bytes
    return None
