"""What is known of single operations: effects, indices, and pieces of memory."""

from __future__ import annotations

import pytest

from mosaic_toolkit.effects.memory import READ, READ_WRITE, WRITE
from tests.graphs import VMEM, edges, function, graph_of, load, ordered, store, tagged

# --- indices ----------------------------------------------------------------------


def _same_row(arithmetic: str) -> set[str]:
    """The loads, of rows %a and %b, that must follow a store to row %n."""
    body = store("s", "%x", "%n") + load("la", "%x", "%a") + load("lb", "%x", "%b")
    asm = function(f"%x: {VMEM}, %n: index, %k: i32, %p: i1", arithmetic + body)
    return {target[1:] for _, target, *_ in edges(graph_of(asm), "memory")}


@pytest.mark.parametrize(
    ("arithmetic", "expected"),
    [
        ("%a = arith.addi %n, %c8 : index\n%b = arith.subi %n, %c8 : index\n", set()),
        ("%a = arith.addi %n, %c4 : index\n%b = arith.subi %a, %c4 : index\n", {"a", "b"}),
        # 2n and n are not a constant apart.
        ("%a = arith.addi %n, %n : index\n%b = arith.addi %a, %c8 : index\n", {"a", "b"}),
        # Folded: 8 * 4 / 4 and 8 mod 8.
        (
            "%m = arith.muli %c8, %c4 : index\n%d = arith.divsi %m, %c4 : index\n"
            "%a = arith.addi %n, %d : index\n"
            "%r = arith.remsi %c8, %c8 : index\n%b = arith.addi %n, %r : index\n",
            {"b"},
        ),
        # A choice between constants that is made here.
        (
            "%t = arith.cmpi slt, %c4, %c8 : index\n%o = arith.select %t, %c8, %c0 : index\n"
            "%a = arith.addi %n, %o : index\n"
            "%u = arith.select %p, %c8, %c0 : index\n%b = arith.addi %n, %u : index\n",
            {"b"},
        ),
    ],
)
def test_what_is_known_of_rows(arithmetic, expected):
    assert _same_row(arithmetic) == expected


def test_equal_arithmetic_on_equal_operands_is_equal():
    arithmetic = "".join(
        f"%w{n} = arith.index_cast %n : index to i32\n"
        f"%r{n} = arith.remsi %w{n}, %k : i32\n"
        f"%i{n}x = arith.index_cast %r{n} : i32 to index\n"
        for n in "ab"
    )
    arithmetic += "%b8 = arith.addi %ibx, %c8 : index\n"
    body = store("s", "%x", "%iax") + load("same", "%x", "%ibx") + load("next", "%x", "%b8")
    asm = function(f"%x: {VMEM}, %n: index, %k: i32", arithmetic + body)
    assert edges(graph_of(asm), "memory") == {("s", "same", "RAW", "arg0")}


def test_a_loaded_index_is_another_one_each_time():
    table = "memref<4xindex, #tpu.memory_space<smem>>"
    body = (
        f"%a = memref.load %t[%c0] : {table}\n%b = memref.load %t[%c0] : {table}\n"
        "%b8 = arith.addi %b, %c8 : index\n" + store("s", "%x", "%a") + load("l", "%x", "%b8")
    )
    assert edges(graph_of(function(f"%x: {VMEM}, %t: {table}", body)), "memory") == {
        ("s", "l", "RAW", "arg0")
    }


# --- accesses -----------------------------------------------------------------------


def _touched(graph, tag: str) -> set[tuple[str, int]]:
    own = graph.dependences.effects.own(tagged(graph, tag))
    return {(access.resource.name, access.mode) for access in own.accesses}


def test_a_store_that_adds_reads_too():
    asm = function(
        f"%x: {VMEM}, %m: memref<8x128xf32, #tpu.memory_space<vmem>>",
        "tpu.vector_store %x[%c0, %c0], %cst {add = true, strides = array<i32>,"
        f' tag = "s"}} : {VMEM}, vector<8x128xf32>,\n',
    )
    assert _touched(graph_of(asm), "s") == {("arg0", READ_WRITE)}


