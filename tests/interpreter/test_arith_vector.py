"""`arith`, `math` and `vector` operations against NumPy."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from tests.interpreter.tpu_kernels import evaluate

EXTREMES = np.array([[-(2**31), 2**31 - 1, 0, 1, -1, 7, -7, 123456]], np.int32)
DIVISORS = np.array([[-1, 3, 0, -3, 2, -2, 2, 1000]], np.int32)
SHIFTS = np.array([[0, 1, 31, 32, 40, -1, 5, 8]], np.int32)


def binary(name: str, a: np.ndarray, b: np.ndarray, element: str) -> np.ndarray:
    vector = f"vector<{a.shape[0]}x{a.shape[1]}x{element}>"
    shape = ",".join(map(str, a.shape))
    return evaluate(f"%r = {name} %a0, %a1 : {vector}", [a, b], f"{a.dtype.name}[{shape}]")


def test_integer_division_rounds_towards_zero_and_by_zero_is_minus_one():
    quotient = binary("arith.divsi", EXTREMES, DIVISORS, "i32")
    assert quotient.tolist() == [[-(2**31), 715827882, -1, 0, 0, -3, -3, 123]]
    remainder = binary("arith.remsi", EXTREMES, DIVISORS, "i32")
    assert remainder.tolist() == [[0, 1, 0, 1, -1, 1, -1, 456]]


def test_unsigned_division_takes_the_bits_as_unsigned():
    a, b = EXTREMES.view(np.uint32).astype(np.int64), DIVISORS.view(np.uint32).astype(np.int64)
    quotient = binary("arith.divui", EXTREMES, DIVISORS, "i32").view(np.uint32)
    expected = np.where(b == 0, 2**32 - 1, a // np.where(b == 0, 1, b))
    np.testing.assert_array_equal(quotient, expected)


@pytest.mark.parametrize("name", ["shli", "shrsi", "shrui"])
def test_shifts_by_the_width_or_more(name):
    result = binary(f"arith.{name}", EXTREMES, SHIFTS, "i32")

    def one(a: int, n: int) -> int:
        inside = 0 <= n < 32
        if name == "shrsi":
            return a >> (n if inside else 31)
        if not inside:
            return 0
        value = a << n if name == "shli" else (a & 0xFFFFFFFF) >> n
        return (value + 2**31) % 2**32 - 2**31

    expected = [[one(int(a), int(n)) for a, n in zip(EXTREMES[0], SHIFTS[0])]]
    assert result.tolist() == expected


@pytest.mark.parametrize("signed", [True, False])
def test_the_high_half_of_a_product(signed):
    name = "arith.mulsi_extended" if signed else "arith.mului_extended"
    b = np.roll(EXTREMES, 3, 1)
    code = f"%low, %r = {name} %a0, %a1 : vector<1x8xi32>"
    high = evaluate(code, [EXTREMES, b], "int32[1,8]")
    mask = -1 if signed else 0xFFFFFFFF
    expected = [(int(x) & mask) * (int(y) & mask) >> 32 for x, y in zip(EXTREMES[0], b[0])]
    assert (high[0].astype(np.int64) & 0xFFFFFFFF).tolist() == [e & 0xFFFFFFFF for e in expected]


@pytest.mark.parametrize(
    ("name", "one"),
    [
        ("ctpop", lambda n: n.bit_count()),
        ("ctlz", lambda n: 32 - n.bit_length()),
        ("cttz", lambda n: 32 if n == 0 else (n & -n).bit_length() - 1),
    ],
)
def test_counting_bits(name, one):
    result = evaluate(f"%r = math.{name} %a0 : vector<1x8xi32>", [EXTREMES], "int32[1,8]")
    assert result.tolist() == [[one(int(a) & 0xFFFFFFFF) for a in EXTREMES[0]]]


def test_narrow_floats_are_computed_in_float32_and_rounded_once():
    rng = np.random.default_rng(0)
    a, b = (rng.standard_normal((8, 128)).astype(ml_dtypes.bfloat16) for _ in range(2))
    expected = (a.astype(np.float32) * b.astype(np.float32)).astype(ml_dtypes.bfloat16)
    np.testing.assert_array_equal(binary("arith.mulf", a, b, "bf16"), expected)


def test_a_maximum_with_no_number_is_none():
    a = np.array([[np.nan, 1, -0.0, np.inf]], np.float32)
    b = np.array([[1, np.nan, 0.0, 2]], np.float32)
    assert np.isnan(binary("arith.maximumf", a, b, "f32")[0, :2]).all()
    assert not np.isnan(binary("arith.maxnumf", a, b, "f32")).any()


def test_conversion_to_integers_saturates():
    a = np.array([[1e20, -1e20, np.nan, 1.9, -1.9, 0.5, 2.0, -3.0]], np.float32)
    code = "%r = arith.fptosi %a0 : vector<1x8xf32> to vector<1x8xi32>"
    expected = [[2**31 - 1, -(2**31), 0, 1, -1, 0, 2, -3]]
    assert evaluate(code, [a], "int32[1,8]").tolist() == expected


@pytest.mark.parametrize(("kind", "function"), [("add", np.sum), ("maximumf", np.max)])
def test_reduction_over_a_dimension(kind, function):
    a = np.random.default_rng(0).standard_normal((8, 128), np.float32)
    code = f"""%s = arith.constant dense<{"0.0" if kind == "add" else "0xFF800000"}> : vector<8xf32>
    %r = vector.multi_reduction <{kind}>, %a0, %s [1] : vector<8x128xf32> to vector<8xf32>"""
    np.testing.assert_allclose(evaluate(code, [a], "float32[8]"), function(a, axis=1), rtol=1e-5)


def test_slices_and_shapes():
    a = np.arange(64, dtype=np.int32).reshape(8, 8)
    code = """%s = "vector.extract_strided_slice"(%a0)
      <{offsets = [2, 4], sizes = [2, 4], strides = [1, 1]}> : (vector<8x8xi32>) -> vector<2x4xi32>
    %t = vector.transpose %s, [1, 0] : vector<2x4xi32> to vector<4x2xi32>
    %r = vector.shape_cast %t : vector<4x2xi32> to vector<8xi32>"""
    np.testing.assert_array_equal(evaluate(code, [a], "int32[8]"), a[2:4, 4:8].T.reshape(8))
