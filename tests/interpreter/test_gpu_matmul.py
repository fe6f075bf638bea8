"""Mosaic GPU kernels in the interpreter: their values, and what breaks when one thing is broken."""

from __future__ import annotations

import functools
import importlib.util
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental.pallas.ops.gpu import blackwell_matmul_mgpu, hopper_matmul_mgpu

from mosaic_toolkit.capture import capture
from mosaic_toolkit.interpreter.execute import Execution, Setting, compile_program, run_on
from mosaic_toolkit.interpreter.machine import Timing
from mosaic_toolkit.jax_compat import ir
from mosaic_toolkit.kernel import Kernel

struct = jax.ShapeDtypeStruct
A, B = struct((128, 256), jnp.float16), struct((256, 256), jnp.float16)
SOURCE = Path(__file__).parents[2] / "dumps" / "kernels" / "matmul_hopper.py"


def _captured(function: Callable, *arguments: Any, target: str) -> Kernel:
    (kernel,) = capture(function, *arguments, target=target)
    return kernel


@functools.cache
def pipelined() -> Kernel:
    """One warpgroup that loads ahead of its products, three slots."""
    spec = importlib.util.spec_from_file_location("matmul_hopper", SOURCE)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return _captured(module.matmul, A, B, target="h100")


@functools.cache
def specialised() -> Kernel:
    """A warpgroup loads for two that multiply."""
    config = hopper_matmul_mgpu.TuningConfig(
        tile_m=64, tile_n=64, tile_k=64, max_concurrent_steps=2
    )
    return _captured(
        lambda a, b: hopper_matmul_mgpu.matmul(a, b, None, config), A, B, target="h100"
    )


@functools.cache
def clustered() -> Kernel:
    """Two CTAs share what they load."""
    config = hopper_matmul_mgpu.TuningConfig(
        tile_m=64,
        tile_n=64,
        tile_k=64,
        max_concurrent_steps=2,
        cluster_dimension=hopper_matmul_mgpu.MatmulDimension.M,
    )
    b = struct((256, 128), jnp.float16)
    a = struct((256, 256), jnp.float16)
    return _captured(
        lambda a, b: hopper_matmul_mgpu.matmul(a, b, None, config), a, b, target="h100"
    )


@functools.cache
def blackwell() -> Kernel:
    """Products in tensor memory, issued by one warp while another loads."""
    config = blackwell_matmul_mgpu.TuningConfig(
        tile_m=128,
        tile_n=64,
        tile_k=64,
        max_concurrent_steps=2,
        epilogue_tile_n=64,
        collective=False,
    )
    return _captured(
        lambda a, b: blackwell_matmul_mgpu.matmul_kernel(a, b, config),
        struct((256, 256), jnp.float16),
        struct((256, 128), jnp.float16),
        target="b200",
    )


def operands(kernel: Kernel) -> list[np.ndarray]:
    rng = np.random.default_rng(0)
    return [rng.standard_normal(t.shape).astype(t.dtype) for t in kernel.operands]


def run(kernel: Kernel, timing: Timing = Timing.LATE, seed: int = 0) -> Execution:
    return run_on(compile_program(kernel), [operands(kernel)], Setting(timing=timing, seed=seed))


def error(kernel: Kernel, execution: Execution) -> float:
    a, b = (x.astype(np.float32) for x in operands(kernel))
    return float(np.abs(execution.results[0][0].astype(np.float32) - a @ b).max())


@pytest.mark.parametrize(
    ("make", "timing"),
    [
        *((pipelined, timing) for timing in Timing),
        (specialised, Timing.RANDOM),
        (clustered, Timing.LATE),
    ],
)
def test_product_is_right_and_nothing_is_reported(make, timing):
    kernel = make()
    execution = run(kernel, timing, seed=1)
    assert execution.findings == ()
    assert execution.suspects == ()
    assert error(kernel, execution) < 0.05


def test_tensor_memory_holds_the_product():
    kernel = blackwell()
    execution = run(kernel)
    assert error(kernel, execution) < 0.05
    # The kernel never waits for its last stores to have read shared memory.
    (finding,) = execution.findings
    assert finding.kind == "race" and "the end of the CTA" in finding.message


