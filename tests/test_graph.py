"""Which dependences the graph finds, on modules small enough to list them all."""

from __future__ import annotations

import networkx
import pytest

from mosaic_toolkit.graph import Graph
from tests.graphs import (
    BUFFER,
    HBM,
    PIECE,
    REAL_KERNELS,
    RING,
    SEM,
    SEMS,
    SEMS_SLOT,
    SLOT,
    V8,
    VMEM,
    edges,
    function,
    graph_of,
    load,
    ordered,
    real_kernel,
    start,
    store,
    tagged,
    wait,
)

# --- buffers and boxes --------------------------------------------------------


def test_read_after_write_and_back():
    body = store("s1", "%x", "%c0") + load("l", "%x", "%c0") + store("s2", "%x", "%c0")
    graph = graph_of(function(f"%x: {VMEM}", body))
    assert edges(graph, "memory") == {
        ("s1", "l", "RAW", "arg0"),
        ("l", "s2", "WAR", "arg0"),
        ("s1", "s2", "WAW", "arg0"),
    }


def test_two_reads_are_independent():
    graph = graph_of(function(f"%x: {VMEM}", load("a", "%x", "%c0") + load("b", "%x", "%c0")))
    assert edges(graph, "memory") == set()


def test_disjoint_rows_have_no_edge():
    body = store("low", "%x", "%c0") + store("high", "%x", "%c8") + load("l", "%x", "%c0")
    graph = graph_of(function(f"%x: {VMEM}", body))
    assert edges(graph, "memory") == {("low", "l", "RAW", "arg0")}


def test_overlapping_rows_have_an_edge():
    body = store("low", "%x", "%c0") + store("middle", "%x", "%c4")
    graph = graph_of(function(f"%x: {VMEM}", body))
    assert edges(graph, "memory") == {("low", "middle", "WAW", "arg0")}


def test_unknown_index_has_an_edge():
    body = store("known", "%x", "%c8") + load("unknown", "%x", "%n")
    graph = graph_of(function(f"%x: {VMEM}, %n: index", body))
    assert edges(graph, "memory") == {("known", "unknown", "RAW", "arg0")}


def test_rows_a_constant_apart_are_told_apart_although_spelled_twice():
    body = (
        "%a = arith.muli %n, %c8 : index\n"
        "%b = arith.muli %n, %c8 : index\n"
        "%c = arith.addi %b, %c8 : index\n"
        "%d = arith.addi %b, %c4 : index\n"
        + store("s", "%x", "%a")
        + load("apart", "%x", "%c")
        + load("across", "%x", "%d")
    )
    graph = graph_of(function(f"%x: {VMEM}, %n: index", body))
    assert edges(graph, "memory") == {("s", "across", "RAW", "arg0")}


def test_distinct_arguments_do_not_alias():
    body = store("s", "%x", "%c0") + load("l", "%y", "%c0")
    graph = graph_of(function(f"%x: {VMEM}, %y: {VMEM}", body))
    assert edges(graph, "memory") == set()


def test_aliased_hbm_operands_are_one_buffer():
    body = store("s", "%x", "%c0", HBM) + load("l", "%y", "%c0", HBM)
    asm = function(f"%x: {HBM}, %y: {HBM}", body)
    assert edges(graph_of(asm, operands=1), "memory") == set()
    aliased = graph_of(asm, operands=1, aliases=((0, 0),))
    assert edges(aliased, "memory") == {("s", "l", "RAW", "arg0")}


def test_windows_of_aliased_operands_are_copies_apart():
    body = store("s", "%x", "%c0") + load("l", "%y", "%c0")
    asm = function(f"%x: {VMEM}, %y: {VMEM}", body)
    assert edges(graph_of(asm, operands=1, aliases=((0, 0),)), "memory") == set()


def test_a_chosen_reference_may_be_either_buffer():
    body = (
        f"%m = arith.select %p, %x, %y : {VMEM}\n"
        + store("x", "%x", "%c0")
        + store("w", "%w", "%c0")
        + load("z", "%m", "%c0")
    )
    graph = graph_of(function(f"%x: {VMEM}, %y: {VMEM}, %w: {VMEM}, %p: i1", body))
    assert edges(graph, "memory") == {("x", "z", "RAW", "arg0")}


