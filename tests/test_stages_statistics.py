"""Statistics of compiled kernels, from small files and from real compiles."""

from __future__ import annotations

import dataclasses
import importlib.util
import json
from pathlib import Path

import pytest

from mosaic_toolkit.errors import CompileError, Unsupported
from mosaic_toolkit.report import stages as report
from mosaic_toolkit.stages import Measure, load_stages, read_stages, read_statistics, write_stages
from mosaic_toolkit.stages.bundles import copies, find_loops, parse_bundles, source_lines
from mosaic_toolkit.stages.measure import Count
from mosaic_toolkit.stages.ptxas import parse_ptxas
from mosaic_toolkit.stages.sass import opcode_class, parse_sass
from mosaic_toolkit.stages.utilization import parse_utilization
from tests import stage_files
from tests.installed import needs_gpu, needs_tpu

KERNELS = Path(__file__).parent.parent / "dumps/kernels"


@pytest.fixture
def raw_tpu(tmp_path):
    return stage_files.write_tpu(tmp_path / "raw")


@pytest.fixture
def raw_gpu(tmp_path):
    return stage_files.write_mosaic_gpu(tmp_path / "raw")


@pytest.fixture
def tpu(raw_tpu):
    return read_statistics(raw_tpu, "mosaic_tpu")


@pytest.fixture
def gpu(raw_gpu):
    return read_statistics(raw_gpu, "mosaic_gpu")


def value(number: int) -> Measure:
    return Measure(number)


def test_bundles_and_empty_ones(tpu):
    assert tpu.bundles == value(11)
    # The first bundle names an operand, which issues nothing.
    assert tpu.empty_bundles == value(3)
    assert tpu.emitted_bundles == value(0xA2 - 0x95)


def test_loop_bodies_end_with_the_delay_slots_of_their_branch():
    loops = list(find_loops(parse_bundles(stage_files.BUNDLES)))
    assert loops == [(1, 2, 9), (2, 4, 7)]


def test_loop_without_a_branch_back_ends_where_its_mark_does():
    text = stage_files.BUNDLES.replace("target = $region21", "target = $region99")
    assert list(find_loops(parse_bundles(text)))[1] == (2, 4, 4)


def test_branches_that_name_their_bundle_too():
    text = stage_files.BUNDLES.replace("$region21", "bundleno = 4 (0x4), region = 21")
    assert list(find_loops(parse_bundles(text)))[1] == (2, 4, 7)


def test_slots_by_the_columns_of_the_header(tpu):
    used = {use.unit: (use.used, use.available) for use in tpu.slots}
    assert used == {"MATMUL": (1, 22), "VALU": (4, 44), "NEWUNIT": (1, 11), "SALU": (6, 22)}
    inner = tpu.loops[1]
    assert {use.unit: use.used for use in inner.slots} == {
        "MATMUL": 1,
        "VALU": 4,
        "NEWUNIT": 1,
        "SALU": 1,
    }
    assert inner.slots[1].occupancy == pytest.approx(4 / 16)


def test_spills_and_fills(tpu):
    assert (tpu.vector_spills, tpu.vector_fills) == (value(1), value(1))
    assert (tpu.scalar_spills, tpu.scalar_fills) == (value(1), value(0))


def test_registers_are_those_that_the_bundles_name(tpu):
    assert Count("v", 2) in tpu.registers and Count("p", 3) in tpu.registers


def test_instructions_by_python_line():
    text = stage_files.BUNDLES.replace("sm:$0xff] ", 'sm:$0xff] /* loc("a/k.py":7:1 to :9) */ ')
    named, unnamed = source_lines(parse_bundles(text))
    assert named == {"a/k.py:7": text.count("loc(")}
    assert unnamed == 10 - text.count("loc(")


def test_copies_and_their_bytes(tpu):
    (copy,) = tpu.copies
    assert (copy.direction, copy.granules, copy.bytes) == ("hbm_to_vmem", value(256), value(8192))
    assert tpu.loops[0].copied_bytes == value(8192)
    assert tpu.loops[1].copied_bytes == value(0)


def without_window(text: str) -> str:
    return text.replace("window_bounds", "other")


def test_granules_follow_from_the_copies_of_the_module():
    bundles = parse_bundles(without_window(stage_files.BUNDLES))
    assert copies(bundles, {32768})[0].bytes == value(32768)


@pytest.mark.parametrize("sizes", [(), (32768, 65536), (1000,)])
def test_bytes_that_no_file_tells_are_not_reported(sizes):
    (copy,) = copies(parse_bundles(without_window(stage_files.BUNDLES)), sizes)
    assert copy.bytes.value is None and "granule" in copy.bytes.why


