"""Compiled stages: their order, names and files, and which pass changed anything."""

from __future__ import annotations

import json

import pytest

from mosaic_toolkit.errors import CompileError, Unsupported
from mosaic_toolkit.report import stages as report
from mosaic_toolkit.stages import load_stages, read_stages, write_stages
from mosaic_toolkit.stages.mlir_log import split_log
from mosaic_toolkit.stages.normal_form import Form, llo_form, normal_form
from tests import stage_files


@pytest.fixture
def tpu(tmp_path):
    return stage_files.write_tpu(tmp_path / "raw")


@pytest.fixture
def gpu(tmp_path):
    return stage_files.write_mosaic_gpu(tmp_path / "raw")


def test_tpu_stages_in_order(tpu):
    stages = read_stages(tpu, "mosaic_tpu")
    assert stages.kernel == "scale"
    assert [(s.level, s.name, s.changed) for s in stages] == [
        ("mosaic", "post-deserialization", None),
        ("mosaic", "original", False),
        ("mosaic", "post-simplify", False),
        ("mosaic", "post-lower", True),
        ("llo", "fingerprints", None),
        ("llo", "original", None),
        ("llo", "post-CP", False),
        ("llo", "post-ra", True),
        ("llo", "final_hlo-static-per-bundle-utilization", None),
        ("llo", "final_bundles", None),
    ]
    assert [s.index for s in stages] == list(range(len(stages)))


def test_gpu_log_is_split_into_the_result_of_each_pass(gpu):
    stages = read_stages(gpu, "mosaic_gpu")
    assert [(s.level, s.name, s.changed) for s in stages] == [
        ("mosaic", "before_layout_inference", None),
        ("mlir", "input", None),
        ("mlir", "first", False),
        ("mlir", "canonicalize", True),
        ("ptx", "ptx", None),
        ("sass", "sass", None),
    ]
    assert "arith.muli" in stages.find("canonicalize").text()
    assert "IR Dump" not in stages.find("canonicalize").text()
    assert stages.notes == (
        "the result of the last pass, cse, is not in the compiler's log, which prints before each "
        "pass",
    )


def test_log_that_prints_after_each_pass(tmp_path):
    log = tmp_path / "passes.log"
    log.write_text(stage_files.PASSES_LOG.replace("Dump Before", "Dump After"))
    entries, unseen = split_log(log)
    assert [entry.name for entry in entries] == ["first", "canonicalize", "cse"]
    assert unseen is None


def test_log_that_prints_before_and_after(tmp_path):
    head = "// -----// IR Dump {} CSEPass: cse ('builtin.module' operation: @k) //----- //\n"
    log = tmp_path / "passes.log"
    log.write_text(f"{head.format('Before')}module {{}}\n{head.format('After')}module {{}}\n")
    entries, unseen = split_log(log)
    assert ([entry.name for entry in entries], unseen) == (["input", "cse"], None)


def test_written_stages_read_back(tpu, tmp_path):
    stages = read_stages(tpu, "mosaic_tpu")
    written = write_stages(stages, tmp_path / "out")
    assert load_stages(tmp_path / "out") == written
    assert [s.text() for s in written] == [s.text() for s in stages]
    names = sorted(p.name for p in (tmp_path / "out").iterdir())
    assert names[:2] == ["00-mosaic-post-deserialization.txt", "01-mosaic-original.txt"]
    assert names[-1] == "manifest.json"


def test_parts_of_a_log_are_written_to_their_own_files(gpu, tmp_path):
    written = write_stages(read_stages(gpu, "mosaic_gpu"), tmp_path / "out")
    first = (tmp_path / "out" / "2-mlir-first.mlir").read_text()
    assert "%sum" in first and "muli" not in first and len(written) == 6


def test_nothing_is_written_over(tpu, tmp_path):
    stages = read_stages(tpu, "mosaic_tpu")
    write_stages(stages, tmp_path / "out")
    with pytest.raises(CompileError, match="not empty"):
        write_stages(stages, tmp_path / "out")


@pytest.mark.parametrize("damage", ["missing", "shorter", "format"])
def test_damaged_stage_directories_are_refused(gpu, tmp_path, damage):
    out = tmp_path / "out"
    stage = write_stages(read_stages(gpu, "mosaic_gpu"), out).stages[1]
    if damage == "missing":
        stage.path.unlink()
    elif damage == "shorter":
        stage.path.write_bytes(stage.data()[:-1])
    else:
        (out / "manifest.json").write_text(json.dumps({"format": "other"}))
    with pytest.raises(CompileError, match="missing|bytes long|manifest"):
        load_stages(out)


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("llo/500-scale.1-02-post-CP.txt", "stages 2 of 0 to 5 are missing"),
        ("llo/500-scale.1-05-final_bundles.txt", "no final bundles"),
        ("llo/400-TLP-hlo.txt", "left no program"),
        ("mosaic/300-0002-mosaic-dump-scale-post-simplify.txt", "stages 2 of 1 to 3 are missing"),
    ],
)
def test_missing_tpu_stage_is_an_error(tpu, name, why):
    (tpu / name).unlink()
    with pytest.raises(CompileError, match=why):
        read_stages(tpu, "mosaic_tpu")