def test_an_unknown_reference_may_be_any_buffer_of_its_space():
    body = (
        f"%m = func.call @view(%x) : ({VMEM}) -> {VMEM}\n"
        + store("y", "%y", "%c0")
        + store("h", "%h", "%c0", HBM)
        + load("z", "%m", "%c0")
    )
    asm = function(f"%x: {VMEM}, %y: {VMEM}, %h: {HBM}", body)
    graph = graph_of(f"{asm}\nfunc.func private @view({VMEM}) -> {VMEM}\n")
    assert edges(graph, "memory") == {("y", "z", "RAW", "arg1")}


def test_views_are_chased_to_their_buffer():
    part = "memref<1x8x128xf32, #tpu.memory_space<vmem>>"
    body = (
        f"%p0 = tpu.memref_slice %r[%i0, %i0, %i0] : {RING} -> {part}\n"
        f"%b0 = tpu.memref_squeeze %p0 : {part} -> {BUFFER}\n"
        f"%p1 = tpu.memref_slice %r[%i1, %i0, %i0] : {RING} -> {part}\n"
        f"%b1 = tpu.memref_squeeze %p1 : {part} -> {BUFFER}\n"
        f"%f = tpu.memref_reshape %r : {RING} -> memref<2x1024xf32, #tpu.memory_space<vmem>>\n"
        f"%g = tpu.memref_slice %f[%i1, %i0] : memref<2x1024xf32, #tpu.memory_space<vmem>>"
        " -> memref<1x1024xf32, #tpu.memory_space<vmem>>\n"
        + store("s0", "%b0", "%c0", BUFFER)
        + load("l0", "%b0", "%c0", BUFFER)
        + load("l1", "%b1", "%c0", BUFFER)
        + store("s1", "%b1", "%c0", BUFFER)
        + '%l = memref.load %g[%c0, %c4] {tag = "reshaped"}'
        " : memref<1x1024xf32, #tpu.memory_space<vmem>>\n"
    )
    graph = graph_of(function(f"%r: {RING}", body))
    assert edges(graph, "memory") == {
        ("s0", "l0", "RAW", "arg0"),
        ("l1", "s1", "WAR", "arg0"),
        ("s1", "reshaped", "RAW", "arg0"),
    }


def test_slicing_a_subview_by_a_constant_keeps_the_rows():
    low = "memref<8x128xf32, strided<[128, 1]>, #tpu.memory_space<vmem>>"
    high = "memref<8x128xf32, strided<[128, 1], offset: 1024>, #tpu.memory_space<vmem>>"
    body = (
        f"%low = memref.subview %x[0, 0] [8, 128] [1, 1] : {VMEM} to {low}\n"
        f"%high = memref.subview %x[8, 0] [8, 128] [1, 1] : {VMEM} to {high}\n"
        + store("low", "%low", "%c0", low)
        + load("inside", "%high", "%n", high)
        + load("all", "%x", "%n")
    )
    graph = graph_of(function(f"%x: {VMEM}, %n: index", body))
    assert edges(graph, "memory") == {("low", "all", "RAW", "arg0")}


# --- regions and loops ----------------------------------------------------------


def test_a_region_has_the_effects_of_its_body():
    body = (
        store("s", "%x", "%c0") + 'scf.if %p {\n  "memref.store"(%f, %x, %c0, %c0) {tag = "inner"}'
        f" : (f32, {VMEM}, index, index) -> ()\n"
        '} {tag = "if"}\n' + load("l", "%x", "%c0") + load("other", "%y", "%c0")
    )
    graph = graph_of(function(f"%x: {VMEM}, %y: {VMEM}, %p: i1, %f: f32", body))
    assert edges(graph, "memory") == {
        ("s", "if", "WAW", "arg0"),
        ("s", "l", "RAW", "arg0"),
        ("if", "l", "RAW", "arg0"),
    }
    assert edges(graph, "region") == {("if", "inner", "", "")}


def _loop(body: str) -> str:
    return f"scf.for %n = %c0 to %c8 step %c4 {{\n{body}}}\n"


def test_loop_carried_dependences():
    graph = graph_of(
        function(f"%x: {VMEM}", _loop(load("l", "%x", "%c0") + store("s", "%x", "%c0")))
    )
    assert edges(graph, "memory") == {("l", "s", "WAR", "arg0")}
    assert edges(graph, "memory", carried=True) == {
        ("s", "l", "RAW", "arg0"),
        ("s", "s", "WAW", "arg0"),
    }


