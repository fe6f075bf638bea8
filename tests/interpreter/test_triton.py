"""Triton kernels: masks, products, reductions, atomic operations, bounds and races."""

from __future__ import annotations

from collections.abc import Sequence

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton as plt

from dumps.kernels import softmax_triton
from mosaic_toolkit.capture import capture
from mosaic_toolkit.errors import Unsupported
from mosaic_toolkit.interpreter.execute import Execution, Setting, compile_program, execute
from mosaic_toolkit.interpreter.findings import DEADLOCK, MISUSE, OUT_OF_BOUNDS, RACE
from mosaic_toolkit.kernel import ArrayType, Kernel
from tests.interpreter.tpu_kernels import MLIR_NAMES, kinds, type_of

SEEDS = (0, 1, 2)
RNG = np.random.default_rng(0)


def captured(function, *arguments) -> Kernel:
    shapes = [jax.ShapeDtypeStruct(a.shape, a.dtype) for a in arguments]
    (only,) = capture(function, *shapes, target="h100")
    return only


def call(kernel, *arguments, out: Sequence[jax.ShapeDtypeStruct], **options) -> Kernel:
    """The captured `pallas_call` of a kernel function."""
    params = plt.CompilerParams(num_warps=4, num_stages=1)

    def function(*arrays):
        return pl.pallas_call(kernel, out_shape=out, compiler_params=params, **options)(*arrays)

    return captured(function, *arguments)


def written(
    code: str,
    operands: Sequence[ArrayType],
    results: Sequence[ArrayType],
    grid: tuple[int, ...] = (1, 1, 1),
) -> Kernel:
    """A kernel with this body: ``%p0``, ``%p1``, ... point to the operands, then the results."""
    arguments = ", ".join(
        f"%p{n}: !tt.ptr<{MLIR_NAMES[t.dtype]}>" for n, t in enumerate([*operands, *results])
    )
    asm = f"module {{ tt.func public @k({arguments}) {{\n{code}\ntt.return\n}} }}"
    return Kernel(
        "k",
        "triton",
        "dialect",
        target="h100",
        asm=asm,
        operands=tuple(operands),
        results=tuple(results),
        grid=grid,
    )


def evaluate(code: str, arrays: Sequence[np.ndarray], result: str) -> np.ndarray:
    """What code that makes ``%r`` of the vectors ``%a0``, ``%a1``, ... gives."""
    made = ArrayType.parse(result)
    lines = []
    for number, type_ in enumerate([*map(type_of, arrays), made]):
        name, (size,) = MLIR_NAMES[type_.dtype], type_.shape
        pointers = f"tensor<{size}x!tt.ptr<{name}>>"
        lines += [
            f"%i{number} = tt.make_range {{start = 0 : i32, end = {size} : i32}} : tensor<{size}xi32>",
            f"%s{number} = tt.splat %p{number} : !tt.ptr<{name}> -> {pointers}",
            f"%q{number} = tt.addptr %s{number}, %i{number} : {pointers}, tensor<{size}xi32>",
        ]
        if number < len(arrays):
            lines.append(f"%a{number} = tt.load %q{number} : {pointers}")
    lines += [code, f"tt.store %q{number}, %r : {pointers}"]
    execution = execute(written("\n".join(lines), [*map(type_of, arrays)], [made]), arrays)
    assert not execution.findings, execution.findings
    return execution.results[0][0]


def results_over_seeds(kernel: Kernel, *inputs: np.ndarray) -> list[Execution]:
    return [execute(kernel, inputs, Setting(seed=seed)) for seed in SEEDS]


# --- whole kernels ------------------------------------------------------------------------------


