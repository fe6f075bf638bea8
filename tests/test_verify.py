"""`verify`: the judge of a rewrite, and the commands that ask it."""

from __future__ import annotations

import dataclasses
import json
import os
import re
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import pallas as pl

import mosaic_toolkit
from mosaic_toolkit.capture import capture
from mosaic_toolkit.errors import Mismatch, Unsupported
from mosaic_toolkit.kernel import Kernel, save
from mosaic_toolkit.report import verification as report
from mosaic_toolkit.verify import verify
from tests.golden import ROOT, kernel_of
from tests.sabotage import judge, mutants

RING = "dumps/kernels/dma_ring_tpu.py::scale float32[512,256]"
HOPPER = "dumps/kernels/matmul_hopper.py::matmul float16[128,256] float16[256,256]"


@pytest.fixture(scope="module")
def ring() -> Kernel:
    return kernel_of(RING, "v5e")


def edited(kernel: Kernel, old: str, new: str) -> Kernel:
    asm = re.sub(old, new, kernel.asm, count=1)
    assert asm != kernel.asm
    return dataclasses.replace(kernel, asm=asm)


def command(*args: str, cwd) -> subprocess.CompletedProcess[str]:
    roots = os.pathsep.join(str(ROOT / part) for part in ("toolkit", "passes"))
    return subprocess.run(
        [sys.executable, "-m", "mosaic_toolkit", *args],
        cwd=cwd,
        env={**os.environ, "PYTHONPATH": roots, "JAX_PLATFORMS": "cpu"},
        capture_output=True,
        text=True,
        timeout=300,
    )


def test_a_kernel_agrees_with_itself(ring):
    result = verify(ring, ring)
    assert result.verified
    assert result.agreement.identical
    assert result.runs == 8 + 4


def test_other_values_are_found_with_their_place(ring):
    result = verify(ring, edited(ring, "arith.mulf", "arith.addf"), runs=1, schedules=1)
    assert not result.verified
    assert result.agreement.where.startswith("result 0[")
    assert not result.after_findings


def test_a_race_names_both_operations_and_lines(ring):
    broken = edited(ring, r"\n\s*tpu\.wait_dma[^\n]*", "")
    result = verify(ring, broken, runs=1, schedules=2)
    race = next(f for f in result.after_findings if f.kind == "race")
    assert "tpu.enqueue_dma (dma_ring_tpu.py:" in race.message
    assert "vector.load (dma_ring_tpu.py:" in race.message
    assert not result.before_findings


def test_a_changed_order_of_accumulation_is_named():
    def total(x, halves):
        def body(x_ref, o_ref):
            if halves:
                o_ref[...] = x_ref[:, :64].sum(axis=1, keepdims=True) + x_ref[:, 64:].sum(
                    axis=1, keepdims=True
                )
            else:
                o_ref[...] = x_ref[...].sum(axis=1, keepdims=True)

        out = jax.ShapeDtypeStruct((256, 1), jnp.float32)
        return pl.pallas_call(body, out_shape=out)(x)

    x = jax.ShapeDtypeStruct((256, 128), jnp.float32)
    kernels = [capture(lambda x, h=h: total(x, h), x, target="v5e")[0] for h in (False, True)]
    result = verify(*kernels, schedules=1)
    assert result.verified
    assert not result.agreement.identical
    assert 0 < result.agreement.ulps <= result.agreement.tolerance
    assert "vector.multi_reduction" in result.agreement.reordered
    assert "order of accumulation changed in: " in report.render(result)


def test_what_is_written_less_is_noticed(ring):
    asm = re.sub(r"\n\s*tpu\.enqueue_dma source\(%\w+ : [^)]*vmem>>\)[^\n]*", "", ring.asm)
    asm = re.sub(r"\n\s*tpu\.wait_dma2?\b[^\n]*vmem>>[^\n]*-?>?[^\n]*any>>[^\n]*", "", asm)
    result = verify(ring, dataclasses.replace(ring, asm=asm), runs=1, schedules=1)
    assert not result.verified
    assert result.agreement is None or result.unwritten[1] > result.unwritten[0]


def test_given_inputs_are_used(ring):
    zeros = [np.zeros((512, 256), np.float32)]
    doubled = edited(ring, r"constant 2\.000000e\+00 : f32", "constant 5.0 : f32")
    assert verify(ring, doubled, inputs=zeros, schedules=1).verified
    assert not verify(ring, doubled, runs=1, schedules=1).verified


def test_kernels_of_other_types_are_a_mismatch(ring):
    with pytest.raises(Mismatch, match="differ in operands"):
        verify(ring, kernel_of(HOPPER, "h100"))


def test_an_operation_without_a_meaning_is_named_before_anything_runs(ring):
    strange = edited(ring, r"(\n\s*)return\b", r'\1vector.print str "here"\1return')
    with pytest.raises(Unsupported, match=r"no meaning for vector\.print"):
        verify(ring, strange)