def test_copies_of_a_length_known_only_at_run_time():
    text = stage_files.BUNDLES.replace("/*size_in_granules=*/256", "/*size_in_granules=*/%s5_s1")
    (copy,) = copies(parse_bundles(text))
    assert copy.granules.value is None and "run time" in str(copy.granules)


def test_memory_by_named_buffer(tpu):
    buffers = {(a.name, a.space, a.bytes.value, a.shape) for a in tpu.allocations}
    assert ("scratch operand", "vmem", 4096, "f32[8,128]{1,0:T(8,128)}") in buffers
    window = "input window allocation for operator input 0"
    assert (window, "vmem", 8192, "f32[8,128] x 2") in buffers
    assert ("late", "smem", None, "u32[]") in buffers
    assert (tpu.vmem_bytes, tpu.vmem_capacity) == (value(12288), value(134217728))


def test_pressure_of_every_register_file(raw_tpu):
    for number, line in ((6, "sregs is 38"), (7, "vmregs is 20")):
        path = raw_tpu / f"llo/500-scale.1-{number:02}-register-pressure.txt"
        path.write_text(f"Register pressure for {line}\nlen=9 :: %s0 = smov 1\n")
    assert read_statistics(raw_tpu, "mosaic_tpu").pressure == (
        Count("sregs", 38),
        Count("vmregs", 20),
    )


def test_operands_that_are_in_vmem_before_the_kernel(raw_tpu):
    program = raw_tpu / "llo/400-TLP-hlo.txt"
    text = program.read_text()
    program.write_text(text.replace("T(8,128)} parameter", "T(8,128)S(1)} parameter"))
    (note,) = read_statistics(raw_tpu, "mosaic_tpu").notes
    assert note.startswith("operand 0 is in VMEM")


@pytest.mark.parametrize(
    ("name", "field"),
    [("TLP-01-vmem_report.html", "vmem_bytes"), ("TLP-02-hlo-details.txt", "emitted_bundles")],
)
def test_what_no_file_says_is_not_reported(raw_tpu, name, field):
    (raw_tpu / f"llo/400-{name}").unlink()
    measure = getattr(read_statistics(raw_tpu, "mosaic_tpu"), field)
    assert measure.value is None and str(measure).startswith("not reported (")


def test_dumps_without_declarations_say_so(raw_tpu):
    for path in (raw_tpu / "llo").glob("500-scale.1-*-post-*.txt"):
        path.unlink()
    statistics = read_statistics(raw_tpu, "mosaic_tpu")
    assert statistics.allocations == ()
    assert statistics.notes == (
        "memory by buffer: not reported (no stage in the dump declares any)",
    )


def test_utilization_of_other_bundles_is_not_used(raw_tpu):
    path = raw_tpu / "llo/500-scale.1-04-final_hlo-static-per-bundle-utilization.txt"
    path.write_text(stage_files.UTILIZATION + "0 0 0 0\n")
    statistics = read_statistics(raw_tpu, "mosaic_tpu")
    assert statistics.slots == ()
    assert "12 bundles, the final bundles 11" in statistics.notes[0]


def test_disagreement_with_the_schedule_analysis_is_told(raw_tpu):
    path = raw_tpu / "llo/500-scale.1-06-schedule-analysis_final_bundles.txt"
    path.write_text(
        "\ttotal scheduled bundles:    11\n\tempty scheduled bundles:    5\n"
        "\tnon empty scheduled bundles: 6\n"
    )
    assert read_statistics(raw_tpu, "mosaic_tpu").notes == (
        "empty bundles: the schedule analysis says 5, the final bundles hold 3",
    )


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("0 0 0\n", "no header"),
        (stage_files.UTILIZATION.replace("1 2 0 0", "1 2 0"), "names 4 units, but has a line of 3"),
        (stage_files.UTILIZATION.replace("1 2 0 0", "1 x 0 0"), "no numbers"),
    ],
)
def test_damaged_utilization(text, why):
    with pytest.raises(CompileError, match=why):
        parse_utilization(text)


def test_bundles_with_a_gap():
    text = stage_files.BUNDLES.replace("   0x6   :  {}\n", "")
    with pytest.raises(CompileError, match="bundle 0x6 is missing"):
        parse_bundles(text)


