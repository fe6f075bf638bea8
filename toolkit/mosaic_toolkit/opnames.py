"""One canonical name for every dialect's operations, so that kernels can be compared."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .jax_compat import ir

SCHEDULE = "(schedule)"  # moves data or time, or names an address; computes nothing


def meaning(op: ir.Operation) -> str | None:
    """Canonical name of a compute operation, `SCHEDULE`, or None where no table knows it."""
    dialect, _, name = op.name.partition(".")
    if op.name in _SPECIAL:
        return _SPECIAL[op.name](op)
    if op.name in COMPUTE:
        return COMPUTE[op.name]
    if dialect == "math":
        return _MATH.get(name, name)
    if dialect in _SCHEDULE_DIALECTS or op.name in _SCHEDULE_OPS:
        return SCHEDULE
    if dialect == "nvvm":
        return _nvvm(name)
    if dialect == "llvm":
        return _llvm(name)
    return None


def spelling(op: ir.Operation) -> str:
    """The operation's name, with what it calls where the name alone says little."""
    for attribute in ("asm_string", "callee", "intrin", "symbol"):
        if attribute in op.attributes:
            text = " ".join(str(op.attributes[attribute]).strip('"@').replace("\\0A", " ").split())
            return f"{op.name} {text if len(text) <= 60 else text[:57] + '...'}"
    return op.name


def element(type: ir.Type) -> str:
    """Element type of a vector, tensor or memref; of anything else, the type."""
    return str(getattr(type, "element_type", type))


def typed_results(op: ir.Operation) -> list[ir.Value]:
    """The results, and the accumulator of an operation that works in place."""
    return list(op.results) or list(op.operands)[:1]


def typed_operands(op: ir.Operation) -> list[ir.Value]:
    """The operands whose element types distinguish one compute operation from another."""
    operands = list(op.operands)
    if COMPUTE.get(op.name) == "matmul" and op.name.startswith("mosaic_gpu."):
        return operands[1:3]  # the accumulator stands first
    if COMPUTE.get(op.name) == "matmul":
        return operands[:2]
    if op.name == "arith.select":
        return operands[1:]
    if COMPUTE.get(op.name) == "reduce" or op.name in _SPECIAL:
        return operands[:1]
    return operands


# --- names ------------------------------------------------------------------------


def _names(dialect: str, groups: dict[str, str]) -> dict[str, str]:
    return {f"{dialect}.{op}": name for name, ops in groups.items() for op in ops.split()}


