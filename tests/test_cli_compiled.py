"""`compile`, `stages` and `stats` as a user runs them: several kernels, limits, no CUDA toolkit."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.installed import needs_gpu, needs_tpu
from tests.test_cli import COMMAND, ENVIRONMENT, ROOT, dump, script

SEVERAL = """
def add(x_ref, o_ref):
    o_ref[...] = x_ref[...] + 1

def strided(x_ref, o_ref):  # a layout that Mosaic has no way to load
    o_ref[...] = x_ref[:, 3:131:2]

def call(body, columns, out):
    x = jnp.ones((8, columns))
    pl.pallas_call(body, out_shape=jax.ShapeDtypeStruct((8, out), x.dtype))(x)

call(add, 128, 128)
call(strided, 256, 64)
call(double, 128, 128)
"""


@pytest.fixture(scope="module")
def several(tmp_path_factory):
    """A dump of three kernels, the second of which does not compile."""
    place = tmp_path_factory.mktemp("several")
    done = dump(script(place, SEVERAL), "-o", "d", "-t", "v5e", "--no-run", cwd=place)
    assert "strided.mosaic_tpu.v5e" in done.stdout, done.stderr
    return place / "d"


@needs_tpu
def test_a_whole_dump_compiles_past_a_kernel_that_does_not(several, tmp_path):
    done = dump("compile", several, "--jobs", 2, "--stages", "out", cwd=tmp_path)
    assert done.returncode == 1
    said = [line for line in done.stderr.splitlines() if line.startswith(("add", "error", "dou"))]
    add, error, double = said
    assert add.startswith("add (v5e) compiled in ")
    assert error.startswith("error: kernel 'strided' for v5e (kernels.py:")
    assert double.startswith("double (v5e) compiled in ")
    assert done.stderr.endswith("\n1 of 3 kernels failed\n")
    written = sorted(path.name for path in (tmp_path / "out").iterdir())
    assert written == ["add.mosaic_tpu.v5e", "double.mosaic_tpu.v5e"]


@needs_tpu
def test_stats_and_stages_of_a_whole_dump(several, tmp_path):
    digests = dump("stats", several, "-j", 2, cwd=tmp_path)
    assert digests.returncode == 1
    titles = [line for line in digests.stdout.splitlines() if line.endswith(" (v5e)")]
    assert titles == ["add (v5e)", "double (v5e)"]
    stages = dump("stages", several, "--changed", cwd=tmp_path)
    assert stages.stdout.count("level") == 2 and stages.stdout.startswith("add (v5e)\n")


@pytest.mark.parametrize(("verb", "option"), [("compile", "-o"), ("stages", "--show")])
def test_options_for_one_kernel_refuse_several(several, tmp_path, verb, option):
    done = dump(verb, several, option, "x", cwd=tmp_path)
    assert done.returncode == 2
    assert "goes with one kernel" in done.stderr and "holds 3" in done.stderr


@needs_tpu
def test_limits_end_a_compile(several, tmp_path):
    kernel = several / "add.mosaic_tpu.v5e"
    slow = dump("compile", kernel, "--time-limit", 1, cwd=tmp_path)
    assert slow.returncode == 1
    assert "kernel 'add' for v5e" in slow.stderr and "not done in 1 s, still" in slow.stderr
    if Path("/proc/self/statm").exists():
        large = dump("compile", kernel, "--memory-limit", 0.1, cwd=tmp_path)
        assert large.returncode == 1
        assert "of host memory while" in large.stderr
        assert "the limit is 102.4 MiB" in large.stderr


def hiding_cuda_toolkits() -> list[str]:
    """What a command starts with that is not to see a CUDA toolkit installed on the machine."""
    found = sorted({str(path.resolve()) for path in Path("/usr/local").glob("cuda*")})
    if not found:
        return []
    hide = "; ".join(f"mount -t tmpfs none '{path}'" for path in found)
    start = ["unshare", "--user", "--map-root-user", "--mount", "sh", "-ec", f'{hide}; exec "$@"']
    seen = subprocess.run([*start, "sh", "find", *found, "-mindepth", "1"], capture_output=True)
    if seen.returncode or seen.stdout:
        pytest.skip("nothing may be mounted over the machine's CUDA toolkit")
    return [*start, "sh"]


@needs_gpu
@pytest.mark.parametrize("example", ["matmul_hopper", "softmax_triton"])
def test_no_cuda_toolkit_is_needed(example, tmp_path):
    path = ROOT / f"dumps/kernels/{example}.py"
    dump(path, "-o", "d", "-t", "h100", "--no-run", cwd=tmp_path)  # its check of zeros fails
    environment = {
        name: text
        for name, text in ENVIRONMENT.items()
        if "CUDA" not in name and name != "LD_LIBRARY_PATH"
    }
    done = subprocess.run(
        [*hiding_cuda_toolkits(), *COMMAND, "stats", str(tmp_path / "d")],
        cwd=tmp_path,
        env={**environment, "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert "SASS" in done.stdout
