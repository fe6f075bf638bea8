"""Comparing kernels: what counts as a difference, what does not, and how it is said."""

from __future__ import annotations

import dataclasses
import itertools
import json
import random
import re

import jax
import jax.numpy as jnp
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from mosaic_toolkit import jax_compat
from mosaic_toolkit.capture import capture
from mosaic_toolkit.compare import Comparison, ScheduleDifference, compare
from mosaic_toolkit.kernel import Kernel
from mosaic_toolkit.report import comparison as report
from mosaic_toolkit.report.schedule import (
    render_schedule,
    schedule_from_json,
    schedule_to_json,
)
from mosaic_toolkit.schedule import raise_schedule

X = jax.ShapeDtypeStruct((1024, 128), jnp.float32)


def scaled_sum(x, y):
    def body(x_ref, y_ref, o_ref):
        o_ref[...] = jnp.exp(x_ref[...]) * 2 + y_ref[...]

    block = pl.BlockSpec((128, 128), lambda i: (i, 0))
    return pl.pallas_call(body, grid=(8,), in_specs=[block] * 2, out_specs=block, out_shape=X)(x, y)


TABLE = jax.ShapeDtypeStruct((4,), jnp.int32)


def gathered(table, x):
    def body(table, x_ref, o_ref, ring, sems):
        copy = pltpu.make_async_copy(x_ref.at[pl.ds(table[0], 128)], ring.at[0], sems.at[0])
        copy.start()
        copy.wait()
        o_ref[...] = ring[0]

    grid = pltpu.PrefetchScalarGridSpec(
        num_scalar_prefetch=1,
        grid=(4,),
        in_specs=[pl.BlockSpec(memory_space=pl.ANY)],
        out_specs=pl.BlockSpec((128, 128), lambda i, table: (i, 0)),
        scratch_shapes=[pltpu.VMEM((2, 128, 128), jnp.float32), pltpu.SemaphoreType.DMA((2,))],
    )
    out = jax.ShapeDtypeStruct((512, 128), jnp.float32)
    return pl.pallas_call(body, grid_spec=grid, out_shape=out)(table, x)


@pytest.fixture(scope="module")
def kernel() -> Kernel:
    (captured,) = capture(scaled_sum, X, X, target="v5e")
    return captured


@pytest.fixture(scope="module")
def all_backends() -> dict[str, Kernel]:
    kernels = [k for target in ("v5e", "h100") for k in capture(scaled_sum, X, X, target=target)]
    return {k.backend: k for k in kernels}


def synchronous(kernel: Kernel) -> Kernel:
    mode = "pipeline_mode = #tpu.pipeline_mode<synchronous>, transform_indices = @transform_0"
    asm = kernel.asm.replace("transform_indices = @transform_0", mode, 1)
    assert asm != kernel.asm
    return dataclasses.replace(kernel, asm=asm)


def body_of(*lines: str) -> Kernel:
    """A kernel of these operations on %a and %b, two 8x128 vectors, and %m, their memory."""
    ref = "memref<8x128xf32, #tpu.memory_space<vmem>>"
    asm = f"""
    module @k {{
      func.func @k(%m: {ref}) attributes {{dimension_semantics = [], scalar_prefetch = 0 : i64,
          scratch_operands = 0 : i64, tpu.core_type = #tpu.core_type<tc>}} {{
        %c0 = arith.constant 0 : index
        %c1 = arith.constant 1 : index
        %c4 = arith.constant 4 : index
        %a = vector.load %m[%c0, %c0] : {ref}, vector<8x128xf32>
        %b = vector.load %m[%c1, %c0] : {ref}, vector<8x128xf32>
        {chr(10).join(lines)}
        return
      }}
    }}"""
    return Kernel("k", "mosaic_tpu", "dialect", "v5e", asm)


def unary(name: str, result: str, operand: str) -> str:
    return f"%{result} = math.{name} %{operand} : vector<8x128xf32>"


def binary(name: str, result: str, left: str, right: str) -> str:
    return f"%{result} = arith.{name} %{left}, %{right} : vector<8x128xf32>"


def store(value: str) -> str:
    return (
        f"tpu.vector_store %m[%c0, %c0], %{value} {{strides = array<i32>}} : "
        "memref<8x128xf32, #tpu.memory_space<vmem>>, vector<8x128xf32>,"
    )


def totals(before: Kernel, after: Kernel) -> dict[str, int]:
    return dict(compare(before, after).totals)


