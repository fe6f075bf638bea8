"""libtpu: what it is told in variables, and the chips that it compiles for."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..errors import CompileError
from ..targets import Target
from .settings import Settings

FOLDERS = ("mosaic", "llo", "sparsecore", "hlo")

# Of each generation: the smallest topology that libtpu accepts everywhere, and one of 16
# chips, whose numbers a kernel that talks to other devices may use.
TOPOLOGIES = {
    "v4": ("v4:1x1x1", "v4:2x2x4"),
    "v5e": ("v5e:2x2", "v5e:4x4"),
    "v5p": ("v5p:2x2x1", "v5p:2x2x4"),
    "v6e": ("v6e:2x2", "v6e:4x4"),
    "tpu7x": ("tpu7x:2x2x1", "tpu7x:2x2x4"),
}


def settings(own: Mapping[str, str], dump: Path | None, llo_passes: str | None) -> Settings:
    """See `environment`."""
    del own
    variables = {
        "TPU_SKIP_MDS_QUERY": "1",
        "TPU_WORKER_HOSTNAMES": "localhost",
        "TPU_ACCELERATOR_TYPE": "v5litepod-1",
        "TPU_LOG_DIR": "disabled",
        "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
    }
    if dump is None:
        return Settings(variables)
    flags = [
        f"--xla_mosaic_dump_to={dump / 'mosaic'}",
        f"--xla_jf_dump_to={dump / 'llo'}",
        "--xla_jf_dump_llo_text=true",
        "--xla_mosaic_enable_llo_source_annotations=true",
        f"--xla_sc_dump_llvm_ir_to={dump / 'sparsecore'}",
        f"--xla_sc_dump_bundles_to={dump / 'sparsecore'}",
    ]
    if llo_passes is not None:
        flags.append(f"--xla_jf_dump_llo_pass_label_regex={llo_passes}")
    xla = [f"--xla_dump_to={dump / 'hlo'}"]
    return Settings(variables, {"LIBTPU_INIT_ARGS": flags, "XLA_FLAGS": xla})


def devices(target: Target, count: int | None) -> list[Any]:
    """Devices of the chip to compile for; all of a large topology for None.

    Raises:
      CompileError: libtpu is not installed.
    """
    from ..jax_compat import topologies

    if not topologies.has_tpu_compiler():
        raise CompileError(
            f"libtpu, the compiler for {target}, is not installed",
            hint="pip install 'mosaic-toolkit[tpu]'",
        )
    one, many = TOPOLOGIES[target.name]
    return topologies.tpu_devices(one if count == 1 else many)[:count]


def finish(dump: Path) -> None:
    """libtpu dumps all there is."""
