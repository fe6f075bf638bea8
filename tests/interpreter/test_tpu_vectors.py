"""`tpu` operations on vectors against NumPy."""

from __future__ import annotations

import inspect
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from jax.experimental.mosaic.dialects import tpu

from tests.interpreter.tpu_kernels import evaluate

BF16 = ml_dtypes.bfloat16


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(0)


def floats(rng, *shape) -> np.ndarray:
    return rng.standard_normal(shape, np.float32)


def whole(rng, *shape, low=-100, high=100, dtype: Any = np.int32) -> np.ndarray:
    return rng.integers(low, high, shape).astype(dtype)


# --- moving -----------------------------------------------------------------------------------


def test_iota_counts_along_the_dimensions_in_their_order():
    code = "%r = tpu.iota {dimensions = array<i32: 2, 0>} : vector<4x3x2xi32>"
    expected = np.array([[[0, 4]] * 3, [[1, 5]] * 3, [[2, 6]] * 3, [[3, 7]] * 3])
    np.testing.assert_array_equal(evaluate(code, [], "int32[4,3,2]"), expected)


@pytest.mark.parametrize("amount", [0, 3, 127, -5])
def test_rotate_moves_an_element_to_a_higher_index(rng, amount):
    a = floats(rng, 8, 128)
    code = f"""%n = arith.constant {amount} : i32
    %r = tpu.dynamic_rotate %a0 by %n dim 1 : vector<8x128xf32>, i32 -> vector<8x128xf32>"""
    np.testing.assert_array_equal(evaluate(code, [a], "float32[8,128]"), np.roll(a, amount, 1))


def test_strided_rotate_goes_further_with_each_row(rng):
    a = floats(rng, 8, 128)
    code = """%n = arith.constant 2 : i32
    %r = tpu.dynamic_rotate %a0 by %n dim 1 {stride = 3 : si32, stride_dimension = 0 : si32}
      : vector<8x128xf32>, i32 -> vector<8x128xf32>"""
    expected = np.stack([np.roll(row, 2 + 3 * n) for n, row in enumerate(a)])
    np.testing.assert_array_equal(evaluate(code, [a], "float32[8,128]"), expected)


def test_gather_is_take_along_axis(rng):
    a, index = floats(rng, 8, 128), whole(rng, 8, 128, low=0, high=128)
    code = """%r = tpu.dynamic_gather %a0[%a1] in [1]
      : vector<8x128xf32>, vector<8x128xi32> -> vector<8x128xf32>"""
    expected = np.take_along_axis(a, index, 1)
    np.testing.assert_array_equal(evaluate(code, [a, index], "float32[8,128]"), expected)


def test_gather_over_two_dimensions_counts_them_as_one(rng):
    a, index = floats(rng, 2, 4, 8), whole(rng, 2, 4, 8, low=0, high=32)
    code = """%r = tpu.dynamic_gather %a0[%a1] in [1, 2]
      : vector<2x4x8xf32>, vector<2x4x8xi32> -> vector<2x4x8xf32>"""
    lines = a.reshape(2, 32)
    expected = np.stack([lines[n][index[n]] for n in range(2)])
    np.testing.assert_array_equal(evaluate(code, [a, index], "float32[2,4,8]"), expected)


def test_concatenate_and_transpose(rng):
    a, b = floats(rng, 8, 128), floats(rng, 8, 128)
    code = """%c = tpu.concatenate %a0, %a1 in 1
      : vector<8x128xf32>, vector<8x128xf32> -> vector<8x256xf32>
    %r = tpu.transpose %c, [1, 0] : vector<8x256xf32> -> vector<256x8xf32>"""
    np.testing.assert_array_equal(
        evaluate(code, [a, b], "float32[256,8]"), np.concatenate([a, b], 1).T
    )


# --- packing ----------------------------------------------------------------------------------


def test_bitcast_puts_what_shares_a_word_into_neighbouring_rows(rng):
    words = whole(rng, 8, 128, low=0, high=2**31 - 1)
    code = "%r = tpu.bitcast %a0 : vector<8x128xi32> -> vector<16x128xi16>"
    halves = evaluate(code, [words], "int16[16,128]")
    low, high = halves[::2].view(np.uint16), halves[1::2].view(np.uint16)
    np.testing.assert_array_equal(low.astype(np.int64) | high.astype(np.int64) << 16, words)


def test_bitcast_there_and_back_is_the_same(rng):
    a = floats(rng, 16, 128).astype(BF16)
    code = """%w = tpu.bitcast %a0 : vector<16x128xbf16> -> vector<8x128xi32>
    %r = tpu.bitcast %w : vector<8x128xi32> -> vector<16x128xbf16>"""
    np.testing.assert_array_equal(evaluate(code, [a], "bfloat16[16,128]"), a)


def test_bitcast_of_four_bit_integers(rng):
    a = whole(rng, 16, 128, low=-8, high=8, dtype=ml_dtypes.int4)
    code = """%w = tpu.bitcast %a0 : vector<16x128xi4> -> vector<2x128xi32>
    %r = tpu.bitcast %w : vector<2x128xi32> -> vector<16x128xi4>"""
    np.testing.assert_array_equal(evaluate(code, [a], "int4[16,128]"), a)


