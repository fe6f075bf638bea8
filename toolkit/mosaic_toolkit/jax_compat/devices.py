"""Answering as a chip that is not there.

Programs choose their kernels by asking JAX for the device.  While
`answering_as` is active every question about the device gets the answer of
another chip, and arrays and execution stay on the CPU.  JAX's own dispatch must
keep hearing the truth, so the answer depends on who asks.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator

import jaxlib._jax
from jax._src import lib, xla_bridge

from ..targets import Target

# Modules of JAX that decide what to lower rather than where to run it.
_ASK_FOR_THE_TARGET = (
    "jax._src.mesh.",
    "jax._src.pallas.",
    "jax._src.tpu_info.",
)

# Asks for the client of a lowering platform, to know the compiler's version.
_LOWERING = "jax._src.interpreters.mlir"

_ANSWERS: dict[str, Callable[[Target], object]] = {
    "platform": lambda target: target.device_platform,
    "device_kind": lambda target: target.device_kind,
    "num_cores": lambda target: target.num_cores,
    "core_count": lambda target: target.num_cores,
    "compute_capability": lambda target: target.compute_capability,
    "shared_memory_per_block_optin": lambda target: target.capacity("smem"),
}
_ONLY_ON = {
    "num_cores": "tpu",
    "core_count": "cuda",
    "compute_capability": "cuda",
    "shared_memory_per_block_optin": "cuda",
}


def _wants_the_truth(module: str) -> bool:
    private = module.startswith(("jax._src.", "jaxlib."))
    return private and not f"{module}.".startswith(_ASK_FOR_THE_TARGET)


@contextlib.contextmanager
def answering_as(current: Callable[[], Target | None], asked: Callable[[], None]) -> Iterator[None]:
    """Makes every device answer as the chip that `current` returns, if any.

    Args:
      current: the chip to answer as at this moment, None for the truth.
      asked: called when code outside JAX itself gets such an answer.
    """
    device_class = jaxlib._jax.Device

    def answer(name: str, original: object) -> property:
        def get(device: object) -> object:
            target = current()
            asker = sys._getframe(1).f_globals.get("__name__", "")
            if target is None or _wants_the_truth(asker):
                if original is None:  # lets the class's __getattr__ have its say
                    raise AttributeError(name)
                return original.__get__(device, type(device))  # type: ignore[attr-defined]
            if _ONLY_ON.get(name, target.platform) != target.platform:
                raise AttributeError(name)
            asked()
            return _ANSWERS[name](target)

        return property(get)

    true_get_backend = xla_bridge.get_backend

    def get_backend(platform: object = None) -> object:
        target = current()
        caller = sys._getframe(1)
        if target is not None and caller.f_globals.get("__name__") != _LOWERING:
            if platform in (target.platform, target.device_platform):
                asked()
                return true_get_backend("cpu")
            if caller.f_code is xla_bridge.default_backend.__code__ and not _wants_the_truth(
                caller.f_back.f_globals.get("__name__", "") if caller.f_back else ""
            ):
                asked()
                return _Platform(target.device_platform)
        return true_get_backend(platform)

    get_backend.cache_clear = true_get_backend.cache_clear  # type: ignore[attr-defined]
    with contextlib.ExitStack() as stack:
        for name in _ANSWERS:
            original = device_class.__dict__.get(name)
            stack.enter_context(replaced(device_class, name, answer(name, original)))
        stack.enter_context(replaced(xla_bridge, "get_backend", get_backend))
        if lib.cuda_versions is None:
            stack.enter_context(replaced(lib, "cuda_versions", _CudaVersions))
        try:
            yield
        finally:
            xla_bridge.local_devices.cache_clear()


class _CudaVersions:
    """What GPU kernels ask of CUDA where none is installed: the version that JAX is built for."""

    @staticmethod
    def cuda_runtime_get_version() -> int:
        return 13000


class _Platform:
    """The only thing that `default_backend` reads of a client."""

    def __init__(self, platform: str):
        self.platform = platform


@contextlib.contextmanager
def replaced(owner: object, name: str, value: object) -> Iterator[None]:
    """Sets an attribute, and on the way out restores what was there."""
    absent = object()
    before = vars(owner).get(name, absent)
    setattr(owner, name, value)
    try:
        yield
    finally:
        if before is absent:
            delattr(owner, name)
        else:
            setattr(owner, name, before)
