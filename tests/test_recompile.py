"""Compiling for chips that are not there, and what is said when that fails."""

from __future__ import annotations

import dataclasses
import importlib.util
import json
import os
import re
import signal
import time
import types
import warnings
from pathlib import Path
from unittest import mock

import jax
import jax.numpy as jnp
import pytest
from jax.experimental import pallas as pl
from jax.experimental.mosaic.gpu import fragmented_array
from jax.experimental.pallas import mosaic_gpu as plgpu
from jax.experimental.pallas import tpu as pltpu

from mosaic_toolkit import recompile
from mosaic_toolkit.backends import custom_call, get_backend
from mosaic_toolkit.capture import capture, payload_matches
from mosaic_toolkit.compiling import cuda, failure, tpu, worker
from mosaic_toolkit.compiling.process import Ending
from mosaic_toolkit.compiling.stablehlo import stablehlo_module
from mosaic_toolkit.errors import CompileError, InvalidModule, Unsupported
from mosaic_toolkit.jax_compat import ir, make_context
from mosaic_toolkit.kernel import ArrayType
from mosaic_toolkit.pass_pipeline import PassPipeline
from mosaic_toolkit.recompile import Compiled, Limits, compile_kernel, compile_kernels, retarget
from mosaic_toolkit.targets import TARGETS, get_target
from tests.corpus import noop, oracle
from tests.installed import needs_gpu, needs_tpu

KERNELS = Path(__file__).parent.parent / "dumps/kernels"


