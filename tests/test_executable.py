"""Executable files and the arrays that go in and out of them, as far as without a device."""

import dataclasses
import importlib.metadata
import importlib.util
import io
import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path

os.environ["JAX_PLATFORMS"] = "cpu"

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from jax.experimental import pallas as pl

from mosaic_toolkit import executable
from mosaic_toolkit.arrays import load_inputs, numpy_dtype, save_outputs, type_of
from mosaic_toolkit.capture import capture
from mosaic_toolkit.errors import InvalidModule, Mismatch, ToolkitError, Unsupported
from mosaic_toolkit.executable import Executable, is_executable
from mosaic_toolkit.kernel import ArrayType
from mosaic_toolkit.recompile import Compiled, compile_kernel
from mosaic_toolkit.targets import TARGETS, get_target

ROOT = Path(__file__).parent.parent
ARRAY = jax.ShapeDtypeStruct((128, 256), jnp.bfloat16)


def negate(x_ref, o_ref):
    o_ref[...] = -x_ref[...]


def f(x):
    spec = pl.BlockSpec((64, 128), lambda i, j: (i, j))
    return pl.pallas_call(
        negate, grid=(2, 2), in_specs=[spec], out_specs=spec, out_shape=ARRAY
    )(x)  # fmt: skip


@pytest.fixture(scope="module")
def made():
    """An executable whose code no device would take."""
    kernel, *_ = capture(f, ARRAY, target="v5e")
    return Executable.of(Compiled(kernel, b"code", 0.5))


# --- the file ------------------------------------------------------------------------


def test_round_trip(made, tmp_path):
    path = made.save(tmp_path / "k.exe")
    assert Executable.load(path) == made
    assert is_executable(path)
    assert dict(made.versions)["jaxlib"] == jax.lib.__version__
    with zipfile.ZipFile(path) as archive:  # what the documentation says of the members
        assert json.loads(archive.read("executable.json"))["format_version"] == 1
        assert archive.read("kernel.mlir").decode() == made.kernel.asm
        assert archive.read("executable") == b"code"


@pytest.mark.parametrize(
    ("target", "package"),
    [("v6e", "libtpu"), ("h200", "jax_cuda13_plugin")],
)
def test_what_the_compilers_make_of_a_kernel_is_kept(target, package, tmp_path):
    if importlib.util.find_spec(package) is None:
        pytest.skip(f"{package} is not installed")
    backends = {"tpu": "mosaic_tpu", "cuda": "triton"}
    wanted = backends[get_target(target).platform]
    (kernel,) = [k for k in capture(f, ARRAY, target=target) if k.backend == wanted]
    compiled = compile_kernel(kernel)
    loaded = Executable.load(compiled.save(tmp_path / "k.exe"))
    assert loaded.code == compiled.executable
    assert (loaded.kernel, loaded.kernel.target) == (kernel, target)
    compiler = {"tpu": "libtpu", "cuda": "jax-cuda13-pjrt"}[get_target(target).platform]
    assert dict(loaded.versions)[compiler] == importlib.metadata.version(compiler)
    with pytest.raises(Mismatch, match=f"compiled for {target} .*this machine has no TPU or GPU"):
        loaded.run([np.ones((128, 256), ml_dtypes.bfloat16)])


def test_a_kernel_of_several_devices_is_refused(made):
    talks = ("backend_config", '"{\\22has_communication\\22: true}"')
    kernel = dataclasses.replace(made.kernel, attributes=(talks,))
    with pytest.raises(Unsupported, match="talks to other devices"):
        Executable.of(Compiled(kernel, b"", 0.0))


def _edited(name, change):
    def edit(path):
        with zipfile.ZipFile(path) as archive:
            members = {n: archive.read(n) for n in archive.namelist()}
        members[name] = change(members[name])
        with zipfile.ZipFile(path, "w") as archive:
            for member, data in members.items():
                if data is not None:
                    archive.writestr(member, data)

    return edit


def _header(**fields):
    return _edited("executable.json", lambda data: json.dumps({**json.loads(data), **fields}))


def _truncate(path):
    path.write_bytes(path.read_bytes()[:-400])


def _flip(path):
    data = bytearray(path.read_bytes())
    data[data.index(b"executable.json") + 40] ^= 0xFF
    path.write_bytes(data)


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (_truncate, "not an executable file, or damaged"),
        (_flip, "not an executable file, or damaged"),
        (lambda path: path.write_bytes(b"MZ"), "not an executable file, or damaged"),
        (Path.unlink, "no such file; expected an executable file"),
        (lambda path: (path.unlink(), path.mkdir()), "Is a directory"),
        (lambda path: np.savez(path.open("wb"), 1), "it holds no executable.json, kernel.json"),
        (_edited("executable", lambda _: None), "it holds no executable\n"),
        (_header(format="other"), "executable.json is not of an executable"),
        (_header(format_version=2), "format version 2, this toolkit reads up to 1"),
        (_header(versions=None), "executable.json holds no versions"),
        (_edited("executable.json", lambda _: b"{"), "executable.json is not JSON"),
        (_edited("kernel.json", lambda _: b"{}"), "kernel.json:1: expected a kernel's description"),
        (_edited("kernel.mlir", lambda data: data + b"\n"), "kernel.mlir was edited"),
        (
            _edited("kernel.json", lambda data: data.replace(b'"v5e"', b'"v99"')),
            "unknown target 'v99'",
        ),
    ],
)
def test_a_file_that_is_no_executable(damage, said, made, tmp_path):
    path = made.save(tmp_path / "k.exe")
    damage(path)
    with pytest.raises(ToolkitError, match=said) as error:
        Executable.load(path)
    assert said.startswith("unknown target") or isinstance(error.value, InvalidModule)