def test_reports_read_back(ring):
    broken = edited(ring, r"\n\s*tpu\.wait_dma[^\n]*", "")
    for other in (ring, broken):
        result = verify(ring, other, runs=1, schedules=2)
        assert report.from_json(json.loads(json.dumps(report.to_json(result)))) == result


# --- sabotage ---------------------------------------------------------------------

# A wait that stands alone in its block is nowhere else when it is moved to the block's end.
# The compiler puts a barrier of its own before a copy; nothing follows the kernel's last one.
EQUIVALENT = {
    RING: {("read before the wait", "dma_ring_tpu.py:38"), ("read before the wait", "dma_ring_tpu.py:45")},
    HOPPER: {("drop a barrier", "matmul_hopper.py:55"), ("drop a barrier", "matmul_hopper.py:57")},
}  # fmt: skip


@pytest.mark.parametrize(("text", "target"), [(RING, "v5e"), (HOPPER, "h100")])
def test_every_mutant_is_reported_or_known_to_be_equivalent(text, target):
    kernel = kernel_of(text, target)
    verdicts = [judge(kernel, mutant) for mutant in mutants(kernel)]
    assert len(verdicts) > 20
    silent = {
        (v.mutant.way, v.mutant.place.partition("(")[2].rstrip(")"))
        for v in verdicts
        if not v.reported
    }
    assert silent <= EQUIVALENT[text]


# --- commands ---------------------------------------------------------------------


def test_the_command(ring, tmp_path):
    save(ring, tmp_path / "a.mlir")
    save(edited(ring, r"\n\s*tpu\.wait_dma[^\n]*", ""), tmp_path / "b.mlir")
    good = command("verify", "a.mlir", "a.mlir", cwd=tmp_path)
    assert (good.returncode, good.stdout.splitlines()[0]) == (0, "verified: scale -> scale")
    assert "evidence, not proof" in good.stdout
    bad = command("verify", "a.mlir", "b.mlir", "--json", cwd=tmp_path)
    assert bad.returncode == 1
    assert json.loads(bad.stdout)["verified"] is False


PLUGIN = '''
import dataclasses
from mosaic_toolkit import Pass

@dataclasses.dataclass(frozen=True)
class DropWait(Pass):
    """Drops the first wait."""

    name = "drop-wait"

    def run(self, graph):
        with graph.restructuring():
            next(graph.ops("tpu.wait_dma")).erase()
'''


def test_apply_and_run_with_verify_refuse_a_rewrite_that_races(ring, tmp_path):
    save(ring, tmp_path / "a.mlir")
    (tmp_path / "drop.py").write_text(
        PLUGIN if "tpu.wait_dma " in ring.asm else PLUGIN.replace("tpu.wait_dma", "tpu.wait_dma2")
    )
    options = ["-p", "drop-wait", "--plugin", "drop.py", "--verify"]
    applied = command("apply", "a.mlir", *options, "-o", "b.mlir", cwd=tmp_path)
    assert applied.returncode == 1
    assert "NOT verified: scale -> scale" in applied.stderr
    script = str(ROOT / "dumps/kernels/dma_ring_tpu.py")
    ran = command("run", script, *options, cwd=tmp_path)
    assert ran.returncode == 1
    assert re.search(r"scale \(mosaic_tpu, v5e\): not verified: race", ran.stderr), ran.stderr


def test_one_kernel_runs_on_arrays(ring, tmp_path):
    save(ring, tmp_path / "a.mlir")
    x = np.random.default_rng(0).random((512, 256), np.float32)
    np.savez(tmp_path / "in.npz", x)
    done = command("run", "a.mlir", "--inputs", "in.npz", "-o", "out.npz", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert np.array_equal(np.load(tmp_path / "out.npz")["arr_0"], x * 2)


def test_a_program_runs_from_rewritten_kernels():
    """Inside jit, scan, vmap and grad, with values of the rewritten module."""

    def triple(x):
        def body(x_ref, o_ref):
            o_ref[...] = x_ref[...] * 3

        rows = pl.BlockSpec((8, 128), lambda i: (i, 0))
        return pl.pallas_call(body, grid=4, in_specs=[rows], out_specs=rows, out_shape=x)(x)

    @jax.custom_vjp
    def f(x):
        return triple(x)

    f.defvjp(lambda x: (triple(x), None), lambda _, g: (triple(g),))
    x = jnp.arange(32 * 128, dtype=jnp.float32).reshape(32, 128) / 100
    with mosaic_toolkit.rewriting("pipeline-depth{stages=3}", target="v5e", verify=True) as log:
        assert jnp.allclose(jax.jit(f)(x), x * 3)
        assert jnp.allclose(jax.vmap(f)(jnp.stack([x, x + 1]))[1], (x + 1) * 3)
        assert jnp.allclose(jax.grad(lambda x: f(x).sum())(x), 3)
        total, _ = jax.lax.scan(lambda c, _: (f(c), None), x, None, length=2)
        assert jnp.allclose(total, x * 9)
    assert {entry.outcome for entry in log} == {"rewritten"}
