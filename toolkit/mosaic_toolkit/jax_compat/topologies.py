"""Compiling for a chip that is not on the machine.

Loads the proprietary compilers into the process, where they can abort and hang:
only the compile worker imports this.
"""

from __future__ import annotations

from typing import Any

from jax._src import compiler, xla_bridge
from jax._src.lib import _jax
from jax.experimental import topologies

from . import ir


def tpu_device(topology: str) -> Any:
    """The first chip of a TPU topology such as ``v5e:2x2``.

    Raises what libtpu raises where it knows no such topology.
    """
    return topologies.get_topology_desc(topology, "tpu").devices[0]


def gpu_device(name: str, target_config: str) -> Any:
    """A GPU.

    Args:
      name: of the chip.
      target_config: a ``GpuTargetConfigProto`` as text, with the chip's facts.
    """
    return topologies.get_topology_desc(
        name, "cuda", topology="1x1x1", target_config=target_config
    ).devices[0]


def has_tpu_compiler() -> bool:
    """Whether JAX finds a libtpu."""
    return xla_bridge.get_tpu_library_path() is not None


def compile_module(module: ir.Module, device: Any) -> bytes:
    """The executable of a StableHLO module, serialised.

    Raises:
      jax.errors.JaxRuntimeError: the compiler refused the module.
    """
    options = compiler.get_compile_options(1, 1, device_assignment=[[device.id]])
    executable = device.client.compile(
        module,
        executable_devices=_jax.DeviceList((device,)),
        compile_options=options,
    )
    return executable.serialize()
