"""How each proprietary compiler is told what to compile for and where to dump.

They read environment variables, when they are loaded: all of this is for the
compile worker's process and never for the user's.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

from ..targets import Target
from . import cuda, tpu
from .settings import Settings


class Compiler(Protocol):
    """The compiler of one platform; the modules `tpu` and `cuda` are the instances.

    Attributes:
      FOLDERS: of a dump that it writes into, which have to be there.
    """

    @property
    def FOLDERS(self) -> tuple[str, ...]: ...

    def settings(
        self, own: Mapping[str, str], dump: Path | None, llo_passes: str | None, /
    ) -> Settings:
        """What it is told; `own` are the user's variables."""
        ...

    def devices(self, target: Target, count: int | None, /) -> list[Any]:
        """As many devices of the chip; None where the kernel names others by number."""
        ...

    def finish(self, dump: Path, /) -> None:
        """Completes what it has dumped."""
        ...


_COMPILERS: dict[str, Compiler] = {"tpu": tpu, "cuda": cuda}


def compiler_of(target: Target) -> Compiler:
    """The compiler for a chip."""
    return _COMPILERS[target.platform]


def environment(target: Target, dump: Path | None, llo_passes: str | None) -> dict[str, str]:
    """The variables that the worker starts with, on top of the user's own.

    Args:
      target: the chip to compile for.
      dump: an absolute directory for the compilers' dumps, with its `Compiler.FOLDERS` in it.
      llo_passes: a regular expression for the LLO passes to dump; None for all.
    """
    own = {
        name: text for name, text in os.environ.items() if not name.startswith("MOSAIC_GPU_DUMP_")
    }
    own |= {"JAX_PLATFORMS": "cpu", "JAX_ENABLE_COMPILATION_CACHE": "false"}
    settings = compiler_of(target).settings(own, dump, llo_passes)
    own |= settings.variables
    for name, flags in settings.flags.items():
        own[name] = " ".join(filter(None, (own.get(name), *flags)))
    return own