def test_softmax_with_a_masked_tail():
    x = RNG.standard_normal((8, 1000)).astype(np.float32)
    for execution in results_over_seeds(captured(softmax_triton.softmax, x), x):
        assert not execution.findings and not execution.suspects and not execution.unwritten
        np.testing.assert_allclose(
            execution.results[0][0], jax.nn.softmax(x, axis=-1), rtol=1e-5, atol=1e-7
        )


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16])
def test_a_blocked_product_accumulates_in_float32(dtype):
    a, b = (RNG.standard_normal((64, 64)).astype(dtype) for _ in range(2))

    def kernel(a_ref, b_ref, o_ref):
        def step(k, accumulator):
            left = a_ref[:, pl.ds(k * 16, 16)]
            right = b_ref[pl.ds(k * 16, 16), :]
            return accumulator + jnp.dot(left, right, preferred_element_type=jnp.float32)

        o_ref[...] = jax.lax.fori_loop(0, 4, step, jnp.zeros((32, 32), jnp.float32))

    product = call(
        kernel,
        a,
        b,
        out=jax.ShapeDtypeStruct((64, 64), jnp.float32),
        grid=(2, 2),
        in_specs=[
            pl.BlockSpec((32, 64), lambda i, j: (i, 0)),
            pl.BlockSpec((64, 32), lambda i, j: (0, j)),
        ],
        out_specs=pl.BlockSpec((32, 32), lambda i, j: (i, j)),
    )
    expected = a.astype(np.float32) @ b.astype(np.float32)
    for execution in results_over_seeds(product, a, b):
        assert not execution.findings
        np.testing.assert_allclose(execution.results[0][0], expected, rtol=1e-4, atol=1e-4)


def test_the_region_of_a_reduction_over_two_tensors():
    x = RNG.standard_normal((8, 64)).astype(np.float32)

    def kernel(x_ref, o_ref):
        o_ref[...] = jnp.argmax(x_ref[...], axis=1).astype(jnp.int32)

    execution = execute(call(kernel, x, out=jax.ShapeDtypeStruct((8,), jnp.int32)), [x])
    np.testing.assert_array_equal(execution.results[0][0], x.argmax(1))


def test_an_aliased_operand_holds_the_result():
    x = np.arange(64, dtype=np.float32)

    def kernel(x_ref, o_ref):
        o_ref[0:32] = x_ref[0:32] + 1

    aliased = call(
        kernel, x, out=jax.ShapeDtypeStruct((64,), jnp.float32), input_output_aliases={0: 0}
    )
    execution = execute(aliased, [x])
    np.testing.assert_array_equal(execution.results[0][0], x + (x < 32))


# --- atomic operations --------------------------------------------------------------------------


def _summing(add) -> Kernel:
    x = np.zeros(1024, np.float32)
    total = np.zeros(2, np.float32)

    def kernel(x_ref, _, o_ref):
        add(o_ref, jnp.sum(x_ref[...]))

    return call(
        kernel,
        x,
        total,
        out=jax.ShapeDtypeStruct((2,), jnp.float32),
        grid=(16,),
        in_specs=[pl.BlockSpec((64,), lambda i: (i,)), pl.BlockSpec((2,), lambda i: (0,))],
        out_specs=pl.BlockSpec((2,), lambda i: (0,)),
        input_output_aliases={1: 0},
    )


def test_an_atomic_sum_does_not_race():
    kernel = _summing(lambda ref, value: plt.atomic_add(ref, (0,), value))
    x, total = np.arange(1024, dtype=np.float32), np.zeros(2, np.float32)
    for execution in results_over_seeds(kernel, x, total):
        assert not execution.findings
        assert execution.results[0][0].tolist() == [x.sum(), 0]


def test_a_sum_that_is_not_atomic_races():
    def add(ref, value):
        ref[0] += value

    x, total = np.arange(1024, dtype=np.float32), np.zeros(2, np.float32)
    for execution in results_over_seeds(_summing(add), x, total):
        assert set(kinds(execution)) == {RACE}
        text = str(execution.findings[0])
        assert "tt.store (test_triton.py" in text and "operand 1 [bytes 0:4]" in text
        assert "by program (" in text


def test_an_atomic_operation_treats_equal_places_one_after_the_other():
    index, value = np.array([0, 1, 0, 0], np.int32), np.array([1, 2, 3, 4], np.int32)
    code = """%base = tt.splat %p2 : !tt.ptr<i32> -> tensor<4x!tt.ptr<i32>>
%where = tt.addptr %base, %a0 : tensor<4x!tt.ptr<i32>>, tensor<4xi32>
%zero = arith.constant dense<0> : tensor<4xi32>
%true = arith.constant dense<true> : tensor<4xi1>
tt.store %q2, %zero : tensor<4x!tt.ptr<i32>>
%old = tt.atomic_rmw add, acq_rel, gpu, %where, %a1, %true : (tensor<4x!tt.ptr<i32>>, tensor<4xi32>, tensor<4xi1>) -> tensor<4xi32>
%r = tt.load %q2 : tensor<4x!tt.ptr<i32>>"""
    assert evaluate(code, [index, value], "int32[4]").tolist() == [8, 2, 0, 0]