# --- running -------------------------------------------------------------------------


def test_another_chip_than_it_was_compiled_for(made, monkeypatch):
    monkeypatch.setattr(executable, "has_accelerator", lambda: True)
    monkeypatch.setattr(executable, "this_machine", lambda: TARGETS["v6e"])
    x = np.ones((128, 256), ml_dtypes.bfloat16)
    with pytest.raises(Mismatch, match=r"for v5e \('TPU v5 lite'\), this machine has v6e") as error:
        made.run([x])
    assert "--target v6e" in error.value.hint


def test_another_version_than_it_was_compiled_by(made, monkeypatch):
    monkeypatch.setattr(executable, "_device", lambda *_: jax.devices()[0])
    other = dataclasses.replace(made, versions=(("jaxlib", "0.1"), ("libtpu", "0.2")))
    with pytest.raises(Mismatch, match=r"compiled by jaxlib 0\.1 \(here .*libtpu 0\.2 \(here"):
        other.run([np.ones((128, 256), ml_dtypes.bfloat16)])


def test_wrong_inputs_before_anything_runs(made):
    with pytest.raises(Mismatch, match=r"takes \(bfloat16\[128,256\]\), not \(float32\[2\]\)"):
        made.run([np.ones(2, np.float32)])


PROGRAM = """
module @m {
  func.func public @main(%a: tensor<2x3xbf16>, %b: tensor<3xi4>) -> (tensor<2x3xbf16>, tensor<3xi4>) {
    %0 = stablehlo.add %a, %a : tensor<2x3xbf16>
    return %0, %b : tensor<2x3xbf16>, tensor<3xi4>
  }
}
"""


def test_code_is_loaded_and_run_by_the_device(made, monkeypatch):
    """The way to a device, taken with a program that this machine's CPU runs."""
    from mosaic_toolkit.jax_compat import topologies

    device = jax.devices()[0]
    code = topologies.compile_module(topologies.parse_program(PROGRAM), [device])
    monkeypatch.setattr(executable, "_device", lambda *_: device)
    types = (ArrayType("bfloat16", (2, 3)), ArrayType("int4", (3,)))
    kernel = dataclasses.replace(made.kernel, operands=types, results=types)
    x = np.arange(6).reshape(2, 3).astype(ml_dtypes.bfloat16)
    y = np.array([1, -2, 3], ml_dtypes.int4)
    doubled, same = dataclasses.replace(made, kernel=kernel, code=code).run([x, y])
    np.testing.assert_array_equal(doubled, x + x)
    np.testing.assert_array_equal(same, y)
    assert (doubled.dtype, same.dtype) == (x.dtype, y.dtype)
    with pytest.raises(ToolkitError, match="does not run on"):
        dataclasses.replace(made, kernel=kernel, code=b"junk").run([x, y])


# --- arrays --------------------------------------------------------------------------

TYPES = ("float32", "bfloat16", "float8_e4m3fn", "float8_e5m2", "int4", "uint4", "bool", "int8")


@pytest.mark.parametrize("name", TYPES)
@pytest.mark.parametrize("shape", [(), (3,), (2, 4)])
def test_arrays_round_trip(name, shape, tmp_path):
    array = np.ones(shape, numpy_dtype(name))
    save_outputs(tmp_path / "x.out", [array, array])
    first, second = load_inputs(tmp_path / "x.out", [ArrayType(name, shape)] * 2)
    assert type_of(first) == type_of(second) == ArrayType(name, shape)
    assert first.tobytes() == second.tobytes() == array.tobytes()


def test_what_savez_makes_of_a_type_that_numpy_does_not_know(tmp_path):
    x = np.arange(3).astype(ml_dtypes.bfloat16)
    np.savez(tmp_path / "x.npz", x)
    with np.load(tmp_path / "x.npz") as file:
        assert file["arr_0"].dtype == "V2"
    (loaded,) = load_inputs(tmp_path / "x.npz", [ArrayType("bfloat16", (3,))])
    np.testing.assert_array_equal(loaded, x)


OPERANDS = [ArrayType("bfloat16", (2,)), ArrayType("float32", (3,))]
GOOD = np.ones(2, ml_dtypes.bfloat16), np.ones(3, np.float32)


