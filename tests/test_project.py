"""Rules of the tree that no single module can keep."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]

PRIVATE_IMPORTS = [
    "import jax._src",
    "import jax._src.core as core",
    "from jax import _src",
    "from jax._src.pallas import core",
    "import jaxlib",
    "from jaxlib.mlir import ir",
    "import jax.experimental.mosaic.gpu",
    "from jax.experimental import mosaic",
    "from jax.experimental.mosaic import gpu",
]
PUBLIC_IMPORTS = [
    "import jax",
    "from jax.experimental import pallas",
    "from jax.experimental.pallas import mosaic_gpu",
]


def banned(statement: str, path: str) -> bool:
    """Whether ruff, configured as in the tree, bans `statement` in the file `path`."""
    ruff = shutil.which("ruff", path=str(Path(sys.executable).parent)) or shutil.which("ruff")
    if ruff is None:
        pytest.skip("ruff is not installed")
    done = subprocess.run(
        [ruff, "check", "--no-cache", "--output-format=concise", "--stdin-filename", path, "-"],
        input=f"{statement}\n",
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert done.returncode in (0, 1), done.stderr
    return "TID251" in done.stdout


@pytest.mark.parametrize("package", ["toolkit/mosaic_toolkit", "passes/mosaic_passes"])
@pytest.mark.parametrize("statement", PRIVATE_IMPORTS)
def test_private_jax_is_banned(statement, package):
    assert banned(statement, f"{package}/some_module.py")


@pytest.mark.parametrize("statement", PUBLIC_IMPORTS)
def test_public_jax_is_not(statement):
    assert not banned(statement, "toolkit/mosaic_toolkit/some_module.py")


def test_the_door_may_import_private_jax():
    doors = sorted((ROOT / "toolkit").rglob("jax_compat/*.py"))
    assert doors
    for door in doors:
        assert not banned("from jax._src import core", str(door.relative_to(ROOT)))


IMPORT_ALL = """
import importlib, importlib.metadata as metadata, pkgutil, re, sys

def closure(names):
    allowed, todo = set(), list(names)
    while todo:
        name = re.sub(r"[-_.]+", "-", todo.pop()).lower()
        if name in allowed:
            continue
        allowed.add(name)
        try:
            needs = metadata.requires(name) or []
        except metadata.PackageNotFoundError:
            continue
        todo += [re.match(r"[\\w.-]+", need)[0] for need in needs if "extra ==" not in need]
    return allowed

allowed = closure(sys.argv[1:])
owners = metadata.packages_distributions()

class Refuse:
    def find_spec(self, name, path=None, target=None):
        dists = {re.sub(r"[-_.]+", "-", d).lower() for d in owners.get(name.split(".")[0], ())}
        if dists and not dists & allowed and not name.startswith("mosaic_"):
            raise ModuleNotFoundError(f"{name} is not a dependency of the core", name=name)

sys.meta_path.insert(0, Refuse())
count = 0
for root in ("mosaic_toolkit", "mosaic_passes"):
    package = importlib.import_module(root)
    for module in pkgutil.walk_packages(package.__path__, f"{root}."):
        if not module.name.endswith("__main__"):
            importlib.import_module(module.name)
            count += 1
print(count)
"""


def import_all(*distributions: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", IMPORT_ALL, *distributions],
        cwd=ROOT,
        env={"PATH": "", "PYTHONPATH": "toolkit:passes", "JAX_PLATFORMS": "cpu"},
        capture_output=True,
        text=True,
    )


def test_every_module_imports_with_the_base_dependencies_alone():
    done = import_all("jax", "jaxlib", "networkx", "typer")
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) > 5


def test_the_import_check_sees_an_undeclared_dependency():
    done = import_all("networkx", "typer")
    assert done.returncode != 0
    assert "is not a dependency of the core" in done.stderr


def code_of(document: str) -> list[str]:
    """Lines of a document's indented code blocks, and its inline code."""
    text = (ROOT / document).read_text()
    return re.findall(r"^    (\S.*)$", text, re.MULTILINE) + re.findall(r"`([^`\n]+)`", text)


DOCUMENTS = ["README.md", "CONTRIBUTING.md"]


@pytest.mark.parametrize("document", DOCUMENTS)
def test_make_commands_in_documents_exist(document):
    targets = {
        name for code in code_of(document) for name in re.findall(r"\bmake ([a-z][\w-]*)", code)
    }
    declared = re.search(r"^\.PHONY:(.*)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert targets
    assert targets <= set(declared[1].split())


@pytest.mark.parametrize("document", DOCUMENTS)
def test_files_in_documents_exist(document):
    paths = {
        path
        for code in code_of(document)
        for path in re.findall(r"(?<![\w/.-])(?:dumps/kernels|toolkit|passes|tests)/[\w/.-]+", code)
        if "my_" not in path
    }
    assert paths
    assert {path for path in paths if not (ROOT / path).exists()} == set()


def test_every_example_kernel_is_in_the_readme():
    readme = (ROOT / "README.md").read_text()
    kernels = [path.name for path in (ROOT / "dumps/kernels").glob("*.py")]
    assert kernels
    assert [name for name in kernels if f"dumps/kernels/{name}" not in readme] == []
