"""What the graph lets through and what it refuses."""

from __future__ import annotations

import pytest

from mosaic_toolkit.errors import Refused
from mosaic_toolkit.graph import Graph
from mosaic_toolkit.jax_compat import ir, print_module
from tests.graphs import (
    BUFFER,
    HBM,
    PIECE,
    SEM,
    V8,
    VMEM,
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


def _names(graph: Graph) -> list[str]:
    return [op.attributes["tag"].value for op in graph.ops() if "tag" in op.attributes]


def _refuses(graph: Graph, match: str, mutate) -> None:
    """Refused, with these words, and nothing changed."""
    before = print_module(graph.module)
    with pytest.raises(Refused, match=match):
        mutate()
    assert print_module(graph.module) == before
    graph.kernel()


# --- moving ---------------------------------------------------------------------


def test_moving_past_what_is_unrelated():
    body = store("a", "%x", "%c0") + store("b", "%x", "%c8") + load("c", "%y", "%c0")
    graph = graph_of(function(f"%x: {VMEM}, %y: {VMEM}", body))
    view = graph.nx
    graph.move_before(tagged(graph, "c"), tagged(graph, "a"))
    assert graph.nx is not view
    assert _names(graph) == ["c", "a", "b"]
    graph.move_after(tagged(graph, "a"), tagged(graph, "b"))
    assert _names(graph) == ["c", "b", "a"]
    graph.kernel()


def test_moving_past_a_conflicting_access_names_buffer_operations_and_lines():
    body = store("s", "%x", "%c0") + load("l", "%x", "%c0")
    asm = function(f'%x: {VMEM} loc("x_ref")', body).replace(
        '{tag = "s"} : ' + f"{VMEM}, {V8}", '{tag = "s"} : ' + f'{VMEM}, {V8} loc("kernel.py":7:3)'
    )
    graph = graph_of(asm)
    s, loaded = tagged(graph, "s"), tagged(graph, "l")
    words = r"'vector.load' before 'vector.store' \(kernel.py:7\).*RAW through 'x_ref'"
    _refuses(graph, words, lambda: graph.move_before(loaded, s))
    _refuses(graph, "WAR|RAW", lambda: graph.move_after(s, loaded))


def test_moving_past_an_operand_or_a_user():
    body = f'%v = arith.addf %cst, %cst {{tag = "v"}} : {V8}\n' + store(
        "s", "%x", "%c0", value="%v"
    )
    graph = graph_of(function(f"%x: {VMEM}", body))
    v, s = tagged(graph, "v"), tagged(graph, "s")
    _refuses(graph, "uses a result", lambda: graph.move_before(s, v))
    _refuses(graph, "uses a result", lambda: graph.move_after(v, s))


def test_moving_past_a_user_inside_a_region():
    body = f'%v = arith.addf %cst, %cst {{tag = "v"}} : {V8}\n' + (
        "scf.if %p {\n" + store("s", "%x", "%c0", value="%v") + '} {tag = "if"}\n'
    )
    graph = graph_of(function(f"%x: {VMEM}, %p: i1", body))
    _refuses(
        graph, "uses a result", lambda: graph.move_after(tagged(graph, "v"), tagged(graph, "if"))
    )


_COPY = f"%h: {HBM}, %o: {HBM}, %a: {BUFFER}, %b: {BUFFER}, %s: {SEM}"
_PIECES = f"""
%p = tpu.memref_slice %h[%i0, %i0] : {HBM} -> {PIECE}
%q = tpu.memref_slice %o[%i0, %i0] : {HBM} -> {PIECE}
"""


def _copy(dummy: bool = False) -> Graph:
    source, target = ("%q", "%b") if dummy else ("%p", "%a")
    body = (
        _PIECES
        + start("go", "%p", "%a", "%s")
        + wait("done", source, target, "%s")
        + load("l", "%a", "%c0", BUFFER)
    )
    return graph_of(function(_COPY, body))


@pytest.mark.parametrize("dummy", [False, True])
def test_a_load_stays_below_the_wait_that_completes_its_copy(dummy):
    graph = _copy(dummy)
    _refuses(
        graph,
        "RAW through 'arg2'",
        lambda: graph.move_before(tagged(graph, "l"), tagged(graph, "done")),
    )


def test_a_wait_stays_below_its_start():
    graph = _copy()
    move = lambda: graph.move_before(tagged(graph, "done"), tagged(graph, "go"))  # noqa: E731
    _refuses(graph, "through", move)


def test_an_accumulator_is_not_used_above_the_wait_for_its_product():
    graph = Graph(real_kernel("matmul_hopper"))
    refused = 0
    for op in graph.ops("llvm.inline_asm"):
        if "wgmma.wait_group" not in op.attributes["asm_string"].value:
            continue
        for _, user, data in list(graph.nx.out_edges(graph.node(op), data=True)):
            if data["buffer"] == "registers of asynchronous operations":
                with pytest.raises(Refused, match="asynchronous"):
                    graph.move_before(graph.op(user), op)
                refused += 1
                break
    assert refused


def test_no_load_of_a_real_ring_moves_above_a_wait():
    graph = Graph(real_kernel("dma_ring_tpu"))
    refused = 0
    for op in list(graph.ops()):
        if not op.name.startswith("tpu.wait_dma"):
            continue
        for other in op.block.operations:
            other = other.operation
            if other.name == "vector.load" and op.is_before_in_block(other):
                with pytest.raises(Refused, match="RAW"):
                    graph.move_before(other, op)
                refused += 1
                break
    assert refused


def test_a_terminator_stays_last():
    graph = graph_of(function(f"%x: {VMEM}", load("l", "%x", "%c0")))
    (ret,) = graph.ops("func.return")
    loaded = tagged(graph, "l")
    _refuses(graph, "terminator", lambda: graph.move_before(ret, loaded))
    _refuses(graph, "terminator", lambda: graph.move_after(loaded, ret))
    graph.move_before(loaded, ret)


_LOOP = """
scf.for %n = %c0 to %c8 step %c4 {{
  %pure = arith.muli %c4, %c8 {{tag = "pure"}} : index
  %inner = arith.addi %n, %c8 {{tag = "inner"}} : index
  %div = arith.divui %c4, %z {{tag = "div"}} : index
  {load}
}} {{tag = "for"}}
"""


def test_only_what_has_no_effect_leaves_a_loop():
    body = _LOOP.format(load=load("l", "%x", "%pure"))
    graph = graph_of(function(f"%x: {VMEM}, %z: index", body))
    loop = tagged(graph, "for")
    _refuses(graph, "must stay after", lambda: graph.move_before(tagged(graph, "inner"), loop))
    _refuses(graph, "cannot trap", lambda: graph.move_before(tagged(graph, "div"), loop))
    _refuses(graph, "no effects", lambda: graph.move_before(tagged(graph, "l"), loop))
    _refuses(graph, "must stay after", lambda: graph.move_after(tagged(graph, "pure"), loop))
    graph.move_before(tagged(graph, "pure"), loop)
    assert _names(graph) == ["pure", "for", "inner", "div", "l"]
    graph.kernel()


# --- erasing and replacing --------------------------------------------------------


def test_erasing_what_nothing_needs():
    graph = graph_of(function(f"%x: {VMEM}", load("l", "%x", "%c0")))
    graph.erase(tagged(graph, "l"))
    assert _names(graph) == []
    graph.kernel()


def test_erasing_what_is_used_or_seen():
    body = load("l", "%x", "%c0") + store("s", "%y", "%c0", value="%l")
    graph = graph_of(function(f"%x: {VMEM}, %y: {VMEM}", body))
    _refuses(graph, "uses a result", lambda: graph.erase(tagged(graph, "l")))
    _refuses(graph, "'arg1', which outlives", lambda: graph.erase(tagged(graph, "s")))
    _refuses(graph, "terminator", lambda: graph.erase(next(graph.ops("func.return"))))
    _refuses(graph, "defines 'k'", lambda: graph.erase(next(graph.ops("func.func"))))


def test_erasing_a_store_to_an_allocation():
    alloc = f"%m = memref.alloca() : {VMEM}\n"
    graph = graph_of(function("", alloc + store("s", "%m", "%c0")))
    graph.erase(tagged(graph, "s"))
    graph = graph_of(function("", alloc + load("l", "%m", "%c0") + store("s", "%m", "%c0")))
    _refuses(graph, "RAW through 'alloca", lambda: graph.erase(tagged(graph, "s")))


def test_replacing_a_load_by_a_value():
    body = load("l", "%x", "%c0") + store("s", "%y", "%c0", value="%l")
    graph = graph_of(function(f"%x: {VMEM}, %y: {VMEM}", body))
    constant = next(op for op in graph.ops("arith.constant") if str(op.results[0].type) == V8)
    graph.replace(tagged(graph, "l"), constant.results[0])
    assert _names(graph) == ["s"]
    assert tagged(graph, "s").operands[0] == constant.results[0]
    graph.kernel()


def test_replacing_by_what_does_not_fit():
    body = (
        load("l", "%x", "%c0")
        + store("s", "%y", "%c0", value="%l")
        + f'%v = arith.addf %cst, %cst {{tag = "late"}} : {V8}\n'
    )
    graph = graph_of(function(f"%x: {VMEM}, %y: {VMEM}", body))
    loaded = tagged(graph, "l")
    zero = next(graph.ops("arith.constant")).results[0]
    _refuses(graph, "has results", lambda: graph.replace(loaded, zero))
    _refuses(
        graph, "not defined before", lambda: graph.replace(loaded, tagged(graph, "late").results[0])
    )
    _refuses(graph, "outlives", lambda: graph.replace(tagged(graph, "s"), []))


# --- building and attributes --------------------------------------------------------


def test_building_before_an_operation():
    body = load("l", "%x", "%c0") + store("s", "%y", "%c0", value="%l")
    graph = graph_of(function(f"%x: {VMEM}, %y: {VMEM}", body))
    loaded, s = tagged(graph, "l"), tagged(graph, "s")
    view = graph.nx
    with graph.inserting_before(s):
        value = loaded.results[0]
        added = ir.Operation.create("arith.addf", results=[value.type], operands=[value, value])
    assert graph.nx is not view
    assert graph.node(added) == graph.node(s) - 1
    graph.kernel()


def test_setting_an_attribute():
    graph = graph_of(function(f"%x: {VMEM}", load("l", "%x", "%c0")))
    note = ir.StringAttr.get("yes", context=graph.context)
    graph.set_attribute(tagged(graph, "l"), "note", note)
    assert tagged(graph, "l").attributes["note"] == note


def test_setting_an_attribute_that_moves_an_access_or_does_not_verify():
    view = "memref<8x64xf32, strided<[128, 1], offset: ?>, #tpu.memory_space<vmem>>"
    body = f'%v = memref.subview %x[%n, 0] [8, 64] [1, 1] {{tag = "v"}} : {VMEM} to {view}\n'
    graph = graph_of(function(f"%x: {VMEM}, %n: index", body))
    sizes = ir.DenseI64ArrayAttr.get([4, 64], context=graph.context)
    offsets = ir.DenseI64ArrayAttr.get(
        [ir.ShapedType.get_dynamic_size(), 64], context=graph.context
    )
    v = tagged(graph, "v")
    _refuses(
        graph, "cannot set 'static_sizes'", lambda: graph.set_attribute(v, "static_sizes", sizes)
    )
    _refuses(graph, "other memory", lambda: graph.set_attribute(v, "static_offsets", offsets))


def test_setting_a_constant_that_an_access_is_placed_by():
    body = store("s", "%x", "%c0") + load("l", "%x", "%c8") + load("other", "%x", "%c4")
    graph = graph_of(function(f"%x: {VMEM}", body))
    eight = next(op for op in graph.ops("arith.constant") if "8 : index" in str(op))
    zero = ir.IntegerAttr.get(ir.IndexType.get(graph.context), 0)
    _refuses(graph, "other memory", lambda: graph.set_attribute(eight, "value", zero))


def test_erasing_a_loop_whose_writes_only_it_reads():
    inner = store("s", "%m", "%c0") + load("l", "%m", "%c0")
    loop = f'scf.for %i = %c0 to %c8 step %c4 {{\n{inner}}} {{tag = "loop"}}\n'
    graph = graph_of(function("", f"%m = memref.alloca() : {VMEM}\n{loop}"))
    graph.erase(tagged(graph, "loop"))
    assert not list(graph.ops("vector.store"))
    graph.kernel()


# --- rescheduling -------------------------------------------------------------------


def test_reschedule_puts_low_keys_first():
    body = store("a", "%x", "%c0") + store("b", "%x", "%c8") + load("c", "%x", "%c0")
    graph = graph_of(function(f"%x: {VMEM}", body))
    keys = {"a": 2, "b": 3, "c": 1}
    graph.reschedule(lambda op: keys[op.attributes["tag"].value] if "tag" in op.attributes else 0)
    assert _names(graph) == ["a", "c", "b"]
    graph.kernel()


def test_reschedule_by_a_constant_changes_nothing():
    for script in ("dma_ring_tpu", "matmul_hopper"):
        kernel = real_kernel(script)
        graph = Graph(kernel)
        graph.reschedule(lambda op: 0)
        assert graph.kernel() == kernel


def test_reschedule_hoists_copies_but_keeps_every_order():
    body = (
        _PIECES
        + load("l", "%b", "%c0", BUFFER)
        + start("go", "%p", "%a", "%s")
        + wait("done", "%p", "%a", "%s")
    )
    graph = graph_of(function(_COPY, body))
    before = ordered(graph)
    graph.reschedule(lambda op: 0 if op.name == "tpu.enqueue_dma" else 1)
    assert _names(graph) == ["go", "l", "done"]
    assert ordered(graph) == before


def test_reschedule_of_one_block_leaves_the_others():
    body = "scf.if %p {\n" + load("a", "%x", "%c0") + load("b", "%y", "%c0") + "}\n"
    body += load("c", "%x", "%c0") + load("d", "%y", "%c0")
    graph = graph_of(function(f"%x: {VMEM}, %y: {VMEM}, %p: i1", body))
    order = {"a": 1, "b": 0, "c": 1, "d": 0}
    block = tagged(graph, "a").block
    graph.reschedule(
        lambda op: order[op.attributes["tag"].value] if "tag" in op.attributes else 2, block
    )
    assert _names(graph) == ["b", "a", "c", "d"]


def test_replacing_a_store_by_another_one_in_its_place():
    body = store("s", "%x", "%c0") + load("l", "%x", "%c0")
    graph = graph_of(function(f"%x: {VMEM}", body))
    s = tagged(graph, "s")
    value, base, row, column = s.operands
    with graph.inserting_before(s):
        total = ir.Operation.create("arith.addf", results=[value.type], operands=[value, value])
        ir.Operation.create(
            "vector.store",
            operands=[total.results[0], base, row, column],
            attributes={"tag": ir.StringAttr.get("new")},
        )
    graph.replace(s, [])
    assert _names(graph) == ["new", "l"]
    assert ordered(graph) == {("new", "l")}
    graph.kernel()


def test_replacing_a_store_by_one_to_other_rows():
    body = store("s", "%x", "%c0") + load("l", "%x", "%c0")
    graph = graph_of(function(f"%x: {VMEM}", body))
    s = tagged(graph, "s")
    value, base, _, column = s.operands
    eight = next(
        op for op in graph.ops("arith.constant") if str(op.attributes["value"]) == "8 : index"
    )
    with graph.inserting_before(s):
        ir.Operation.create("vector.store", operands=[value, base, eight.results[0], column])
    _refuses(graph, "outlives", lambda: graph.replace(s, []))
