"""The command as a user runs it: output, exit codes, errors; in processes of its own."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.installed import needs_tpu

ROOT = Path(__file__).parent.parent
ENVIRONMENT = {
    **{name: value for name, value in os.environ.items() if name != "JAX_PLATFORMS"},
    "PYTHONPATH": os.pathsep.join([str(ROOT / "toolkit"), str(ROOT / "passes")]),
}
COMMAND = [sys.executable, "-m", "mosaic_toolkit"]

PRELUDE = """\
import jax, jax.numpy as jnp, os, sys
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

def double(x_ref, o_ref):
    o_ref[...] = x_ref[...] * 2

def f(x):
    return pl.pallas_call(double, out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype),
                          compiler_params=pltpu.CompilerParams())(x)
"""


def dump(*arguments, cwd, **options):
    return subprocess.run(
        [*COMMAND, *map(str, arguments)],
        cwd=cwd, env=ENVIRONMENT, capture_output=True, text=True, **options,
    )  # fmt: skip


def script(directory, text, name="kernels.py"):
    (directory / name).write_text(PRELUDE + text)
    return name


@pytest.fixture(scope="module")
def kernel(tmp_path_factory):
    """A dump of one kernel on a grid."""
    place = tmp_path_factory.mktemp("cli")
    done = dump(ROOT / "dumps/kernels/matmul_tpu.py", "-o", "d", "-t", "v5e", "--no-run", cwd=place)
    assert "matmul.mosaic_tpu.v5e" in done.stdout, done.stderr
    return place / "d"


def test_help_needs_no_jax():
    code = "import sys; from mosaic_toolkit import cli; print({'jax', 'jaxlib'} & set(sys.modules))"
    done = subprocess.run(
        [sys.executable, "-c", code], env=ENVIRONMENT, capture_output=True, text=True
    )
    assert done.stdout.strip() == "set()"


def test_script_with_arguments_prints_one_table_and_its_talk_to_stderr(tmp_path):
    name = script(tmp_path, "print('said', sys.argv[1:], __name__, f(jnp.ones((8, 128)))[0, 0])")
    done = dump(name, "--", "--its", "own", "-o", "x", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "said ['--its', 'own', '-o', 'x'] __main__ 2.0" in done.stderr
    assert "said" not in done.stdout
    assert done.stdout.splitlines()[0].split() == (
        ["kernel", "backend", "level", "target", "grid", "operands", "results", "source"]
    )
    manifest = json.loads((tmp_path / "dumps/kernels/manifest.json").read_text())
    assert [k["name"] for k in manifest["kernels"]] == ["double"]
    assert manifest["command"][:2] == ["mosaic-dump", name]
    again = dump(name, cwd=tmp_path)
    assert again.returncode == 2
    assert "dumps/kernels exists" in again.stderr
    assert "--overwrite" in again.stderr


def test_nothing_but_the_scripts_own_words_reaches_the_user(tmp_path):
    done = dump(script(tmp_path, "f(jnp.ones((8, 128)))"), "--json", cwd=tmp_path)
    assert done.stderr == ""
    (kernel,) = json.loads(done.stdout)["kernels"]
    assert kernel["target"] == "v5e"


def test_a_script_sets_its_environment_before_it_imports_jax(tmp_path):
    text = """
import os
os.environ["JAX_ENABLE_X64"] = "1"
os.environ["JAX_PLATFORMS"] = "tpu"
os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=2"
import jax
import jax.numpy as jnp
print(jnp.arange(3.0).dtype, len(jax.devices()), jax.default_backend())
"""
    (tmp_path / "kernels.py").write_text(text)
    assert "float64 2 tpu" in dump("kernels.py", cwd=tmp_path).stderr


def test_an_option_may_hold_the_name_of_a_command(tmp_path):
    name = script(tmp_path, "def show(x):\n    return f(x)")
    done = dump("--call", "show", "--arg", "f32[8,128]", name, cwd=tmp_path)
    assert done.returncode == 0, done.stderr


def test_a_place_that_cannot_be_written_is_an_error(kernel, tmp_path):
    done = dump("apply", kernel, "-p", "cse", "-o", "/dev/null/x.mlir", cwd=tmp_path)
    assert done.returncode == 2
    assert "/dev/null" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_script_that_raises_leaves_what_it_lowered(tmp_path):
    done = dump(script(tmp_path, "f(jnp.ones((8, 128)))\n\n1 / 0"), cwd=tmp_path)
    assert done.returncode == 1
    assert "double.mosaic_tpu.v5e" in done.stdout
    assert "ZeroDivisionError" in done.stderr
    assert "runpy" not in done.stderr


def test_a_script_that_does_not_parse_shows_its_own_line_alone(tmp_path):
    done = dump(script(tmp_path, "x = (1,\n\ndef f(:\n"), "--overwrite", cwd=tmp_path)
    assert done.returncode == 1
    assert "SyntaxError" in done.stderr
    assert 'kernels.py"' in done.stderr
    assert "runpy" not in done.stderr
    assert "script_process" not in done.stderr


def test_kernels_of_threads_and_of_the_end_of_the_process(tmp_path):
    text = """
