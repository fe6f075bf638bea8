"""The `tt` dialect: reductions and scans, whose combination is a region over scalars."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ...errors import Unsupported
from ...jax_compat import ir
from ..element_types import is_float
from ..meaning import value
from ..values import dtype_of_value, flag, is_shaped
from .tt import integer

type Arrays = tuple[np.ndarray, ...]
type Combine = Callable[[Arrays, Arrays], Arrays]

# Combinations of one operation that NumPy reduces by itself.
_UFUNCS: dict[str, np.ufunc] = {
    "arith.addf": np.add,
    "arith.mulf": np.multiply,
    "arith.maximumf": np.maximum,
    "arith.minimumf": np.minimum,
    "arith.maxnumf": np.fmax,
    "arith.minnumf": np.fmin,
    "arith.addi": np.add,
    "arith.muli": np.multiply,
    "arith.maxsi": np.maximum,
    "arith.minsi": np.minimum,
    "arith.andi": np.bitwise_and,
    "arith.ori": np.bitwise_or,
    "arith.xori": np.bitwise_xor,
}


def _ufunc(op) -> np.ufunc | None:
    """The function that the region is, of its two arguments."""
    (block,) = op.regions[0].blocks
    operations = list(block.operations)
    if len(operations) != 2 or dtype_of_value(op.operands[0]) == np.bool_:
        return None
    combination = operations[0].operation
    if set(combination.operands) != set(block.arguments):
        return None
    return _UFUNCS.get(combination.name)


def _combine(op, scope) -> Combine:
    """The region as a function of arrays."""
    run = scope.region(_over_tensors(op, scope))
    alone = len(op.operands) == 1

    def combine(left: Arrays, right: Arrays) -> Arrays:
        result = run(None, *left, *right)
        return (result,) if alone else result

    return combine


def _over_tensors(op, scope) -> ir.Region:
    """A region that does to tensors what the operation's does to scalars."""
    (block,) = op.regions[0].blocks
    holder: Any = ir.Operation.create("builtin.module", regions=1, loc=op.location)
    with op.location:
        types = [_tensor(argument.type) for argument in block.arguments]
    made = holder.regions[0].blocks.append(*types, arg_locs=[op.location] * len(types))
    values = dict(zip(block.arguments, made.arguments))
    with op.location, ir.InsertionPoint(made):
        for view in block.operations:
            inner = view.operation
            if len(inner.regions) or not all(operand in values for operand in inner.operands):
                raise Unsupported(f"{scope.site(op)} with {scope.site(inner)} in it")
            copy = ir.Operation.create(
                inner.name,
                results=[_tensor(result.type) for result in inner.results],
                operands=[values[operand] for operand in inner.operands],
                attributes=_attributes(inner),
                loc=inner.location,
            )
            values.update(zip(inner.results, copy.results))
    return holder.regions[0]


def _tensor(type_: Any) -> ir.Type:
    """Of one element, which goes with any shape."""
    return ir.RankedTensorType.get([1], type_)


def _attributes(op: ir.Operation) -> dict[str, ir.Attribute]:
    attributes = {name: op.attributes[name] for name in op.attributes}
    if op.name == "arith.constant":
        type_ = _tensor(op.results[0].type)
        attributes["value"] = ir.DenseElementsAttr.get_splat(type_, attributes["value"])
    return attributes


def _wide(function: Callable[[np.ndarray], np.ndarray], dtype: np.dtype) -> Callable:
    """The function in float32 for narrower floats, and in the type itself for the rest."""
    if is_float(dtype) and dtype.itemsize < 4:
        return lambda a: np.asarray(function(a.astype(np.float32))).astype(dtype)
    return lambda a: np.asarray(function(a)).astype(dtype, copy=False)


def _scalar(array: np.ndarray, type_: Any) -> Any:
    """The value of a result: an array, or a scalar where only one element is left."""
    if is_shaped(type_):
        return array
    return array[()] if is_float(array.dtype) else array.item()


@value("tt.reduce")
def reduce(op, scope):
    axis = integer(op, "axis")
    types = [result.type for result in op.results]
    ufunc = _ufunc(op)
    if ufunc is not None:
        dtype = dtype_of_value(op.operands[0])
        run = _wide(lambda a: ufunc.reduce(a, axis=axis), dtype)
        return lambda a: _scalar(run(a), types[0])
    combine = _combine(op, scope)

    def pairwise(*sources: np.ndarray) -> Any:
        parts = tuple(np.moveaxis(source, axis, 0) for source in sources)
        while (count := len(parts[0])) > 1:
            even = count // 2 * 2
            combined = combine(
                tuple(part[0:even:2] for part in parts), tuple(part[1:even:2] for part in parts)
            )
            if even < count:
                combined = tuple(np.concatenate([c, p[even:]]) for c, p in zip(combined, parts))
            parts = combined
        results = [_scalar(part[0, ...], type_) for part, type_ in zip(parts, types)]
        return results[0] if len(results) == 1 else tuple(results)

    return pairwise


@value("tt.scan")
def scan(op, scope):
    axis, reverse = integer(op, "axis"), flag(op, "reverse")
    ufunc = _ufunc(op)
    if ufunc is not None:
        inclusive = _wide(lambda a: ufunc.accumulate(a, axis=axis), dtype_of_value(op.operands[0]))
    else:
        combine = _combine(op, scope)

    def doubling(sources: Arrays) -> Arrays:
        parts = tuple(np.moveaxis(source, axis, 0) for source in sources)
        distance, count = 1, len(parts[0])
        while distance < count:
            combined = combine(
                tuple(part[:-distance] for part in parts), tuple(part[distance:] for part in parts)
            )
            parts = tuple(np.concatenate([p[:distance], c]) for p, c in zip(parts, combined))
            distance *= 2
        return tuple(np.moveaxis(part, 0, axis) for part in parts)

    def run(*sources: np.ndarray) -> Any:
        if reverse:
            sources = tuple(np.flip(source, axis) for source in sources)
        results = (inclusive(*sources),) if ufunc is not None else doubling(sources)
        if reverse:
            results = tuple(np.flip(result, axis) for result in results)
        return results[0] if len(results) == 1 else results

    return run