@pytest.mark.parametrize(
    ("arrays", "said"),
    [
        ((GOOD[:1], {}), "arr_1 missing"),
        ((GOOD, {"arr_2": 1}), "arr_2 not among the operands"),
        ((GOOD[:1], {"y": 1}), "arr_1 missing; y not among the operands"),
        (((GOOD[0], np.ones(4, np.float32)), {}), r"arr_1 is float32\[4\], .* takes float32\[3\]"),
        (((GOOD[0], np.ones(3)), {}), r"arr_1 is float64\[3\], the kernel takes float32\[3\]"),
        (((np.ones(2), GOOD[1]), {}), r"arr_0 is float64\[2\], the kernel takes bfloat16\[2\]"),
        (((np.ones(2, np.float16), GOOD[1]), {}), r"arr_0 is float16\[2\]"),
        (((np.ones(2, ml_dtypes.int4), GOOD[1]), {}), r"arr_0 is void8\[2\]"),
    ],
)
def test_wrong_inputs_are_named(arrays, said, tmp_path):
    positional, named = arrays
    np.savez(tmp_path / "x.npz", *positional, **named)
    with pytest.raises(Mismatch, match=f"x.npz: {said}") as error:
        load_inputs(tmp_path / "x.npz", OPERANDS)
    assert error.value.hint


def test_two_types_of_one_size_are_not_mixed_up(tmp_path):
    save_outputs(tmp_path / "x.npz", [np.ones(2, ml_dtypes.float8_e5m2)])
    with pytest.raises(Mismatch, match=r"arr_0 is float8_e5m2\[2\], .* takes float8_e4m3fn\[2\]"):
        load_inputs(tmp_path / "x.npz", [ArrayType("float8_e4m3fn", (2,))])


def test_no_operands_need_no_file(tmp_path):
    assert load_inputs(None, []) == []
    with pytest.raises(Mismatch, match="no --inputs: arr_0, arr_1 missing"):
        load_inputs(None, OPERANDS)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (None, "no such file"),
        (b"", "not a .npz file"),
        (b"1,2\n", "not a .npz file"),
        (b"PK\x03\x04", "not a .npz file"),
        ("npy", "one .npy array, expected a .npz file"),
        ("object", "not a .npz file of plain arrays"),
        ("float8_e5m2", "not a .npz file of plain arrays"),
    ],
)
def test_files_that_are_no_arrays(content, said, tmp_path):
    path = tmp_path / "x.npz"
    if isinstance(content, bytes):
        path.write_bytes(content)
    elif content is not None:
        buffer = io.BytesIO()
        if content == "npy":
            np.save(buffer, np.ones(2))
        else:
            value = {"object": [{}], "float8_e5m2": np.ones(2, ml_dtypes.float8_e5m2)}[content]
            np.savez(buffer, np.array(value))
        path.write_bytes(buffer.getvalue())
    with pytest.raises(ToolkitError, match=said) as error:
        load_inputs(path, OPERANDS)
    assert "np.savez" in error.value.hint


# --- the command ---------------------------------------------------------------------


def command(*arguments, cwd):
    environment = {k: v for k, v in os.environ.items() if k != "JAX_PLATFORMS"}
    environment["PYTHONPATH"] = os.pathsep.join([str(ROOT / "toolkit"), str(ROOT / "passes")])
    return subprocess.run(
        [sys.executable, "-m", "mosaic_toolkit", *map(str, arguments)],
        cwd=cwd, env=environment, capture_output=True, text=True,
    )  # fmt: skip


def test_the_command(made, tmp_path):
    made.save(tmp_path / "k.exe")
    np.savez(tmp_path / "in.npz", np.ones((128, 256), ml_dtypes.bfloat16))
    done = command("run", "k.exe", "--inputs", "in.npz", "-o", "out.npz", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith(
        "error: kernel 'negate' is compiled for v5e ('TPU v5 lite'), this machine has no TPU or GPU"
    )
    assert not (tmp_path / "out.npz").exists()
    done = command("run", "k.exe", cwd=tmp_path)
    assert "no --inputs: arr_0 missing" in done.stderr
    (tmp_path / "k.exe").write_bytes((tmp_path / "k.exe").read_bytes()[:-9])
    done = command("run", "k.exe", cwd=tmp_path)
    assert done.returncode == 2
    assert "k.exe: not an executable file, or damaged" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["k.exe", "-p", "cse", "--devices", "2"], "--pipeline, --devices does not go with"),
        (["k.exe", "--", "x"], "arguments does not go with an executable"),
        (["k.py", "--inputs", "in.npz"], "--inputs does not go with a script"),
        (["k.mlir", "-p", "cse"], "--pipeline does not go with a kernel"),
        (["k.py::f", "--", "x"], "arguments does not go with a kernel"),
        (["nowhere.exe"], "nowhere.exe: no such file"),
    ],
)
def test_what_does_not_go_together(arguments, said, made, tmp_path):
    made.save(tmp_path / "k.exe")
    (tmp_path / "k.py").write_text("")
    done = command("run", *arguments, cwd=tmp_path)
    assert done.returncode == 2
    assert said in done.stderr
    assert "Traceback" not in done.stderr