import atexit, threading, time
atexit.register(lambda: f(jnp.ones((24, 128))))
threading.Thread(target=lambda: (time.sleep(1), f(jnp.ones((16, 128))))).start()
f(jnp.ones((8, 128)))
"""
    done = dump(script(tmp_path, text), "--json", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    operands = [kernel["operands"] for kernel in json.loads(done.stdout)["kernels"]]
    assert operands == [[f"float32[{rows},128]"] for rows in (8, 16, 24)]


@pytest.mark.parametrize("kind", ["pipe", "file"])
def test_every_run_of_a_script_reads_standard_input(kind, tmp_path):
    name = script(tmp_path, "print('read', repr(sys.stdin.read()), jax.devices()[0].device_kind)")
    words = "some\nwords " * 10_000
    (tmp_path / "words").write_text(words)
    with open(tmp_path / "words") as file:
        given = {"input": words} if kind == "pipe" else {"stdin": file}
        said = dump(name, "--target", "v4,v5p,v6e", cwd=tmp_path, **given).stderr
    for chip in ("TPU v4", "TPU v5", "TPU v6 lite"):
        assert f"read {words!r} {chip}\n" in said


def test_a_pipe_that_nobody_closes_does_not_hold_a_script_up(tmp_path):
    name = script(tmp_path, "print('ran as', jax.devices()[0].device_kind)")
    reader, writer = os.pipe()
    try:
        done = dump(name, "--target", "v4,v5p", cwd=tmp_path, stdin=reader, timeout=120)
    finally:
        os.close(reader)
        os.close(writer)
    assert "ran as TPU v4\nran as TPU v5\n" in done.stderr


GPU_SCRIPT = """
from jax.experimental.pallas import mosaic_gpu as plgpu

def body(x_gmem, o_gmem):
    def step(_, x_smem, o_smem):
        o_smem[...] = x_smem[...] * 2
    block = plgpu.BlockSpec((16, 128), lambda i: (i, 0))
    plgpu.emit_pipeline_warp_specialized(
        step, grid=(4,), in_specs=[block], out_specs=[block], max_concurrent_steps=2,
        num_compute_wgs=1, memory_registers=40, wg_axis="wg")(x_gmem, o_gmem)

x = jnp.ones((64, 128))
plgpu.kernel(body, out_type=x, num_threads=2, thread_name="wg")(x).block_until_ready()
print("went on")
"""


def test_a_kernel_that_jax_cannot_interpret_names_the_way_around(tmp_path):
    name = script(tmp_path, GPU_SCRIPT)
    done = dump(name, "--target", "h100", cwd=tmp_path)
    assert done.returncode == 1
    assert "body.mosaic_gpu.h100" in done.stdout
    assert done.stderr.endswith("hint: --no-run goes on with zeros for the values of kernels\n")
    done = dump(name, "--target", "h100", "--no-run", "--overwrite", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "went on\n")


@pytest.mark.parametrize(
    ("end", "said"),
    [
        ("os.abort()", "killed by SIGABRT"),
        ("os._exit(3)", "ended its process with exit code 3"),
        ("sys.exit('bad input')", "exited with 'bad input'"),
    ],
)
def test_a_script_that_dies_leaves_what_it_lowered(end, said, tmp_path):
    done = dump(script(tmp_path, f"f(jnp.ones((8, 128)))\n{end}"), cwd=tmp_path)
    assert done.returncode == 1
    assert "double.mosaic_tpu.v5e" in done.stdout
    assert said in done.stderr


def test_a_kernel_that_does_not_lower_is_a_row(tmp_path):
    text = """
