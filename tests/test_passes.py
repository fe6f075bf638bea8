"""Running passes: what a pipeline guarantees whatever its passes do."""

from __future__ import annotations

import dataclasses
import json
import shlex

import pytest

from mosaic_toolkit import mlir_pass
from mosaic_toolkit.errors import CompileError, InvalidModule, PassPipelineError, Refused
from mosaic_toolkit.jax_compat import ir
from mosaic_toolkit.kernel import Kernel, load
from mosaic_toolkit.mlir_pass import MlirPass
from mosaic_toolkit.pass_pipeline import PassPipeline, write_reproducer
from mosaic_toolkit.passes import Pass

ASM = """
// Written by hand: printed otherwise than MLIR prints it.
module @tiny { func.func @tiny(%x: i32) -> i32 {
  %zero = arith.constant 0 : i32
  %unused = arith.constant 7 : i32
  %sum = arith.addi %x, %zero : i32
  return %sum : i32 } }
"""
KERNEL = Kernel("tiny", "mosaic_tpu", "dialect", "v5e", ASM, source="somewhere/tiny.py:3")


@dataclasses.dataclass(frozen=True)
class Mark(Pass):
    """Sets an attribute of the function."""

    name = "mark"

    text: str = "yes"

    def run(self, graph):
        (function,) = graph.ops("func.func")
        with graph.module.context:
            graph.set_attribute(function, "mark", ir.StringAttr.get(self.text))


@dataclasses.dataclass(frozen=True)
class Nothing(Pass):
    """Changes nothing."""

    name = "nothing"

    def run(self, graph):
        pass


@dataclasses.dataclass(frozen=True)
class Refuse(Pass):
    """Refuses every kernel."""

    name = "refuse"

    def run(self, graph):
        raise Refused("2 slots need 18.0 MiB, there are 16.0 MiB", hint="use smaller blocks")


@dataclasses.dataclass(frozen=True)
class Break(Pass):
    """Leaves a module that does not verify."""

    name = "break"

    def run(self, graph):
        (function,) = graph.ops("func.func")
        with graph.module.context:
            type = ir.TypeAttr.get(ir.FunctionType.get([], []))
            function.attributes["function_type"] = type


@dataclasses.dataclass(frozen=True)
class Buggy(Pass):
    """Has a bug."""

    name = "buggy"

    def run(self, graph):
        {}["missing"]


@dataclasses.dataclass(frozen=True)
class ForGpu(Mark):
    """Is for GPU kernels at dialect level."""

    name = "for-gpu"
    backends = frozenset({"mosaic_gpu"})
    level = "dialect"


def run(*passes: Pass, kernel: Kernel = KERNEL, **options):
    return PassPipeline(passes).run(kernel, **options)


def test_the_empty_pipeline_returns_the_kernel_itself():
    result = run()
    assert result.kernel is KERNEL
    assert not result.changed
    assert result.steps == ()


def test_a_pass_that_changes_nothing_keeps_the_text_as_it_was_written():
    result = run(Nothing(), MlirPass("symbol-dce"))
    assert result.kernel is KERNEL
    assert [step.changed for step in result.steps] == [False, False]


def test_before_survives():
    result = run(Mark("a"), Nothing(), Mark("b"))
    assert KERNEL.asm == ASM
    assert [step.changed for step in result.steps] == [True, False, True]
    assert [step.applied for step in result.steps] == [Mark("a"), Nothing(), Mark("b")]
    assert result.steps[0].before is KERNEL
    assert 'mark = "a"' in result.steps[0].after.asm
    assert result.steps[1].after is result.steps[2].before is result.steps[0].after
    assert result.kernel is result.steps[2].after
    assert 'mark = "b"' in result.kernel.asm
    assert dataclasses.replace(result.kernel, asm=ASM) == KERNEL


def test_setting_what_is_already_so_is_no_change():
    marked = run(Mark("a")).kernel
    assert run(Mark("a"), kernel=marked).kernel is marked


def test_on_change_sees_the_changes_as_they_happen():
    seen = []
    with pytest.raises(Refused):
        run(Mark(), Nothing(), MlirPass("canonicalize"), Refuse(), Mark(), on_change=seen.append)
    assert [str(step.applied) for step in seen] == ["mark", "canonicalize"]


def test_a_refusal_names_the_pass_and_the_kernel():
    with pytest.raises(Refused) as caught:
        run(Mark(), Refuse())
    assert str(caught.value) == (
        "refuse: 2 slots need 18.0 MiB, there are 16.0 MiB (kernel 'tiny', tiny.py:3)"
        "\n\nhint: use smaller blocks"
    )