def test_sass_loops_are_natural_ones():
    sass = parse_sass(stage_files.SASS)
    assert (sass.architecture, sass.instructions) == ("sm_90a", 14)
    assert sass.code_bytes == value(0xE0)
    outer, spin = sass.loops
    # The spin wait at the end is part of the loop that it returns to.
    assert (outer.header, outer.branch, outer.instructions) == (0x20, 0x60, 8)
    assert (spin.header, spin.branch, spin.instructions) == (0x90, 0xA0, 2)
    assert Count("HGMMA (wgmma)", 1) in outer.classes
    assert Count("TMA copy", 2) in sass.classes


def test_sass_without_control_codes():
    lines = [
        line[line.index("/*") :] if "/*" in line else line for line in stage_files.SASS.splitlines()
    ]
    plain = parse_sass("\n".join(lines))
    assert plain == parse_sass(stage_files.SASS)


@pytest.mark.parametrize(
    ("opcode", "kind"),
    [
        ("HGMMA", "HGMMA (wgmma)"),
        ("UTCHMMA", "UTCMMA (tcgen05)"),
        ("HMMA", "MMA (per warp)"),
        ("UTMALDG", "TMA copy"),
        ("UTMACCTL", "TMA control"),
        ("LDSM", "LDS"),
        ("STS", "STS"),
        ("LDG", "global load"),
        ("LDL", "local (spill) load/store"),
        ("SYNCS", "barrier"),
        ("FFMA", "float arithmetic"),
        ("HADD2", "float arithmetic"),
        ("IMAD", "integer, move, predicate"),
        ("NEVERSEEN", "integer, move, predicate"),
    ],
)
def test_classes_of_opcodes(opcode, kind):
    assert opcode_class(opcode) == kind


def test_resources_of_ptxas():
    resources = parse_ptxas(stage_files.PTXAS)
    assert (resources.registers, resources.barriers) == (value(90), value(2))
    assert (resources.stack, resources.spill_stores, resources.spill_loads) == (
        value(16),
        value(8),
        value(4),
    )
    assert resources.shared.value is None
    (warning,) = resources.warnings
    assert "C7510" in warning


def test_ptxas_of_two_kernels():
    with pytest.raises(CompileError, match="reports on 2 kernels: k, j"):
        parse_ptxas(stage_files.PTXAS + stage_files.PTXAS.replace("'k'", "'j'"))


def test_shared_memory_of_a_mosaic_gpu_kernel(gpu):
    assert gpu.dynamic_shared == value(640)
    assert [(a.name, a.bytes.value) for a in gpu.allocations] == [
        ("at offset 0", 512),
        ("at offset 512", 16),
        ("at offset 600", None),
    ]


@pytest.mark.parametrize("backend", ["mosaic_gpu", "triton", "mosaic_tpu"])
def test_no_files(tmp_path, backend):
    with pytest.raises(CompileError, match="no such directory"):
        read_statistics(tmp_path, backend)


def test_unknown_backend(tmp_path):
    with pytest.raises(Unsupported, match="no statistics are known for backend 'x'"):
        read_statistics(tmp_path, "x")


@pytest.mark.parametrize("kind", ["tpu", "gpu"])
def test_json_reads_back(kind, request):
    statistics = request.getfixturevalue(kind)
    data = json.loads(json.dumps(report.to_json(statistics)))
    assert report.from_json(data) == statistics


def test_digest_of_a_tpu_kernel(tpu):
    text = report.render_digest(tpu, "scale for v5e")
    assert text.startswith("scale for v5e\nbundles    11, 3 empty; 13 emitted\n")
    assert "NEWUNIT" in text and "not reported (no file says how long" in text
    assert len(text.splitlines()) <= 30


def test_digest_keeps_its_length_and_counts_what_it_leaves_out(tpu):
    buffers = tuple(
        dataclasses.replace(tpu.allocations[0], name=f"buffer {i}", bytes=value(1000 + i))
        for i in range(40)
    )
    text = report.render_digest(dataclasses.replace(tpu, allocations=buffers), "scale")
    lines = text.splitlines()
    assert len(lines) == 30
    (rest,) = [line for line in lines if line.startswith("  and ")]
    shown = sum("buffer " in line for line in lines)
    assert int(rest.split()[1]) + shown == 40


def test_digest_of_a_gpu_kernel(gpu):
    text = report.render_digest(gpu, "k for h100")
    assert "registers  90 per thread" in text and "C7510" in text
    assert len(text.splitlines()) <= 30