def test_rows_that_are_apart_in_one_iteration_may_meet_in_the_next():
    body = "%m = arith.addi %n, %c8 : index\n" + load("l", "%x", "%n") + store("s", "%x", "%m")
    graph = graph_of(function(f"%x: {VMEM}", _loop(body)))
    assert edges(graph, "memory") == set()
    assert ("s", "l", "RAW", "arg0") in edges(graph, "memory", carried=True)


def test_rows_of_the_induction_variable_are_unknown_outside_the_loop():
    body = _loop(store("in", "%x", "%n")).replace("}\n", '} {tag = "for"}\n') + load(
        "out", "%x", "%c8"
    )
    graph = graph_of(function(f"%x: {VMEM}", body))
    assert ("for", "out", "RAW", "arg0") in edges(graph, "memory")


def test_values_carried_by_a_loop():
    body = (
        f"%r = scf.for %n = %c0 to %c8 step %c4 iter_args(%a = %cst) -> ({V8}) {{\n"
        f'%b = arith.addf %a, %a {{tag = "add"}} : {V8}\n'
        f'scf.yield {{tag = "yield"}} %b : {V8}\n}}\n'
    )
    body = body.replace('scf.yield {tag = "yield"} %b', "scf.yield %b")
    graph = graph_of(function("", body))
    add = graph.node(tagged(graph, "add"))
    (back,) = {a for a, _, d in graph.nx.in_edges(add, data=True) if d["carried"]}
    assert graph.nx.nodes[back]["op"] == "scf.yield"


# --- unknown and pure operations --------------------------------------------------


def test_an_unknown_call_is_ordered_with_everything_that_touches_memory():
    body = (
        store("s", "%x", "%c0")
        + 'func.call @f() {tag = "call"} : () -> ()\n'
        + f'%v = arith.addf %cst, %cst {{tag = "pure"}} : {V8}\n'
        + load("l", "%x", "%c8")
    )
    graph = graph_of(function(f"%x: {VMEM}", body) + "\nfunc.func private @f()\n")
    assert ordered(graph) == {("s", "call"), ("s", "l"), ("call", "l")}


def test_random_numbers_keep_their_order_but_not_with_memory():
    body = (
        '"tpu.prng_set_seed_32"(%i0) {tag = "seed"} : (i32) -> ()\n'
        '%a = "tpu.prng_random_bits"() {tag = "bits"} : () -> vector<8x128xi32>\n'
        + load("l", "%x", "%c0")
    )
    graph = graph_of(function(f"%x: {VMEM}", body))
    assert edges(graph, "memory") == {("seed", "bits", "RAW", "random generator")}


# --- TPU copies -------------------------------------------------------------------

_COPY = f"%h: {HBM}, %o: {HBM}, %a: {BUFFER}, %b: {BUFFER}, %s: {SEM}, %t: {SEM}"
_PIECES = f"""
%p = tpu.memref_slice %h[%i0, %i0] : {HBM} -> {PIECE}
%q = tpu.memref_slice %o[%i0, %i0] : {HBM} -> {PIECE}
"""


def test_a_copy_is_paired_with_its_wait():
    body = (
        _PIECES
        + start("go", "%p", "%a", "%s")
        + store("other", "%b", "%c0", BUFFER)
        + wait("done", "%p", "%a", "%s")
        + load("l", "%a", "%c0", BUFFER)
    )
    graph = graph_of(function(_COPY, body))
    assert edges(graph, "async") == {("go", "done", "dma", "arg4")}
    assert ordered(graph) == {("go", "done"), ("go", "l"), ("done", "l")}


def test_a_wait_that_names_other_references_completes_the_copy_on_its_semaphore():
    body = (
        _PIECES
        + start("go", "%p", "%a", "%s")
        + wait("done", "%q", "%b", "%s")
        + load("l", "%a", "%c0", BUFFER)
        + store("reuse", "%h", "%c0", HBM)
    )
    graph = graph_of(function(_COPY, body))
    assert edges(graph, "async") == {("go", "done", "dma", "arg4")}
    assert {("done", "l"), ("done", "reuse")} <= ordered(graph)