def bad(x_ref, o_ref):
    o_ref[...] = jnp.sort(x_ref[...])
double, good = bad, double
f(jnp.ones((8, 128)))
double = good
f(jnp.ones((8, 128)))
"""
    done = dump(script(tmp_path, text), cwd=tmp_path)
    assert done.returncode == 1
    rows = [line.split() for line in done.stdout.splitlines()[1:3]]
    assert [(row[0], row[2]) for row in rows] == [("double", "dialect"), ("bad", "FAILED")]
    assert "error: kernel 'bad' does not lower for mosaic_tpu on v5e" in done.stderr
    assert "kernels.py:12" in done.stderr


def test_a_script_that_lowers_nothing(tmp_path):
    done = dump(script(tmp_path, ""), cwd=tmp_path)
    assert done.returncode == 1
    assert "it defines: double, f" in done.stderr
    assert "--call double --arg" in done.stderr
    assert not (tmp_path / "dumps").exists()


def test_call(tmp_path):
    name = script(
        tmp_path,
        "def g(x, n, *, twice):\n    return f(f(x) if twice else x)\n1 / (__name__ != '__main__')",
    )
    arguments = ["--call", "g", "--arg", "bf16[16,128]", "--arg", "3", "--arg", "twice=True"]
    done = dump(name, *arguments, "--target", "v5e,v6e", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "double.mosaic_tpu.v5e" in done.stdout
    assert "double.mosaic_tpu.v6e" in done.stdout
    assert "bfloat16[16,128]" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["nowhere.py"], "nowhere.py: no such file"),
        (["kernels.py", "--target", "v99"], "unknown target 'v99'"),
        (["kernels.py", "--call", "h"], "defines no function 'h'"),
        (["kernels.py", "--call", "f", "--arg", "q8[3]"], "no element type 'q8'"),
        (["kernels.py", "--call", "f", "--arg", "x y"], "neither an array such as"),
        (["kernels.py", "--arg", "f32[1]"], "--arg goes with --call"),
        (["kernels.py", "--devices", "-1"], "--devices"),
        (["show"], "Missing argument"),
        (["show", "kernels.py"], "mosaic-dump kernels.py captures the script's kernels"),
        (["show", "no/such.mlir"], "no/such.mlir: no such file"),
        (["apply", "no.mlir", "-p", "cse{"], "pass pipeline"),
        (["apply", "no.mlir", "-p", "cse", "-o", "x.txt"], "written as .mlir"),
        (["diff", "no.mlir", "no.mlir"], "no.mlir: no such file"),
        (["passes", "--plugin", "kernels.py"], "kernels.py"),
    ],
)
def test_usage_errors(arguments, said, tmp_path):
    script(tmp_path, "")
    done = dump(*arguments, cwd=tmp_path)
    assert done.returncode == 2, done.stdout + done.stderr
    assert said in done.stderr
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "dumps").exists()


def test_several_targets_run_a_script_that_asks_once_each(tmp_path):
    text = """
print("ran as", jax.devices()[0].device_kind)
f(jnp.ones((8 if jax.devices()[0].device_kind == "TPU v4" else 16, 128)))
"""
    done = dump(script(tmp_path, text), "--target", "v4,v5p", "--json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "ran as TPU v4\n" in done.stderr
    assert "ran as TPU v5\n" in done.stderr
    kernels = json.loads(done.stdout)["kernels"]
    assert [(k["target"], k["operands"]) for k in kernels] == [
        ("v4", ["float32[8,128]"]),
        ("v5p", ["float32[16,128]"]),
    ]


def test_a_gpu_script_is_run_as_a_gpu_where_nobody_names_a_chip(tmp_path):
    text = "assert jax.default_backend() == 'gpu', 'needs a GPU'\nf(jnp.ones((8, 128)))"
    done = dump(
        script(
            tmp_path, text.replace("f(", "pl.pallas_call(double, out_shape=jnp.ones((8, 128)))(")
        ),
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stderr
    assert "double.triton.h100" in done.stdout


def test_shard_map_over_devices(tmp_path):
    text = """