def test_side_by_side_shows_deltas_and_what_is_not_reported(tpu):
    after = dataclasses.replace(tpu, bundles=value(9), vmem_bytes=value(4096))
    text = report.render_side_by_side(tpu, after, ("before", "after"))
    rows = {line.split("  ")[0]: line.split() for line in text.splitlines()}
    assert rows["bundles"][-3:] == ["11", "9", "-2"]
    assert rows["VMEM"][-2:] == ["-8.0", "KiB"]
    assert rows["empty bundles"][-1] == "="
    assert "code: not reported (no file says how long an encoded bundle is)" in text


def test_measures_have_a_value_or_a_reason():
    with pytest.raises(ValueError, match="a value or a reason"):
        Measure(None)
    with pytest.raises(ValueError, match="a value or a reason"):
        Measure(0, "unknown")
    assert str(Measure(None, "no file")) == "not reported (no file)"


# --- real compiles ------------------------------------------------------------


def compiled(tmp_path, name: str, call: str, target: str, *args):
    """Raw files of an example kernel."""
    from mosaic_toolkit.capture import capture
    from mosaic_toolkit.recompile import compile_kernel

    path = KERNELS / f"{name}.py"
    spec = importlib.util.spec_from_file_location(name, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    (kernel,) = capture(getattr(module, call), *args, target=target)
    compile_kernel(kernel, dump_to=tmp_path / "raw")
    return tmp_path / "raw", kernel


def check_stages(stages, out) -> None:
    """Written, read back, and neither all nor no passes changed anything."""
    written = write_stages(stages, out)
    assert load_stages(out) == written
    changed = [stage.changed for stage in stages]
    assert True in changed and False in changed


@needs_tpu
@pytest.mark.parametrize("target", ["v5e", "tpu7x"])
def test_real_tpu_kernel(tmp_path, target):
    import jax

    a = jax.ShapeDtypeStruct((512, 512), "bfloat16")
    raw, kernel = compiled(tmp_path, "matmul_tpu", "matmul", target, a, a)
    stages = read_stages(raw, kernel.backend)
    check_stages(stages, tmp_path / "out")
    names = [stage.name for stage in stages]
    assert names.index("original") < names.index("post-finalize-llo") < names.index("final_bundles")
    statistics = read_statistics(raw, kernel.backend)
    assert statistics.bundles.value and statistics.loops and statistics.emitted_bundles.value
    used = {use.unit for use in statistics.slots if use.used}
    assert any(unit.startswith("MAT") for unit in used)
    assert all(0 <= use.occupancy <= 1 for use in statistics.slots)
    assert any(line.name.startswith(kernel.source.rpartition(":")[0]) for line in statistics.lines)
    # The three-dimensional grid is one loop in which the pipeline's copies stand.
    (loop,) = [loop for loop in statistics.loops if loop.depth == 1]
    assert loop.copied_bytes.value
    assert sum(a.bytes.value for a in statistics.allocations if a.space == "vmem") == (
        statistics.vmem_bytes.value
    )
    assert not [note for note in statistics.notes if "bundles" in note]
    assert len(report.render_digest(statistics, kernel.name).splitlines()) <= 30


@needs_gpu
def test_real_mosaic_gpu_kernel(tmp_path):
    import jax

    a = jax.ShapeDtypeStruct((256, 256), "float16")
    raw, kernel = compiled(tmp_path, "matmul_hopper", "matmul", "h100", a, a)
    stages = read_stages(raw, kernel.backend)
    check_stages(stages, tmp_path / "out")
    assert [stage.level for stage in stages][-2:] == ["ptx", "sass"]
    statistics = read_statistics(raw, kernel.backend)
    classes = {c.name: c.count for c in statistics.sass.classes}
    assert classes["HGMMA (wgmma)"] and classes["TMA copy"]
    assert any("HGMMA (wgmma)" in {c.name for c in loop.classes} for loop in statistics.sass.loops)
    last = statistics.allocations[-1]
    end = int(last.name.removeprefix("at offset ")) + last.bytes.value
    assert end <= statistics.dynamic_shared.value < end + 128
    assert statistics.resources.registers.value > 16


@needs_gpu
def test_real_triton_kernel(tmp_path):
    import jax

    a = jax.ShapeDtypeStruct((64, 1000), "float32")
    raw, kernel = compiled(tmp_path, "softmax_triton", "softmax", "h100", a)
    stages = read_stages(raw, kernel.backend)
    check_stages(stages, tmp_path / "out")
    assert {"mlir", "llvm", "ptx", "sass"} == {stage.level for stage in stages}
    statistics = read_statistics(raw, kernel.backend)
    assert statistics.kernel == "softmax"
    assert statistics.resources.registers.value and statistics.dynamic_shared.value == 16
