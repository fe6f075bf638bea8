"""Kernels and dumps on disk: whole, atomic, and clear about what is wrong with them."""

import dataclasses
import json
import os

import pytest

from mosaic_toolkit import dump
from mosaic_toolkit.capture import Failure
from mosaic_toolkit.errors import InvalidModule, ToolkitError
from mosaic_toolkit.kernel import ArrayType, Kernel, load, save

ASM = """\
module @double {
  func.func @double(%arg0: memref<8x128xf32, #tpu.memory_space<vmem>> loc("x_ref"), %arg1: memref<8x128xf32, #tpu.memory_space<vmem>> loc("o_ref")) attributes {dimension_semantics = [], scalar_prefetch = 0 : i64, scratch_operands = 0 : i64, tpu.core_type = #tpu.core_type<tc>} {
    return loc(#loc1)
  } loc(#loc)
} loc(#loc)
#loc = loc(unknown)
#loc1 = loc("double.py":3:0)
"""

KERNEL = Kernel(
    name="double",
    backend="mosaic_tpu",
    level="dialect",
    target="v5e",
    asm=ASM,
    operands=(ArrayType("float32", (8, 128)),),
    results=(ArrayType("float32", ()),),
    aliases=((0, 0),),
    grid=(4, None),
    attributes=(("has_side_effect", "false"),),
    encoding='{"ir_version": 15}',
    source="double.py:2",
    versions=(("jax", "0.12.0"),),
)
RUN = dump.Run(
    command=("mosaic-dump", "x.py"),
    targets=("v5e",),
    versions=(("python", "3.13"),),
    failures=(Failure("f", "triton", "h100", "ValueError: no", "x.py:1"),),
    notes=("n",),
    traceback="Traceback",
    functions=("g",),
)


def test_save_and_load(tmp_path):
    assert load(save(KERNEL, tmp_path / "deep" / "k.mlir")) == KERNEL
    assert sorted(p.name for p in (tmp_path / "deep").iterdir()) == ["k.json", "k.mlir"]


def test_hand_edits_count(tmp_path):
    path = save(KERNEL, tmp_path / "k.mlir")
    path.write_text(ASM.replace("scratch_operands = 0", "scratch_operands = 1"))
    edited = load(path)
    assert "scratch_operands = 1" in edited.asm
    assert dataclasses.replace(edited, asm=ASM) == KERNEL


def write(path, text):
    path.write_bytes(text if isinstance(text, bytes) else text.encode())


NESTED = "module {" * 200_000 + "}" * 200_000  # overflows the stack of MLIR's parser