def test_copies_on_distinct_semaphores_are_independent():
    body = (
        _PIECES
        + start("go1", "%p", "%a", "%s")
        + start("go2", "%p", "%b", "%t")
        + wait("done2", "%p", "%b", "%t")
        + wait("done1", "%p", "%a", "%s")
    )
    graph = graph_of(function(_COPY, body))
    assert edges(graph, "async") == {
        ("go1", "done1", "dma", "arg4"),
        ("go2", "done2", "dma", "arg5"),
    }
    assert ordered(graph) == {("go1", "done1"), ("go2", "done2")}


def test_a_wait_for_a_copy_that_nothing_here_starts_is_ordered_with_all_memory():
    body = _PIECES + wait("done", "%p", "%a", "%s") + load("l", "%b", "%c0", BUFFER)
    graph = graph_of(function(_COPY, body))
    assert ordered(graph) == {("done", "l")}


_RING = f"%h: {HBM}, %r: {RING}, %s: {SEMS}, %n: i32"


def _slot(name: str, index: str) -> str:
    return f"""
%{name}_0 = tpu.memref_slice %r[{index}, %i0, %i0] : {RING} -> {SLOT}
%{name} = tpu.memref_squeeze %{name}_0 : {SLOT} -> {BUFFER}
%{name}_1 = tpu.memref_slice %s[{index}] : {SEMS} -> {SEMS_SLOT}
%{name}_sem = tpu.memref_squeeze %{name}_1 : {SEMS_SLOT} -> {SEM}
"""


_PIECE_OF_H = f"%p = tpu.memref_slice %h[%i0, %i0] : {HBM} -> {PIECE}\n"


def test_slots_of_a_ring_are_separate():
    body = (
        _PIECE_OF_H
        + _slot("a", "%i0")
        + _slot("b", "%i1")
        + start("go0", "%p", "%a", "%a_sem")
        + start("go1", "%p", "%b", "%b_sem")
        + wait("done0", "%p", "%a", "%a_sem")
        + load("l0", "%a", "%c0", BUFFER)
        + wait("done1", "%p", "%b", "%b_sem")
        + load("l1", "%b", "%c0", BUFFER)
    )
    graph = graph_of(function(_RING, body))
    assert edges(graph, "async") == {
        ("go0", "done0", "dma", "arg2"),
        ("go1", "done1", "dma", "arg2"),
    }
    apart = ordered(graph)
    assert {("go0", "done0"), ("done0", "l0"), ("go1", "done1"), ("done1", "l1")} <= apart
    assert not {pair for pair in apart if pair[0][-1] != pair[1][-1]}


def test_a_slot_chosen_at_run_time_may_be_any():
    body = (
        _PIECE_OF_H
        + _slot("a", "%i0")
        + _slot("b", "%n")
        + start("go", "%p", "%a", "%a_sem")
        + wait("done", "%p", "%b", "%b_sem")
        + load("l", "%a", "%c0", BUFFER)
    )
    graph = graph_of(function(_RING, body))
    assert edges(graph, "async") == {("go", "done", "dma", "arg2")}
    assert ("done", "l") in ordered(graph)


def test_copies_once_waited_for_are_not_paired_again():
    body = _PIECE_OF_H + _slot("a", "%i0")
    for n in range(3):
        body += start(f"go{n}", "%p", "%a", "%a_sem") + wait(f"done{n}", "%p", "%a", "%a_sem")
    graph = graph_of(function(_RING, body))
    assert edges(graph, "async") == {(f"go{n}", f"done{n}", "dma", "arg2") for n in range(3)}


def test_a_copy_started_in_one_iteration_is_awaited_in_the_next():
    body = (
        _PIECE_OF_H
        + "scf.for %k = %c0 to %c8 step %c4 {\n"
        + "%k32 = arith.index_cast %k : index to i32\n"
        + "%next = arith.addi %k32, %i1 : i32\n"
        + _slot("cur", "%k32")
        + _slot("nxt", "%next")
        + wait("done", "%p", "%cur", "%cur_sem")
        + load("l", "%cur", "%c0", BUFFER)
        + start("go", "%p", "%nxt", "%nxt_sem")
        + "}\n"
    )
    graph = graph_of(function(_RING, body))
    assert edges(graph, "async") == set()
    assert edges(graph, "async", carried=True) == {("go", "done", "dma", "arg2")}
    assert {("done", "l"), ("done", "go")} <= ordered(graph)