def test_pack_elementwise_puts_the_first_source_lowest(rng):
    a, b = floats(rng, 8, 128), floats(rng, 8, 128)
    code = """%r = tpu.pack_elementwise %a0, %a1 {target_type = bf16}
      : vector<8x128xf32>, vector<8x128xf32> -> vector<8x128xi32>"""
    packed = evaluate(code, [a, b], "int32[8,128]").view(np.uint32)
    np.testing.assert_array_equal((packed & 0xFFFF).astype(np.uint16).view(BF16), a.astype(BF16))
    np.testing.assert_array_equal((packed >> 16).astype(np.uint16).view(BF16), b.astype(BF16))


@pytest.mark.parametrize("index", [0, 1])
def test_unpack_elementwise_undoes_it(rng, index):
    parts = [floats(rng, 8, 128), floats(rng, 8, 128)]
    code = f"""%p = tpu.pack_elementwise %a0, %a1 {{target_type = bf16}}
      : vector<8x128xf32>, vector<8x128xf32> -> vector<8x128xi32>
    %r = tpu.unpack_elementwise %p, {index} {{source_type = bf16}}
      : vector<8x128xi32> -> vector<8x128xf32>"""
    expected = parts[index].astype(BF16).astype(np.float32)
    np.testing.assert_array_equal(evaluate(code, parts, "float32[8,128]"), expected)


def test_stochastic_rounding_goes_both_ways_as_often_as_it_should(rng):
    a = np.full((64, 128), 1 + 2**-9, np.float32)  # a quarter of the way between neighbours
    bits = rng.integers(-(2**31), 2**31, (64, 128)).astype(np.int32)
    code = """%r = tpu.stochastic_convert %a0, %a1
      : vector<64x128xf32>, vector<64x128xi32> -> vector<64x128xbf16>"""
    rounded = evaluate(code, [a, bits], "bfloat16[64,128]").astype(np.float32)
    assert set(np.unique(rounded)) == {1.0, 1 + 2**-7}
    assert 0.2 < np.mean(rounded > 1) < 0.3


def test_stochastic_rounding_of_what_needs_none(rng):
    a = floats(rng, 8, 128).astype(ml_dtypes.float8_e5m2).astype(np.float32)
    bits = rng.integers(-(2**31), 2**31, (8, 128)).astype(np.int32)
    code = """%r = tpu.stochastic_convert %a0, %a1
      : vector<8x128xf32>, vector<8x128xi32> -> vector<8x128xf8E5M2>"""
    result = evaluate(code, [a, bits], "float8_e5m2[8,128]")
    np.testing.assert_array_equal(result.astype(np.float32), a)


# --- reductions and products ------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["arg_max", "arg_min"])
def test_reduce_index_is_the_first_of_equal_ones(kind):
    a = np.array([[1, 7, 7, -3, -3, 0, 2, 1]] * 8, np.float32)
    code = f"""%r = tpu.reduce_index %a0 {{axis = 1 : i32, kind = #tpu.reduction_kind<{kind}>}}
      : vector<8x8xf32> -> vector<8xi32>"""
    expected = {"arg_max": 1, "arg_min": 3}[kind]
    np.testing.assert_array_equal(evaluate(code, [a], "int32[8]"), [expected] * 8)


def test_weird_is_infinite_or_no_number():
    a = np.array([[1, np.inf, -np.inf, np.nan, 0, -1, 3e38, 2]], np.float32)
    code = """%w = tpu.weird %a0 : vector<1x8xf32> -> vector<1x8xi1>
    %r = arith.extui %w : vector<1x8xi1> to vector<1x8xi32>"""
    np.testing.assert_array_equal(evaluate(code, [a], "int32[1,8]"), [[0, 1, 1, 1, 0, 0, 0, 0]])


def _hinted(code: str) -> str:
    """The code with an attribute that newer versions require."""
    hint = "transpose_lhs_hint = false" if _takes("matmul", "transpose_lhs_hint") else ""
    return code.replace(", HINT", f", {hint}" if hint else "").replace("HINT", hint)


def _takes(operation: str, attribute: str) -> bool:
    return attribute in inspect.signature(getattr(tpu, operation)).parameters


def test_matmul_adds_to_the_accumulator(rng):
    a, b, c = floats(rng, 8, 16), floats(rng, 16, 32), floats(rng, 8, 32)
    code = """%r = tpu.matmul %a0, %a1, %a2 {dimension_numbers =
      #tpu.dot_dimension_numbers<[1], [0], [0], [1], [0, 0, 1, 1], [], []>, HINT}
      : vector<8x16xf32>, vector<16x32xf32>, vector<8x32xf32> -> vector<8x32xf32>"""
    np.testing.assert_allclose(
        evaluate(_hinted(code), [a, b, c], "float32[8,32]"), a @ b + c, rtol=1e-5
    )


