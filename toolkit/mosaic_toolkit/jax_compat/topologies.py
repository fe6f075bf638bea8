"""Compiling for a chip that is not on the machine.

Loads the proprietary compilers into the process, where they can abort and hang:
only the compile worker imports this.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from jax._src import cloud_tpu_init, compiler
from jax._src.interpreters import mlir
from jax.experimental import topologies
from jaxlib import _jax

from . import ir


def tpu_devices(topology: str) -> list[Any]:
    """The devices of a TPU topology such as ``v5e:2x2``.

    Raises what libtpu raises where it knows no such topology.
    """
    return topologies.get_topology_desc(topology, "tpu").devices


def gpu_devices(name: str, target_config: str, count: int) -> list[Any]:
    """GPUs of one host.

    Args:
      name: of the chip.
      target_config: a ``GpuTargetConfigProto`` as text, with the chip's facts.
      count: how many.

    Raises:
      NotImplementedError: JAX's CUDA plugin is not installed.
    """
    return topologies.get_topology_desc(
        name, "cuda", topology=f"1x1x{count}", target_config=target_config
    ).devices


def has_tpu_compiler() -> bool:
    """Whether JAX finds a libtpu."""
    return cloud_tpu_init.get_tpu_library_path() is not None


def parse_program(text: str) -> ir.Module:
    """A program as JAX lowers it, from its text; in all dialects that such programs use.

    Raises:
      ir.MLIRError: the text does not parse or does not verify.
    """
    return ir.Module.parse(text, context=mlir.make_ir_context())


def compile_module(module: ir.Module, devices: Sequence[Any]) -> bytes:
    """The executable of a StableHLO module that runs on each of the devices, serialised.

    Raises:
      jax.errors.JaxRuntimeError: the compiler refused the module.
    """
    # Mosaic's collectives number devices by partition, and refuse several replicas.
    options = compiler.get_compile_options(
        1, len(devices), device_assignment=[[device.id for device in devices]]
    )
    executable = devices[0].client.compile(
        module,
        executable_devices=_jax.DeviceList(tuple(devices)),
        compile_options=options,
    )
    return executable.serialize()
