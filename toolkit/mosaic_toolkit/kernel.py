"""`Kernel`: one captured kernel as a value, and reading and writing its files.

A kernel on disk is two files.  ``NAME.mlir`` is the truth: the module as MLIR
text with source locations, which may be edited by hand.  ``NAME.json`` beside
it holds what else is needed to rebuild the custom call.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .child import importing_as_here
from .errors import InvalidModule, first_error

if TYPE_CHECKING:
    from .jax_compat import ir

FORMAT = "mosaic-toolkit/kernel"
FORMAT_VERSION = 1


@dataclasses.dataclass(frozen=True)
class ArrayType:
    """Element type, as JAX names it, and shape of one operand or result."""

    dtype: str
    shape: tuple[int, ...]

    _TEXT = re.compile(r"(\w+)\[([\d,\s]*)\]")

    def __str__(self) -> str:
        return f"{self.dtype}[{','.join(map(str, self.shape))}]"

    @classmethod
    def parse(cls, text: str) -> ArrayType:
        """The inverse of `str`; raises ValueError where `text` is no array type."""
        match = cls._TEXT.fullmatch(text.strip())
        if match is None:
            raise ValueError(f"'{text}' is no array type such as float32[8,128]")
        dims = [int(dim) for dim in match[2].split(",") if dim.strip()]
        return cls(match[1], tuple(dims))


@dataclasses.dataclass(frozen=True)
class Kernel:
    """One captured kernel: an MLIR module and what stands around it.

    Attributes:
      name: the kernel's name.
      backend: which compiler it is for: ``mosaic_tpu``, ``mosaic_gpu`` or ``triton``.
      level: ``dialect`` for the backend's readable dialect, ``lowered`` where the
        kernel exists only below it (Mosaic GPU with Lane semantics).
      target: the chip it was lowered for, a name in `targets.TARGETS`.
      asm: the module as MLIR text with locations.
      operands: types of the custom call's operands.
      results: types of its results.
      aliases: (operand, result) pairs that share one buffer.
      grid: iteration space; None for a bound known only at run time.
      attributes: the custom call's attributes as MLIR text, by name, with the
        module taken out of the configuration.
      encoding: how the module is put back, as JSON that the backend reads.
      source: ``file:line`` of the kernel's first operation that has one.
      versions: of jax, jaxlib and the backend's compiler, where installed.
    """

    name: str
    backend: str
    level: str
    target: str
    asm: str = dataclasses.field(repr=False)
    operands: tuple[ArrayType, ...] = ()
    results: tuple[ArrayType, ...] = ()
    aliases: tuple[tuple[int, int], ...] = ()
    grid: tuple[int | None, ...] = ()
    attributes: tuple[tuple[str, str], ...] = dataclasses.field(default=(), repr=False)
    encoding: str = dataclasses.field(default="{}", repr=False)
    source: str | None = None
    versions: tuple[tuple[str, str], ...] = dataclasses.field(default=(), repr=False)

    def module(self, context: ir.Context | None = None) -> ir.Module:
        """A module of its own, parsed from `asm`; changing it does not change the kernel.

        Raises:
          InvalidModule: `asm` does not parse or verify.
        """
        from . import jax_compat

        try:
            return jax_compat.parse_module(self.asm, context)
        except jax_compat.ir.MLIRError as error:
            raise InvalidModule(f"kernel '{self.name}': {first_error(str(error))}") from error

    def with_module(self, module: ir.Module) -> Kernel:
        """This kernel with another module.

        Raises:
          InvalidModule: the module does not verify.
        """
        from . import jax_compat

        try:
            module.operation.verify()
        except jax_compat.ir.MLIRError as error:
            raise InvalidModule(f"kernel '{self.name}': {first_error(str(error))}") from error
        return dataclasses.replace(self, asm=jax_compat.print_module(module))

    @property
    def identity(self) -> tuple[Any, ...]:
        """What tells it from other kernels: all but how JAX numbered and serialised it."""
        call = (self.operands, self.results, self.aliases, self.attributes)
        return (self.name, self.backend, self.level, self.target, self.asm, *call)

    @functools.cached_property
    def digest(self) -> str:
        """SHA-256 of the module's text."""
        return hashlib.sha256(self.asm.encode()).hexdigest()

    def text(self) -> str:
        """The module as MLIR text without locations, for people to read."""
        from . import jax_compat

        return jax_compat.print_module(self.module(), locations=False)

    def to_json(self) -> dict[str, Any]:
        """All but the module, as JSON; `from_json` with `asm` is the inverse."""
        return {
            "format": FORMAT,
            "format_version": FORMAT_VERSION,
            "name": self.name,
            "backend": self.backend,
            "level": self.level,
            "target": self.target,
            "operands": [str(t) for t in self.operands],
            "results": [str(t) for t in self.results],
            "aliases": [list(pair) for pair in self.aliases],
            "grid": list(self.grid),
            "source": self.source,
            "versions": dict(self.versions),
            "attributes": dict(self.attributes),
            "encoding": json.loads(self.encoding),
            "module_sha256": self.digest,
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any], asm: str) -> Kernel:
        """The kernel of `to_json` and its module's text.

        Raises:
          KeyError, TypeError, ValueError: a field is missing or of the wrong kind.
        """
        return cls(
            name=_expect(data, "name", str),
            backend=_expect(data, "backend", str),
            level=_expect(data, "level", str),
            target=_expect(data, "target", str),
            asm=asm,
            operands=tuple(map(ArrayType.parse, _texts(data, "operands"))),
            results=tuple(map(ArrayType.parse, _texts(data, "results"))),
            aliases=tuple((int(a), int(b)) for a, b in _expect(data, "aliases", list)),
            grid=tuple(None if n is None else int(n) for n in _expect(data, "grid", list)),
            attributes=_named_texts(data, "attributes"),
            encoding=json.dumps(_expect(data, "encoding", dict)),
            source=None if data["source"] is None else _expect(data, "source", str),
            versions=_named_texts(data, "versions"),
        )


