"""Operations that make one memory reference from another, by name."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple

from ..jax_compat import ir
from .indices import Index, plus, times
from .memory import ZERO, Box, Resource, Span
from .types import DYNAMIC, element_bits

if TYPE_CHECKING:
    from .buffers import Buffers

ORIGIN = Index(ZERO, 0)

type Shape = tuple[int | None, ...]


class Place(NamedTuple):
    """Where a reference points to.

    Attributes:
      resource: the buffer, or a set of buffers.
      box: all that it may reach of it; None for all of it.
      dims: for each dimension of a memref the box's span that indexing it
        narrows, None where indexing tells nothing.
      position: of a pointer, in bytes from the buffer's start; None if unknown.
    """

    resource: Resource
    box: Box | None
    dims: tuple[int | None, ...] = ()
    position: Index | None = None


def whole(resource: Resource, shape: Shape) -> Place:
    """All of a buffer, indexed by its own dimensions."""
    spans = tuple(None if n is None else Span(ZERO, 0, n) for n in shape)
    box = Box(shape, spans)
    return Place(resource, box, tuple(range(len(spans))), ORIGIN)


def tensor_memory(resource: Resource, shape: Shape, column: int | None) -> Place:
    """Tensor memory of that shape from `column` on, in columns of 32 bits.

    An element takes at most one column, and rows beyond 128 take further ones.
    """
    rows, columns = shape
    if column is None or rows is None or columns is None:
        return Place(resource, None)
    extent = columns * -(-rows // 128)
    return Place(resource, Box("columns", (Span(ZERO, column, column + extent),)))


def extent(place: Place, size: int | None) -> Box | None:
    """The box that accessing all of `place`, `size` bytes if it is a pointer, touches."""
    if place.box is not None or place.position is None or size is None:
        return place.box
    terms, start = place.position
    return Box("bytes", (Span(terms, start, start + size),))


def sliced(
    place: Place,
    offsets: Sequence[Index | None],
    sizes: Sequence[int | None],
    strides: Sequence[int],
) -> Place:
    """The part of `place` from `offsets` on, one entry per dimension."""
    if place.box is None or len(place.dims) != len(offsets):
        return place._replace(position=None)
    spans, dims = list(place.box.spans), list(place.dims)
    for d, (k, offset, size, stride) in enumerate(zip(place.dims, offsets, sizes, strides)):
        old = None if k is None else spans[k]
        if k is None or old is None:
            continue
        # A symbolic offset would hide the bounds of a part of a buffer.
        narrowed = (old.terms, old.start, old.stop) != (ZERO, 0, _size(place.box, k))
        if offset is None or size is None or stride < 1 or (offset.terms.symbols and narrowed):
            dims[d] = None
            continue
        start = plus(Index(old.terms, old.start), offset)
        reach = (size - 1) * stride + 1 if size else 0
        spans[k] = Span(start.terms, start.constant, start.constant + reach)
        if stride != 1:
            dims[d] = None
    moved = any(o is None or o.terms.symbols or o.constant for o in offsets)
    position = None if moved else place.position
    return Place(place.resource, Box(place.box.coordinates, tuple(spans)), tuple(dims), position)


def _size(box: Box, span: int) -> int | None:
    return box.coordinates[span] if isinstance(box.coordinates, tuple) else None


def _shape(buffers: Buffers, value: ir.Value) -> Shape:
    type_ = buffers.memory_type(value)
    assert type_ is not None and type_.shape is not None, f"{value.type} is no memref"
    return type_.shape


View = Callable[["Buffers", ir.Operation, ir.Value, Place], Place]


def _same(buffers: Buffers, op: ir.Operation, value: ir.Value, place: Place) -> Place:
    return place


def _lost(buffers: Buffers, op: ir.Operation, value: ir.Value, place: Place) -> Place:
    """Some of the same box, by indices that mean something else."""
    return Place(place.resource, place.box, (None,) * len(place.dims))


def _anywhere(buffers: Buffers, op: ir.Operation, value: ir.Value, place: Place) -> Place:
    """Some of the same buffer, maybe outside of the box."""
    return Place(place.resource, None)


def _reshaped(buffers: Buffers, op: ir.Operation, value: ir.Value, place: Place) -> Place:
    """Leading dimensions of equal size keep their meaning in row-major order."""
    before, after = buffers.memory_type(op.operands[0]), buffers.memory_type(value)
    if after is None or after.shape is None or before is None or before.shape is None:
        return place
    dims: list[int | None] = [None] * len(after.shape)
    if before.bytes is not None and before.bytes == after.bytes:
        for d, (p, q) in enumerate(zip(before.shape, after.shape)):
            if p != q or d >= len(place.dims):
                break
            dims[d] = place.dims[d]
    return Place(place.resource, place.box, tuple(dims), place.position)


def _kept(sizes: Sequence[int | None], result: Sequence[int | None]) -> list[int] | None:
    """Which dimensions of `sizes` stay when unit dimensions are dropped to get `result`."""
    kept: list[int] = []
    for d, size in enumerate(sizes):
        if len(kept) < len(result) and result[len(kept)] == size:
            kept.append(d)
        elif size != 1:
            return None
    return kept if len(kept) == len(result) else None


def _dropped(place: Place, sizes: Sequence[int | None], result: Sequence[int | None]) -> Place:
    kept = _kept(sizes, result)
    if kept is None or len(place.dims) != len(sizes):
        return place._replace(dims=(None,) * len(result))
    return place._replace(dims=tuple(place.dims[d] for d in kept))


def _squeezed(buffers: Buffers, op: ir.Operation, value: ir.Value, place: Place) -> Place:
    return _dropped(place, _shape(buffers, op.operands[0]), _shape(buffers, value))


def _subview(buffers: Buffers, op: ir.Operation, value: ir.Value, place: Place) -> Place:
    attributes = op.attributes
    dynamic = iter(list(op.operands)[1:])

    def entries(name: str) -> list[Index]:
        static = attributes[name]
        return [
            buffers.indices.index(next(dynamic)) if n == DYNAMIC else Index(ZERO, n) for n in static
        ]

    offsets, sizes, strides = map(entries, ("static_offsets", "static_sizes", "static_strides"))
    lengths = [None if n.terms.symbols else n.constant for n in sizes]
    steps = [0 if n.terms.symbols else n.constant for n in strides]
    return _dropped(sliced(place, offsets, lengths, steps), lengths, _shape(buffers, value))


def _memref_slice(buffers: Buffers, op: ir.Operation, value: ir.Value, place: Place) -> Place:
    shape = _shape(buffers, value)
    offsets = [buffers.indices.index(v) for v in list(op.operands)[1 : 1 + len(shape)]]
    return sliced(place, offsets, shape, [1] * len(shape))


def _cast(buffers: Buffers, op: ir.Operation, value: ir.Value, place: Place) -> Place:
    if len(op.operands) != 1:
        return Place(buffers.everything, None)
    before, after = buffers.memory_type(op.operands[0]), buffers.memory_type(value)
    if after is None or before is None or before.shape == after.shape:
        return place
    if before.shape is not None and after.shape is not None:
        return _reshaped(buffers, op, value, place)
    return place


def _slice_tmem(buffers: Buffers, op: ir.Operation, value: ir.Value, place: Place) -> Place:
    if place.box is None or place.box.coordinates != "columns":
        return Place(place.resource, None)
    (columns,) = place.box.spans
    if columns is None:
        return Place(place.resource, None)
    column = columns.start + op.attributes["offset"].value
    return tensor_memory(place.resource, _shape(buffers, value), column)


def _extractvalue(buffers: Buffers, op: ir.Operation, value: ir.Value, place: Place) -> Place:
    """A field of a memref descriptor: allocated pointer, aligned pointer, offset, ..."""
    position = list(op.attributes["position"])
    source = buffers.memory_type(op.operands[0])
    if position in ([0], [1]) and source is not None:
        return Place(place.resource, None, position=place.position)
    return Place(place.resource, None)


def _getelementptr(buffers: Buffers, op: ir.Operation, value: ir.Value, place: Place) -> Place:
    constants = list(op.attributes["rawConstantIndices"])
    bits = element_bits(op.attributes["elem_type"].value)
    if place.position is None or len(constants) != 1 or bits is None:
        return Place(place.resource, None)
    operands = list(op.operands)
    offset = buffers.indices.index(operands[1]) if len(operands) > 1 else Index(ZERO, constants[0])
    return Place(
        place.resource, None, position=plus(place.position, times(offset, max(1, bits // 8)))
    )


def _arithmetic(buffers: Buffers, op: ir.Operation, value: ir.Value, place: Place) -> Place:
    """An address as an integer: base plus offset."""
    position = place.position
    operands = list(op.operands)
    if len(operands) == 2 and position is not None:
        position = plus(position, buffers.indices.index(operands[1]))
    return Place(place.resource, None, position=position)


VIEWS: dict[str, View] = {
    "memref.subview": _subview,
    "memref.cast": _same,
    "memref.memory_space_cast": _same,
    "memref.assume_alignment": _same,
    "memref.expand_shape": _reshaped,
    "memref.collapse_shape": _reshaped,
    "memref.reshape": _reshaped,
    "memref.transpose": _lost,
    "memref.view": _anywhere,
    "memref.reinterpret_cast": _anywhere,
    "memref.extract_strided_metadata": _anywhere,
    "memref.extract_aligned_pointer_as_index": _anywhere,
    "builtin.unrealized_conversion_cast": _cast,
    "tpu.memref_slice": _memref_slice,
    "tpu.shared_memref_slice": _anywhere,
    "tpu.memref_squeeze": _squeezed,
    "tpu.memref_reshape": _reshaped,
    "tpu.memref_bitcast": _reshaped,
    "tpu.reinterpret_cast": _reshaped,
    "tpu.annotate": _same,
    "tpu.assume_layout": _same,
    "tpu.erase_memref_layout": _same,
    "mosaic_gpu.reinterpret_cast": _reshaped,
    "mosaic_gpu.with_transforms": _same,
    "mosaic_gpu.tmem_layout_cast": _same,
    "mosaic_gpu.get_cluster_ref": _same,
    "mosaic_gpu.slice_tmem": _slice_tmem,
    "llvm.extractvalue": _extractvalue,
    "llvm.getelementptr": _getelementptr,
    "llvm.ptrtoint": _arithmetic,
    "llvm.inttoptr": _arithmetic,
    "llvm.add": _arithmetic,
    "llvm.addrspacecast": _arithmetic,
    "llvm.bitcast": _anywhere,
    "nvvm.mapa": _anywhere,
    "tt.addptr": _anywhere,
    "tt.splat": _anywhere,
    "tt.broadcast": _anywhere,
    "tt.expand_dims": _anywhere,
    "tt.reshape": _anywhere,
    "tt.trans": _anywhere,
    "tt.bitcast": _anywhere,
    "tt.make_tensor_descriptor": _anywhere,
}