from functools import partial
from jax.sharding import AxisType, PartitionSpec as P
mesh = jax.make_mesh((2,), ("x",), axis_types=(AxisType.Auto,))

def ring(x_ref, o_ref, send, receive):
    other = 1 - jax.lax.axis_index("x")
    copy = pltpu.make_async_remote_copy(x_ref, o_ref, send, receive, device_id=(other,))
    copy.start()
    copy.wait()

@jax.jit
@partial(jax.shard_map, mesh=mesh, in_specs=P("x"), out_specs=P("x"), check_vma=False)
def exchange(x):
    any_space = pl.BlockSpec(memory_space=pl.ANY)
    return pl.pallas_call(ring, out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype),
                          in_specs=[any_space], out_specs=any_space,
                          scratch_shapes=[pltpu.SemaphoreType.DMA] * 2,
                          compiler_params=pltpu.CompilerParams())(x)

x = jnp.arange(16.0)[:, None] * jnp.ones((1, 128))
assert (exchange(x) == jnp.roll(x, 8, 0)).all()
"""
    done = dump(script(tmp_path, text), "--devices", "2", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "ring.mosaic_tpu.v5e" in done.stdout


def test_show_and_its_forms(kernel):
    one = kernel / "matmul.mosaic_tpu.v5e"
    for argument in (kernel, one, one / "kernel.mlir"):
        done = dump("show", argument, cwd=kernel)
        assert done.returncode == 0, done.stderr
        assert "windows of the grid pipeline" in done.stdout
    data = json.loads(dump("show", one, "--json", cwd=kernel).stdout)
    assert data["kernel"]["name"] == "matmul"
    assert "mlir" not in data
    text = dump("show", one, "--mlir", cwd=kernel).stdout
    assert "func.func @matmul" in text
    both = json.loads(dump("show", one, "--mlir", "--json", cwd=kernel).stdout)
    assert both.pop("mlir").rstrip() == text.rstrip()
    assert both == data
    named = dump("show", f"{ROOT}/dumps/kernels/matmul_tpu.py::matmul", "--json", cwd=kernel)
    assert json.loads(named.stdout)["kernel"]["module_sha256"] == data["kernel"]["module_sha256"]


@pytest.mark.parametrize("ending", ["dot", "graphml", "json"])
def test_graph_files(ending, kernel, tmp_path):
    path = tmp_path / f"g.{ending}"
    assert dump("show", kernel, "--graph", path, cwd=tmp_path).returncode == 0
    assert "tpu.matmul" in path.read_text()


def test_apply_diff_and_replay(kernel, tmp_path):
    done = dump("apply", kernel, "-p", "pipeline-depth{stages=1},cse", "-o", "a.mlir", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout == ""
    assert dump("diff", kernel, kernel, cwd=tmp_path).returncode == 0
    different = dump("diff", kernel, "a.mlir", "--json", cwd=tmp_path)
    assert different.returncode == 1
    assert json.loads(different.stdout)["identical"] is False
    printed = dump(
        "apply", kernel, "-p", "pipeline-depth{stages=1}", "--print-ir-after-change", cwd=tmp_path
    )
    assert "#tpu.pipeline_mode<synchronous>" in printed.stdout
    assert "IR after pipeline-depth{stages=1}" in printed.stderr
    refused = dump("apply", kernel, "-p", "pipeline-depth{stages=0}", cwd=tmp_path)
    assert refused.returncode == 1
    command = refused.stderr.split("reproduce with: mosaic-dump ")[1].strip().replace("'", "")
    replayed = dump(*command.split(" "), cwd=tmp_path)
    assert replayed.returncode == 1
    assert replayed.stderr == refused.stderr


def test_an_edited_module_counts_and_a_damaged_one_is_an_error(kernel, tmp_path):
    path = tmp_path / "k.mlir"
    path.write_text(
        (kernel / "matmul.mosaic_tpu.v5e/kernel.mlir")
        .read_text()
        .replace("array<i64: 2, 2, 4>", "array<i64: 2, 2, 8>")
    )
    path.with_suffix(".json").write_text((kernel / "matmul.mosaic_tpu.v5e/kernel.json").read_text())
    assert "2 x 2 x 8" in dump("show", path, cwd=tmp_path).stdout
    path.write_text(path.read_text()[:3000])
    done = dump("show", path, cwd=tmp_path)
    assert done.returncode == 2
    assert done.stderr.startswith(f"error: {path}:")
    path.write_text("module {}")
    done = dump("show", path, cwd=tmp_path)
    assert done.returncode == 2
    assert f"{path}:1:1: the module holds no function" in done.stderr


def test_run_rewrites_in_place(kernel, tmp_path):
    example = ROOT / "dumps/kernels/matmul_tpu.py"
    done = dump("run", example, "-p", "pipeline-depth{stages=1}", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "matmul: values agree with jnp.dot\n"
    assert "matmul (mosaic_tpu, v5e): rewritten" in done.stderr
    assert "kernels ran in this toolkit's interpreter" in done.stderr
    edited = tmp_path / "edited"
    shutil.copytree(kernel, edited)
    module = edited / "matmul.mosaic_tpu.v5e/kernel.mlir"
    unchanged = dump("run", example, "--override", edited, cwd=tmp_path)
    assert "matmul (mosaic_tpu, v5e): unchanged" in unchanged.stderr
    module.write_text(module.read_text().replace("arith.addf", "arith.mulf", 1))
    done = dump("run", example, "--override", edited, cwd=tmp_path)
    assert "matmul (mosaic_tpu, v5e): rewritten" in done.stderr
    nothing = dump(
        "run", script(tmp_path, "f(jnp.ones((8, 128)))"), "--override", edited, cwd=tmp_path
    )
    assert nothing.returncode == 1
    assert "no kernel that the script lowered was to be rewritten" in nothing.stderr
    for wrong in (["-p", "no-such-pass"], ["--override", "nowhere"], ["--target", "v99"]):
        assert dump("run", example, *wrong, cwd=tmp_path).returncode == 2


@needs_tpu
def test_compile_stages_and_stats(kernel, tmp_path):
    done = dump("compile", kernel, "--target", "v6e", "--stages", "stages", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert json.loads((tmp_path / "stages/manifest.json").read_text())["stages"]
    shown = dump("stages", kernel, "--show", "1", cwd=tmp_path)
    assert "func.func @matmul" in shown.stdout
    assert dump("stages", kernel, "--show", "no-such", cwd=tmp_path).returncode == 1
    digest = dump("stats", kernel, cwd=tmp_path)
    assert digest.stdout.startswith("matmul (v5e)")
    assert "bundles" in dump("stats", kernel, kernel, cwd=tmp_path).stdout


def test_compiling_for_another_platform_is_refused(kernel, tmp_path):
    done = dump("compile", kernel, "--target", "h100", cwd=tmp_path)
    assert done.returncode == 1
    assert "has no compiler for h100" in done.stderr


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_ended(number, tmp_path):
    """What the command started does not outlive it."""
    name = script(
        tmp_path,
        "with open('partial', 'w') as file:\n    file.write(str(os.getpid()))\n"
        "os.rename('partial', 'pid')\nimport time\ntime.sleep(60)",
    )
    process = subprocess.Popen(
        [*COMMAND, name], cwd=tmp_path, env=ENVIRONMENT, stderr=subprocess.PIPE, text=True
    )
    while not (tmp_path / "pid").exists():
        assert process.poll() is None
        time.sleep(0.1)
    process.send_signal(number)
    _, said = process.communicate(timeout=30)
    assert process.returncode == 128 + number
    assert said == ""
    with pytest.raises(ProcessLookupError):
        os.kill(int((tmp_path / "pid").read_text()), 0)


def test_interrupted(tmp_path):
    name = script(
        tmp_path, "f(jnp.ones((8, 128)))\nopen('ready', 'w').close()\nimport time\ntime.sleep(60)"
    )
    process = subprocess.Popen(
        [*COMMAND, name], cwd=tmp_path, env=ENVIRONMENT, stderr=subprocess.PIPE, text=True,
        start_new_session=True,
        # A job in a shell's background is started with the signal ignored.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )  # fmt: skip
    while not (tmp_path / "ready").exists():
        assert process.poll() is None
        time.sleep(0.1)
    os.killpg(process.pid, signal.SIGINT)
    _, said = process.communicate(timeout=30)
    assert process.returncode == 130
    assert "interrupted" in said
    assert sorted(os.listdir(tmp_path)) == [name, "ready"]