def _expect(data: Mapping[str, Any], key: str, kind: type) -> Any:
    if not isinstance(data[key], kind):
        raise TypeError(f"'{key}' should be a {kind.__name__}, is {type(data[key]).__name__}")
    return data[key]


def _texts(data: Mapping[str, Any], key: str) -> list[str]:
    values = _expect(data, key, list)
    if not all(isinstance(value, str) for value in values):
        raise TypeError(f"'{key}' should hold texts only")
    return values


def _named_texts(data: Mapping[str, Any], key: str) -> tuple[tuple[str, str], ...]:
    values = _expect(data, key, dict)
    if not all(isinstance(value, str) for value in values.values()):
        raise TypeError(f"'{key}' should hold texts only")
    return tuple(values.items())


# --- files --------------------------------------------------------------------


def write_atomically(path: Path, data: str | bytes) -> None:
    """Writes `path` whole or not at all: to a temporary file beside it, then renamed."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data.encode() if isinstance(data, str) else data)
        umask = os.umask(0)
        os.umask(umask)
        os.chmod(temporary, 0o666 & ~umask)
        os.replace(temporary, path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def save(kernel: Kernel, path: str | os.PathLike[str]) -> Path:
    """Writes `path` (``.mlir``) and the ``.json`` beside it; returns the path.

    The ``.json`` is written last, so a ``.mlir`` whose digest it does not name
    was edited, or its write was interrupted.
    """
    path = Path(path)
    if path.suffix != ".mlir":
        raise ValueError(f"a kernel is saved as .mlir, not '{path.name}'")
    write_atomically(path, kernel.asm)
    write_atomically(path.with_suffix(".json"), json.dumps(kernel.to_json(), indent=1) + "\n")
    return path


def load(path: str | os.PathLike[str]) -> Kernel:
    """Reads what `save` wrote, hand edits to the ``.mlir`` included.

    Raises:
      InvalidModule: a file is missing, damaged, foreign, or of a newer version;
        says which file and line, and what was expected.
    """
    path = Path(path)
    asm = _read_text(path, "MLIR text")
    side = path.with_suffix(".json")
    try:
        data = json.loads(_read_text(side, "the kernel's description"))
    except json.JSONDecodeError as error:
        raise InvalidModule(
            f"{side}:{error.lineno}:{error.colno}: not JSON: {error.msg}",
            hint="dump the kernel again",
        ) from error
    kernel = described(str(side), data, asm)
    if kernel.digest != data.get("module_sha256"):
        check_parses(path)
    return kernel


def described(where: str, data: Any, asm: str) -> Kernel:
    """The kernel of a description that `where` holds, and of its module's text.

    Raises:
      InvalidModule: it is no kernel's description, or of a newer version.
    """
    if not isinstance(data, dict) or data.get("format") != FORMAT:
        raise InvalidModule(f'{where}:1: expected a kernel\'s description ("format": "{FORMAT}")')
    check_version(where, data, FORMAT_VERSION)
    try:
        return Kernel.from_json(data, asm)
    except (KeyError, TypeError, ValueError) as error:
        what = f"no field {error}" if isinstance(error, KeyError) else str(error)
        raise InvalidModule(f"{where}: {what}", hint="dump the kernel again") from error


def check_version(path: Path | str, data: Mapping[str, Any], newest: int) -> None:
    """Raises InvalidModule where a file's format is of no version, or of one after `newest`."""
    version = data.get("format_version")
    if not isinstance(version, int) or version > newest:
        raise InvalidModule(
            f"{path}: format version {version!r}, this toolkit reads up to {newest}",
            hint="upgrade mosaic-toolkit",
        )