# --- what is no difference ---------------------------------------------------------


def test_kernel_is_identical_to_itself(kernel):
    assert compare(kernel, kernel).identical


def test_names_locations_and_symbols_do_not_matter(kernel):
    asm = re.sub(r"%(\d+)", r"%renamed\1", kernel.asm).replace("transform_1", "moved_map")
    asm = re.sub(r"\.py\":\d+", '.py":7', asm)
    other = dataclasses.replace(kernel, asm=asm, name="another")
    assert other.asm != kernel.asm
    comparison = compare(kernel, other)
    assert comparison.totals == (("changed", 1),)  # the reference to @transform_1 is spelled out
    assert not comparison.schedule


def test_names_that_only_locations_hold_do_not_matter():
    (before,) = capture(gathered, TABLE, X, target="v5e")
    plain = jax_compat.print_module(before.module(), locations=False)
    after = dataclasses.replace(before, asm=plain)
    assert raise_schedule(before).windows[0].index_map == "(i, 0)"
    assert raise_schedule(before).buffers[0].name == "table"
    assert raise_schedule(after).buffers[0].name == "arg1"
    assert compare(before, after).identical
    assert compare(after, before).identical


def test_place_and_order_of_constants_do_not_matter():
    one, two = "%x = arith.constant dense<1.0> : vector<8x128xf32>", unary("exp", "e", "a")
    use = [binary("addf", "s", "e", "x"), store("s")]
    assert compare(body_of(one, two, *use), body_of(two, one, *use)).identical


# --- schedule ------------------------------------------------------------------------


def test_pipeline_mode_is_the_only_difference(kernel):
    comparison = compare(kernel, synchronous(kernel))
    assert comparison.schedule == (
        ScheduleDifference("memory", "vmem", 6 * 65536, 5 * 65536, "bytes"),
        ScheduleDifference("channel x_ref", "depth", 2, 1),
        ScheduleDifference("channel x_ref", "look-ahead", 1, 0),
        ScheduleDifference("window x_ref", "pipeline mode", "double_buffered", "synchronous"),
        ScheduleDifference("window x_ref", "VMEM", 131072, 65536, "bytes"),
    )
    assert comparison.algebra.same
    assert not comparison.ops
    assert comparison.totals == (("changed", 1),)
    assert not comparison.identical


def test_schedule_is_said_before_operations(kernel):
    text = report.render(compare(kernel, synchronous(kernel)))
    line = "window x_ref: pipeline mode double_buffered -> synchronous, VMEM 128.0 KiB -> 64.0 KiB"
    assert line in text
    assert text.index(line) < text.index("algebra") < text.index("operations: 1 changed")


def test_buffer_on_one_side_only_is_added_or_removed():
    alloca = "%r = memref.alloca() : memref<3x8x128xbf16, #tpu.memory_space<vmem>>"
    (memory, buffer) = compare(body_of(), body_of(alloca)).schedule
    assert (memory.before, memory.after) == (4096, 4096 + 3 * 8 * 128 * 2)
    assert buffer == ScheduleDifference("buffer alloca0", "", None, "3x8x128 bf16 in VMEM")
    assert compare(body_of(alloca), body_of()).schedule[-1].after is None


# --- operations ------------------------------------------------------------------------


def test_replaced_operation_does_not_drag_its_users_far():
    rest = [unary("exp", f"e{i + 1}", f"e{i}") for i in range(20)]
    before = body_of(binary("addf", "e0", "a", "b"), *rest, store("e20"))
    after = body_of(binary("mulf", "e0", "a", "b"), *rest, store("e20"))
    comparison = compare(before, after)
    assert dict(comparison.totals) == {"removed": 1, "added": 1, "changed": 1}
    assert [(c.name, c.before, c.after) for c in comparison.ops] == [
        ("arith.addf", 1, 0),
        ("arith.mulf", 0, 1),
    ]
    assert not comparison.algebra.same
    assert not comparison.algebra.same_kinds


def test_other_counts_of_the_same_kinds_are_told_apart():
    once = [unary("exp", "e", "a"), store("e")]
    algebra = compare(body_of(*once), body_of(*once, unary("exp", "f", "b"), store("f"))).algebra
    assert (algebra.same, algebra.same_kinds) == (False, True)
    assert "differs in counts alone" in report.render_algebra(algebra)


