"""A kernel's operands and results as NumPy arrays, and as ``.npz`` files.

In a file, arrays stand in order under the names that ``np.savez(path, x, y)`` gives them:
``arr_0``, ``arr_1``, ...  NumPy writes the element types that it does not know
(bfloat16, float8, int4, ...) as raw bytes, ``V2`` for bfloat16; read back they
take the type that the operand has.  What it writes of float8_e5m2 it cannot read
back: save ``x.view("V1")``.  So that two types of one size are not mixed up,
`save_outputs` adds ``types``, which names each array's; `load_inputs` checks it
where it is there.
"""

from __future__ import annotations

import os
import zipfile
from collections.abc import Sequence
from pathlib import Path

import ml_dtypes
import numpy as np

from .errors import Mismatch, ToolkitError
from .kernel import ArrayType, Kernel

_TYPES = "types"


def numpy_dtype(name: str) -> np.dtype:
    """The NumPy type that JAX names so."""
    return np.dtype(getattr(ml_dtypes, name, None) or name)


def checked(kernel: Kernel, inputs: Sequence[np.ndarray]) -> list[np.ndarray]:
    """The inputs as arrays of the kernel's operand types.

    Raises:
      Mismatch: their number, a shape or an element type differs.
    """
    arrays = [np.asarray(value) for value in inputs]
    found = [type_of(array) for array in arrays]
    expected = list(kernel.operands)
    if found != expected:
        show = ", ".join
        raise Mismatch(
            f"kernel '{kernel.name}' takes ({show(map(str, expected))}), "
            f"not ({show(map(str, found))})"
        )
    return arrays


def type_of(array: np.ndarray) -> ArrayType:
    """An array's element type and shape."""
    return ArrayType(array.dtype.name, array.shape)


def load_inputs(
    path: str | os.PathLike[str] | None, operands: Sequence[ArrayType]
) -> list[np.ndarray]:
    """The operands that a ``.npz`` file holds, in order.

    Args:
      path: the file; None where there are no operands.
      operands: the types that they have to have.

    Raises:
      ToolkitError: no such file, or it is no ``.npz`` file of plain arrays.
      Mismatch: an array is missing, of another shape or element type, or one too many.
    """
    if path is None:
        found: dict[str, np.ndarray] = {}
        where = "no --inputs"
    else:
        where = str(path)
        found = _read(Path(path))
    claimed = [str(text) for text in found.pop(_TYPES, ())]
    names = [f"arr_{number}" for number in range(len(operands))]
    missing = [name for name in names if name not in found]
    excess = sorted(set(found) - set(names))
    if missing or excess:
        said = [f"{', '.join(missing)} missing"] * bool(missing)
        said += [f"{', '.join(excess)} not among the operands"] * bool(excess)
        raise Mismatch(f"{where}: {'; '.join(said)}", hint=_expected(operands))
    return [
        _as_type(f"{where}: {name}", found[name], operand, dict(zip(names, claimed)).get(name))
        for name, operand in zip(names, operands)
    ]


def save_outputs(path: str | os.PathLike[str], results: Sequence[np.ndarray]) -> None:
    """Writes results as ``arr_0``, ``arr_1``, ... and their ``types``; `load_inputs` reads it."""
    arrays = {f"arr_{number}": _storable(array) for number, array in enumerate(results)}
    types = np.array([str(type_of(array)) for array in results], dtype=np.str_)
    with open(path, "wb") as file:  # NumPy would add an ending to a path
        np.savez(file, allow_pickle=False, **{_TYPES: types}, **arrays)


def _storable(array: np.ndarray) -> np.ndarray:
    return array if array.dtype.isbuiltin == 1 else array.view(_raw(array.dtype))


def _raw(dtype: np.dtype) -> np.dtype:
    return np.dtype(f"V{dtype.itemsize}")


def _read(path: Path) -> dict[str, np.ndarray]:
    try:
        with open(path, "rb") as file:
            found = np.load(file, allow_pickle=False)
            if isinstance(found, np.ndarray):
                raise ToolkitError(f"{path}: one .npy array, expected a .npz file", hint=_SAVEZ)
            return dict(found.items())
    except FileNotFoundError:
        raise ToolkitError(f"{path}: no such file; expected a .npz file", hint=_SAVEZ) from None
    except OSError as error:
        raise ToolkitError(f"{path}: {error.strerror or error}", hint=_SAVEZ) from error
    except (ValueError, EOFError, zipfile.BadZipFile) as error:
        raise ToolkitError(
            f"{path}: not a .npz file of plain arrays: {error}", hint=_SAVEZ
        ) from error


_SAVEZ = "np.savez(path, x, y) writes one, the operands in order"


def _expected(operands: Sequence[ArrayType]) -> str:
    if not operands:
        return "the kernel has no operands"
    listed = ", ".join(f"arr_{number}: {operand}" for number, operand in enumerate(operands))
    return f"{_SAVEZ}; here {listed}"


def _as_type(where: str, array: np.ndarray, operand: ArrayType, claimed: str | None) -> np.ndarray:
    """The array, its raw bytes taken for the operand's element type."""
    dtype = numpy_dtype(operand.dtype)
    if array.dtype == _raw(dtype) and dtype.isbuiltin != 1:
        array = array.view(dtype)
    found = claimed or str(type_of(array))
    if type_of(array) != operand or found != str(operand):
        raise Mismatch(f"{where} is {found}, the kernel takes {operand}", hint=_conversion(operand))
    return array


def _conversion(operand: ArrayType) -> str:
    dtype = numpy_dtype(operand.dtype)
    if dtype.isbuiltin == 1:
        return f"x.astype('{operand.dtype}') before np.savez, and the kernel's own shapes"
    return f"x.astype(ml_dtypes.{operand.dtype}) before np.savez, and the kernel's own shapes"