def test_matmul_of_integers_is_exact(rng):
    a = whole(rng, 8, 512, low=-128, high=128, dtype=np.int8)
    b = whole(rng, 512, 8, low=-128, high=128, dtype=np.int8)
    zero = np.zeros((8, 8), np.int32)
    code = """%r = tpu.matmul %a0, %a1, %a2 {HINT} : vector<8x512xi8>, vector<512x8xi8>, vector<8x8xi32>
      -> vector<8x8xi32>"""
    expected = a.astype(np.int64) @ b.astype(np.int64)
    np.testing.assert_array_equal(evaluate(_hinted(code), [a, b, zero], "int32[8,8]"), expected)


# --- the SparseCore's -------------------------------------------------------------------------


def sparse(code: str, arrays, result: str) -> np.ndarray:
    return evaluate(code, arrays, result, core="sc_vector_subcore", target="tpu7x")


def test_scan_starts_at_the_first_enabled_lane():
    a = np.array([1, 2, 3, 4], np.int32)
    on = np.array([0, 1, 0, 1], np.int32)
    code = """%z = arith.constant dense<0> : vector<4xi32>
    %m = arith.cmpi ne, %a1, %z : vector<4xi32>
    %r = "tpu.scan"(%a0, %m) <{kind = #tpu.reduction_kind<sum>, dimension = 0 : i64}>
      : (vector<4xi32>, vector<4xi1>) -> vector<4xi32>"""
    if not _takes("scan", "dimension"):
        code = code.replace(", dimension = 0 : i64", "")
    np.testing.assert_array_equal(sparse(code, [a, on], "int32[4]")[1:], [2, 2, 6])


def test_scan_count_counts_what_occurred_so_far():
    a = np.array([5, 7, 5, 5, 7, 9, 5, 1], np.int32)
    on = np.array([1, 1, 0, 1, 1, 1, 1, 0], np.int32)
    code = """%z = arith.constant dense<0> : vector<8xi32>
    %m = arith.cmpi ne, %a1, %z : vector<8xi32>
    %last, %r = tpu.scan_count mask(%m : vector<8xi1>) value(%a0 : vector<8xi32>)
      : vector<8xi1>, vector<8xi32>"""
    np.testing.assert_array_equal(sparse(code, [a, on], "int32[8]"), [1, 1, 1, 2, 2, 1, 3, 1])
    code = code.replace("%last, %r", "%last, %n") + (
        "\n%r = arith.extui %last : vector<8xi1> to vector<8xi32>"
    )
    np.testing.assert_array_equal(sparse(code, [a, on], "int32[8]"), [0, 0, 0, 0, 1, 1, 1, 0])


def test_sort_is_stable_and_puts_masked_lanes_last():
    keys = np.array([3, 1, 2, 1, 0, 3], np.int32)
    values = np.arange(6, dtype=np.int32)
    on = np.array([1, 1, 1, 1, 0, 1], np.int32)
    code = """%z = arith.constant dense<0> : vector<6xi32>
    %m = arith.cmpi ne, %a2, %z : vector<6xi32>
    %valid, %k, %r = tpu.sort %a0, %a1 masked %m
      : (vector<6xi32>, vector<6xi32>, vector<6xi1>) -> (vector<6xi1>, vector<6xi32>, vector<6xi32>)"""
    expected = [1, 3, 2, 0, 5, 4]
    np.testing.assert_array_equal(sparse(code, [keys, values, on], "int32[6]"), expected)


@pytest.mark.parametrize(("kind", "expected"), [("sum", 3), ("find_first_set", 2)])
def test_all_reduce_of_a_mask(kind, expected):
    on = np.array([0, 0, 1, 0, 1, 1, 0, 0], np.int32)
    code = f"""%z = arith.constant dense<0> : vector<8xi32>
    %m = arith.cmpi ne, %a0, %z : vector<8xi32>
    %r = tpu.all_reduce %m {{dim = 0 : i64, kind = #tpu.reduction_kind<{kind}>}}
      : vector<8xi1> -> vector<8xi32>"""
    np.testing.assert_array_equal(sparse(code, [on], "int32[8]"), [expected] * 8)


@pytest.mark.parametrize("pack_format", ["interleaved", "compressed"])
def test_pack_and_unpack_subelements(rng, pack_format):
    a, b = floats(rng, 16), floats(rng, 16)
    shape = "32" if pack_format == "interleaved" else "16x2"
    packing = f"pack_format = #tpu.pack_format<{pack_format}>"
    code = f"""%p = tpu.pack_subelements %a0, %a1 {{{packing}, positions = array<i32: 0, 1>}}
      : vector<16xf32>, vector<16xf32> -> vector<{shape}xbf16>
    %r = tpu.unpack_subelements %p, 1 {{{packing}}} : vector<{shape}xbf16> -> vector<16xf32>"""
    expected = b.astype(BF16).astype(np.float32)
    np.testing.assert_array_equal(sparse(code, [a, b], "float32[16]"), expected)
