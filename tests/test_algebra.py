"""Canonical names: every operation of the kernels' dialects has one, or is schedule."""

from __future__ import annotations

import functools
import importlib
import types

import jax
import jax.numpy as jnp
import pytest
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton as plt

from mosaic_toolkit import opnames
from mosaic_toolkit.capture import capture
from mosaic_toolkit.kernel import Kernel
from mosaic_toolkit.schedule import raise_schedule

GENERATED = {
    "arith": "jaxlib.mlir.dialects._arith_ops_gen",
    "math": "jaxlib.mlir.dialects._math_ops_gen",
    "vector": "jaxlib.mlir.dialects._vector_ops_gen",
    "memref": "jaxlib.mlir.dialects._memref_ops_gen",
    "scf": "jaxlib.mlir.dialects._scf_ops_gen",
    "tpu": "jaxlib.mosaic.python._tpu_ops_gen",
    "mosaic_gpu": "jaxlib.mosaic.dialect.gpu._mosaic_gpu_gen_ops",
    "tt": "jaxlib.triton._triton_ops_gen",
}
# They mean nothing that Pallas could ask for.
LEFT_OUT = {"arith.flush_denormals", "vector.scalable.extract", "vector.scalable.insert"}
LEFT_OUT |= {"vector.vscale"}


@pytest.mark.parametrize("dialect", GENERATED)
def test_every_operation_of_a_dialect_has_a_meaning(dialect):
    module = importlib.import_module(GENERATED[dialect])
    classes = [c for c in vars(module).values() if hasattr(c, "OPERATION_NAME")]
    assert classes
    unknown = set()
    for name in {c.OPERATION_NAME for c in classes}:
        if name in opnames._SPECIAL:
            continue
        if opnames.meaning(types.SimpleNamespace(name=name, attributes={})) is None:
            unknown.add(name)
    assert unknown <= LEFT_OUT


def algebra_of(text: str) -> dict[tuple[str, str], int]:
    asm = f"""module @k {{ func.func @k(
        %x: memref<8x128xf32, #tpu.memory_space<vmem>>,
        %s: memref<4xi32, #tpu.memory_space<smem>>, %i: i32)
        attributes {{scratch_operands = 0 : i64, tpu.core_type = #tpu.core_type<tc>}} {{
      %c0 = arith.constant 0 : index
      %a = vector.load %x[%c0, %c0] : memref<8x128xf32, #tpu.memory_space<vmem>>, vector<8x128xf32>
      {text}
      return }} }}"""
    algebra = raise_schedule(Kernel("k", "mosaic_tpu", "dialect", "v5e", asm)).algebra
    assert not algebra.unknown
    return {(op.name, op.types): op.count for op in algebra.ops}


STORE = (
    "vector.store %{}, %x[%c0, %c0] : memref<8x128xf32, #tpu.memory_space<vmem>>, vector<8x128xf32>"
)


def test_integers_that_become_addresses_do_not_count():
    text = """
      %two = arith.constant 2 : i32
      %t = arith.muli %i, %two : i32
      %at = arith.index_cast %t : i32 to index
      %b = vector.load %x[%at, %c0] : memref<8x128xf32, #tpu.memory_space<vmem>>, vector<8x128xf32>
    """
    assert algebra_of(text + STORE.format("b")) == {}


def test_integers_that_become_data_count():
    text = """
      %rows = tpu.iota {dimensions = array<i32: 0>} : vector<8x128xi32>
      %fill = vector.broadcast %i : i32 to vector<8x128xi32>
      %mask = arith.cmpi slt, %rows, %fill : vector<8x128xi32>
      %zero = arith.constant dense<0.0> : vector<8x128xf32>
      %kept = arith.select %mask, %a, %zero : vector<8x128xi1>, vector<8x128xf32>
    """
    assert algebra_of(text + STORE.format("kept")) == {
        ("iota", "i32"): 1,
        ("compare", "i32, i32 -> i1"): 1,
        ("select", "f32"): 1,
    }


def test_counter_in_a_private_cell_does_not_count_and_a_stored_scalar_does():
    text = """
      %cell = memref.alloca() : memref<1xi32>
      %old = memref.load %cell[%c0] : memref<1xi32>
      %flip = arith.xori %old, %i : i32
      memref.store %flip, %cell[%c0] : memref<1xi32>
      %sum = arith.addi %i, %i : i32
      memref.store %sum, %s[%c0] : memref<4xi32, #tpu.memory_space<smem>>
    """
    assert algebra_of(text) == {("add", "i32"): 1}