def test_a_strided_load_reaches_every_row_between():
    body = (
        '%v = tpu.strided_load %x[%c0, %c0] {strides = array<i32: 2, 1>, tag = "l"}'
        f" : {VMEM}, vector<4x128xf32>\n"
    )
    body += store("inside", "%x", "%c4") + store("outside", "%x", "%c8")
    found = edges(graph_of(function(f"%x: {VMEM}", body)), "memory")
    assert ("l", "inside", "WAR", "arg0") in found
    assert not any((a, b) == ("l", "outside") for a, b, *_ in found)


_TMEM = "memref<128x256xf32, #mosaic_gpu.tmem>"
_HALF = "memref<128x128xf32, #mosaic_gpu.tmem>"
_POINTER = "memref<i32, #gpu.address_space<workgroup>>"


def _tensor_memory(second: int) -> str:
    write = '"mosaic_gpu.async_store_tmem"(%v, {0}) {{tag = "{1}"}} : (vector<128x128xf32>, {2}) -> ()\n'
    return f"""
func.func @k() {{
  %v = arith.constant dense<1.0> : vector<128x128xf32>
  %p = "mosaic_gpu.slice_smem"() <{{offset = 0 : i32}}> : () -> {_POINTER}
  %t = "mosaic_gpu.tmem_alloc"(%p) <{{collective = false, packing = 1 : i32}}> : ({_POINTER}) -> {_TMEM}
  %a = "mosaic_gpu.slice_tmem"(%t) <{{offset = 0 : i32}}> : ({_TMEM}) -> {_HALF}
  %b = "mosaic_gpu.slice_tmem"(%t) <{{offset = {second} : i32}}> : ({_TMEM}) -> {_HALF}
  {write.format("%a", "a", _HALF)}
  {write.format("%b", "b", _HALF)}
  %l = "mosaic_gpu.async_load_tmem"(%a) {{tag = "l"}} : ({_HALF}) -> vector<128x128xf32>
  llvm.inline_asm has_side_effects {{tag = "wait"}} "tcgen05.wait::ld.sync.aligned;", "" : () -> ()
  %u = arith.addf %l, %v {{tag = "use"}} : vector<128x128xf32>
  return
}}"""


def test_columns_of_tensor_memory():
    through = [
        {
            (a, b)
            for a, b, _, buffer in edges(graph_of(_tensor_memory(n), "mosaic_gpu"), "memory")
            if buffer == "tmem" and b != "wait"
        }
        for n in (128, 64)
    ]
    assert through == [{("a", "l")}, {("a", "b"), ("a", "l"), ("b", "l")}]


def test_a_load_of_tensor_memory_is_used_after_its_wait():
    graph = graph_of(_tensor_memory(128), "mosaic_gpu")
    assert {("l", "wait"), ("wait", "use")} <= ordered(graph)
    assert ("l", "wait", "tmem access", "tmem access group") in edges(graph, "async")


def test_a_warp_shuffle_is_no_barrier_and_a_barrier_is_one():
    memory = "memref<8x128xf32, #gpu.address_space<workgroup>>"
    body = (
        store("s", "%x", "%c0", memory)
        + '%e = nvvm.elect.sync {tag = "elect"} -> i1\n'
        + 'gpu.barrier {tag = "barrier"}\n'
        + load("l", "%y", "%c0", memory)
    )
    graph = graph_of(function(f"%x: {memory}, %y: {memory}", body), "mosaic_gpu")
    assert ordered(graph) == {("s", "barrier"), ("barrier", "l"), ("s", "l")}


def test_what_mlir_declares_is_the_default():
    memory = "memref<8x128xf32>"
    body = f'memref.copy %x, %y {{tag = "copy"}} : {memory} to {memory}\n'
    graph = graph_of(function(f"%x: {memory}, %y: {memory}", body))
    assert _touched(graph, "copy") == {("arg0", READ), ("arg1", WRITE)}
