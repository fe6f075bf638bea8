"""`pipeline-depth` against kernels that were authored at the depth, in one run.

    python tests/bench/twins.py [--targets v5e,v6e] [--only NAME] [--no-compile]

Every kernel is authored at one and two slots and rewritten to one, two, three and four.
Prints whether `verify` agrees, and on-chip memory, bundles of the largest loop body and
vector spills of the rewritten kernel beside those of the authored one.
"""

from __future__ import annotations

import argparse
import os
import tempfile
from pathlib import Path

os.environ["JAX_PLATFORMS"] = "cpu"

from mosaic_passes.pipeline_depth import PipelineDepth
from mosaic_toolkit.capture import capture
from mosaic_toolkit.errors import ToolkitError
from mosaic_toolkit.kernel import Kernel
from mosaic_toolkit.pass_pipeline import PassPipeline
from mosaic_toolkit.recompile import compile_kernel
from mosaic_toolkit.stages import read_statistics
from mosaic_toolkit.stages.tpu_statistics import STATISTICS_PASSES
from mosaic_toolkit.verify import verify
from tests.twins import Twin, tpu_twins

AUTHORED = (1, 2)


def authored(twin: Twin, depth: int, target: str) -> Kernel:
    (kernel,) = capture(twin.authored(depth), *twin.operands, target=target)
    return kernel


def figures(kernel: Kernel) -> tuple[int, int, int]:
    """VMEM bytes, bundles of the largest loop body, vector spills."""
    with tempfile.TemporaryDirectory() as raw:
        compile_kernel(kernel, dump_to=Path(raw), llo_passes=STATISTICS_PASSES)
        found = read_statistics(Path(raw), kernel.backend)
    body = max((loop.bundles for loop in found.loops), default=0)
    return found.vmem_bytes.value or 0, body, found.vector_spills.value or 0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--targets", default="v5e,v6e")
    parser.add_argument("--only")
    parser.add_argument("--depths", default="1,2,3,4", help="to rewrite to")
    parser.add_argument("--compile", action=argparse.BooleanOptionalAction, default=True)
    options = parser.parse_args()
    depths = [int(depth) for depth in options.depths.split(",")]
    print(
        f"{'kernel':14} {'chip':5} {'from':>4} {'to':>3} {'values':10} {'VMEM KiB':>15} {'loop':>14}"
    )
    for target in options.targets.split(","):
        for twin in tpu_twins():
            if options.only in (None, twin.name):
                _table(twin, target, depths, options.compile)


def _table(twin: Twin, target: str, depths: list[int], compiling: bool) -> None:
    own = {depth: authored(twin, depth, target) for depth in {*depths, *AUTHORED}}
    theirs = {depth: figures(own[depth]) for depth in depths if compiling}
    for before in AUTHORED:
        for after in depths:
            kernel = PassPipeline((PipelineDepth(after),)).run(own[before]).kernel
            try:
                result = verify(own[after], kernel, runs=1, schedules=3)
                agreed = result.verified and result.agreement and result.agreement.identical
                verdict = "agree" if agreed else "DIFFER"
            except ToolkitError as error:
                verdict = type(error).__name__
            line = f"{twin.name:14} {target:5} {before:4} {after:3} {verdict:10}"
            if compiling:
                vmem, body, spills = figures(kernel)
                peer_vmem, peer_body, peer_spills = theirs[after]
                ratio = f" ({body / peer_body:.2f}x)" if peer_body else ""
                line += f" {vmem >> 10:6} / {peer_vmem >> 10:6} {body:6} / {peer_body:5}{ratio}"
                if spills > peer_spills:
                    line += f"  {spills - peer_spills} more spills"
            print(line, flush=True)


if __name__ == "__main__":
    main()
