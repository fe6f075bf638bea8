"""`tpu` and `memref` operations on references: views, masked and scattered accesses."""

from __future__ import annotations

import numpy as np
import pytest

from mosaic_toolkit.interpreter.execute import Setting, execute
from mosaic_toolkit.interpreter.findings import OUT_OF_BOUNDS
from mosaic_toolkit.kernel import ArrayType
from tests.interpreter.tpu_kernels import body, evaluate, kinds

VMEM = "#tpu.memory_space<vmem>"


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(0)


def sparse(code, arrays, result) -> np.ndarray:
    return evaluate(code, arrays, result, core="sc_vector_subcore", target="tpu7x")


def mask(name: str, source: str, lanes: int) -> str:
    return f"""%zero = arith.constant dense<0> : vector<{lanes}xi32>
    {name} = arith.cmpi ne, {source}, %zero : vector<{lanes}xi32>"""


def test_strided_load(rng):
    a = rng.standard_normal((16, 128), np.float32)
    code = f"""%r = tpu.strided_load %m0[%c0, %c0] {{strides = array<i32: 2, 1>}}
      : memref<16x128xf32, {VMEM}>, vector<8x128xf32>"""
    np.testing.assert_array_equal(evaluate(code, [a], "float32[8,128]"), a[::2])


def test_masked_store_leaves_the_rest(rng):
    a = rng.standard_normal((8, 128), np.float32)
    code = f"""%limit = arith.constant dense<0.0> : vector<8x128xf32>
    %m = arith.cmpf ogt, %a0, %limit : vector<8x128xf32>
    tpu.vector_store %m0[%c0, %c0], %limit masked %m {{strides = array<i32>}}
      : memref<8x128xf32, {VMEM}>, vector<8x128xf32>, vector<8x128xi1>
    %r = vector.load %m0[%c0, %c0] : memref<8x128xf32, {VMEM}>, vector<8x128xf32>"""
    np.testing.assert_array_equal(evaluate(code, [a], "float32[8,128]"), np.minimum(a, 0))


def test_reference_as_another_type_shares_the_memory(rng):
    a = rng.integers(0, 2**31 - 1, (8, 128)).astype(np.int32)
    code = f"""%b = tpu.memref_bitcast %m0 : memref<8x128xi32, {VMEM}> -> memref<16x128xi16, {VMEM}>
    %ones = arith.constant dense<1> : vector<1x128xi16>
    %c1 = arith.constant 1 : index
    vector.store %ones, %b[%c1, %c0] : memref<16x128xi16, {VMEM}>, vector<1x128xi16>
    %r = vector.load %m0[%c0, %c0] : memref<8x128xi32, {VMEM}>, vector<8x128xi32>"""
    expected = a.copy()
    expected[0] = (a[0] & 0xFFFF) | 1 << 16
    np.testing.assert_array_equal(evaluate(code, [a], "int32[8,128]"), expected)


def test_load_outside_of_a_reference_names_it():
    code = f"""%c4 = arith.constant 4 : index
    %c0 = arith.constant 0 : index
    %v = vector.load %in[%c4, %c0] : memref<8x128xf32, {VMEM}>, vector<8x128xf32>
    vector.store %v, %out[%c0, %c0] : memref<8x128xf32, {VMEM}>, vector<8x128xf32>"""
    type_ = ArrayType("float32", (8, 128))
    arguments = f"%in: memref<8x128xf32, {VMEM}>, %out: memref<8x128xf32, {VMEM}>"
    execution = execute(body(code, arguments, [type_], [type_]), [np.zeros((8, 128), np.float32)])
    assert kinds(execution) == [OUT_OF_BOUNDS]
    assert "[4:12, 0:128]" in str(execution.fault)


def test_memory_that_was_never_written_is_a_suspect_and_differs_by_poison():
    code = f"""%c0 = arith.constant 0 : index
    %a = memref.alloca() : memref<8x128xf32, {VMEM}>
    %v = vector.load %a[%c0, %c0] : memref<8x128xf32, {VMEM}>, vector<8x128xf32>
    vector.store %v, %out[%c0, %c0] : memref<8x128xf32, {VMEM}>, vector<8x128xf32>"""
    kernel = body(code, f"%out: memref<8x128xf32, {VMEM}>", [], [ArrayType("float32", (8, 128))])
    runs = [execute(kernel, [], Setting(poison=poison)) for poison in (0, 1)]
    assert all(run.suspects for run in runs)
    assert np.isnan(runs[0].results[0][0]).all()
    assert not np.isnan(runs[1].results[0][0]).any()


# --- the SparseCore's -------------------------------------------------------------------------