def test_signals_are_paired_with_waits_and_fence_memory():
    regular = "memref<!tpu.semaphore, #tpu.memory_space<semaphore_mem>>"
    body = (
        store("s", "%x", "%c0")
        + f'tpu.sem_signal %m, %i1 {{tag = "signal"}} : {regular}\n'
        + f'tpu.sem_wait %m, %i1 {{tag = "wait"}} : {regular}\n'
        + load("l", "%y", "%c0")
    )
    graph = graph_of(function(f"%x: {VMEM}, %y: {VMEM}, %m: {regular}", body))
    assert edges(graph, "async") == {("signal", "wait", "semaphore", "arg2")}
    assert {("s", "signal"), ("signal", "wait"), ("wait", "l")} <= ordered(graph)


# --- Mosaic GPU -------------------------------------------------------------------

_BARRIERS = "memref<2x!mosaic_gpu.barrier, #gpu.address_space<workgroup>>"
_BARRIER = "memref<!mosaic_gpu.barrier, #gpu.address_space<workgroup>>"
_SMEM = "memref<64x64xf16, #gpu.address_space<workgroup>>"
_GMEM = "memref<64x64xf16>"


def _gpu(body: str) -> str:
    return f"""
func.func @k(%g: {_GMEM}, %p: i1) {{
  %i0 = arith.constant 0 : i32
  %i256 = arith.constant 256 : i32
  %c0 = arith.constant 0 : index
  %v = arith.constant dense<1.0> : vector<64x64xf16>
  %a = "mosaic_gpu.slice_smem"() <{{offset = 0 : i32}}> : () -> {_SMEM}
  %b = "mosaic_gpu.slice_smem"() <{{offset = 8192 : i32}}> : () -> {_SMEM}
  %all = "mosaic_gpu.slice_smem"() <{{offset = 16384 : i32}}> : () -> {_BARRIERS}
  %one = memref.subview %all[0] [1] [1] : {_BARRIERS} to {_BARRIER}
  %ptr = builtin.unrealized_conversion_cast %one : {_BARRIER} to !llvm.ptr<3>
  {body}
  return
}}"""


def _arrive(tag: str, expect: bool = True) -> str:
    if expect:
        return f'mosaic_gpu.arrive_expect_tx barrier(%one : {_BARRIER}) %i256 {{tag = "{tag}"}}\n'
    return f'"mosaic_gpu.arrive"(%one) <{{orders_tensor_core = false}}> {{tag = "{tag}"}} : ({_BARRIER}) -> ()\n'


def _fetch(tag: str, buffer: str) -> str:
    return (
        f'"mosaic_gpu.async_load"(%g, {buffer}, %one, %i0, %i0) <{{collective = [],'
        " oob_fill_mode = 2 : i32, operandSegmentSizes = array<i32: 1, 1, 1, 2, 0, 0>,"
        f' slice_lengths = array<i64: 64, 64>}}> {{tag = "{tag}"}}'
        f" : ({_GMEM}, {_SMEM}, {_BARRIER}, i32, i32) -> ()\n"
    )


def _await(tag: str) -> str:
    operands = "%ptr, %i0, %i256"
    return f'nvvm.mbarrier.try_wait.parity {operands} {{tag = "{tag}"}} : !llvm.ptr<3>, i32, i32\n'


def _read(tag: str, buffer: str) -> str:
    return f'%{tag} = "mosaic_gpu.vector_load"({buffer}) {{tag = "{tag}"}} : ({_SMEM}) -> vector<64x64xf16>\n'


def _write(tag: str, buffer: str) -> str:
    return f'"mosaic_gpu.vector_store"(%v, {buffer}) <{{multimem = false}}> {{tag = "{tag}"}} : (vector<64x64xf16>, {_SMEM}) -> ()\n'