_CASTS = "extf truncf sitofp uitofp fptosi fptoui"
COMPUTE: dict[str, str] = {
    **_names(
        "arith",
        {
            "add": "addf addi",
            "sub": "subf subi",
            "mul": "mulf muli",
            "div": "divf divsi divui floordivsi ceildivsi ceildivui",
            "rem": "remf remsi remui",
            "max": "maximumf maxnumf maximumnumf maxsi maxui",
            "min": "minimumf minnumf minimumnumf minsi minui",
            "neg": "negf",
            "and": "andi",
            "or": "ori",
            "xor": "xori",
            "shift-left": "shli",
            "shift-right": "shrsi shrui",
            "compare": "cmpf cmpi",
            "select": "select",
            "convert": f"{_CASTS} extsi extui trunci convertf scaling_extf scaling_truncf",
            "bitcast": "bitcast",
            "mul-extended": "mulsi_extended mului_extended",
            "add-extended": "addui_extended subui_extended",
        },
    ),
    **_names(
        "vector",
        {
            "matmul": "contract",
            "outer-product": "outerproduct",
            "fma": "fma",
            "transpose": "transpose",
            "slice": "extract_strided_slice",
            "update-slice": "insert_strided_slice",
            "iota": "step",
            "interleave": "interleave",
            "deinterleave": "deinterleave",
            "shuffle": "shuffle",
            "bitcast": "bitcast",
        },
    ),
    **_names(
        "tpu",
        {
            "matmul": "matmul matmul_push_rhs matmul_pop matmul_acc_lhs matmul_lhs_fifo matmul_pop_fifo",
            "convolution": "conv",
            "convert": _CASTS,
            "stochastic-convert": "stochastic_convert stochastic_convert_elementwise",
            "reduce-precision": "reduce_precision",
            "reciprocal": "reciprocal",
            "log": "log",
            "logistic": "logistic",
            "transpose": "transpose",
            "concatenate": "concatenate",
            "gather": "gather dynamic_gather",
            "rotate": "dynamic_rotate",
            "repeat": "repeat",
            "sort": "sort",
            "scan-count": "scan_count",
            "iota": "iota",
            "bitcast": "bitcast bitcast_vreg",
            "pack": "pack_elementwise pack_subelements pack_vmsk",
            "unpack": "unpack_elementwise unpack_subelements",
            "shuffle": "sublane_shuffle",
            "random-seed": "prng_set_seed_32",
            "random-bits": "prng_random_bits",
            "atomic-add": "fetch_and_add_sync",
        },
    ),
    **_names(
        "mosaic_gpu",
        {
            "matmul": "wgmma mma tcgen05_mma",
            "iota": "broadcasted_iota",
            "concatenate": "vector_concat",
        },
    ),
    **_names(
        "tt",
        {
            "matmul": "dot dot_scaled",
            "transpose": "trans",
            "iota": "make_range",
            "convert": "fp_to_fp",
            "bitcast": "bitcast",
            "clamp": "clampf",
            "div": "precise_divf approx_divf",
            "sqrt": "precise_sqrt",
            "mul-high": "mulhiui",
            "gather": "gather",
            "interleave": "join",
            "deinterleave": "split",
            "histogram": "histogram",
            "atomic-compare-and-swap": "atomic_cas",
        },
    ),
    **_names(
        "llvm",
        {
            "add": "fadd add",
            "sub": "fsub sub",
            "mul": "fmul mul",
            "div": "fdiv sdiv udiv",
            "rem": "frem srem urem",
            "neg": "fneg",
            "and": "and",
            "or": "or",
            "xor": "xor",
            "shift-left": "shl",
            "shift-right": "lshr ashr",
            "compare": "fcmp icmp",
            "select": "select",
            "convert": "fpext fptrunc sitofp uitofp fptosi fptoui sext zext trunc",
            "shuffle": "shufflevector",
        },
    ),
    **_names("gpu", {"shuffle": "shuffle rotate subgroup_broadcast", "vote": "ballot"}),
}
_MATH = {
    **dict.fromkeys(("absf", "absi"), "abs"),
    **dict.fromkeys(("powf", "fpowi", "ipowi"), "pow"),
    "clampf": "clamp",
    "roundeven": "round-even",
    "ctpop": "population-count",
    "ctlz": "count-leading-zeros",
    "cttz": "count-trailing-zeros",
}
_REDUCTIONS = (
    (r"add|sum", "sum"),
    (r"max", "max"),
    (r"min", "min"),
    (r"mul", "product"),
    (r"xor", "xor"),
    (r"and", "and"),
    (r"or", "or"),
)


def _reduction(prefix: str, kind: str) -> str:
    for pattern, name in _REDUCTIONS:
        if re.search(pattern, kind):
            return f"{prefix}-{name}"
    return prefix


def _reduction_of_kind(prefix: str):
    def name(op: ir.Operation) -> str:
        kinds = [k for k in ("kind", "reduction_type", "operation", "op") if k in op.attributes]
        return _reduction(prefix, str(op.attributes[kinds[0]]).split("<")[-1]) if kinds else prefix

    return name


def _reduction_of_region(prefix: str):
    def name(op: ir.Operation) -> str:
        body = [inner.operation.name for inner in op.regions[0].blocks[0].operations]
        computing = [name for name in body if name in COMPUTE]
        return _reduction(prefix, computing[0].partition(".")[2]) if len(computing) == 1 else prefix

    return name


_ATOMICS = {"fadd": "add", "addf": "add", "addi": "add", "exch": "exchange"}


def _atomic(op: ir.Operation) -> str:
    kind = re.search(r"\d+", str(op.attributes["atomic_rmw_op"]))
    names = ("and", "or", "xor", "add", "add", "max", "min", "max", "min", "exchange")
    return (
        f"atomic-{names[int(kind[0]) - 1]}" if kind and 0 < int(kind[0]) <= len(names) else "atomic"
    )


def _library_call(symbol: str, op: ir.Operation) -> str | None:
    if not symbol.startswith("__nv_"):
        return None
    name = symbol.removeprefix("__nv_").removeprefix("fast_")
    result = element(op.results[0].type) if len(op.results) else ""
    name = name.removesuffix("f") if result == "f32" else name
    return {"fabs": "abs", "fmod": "rem", "fmax": "max", "fmin": "min"}.get(name, name)