def test_another_backend_is_refused_before_any_pass_has_run():
    seen = []
    with pytest.raises(
        Refused, match=r"^mosaic_tpu kernel; for-gpu needs mosaic_gpu \(kernel 'tiny', tiny.py:3\)$"
    ):
        run(Mark(), ForGpu(), on_change=seen.append)
    assert seen == []


def test_the_lowered_level_is_refused_with_the_way_out():
    lowered = dataclasses.replace(KERNEL, backend="mosaic_gpu", level="lowered")
    with pytest.raises(
        Refused, match="only at the lowered level; for-gpu needs the dialect"
    ) as caught:
        run(ForGpu(), kernel=lowered)
    assert "Warpgroup" in caught.value.hint
    dialect = dataclasses.replace(lowered, level="dialect")
    assert run(ForGpu(), kernel=dialect).changed


def test_a_pass_that_breaks_the_module_is_named():
    with pytest.raises(
        InvalidModule, match=r"^after pass 'break': .*entry block must .*kernel 'tiny'"
    ):
        run(Mark(), Break(), Mark())


def test_a_bug_in_a_pass_is_told_with_its_line():
    with pytest.raises(
        PassPipelineError, match=r"^pass 'buggy' raised KeyError: 'missing' \(test_passes.py:\d+\)"
    ) as caught:
        run(Buggy())
    assert isinstance(caught.value.__cause__, KeyError)


def test_a_pass_without_run_says_so():
    @dataclasses.dataclass(frozen=True)
    class Empty(Pass):
        name = "empty"

    with pytest.raises(PassPipelineError, match=r"Empty has no run\(graph\)"):
        run(Empty())


def test_mlirs_own_passes():
    result = run(MlirPass("canonicalize"))
    assert result.changed
    assert "arith" not in result.kernel.asm
    assert run(MlirPass("func.func(canonicalize)")).kernel.asm == result.kernel.asm
    assert "arith.constant" in run(MlirPass("canonicalize{max-iterations=0}")).kernel.text()


def test_what_an_mlir_pass_reports_is_kept():
    (step,) = run(MlirPass("print-op-stats")).steps
    assert not step.changed
    assert "arith.addi" in step.output


def test_an_mlir_pass_that_fails():
    with pytest.raises(CompileError, match=r"^mosaic-serde: .*serialize option must be specified"):
        run(MlirPass("mosaic-serde"))


def test_an_mlir_pass_that_aborts_ends_its_own_process_only():
    two = "module { func.func @a() { return } func.func @b() { return } }"
    kernel = dataclasses.replace(KERNEL, asm=two)
    with pytest.raises(
        CompileError, match=r"^sdy-propagation-pipeline: MLIR crashed \(SIGABRT\): "
    ):
        run(MlirPass("sdy-propagation-pipeline"), kernel=kernel)


def test_an_mlir_pass_that_does_not_finish(monkeypatch):
    monkeypatch.setattr(mlir_pass, "_TIMEOUT_SECONDS", 0.01)
    with pytest.raises(CompileError, match=r"did not finish in 0\.01 s"):
        run(MlirPass("cse"))


def test_a_reproducer_holds_the_kernel_and_the_command(tmp_path):
    kernel = dataclasses.replace(KERNEL, name="../odd name/*")
    pipeline = PassPipeline((Mark("it's"), Refuse()))
    with pytest.raises(Refused) as caught:
        pipeline.run(kernel)
    plugin = tmp_path / "my plugin.py"
    directory = tmp_path / "failed here"
    reproducer = write_reproducer(directory, kernel, pipeline, caught.value, plugins=[plugin])

    assert load(reproducer.path) == kernel
    assert reproducer.path.parent == directory
    words = shlex.split(reproducer.command)
    assert words == [
        "mosaic-dump",
        "apply",
        str(reproducer.path),
        "-p",
        str(pipeline),
        "--plugin",
        str(plugin),
    ]
    assert PassPipeline.parse(words[4], {"mark": Mark, "refuse": Refuse}) == pipeline

    (record,) = directory.glob("*.reproducer.json")
    data = json.loads(record.read_text())
    assert data["pipeline"] == str(pipeline)
    assert data["error"]["type"] == "Refused"
    assert data["error"]["hint"] == "use smaller blocks"
    assert data["command"] == reproducer.command

    again = write_reproducer(directory, kernel, pipeline, caught.value, plugins=[plugin])
    assert again == reproducer
    assert len(list(directory.iterdir())) == 3
