"""XLA's and Mosaic's compilers for CUDA: variables, the tools that they call, the chips."""

from __future__ import annotations

import importlib.util
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..errors import CompileError
from ..targets import Target
from .sass import disassemble
from .settings import Settings

FOLDERS = ("mosaic_gpu", "hlo")

# Per compute capability, from the CUDA C++ Programming Guide, table "Technical
# specifications per compute capability": threads and shared memory of one SM.
_THREADS_PER_SM = 2048
_REGISTERS_PER_SM = 64 * 1024
_SHARED_MEMORY_PER_SM = {"8.0": 164 * 1024, "9.0": 228 * 1024, "10.0": 228 * 1024}
_STATIC_SHARED_MEMORY = 48 * 1024


def settings(own: Mapping[str, str], dump: Path | None, llo_passes: str | None) -> Settings:
    """See `environment`; there are no LLO passes here."""
    del llo_passes
    variables = {"JAX_SKIP_CUDA_CONSTRAINTS_CHECK": "1"}
    toolkit = cuda_toolkit()
    flags = []
    if toolkit is not None:
        flags.append(f"--xla_gpu_cuda_data_dir={toolkit}")
        variables |= {"CUDA_ROOT": str(toolkit), "MOSAIC_GPU_CUDA_ROOT": str(toolkit)}
        variables["PATH"] = os.pathsep.join(
            filter(None, (str(toolkit / "bin"), own.get("PATH", os.defpath)))
        )
    if dump is not None:
        variables["MOSAIC_GPU_DUMP_TO"] = str(dump / "mosaic_gpu")
        flags += [f"--xla_dump_to={dump / 'hlo'}", "--xla_dump_emitter_re=.*"]
    return Settings(variables, {"XLA_FLAGS": flags})


def cuda_toolkit() -> Path | None:
    """Where ptxas and libdevice are: in the nvidia-cuda-nvcc package, else where PATH has ptxas."""
    spec = importlib.util.find_spec("nvidia")
    for root in (spec.submodule_search_locations or ()) if spec is not None else ():
        for folder in sorted(Path(root).iterdir(), reverse=True):
            if (folder / "bin/ptxas").exists():
                return folder
    ptxas = shutil.which("ptxas")
    return Path(ptxas).resolve().parent.parent if ptxas is not None else None


def devices(target: Target, count: int | None) -> list[Any]:
    """GPUs of the chip to compile for; one for None: a kernel does not tell how many it spans.

    Raises:
      CompileError: the CUDA plugin or ptxas is not installed.
    """
    from ..jax_compat import topologies

    if cuda_toolkit() is None:
        raise CompileError(
            f"ptxas, the assembler for {target}, is neither installed nor on PATH",
            hint="pip install 'mosaic-toolkit[gpu]'",
        )
    try:
        return topologies.gpu_devices(target.name, gpu_target_config(target), count or 1)
    except NotImplementedError as error:
        raise CompileError(
            f"JAX's CUDA plugin, the compiler for {target}, is not installed",
            hint="pip install 'mosaic-toolkit[gpu]'",
        ) from error


def finish(dump: Path) -> None:
    """Adds SASS where the compiler dumps PTX and no more.

    Raises:
      CompileError: a tool is missing or refuses its input.
    """
    toolkit = cuda_toolkit()
    if toolkit is not None:
        disassemble(dump / "hlo", toolkit)


def gpu_target_config(target: Target) -> str:
    """The chip as XLA's ``GpuTargetConfigProto``, in text form."""
    assert target.compute_capability is not None
    major, minor = target.compute_capability.split(".")
    accelerated = " feature_extension: ACCELERATED_FEATURES" if int(major) >= 9 else ""
    return f"""
gpu_device_info {{
  threads_per_block_limit: 1024
  threads_per_warp: 32
  threads_per_core_limit: {_THREADS_PER_SM}
  block_dim_limit_x: 2147483647
  block_dim_limit_y: 65535
  block_dim_limit_z: 65535
  registers_per_core_limit: {_REGISTERS_PER_SM}
  registers_per_block_limit: {_REGISTERS_PER_SM}
  shared_memory_per_block: {_STATIC_SHARED_MEMORY}
  shared_memory_per_block_optin: {target.capacity("smem")}
  shared_memory_per_core: {_SHARED_MEMORY_PER_SM[target.compute_capability]}
  core_count: {target.num_cores}
  fpus_per_core: {64 if major == "8" else 128}
  memory_bandwidth: {target.hbm_bytes_per_second}
  device_memory_size: {target.hbm_bytes}
  cuda_compute_capability {{ major: {major} minor: {minor}{accelerated} }}
}}
platform_name: "CUDA"
device_description_str: "{target.device_kind}"
"""