def _extern(op: ir.Operation) -> str | None:
    return _library_call(op.attributes["symbol"].value, op)


def _call(op: ir.Operation) -> str | None:
    return _library_call(op.attributes["callee"].value, op) if "callee" in op.attributes else None


_SYNCHRONISING = re.compile(
    r"(setmaxnreg|fence|bar\.|barrier\.|wgmma\.(fence|commit|wait)|mbarrier|cp\.async|membar|mapa"
    r"|((multimem\.)?red|st|ld|atom)\.(relaxed|acquire|release|volatile)"
    r"|griddepcontrol|nanosleep|prefetch|tcgen05\.(commit|wait|fence|alloc|dealloc)|elect|mov\.)"
)
_INSTRUCTIONS = {"ex2": "exp2", "lg2": "log2", "rcp": "reciprocal", "cvt": "convert"}


def asm_statements(op: ir.Operation) -> list[str]:
    """PTX statements of inline assembly, without predicates and declarations."""
    lines = re.split(r"[;\n]", op.attributes["asm_string"].value)
    statements = (re.sub(r"^@\S+\s+", "", line.strip(" {}\t")) for line in lines)
    return [s for s in statements if s and not s.startswith(".")]


def _inline_asm(op: ir.Operation) -> str | None:
    statements = asm_statements(op)
    if all(_SYNCHRONISING.match(s) for s in statements):
        return SCHEDULE
    if len(statements) != 1:
        return None
    word = statements[0].split()[0].split(".")[0]
    known = {"tanh", "sin", "cos", "sqrt", "rsqrt", "fma", "add", "mul", "sub", "max", "min"}
    return _INSTRUCTIONS.get(word, word if word in known else None)


_SPECIAL = {
    "vector.multi_reduction": _reduction_of_kind("reduce"),
    "vector.reduction": _reduction_of_kind("reduce"),
    "vector.scan": _reduction_of_kind("scan"),
    "tpu.reduce": _reduction_of_kind("reduce"),
    "tpu.all_reduce": _reduction_of_kind("reduce"),
    "tpu.reduce_index": _reduction_of_kind("reduce-index"),
    "tpu.scan": _reduction_of_kind("scan"),
    "gpu.all_reduce": _reduction_of_kind("reduce"),
    "gpu.subgroup_reduce": _reduction_of_kind("reduce"),
    "nvvm.redux.sync": _reduction_of_kind("reduce"),
    "mosaic_gpu.multimem_load_reduce": _reduction_of_kind("reduce"),
    "tt.reduce": _reduction_of_region("reduce"),
    "tt.scan": _reduction_of_region("scan"),
    "tt.atomic_rmw": _atomic,
    "memref.atomic_rmw": lambda op: _reduction("atomic", str(op.attributes["kind"])),
    "tt.extern_elementwise": _extern,
    "llvm.call": _call,
    "llvm.inline_asm": _inline_asm,
    "tt.elementwise_inline_asm": _inline_asm,
}

_SCHEDULE_DIALECTS = frozenset({"scf", "cf", "func", "builtin", "memref", "ub"})


def _schedule(dialect: str, ops: str) -> set[str]:
    return {f"{dialect}.{op}" for op in ops.split()}