def example(name: str):
    spec = importlib.util.spec_from_file_location(name, KERNELS / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def struct(*shape, dtype=jnp.float32):
    return jax.ShapeDtypeStruct(shape, dtype)


@pytest.fixture(scope="module")
def matmul_tpu():
    a = struct(512, 512, dtype=jnp.bfloat16)
    (kernel,) = capture(example("matmul_tpu").matmul, a, a, target="v5e")
    return kernel


@pytest.fixture(scope="module")
def matmul_hopper():
    a = struct(128, 128, dtype=jnp.float16)
    (kernel,) = capture(example("matmul_hopper").matmul, a, a, target="h100")
    return kernel


@pytest.fixture(scope="module")
def softmax_triton():
    (kernel,) = capture(example("softmax_triton").softmax, struct(8, 128), target="h100")
    return kernel


def pallas(body, x, out, **options):
    def call(x):
        return pl.pallas_call(body, out_shape=out, **options)(x)

    (kernel,) = capture(call, x, target="v5e")
    return kernel


def too_large():
    """192 MiB of scratch, where v5e has 128 MiB of VMEM."""

    def body(x_ref, o_ref, scratch):
        o_ref[...] = x_ref[...] + scratch[0:8, 0:128]

    x = struct(8, 128)
    return pallas(body, x, x, scratch_shapes=[pltpu.VMEM((48 * 1024, 1024), jnp.float32)])


def illegal_layout():
    def body(x_ref, o_ref):
        o_ref[...] = x_ref[:, 3:131:2]

    return pallas(body, struct(8, 256), struct(8, 64), name="strided")


def long_to_compile():
    """Minutes of unrolled range reductions, which MLIR writes down at once."""

    def body(x_ref, o_ref):
        x = x_ref[...]
        for _ in range(40):
            x = jnp.sin(x)
        o_ref[...] = x

    return pallas(body, struct(512, 1024), struct(512, 1024), name="unrolled")


def aborting(kernel):
    """The compiler divides by the window's size."""
    asm = kernel.asm.replace(
        "window_bounds = array<i64: 256, 256>", "window_bounds = array<i64: 256, 0>", 1
    )
    assert asm != kernel.asm
    return dataclasses.replace(kernel, asm=asm)


# --- the program that is compiled ---------------------------------------------------


@pytest.mark.parametrize("kernel", ["matmul_tpu", "matmul_hopper", "softmax_triton"])
def test_the_program_carries_the_payload_and_the_types(kernel, request):
    kernel = request.getfixturevalue(kernel)
    module = stablehlo_module(kernel)
    calls = []

    def collect(op):
        if op.name == "stablehlo.custom_call":
            calls.append(op)
        return ir.WalkResult.ADVANCE

    module.operation.walk(collect)
    (call,) = calls
    backend = get_backend(kernel.backend)
    assert backend.payload(call) == backend.encode(kernel)
    assert custom_call.array_types(call.operands) == kernel.operands
    assert custom_call.array_types(call.results) == kernel.results
    again = backend.decode(call, kernel.target, kernel.asm, kernel.level, {})
    assert again.attributes == kernel.attributes


DTYPES = [
    *("bool", "bfloat16", "float16", "float32", "float64", "complex64", "complex128"),
    *(f"{sign}int{bits}" for sign in ("", "u") for bits in (2, 4, 8, 16, 32, 64)),
    *("float8_e4m3fn", "float8_e5m2", "float8_e4m3b11fnuz", "float8_e8m0fnu", "float4_e2m1fn"),
]


@pytest.mark.parametrize("dtype", DTYPES)
def test_every_element_type_has_its_mlir_type(dtype):
    array = ArrayType(dtype, (8, 128))
    with make_context(), ir.Location.unknown():
        type_ = custom_call.tensor_type(array)
    assert custom_call._dtype(str(type_.element_type)) == dtype


def test_a_dimension_known_only_at_run_time_is_unsupported(matmul_tpu):
    kernel = dataclasses.replace(matmul_tpu, operands=(ArrayType("float32", (-1, 128)),))
    with pytest.raises(Unsupported, match=r"float32\[-1,128\] has a dimension known only at run"):
        stablehlo_module(kernel)


def test_operands_of_another_kernel_are_named(matmul_tpu):
    kernel = dataclasses.replace(matmul_tpu, operands=matmul_tpu.operands[:1])
    with pytest.raises(InvalidModule, match="its custom call does not verify: .*operand"):
        stablehlo_module(kernel)


def newest_ptx(isa):
    """As where JAX's CUDA plugin finds a ptxas for that version of PTX."""
    extension = types.SimpleNamespace(_get_ptxas_isa_version=lambda: isa)
    library = types.SimpleNamespace(_mosaic_gpu_ext=extension)
    return mock.patch.object(fragmented_array, "mgpu_lib", library)


def test_a_kernel_is_lowered_again_for_the_ptx_that_it_was_captured_for():
    """PTX 9.2 converts what before has no instruction: another ptxas must not change a kernel."""

    def body(x_ref, o_ref):
        o_ref[...] = x_ref[...].astype(jnp.bfloat16)

    def convert(x):
        return pl.pallas_call(
            body,
            out_shape=struct(*x.shape, dtype=jnp.bfloat16),
            compiler_params=plgpu.CompilerParams(
                lowering_semantics=plgpu.LoweringSemantics.Warpgroup
            ),
        )(x)

    with newest_ptx(95):
        (kernel,) = capture(convert, struct(128, 128, dtype=jnp.float8_e4m3fn), target="b200")
    with newest_ptx(90):
        assert payload_matches(kernel)
        encoding = json.loads(kernel.encoding)
        assert encoding.pop("ptx_isa") == 95
        forgetful = dataclasses.replace(kernel, encoding=json.dumps(encoding))
        with pytest.raises(NotImplementedError, match="newer CUDA"):
            get_backend(kernel.backend).encode(forgetful)


# --- which chips ----------------------------------------------------------------------


def test_a_kernel_stays_with_its_platform(matmul_tpu):
    with pytest.raises(CompileError, match="Mosaic TPU, which has no compiler for h100") as error:
        retarget(matmul_tpu, "h100")
    assert "v4, v5e, v5p, v6e, tpu7x" in error.value.hint


def test_what_a_generation_lacks_is_named(matmul_hopper):
    assert retarget(matmul_hopper, "h200").target == "h200"
    with pytest.raises(CompileError, match=r"wgmma' exists only for compute capability 9\.0"):
        retarget(matmul_hopper, "b200")
    copying = dataclasses.replace(matmul_hopper, asm="mosaic_gpu.async_load")
    assert retarget(copying, "b200").target == "b200"
    with pytest.raises(CompileError, match=r"async_load' exists from compute capability 9\.0"):
        retarget(copying, "a100")


@pytest.mark.parametrize("name", [t.name for t in TARGETS.values() if t.platform == "cuda"])
def test_gpu_facts_come_from_the_table(name):
    target = get_target(name)
    text = cuda.gpu_target_config(target)
    assert f"core_count: {target.num_cores}" in text
    assert f"shared_memory_per_block_optin: {target.capacity('smem')}" in text


# --- compiling ------------------------------------------------------------------------


@needs_tpu
def test_tpu_chips_each_get_an_executable(matmul_tpu):
    v5e, v6e = compile_kernels([matmul_tpu, dataclasses.replace(matmul_tpu, target="v6e")])
    assert isinstance(v5e, Compiled) and isinstance(v6e, Compiled)
    assert (v5e.target, v6e.target) == ("v5e", "v6e")
    assert v5e.executable and v6e.executable and v5e.executable != v6e.executable


@needs_tpu
def test_a_kernel_that_names_other_chips_compiles():
    def body(x_ref, o_ref, send, receive):
        copy = pltpu.make_async_remote_copy(x_ref, o_ref, send, receive, 7, pl.DeviceIdType.LOGICAL)
        copy.start()
        copy.wait()

    semaphore = pltpu.SemaphoreType.DMA
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        kernel = pallas(body, struct(8, 128), struct(8, 128), scratch_shapes=[semaphore, semaphore])
    assert get_backend(kernel.backend).spans_devices(kernel)
    assert isinstance(compile_kernel(kernel, "v6e"), Compiled)


@needs_gpu
def test_two_gpu_generations_compile_side_by_side(matmul_hopper, softmax_triton):
    kernels = [matmul_hopper, softmax_triton, dataclasses.replace(softmax_triton, target="b200")]
    assert [type(result) for result in compile_kernels(kernels, jobs=2)] == [Compiled] * 3


@needs_gpu
def test_a_gpu_compile_dumps_down_to_sass(matmul_hopper, tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", "/usr/bin:/bin")  # ptxas comes with the package
    compiled = compile_kernel(matmul_hopper, "h200", dump_to=tmp_path / "raw")
    assert compiled.target == "h200" and compiled.executable
    (sass,) = (tmp_path / "raw/mosaic_gpu").glob("*.sass_ctrl")
    assert "HGMMA" in sass.read_text()
    assert (tmp_path / "raw/stablehlo.mlir").exists()


@needs_gpu
def test_a_triton_compile_dumps_down_to_sass(softmax_triton, tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    compile_kernel(softmax_triton, dump_to=tmp_path)
    (sass,) = (tmp_path / "hlo").glob("*.sass")
    assert "MUFU.EX2" in sass.read_text()
    (ptxas,) = (tmp_path / "hlo").glob("*.ptxas")
    assert re.search(r"Used \d+ registers", ptxas.read_text())


@needs_tpu
@pytest.mark.parametrize("target", ["v5e", "tpu7x"])
def test_an_unchanged_kernel_compiles_to_the_bundles_of_the_program_it_came_from(target):
    x = struct(512, 512, dtype=jnp.bfloat16)
    matmul = example("matmul_tpu").matmul
    kernels = capture(matmul, x, x, target=target)
    lowered = oracle.lower(lambda: (matmul, (x, x)), target)
    with noop.Compilers() as compilers:
        (comparison,) = noop.compare(kernels, noop.original(lowered.module), compilers)
    assert comparison.status == noop.IDENTICAL, comparison


@needs_gpu
@pytest.mark.parametrize("name", ["matmul_hopper", "softmax_triton"])
def test_an_unchanged_gpu_kernel_compiles_to_the_same_sass(name, request):
    if name == "matmul_hopper":
        x = struct(128, 128, dtype=jnp.float16)
        function, args = example(name).matmul, (x, x)
    else:
        function, args = example(name).softmax, (struct(8, 128),)
    kernel = request.getfixturevalue(name)
    lowered = oracle.lower(lambda: (function, args), "h100")
    with noop.Compilers() as compilers:
        (comparison,) = noop.compare([kernel], noop.original(lowered.module), compilers)
    assert comparison.status == noop.IDENTICAL, comparison


@needs_tpu
def test_a_changed_kernel_is_told_from_the_program_it_came_from():
    x = struct(512, 512, dtype=jnp.bfloat16)
    matmul = example("matmul_tpu").matmul
    (kernel,) = capture(matmul, x, x, target="v5e")
    lowered = oracle.lower(lambda: (matmul, (x, x)), "v5e")
    changed = PassPipeline.parse("pipeline-depth{stages=1}").run(kernel).kernel
    with noop.Compilers() as compilers:
        (comparison,) = noop.compare([changed], noop.original(lowered.module), compilers)
    assert comparison.status == noop.DIFFERS, comparison


@needs_tpu
def test_a_worker_that_compiled_before_gives_the_same_bundles(matmul_tpu, tmp_path):
    with recompile._worker(matmul_tpu, tmp_path, "final_bundles") as process:
        for kernel in (matmul_tpu, softmax_tpu(), matmul_tpu):
            recompile._compile_in(process, kernel, tmp_path, Limits())
    first, second = bundles(tmp_path)
    assert first == second


def softmax_tpu():
    def body(x_ref, o_ref):
        o_ref[...] = jax.nn.softmax(x_ref[...], axis=-1)

    return pallas(body, struct(8, 128), struct(8, 128), name="softmax")


def bundles(dump: Path) -> list[list[str]]:
    """The final bundles of each matmul compiled, less its name and its lines in the source."""
    paths = (p for p in (dump / "llo").glob("*matmul*final_bundles.txt"))
    texts = [p.read_text() for p in sorted(paths) if "schedule-analysis" not in p.name]
    cleaned = (re.sub(r"matmul[.\d]*|/\*.*?\*/|\bloc\(.*?\)", "", text) for text in texts)
    found = [re.findall(r"^\s*0x.*", text, re.MULTILINE) for text in cleaned]
    assert all(len(lines) > 100 for lines in found)
    return found


# --- failing --------------------------------------------------------------------------


@needs_tpu
def test_each_failure_is_an_error_and_the_next_kernel_compiles(matmul_tpu):
    kernels = [illegal_layout(), too_large(), aborting(matmul_tpu), matmul_tpu]
    layout, memory, crash, good = compile_kernels(kernels)
    assert isinstance(layout, CompileError)
    assert re.search(
        r"kernel 'strided' for v5e \(test_recompile.py:\d+\): compiling failed at '\w+\.strided_load'",
        layout.message,
    )
    assert "Not Implemented" in layout.message and layout.hint
    assert isinstance(memory, CompileError)
    assert "exceed memory (size=134217728)" in memory.message
    assert "smaller scratch (192.0 MiB)" in memory.hint
    assert isinstance(crash, CompileError)
    assert "the compiler crashed (SIGFPE) while compiling: in " in crash.message
    assert not re.search(r"@ 0x|RAW:|unknown", crash.message)
    assert isinstance(good, Compiled)


@needs_tpu
def test_a_compiler_that_hangs_is_ended_and_the_next_kernel_compiles(matmul_tpu):
    with recompile._Workers() as workers:
        workers.compile(matmul_tpu, None, None, Limits())  # the next one need not load libtpu
        with pytest.raises(CompileError) as error:
            workers.compile(long_to_compile(), None, None, Limits(timeout_s=5))
        workers.compile(matmul_tpu, None, None, Limits())
    assert re.fullmatch(
        r"kernel 'unrolled' for v5e \(test_recompile.py:\d+\): not done in 5 s, still compiling",
        error.value.message,
    )
    assert "larger time limit" in error.value.hint


def test_a_process_that_stands_still_is_ended(matmul_tpu):
    process = recompile._worker(matmul_tpu, None, None)
    os.kill(process._process.pid, signal.SIGSTOP)
    with process, pytest.raises(CompileError, match=r"not done in 0.5 s, still starting the comp"):
        recompile._compile_in(process, matmul_tpu, None, Limits(timeout_s=0.5))
    assert not process.alive


@needs_tpu
def test_nobody_waits_for_kernels_after_the_last_that_is_asked_for(matmul_tpu):
    results = compile_kernels([matmul_tpu, *[long_to_compile()] * 3], jobs=2)
    assert isinstance(next(results), Compiled)
    start = time.monotonic()
    results.close()
    assert time.monotonic() - start < 10


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="no /proc to read memory from")
def test_a_compile_ends_at_its_memory_limit(matmul_tpu):
    with pytest.raises(CompileError, match=r"MiB of host memory while .*the limit is 40.0 MiB"):
        compile_kernel(matmul_tpu, limits=Limits(memory_bytes=40 << 20))


def test_a_missing_tpu_compiler_is_named(monkeypatch):
    from mosaic_toolkit.jax_compat import topologies

    monkeypatch.setattr(topologies, "has_tpu_compiler", lambda: False)
    with pytest.raises(CompileError, match="libtpu, the compiler for v5e, is not") as error:
        tpu.devices(get_target("v5e"), 1)
    assert error.value.hint == "pip install 'mosaic-toolkit[tpu]'"


def test_a_missing_gpu_compiler_is_named(monkeypatch):
    from mosaic_toolkit.jax_compat import topologies

    def refuse(*_):
        raise NotImplementedError("topology not implemented for cuda")

    monkeypatch.setattr(cuda, "cuda_toolkit", lambda: Path("/"))
    monkeypatch.setattr(topologies, "gpu_devices", refuse)
    with pytest.raises(CompileError, match="CUDA plugin, the compiler for h100, is not") as error:
        cuda.devices(get_target("h100"), 1)
    assert error.value.hint == "pip install 'mosaic-toolkit[gpu]'"
    monkeypatch.setattr(cuda, "cuda_toolkit", lambda: None)
    with pytest.raises(CompileError, match="ptxas, the assembler for h100, is neither"):
        cuda.devices(get_target("h100"), 1)


# --- the compilers' words ---------------------------------------------------------------


def test_a_failed_check_is_quoted_with_its_place(matmul_tpu):
    said = (
        "I1201 00:00:00.000000    1 pjrt_api.cc:119] found\n"
        "F1201 00:00:01.000000   12 layout.cc:42] Check failed: a == b (1 vs. 2)\n"
        "    @     0x7f2c2e558493       1888  FailureSignalHandler()\n"
    )
    error = failure.crash(matmul_tpu, worker.COMPILING, Ending("died", said, "SIGABRT"))
    assert error.message == (
        "kernel 'matmul' for v5e (matmul_tpu.py:11): the compiler crashed (SIGABRT) while "
        "compiling: Check failed: a == b (1 vs. 2) (layout.cc:42)"
    )


def test_a_crash_names_the_last_stage_that_was_dumped(matmul_tpu, tmp_path):
    (tmp_path / "mosaic").mkdir()
    for age, stage in enumerate(("0014-post-relayout-insertion", "0013-post-infer-layout")):
        path = tmp_path / "mosaic" / f"1796086540777370792-{stage}.txt"
        path.touch()
        os.utime(path, (1000 - age, 1000 - age))
    ending = Ending("died", "", "SIGABRT")
    error = failure.crash(matmul_tpu, worker.COMPILING, ending, tmp_path)
    assert "while compiling, after 0014-post-relayout-insertion.txt: it said" in error.message


def start_half(x_ref, o_ref, semaphore):
    pltpu.make_async_copy(x_ref, o_ref, semaphore).start()


def done_half(x_ref, o_ref, semaphore, out_ref):
    pltpu.make_async_copy(x_ref, o_ref, semaphore).wait()


def two_halves(x):
    """A copy that one kernel starts and another one waits for."""
    anywhere = pl.BlockSpec(memory_space=pl.ANY)
    semaphore = pl.BlockSpec(memory_space=pltpu.SEMAPHORE)
    o, copied = pl.pallas_call(
        start_half,
        out_shape=(x, pltpu.SemaphoreType.DMA(())),
        in_specs=[anywhere],
        out_specs=(anywhere, semaphore),
    )(x)
    return pl.pallas_call(
        done_half,
        out_shape=x,
        in_specs=[anywhere, anywhere, semaphore],
        out_specs=anywhere,
        input_output_aliases={1: 0},
    )(x, o, copied)


def test_two_halves_of_a_copy_are_captured():
    start, done = capture(two_halves, struct(256, 128), target="v5e")
    assert str(start.results[1]) == str(done.operands[2]) == "int32[]"


@needs_tpu
def test_half_a_copy_is_no_program_and_the_error_says_so():
    for result in compile_kernels(capture(two_halves, struct(256, 128), target="v5e")):
        assert isinstance(result, CompileError)
        assert "hands it a semaphore" in result.hint


def test_a_crash_without_words_says_so(matmul_tpu):
    error = failure.crash(matmul_tpu, worker.LOADING, Ending("died", "", "SIGKILL"))
    assert "(SIGKILL) while loading the compiler: it said nothing" in error.message


def test_long_words_are_cut(matmul_tpu):
    error = failure.refusal(matmul_tpu, "compiling", "JaxRuntimeError", "INTERNAL: " + "x" * 9000)
    assert len(error.message) < 2000 and "(9010 characters)" in error.message
