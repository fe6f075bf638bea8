"""Reads a compiled kernel's statistics, whichever compiler made it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from ..errors import Unsupported
from .gpu_statistics import GpuStatistics, read_mosaic_gpu_statistics, read_triton_statistics
from .tpu_statistics import TpuStatistics, read_tpu_statistics

type Statistics = TpuStatistics | GpuStatistics

_READERS: dict[str, Callable[[Path], Statistics]] = {
    "mosaic_tpu": read_tpu_statistics,
    "mosaic_gpu": read_mosaic_gpu_statistics,
    "triton": read_triton_statistics,
}


def read_statistics(raw_dir: Path, backend: str) -> Statistics:
    """Statistics of the one kernel that was compiled into `raw_dir`.

    Args:
      raw_dir: as for `read_stages`.
      backend: a kernel's ``backend``.

    Raises:
      CompileError: a file that statistics cannot do without is missing or damaged.
      Unsupported: several kernels were compiled, or no such backend is known.
    """
    try:
        read = _READERS[backend]
    except KeyError:
        raise Unsupported(
            f"no statistics are known for backend '{backend}'",
            hint=f"known: {', '.join(_READERS)}",
        ) from None
    return read(Path(raw_dir))