_SCHEDULE_OPS = frozenset(
    _schedule("arith", "constant index_cast index_castui")
    | _schedule(
        "vector",
        "load store maskedload maskedstore gather scatter transfer_read transfer_write broadcast"
        " shape_cast extract insert yield mask create_mask constant_mask from_elements to_elements"
        " expandload compressstore type_cast print",
    )
    | _schedule(
        "tpu",
        "load store vector_load vector_store vector_load_idx vector_store_idx strided_load"
        " strided_store shuffled_load shuffled_store vector_expand_load vector_compress_store"
        " expand_load_vreg compress_store_vreg reshape memref_slice memref_squeeze memref_reshape"
        " memref_bitcast memref_memory_space_is shared_memref_slice reinterpret_cast"
        " erase_memref_layout assume_layout assume_multiple enqueue_dma enqueue_indirect_dma"
        " wait_dma wait_dma2 wait_indirect_dma sem_alloc sem_barrier sem_read sem_signal sem_wait"
        " barrier device_id core_id subcore_id iteration_bound tile_size internal_scratch region"
        " yield trace trace_start trace_stop trace_value annotate delay log_buffer roll_vectors"
        " unroll_vectors mask_cast create_mask create_subelement_mask broadcast_in_sublanes weird",
    )
    | _schedule(
        "mosaic_gpu",
        "alloc_smem alloca_scope alloca_scope.return arrive arrive_expect_tx"
        " arrive_dyn_expect_tx_supported assume_multiple"
        " async_load async_load_tmem async_prefetch async_store async_store_scales_smem_to_tmem"
        " async_store_smem async_store_smem_to_tmem async_store_sparse_metadata_smem_to_tmem"
        " async_store_tmem broadcast_in_dim custom_primitive debug_print get_cluster_ref"
        " initialize_barrier layout_cast optimization_barrier print_layout query_cluster_cancel"
        " reinterpret_cast return run_scoped slice_smem slice_tmem tcgen05_commit_arrive tmem_alloc"
        " tmem_dealloc tmem_layout_cast tmem_relinquish_alloc_permit try_cluster_cancel vector_load"
        " vector_store wait warp_map with_transforms",
    )
    | _schedule(
        "tt",
        "addptr assert atomic_load atomic_poll atomic_store broadcast call descriptor_gather"
        " descriptor_load descriptor_reduce descriptor_scatter descriptor_store expand_dims func"
        " get_num_programs get_program_id grid_dependency_launch_dependents grid_dependency_wait"
        " int_to_ptr load make_tensor_descriptor map_elementwise map_elementwise.return print"
        " ptr_to_int reduce.return reshape return scan.return splat store unsplat",
    )
    | _schedule(
        "gpu",
        "barrier block_dim block_id cluster_block_id cluster_dim cluster_dim_blocks cluster_id"
        " dynamic_shared_memory grid_dim global_id lane_id launch launch_func module func return"
        " num_subgroups printf subgroup_id subgroup_size terminator thread_id wait yield binary"
        " warp_execute_on_lane_0",
    )
    | _schedule(
        "llvm",
        "addressof addrspacecast alloca bitcast br cond_br extractelement extractvalue fence func"
        " getelementptr insertelement insertvalue inttoptr load mlir.constant mlir.global mlir.poison"
        " mlir.undef mlir.zero ptrtoint return store switch unreachable atomicrmw cmpxchg comdat"
        " comdat_selector freeze",
    )
)

_NVVM = (
    (r"(mma|wmma\.mma|wgmma\.mma_async|tcgen05\.mma)(?!_smem)", "matmul"),
    (r"dot\.accumulate", "matmul"),
    (r"ex2", "exp2"),
    (r"log2", "log2"),
    (r"rcp", "reciprocal"),
    (r"rsqrt", "rsqrt"),
    (r"sqrt", "sqrt"),
    (r"sin", "sin"),
    (r"cos", "cos"),
    (r"convert", "convert"),
    (r"fma", "fma"),
    (r"(add|sub|div)f", r"\1"),
    (r"(shfl|movmatrix|prmt)", "shuffle"),
    (r"(vote|match)", "vote"),
    (
        r"(read\.ptx|mbarrier|barrier|bar\.|cp\.async|fence|cluster|elect|ldmatrix|stmatrix"
        r"|tcgen05|wgmma|wmma|griddepcontrol|mapa|prefetch|setmaxregister|nanosleep|tensormap"
        r"|memory\.barrier|st\.bulk|store\.async|exit|breakpoint|pmevent)",
        SCHEDULE,
    ),
)


def _nvvm(name: str) -> str | None:
    for pattern, canonical in _NVVM:
        match = re.match(pattern, name)
        if match:
            return match.expand(canonical) if "\\" in canonical else canonical
    return None


_LLVM_SCHEDULE_INTRINSICS = frozenset(
    {"lifetime", "assume", "stacksave", "stackrestore", "memcpy", "memset", "memmove", "dbg"}
)


def _llvm(name: str) -> str | None:
    if not name.startswith("intr."):
        return None
    word = name.removeprefix("intr.").partition(".")[0]
    if word in _LLVM_SCHEDULE_INTRINSICS:
        return SCHEDULE
    names = {"fmuladd": "fma", "fabs": "abs", "maxnum": "max", "minnum": "min", "maximum": "max"}
    names |= {"minimum": "min", "smax": "max", "smin": "min", "umax": "max", "umin": "min"}
    if word == "vector" and "reduce" in name:
        return _reduction("reduce", name.rpartition(".")[2])
    return names.get(word, _MATH.get(word, word))