def test_changed_attribute_changes_one_operation():
    before = body_of(unary("exp", "e", "a"), unary("tanh", "t", "e"), store("t"))
    fast = "%e = math.exp %a fastmath<fast> : vector<8x128xf32>"
    comparison = compare(before, body_of(fast, unary("tanh", "t", "e"), store("t")))
    (entry,) = comparison.operations
    assert (entry.kind, entry.where) == ("changed", "@k")
    assert "fastmath = #arith.fastmath<fast>" in entry.after
    assert "fastmath" not in entry.before


def test_swapped_operands_are_a_change():
    before = body_of(binary("subf", "s", "a", "b"), store("s"))
    after = body_of(binary("subf", "s", "b", "a"), store("s"))
    assert totals(before, after) == {"changed": 1}


def test_reordered_operation_is_moved():
    exp, tanh, store_both = (
        unary("exp", "e", "a"),
        unary("tanh", "t", "b"),
        [store("e"), store("t")],
    )
    assert totals(body_of(exp, tanh, *store_both), body_of(tanh, exp, *store_both)) == {"moved": 1}


def test_reordered_stores_are_moved():
    exp, tanh = unary("exp", "e", "a"), unary("tanh", "t", "b")
    before = body_of(exp, tanh, store("e"), store("t"))
    assert totals(before, body_of(exp, tanh, store("t"), store("e"))) == {"moved": 1}


def test_operation_hoisted_out_of_a_loop_is_moved():
    exp = unary("exp", "e", "a")
    head, tail = "scf.for %i = %c0 to %c4 step %c1 {", "}"
    before = body_of(head, exp, store("e"), tail)
    after = body_of(exp, head, store("e"), tail)
    (entry,) = compare(before, after).operations
    assert (entry.kind, entry.where) == ("moved", "@k")
    assert "math.exp" in entry.after


def test_load_after_a_store_is_not_the_load_before_it():
    load = (
        "%{} = vector.load %m[%c0, %c0] : memref<8x128xf32, #tpu.memory_space<vmem>>, "
        "vector<8x128xf32>"
    )
    lines = [load.format("p"), store("b"), load.format("q")]
    before = body_of(*lines, unary("exp", "e", "p"), store("e"))
    after = body_of(*lines, unary("exp", "e", "q"), store("e"))
    assert totals(before, after) == {"changed": 1}


def test_duplicates_that_cse_removes_are_removed_alone():
    pair = [unary("exp", "e", "a"), unary("exp", "f", "a"), binary("addf", "s", "e", "f")]
    before = body_of(*pair, store("s"), store("b"))
    module = before.module()
    jax_compat.run_passes(module, "builtin.module(cse)")
    assert totals(before, before.with_module(module)) == {"removed": 1}


def program(seed: int, size: int) -> list[tuple[str, set[str]]]:
    """Random pure operations, no two alike, each with the names that it uses."""
    rng = random.Random(seed)
    names, lines, made = ["a", "b"], [], set()
    while len(lines) < size:
        what = (
            rng.choice(["addf", "mulf", "subf", "maximumf"]),
            rng.choice(names),
            rng.choice(names),
        )
        if what not in made:
            made.add(what)
            name = f"v{len(lines)}"
            lines.append((binary(what[0], name, *what[1:]), set(what[1:])))
            names.append(name)
    return lines


def reordered(lines: list[tuple[str, set[str]]], seed: int) -> list[str]:
    """A random topological order."""
    rng = random.Random(seed)
    defined, left, order = {"a", "b"}, list(lines), []
    while left:
        ready = [entry for entry in left if entry[1] <= defined]
        chosen = rng.choice(ready)
        left.remove(chosen)
        order.append(chosen[0])
        defined.add(chosen[0].split(" =")[0].lstrip("%"))
    return order


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 10**6), st.integers(0, 10**6), st.integers(2, 25))
def test_any_topological_order_is_at_most_moved(seed, order, size):
    lines = program(seed, size)
    last = store(f"v{size - 1}")
    before = body_of(*(line for line, _ in lines), last)
    comparison = compare(before, body_of(*reordered(lines, order), last))
    assert set(dict(comparison.totals)) <= {"moved"}
    assert comparison.algebra.same
    assert not comparison.ops


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 10**6), st.integers(3, 25), st.data())
def test_any_single_edit_is_found(seed, size, data):
    lines = [line for line, _ in program(seed, size)]
    at = data.draw(st.integers(0, size - 1))
    edited = re.sub(r"arith\.\w+", "arith.divf", lines[at])
    before = body_of(*lines, *map(store, [f"v{i}" for i in range(size)]))
    after = body_of(
        *lines[:at], edited, *lines[at + 1 :], *map(store, [f"v{i}" for i in range(size)])
    )
    found = totals(before, after)
    assert (found["removed"], found["added"]) == (1, 1)
    assert not compare(before, after).identical


