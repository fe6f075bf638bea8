"""Memory of the machine: buffers of bytes, and views of them as arrays."""

from __future__ import annotations

import functools
import math
from typing import TYPE_CHECKING, Any

import numpy as np

from .element_types import is_float

if TYPE_CHECKING:
    from .races import Record

# Bytes of poison that is no NaN: a large odd pattern, so that sums and indices made of
# it are recognisably wrong and two runs with different poison differ.
_INTEGER_POISON = (0x5B, 0xA7, 0x3D, 0xC9)


class Buffer:
    """One allocation.

    Attributes:
      name: for reports.
      space: memory space, as the dialect spells it.
      data: its bytes, flat.
      key: what the same allocation is called on every device of a program.
      uninitialised: per byte, whether it was never written; None once all was.
      records: the accesses that a later one may race with, newest of each kind.
      semaphores: the semaphores or barriers that live here, by cell.
      private: whether one thread alone can reach it, so that nothing races for it.
    """

    __slots__ = (
        "_missing",
        "data",
        "key",
        "name",
        "poison",
        "private",
        "records",
        "semaphores",
        "space",
        "uninitialised",
    )

    def __init__(self, name: str, space: str, size: int, key: Any = None):
        self.name = name
        self.space = space
        self.data = np.zeros(size, np.uint8)
        self.key = key
        self.uninitialised: np.ndarray | None = None
        self.records: dict[tuple, Record] = {}
        self.semaphores: list[Any] = []
        self.poison: int | None = None
        self.private = False
        self._missing = 0

    @classmethod
    def holding(cls, name: str, space: str, array: np.ndarray, key: Any = None) -> Buffer:
        """A buffer with a copy of the array, row-major."""
        buffer = cls(name, space, array.nbytes, key)
        View.whole(buffer, array.shape, array.dtype).array[...] = array
        return buffer

    @classmethod
    def poisoned(cls, name: str, space: str, shape, dtype: np.dtype, poison: int, key=None):
        """A buffer that nothing was written to: NaN, or for integers a pattern; see `View.spoil`."""
        buffer = cls(name, space, math.prod(shape) * dtype.itemsize, key)
        buffer.poison = poison
        View.whole(buffer, shape, dtype).spoil()
        return buffer

    def note_write(self, view: View) -> None:
        """Notes that a view's bytes were written."""
        mask = self.uninitialised
        if mask is None or view.nbytes == len(self.data):
            self.uninitialised = None
            return
        self._missing -= int(np.count_nonzero(view.of_bytes(mask)))
        view.mark_bytes(mask, False)
        if self._missing <= 0:
            self.uninitialised = None

    def note_spoiled(self, view: View) -> None:
        if self.uninitialised is None:
            self.uninitialised = np.zeros(len(self.data), np.bool_)
            self._missing = 0
        if view.nbytes == len(self.data):
            self.uninitialised.fill(True)
            self._missing = len(self.data)
            return
        covered = view.of_bytes(self.uninitialised)
        self._missing += covered.size - int(np.count_nonzero(covered))
        view.mark_bytes(self.uninitialised, True)