LOCKED = """%c0 = arith.constant 0 : i32
%c1 = arith.constant 1 : i32
%true = arith.constant true
scf.while : () -> () {{
  %seen = tt.atomic_cas {semantics}, gpu, %p2, %c0, %c1 : (!tt.ptr<i32>, i32, i32) -> i32
  %taken = arith.cmpi ne, %seen, %c0 : i32
  scf.condition(%taken)
}} do {{
  scf.yield
}}
%old = tt.load %p3 : !tt.ptr<i32>
%new = arith.addi %old, %c1 : i32
tt.store %p3, %new : !tt.ptr<i32>
{unlock}"""
UNLOCK = (
    "%u = tt.atomic_rmw exch, {semantics}, gpu, %p2, %c0, %true : (!tt.ptr<i32>, i32, i1) -> i32"
)


def _locked(semantics: str, unlock: str = UNLOCK) -> Execution:
    """Eight programs count under a lock."""
    code = LOCKED.format(semantics=semantics, unlock=unlock.format(semantics=semantics))
    type_ = ArrayType("int32", ())
    kernel = written(code, [type_, type_], [type_, type_], (8, 1, 1))
    aliased = Kernel(**{**vars(kernel), "aliases": ((0, 0), (1, 1))})
    return execute(aliased, [np.zeros((), np.int32)] * 2)


def test_a_spin_lock_orders_what_it_guards():
    execution = _locked("acq_rel")
    assert not execution.findings
    assert execution.results[0][1] == 8


def test_relaxed_operations_order_nothing():
    assert set(kinds(_locked("relaxed"))) == {RACE}


def test_a_lock_that_is_never_released_is_a_deadlock():
    execution = _locked("acq_rel", "")
    assert kinds(execution) == [DEADLOCK]
    assert "tt.atomic_cas" in str(execution.fault)


# --- bounds -------------------------------------------------------------------------------------


def test_a_lane_out_of_bounds_is_named():
    x = np.zeros(100, np.float32)

    def kernel(x_ref, o_ref):
        o_ref[...] = plt.load(x_ref.at[jnp.arange(128)])

    execution = execute(call(kernel, x, out=jax.ShapeDtypeStruct((128,), jnp.float32)), [x])
    assert kinds(execution) == [OUT_OF_BOUNDS]
    text = str(execution.fault)
    assert "tt.load (test_triton.py:" in text
    assert "bytes 0:512 of operand 0, which has 400" in text


def test_a_lane_under_no_mask_touches_no_memory():
    code = """%five = arith.constant dense<5> : tensor<8xi32>
%million = arith.constant dense<1000000> : tensor<8xi32>
%nine = arith.constant dense<9.0> : tensor<8xf32>
%mask = arith.cmpi slt, %i0, %five : tensor<8xi32>
%far = arith.select %mask, %i0, %million : tensor<8xi1>, tensor<8xi32>
%there = tt.addptr %s0, %far : tensor<8x!tt.ptr<f32>>, tensor<8xi32>
%r = tt.load %there, %mask, %nine : tensor<8x!tt.ptr<f32>>"""
    x = np.arange(8, dtype=np.float32)
    assert evaluate(code, [x], "float32[8]").tolist() == [0, 1, 2, 3, 4, 9, 9, 9]


def test_a_misaligned_pointer_is_misuse():
    code = """%c1 = arith.constant 1 : i32
%bytes = tt.bitcast %p0 : !tt.ptr<f32> -> !tt.ptr<i8>
%odd = tt.addptr %bytes, %c1 : !tt.ptr<i8>, i32
%back = tt.bitcast %odd : !tt.ptr<i8> -> !tt.ptr<f32>
%x = tt.load %back : !tt.ptr<f32>
tt.store %p1, %x : !tt.ptr<f32>"""
    type_ = ArrayType("float32", (4,))
    assert kinds(execute(written(code, [type_], [type_]), [np.zeros(4, np.float32)])) == [MISUSE]