DAMAGED_MLIR = {
    "truncated": (ASM[: len(ASM) // 2], r"k\.mlir:\d+:\d+: "),
    "not MLIR": ("import jax\n", r"k\.mlir:1:1: .*"),
    "empty": ("", r"k\.mlir:1: the file is empty; expected MLIR text"),
    "binary": (b"\xff\xfe\x00ML", r"k\.mlir: byte 0 is not UTF-8"),
    "does not verify": (ASM.replace("    return", "    "), r"k\.mlir:\d+:\d+: "),
    "crashes the parser": (NESTED, r"MLIR's parser crashed on it"),
}


@pytest.mark.parametrize("damage", DAMAGED_MLIR)
def test_damaged_module(damage, tmp_path):
    text, message = DAMAGED_MLIR[damage]
    path = save(KERNEL, tmp_path / "k.mlir")
    write(path, text)
    with pytest.raises(InvalidModule, match=message):
        load(path)


def _json(change):
    data = KERNEL.to_json()
    change(data)
    return json.dumps(data)


DAMAGED_JSON = {
    "truncated": ('{"format": "mosaic-toolkit/k', r"k\.json:1:\d+: not JSON"),
    "foreign": ("[1]", r"k\.json:1: expected a kernel's description"),
    "newer": (_json(lambda d: d.update(format_version=99)), r"format version 99, .* reads up to 1"),
    "no version": (_json(lambda d: d.pop("format_version")), r"format version None"),
    "missing field": (_json(lambda d: d.pop("backend")), r"k\.json: no field 'backend'"),
    "wrong type": (_json(lambda d: d.update(grid=3)), r"'grid' should be a list, is int"),
    "number for an array type": (
        _json(lambda d: d.update(operands=[1])),
        "'operands' should hold texts only",
    ),
    "number for a source": (_json(lambda d: d.update(source=5)), "'source' should be a str"),
    "number for an attribute": (
        _json(lambda d: d.update(attributes={"a": 1})),
        "'attributes' should hold texts only",
    ),
    "bad array type": (_json(lambda d: d.update(operands=["x"])), r"'x' is no array type"),
    "bad alias": (_json(lambda d: d.update(aliases=[[1]])), r"k\.json: "),
}


@pytest.mark.parametrize("damage", DAMAGED_JSON)
def test_damaged_description(damage, tmp_path):
    text, message = DAMAGED_JSON[damage]
    path = save(KERNEL, tmp_path / "k.mlir")
    write(path.with_suffix(".json"), text)
    with pytest.raises(InvalidModule, match=message):
        load(path)


def test_missing_files(tmp_path):
    with pytest.raises(InvalidModule, match=r"k\.mlir: no such file; expected MLIR text"):
        load(tmp_path / "k.mlir")
    path = save(KERNEL, tmp_path / "k.mlir")
    path.with_suffix(".json").unlink()
    with pytest.raises(InvalidModule, match=r"k\.json: no such file"):
        load(path)


def test_write_and_load_a_dump(tmp_path):
    other = dataclasses.replace(KERNEL, name="../../etc/passwd", grid=())
    kernels = [KERNEL, other, dataclasses.replace(KERNEL, grid=(9,))]
    written = dump.write_dump(tmp_path / "d", kernels, RUN, overwrite=False)
    assert dump.load_dump(tmp_path / "d") == written
    assert [name for name, _ in written.kernels] == [
        "double.mosaic_tpu.v5e", "etc_passwd.mosaic_tpu.v5e", "double.mosaic_tpu.v5e-2",
    ]  # fmt: skip
    assert os.listdir(tmp_path) == ["d"]


def test_a_name_is_taken_whatever_its_case():
    upper = dataclasses.replace(KERNEL, name="DOUBLE")
    names = dump.directory_names([KERNEL, upper])
    assert len({name.lower() for name in names}) == 2


def test_no_overwriting_unasked(tmp_path):
    dump.write_dump(tmp_path / "d", [KERNEL], RUN, overwrite=False)
    with pytest.raises(ToolkitError, match="exists"):
        dump.write_dump(tmp_path / "d", [], RUN, overwrite=False)
    assert len(dump.load_dump(tmp_path / "d").kernels) == 1
    dump.write_dump(tmp_path / "d", [], RUN, overwrite=True)
    assert dump.load_dump(tmp_path / "d").kernels == ()


def test_what_is_no_dump_is_never_replaced(tmp_path):
    (tmp_path / "d").mkdir()
    (tmp_path / "d" / "thesis.tex").write_text("mine")
    with pytest.raises(ToolkitError, match="is no dump"):
        dump.write_dump(tmp_path / "d", [KERNEL], RUN, overwrite=True)
    assert (tmp_path / "d" / "thesis.tex").read_text() == "mine"


def test_an_interrupted_write_leaves_what_was_there(tmp_path, monkeypatch):
    before = dump.write_dump(tmp_path / "d", [KERNEL], RUN, overwrite=False)
    saved = []

    def interrupted(kernel, path):
        if saved:
            raise KeyboardInterrupt
        saved.append(save(kernel, path))

    monkeypatch.setattr(dump, "save", interrupted)
    with pytest.raises(KeyboardInterrupt):
        dump.write_dump(tmp_path / "d", [KERNEL, KERNEL], RUN, overwrite=True)
    assert dump.load_dump(tmp_path / "d") == before
    assert os.listdir(tmp_path) == ["d"]


DAMAGED_MANIFEST = {
    "not JSON": ("{", "not JSON"),
    "foreign": ('{"name": "npm"}', "expected a dump's manifest"),
    "newer": (json.dumps({"format": dump.FORMAT, "format_version": 2}), "format version 2"),
    "incomplete": (json.dumps({"format": dump.FORMAT, "format_version": 1}), "damaged"),
}


@pytest.mark.parametrize("damage", DAMAGED_MANIFEST)
def test_damaged_manifest(damage, tmp_path):
    text, message = DAMAGED_MANIFEST[damage]
    dump.write_dump(tmp_path / "d", [KERNEL], RUN, overwrite=False)
    (tmp_path / "d" / "manifest.json").write_text(text)
    with pytest.raises(InvalidModule, match=message):
        dump.load_dump(tmp_path / "d")
