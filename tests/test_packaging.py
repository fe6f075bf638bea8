"""The wheel works away from the tree, and so does a stranger's package of passes."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
import venv
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]

ACME_PASS = '''
import dataclasses

from mosaic_toolkit.passes import Pass


@dataclasses.dataclass(frozen=True)
class AcmeReport(Pass):
    """Leaves the kernel as it is."""

    name = "acme-report"

    def run(self, graph):
        pass
'''


def run(*command: str | Path, cwd: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """Runs `command` with nothing of this process's Python set-up but `environment`."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "COVERAGE"))}
    return subprocess.run(
        [str(part) for part in command],
        cwd=cwd,
        env={**kept, "JAX_PLATFORMS": "cpu", **environment},
        capture_output=True,
        text=True,
        timeout=300,
    )


def succeeds(*command: str | Path, cwd: Path, **environment: str) -> str:
    done = run(*command, cwd=cwd, **environment)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel built from the tree, with no network."""
    pytest.importorskip("hatchling", reason="building a wheel needs hatchling")
    pytest.importorskip("pip", reason="building a wheel needs pip")
    out = tmp_path_factory.mktemp("wheel")
    options = ["--quiet", "--no-deps", "--no-index", "--no-build-isolation"]
    succeeds(sys.executable, "-m", "pip", "wheel", *options, "-w", out, ROOT, cwd=out)
    (built,) = out.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def bin_dir(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`bin` of an environment with the wheel, and our dependencies but not our tree.

    The dependencies are seen through a .pth file.  Python does not read the .pth
    files of a directory that it knows so, hence no editable install of the tree.
    """
    home = tmp_path_factory.mktemp("environment")
    venv.create(home, symlinks=True)
    paths = {"base": str(home), "platbase": str(home)}
    packages = Path(sysconfig.get_path("purelib", "venv", vars=paths))
    scripts = Path(sysconfig.get_path("scripts", "venv", vars=paths))
    ours = {sysconfig.get_path("purelib"), sysconfig.get_path("platlib")}
    (packages / "dependencies.pth").write_text("".join(f"{path}\n" for path in sorted(ours)))
    pip = [sys.executable, "-m", "pip", "--python", scripts / "python", "install"]
    options = ["--quiet", "--no-deps", "--no-index", "--ignore-installed"]
    succeeds(*pip, *options, wheel, cwd=home)
    return scripts


@pytest.fixture
def acme(tmp_path: Path) -> Path:
    """A directory with an installed package of passes by someone else."""
    site = tmp_path / "acme"
    info = site / "acme_passes-1.0.dist-info"
    info.mkdir(parents=True)
    (site / "acme_passes.py").write_text(ACME_PASS)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: acme-passes\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(
        "[mosaic_toolkit.passes]\nacme-report = acme_passes:AcmeReport\n"
    )
    return site


def test_the_wheel_holds_the_two_packages_and_nothing_else(wheel):
    names = zipfile.ZipFile(wheel).namelist()
    roots = {name.split("/")[0] for name in names if ".dist-info/" not in name}
    assert roots == {"mosaic_toolkit", "mosaic_passes"}
    tree = {
        str(path.relative_to(parent))
        for parent in (ROOT / "toolkit", ROOT / "passes")
        for path in parent.rglob("*.py")
    }
    assert {name for name in names if name.endswith(".py")} == tree


def test_the_wheel_is_imported_from_another_directory(bin_dir, tmp_path):
    code = "import mosaic_toolkit as t, mosaic_passes as p; print(t.__file__); print(p.__file__)"
    for line in succeeds(bin_dir / "python", "-c", code, cwd=tmp_path).splitlines():
        assert Path(line).is_relative_to(bin_dir.parent)


@pytest.mark.parametrize("command", [["mosaic-dump"], ["python", "-m", "mosaic_toolkit"]])
def test_help_from_another_directory(bin_dir, tmp_path, command):
    program, *arguments = command
    out = succeeds(bin_dir / program, *arguments, "--help", cwd=tmp_path)
    assert "Usage" in out


def test_version_is_the_same_everywhere(bin_dir, tmp_path):
    code = (
        "import importlib.metadata, mosaic_toolkit;"
        "print(importlib.metadata.version('mosaic-toolkit'), mosaic_toolkit.__version__)"
    )
    installed, imported = succeeds(bin_dir / "python", "-c", code, cwd=tmp_path).split()
    assert installed == imported


def test_the_wheel_captures_a_kernel(bin_dir, tmp_path):
    script = ROOT / "dumps/kernels/add_any.py"
    succeeds(bin_dir / "mosaic-dump", script, cwd=tmp_path)
    assert list((tmp_path / "dumps/add_any").rglob("*.mlir"))


def test_our_passes_are_found(bin_dir, tmp_path):
    assert "pipeline-depth" in succeeds(bin_dir / "mosaic-dump", "passes", cwd=tmp_path)


def test_a_strangers_package_of_passes_is_found(bin_dir, acme, tmp_path):
    mosaic_dump = bin_dir / "mosaic-dump"
    assert "acme-report" not in succeeds(mosaic_dump, "passes", cwd=tmp_path)
    assert "acme-report" in succeeds(mosaic_dump, "passes", cwd=tmp_path, PYTHONPATH=str(acme))


def test_two_packages_with_a_pass_of_one_name_are_both_named(bin_dir, acme, tmp_path):
    (acme / "acme_passes-1.0.dist-info/entry_points.txt").write_text(
        "[mosaic_toolkit.passes]\npipeline-depth = acme_passes:AcmeReport\n"
    )
    done = run(bin_dir / "mosaic-dump", "passes", cwd=tmp_path, PYTHONPATH=str(acme))
    assert done.returncode == 2
    assert "acme-passes" in done.stderr
    assert "mosaic-toolkit" in done.stderr
