"""Executable files: a compiled kernel that runs later, on a machine with its chip.

The file is a zip archive of four members:

    executable.json    format, its version, and versions of what compiled it
    kernel.json        the kernel that was compiled, its target, operands and results
    kernel.mlir        its module
    executable         what the compiler made of it, as PJRT serialises it

Loading the last member can run any code: run only files that you trust.
"""

from __future__ import annotations

import dataclasses
import io
import json
import os
import platform
import zipfile
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from .arrays import checked
from .backends import get_backend
from .capture import this_machine
from .errors import InvalidModule, Mismatch, ToolkitError, Unsupported
from .kernel import Kernel, check_version, described, write_atomically
from .recompile import Compiled
from .runner import has_accelerator
from .targets import Target, get_target
from .versions import installed

FORMAT = "mosaic-toolkit/executable"
FORMAT_VERSION = 1

_HEADER, _KERNEL, _MODULE, _CODE = "executable.json", "kernel.json", "kernel.mlir", "executable"

_ARCHIVE = b"PK\x03\x04"  # what a zip archive begins with

# What has to be of one version where it is compiled and where it runs, by platform.
_COMPILERS = {"tpu": ("jaxlib", "libtpu"), "cuda": ("jaxlib", "jax-cuda13-pjrt")}


@dataclasses.dataclass(frozen=True)
class Executable:
    """A compiled kernel as a program of its own.

    Attributes:
      kernel: what was compiled; its target is the chip that the executable runs on.
      code: the program as PJRT serialises it.
      versions: of the packages that made it.
    """

    kernel: Kernel
    code: bytes = dataclasses.field(repr=False)
    versions: tuple[tuple[str, str], ...]

    @classmethod
    def of(cls, compiled: Compiled) -> Executable:
        """What `compile_kernel` just made.

        Raises:
          Unsupported: the kernel talks to other devices, and this is a program of one.
        """
        kernel = compiled.kernel
        if get_backend(kernel.backend).spans_devices(kernel):
            raise Unsupported(
                f"kernel '{kernel.name}' talks to other devices; an executable is of one device",
                hint="on the devices, mosaic-dump run SCRIPT runs the whole program",
            )
        return cls(kernel, compiled.executable, _versions(get_target(kernel.target)))

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Writes it as one file; returns the path."""
        header = {
            "format": FORMAT,
            "format_version": FORMAT_VERSION,
            "versions": dict(self.versions),
        }
        buffer = io.BytesIO()
        with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr(_HEADER, json.dumps(header, indent=1) + "\n")
            archive.writestr(_KERNEL, json.dumps(self.kernel.to_json(), indent=1) + "\n")
            archive.writestr(_MODULE, self.kernel.asm)
            archive.writestr(_CODE, self.code)
        write_atomically(Path(path), buffer.getvalue())
        return Path(path)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Executable:
        """Reads what `save` wrote, on any machine.

        Raises:
          InvalidModule: the file is missing, damaged, foreign, or of a newer version.
        """
        path = Path(path)
        members = _members(path)
        header = _json(path, members, _HEADER)
        if header.get("format") != FORMAT:
            raise InvalidModule(f"{path}: {_HEADER} is not of an executable", hint=_COMPILE)
        check_version(path, header, FORMAT_VERSION)
        versions = header.get("versions")
        if not isinstance(versions, dict):
            raise InvalidModule(f"{path}: {_HEADER} holds no versions", hint=_COMPILE)
        description = _json(path, members, _KERNEL)
        asm = members[_MODULE].decode(errors="replace")
        kernel = described(f"{path}: {_KERNEL}", description, asm)
        if kernel.digest != description.get("module_sha256"):
            raise InvalidModule(f"{path}: {_MODULE} was edited: no code comes of it", hint=_COMPILE)
        get_target(kernel.target)
        return cls(kernel, members[_CODE], tuple((k, str(v)) for k, v in versions.items()))

    def run(self, inputs: Sequence[np.ndarray]) -> list[np.ndarray]:
        """The kernel's results on this machine's device.

        Args:
          inputs: arrays of the types in `kernel.operands`.

        Raises:
          Mismatch: the inputs are not of the operands' types; this machine has another device
            or none, or other versions of what made it.
          ToolkitError: the device's runtime does not take it, or it failed there.
        """
        arrays = checked(self.kernel, inputs)
        target = get_target(self.kernel.target)
        device = _device(self.kernel.name, target)
        _check_versions(self.kernel.name, dict(self.versions), target)
        import jax

        from .jax_compat.executables import run_serialised

        try:
            return run_serialised(self.code, device, arrays)
        except jax.errors.JaxRuntimeError as error:
            raise ToolkitError(
                f"kernel '{self.kernel.name}' does not run on {device}: {error}"
            ) from error


def is_executable(path: str | os.PathLike[str]) -> bool:
    """Whether a file is to be read as an executable: whether it is an archive, damaged or not."""
    try:
        with open(path, "rb") as file:
            return file.read(len(_ARCHIVE)) == _ARCHIVE
    except OSError:
        return False


def _device(name: str, target: Target) -> Any:
    """This machine's device, which has to be of the chip."""
    here = this_machine() if has_accelerator() else None
    if here != target:
        found = f"{here} ('{here.device_kind}')" if here else "no TPU or GPU that JAX uses"
        raise Mismatch(
            f"kernel '{name}' is compiled for {target} ('{target.device_kind}'), "
            f"this machine has {found}",
            hint=f"compile it for this machine: --target {here}"
            if here is not None and here.platform == target.platform
            else f"run it on a machine with {target}",
        )
    import jax

    return jax.devices()[0]


def _versions(target: Target) -> tuple[tuple[str, str], ...]:
    from . import __version__

    own = (("mosaic-toolkit", __version__), ("python", platform.python_version()))
    return own + installed("jax", *_COMPILERS[target.platform])


def _check_versions(name: str, made_by: dict[str, str], target: Target) -> None:
    here = dict(_versions(target))
    other = [
        f"{package} {made_by.get(package)} (here {here.get(package, 'not installed')})"
        for package in _COMPILERS[target.platform]
        if made_by.get(package) != here.get(package)
    ]
    if other:
        raise Mismatch(
            f"kernel '{name}' was compiled by {', '.join(other)}: "
            "executables are of one version of the compiler",
            hint=f"{_COMPILE}, with the versions that are here",
        )


_COMPILE = "compile the kernel again: mosaic-dump compile KERNEL -o FILE"


def _members(path: Path) -> dict[str, bytes]:
    try:
        with zipfile.ZipFile(path) as archive:
            members = {name: archive.read(name) for name in archive.namelist()}
    except FileNotFoundError:
        raise InvalidModule(f"{path}: no such file; expected an executable file") from None
    except OSError as error:
        raise InvalidModule(f"{path}: {error.strerror}; expected an executable file") from error
    except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError) as error:
        raise InvalidModule(
            f"{path}: not an executable file, or damaged: {error}", hint=_COMPILE
        ) from error
    missing = [name for name in (_HEADER, _KERNEL, _MODULE, _CODE) if name not in members]
    if missing:
        raise InvalidModule(
            f"{path}: not an executable file: it holds no {', '.join(missing)}", hint=_COMPILE
        )
    return members


def _json(path: Path, members: dict[str, bytes], name: str) -> dict[str, Any]:
    try:
        data = json.loads(members[name])
    except ValueError as error:
        raise InvalidModule(f"{path}: {name} is not JSON: {error}", hint=_COMPILE) from error
    if not isinstance(data, dict):
        raise InvalidModule(f"{path}: {name} should hold an object", hint=_COMPILE)
    return data