def test_a_barrier_pairs_the_copy_and_the_arrival_with_the_wait():
    graph = graph_of(
        _gpu(_arrive("arrive") + _fetch("copy", "%a") + _await("wait") + _read("l", "%a")),
        "mosaic_gpu",
    )
    assert edges(graph, "async") == {
        ("arrive", "wait", "barrier", "smem+16384"),
        ("copy", "wait", "barrier", "smem+16384"),
    }
    assert {("arrive", "wait"), ("copy", "wait"), ("wait", "l")} <= ordered(graph)


def test_pieces_of_shared_memory_at_other_offsets_are_other_buffers():
    graph = graph_of(_gpu(_write("a", "%a") + _write("b", "%b") + _read("l", "%a")), "mosaic_gpu")
    assert edges(graph, "memory") == {("a", "l", "RAW", "smem+0")}


def test_pieces_of_shared_memory_that_overlap_are_one_buffer_whatever_their_alias_ids():
    body = (
        f'%u = "mosaic_gpu.slice_smem"() <{{alias_id = 1 : i64, offset = 4096 : i32}}> : () -> {_SMEM}\n'
        + _write("a", "%a")
        + _write("b", "%b")
        + _read("l", "%u")
    )
    graph = graph_of(_gpu(body), "mosaic_gpu")
    assert {(a, b) for a, b, *_ in edges(graph, "memory")} == {("a", "l"), ("b", "l")}


def _roles(selector: str) -> str:
    producer = _arrive("arrive") + _fetch("copy", "%a")
    return (
        f"scf.index_switch {selector}\ncase 0 {{\n{producer}scf.yield\n}}\n"
        f"default {{\n{_await('wait')}scf.yield\n}}\n"
    )


def test_dependences_between_warp_roles_are_concurrent():
    body = "%c128 = arith.constant 128 : index\n%t = gpu.thread_id x\n%w = arith.divui %t, %c128 : index\n"
    graph = graph_of(_gpu(body + _roles("%w")), "mosaic_gpu")
    found = {
        (graph.nx.nodes[a]["op"], graph.nx.nodes[b]["op"], d["concurrent"])
        for a, b, d in graph.nx.edges(data=True)
        if d["kind"] == "async"
    }
    assert found == {
        ("mosaic_gpu.arrive_expect_tx", "nvvm.mbarrier.try_wait.parity", True),
        ("mosaic_gpu.async_load", "nvvm.mbarrier.try_wait.parity", True),
    }


def test_branches_that_exclude_each_other_are_not_paired():
    body = "%w = arith.index_cast %i256 : i32 to index\n"
    graph = graph_of(_gpu(body + _roles("%w")), "mosaic_gpu")
    assert edges(graph, "async") == set()


def test_a_matrix_product_in_flight_is_used_after_its_wait():
    acc = "vector<64x64xf32>"
    asm = "llvm.inline_asm has_side_effects"
    body = (
        f"%z = arith.constant dense<0.0> : {acc}\n"
        f'%m = mosaic_gpu.wgmma accumulator(%z : {acc}) a(%a : {_SMEM}) b(%b : {_SMEM}) {{tag = "mma"}} -> {acc}\n'
        f'{asm} {{tag = "commit"}} "wgmma.commit_group.sync.aligned;", "" : () -> ()\n'
        f'{asm} {{tag = "wait"}} "wgmma.wait_group.sync.aligned 0;", "" : () -> ()\n'
        f'%u = arith.addf %m, %z {{tag = "use"}} : {acc}\n'
    )
    graph = graph_of(_gpu(body), "mosaic_gpu")
    assert ("mma", "wait", "wgmma", "wgmma group") in edges(graph, "async")
    assert {("mma", "wait"), ("wait", "use")} <= ordered(graph)


def test_pointers_into_one_buffer_are_compared_in_bytes():
    asm = """
llvm.func @k(%p: !llvm.ptr<1>, %q: !llvm.ptr<1>, %n: i32) {
  %c = llvm.mlir.constant(1.0 : f32) : f32
  %c1 = llvm.mlir.constant(1 : i32) : i32
  %m = llvm.add %n, %c1 : i32
  %a = llvm.getelementptr %p[%n] : (!llvm.ptr<1>, i32) -> !llvm.ptr<1>, f32
  %b = llvm.getelementptr %p[%m] : (!llvm.ptr<1>, i32) -> !llvm.ptr<1>, f32
  llvm.store %c, %a {tag = "s"} : f32, !llvm.ptr<1>
  %l0 = llvm.load %a {tag = "same"} : !llvm.ptr<1> -> f32
  %l1 = llvm.load %b {tag = "next"} : !llvm.ptr<1> -> f32
  %l2 = llvm.load %a {tag = "wide"} : !llvm.ptr<1> -> vector<2xf32>
  %l3 = llvm.load %q {tag = "other"} : !llvm.ptr<1> -> f32
  llvm.return
}"""
    graph = graph_of(asm, "mosaic_gpu")
    assert edges(graph, "memory") == {("s", "same", "RAW", "arg0"), ("s", "wide", "RAW", "arg0")}