def test_large_modules_are_compared_in_full():
    count = 4000
    lines = [
        unary("exp", "e0", "a"),
        *(unary("exp", f"e{i}", f"e{i - 1}") for i in range(1, count)),
    ]
    changed = [unary("tanh", "e0", "a"), *lines[1:]]
    comparison = compare(body_of(*lines, store("e3999")), body_of(*changed, store("e3999")))
    assert dict(comparison.totals) == {"removed": 1, "added": 1, "changed": 1}


def test_only_the_first_of_many_differences_are_spelled_out():
    lines = list(
        itertools.chain(*([unary("exp", f"e{i}", "a"), store(f"e{i}")] for i in range(600)))
    )
    comparison = compare(body_of(), body_of(*lines))
    assert dict(comparison.totals) == {"added": 1200}
    assert len(comparison.operations) < 1200
    assert f"and {1200 - len(comparison.operations)} more" in report.render(comparison)


# --- algebra ---------------------------------------------------------------------------


def test_unknown_operation_is_named():
    lines = "%t = stablehlo.constant dense<1.0> : tensor<2xf32>"
    kernel = body_of(lines, "%u = stablehlo.cosine %t : tensor<2xf32>")
    algebra = raise_schedule(kernel).algebra
    assert dict(algebra.unknown) == {"stablehlo.constant": 1, "stablehlo.cosine": 1}
    verdict = report.render_algebra(compare(kernel, body_of()).algebra)
    assert "unknown operations, not compared: stablehlo.constant, stablehlo.cosine" in verdict


def test_backends_are_set_side_by_side(all_backends):
    assert set(all_backends) == {"mosaic_tpu", "mosaic_gpu", "triton"}
    tpu = all_backends["mosaic_tpu"]
    for other in (all_backends["mosaic_gpu"], all_backends["triton"]):
        comparison = compare(tpu, other)
        assert comparison.side_by_side
        assert comparison.algebra.same
        assert comparison.algebra.by == "kinds"
        assert not comparison.operations
        text = report.render(comparison)
        assert "evidence, not proof" in text
        assert re.search(r"grid +8 \(arbitrary\) +8 x 1 x 1 \(parallel\)", text)


def test_missing_kind_of_computation_differs_across_backends(all_backends):
    (other,) = (
        k
        for k in capture(
            lambda x: pl.pallas_call(
                lambda x_ref, o_ref: o_ref.__setitem__(..., jnp.tanh(x_ref[...])), out_shape=X
            )(x),
            X,
            target="v5e",
        )
        if k.backend == "mosaic_tpu"
    )
    comparison = compare(all_backends["triton"], other)
    assert not comparison.algebra.same
    assert {"exp", "tanh"} <= {c.name for c in comparison.algebra.differences}


# --- JSON ------------------------------------------------------------------------------


def test_schedules_and_comparisons_read_back(all_backends, kernel):
    for one, two in itertools.product([*all_backends.values(), synchronous(kernel)], repeat=2):
        comparison = compare(one, two)
        assert report.from_json(json.loads(json.dumps(report.to_json(comparison)))) == comparison
    for one in all_backends.values():
        schedule = raise_schedule(one)
        assert schedule_from_json(json.loads(json.dumps(schedule_to_json(schedule)))) == schedule
        assert render_schedule(schedule)


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("identical", "yes", "'identical' should be bool, is str"),
        ("schedule", {}, "'schedule' should be a list, is dict"),
        ("totals", [["moved"]], "'totals' should have 2 members, has 1"),
        ("totals", [["moved", True]], "'totals' should be int, is bool"),
    ],
)
def test_damaged_json_is_refused(kernel, field, value, message):
    data = report.to_json(compare(kernel, kernel)) | {field: value}
    with pytest.raises((TypeError, ValueError), match=re.escape(message)):
        report.from_json(data)


def test_json_without_a_field_is_refused(kernel):
    data = report.to_json(compare(kernel, kernel))
    del data["algebra"]
    with pytest.raises(KeyError, match="algebra"):
        report.from_json(data)


def test_identical_is_said_in_one_line(kernel):
    comparison: Comparison = compare(kernel, kernel)
    assert report.render(comparison).endswith(
        "identical, up to names, locations and the places of constants"
    )
