"""Small modules for the graph's tests, and reading edges off them by tag."""

from __future__ import annotations

import functools
import runpy
from pathlib import Path

import jax
import jax.numpy as jnp

from mosaic_toolkit.capture import capture
from mosaic_toolkit.graph import Graph
from mosaic_toolkit.kernel import ArrayType, Kernel

KERNELS = Path(__file__).parent.parent / "dumps" / "kernels"

VMEM = "memref<16x128xf32, #tpu.memory_space<vmem>>"
HBM = "memref<64x128xf32, #tpu.memory_space<hbm>>"
PIECE = "memref<8x128xf32, #tpu.memory_space<hbm>>"
BUFFER = "memref<8x128xf32, #tpu.memory_space<vmem>>"
RING = "memref<2x8x128xf32, #tpu.memory_space<vmem>>"
SLOT = "memref<1x8x128xf32, #tpu.memory_space<vmem>>"
SEM = "memref<!tpu.dma_semaphore, #tpu.memory_space<semaphore_mem>>"
SEMS = "memref<2x!tpu.dma_semaphore, #tpu.memory_space<semaphore_mem>>"
SEMS_SLOT = "memref<1x!tpu.dma_semaphore, #tpu.memory_space<semaphore_mem>>"
V8 = "vector<8x128xf32>"


def kernel_of(asm: str, backend: str = "mosaic_tpu", *, operands: int = 0, aliases=()) -> Kernel:
    types = (ArrayType("float32", (64, 128)),) * operands
    return Kernel("k", backend, "dialect", "v5e", asm, operands=types, aliases=aliases)


def graph_of(asm: str, backend: str = "mosaic_tpu", **options) -> Graph:
    return Graph(kernel_of(asm, backend, **options))


def function(arguments: str, body: str) -> str:
    """A kernel of one function, with the constants that the bodies use."""
    return f"""
func.func @k({arguments}) {{
  %c0 = arith.constant 0 : index
  %c4 = arith.constant 4 : index
  %c8 = arith.constant 8 : index
  %i0 = arith.constant 0 : i32
  %i1 = arith.constant 1 : i32
  %cst = arith.constant dense<1.0> : {V8}
  {body}
  return
}}"""


def load(tag: str, buffer: str, row: str, type_: str = VMEM) -> str:
    return f'%{tag} = vector.load {buffer}[{row}, %c0] {{tag = "{tag}"}} : {type_}, {V8}\n'


def store(tag: str, buffer: str, row: str, type_: str = VMEM, value: str = "%cst") -> str:
    return f'vector.store {value}, {buffer}[{row}, %c0] {{tag = "{tag}"}} : {type_}, {V8}\n'


def start(tag: str, source: str, target: str, semaphore: str) -> str:
    return (
        f"tpu.enqueue_dma source({source} : {PIECE}) target({target} : {BUFFER})"
        f' target_semaphore({semaphore} : {SEM}) {{tag = "{tag}"}}\n'
    )


def wait(tag: str, source: str, target: str, semaphore: str) -> str:
    return (
        f"tpu.wait_dma2 semaphore({semaphore} : {SEM}) src({source} : {PIECE})"
        f' dst({target} : {BUFFER}) {{tag = "{tag}"}}\n'
    )


def tagged(graph: Graph, tag: str):
    return next(
        op for op in graph.ops() if "tag" in op.attributes and op.attributes["tag"].value == tag
    )


def edges(graph: Graph, kind: str, *, carried: bool = False) -> set[tuple[str, str, str, str]]:
    """(source, target, detail, buffer) of the edges between tagged operations."""
    tags = {
        graph.node(op): op.attributes["tag"].value for op in graph.ops() if "tag" in op.attributes
    }
    return {
        (tags[a], tags[b], data["detail"], data["buffer"])
        for a, b, data in graph.nx.edges(data=True)
        if data["kind"] == kind and data["carried"] == carried and a in tags and b in tags
    }


def ordered(graph: Graph) -> set[tuple[str, str]]:
    """(before, after) of all tagged operations that a path of plain edges joins."""
    import networkx

    plain = networkx.DiGraph(
        (a, b)
        for a, b, data in graph.nx.edges(data=True)
        if not data["carried"] and not data["concurrent"]
    )
    tags = {
        graph.node(op): op.attributes["tag"].value for op in graph.ops() if "tag" in op.attributes
    }
    return {
        (tags[node], tags[other])
        for node in tags
        if node in plain
        for other in networkx.descendants(plain, node)
        if other in tags
    }


def struct(dtype, *shape: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, dtype)


_CALLS = {
    "matmul_tpu": ("matmul", "v5e", [struct(jnp.bfloat16, 512, 512)] * 2),
    "flash_attention_tpu": (
        "flash_attention",
        "v5e",
        [struct(jnp.bfloat16, 1, 256, 128)] * 3,
    ),
    "dma_ring_tpu": ("scale", "v5e", [struct(jnp.float32, 256, 128)]),
    "matmul_hopper": ("matmul", "h100", [struct(jnp.float16, 256, 256)] * 2),
    "softmax_triton": ("softmax", "h100", [struct(jnp.float32, 8, 200)]),
}
REAL_KERNELS = tuple(_CALLS)


@functools.cache
def real_kernel(script: str) -> Kernel:
    """The kernel of one of our example scripts."""
    name, target, arguments = _CALLS[script]
    call = runpy.run_path(str(KERNELS / f"{script}.py"))[name]
    return capture(call, *arguments, target=target)[0]