def test_compressed_store_and_expanded_load(rng):
    a = np.arange(8, dtype=np.int32)
    on = np.array([1, 0, 1, 1, 0, 0, 1, 0], np.int32)
    code = f"""{mask("%m", "%a1", 8)}
    %into = memref.alloca() : memref<16xi32, {VMEM}>
    %two = arith.constant 2 : index
    tpu.vector_store %into[%two], %a0 masked %m {{strides = array<i32>}}
      : memref<16xi32, {VMEM}>, vector<8xi32>, vector<8xi1>
    %r = vector.load %into[%two] : memref<16xi32, {VMEM}>, vector<8xi32>"""
    np.testing.assert_array_equal(sparse(code, [a, on], "int32[8]")[:4], [0, 2, 3, 6])
    code = f"""{mask("%m", "%a1", 8)}
    %x = tpu.vector_load %m0[%c0] masked %m {{strides = array<i32>}}
      : memref<8xi32, {VMEM}>, vector<8xi32>, vector<8xi1>
    %r = arith.select %m, %x, %zero : vector<8xi1>, vector<8xi32>"""
    np.testing.assert_array_equal(sparse(code, [a, on], "int32[8]"), [0, 0, 1, 2, 0, 0, 3, 0])


def test_scattered_store_keeps_the_highest_lane_and_adds_all(rng):
    values = np.arange(1, 9, dtype=np.int32)
    where = np.array([3, 0, 3, 1, 0, 3, 2, 7], np.int32)
    for adds, expected in ((False, [5, 4, 7, 6, 0, 0, 0, 8]), (True, [7, 4, 7, 10, 0, 0, 0, 8])):
        flag = " {add = true}" if adds else ""
        code = f"""%zero = arith.constant dense<0> : vector<8xi32>
        %into = memref.alloca() : memref<8xi32, {VMEM}>
        vector.store %zero, %into[%c0] : memref<8xi32, {VMEM}>, vector<8xi32>
        tpu.vector_store_idx %into[%a1], %a0{flag}
          : memref<8xi32, {VMEM}>[vector<8xi32>], vector<8xi32>,
        %r = vector.load %into[%c0] : memref<8xi32, {VMEM}>, vector<8xi32>"""
        np.testing.assert_array_equal(sparse(code, [values, where], "int32[8]"), expected)


def test_gathered_load_by_index_vectors(rng):
    a = rng.standard_normal((4, 8), np.float32)
    rows, columns = (rng.integers(0, n, 16).astype(np.int32) for n in (4, 8))
    code = f"""%r = tpu.vector_load_idx %m0[%a1, %a2]
      : memref<4x8xf32, {VMEM}>[vector<16xi32>, vector<16xi32>], vector<16xf32>,"""
    np.testing.assert_array_equal(sparse(code, [a, rows, columns], "float32[16]"), a[rows, columns])


@pytest.mark.parametrize("width", [8, 16])
def test_rows_that_share_words_can_be_read_written_and_sliced_as_words(rng, width):
    rows = 32 // width * 4
    a = rng.integers(-(2 ** (width - 1)), 2 ** (width - 1), (rows, 128)).astype(f"i{width // 8}")
    narrow = f"memref<{rows}x128xi{width}, {VMEM}>"
    code = f"""%w = tpu.memref_bitcast %m0 : {narrow} -> memref<4x128xi32, {VMEM}>
    %c1 = arith.constant 1 : index
    %one = arith.constant 1 : i32
    %zero = arith.constant 0 : i32
    %v = vector.load %w[%c1, %c0] : memref<4x128xi32, {VMEM}>, vector<1x128xi32>
    %part = tpu.memref_slice %w[%zero, %zero]
      : memref<4x128xi32, {VMEM}> -> memref<1x128xi32, {VMEM}>
    vector.store %v, %part[%c0, %c0] : memref<1x128xi32, {VMEM}>, vector<1x128xi32>
    %back = tpu.memref_bitcast %w : memref<4x128xi32, {VMEM}> -> {narrow}
    %r = vector.load %back[%c0, %c0] : {narrow}, vector<{rows}x128xi{width}>"""
    expected = a.copy()
    expected[: rows // 4] = a[rows // 4 : rows // 2]
    result = evaluate(code, [a], f"int{width}[{rows},128]")
    np.testing.assert_array_equal(result, expected)
    code = f"""%w = tpu.memref_bitcast %m0 : {narrow} -> memref<4x128xi32, {VMEM}>
    %r = vector.load %w[%c0, %c0] : memref<4x128xi32, {VMEM}>, vector<4x128xi32>"""
    words = evaluate(code, [a], "int32[4,128]").view(np.uint32)
    for n in range(rows // 4):
        part = (words >> np.uint32(n * width)).astype(f"u{width // 8}")
        np.testing.assert_array_equal(part.view(a.dtype), a[n :: rows // 4])
