"""`tpu` operations of the matrix unit."""

from __future__ import annotations

import re

import numpy as np

from ...errors import Unsupported
from ..element_types import is_float
from ..findings import MISUSE, Fault, Finding
from ..machine import Thread
from ..meaning import effect, value
from ..values import dtype_of_value, flag, integers, vector_type


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


# --- convolution ----------------------------------------------------------------------------


@value("tpu.conv")
def convolution(op, scope):
    """``accumulator + lhs * rhs``: a sum of shifted products, one for each tap of the kernel.

    Dimension numbers: lhs batch, feature and spatial dimensions; rhs input feature,
    output feature and spatial dimensions; the result's batch, feature and spatial ones.
    """
    lhs, rhs, result = _convolution_layouts(str(op.attributes["dimension_numbers"]))
    strides, padding, lhs_dilation, rhs_dilation = (
        [int(n) for n in op.attributes[name]]
        for name in ("window_strides", "padding", "lhs_dilation", "rhs_dilation")
    )
    reversed_axes = [bool(b) for b in op.attributes["window_reversal"]]
    groups = {
        name: int(op.attributes[name].value)
        for name in ("feature_group_count", "batch_group_count")
        if name in op.attributes
    }
    if groups.get("batch_group_count", 1) != 1:
        raise Unsupported(f"{scope.site(op)} with batch groups")
    feature_groups = groups.get("feature_group_count", 1)
    dtype = dtype_of_value(op.results[0])
    wide = np.float32 if is_float(dtype) else np.float64
    spatial = range(len(strides))

    def run(a, b, accumulator):
        a = _dilated(a.transpose(lhs).astype(wide), lhs_dilation, 2)
        a = np.pad(a, [(0, 0), (0, 0), *zip(padding[::2], padding[1::2])])
        b = _dilated(b.transpose(rhs).astype(wide), rhs_dilation, 2)
        b = b[
            (slice(None), slice(None), *(slice(None, None, -1 if r else 1) for r in reversed_axes))
        ]
        extents = [(a.shape[2 + d] - b.shape[2 + d]) // strides[d] + 1 for d in spatial]
        total = np.zeros((a.shape[0], b.shape[1], *extents), wide)
        outputs, inputs = b.shape[1] // feature_groups, b.shape[0]
        for tap in np.ndindex(*b.shape[2:]):
            window = a[
                (
                    slice(None),
                    slice(None),
                    *(
                        slice(tap[d], tap[d] + (extents[d] - 1) * strides[d] + 1, strides[d])
                        for d in spatial
                    ),
                )
            ]
            weights = b[(slice(None), slice(None), *tap)]
            for group in range(feature_groups):
                columns = slice(group * outputs, (group + 1) * outputs)
                rows = slice(group * inputs, (group + 1) * inputs)
                total[:, columns] += np.einsum(
                    "nc...,co->no...", window[:, rows], weights[:, columns], optimize=True
                )
        return (total.transpose(np.argsort(result)) + accumulator.astype(wide)).astype(dtype)

    return run


def _convolution_layouts(text: str) -> list[list[int]]:
    """For each of lhs, rhs and result: its dimensions in the order batch, feature, spatial."""
    inner = text.partition("<")[2]
    parts = re.findall(r"(\d+), (\d+), \[([\d, ]*)\]", inner)
    return [
        [int(a), int(b), *(int(n) for n in rest.split(",") if n.strip())] for a, b, rest in parts
    ]


def _dilated(a: np.ndarray, factors: list[int], first: int) -> np.ndarray:
    """The array with ``factor - 1`` zeros between neighbours along each spatial dimension."""
    if all(factor == 1 for factor in factors):
        return a
    shape = list(a.shape)
    where: list[slice] = [slice(None)] * first
    for axis, factor in enumerate(factors, first):
        shape[axis] = (a.shape[axis] - 1) * factor + 1
        where.append(slice(None, None, factor))
    result = np.zeros(shape, a.dtype)
    result[tuple(where)] = a
    return result


# --- the unit's registers ---------------------------------------------------------------------


def _unit(thread: Thread, op) -> dict:
    """What the thread's matrix unit holds: staged and current operand, sums, results."""
    units = thread.place.setdefault("matrix units", {})
    number = int(op.attributes["mxu_index"].value)
    return units.setdefault(number, {"staged": {}, "sums": {}, "results": []})


def _misuse(thread: Thread, site, what: str) -> Fault:
    return Fault(Finding(MISUSE, f"{site}: {what}, by {thread.where()}", (site,)))


@effect("tpu.matmul_push_rhs")
def push_rhs(op, scope):
    site = scope.site(op)
    register = (
        int(op.attributes["staging_register"].value) if "staging_register" in op.attributes else 0
    )
    transposed = flag(op, "transpose")

    def run(thread: Thread, rhs):
        staged = _unit(thread, op)["staged"]
        if register in staged:
            raise _misuse(thread, site, f"staging register {register} still holds an operand")
        staged[register] = rhs.T if transposed else rhs

    return run


def _product(op, site):
    """A function that multiplies by the unit's operand, after loading a staged one."""
    register = (
        int(op.attributes["load_staged_rhs"].value) if "load_staged_rhs" in op.attributes else None
    )

    def run(thread: Thread, unit: dict, lhs):
        if register is not None:
            if register not in unit["staged"]:
                raise _misuse(thread, site, f"staging register {register} holds no operand")
            unit["operand"] = unit["staged"].pop(register)
        if "operand" not in unit:
            raise _misuse(thread, site, "the matrix unit holds no operand")
        return lhs.astype(np.float32) @ unit["operand"].astype(np.float32)

    return run


@effect("tpu.matmul_acc_lhs")
def accumulate_lhs(op, scope):
    product = _product(op, scope.site(op))
    address = int(op.attributes["acc"].value)

    def run(thread: Thread, lhs):
        unit = _unit(thread, op)
        result = product(thread, unit, lhs)
        if address in unit["sums"]:
            result = result + unit["sums"][address]
        unit["sums"][address] = result

    return run


@effect("tpu.matmul_lhs_fifo")
def enqueue_lhs(op, scope):
    product = _product(op, scope.site(op))

    def run(thread: Thread, lhs):
        unit = _unit(thread, op)
        unit["results"].append(product(thread, unit, lhs))

    return run


@effect("tpu.matmul_pop")
def pop_sum(op, scope):
    """Reads an accumulator and zeroes it."""
    site = scope.site(op)
    shape, dtype = vector_type(op.results[0].type)
    address = int(op.attributes["acc"].value)

    def run(thread: Thread):
        sums = _unit(thread, op)["sums"]
        if address not in sums or sums[address].shape != shape:
            raise _misuse(thread, site, f"accumulator {address} holds no sum of {list(shape)}")
        return sums.pop(address).astype(dtype)

    return run


@effect("tpu.matmul_pop_fifo")
def pop_result(op, scope):
    site = scope.site(op)
    shape, dtype = vector_type(op.results[0].type)

    def run(thread: Thread):
        results = _unit(thread, op)["results"]
        if not results or results[0].shape != shape:
            raise _misuse(thread, site, f"the oldest result is none of {list(shape)}")
        return results.pop(0).astype(dtype)

    return run
