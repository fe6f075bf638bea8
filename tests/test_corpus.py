"""Library kernels are captured: a few on every run, all of them with ``-m corpus``."""

from __future__ import annotations

import importlib
import importlib.util
import json
import subprocess
import sys
from collections import Counter

import pytest

from tests.corpus import completeness, sites
from tests.corpus.case import Case
from tests.corpus.cases import all_cases, selected
from tests.corpus.outcome import CAPTURED, DIED, MISSED, REFUSED, WRONG_CASE, Outcome
from tests.corpus.pool import run_all

TOKAMAX = importlib.util.find_spec("tokamax") is not None

# Every backend, generation and way of writing a kernel, where it is quick.
FEW = (
    "jax/tpu/matmul/int8_to_int32@v5e",
    "jax/tpu/flash_attention/causal_fwd@v6e",
    "jax/tpu/megablox/gmm_bf16_fwd@v5e",
    "jax/tpu/paged_attention/f32@v5e",
    "jax/tpu/random/philox_split@v5e",
    "jax/gpu/ragged_dot/f16@h100",
    "jax/gpu/blackwell_matmul/f16@b200",
    "jax/triton/layer_norm/float16_384_bwd@b200",
    "jax/triton/softmax/f32@h100",
    "jax/tpu/all_gather/hbm@tpu7x",
)
FEW_OF_TOKAMAX = (
    "tokamax/tpu/deepseek_rope/inference_dsv4_rope_kv_t4096_d512_fwd@tpu7x",
    "tokamax/tpu/lightning_indexer/pack_nonnegative@tpu7x",
    "tokamax/triton/attention/soft_cap_bwd@h100",
)


def _failures(outcomes: list[Outcome]) -> list[str]:
    return [f"{o.name}: {o.status}: {o.cause}\n{o.detail}" for o in outcomes if not o.good]


def test_captures_a_few_library_kernels():
    names = FEW + (FEW_OF_TOKAMAX if TOKAMAX else ())
    pairs = selected(names)
    assert len(pairs) == len(names)
    outcomes = list(run_all(pairs, jobs=1, timeout=300))
    assert not _failures(outcomes)
    assert all(outcome.kernels for outcome in outcomes if outcome.status == CAPTURED)
    refused = {outcome.name for outcome in outcomes if outcome.status == REFUSED}
    assert refused <= {"tokamax/triton/attention/soft_cap_bwd@h100"}


def test_every_module_with_kernels_has_a_case():
    assert completeness.uncovered_modules(all_cases()) == []


def test_a_module_without_a_case_is_found():
    without = [case for case in all_cases() if "flash_attention" not in case.name]
    assert completeness.uncovered_modules(without) == [
        "jax.experimental.pallas.ops.tpu.flash_attention"
    ]


def test_a_kernel_that_no_case_ran_is_found():
    module, functions = next(iter(sites.declared("jax.experimental.pallas.ops").items()))
    ran = [Outcome("a", CAPTURED, sites=[[module, f] for f in functions])]
    missing = completeness.unreached(ran)
    assert missing
    assert not any(site.startswith(f"{module}:") for site in missing)


def test_cases_and_exclusions_name_modules_with_kernels():
    known = {m: f for library in sites.LIBRARIES for m, f in sites.declared(library).items()}
    named = {module for case in all_cases() for module in case.modules}
    excluded = dict.fromkeys(completeness.EXCLUDED)
    if not TOKAMAX:
        named = {name for name in named if not name.startswith("tokamax.")}
        excluded = {name: None for name in excluded if not name.startswith("tokamax.")}
    assert named <= known.keys()
    for name in excluded:
        module, _, function = name.partition(":")
        assert module in known
        assert not function or function in known[module]


def test_case_names_are_unique():
    repeated = [name for name, n in Counter(case.name for case in all_cases()).items() if n > 1]
    assert repeated == []


def test_listing_cases_does_not_import_jax():
    code = "import sys; from tests.corpus.cases import all_cases; all_cases(); sys.exit('jax' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


# --- the harness can fail ---------------------------------------------------------


@pytest.fixture
def run():
    pytest.importorskip("jax")
    from tests.corpus import worker

    return worker.run


def _case(make, **options) -> Case:
    return Case("test", ("v5e",), make, (), **options)


def test_a_case_that_lowers_no_kernel_is_wrong(run):
    outcome = run(_case(lambda: (lambda x: x + 1, (1.0,))), "v5e")
    assert (outcome.status, outcome.cause) == (WRONG_CASE, "lowers to no kernel")


def test_only_the_declared_refusal_is_accepted(run):
    def make():
        def refuses(x):
            raise ValueError("this chip has no such unit")

        return refuses, (1.0,)

    assert run(_case(make), "v5e").status == WRONG_CASE
    assert run(_case(make, refusal="no such thing"), "v5e").status == WRONG_CASE
    assert run(_case(make, refusal="no such unit"), "v5e").status == REFUSED


def _double():
    from jax.experimental.pallas.ops.tpu.example_kernel import double

    from tests.corpus.case import struct

    return double, (struct((8, 128), "float32"),)


def test_a_kernel_that_is_not_captured_is_missed(run, monkeypatch):
    module = importlib.import_module("mosaic_toolkit.capture")
    monkeypatch.setattr(module, "capture", lambda *_, **__: [])
    outcome = run(_case(_double), "v5e")
    assert (outcome.status, outcome.cause) == (MISSED, "1 of JAX's 1 kernels differ")


def test_a_failed_check_is_reported_with_its_name(run, monkeypatch):
    def holds_for_none(kernel):
        raise AssertionError("never")

    monkeypatch.setattr("tests.corpus.checks.CHECKS", (holds_for_none,))
    outcome = run(_case(_double), "v5e")
    assert not outcome.good
    assert outcome.cause == "holds_for_none: AssertionError: never"


def test_a_worker_that_dies_costs_one_case(monkeypatch):
    pairs = selected(["jax/tpu/example/double", "jax/triton/softmax/f32@h100"])
    killed = Case("nobody/knows/this", ("v5e",), _double, ())
    outcomes = {o.name: o for o in run_all([(killed, "v5e"), *pairs], jobs=1, timeout=300)}
    assert outcomes["nobody/knows/this@v5e"].status == DIED
    assert "KeyError" in outcomes["nobody/knows/this@v5e"].detail
    assert sum(outcome.good for outcome in outcomes.values()) == len(pairs)


@pytest.mark.corpus
def test_captures_the_whole_corpus(tmp_path):
    report = tmp_path / "corpus.json"
    done = subprocess.run(
        [sys.executable, "-m", "tests.corpus", "--json", str(report)],
        capture_output=True,
        text=True,
        check=False,
    )
    outcomes = [Outcome(**entry) for entry in json.loads(report.read_text())]
    assert not _failures(outcomes)
    assert done.returncode == 0, done.stdout[-3000:]
