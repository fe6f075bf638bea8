"""The schedule of Mosaic GPU and Triton kernels, against what their sources say."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import pytest
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu
from jax.experimental.pallas import triton as plt
from jax.experimental.pallas.ops.gpu import blackwell_matmul_mgpu, hopper_matmul_mgpu

from mosaic_toolkit.capture import capture
from mosaic_toolkit.kernel import Kernel
from mosaic_toolkit.schedule import Schedule, raise_schedule

struct = jax.ShapeDtypeStruct
SQUARE = struct((1024, 1024), jnp.float16)


def schedule_of(fn, *args, target: str) -> Schedule:
    (kernel,) = capture(fn, *args, target=target)
    return raise_schedule(kernel)


@pytest.fixture(scope="module")
def hopper() -> Schedule:
    config = hopper_matmul_mgpu.TuningConfig(
        tile_m=128, tile_n=128, tile_k=64, max_concurrent_steps=4
    )

    def call(a, b):
        return hopper_matmul_mgpu.matmul(a, b, None, config)

    return schedule_of(call, SQUARE, SQUARE, target="h100")


@pytest.fixture(scope="module")
def blackwell() -> Schedule:
    config = blackwell_matmul_mgpu.TuningConfig(
        tile_m=128, tile_n=128, tile_k=64, max_concurrent_steps=4, collective=True
    )

    def call(a, b):
        return blackwell_matmul_mgpu.matmul_kernel(a, b, config)

    return schedule_of(call, SQUARE, SQUARE, target="b200")


def test_hopper_matmul_has_a_memory_and_two_compute_warpgroups(hopper):
    assert hopper.threads == (384, 1, 1)
    roles = {role.name: (role.threads, role.registers) for role in hopper.roles}
    assert roles == {"warpgroups 0-1": (256, 232), "warpgroup 2": (128, 40)}


def test_hopper_matmul_loads_four_slots_by_tma(hopper):
    loads = [c for c in hopper.copies if c.direction == "hbm -> smem"]
    assert {c.role for c in loads} == {"warpgroup 2"}
    assert {(c.shape, c.bytes) for c in loads} == {((128, 64), 16384), ((64, 256), 32768)}
    assert all(c.operations == 5 for c in loads)  # four in the prologue, one in the loop
    rings = {b.name: b for b in hopper.buffers}
    assert sorted(rings[c.target].bytes for c in loads) == [4 * 16384, 4 * 32768]
    barriers = {s.name: s for s in hopper.semaphores}
    signalled = {c.semaphore for c in loads}
    assert [(barriers[name].count, barriers[name].bytes) for name in signalled] == [(4, 32)]


def test_hopper_matmul_steps_over_k_in_each_role(hopper):
    inner = {loop.role: loop.trip_count for loop in hopper.loops if loop.nesting == 1}
    assert inner == {"warpgroups 0-1": 1024 // 64, "warpgroup 2": 1024 // 64 - 4}


def test_hopper_matmul_reserves_what_its_slices_fill(hopper):
    slices = [(b.offset, b.bytes) for b in hopper.buffers if b.space == "smem"]
    barriers = sum(s.bytes for s in hopper.semaphores)
    end = max(offset + size for offset, size in slices)
    assert hopper.memory()["smem"] == end + barriers


def test_blackwell_matmul_parts_warps_and_uses_tensor_memory(blackwell):
    assert blackwell.cluster == (2, 1, 1)
    names = {role.name for role in blackwell.roles}
    assert {"warp 0", "warp 1", "warpgroup 1"} <= names
    assert {c.role for c in blackwell.copies if c.kind == "tma multicast"} == {"warp 0"}
    assert {c.role for c in blackwell.copies if c.source_space == "smem"} == {"warpgroup 1"}
    assert blackwell.memory()["tmem"] == 128 * 512 * 4


def test_barrier_signalled_in_another_block_is_remote(blackwell):
    remote = [s for s in blackwell.synchronisation if s.remote and s.kind == "mbarrier"]
    assert remote
    assert all(s.action == "signal" for s in remote)


def exp_kernel(semantics):
    def body(x_gmem, o_gmem, smem, barrier):
        plgpu.copy_gmem_to_smem(x_gmem, smem, barrier)
        plgpu.barrier_wait(barrier)
        smem[...] = jnp.exp(smem[...])
        plgpu.commit_smem()
        plgpu.copy_smem_to_gmem(smem, o_gmem)
        plgpu.wait_smem_to_gmem(0)

    x = struct((128, 128), jnp.float32)
    kernel = plgpu.kernel(
        body,
        out_type=x,
        scratch_types=[plgpu.SMEM(x.shape, x.dtype), plgpu.Barrier()],
        compiler_params=plgpu.CompilerParams(lowering_semantics=semantics),
    )
    (captured,) = capture(kernel, x, target="h100")
    return captured


@pytest.fixture(scope="module")
def lane() -> Kernel:
    return exp_kernel(plgpu.LoweringSemantics.Lane)


def test_lowered_kernel_shows_its_copies_and_says_what_is_lost(lane):
    assert lane.level == "lowered"
    schedule = raise_schedule(lane)
    assert [c.direction for c in schedule.copies] == ["hbm -> smem", "smem -> hbm"]
    assert all(c.bytes is None for c in schedule.copies)
    unread = {u.what for u in schedule.unread}
    assert {"ends and shapes of copies", "semaphores", "buffers in shared memory"} <= unread
    assert schedule.algebra.kinds == {"exp"}


def test_dialect_level_kernel_names_both_ends_of_its_copies():
    schedule = raise_schedule(exp_kernel(plgpu.LoweringSemantics.Warpgroup))
    assert [(c.source, c.target) for c in schedule.copies] == [("arg0", "smem1"), ("smem1", "arg1")]
    assert [c.bytes for c in schedule.copies] == [65536, 65536]


def test_triton_kernel_shows_what_triton_is_told():
    def body(x_ref, o_ref):
        o_ref[...] = jnp.exp(x_ref[...])

    def call(x):
        block = pl.BlockSpec((64, 128), lambda i: (i, 0))
        return pl.pallas_call(
            body,
            grid=(4,),
            in_specs=[block],
            out_specs=block,
            out_shape=x,
            compiler_params=plt.CompilerParams(num_warps=8, num_stages=3),
        )(x)

    schedule = schedule_of(call, struct((256, 128), jnp.bfloat16), target="h100")
    assert [d.bound for d in schedule.grid] == [4, 1, 1]
    assert (schedule.threads, schedule.stages) == ((256, 1, 1), 3)
    assert [(b.dtype, b.bytes) for b in schedule.buffers] == [("bf16", 65536)] * 2
    assert {"shared memory", "copies", "waits"} <= {u.what for u in schedule.unread}
    assert "exp" in schedule.algebra.kinds


def test_gpu_module_without_a_launch_is_named():
    kernel = Kernel("k", "mosaic_gpu", "dialect", "h100", "module { func.func private @f() }")
    why = {u.why for u in raise_schedule(kernel).unread}
    assert why == {"the module has no gpu.launch"}