def _read_text(path: Path, expected: str) -> str:
    try:
        text = path.read_bytes().decode("utf-8")
    except FileNotFoundError:
        raise InvalidModule(f"{path}: no such file; expected {expected}") from None
    except UnicodeDecodeError as error:
        raise InvalidModule(
            f"{path}: byte {error.start} is not UTF-8; expected {expected}"
        ) from None
    except OSError as error:
        raise InvalidModule(f"{path}: {error.strerror}; expected {expected}") from error
    if not text.strip():
        raise InvalidModule(f"{path}:1: the file is empty; expected {expected}")
    return text


_PARSE = """
import resource, sys
resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
from mosaic_toolkit import jax_compat
text = open(sys.argv[1], encoding="utf-8").read()
try:
    module = jax_compat.parse_module(text)
except jax_compat.ir.MLIRError as error:
    print(error)
    sys.exit(1)
if not any(region.blocks for op in module.body for region in op.regions):
    print('"-":1:1: the module holds no function with a body')
    sys.exit(1)
"""


def check_parses(path: Path, *, timeout: float = 120) -> None:
    """Parses a file that we did not print ourselves in a process of its own.

    MLIR's parser can abort or overflow the stack; only that process dies.

    Raises:
      InvalidModule: it does not parse or verify, with MLIR's own file and line, or it
        holds no function.
    """
    try:
        done = subprocess.run(
            [sys.executable, "-c", _PARSE, str(path)],
            capture_output=True,
            text=True,
            errors="replace",
            timeout=timeout,
            env=importing_as_here(),
        )
    except subprocess.TimeoutExpired:
        raise InvalidModule(f"{path}: MLIR's parser did not finish in {timeout:.0f} s") from None
    if done.returncode == 0:
        return
    if done.returncode == 1 and done.stdout:
        raise InvalidModule(first_error(done.stdout).replace('"-":', f"{path}:", 1))
    raise InvalidModule(
        f"{path}: MLIR's parser crashed on it (exit {done.returncode}); expected MLIR text",
        hint="the file is damaged, or is nested deeper than MLIR can parse",
    )