def test_data_is_followed_through_loops_and_branches():
    text = """
      %one = arith.constant 1 : index
      %rows = tpu.iota {dimensions = array<i32: 0>} : vector<8x128xi32>
      %p = arith.cmpi eq, %i, %i : i32
      %n, %z = scf.for %k = %c0 to %one step %one iter_args(%u = %rows, %v = %a)
          -> (vector<8x128xi32>, vector<8x128xf32>) {
        %w = scf.if %p -> (vector<8x128xi32>) {
          %y = arith.addi %u, %rows : vector<8x128xi32>
          scf.yield %y : vector<8x128xi32>
        } else {
          scf.yield %u : vector<8x128xi32>
        }
        %v2 = math.exp %v : vector<8x128xf32>
        scf.yield %w, %v2 : vector<8x128xi32>, vector<8x128xf32>
      }
      %f = arith.sitofp %n : vector<8x128xi32> to vector<8x128xf32>
      %r = arith.mulf %f, %z : vector<8x128xf32>
    """
    assert algebra_of(text + STORE.format("r")) == {
        ("iota", "i32"): 1,
        ("add", "i32"): 1,
        ("exp", "f32"): 1,
        ("convert", "i32 -> f32"): 1,
        ("mul", "f32"): 1,
    }


def test_reductions_are_named_by_what_they_reduce_with():
    text = """
      %z = arith.constant dense<0.0> : vector<8xf32>
      %m = vector.multi_reduction <maximumf>, %a, %z [1] : vector<8x128xf32> to vector<8xf32>
      %t = vector.multi_reduction <add>, %a, %m [1] : vector<8x128xf32> to vector<8xf32>
      %b = vector.shape_cast %t : vector<8xf32> to vector<8x1xf32>
      %c = vector.broadcast %b : vector<8x1xf32> to vector<8x128xf32>
    """
    assert algebra_of(text + STORE.format("c")) == {
        ("reduce-max", "f32"): 1,
        ("reduce-sum", "f32"): 1,
    }


def normalise(x, params=None):
    def body(x_ref, o_ref):
        rows = x_ref[...]
        scaled = jnp.exp(rows - jnp.max(rows, axis=1, keepdims=True))
        o_ref[...] = scaled / jnp.sum(scaled, axis=1, keepdims=True)

    block = pl.BlockSpec((128, 128), lambda i: (i, 0))
    return pl.pallas_call(
        body, grid=(4,), in_specs=[block], out_specs=block, out_shape=x, compiler_params=params
    )(x)


def test_one_source_has_one_algebra_on_two_backends():
    x = jax.ShapeDtypeStruct((512, 128), jnp.float32)
    # Mosaic GPU's layout inference takes minutes to refuse this one, so Triton is asked for.
    triton = functools.partial(normalise, params=plt.CompilerParams())
    kernels = [*capture(normalise, x, target="v5e"), *capture(triton, x, target="h100")]
    assert [k.backend for k in kernels] == ["mosaic_tpu", "triton"]
    for kernel in kernels:
        kinds = raise_schedule(kernel).algebra.kinds
        assert kinds == {"exp", "sub", "div", "reduce-max", "reduce-sum"}


def test_matmul_is_named_alike_in_all_dialects():
    names = ("tpu.matmul", "vector.contract", "mosaic_gpu.wgmma", "mosaic_gpu.tcgen05_mma")
    for name in (*names, "tt.dot", "nvvm.wgmma.mma_async", "nvvm.mma.sync", "nvvm.tcgen05.mma"):
        assert opnames.meaning(types.SimpleNamespace(name=name, attributes={})) == "matmul"


@pytest.mark.parametrize(
    ("asm", "meaning"),
    [
        ("wgmma.fence.sync.aligned;", opnames.SCHEDULE),
        ("bar.sync $0, 128;", opnames.SCHEDULE),
        (
            "{ .reg .b32 a;\n @$0 mapa.u32 a, $1, $2;\n @$0 mbarrier.arrive.b64 _, [a]; }",
            opnames.SCHEDULE,
        ),
        ("tanh.approx.f32 $0, $1;", "tanh"),
        ("ex2.approx.ftz.f32 $0, $1;", "exp2"),
        ("frobnicate.f32 $0, $1;", None),
        ("tanh.approx.f32 $0, $1; frobnicate.f32 $0, $0;", None),
    ],
)
def test_inline_assembly_is_read_by_its_instructions(asm, meaning):
    attributes = {"asm_string": types.SimpleNamespace(value=asm)}
    op = types.SimpleNamespace(name="llvm.inline_asm", attributes=attributes)
    assert opnames.meaning(op) == meaning
