"""How each proprietary compiler is told what to compile for and where to dump.

They read environment variables, when they are loaded: all of this is for the
compile worker's process and never for the user's.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
from collections.abc import Mapping
from pathlib import Path

from ..targets import Target

# Of each generation: the smallest topology that libtpu accepts everywhere, and one of 16
# chips, whose numbers a kernel that talks to other devices may use.
TPU_TOPOLOGIES = {
    "v4": ("v4:1x1x1", "v4:2x2x4"),
    "v5e": ("v5e:2x2", "v5e:4x4"),
    "v5p": ("v5p:2x2x1", "v5p:2x2x4"),
    "v6e": ("v6e:2x2", "v6e:4x4"),
    "tpu7x": ("tpu7x:2x2x1", "tpu7x:2x2x4"),
}

# Per compute capability, from the CUDA C++ Programming Guide, table "Technical
# specifications per compute capability": threads and shared memory of one SM.
_THREADS_PER_SM = 2048
_REGISTERS_PER_SM = 64 * 1024
_SHARED_MEMORY_PER_SM = {"8.0": 164 * 1024, "9.0": 228 * 1024, "10.0": 228 * 1024}
_STATIC_SHARED_MEMORY = 48 * 1024

DUMP_FOLDERS = {"tpu": ("mosaic", "llo", "hlo"), "cuda": ("mosaic_gpu", "hlo")}


def environment(target: Target, dump: Path | None, llo_passes: str | None) -> dict[str, str]:
    """The variables that the worker starts with, on top of the user's own.

    Args:
      target: the chip to compile for.
      dump: an absolute directory for the compilers' dumps, with `DUMP_FOLDERS` in it.
      llo_passes: a regular expression for the LLO passes to dump; None for all.
    """
    own = {
        name: text for name, text in os.environ.items() if not name.startswith("MOSAIC_GPU_DUMP_")
    }
    own |= {"JAX_PLATFORMS": "cpu", "JAX_ENABLE_COMPILATION_CACHE": "false"}
    settings = _tpu if target.platform == "tpu" else _cuda
    return own | settings(own, dump, llo_passes)


def _tpu(own: Mapping[str, str], dump: Path | None, llo_passes: str | None) -> dict[str, str]:
    variables = {
        "TPU_SKIP_MDS_QUERY": "1",
        "TPU_WORKER_HOSTNAMES": "localhost",
        "TPU_ACCELERATOR_TYPE": "v5litepod-1",
        "TPU_LOG_DIR": "disabled",
        "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
    }
    if dump is None:
        return variables
    flags = [
        f"--xla_mosaic_dump_to={dump / 'mosaic'}",
        f"--xla_jf_dump_to={dump / 'llo'}",
        "--xla_jf_dump_llo_text=true",
        "--xla_mosaic_enable_llo_source_annotations=true",
    ]
    if llo_passes is not None:
        flags.append(f"--xla_jf_dump_llo_pass_label_regex={llo_passes}")
    return variables | {
        "LIBTPU_INIT_ARGS": _joined(own, "LIBTPU_INIT_ARGS", *flags),
        "XLA_FLAGS": _joined(own, "XLA_FLAGS", f"--xla_dump_to={dump / 'hlo'}"),
    }


def _cuda(own: Mapping[str, str], dump: Path | None, llo_passes: str | None) -> dict[str, str]:
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
    return variables | {"XLA_FLAGS": _joined(own, "XLA_FLAGS", *flags)}


def _joined(own: Mapping[str, str], name: str, *flags: str) -> str:
    return " ".join(filter(None, (own.get(name), *flags)))


def cuda_toolkit() -> Path | None:
    """Where ptxas and libdevice are: in the nvidia-cuda-nvcc package, else where PATH has ptxas."""
    spec = importlib.util.find_spec("nvidia")
    for root in (spec.submodule_search_locations or ()) if spec is not None else ():
        for folder in sorted(Path(root).iterdir(), reverse=True):
            if (folder / "bin/ptxas").exists():
                return folder
    ptxas = shutil.which("ptxas")
    return Path(ptxas).resolve().parent.parent if ptxas is not None else None


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
