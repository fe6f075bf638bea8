"""The device script, as far as it goes without a device."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

os.environ["JAX_PLATFORMS"] = "cpu"

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from mosaic_toolkit.capture import capturing
from tests.device import __main__ as script
from tests.device import measure
from tests.device.cases import Case, all_cases

ROOT = Path(__file__).parent.parent


def command(*arguments, **environment):
    own = {name: text for name, text in os.environ.items() if name != "JAX_PLATFORMS"}
    own |= {"PYTHONPATH": os.pathsep.join(["toolkit", "passes"]), **environment}
    return subprocess.run(
        [sys.executable, "-m", "tests.device", *arguments],
        cwd=ROOT, env=own, capture_output=True, text=True,
    )  # fmt: skip


def test_without_a_device_it_refuses():
    done = command()
    assert done.returncode == 2
    assert "this machine has no TPU or GPU that JAX uses; --dry-run" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--target", "h200"], "--target goes with --dry-run"),
        (["--dry-run"], "--dry-run needs a --target"),
        (["--dry-run", "--target", "h200", "--only", "ring"], "no case for h200 has 'ring'"),
    ],
)
def test_usage(arguments, said):
    done = command(*arguments)
    assert done.returncode == 2
    assert said in done.stderr


@pytest.mark.parametrize("target", ["h200", "v5e"])
def test_a_dry_run_lowers_and_compiles_everything(target, tmp_path):
    done = command("--dry-run", "--target", target, OUT=str(tmp_path))
    assert done.returncode == 0, done.stdout + done.stderr
    data = json.loads((tmp_path / "device.json").read_text())
    platform = {"h200": "cuda", "v5e": "tpu"}[target]
    cases = {case.name: case for case in all_cases() if case.platform == platform}
    assert set(data["cases"]) == set(cases)
    for name, outcome in data["cases"].items():
        assert list(outcome) == list(cases[name].variants)
        for variant, found in outcome.items():
            wanted = {"compiled", "lowered"} | ({"refused"} if variant == "rewritten" else set())
            assert found["status"] in wanted, (name, variant, found)
        assert name in done.stdout


def doubling(x_ref, o_ref):
    o_ref[...] = x_ref[...] * 2.0


def double(x):
    return pl.pallas_call(
        doubling,
        grid=2,
        in_specs=[pl.BlockSpec((8, 128), lambda i: (i, 0))],
        out_specs=pl.BlockSpec((8, 128), lambda i: (i, 0)),
        out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype),
        compiler_params=pltpu.CompilerParams(),
    )(x)


CASE = Case(
    "double", "tpu", double, (jax.ShapeDtypeStruct((16, 128), jnp.float32),), lambda x: 2 * x,
    "pipeline-depth{stages=1}", by_hand=lambda x: double(x) + 1e-9,
)  # fmt: skip


@pytest.mark.parametrize(
    ("changes", "statuses"),
    [
        ({}, ["timed"] * 3),
        ({"reference": lambda x: 2.001 * x}, ["WRONG"] * 3),
        ({"by_hand": lambda x: double(x) * np.nan}, ["timed", "timed", "WRONG"]),
        ({"by_hand": lambda x: x + "no"}, ["timed", "timed", "FAILED"]),
        ({"pipeline": "pipeline-depth{stages=0}"}, ["timed", "refused", "timed"]),
    ],
)
def test_measuring(changes, statuses, tmp_path, monkeypatch):
    """As on a device, with an interpreter in its place."""
    case = Case(**{**vars(CASE), **changes})
    monkeypatch.setattr(measure, "case_named", lambda _: case)
    with capturing("v5e", execute=True):
        measure.main(tmp_path / "out.json", "double", 3, list(case.variants))
    outcome = json.loads((tmp_path / "out.json").read_text())
    assert [found["status"] for found in outcome.values()] == statuses
    for found in outcome.values():
        if found["status"] == "timed":
            assert len(found["seconds"]) == 3
            assert found["error"] <= case.tolerance


def test_a_variant_that_takes_its_process_down_does_not_lose_the_others(monkeypatch):
    asked = []

    def measured(name, repeats, variants, seconds):
        asked.append(list(variants))
        timed = {"status": "timed", "error": 0.0, "seconds": [1e-3, 1e-3, 2e-3]}
        if "rewritten" in variants:
            died = {"status": "FAILED", "why": "its process ended with -11", "fatal": True}
            return {"original": {"status": "right"}, "rewritten": died}
        return dict.fromkeys(variants, timed)

    monkeypatch.setattr(script, "_measured", measured)
    outcome = script._on_device(CASE, 3, 60)
    assert asked == [["original", "rewritten", "by hand"], ["original", "by hand"]]
    assert [found["status"] for found in outcome.values()] == ["timed", "FAILED", "timed"]
    lines = list(script._lines("double", outcome))
    assert lines[0].split()[:3] == ["double", "original", "timed"]
    assert "1000.0 us" in lines[0]
    assert list(script._problems({"double": outcome})) == [
        "\ndouble, rewritten: FAILED: its process ended with -11"
    ]


def test_no_time_left(monkeypatch):
    monkeypatch.setattr(script, "_measured", lambda *_: pytest.fail("there was no time"))
    outcome = script._on_device(CASE, 3, 1)
    assert {found["why"] for found in outcome.values()} == {"no time left"}


def test_a_process_that_dies_or_hangs_is_told_from_one_that_answers(monkeypatch):
    def run(code, seconds):
        monkeypatch.setattr(sys, "executable", "/bin/sh")
        monkeypatch.setattr(script, "MEASURE", ("-c", code))
        return script._measured("double", 3, ["original"], seconds)["original"]

    hung = run("sleep 30", 1)
    assert hung["fatal"]
    assert hung["why"].startswith("did not end in time while starting")
    died = run("echo some words; kill -ABRT $$", 20)
    assert died["why"] == "its process ended with -6 while starting\nsome words"