def test_same_seed_same_run():
    first, second = (run(pipelined(), Timing.RANDOM, seed=7) for _ in range(2))
    assert first.findings == second.findings
    np.testing.assert_array_equal(first.results[0][0], second.results[0][0])


# --- sabotage -------------------------------------------------------------------------------


def operations(module: ir.Module, name: str, containing: str = "") -> list[ir.Operation]:
    found: list[ir.Operation] = []

    def walk(op: ir.Operation) -> None:
        if op.name == name and containing in str(op):
            found.append(op)
        for region in op.regions:
            for block in region.blocks:
                for inner in block.operations:
                    walk(inner.operation)

    walk(module.operation)
    return found


def without(kernel: Kernel, name: str, containing: str = "", number: int = 0) -> Kernel:
    module = kernel.module()
    operations(module, name, containing)[number].erase()
    return kernel.with_module(module)


def expecting(kernel: Kernel, size: int) -> Kernel:
    """The kernel whose first expectation of bytes is another."""
    module = kernel.module()
    op = operations(module, "mosaic_gpu.arrive_expect_tx")[0]
    type_ = op.operands[1].type
    with module.context, op.location, ir.InsertionPoint(op):
        value = ir.Operation.create(
            "arith.constant",
            results=[type_],
            attributes={"value": ir.IntegerAttr.get(type_, size)},
        )
    op.operands[1] = value.results[0]
    return kernel.with_module(module)


WAIT = "nvvm.mbarrier.try_wait.parity"
ASM = "llvm.inline_asm"


@pytest.mark.parametrize(
    ("broken", "expected"),
    [
        pytest.param(
            lambda: without(pipelined(), WAIT), "async_load writes .*wgmma .* reads", id="full-wait"
        ),
        pytest.param(
            lambda: without(pipelined(), ASM, "wait_group.sync.aligned 1"),
            "wgmma .* reads .*async_load writes",
            id="product-wait",
        ),
        pytest.param(
            lambda: without(pipelined(), "nvvm.fence.proxy"),
            "no fence of the asynchronous proxy",
            id="fence",
        ),
        pytest.param(
            lambda: without(pipelined(), "nvvm.cp.async.bulk.wait_group", number=-1),
            "the end of the CTA",
            id="store-wait",
        ),
        pytest.param(
            lambda: without(pipelined(), "gpu.barrier"), "initialize_barrier", id="initialisation"
        ),
        pytest.param(
            lambda: without(specialised(), WAIT),
            "wgmma .* reads .*async_load writes",
            id="empty-wait",
        ),
        pytest.param(
            lambda: without(specialised(), "nvvm.fence.proxy"),
            "no fence of the asynchronous proxy",
            id="epilogue-fence",
        ),
    ],
)
def test_missing_order_is_a_race_even_where_it_does_no_harm(broken, expected):
    races = [str(f) for f in run(broken(), Timing.EARLY).findings if f.kind == "race"]
    assert any(re.search(expected, race) for race in races), races


@pytest.mark.parametrize(
    "broken",
    [
        pytest.param(lambda: without(specialised(), "mosaic_gpu.arrive"), id="arrive"),
        pytest.param(lambda: without(pipelined(), "mosaic_gpu.async_load"), id="load"),
        pytest.param(lambda: expecting(pipelined(), 4096), id="too-few-bytes"),
        pytest.param(lambda: expecting(pipelined(), 65536), id="too-many-bytes"),
        pytest.param(
            lambda: without(blackwell(), "mosaic_gpu.tcgen05_commit_arrive", number=-1), id="commit"
        ),
    ],
)
def test_missing_signal_is_a_deadlock_that_says_what_lacks(broken):
    execution = run(broken())
    assert execution.fault is not None
    assert execution.fault.kind == "deadlock"
    assert "lacks" in execution.fault.message


def test_unwaited_product_is_no_number():
    kernel = without(pipelined(), ASM, "wait_group.sync.aligned 0", -1)
    execution = run(kernel, Timing.LATE)
    assert np.isnan(execution.results[0][0].astype(np.float32)).any()
