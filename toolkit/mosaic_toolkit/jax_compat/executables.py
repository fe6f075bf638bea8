"""Running a serialised executable on a device of this machine."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from jax.experimental.mosaic.gpu import core  # noqa: F401 (tells where Mosaic GPU's runtime is)
from jaxlib import _jax


def run_serialised(data: bytes, device: Any, operands: Sequence[np.ndarray]) -> list[np.ndarray]:
    """The results of a program of one device.

    Args:
      data: as `topologies.compile_module` gives it; it may run any code: it has to be trusted.
      device: a JAX device of the kind that it was compiled for.
      operands: of the program's own types.

    Raises:
      jax.errors.JaxRuntimeError: the device's runtime does not load it, or running it failed.
    """
    executable = device.client.deserialize_executable(
        data, executable_devices=_jax.DeviceList((device,))
    )
    found = executable.execute_sharded([jax.device_put(array, device) for array in operands])
    return [np.asarray(shards[0]) for shards in found.disassemble_into_single_device_arrays()]
