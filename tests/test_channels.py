"""Rings of slots in the same words for windows, DMAs and TMA."""

from __future__ import annotations

import pytest

from mosaic_passes.pipeline_depth import PipelineDepth
from mosaic_toolkit.capture import capture
from mosaic_toolkit.channels import channels
from mosaic_toolkit.compare import compare
from mosaic_toolkit.pass_pipeline import PassPipeline
from mosaic_toolkit.schedule import raise_schedule
from tests.golden import kernel_of
from tests.twins import tpu_twins

TWINS = {twin.name: twin for twin in tpu_twins()}


def rings(kernel):
    return {c.name: (c.direction, c.depth, c.look_ahead) for c in channels(raise_schedule(kernel))}


def test_a_window_and_the_ring_that_it_is_written_out_as_read_alike():
    kernel = kernel_of(
        "dumps/kernels/matmul_tpu.py::matmul bfloat16[512,1024] bfloat16[1024,512]", "v5e"
    )
    assert rings(kernel) == {"x_ref": ("in", 2, 1), "y_ref": ("in", 2, 1), "o_ref": ("out", 2, 1)}
    deep = PassPipeline((PipelineDepth(4),)).run(kernel).kernel
    assert rings(deep) == {"x_ref": ("in", 4, 3), "y_ref": ("in", 4, 3), "o_ref": ("out", 4, 3)}
    said = {(d.subject, d.field, d.before, d.after) for d in compare(kernel, deep).schedule}
    assert ("channel x_ref", "depth", 2, 4) in said
    assert ("channel x_ref", "look-ahead", 1, 3) in said


def test_rings_that_a_kernel_fills_itself():
    ring = kernel_of("dumps/kernels/dma_ring_tpu.py::scale float32[512,256]", "v5e")
    assert rings(ring) == {"x_hbm": ("in", 2, 1), "o_hbm": ("out", 2, 1)}
    (x, _) = channels(raise_schedule(ring))
    assert (x.slot, x.dtype, x.space, x.semaphore) == ((64, 256), "f32", "vmem", "in_sems")


def test_a_ring_of_tma():
    kernel = kernel_of(
        "dumps/kernels/matmul_hopper.py::matmul float16[128,256] float16[256,256]", "h100"
    )
    assert rings(kernel) == {"arg0": ("in", 3, 2), "arg1": ("in", 3, 2), "arg2": ("out", 1, 0)}


@pytest.mark.parametrize("depth", [2, 3, 4])
def test_an_authored_pipeline_has_the_depth_that_its_author_gave_it(depth):
    twin = TWINS["stream"]
    try:
        (kernel,) = capture(twin.authored(depth), *twin.operands, target="v5e")
    except NotImplementedError as error:
        pytest.skip(f"this JAX cannot author it: {error}")
    assert {c.depth for c in channels(raise_schedule(kernel))} == {depth}