def test_pass_that_ran_but_left_no_file_is_an_error(tpu):
    listed = tpu / "llo/500-scale.1-00-fingerprints.txt"
    listed.write_text(listed.read_text() + "eKe3vE=:i=000000bb:c=00000037 post-GVN\n")
    with pytest.raises(CompileError, match="post-GVN ran, but left no file"):
        read_stages(tpu, "mosaic_tpu")


def test_dump_without_a_list_of_passes_says_so(tpu):
    listed = tpu / "llo/500-scale.1-00-fingerprints.txt"
    listed.unlink()
    (note,) = read_stages(tpu, "mosaic_tpu").notes
    assert "stages may be missing" in note


@pytest.mark.parametrize("suffix", ["mlir-passes.log", "ptx", "sass_ctrl"])
def test_missing_gpu_stage_is_an_error(gpu, suffix):
    (gpu / "mosaic_gpu" / f"k_0.{suffix}").unlink()
    with pytest.raises(CompileError, match="the compiler left no"):
        read_stages(gpu, "mosaic_gpu")


def test_empty_stage_is_an_error(tpu):
    (tpu / "llo/500-scale.1-02-post-CP.txt").write_text("")
    with pytest.raises(CompileError, match="'post-CP' is empty"):
        read_stages(tpu, "mosaic_tpu")


def test_two_kernels_are_refused(tpu):
    program = tpu / "llo/400-TLP-hlo.txt"
    call = '  %other.2 = f32[8] custom-call(%x.1), custom_call_target="tpu_custom_call"\n'
    program.write_text(program.read_text() + call)
    with pytest.raises(Unsupported, match="calls 2 Mosaic kernels: scale.1, other.2"):
        read_stages(tpu, "mosaic_tpu")


def test_kernel_names_with_hyphens_and_the_words_of_passes(tpu):
    for path in (tpu / "mosaic").iterdir():
        path.rename(path.with_name(path.name.replace("dump-scale-", "dump-a-post-scale-")))
    stages = read_stages(tpu, "mosaic_tpu")
    assert stages.kernel == "a-post-scale"
    assert stages.stages[1].name == "original"


def test_unknown_backend(tpu):
    with pytest.raises(Unsupported, match="no stages are known for backend 'cpu'"):
        read_stages(tpu, "cpu")


def test_find_names_close_stages(tpu):
    with pytest.raises(CompileError, match="no stage 'bundles'") as error:
        read_stages(tpu, "mosaic_tpu").find("bundles")
    assert error.value.hint == "close names: final_bundles"


def test_forms_by_first_lines():
    assert llo_form(stage_files.LLO) is Form.LLO
    assert llo_form(stage_files.BUNDLES) is Form.BUNDLES
    assert llo_form("     0   :  { %s0 = smov 1 }\n   0x1   :  {}\n") is Form.BLOCK_BUNDLES
    assert llo_form("\n%s0 = smov 1\n") is Form.LLO_BLOCKS
    assert llo_form("Schedule analysis:\n  total: 3\n") is Form.OTHER


@pytest.mark.parametrize(
    ("before", "after", "same"),
    [
        ("%0 = f(%a) loc(#loc1)\n#loc1 = loc(unknown)", "%x = f(%q)", True),
        ('%0 = f(%a) loc("k.py":3:4)', '%0 = f(%a) loc(fused["a", "b(c"])', True),
        ("%0 = f(%a)\ng(%0)", "%0 = f(%a)\ng(%a)", False),
        ("%0 = f(%a) {n = 1}", "%0 = f(%a) {n = 2}", False),
        ('%0 = "f"() : () -> i32 "exp:"(#loc30)', '%0 = "f"() : () -> i32 [unknown]', True),
        ('%0 = "f"() : () -> i32 #loc4\n at #loc5', '%0 = "f"() : () -> i32', True),
        ("cf.br ^bb3", "cf.br ^bb7", True),
    ],
)
def test_mlir_texts_compare_without_names_and_locations(before, after, same):
    equal = normal_form(before, Form.MLIR) == normal_form(after, Form.MLIR)
    assert equal is same


@pytest.mark.parametrize(
    ("after", "same"),
    [
        (stage_files.LLO_RENAMED, True),
        (stage_files.LLO_CHANGED, False),
        (stage_files.LLO.replace("$region1: parent=0", "$region7: parent=0"), True),
        (stage_files.LLO.replace("$region1: parent=0", "$region1: parent=1"), False),
        (stage_files.LLO.replace("size = 0x1000", "size = 0x800"), False),
    ],
)
def test_llo_texts_compare_without_numbers_and_comments(after, same):
    equal = normal_form(stage_files.LLO, Form.LLO) == normal_form(after, Form.LLO)
    assert equal is same


def test_registers_are_no_mere_names():
    before, after = "     0   :  { %v1_v3 = vmov 0 }", "     0   :  { %v9_v4 = vmov 0 }"
    assert normal_form(before, Form.BUNDLES) != normal_form(after, Form.BUNDLES)


def test_list_of_stages(tpu):
    text = report.render_stages(read_stages(tpu, "mosaic_tpu"))
    lines = text.splitlines()
    assert lines[0].split() == ["level", "stage", "size"]
    assert lines[4].split()[:3] == ["3", "mosaic", "post-lower"] and lines[4].endswith("changed")
    short = report.render_stages(read_stages(tpu, "mosaic_tpu"), changed_only=True)
    assert "post-simplify" not in short and "post-lower" in short
