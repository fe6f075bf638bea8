"""What JAX itself lowers, with no help from the toolkit.

Only the table of chips is shared: it holds facts, no code that captures.
"""

from __future__ import annotations

import base64
import contextlib
import dataclasses
import hashlib
import json
from collections.abc import Callable, Iterator, Sequence
from typing import Any
from unittest import mock

from mosaic_toolkit.targets import get_target

from .case import Call


@dataclasses.dataclass(frozen=True)
class Lowered:
    """One kernel in the StableHLO that JAX made.

    Attributes:
      call_target: of its custom call.
      payload_sha256: digest of the module as JAX embedded it.
    """

    call_target: str
    payload_sha256: str


@contextlib.contextmanager
def pretending(target: str) -> Iterator[str]:
    """Makes JAX's devices answer as `target`; yields the platform to lower for."""
    import jax
    from jax._src.mesh import AbstractDevice
    from jax.sharding import AbstractMesh
    from jaxlib._jax import Device

    chip = get_target(target)
    answers: dict[str, Any] = {
        "platform": chip.device_platform,
        "device_kind": chip.device_kind,
        "num_cores": chip.num_cores,
        "core_count": chip.num_cores,
    }
    if chip.compute_capability:
        answers["compute_capability"] = chip.compute_capability
    jax.devices()
    before = {name: vars(Device)[name] for name in answers if name in vars(Device)}
    abstract = AbstractDevice(
        device_kind=chip.device_kind, num_cores=chip.num_cores, platform=chip.platform
    )
    try:
        for name, answer in answers.items():
            setattr(Device, name, property(lambda _, answer=answer: answer))
        with (
            mock.patch.object(jax, "default_backend", lambda: chip.device_platform),
            jax.sharding.use_abstract_mesh(AbstractMesh((), (), abstract_device=abstract)),
        ):
            yield chip.platform
    finally:
        for name in answers:
            if name in before:
                setattr(Device, name, before[name])
            else:
                delattr(Device, name)


def lower(make: Callable[[], Call], target: str) -> list[Lowered]:
    """The kernels that JAX lowers the call to, in the order of its StableHLO."""
    import jax

    fn, args = make()
    with pretending(target) as platform:
        lowered = jax.jit(fn).trace(*args).lower(lowering_platforms=(platform,))
    return kernels(lowered.compiler_ir("stablehlo"))


def kernels(module: Any) -> list[Lowered]:
    """The kernels in a StableHLO module."""
    from jaxlib.mlir import ir

    found: list[Lowered] = []

    def visit(op):
        if op.name == "stablehlo.custom_call":
            target = ir.StringAttr(op.attributes["call_target_name"]).value
            if (payload := _payload(target, op.attributes)) is not None:
                found.append(Lowered(target, hashlib.sha256(payload).hexdigest()))
        return ir.WalkResult.ADVANCE

    module.operation.walk(visit)
    return found


def _payload(target: str, attributes: Any) -> bytes | None:
    if target == "tpu_custom_call":
        config = json.loads(attributes["backend_config"].value)["custom_call_config"]
        return base64.b64decode(config["body"])
    if target == "mosaic_gpu_v2":
        return attributes["mhlo.backend_config"]["module"].value_bytes
    if target == "__gpu$xla.gpu.triton":
        return attributes["mhlo.backend_config"]["ir"].value_bytes
    return None


def calls_of_other_kind(module: Any, known: Sequence[str]) -> set[str]:
    """Targets of custom calls that are neither kernels nor in `known`."""
    from jaxlib.mlir import ir

    found: set[str] = set()

    def visit(op):
        if op.name == "stablehlo.custom_call":
            found.add(ir.StringAttr(op.attributes["call_target_name"]).value)
        return ir.WalkResult.ADVANCE

    module.operation.walk(visit)
    return found - set(known)
