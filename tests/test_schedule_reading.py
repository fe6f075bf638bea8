"""Index maps as text: what is printed means what the IR computes."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mosaic_toolkit import jax_compat
from mosaic_toolkit.backends import storage
from mosaic_toolkit.backends.expressions import Expressions, Unreadable

ir = jax_compat.ir
CONTEXT = jax_compat.make_context()
MEANINGS = {
    "addi": lambda a, b: a + b,
    "subi": lambda a, b: a - b,
    "muli": lambda a, b: a * b,
    "andi": lambda a, b: a & b,
    "ori": lambda a, b: a | b,
    "xori": lambda a, b: a ^ b,
    "floordivsi": lambda a, b: a // b,
    "minsi": min,
    "maxsi": max,
}


def returned(*lines: str):
    """(argument values, returned value) of a function of two i32, %i and %j, returning %r."""
    module = jax_compat.parse_module(
        "func.func @f(%i: i32, %j: i32) -> i32 {" + "\n".join(lines) + "\nreturn %r : i32 }",
        CONTEXT,
    )
    block = module.body.operations[0].regions[0].blocks[0]
    return module, list(block.arguments), list(block.operations)[-1].operands[0]


def text_of(*lines: str) -> str | int:
    _module, arguments, value = returned(*lines)
    return Expressions(dict(zip(arguments, ("i", "j"))).get).read(value)


@settings(max_examples=80, deadline=None)
@given(st.integers(0, 10**6), st.integers(-9, 9), st.integers(-9, 9))
def test_printed_expression_evaluates_to_what_the_ir_computes(seed, i, j):
    rng = random.Random(seed)
    known = {"i": i, "j": j}
    lines = []
    for number, constant in enumerate((0, 1, -2, 5)):
        lines.append(f"%c{number} = arith.constant {constant} : i32")
        known[f"c{number}"] = constant
    for number in range(6):
        name = rng.choice(list(MEANINGS))
        a = rng.choice(list(known))
        b = rng.choice([n for n in known if name != "floordivsi" or n in ("c1", "c2", "c3")])
        lines.append(f"%t{number} = arith.{name} %{a}, %{b} : i32")
        known[f"t{number}"] = MEANINGS[name](known[a], known[b])
    lines[-1] = lines[-1].replace("%t5", "%r")
    text = text_of(*lines)
    assert eval(str(text), {"i": i, "j": j, "min": min, "max": max}) == known["t5"]


@pytest.mark.parametrize(("a", "b"), [(7, 2), (-7, 2), (7, -2), (-7, -2)])
def test_signed_division_truncates_towards_zero(a, b):
    constants = [f"%a = arith.constant {a} : i32", f"%b = arith.constant {b} : i32"]
    assert text_of(*constants, "%r = arith.divsi %a, %b : i32") == int(a / b)
    assert text_of(*constants, "%r = arith.remsi %a, %b : i32") == a - b * int(a / b)


def test_branches_become_conditional_expressions():
    lines = [
        "%c3 = arith.constant 3 : i32",
        "%p = arith.cmpi slt, %i, %c3 : i32",
        "%r = scf.if %p -> (i32) { scf.yield %j : i32 } else { scf.yield %c3 : i32 }",
    ]
    assert text_of(*lines) == "(j if (i < 3) else 3)"


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("%r = math.absi %i : i32", "it depends on math.absi"),
        ("%z = arith.constant 0 : i32 %r = arith.divsi %z, %z : i32", "it divides by zero"),
        (
            "%m = arith.constant -1 : i32 %r = arith.shrui %m, %m : i32",
            "it is unsigned arithmetic on a negative number",
        ),
    ],
)
def test_what_cannot_be_read_says_why(line, why):
    with pytest.raises(Unreadable, match=why):
        text_of(line)


def test_expression_that_doubles_at_each_step_is_given_up():
    lines = ["%t0 = arith.addi %i, %j : i32"]
    lines += [f"%t{n} = arith.muli %t{n - 1}, %t{n - 1} : i32" for n in range(1, 40)]
    with pytest.raises(Unreadable, match="longer than 400 characters"):
        text_of(*lines, "%r = arith.addi %t39, %i : i32")


@pytest.mark.parametrize(
    ("type", "size"),
    [
        ("memref<8x128xf32>", 4096),
        ("memref<8x128xbf16>", 2048),
        ("memref<8x128xi8>", 1024),
        ("memref<8x128xi4>", 512),
        ("memref<3xi4>", 2),
        ("memref<8x128xi1>", 1024),
        ("memref<8x128xf8E5M2>", 1024),
        ("memref<f32>", 4),
        ("memref<0x8xf32>", 0),
        ("memref<4x!mosaic_gpu.barrier>", 32),
        ("memref<?x8xf32>", None),
        ("memref<2x!tpu.dma_semaphore>", None),
    ],
)
def test_sizes_in_memory(type, size):
    assert storage.size_of(ir.Type.parse(type, context=CONTEXT)) == size


@pytest.mark.parametrize(
    ("type", "space"),
    [
        ("memref<8xf32, #tpu.memory_space<vmem>>", "vmem"),
        ("memref<8xf32, #tpu.memory_space<semaphore_mem>>", "semaphore"),
        ("memref<8xf32, #gpu.address_space<workgroup>>", "smem"),
        ("memref<8xf32, #mosaic_gpu.tmem>", "tmem"),
        ("memref<8xf32, 3>", "smem"),
        ("memref<8xf32>", "hbm"),
    ],
)
def test_memories_have_one_name_for_all_backends(type, space):
    parsed = ir.Type.parse(type, context=CONTEXT)
    assert storage.space_of(parsed, "hbm") == space