class View:
    """An array somewhere in a buffer: offset and strides in bytes.

    Attributes:
      places: byte offset of each element, where strides cannot say it; else None.
    """

    __slots__ = ("_array", "bits", "buffer", "dtype", "offset", "places", "shape", "strides")

    def __init__(self, buffer, offset, shape, strides, dtype, places=None, bits=None):
        self.buffer: Buffer = buffer
        self.offset: int = offset
        self.shape: tuple[int, ...] = shape
        self.strides: tuple[int, ...] = strides
        self.dtype: np.dtype = dtype
        self.places: np.ndarray | None = places
        self.bits: int | None = bits
        self._array: np.ndarray | None = None

    @classmethod
    def whole(cls, buffer: Buffer, shape, dtype: np.dtype) -> View:
        return cls(buffer, 0, tuple(shape), row_major(shape, dtype.itemsize), dtype)

    @property
    def array(self) -> np.ndarray:
        """The elements, writable; only where `places` is None."""
        if self._array is None:
            self._array = np.ndarray(
                self.shape, self.dtype, self.buffer.data, self.offset, self.strides
            )
        return self._array

    @property
    def size(self) -> int:
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        return self.size * self.dtype.itemsize

    def bounds(self) -> tuple[int, int]:
        """First byte, and one past the last."""
        if self.places is not None:
            if not self.places.size:
                return (0, 0)
            return int(self.places.min()), int(self.places.max()) + self.dtype.itemsize
        last = self.offset
        for extent, stride in zip(self.shape, self.strides):
            if extent == 0:
                return (0, 0)
            last += (extent - 1) * stride
        return (self.offset, last + self.dtype.itemsize)

    def layout(self) -> tuple:
        """Equal for two views of a buffer that cover the same bytes in the same way."""
        if self.places is not None:
            return (self.shape, self.dtype.itemsize, self.places.tobytes())
        return (self.offset, self.shape, self.strides, self.dtype.itemsize)

    def overlaps(self, other: View) -> bool:
        """Whether some byte belongs to both; they are of one buffer."""
        first, last = self.bounds()
        other_first, other_last = other.bounds()
        if last <= other_first or other_last <= first:
            return False
        if self.places is None and other.places is None:
            return np.shares_memory(self.array, other.array)
        covered = np.zeros(len(self.buffer.data), np.bool_)
        self.mark_bytes(covered, True)
        return bool(np.any(other.of_bytes(covered)))

    def of_bytes(self, per_byte: np.ndarray) -> np.ndarray:
        """This view's part of an array that runs along the buffer's bytes."""
        if self.places is not None:
            return per_byte[self._byte_indices()]
        shape, strides = (*self.shape, self.dtype.itemsize), (*self.strides, 1)
        return np.ndarray(shape, per_byte.dtype, per_byte, self.offset, strides)

    def mark_bytes(self, per_byte: np.ndarray, value: bool) -> None:
        """Sets this view's part of an array that runs along the buffer's bytes."""
        if self.places is not None:
            per_byte[self._byte_indices()] = value
        else:
            self.of_bytes(per_byte)[...] = value

    def _byte_indices(self) -> np.ndarray:
        assert self.places is not None
        return self.places[..., None] + np.arange(self.dtype.itemsize)

    # --- values -----------------------------------------------------------------

    def read(self) -> np.ndarray:
        """A copy of the elements."""
        if self.places is None:
            return self.array.copy()
        return self._flat()[self.places // self.dtype.itemsize]

    def write(self, values: np.ndarray) -> None:
        """Overwrites the elements with values of the view's shape."""
        if self.places is None:
            self.array[...] = values
        else:
            self._flat()[self.places // self.dtype.itemsize] = values
        if self.buffer.uninitialised is not None:
            self.buffer.note_write(self)

    def copy_from(self, source: View) -> None:
        """Overwrites the elements with those of a view of the same shape and type."""
        self.write(source.readable())

    def readable(self) -> np.ndarray:
        """The elements, to be read at once: possibly the memory itself."""
        return self.array if self.places is None else self.read()

    def _flat(self) -> np.ndarray:
        itemsize = self.dtype.itemsize
        return self.buffer.data[: len(self.buffer.data) // itemsize * itemsize].view(self.dtype)

    def unwritten_elements(self) -> np.ndarray | None:
        """Which elements were not written in full; None where all were."""
        mask = self.buffer.uninitialised
        return None if mask is None else np.asarray(self.of_bytes(mask).any(axis=-1))

    def unwritten(self) -> bool:
        """Whether some byte of it was never written."""
        mask = self.buffer.uninitialised
        return mask is not None and bool(np.any(self.of_bytes(mask)))

    def spoil(self) -> None:
        """Makes the elements uninitialised: NaN or, by the buffer's `poison`, arbitrary."""
        value = poison_value(self.dtype, self.buffer.poison or 0)
        if self.places is None:
            self.array.fill(value)
        else:
            self._flat()[self.places // self.dtype.itemsize] = value
        self.buffer.note_spoiled(self)

    # --- other views of the same bytes ------------------------------------------

    def slice(self, offsets, sizes, steps=None) -> View:
        """The box of `sizes` at `offsets`, in elements; the caller has checked the bounds."""
        if self.places is not None:
            where = tuple(
                slice(o, o + (n - 1) * s + 1 if n else o, s)
                for o, n, s in zip(offsets, sizes, steps or (1,) * len(sizes))
            )
            return self._scattered(self.places[where])
        offset = self.offset
        for start, stride in zip(offsets, self.strides):
            offset += start * stride
        strides = self.strides
        if steps is not None:
            strides = tuple(a * b for a, b in zip(strides, steps))
        return View(self.buffer, offset, tuple(sizes), strides, self.dtype, None, self.bits)

    def reshape(self, shape: tuple[int, ...]) -> View:
        """The same elements in row-major order under another shape."""
        if self.shape == shape:
            return self
        if self.places is not None:
            return self._scattered(self.places.reshape(shape))
        strides = reshaped_strides(self.shape, self.strides, shape)
        if strides is None:
            return self._scattered(self.byte_offsets().reshape(shape))
        return View(self.buffer, self.offset, shape, strides, self.dtype, None, self.bits)

    def transpose(self, permutation) -> View:
        """The dimensions in another order."""
        shape = tuple(self.shape[d] for d in permutation)
        if self.places is not None:
            return self._scattered(self.places.transpose(permutation))
        strides = tuple(self.strides[d] for d in permutation)
        return View(self.buffer, self.offset, shape, strides, self.dtype, None, self.bits)

    def scattered(self, places: np.ndarray, dtype: np.dtype) -> View:
        """Elements of any type at any byte offsets of the buffer."""
        return View(self.buffer, 0, places.shape, (), dtype, places)

    def _scattered(self, places: np.ndarray) -> View:
        return View(self.buffer, 0, places.shape, (), self.dtype, places, self.bits)

    def byte_offsets(self) -> np.ndarray:
        """Byte offset of every element."""
        if self.places is not None:
            return self.places
        places = np.full(self.shape, self.offset, np.int64)
        for axis, (extent, stride) in enumerate(zip(self.shape, self.strides)):
            line = np.arange(extent, dtype=np.int64) * stride
            places += line.reshape([-1 if d == axis else 1 for d in range(len(self.shape))])
        return places

    def at(self, where: tuple[np.ndarray, ...]) -> View:
        """The elements at arrays of indices, one per dimension from the first on."""
        if self.places is not None:
            return self._scattered(self.places[where])
        kept = len(where)
        inner = View(self.buffer, 0, self.shape[kept:], self.strides[kept:], self.dtype)
        outer = sum(i.astype(np.int64) * s for i, s in zip(where, self.strides)) + self.offset
        outer = np.asarray(outer).reshape(*np.shape(outer), *[1] * len(inner.shape))
        return self._scattered(outer + inner.byte_offsets())

    def on(self, buffer: Buffer) -> View:
        """The same place in another buffer of the same size."""
        return View(
            buffer, self.offset, self.shape, self.strides, self.dtype, self.places, self.bits
        )


def row_major(shape, itemsize: int) -> tuple[int, ...]:
    """Strides in bytes."""
    strides = []
    step = itemsize
    for extent in reversed(shape):
        strides.append(step)
        step *= extent
    return tuple(reversed(strides))


def reshaped_strides(shape, strides, new_shape) -> tuple[int, ...] | None:
    """The strides that show the same elements under another shape, None where none do."""
    if math.prod(shape) == 0:
        return (0,) * len(new_shape)
    runs: list[tuple[int, int]] = []  # (extent, stride) of dimensions that lie one in the other
    for extent, stride in zip(shape, strides):
        if extent == 1:
            continue
        if runs and runs[-1][1] == stride * extent:
            runs[-1] = (runs[-1][0] * extent, stride)
        else:
            runs.append((extent, stride))
    left, stride = runs.pop() if runs else (1, 1)
    result = []
    for extent in reversed(new_shape):
        if extent > 1 and left == 1:
            left, stride = runs.pop()
        if left % extent:
            return None
        result.append(stride)
        left //= extent
        stride *= extent
    return tuple(reversed(result))


@functools.cache
def poison_value(dtype: np.dtype, poison: int) -> Any:
    """What uninitialised memory holds: NaN for poison 0, else a value that differs by poison."""
    if dtype == np.bool_:
        return bool(poison & 1)
    if is_float(dtype):
        value = float("nan") if poison == 0 else 3.0 + poison % 13
        return np.asarray(value, np.float32).astype(dtype)[()]
    if dtype.kind == "V":
        return np.asarray((poison * 3 + 1) % 4, np.int8).astype(dtype)[()]
    pattern = bytes((byte + poison * 29) % 256 for byte in _INTEGER_POISON) * 2
    return np.frombuffer(pattern[: dtype.itemsize], dtype)[0]