def test_triton_pointers_are_chased_to_their_argument():
    pointers = "tensor<8x!tt.ptr<f32>>"
    asm = f"""
tt.func public @k(%x: !tt.ptr<f32>, %y: !tt.ptr<f32>) {{
  %r = tt.make_range {{end = 8 : i32, start = 0 : i32}} : tensor<8xi32>
  %xs = tt.splat %x : !tt.ptr<f32> -> {pointers}
  %xp = tt.addptr %xs, %r : {pointers}, tensor<8xi32>
  %ys = tt.splat %y : !tt.ptr<f32> -> {pointers}
  %yp = tt.addptr %ys, %r : {pointers}, tensor<8xi32>
  %v = tt.load %xp {{tag = "lx"}} : {pointers}
  tt.store %yp, %v {{tag = "sy"}} : {pointers}
  %w = tt.load %yp {{tag = "ly"}} : {pointers}
  tt.return
}}"""
    graph = graph_of(asm, "triton")
    assert edges(graph, "memory") == {("sy", "ly", "RAW", "arg1")}


# --- the view ---------------------------------------------------------------------


@pytest.mark.parametrize("script", REAL_KERNELS)
def test_plain_edges_are_acyclic_and_point_forward(script):
    graph = Graph(real_kernel(script))
    plain = [
        (a, b) for a, b, d in graph.nx.edges(data=True) if not d["carried"] and not d["concurrent"]
    ]
    assert networkx.is_directed_acyclic_graph(networkx.DiGraph(plain))
    assert len(graph.nx) == sum(1 for _ in graph.ops())
    assert any(
        d["line"].endswith(".py:" + d["line"].split(":")[-1])
        for _, d in graph.nx.nodes(data=True)
        if d["line"]
    )


def test_copies_of_a_real_ring_are_paired():
    graph = Graph(real_kernel("dma_ring_tpu"))
    waits = {graph.node(op) for op in graph.ops() if op.name.startswith("tpu.wait_dma")}
    starts = {graph.node(op) for op in graph.ops("tpu.enqueue_dma")}
    found = {(a, b) for a, b, d in graph.nx.edges(data=True) if d["detail"] == "dma"}
    assert {b for _, b in found} == waits
    assert {a for a, _ in found} == starts


def test_node_and_op_are_inverse_and_nodes_say_where_they_are():
    graph = Graph(real_kernel("matmul_tpu"))
    for node in graph.nx:
        assert graph.node(graph.op(node)) == node
        assert graph.nx.nodes[node]["op"] == graph.op(node).name
    assert [op.name for op in graph.ops("tpu.matmul")] == ["tpu.matmul"]


def test_the_kernel_of_an_unchanged_graph_is_the_kernel():
    kernel = real_kernel("matmul_tpu")
    assert Graph(kernel).kernel() == kernel


def test_blocks_of_a_branching_region_keep_to_themselves():
    asm = f"""
func.func @k(%x: {VMEM}, %p: i1) {{
  %c0 = arith.constant 0 : index
  %cst = arith.constant dense<1.0> : {V8}
  {store("a", "%x", "%c0")}
  cf.br ^loop
^loop:
  {load("b", "%x", "%c0")}
  {store("c", "%x", "%c0")}
  cf.cond_br %p, ^loop, ^end
^end:
  {load("d", "%x", "%c0")}
  return
}}"""
    graph = graph_of(asm)
    assert edges(graph, "memory") == {("b", "c", "WAR", "arg0")}
    graph.reschedule(lambda op: -graph.node(op))
    assert [op.attributes["tag"].value for op in graph.ops() if "tag" in op.attributes] == list(
        "abcd"
    )
    graph.kernel()
