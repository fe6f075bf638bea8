"""Every golden file: the pipeline still runs, verifies, and gives the same text."""

from __future__ import annotations

import dataclasses

import pytest

from mosaic_toolkit.jax_compat import jaxlib_version
from mosaic_toolkit.pass_pipeline import PassPipeline
from mosaic_toolkit.plugins import installed_passes
from tests.golden import ROOT, Golden, kernel_of

DIRECTORY = ROOT / "dumps" / "golden"
FILES = sorted(DIRECTORY.glob("*/*.mlir"))


@pytest.mark.parametrize("path", FILES, ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_golden(path, request):
    golden = Golden.read(path)
    kernel = kernel_of(golden.kernel, golden.target)
    result = PassPipeline.parse(golden.pipeline).run(kernel)
    assert result.changed
    text = result.kernel.text()
    if request.config.getoption("--update-goldens"):
        current = dataclasses.replace(golden, jaxlib=jaxlib_version.__version__, module=text)
        path.write_text(str(current))
    elif golden.jaxlib == jaxlib_version.__version__:
        assert text == golden.module
    else:
        assert result.kernel.module().operation.verify()


def test_every_pass_of_ours_has_a_golden():
    registry = installed_passes()
    ours = {name for name in registry if registry.provider(name).startswith("mosaic-toolkit ")}
    assert ours
    assert {path.parent.name for path in FILES} == ours


def test_a_golden_prints_as_it_is_read():
    for path in FILES:
        assert str(Golden.read(path)) == path.read_text()