# --- single operations --------------------------------------------------------------------------

X = np.array([0.5, -1.25, 2.0, 7.75], np.float32)
N = np.array([3, -1, 2, 0], np.int32)
PAIR = "tensor<4x2xf32>"
SCAN = """%r = "tt.scan"(%a0) <{{axis = 0 : i32, reverse = {reverse}}}> ({{
^bb0(%x: f32, %y: f32):
  {body}
  tt.scan.return %z : f32
}}) : (tensor<4xf32>) -> tensor<4xf32>"""
ADD = "%z = arith.addf %x, %y : f32"
SECOND = """%c = arith.constant 1.0 : f32
  %w = arith.addf %x, %c : f32
  %b = arith.cmpf ogt, %w, %y : f32
  %z = arith.select %b, %y, %y : f32"""


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        (
            f"""%j = tt.join %a0, %a0 : tensor<4xf32> -> {PAIR}
%t = tt.trans %j {{order = array<i32: 1, 0>}} : {PAIR} -> tensor<2x4xf32>
%v = tt.reshape %t : tensor<2x4xf32> -> {PAIR}
%r, %s = tt.split %v : {PAIR} -> tensor<4xf32>""",
            X[[0, 2, 0, 2]],
        ),
        (SCAN.format(reverse="false", body=ADD), np.cumsum(X)),
        (SCAN.format(reverse="true", body=ADD), np.cumsum(X[::-1])[::-1]),
        (SCAN.format(reverse="false", body=SECOND), X),
        (
            '%r = tt.extern_elementwise %a0 {libname = "", libpath = "", pure = true, '
            'symbol = "__nv_fabsf"} : (tensor<4xf32>) -> tensor<4xf32>',
            np.abs(X),
        ),
        (
            '%r = tt.elementwise_inline_asm "tanh.approx.f32 $0, $1;" {constraints = "=f,f", '
            "packed_element = 1 : i32, pure = true} %a0 : tensor<4xf32> -> tensor<4xf32>",
            np.tanh(X),
        ),
        (
            "%g = arith.constant dense<[3, 0, 0, 1]> : tensor<4xi32>\n"
            "%r = tt.gather %a0[%g] {axis = 0 : i32} : (tensor<4xf32>, tensor<4xi32>) -> tensor<4xf32>",
            X[[3, 0, 0, 1]],
        ),
        (
            "%h = tt.fp_to_fp %a0, rounding = rtz : tensor<4xf32> -> tensor<4xf8E5M2>\n"
            "%r = tt.fp_to_fp %h : tensor<4xf8E5M2> -> tensor<4xf32>",
            [0.5, -1.25, 2.0, 7.0],
        ),
    ],
)
def test_operations_on_floats(code, expected):
    np.testing.assert_allclose(evaluate(code, [X], "float32[4]"), expected, rtol=1e-6)


def test_a_histogram_counts_what_is_inside():
    code = "%r = tt.histogram %a0 : tensor<4xi32> -> tensor<4xi32>"
    assert evaluate(code, [N], "int32[4]").tolist() == [1, 0, 1, 1]


def test_the_high_half_of_a_product():
    code = "%r = tt.mulhiui %a0, %a0 : tensor<4xi32>"
    expected = [(int(n) & 0xFFFFFFFF) ** 2 >> 32 for n in N]
    result = evaluate(code, [N], "int32[4]")
    assert [int(n) & 0xFFFFFFFF for n in result] == expected


def test_what_has_no_meaning_is_unsupported_before_anything_runs():
    code = (
        '%r = tt.elementwise_inline_asm "brev.b32 $0, $1;" {constraints = "=r,r", '
        "packed_element = 1 : i32, pure = true} %c : i32 -> i32\ntt.store %p0, %r : !tt.ptr<i32>"
    )
    type_ = ArrayType("int32", (1,))
    kernel = written(f"%c = arith.constant 1 : i32\n{code}", [], [type_])
    with pytest.raises(Unsupported, match="brev"):
        compile_program(kernel)
