"""`tpu` operations on vectors."""

from __future__ import annotations

import re

import numpy as np

from ..element_types import is_float
from ..meaning import value
from ..values import dtype_of_value, flag, in_float32, integers, vector_type


@value("tpu.iota")
def iota(op, scope):
    """Counts along the dimensions, the last of them fastest."""
    shape, dtype = vector_type(op.results[0].type)
    axes = [int(n) for n in op.attributes["dimensions"]]
    counted = np.arange(int(np.prod([shape[a] for a in axes]))).reshape([shape[a] for a in axes])
    order = np.argsort(axes)
    counted = counted.transpose(order)
    sizes = [extent if axis in axes else 1 for axis, extent in enumerate(shape)]
    result = np.broadcast_to(counted.reshape(sizes).astype(dtype), shape)
    return lambda: result


@value("tpu.reciprocal")
def reciprocal(op, scope):
    """Exact also where the chip's is approximate."""
    return in_float32(lambda x: (1 / x).astype(x.dtype), dtype_of_value(op.results[0]))


@value("tpu.logistic")
def logistic(op, scope):
    return in_float32(lambda x: 1 / (1 + np.exp(-x)), dtype_of_value(op.results[0]))


@value("tpu.transpose")
def transpose(op, scope):
    permutation = [int(n) for n in op.attributes["permutation"]]
    return lambda a: a.transpose(permutation)


@value("tpu.concatenate")
def concatenate(op, scope):
    axis = int(op.attributes["dimension"].value)
    return lambda *parts: np.concatenate(parts, axis)


# --- matrix products ----------------------------------------------------------------------


@value("tpu.matmul")
def matmul(op, scope):
    """``accumulator + lhs @ rhs``, added up in float32, integers exactly.

    float32 operands are multiplied at full precision: what the matrix unit makes of
    them depends on the chip and on the `precision` attribute.
    """
    (left, _), (right, _) = (vector_type(v.type) for v in op.operands[:2])
    dtype = dtype_of_value(op.results[0])
    wide = np.float32 if is_float(dtype) else np.float64
    numbers = _dimension_numbers(op, len(left))
    equation = None if numbers is None else _equation(numbers, len(left), len(right))
    if equation is None or equation == "ab,bc->ac":
        product = np.matmul
    elif equation == "ab,cb->ac":
        product = lambda a, b: a @ b.T  # noqa: E731
    elif equation == "ba,bc->ac":
        product = lambda a, b: a.T @ b  # noqa: E731
    else:
        product = lambda a, b: np.einsum(equation, a, b, optimize=True)  # noqa: E731
    left_first, right_first = flag(op, "transpose_lhs"), flag(op, "transpose_rhs")

    def run(a, b, accumulator):
        a, b = a.astype(wide, copy=False), b.astype(wide, copy=False)
        if left_first:
            a = a.swapaxes(-1, -2)
        if right_first:
            b = b.swapaxes(-1, -2)
        return (product(a, b) + accumulator.astype(wide, copy=False)).astype(dtype, copy=False)

    return run


def _dimension_numbers(op, rank: int) -> list[list[int]] | None:
    if "dimension_numbers" not in op.attributes:
        return None
    lists = re.findall(r"\[([\d, ]*)\]", str(op.attributes["dimension_numbers"]))
    return [integers(text) if text.strip() else [] for text in lists]


def _equation(numbers: list[list[int]], left_rank: int, right_rank: int) -> str:
    left_sum, right_sum, _, _, order, left_batch, right_batch = numbers
    left = [chr(ord("a") + axis) for axis in range(left_rank)]
    right: list[str] = [""] * right_rank
    for a, b in zip([*left_sum, *left_batch], [*right_sum, *right_batch]):
        right[b] = left[a]
    fresh = iter(chr(ord("a") + left_rank + n) for n in range(right_rank))
    right = [letter or next(fresh) for letter in right]
    sides = (left, right)
    result = [sides[order[n]][order[n + 1]] for n in range(0, len(order), 2)]
    return f"{''.join(left)},{''.join(right)}->{''.join(result)}"
