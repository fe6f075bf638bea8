"""The example kernels and `make demo`, run as a reader runs them."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
KERNELS = ROOT / "dumps" / "kernels"

EXAMPLES = {
    "add_any": {"mosaic_tpu", "mosaic_gpu", "triton"},
    "dma_ring_tpu": {"mosaic_tpu"},
    "flash_attention_tpu": {"mosaic_tpu"},
    "matmul_hopper": {"mosaic_gpu"},
    "matmul_tpu": {"mosaic_tpu"},
    "softmax_triton": {"triton"},
}
ENVIRONMENT = {
    **os.environ,
    "PYTHONPATH": os.pathsep.join((str(ROOT / "toolkit"), str(ROOT / "passes"))),
}


def test_every_example_is_listed():
    assert {path.stem for path in KERNELS.glob("*.py")} == set(EXAMPLES)


@pytest.mark.parametrize("name", EXAMPLES)
def test_example(name, tmp_path):
    script = KERNELS / f"{name}.py"
    targets = "v5e,h100"
    done = subprocess.run(
        [sys.executable, "-m", "mosaic_toolkit", script, "--json", "--target", targets],
        cwd=tmp_path,
        env=ENVIRONMENT,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert "values agree" in done.stderr
    kernels = json.loads(done.stdout)["kernels"]
    assert {kernel["backend"] for kernel in kernels} == EXAMPLES[name]
    assert {kernel["level"] for kernel in kernels} == {"dialect"}


@pytest.mark.skipif(shutil.which("make") is None, reason="make is not installed")
def test_demo(tmp_path):
    (tmp_path / "dumps").mkdir()
    (tmp_path / "dumps" / "kernels").symlink_to(KERNELS)
    recipe = subprocess.run(
        ["make", "-n", "demo"], cwd=ROOT, check=True, capture_output=True, text=True
    ).stdout
    steps = re.findall(r"^\S+/bin/(mosaic-dump .*)$", recipe, re.MULTILINE)
    assert len(steps) == 3
    output = ""
    for step in steps:
        command = step.replace("mosaic-dump", f"'{sys.executable}' -m mosaic_toolkit", 1)
        done = subprocess.run(
            command, shell=True, cwd=tmp_path, env=ENVIRONMENT, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr
        output += done.stdout
    assert "double_buffered -> synchronous" in output
