"""References whose elements are made of narrower ones that do not lie side by side."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from .memory import Buffer, View


class WideView(View):
    """An array of words, each made of elements of another view, the lowest bits first.

    TPU memory holds two rows of 16-bit elements in one row of 32-bit words; ours holds
    them one after the other.

    Attributes:
      pieces: the narrower elements, with those of one word along its last dimension.
    """

    __slots__ = ("pieces",)

    def __init__(self, pieces: View, dtype: np.dtype):
        shape = pieces.shape[:-1]
        super().__init__(pieces.buffer, pieces.offset, shape, pieces.strides[:-1], dtype)
        self.pieces = pieces
        self.places = pieces.places

    @property
    def array(self) -> np.ndarray:
        """The pieces, which cover the same bytes."""
        return self.pieces.array

    def bounds(self) -> tuple[int, int]:
        return self.pieces.bounds()

    def layout(self) -> tuple:
        return self.pieces.layout()

    def of_bytes(self, per_byte: np.ndarray) -> np.ndarray:
        return self.pieces.of_bytes(per_byte).reshape(*self.shape, self.dtype.itemsize)

    def mark_bytes(self, per_byte: np.ndarray, value: bool) -> None:
        self.pieces.mark_bytes(per_byte, value)

    def readable(self) -> np.ndarray:
        return self.read()

    def read(self) -> np.ndarray:
        parts = np.ascontiguousarray(self.pieces.read())
        return parts.view(self.dtype).reshape(self.shape)

    def write(self, values: Any) -> None:
        words = np.ascontiguousarray(np.broadcast_to(np.asarray(values, self.dtype), self.shape))
        self.pieces.write(words.reshape(*self.shape, 1).view(self.pieces.dtype))

    def spoil(self) -> None:
        self.pieces.spoil()

    def slice(self, offsets, sizes, steps=None) -> View:
        more = None if steps is None else [*steps, 1]
        part = self.pieces.slice([*offsets, 0], [*sizes, self.pieces.shape[-1]], more)
        return WideView(part, self.dtype)

    def reshape(self, shape: tuple[int, ...]) -> View:
        return WideView(self.pieces.reshape((*shape, self.pieces.shape[-1])), self.dtype)

    def transpose(self, permutation: Sequence[int]) -> View:
        return WideView(self.pieces.transpose([*permutation, len(self.shape)]), self.dtype)

    def at(self, where: tuple[np.ndarray, ...]) -> View:
        return WideView(self.pieces.at(where), self.dtype)

    def on(self, buffer: Buffer) -> View:
        return WideView(self.pieces.on(buffer), self.dtype)

    def byte_offsets(self) -> np.ndarray:
        raise AssertionError("an element of this reference has no one place")


def as_type(view: View, dtype: np.dtype, shape: tuple[int, ...]) -> View:
    """The same memory as elements of another type, which change in number along rows.

    Rows are the dimension before the last; elements that share a word of 32 bits are
    neighbours in it.  Types are of a byte at least.
    """
    size, old = dtype.itemsize, view.dtype.itemsize
    if isinstance(view, WideView):
        if size == old:
            return WideView(view.pieces, dtype)
        if size != view.pieces.dtype.itemsize:
            return as_type(as_type(view, view.pieces.dtype, _rows(view, old)), dtype, shape)
        rank = len(view.shape)
        order = [*range(rank - 1), rank, rank - 1]
        narrow = view.pieces.transpose(order).reshape(shape)
        return _same_size(narrow, dtype)
    if size == old:
        return _same_size(view, dtype)
    if size > old:
        parts = size // old
        *lead, rows, columns = view.shape
        split = view.reshape((*lead, rows // parts, parts, columns))
        rank = len(split.shape)
        return WideView(split.transpose([*range(rank - 2), rank - 1, rank - 2]), dtype)
    parts = old // size
    places = view.byte_offsets()
    split = places[..., None, :] + (np.arange(parts) * size)[:, None]
    return view.scattered(split.reshape(shape), dtype)


def _rows(view: WideView, size: int) -> tuple[int, ...]:
    *lead, rows, columns = view.shape
    return (*lead, rows * size // view.pieces.dtype.itemsize, columns)


def _same_size(view: View, dtype: np.dtype) -> View:
    return View(view.buffer, view.offset, view.shape, view.strides, dtype, view.places)
