"""Where passes come from: packages, this tree, plugin files; and what is said when they do not."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from mosaic_toolkit import plugins
from mosaic_toolkit.errors import PassPipelineError
from mosaic_toolkit.pass_pipeline import PassPipeline
from mosaic_toolkit.plugins import PassRegistry, installed_passes

ROOT = Path(__file__).resolve().parents[1]

PLUGIN = '''
"""A plugin."""
from __future__ import annotations

import dataclasses

from mosaic_toolkit.passes import Pass


@dataclasses.dataclass(frozen=True)
class Shared(Pass):
    """Has no name: other passes derive from it."""


@dataclasses.dataclass(frozen=True)
class Paint(Shared):
    """Paints every operation.

    Rewrite: grey -> coloured
    """

    name = "paint"
    backends = frozenset({"triton", "mosaic_gpu"})
    level = "dialect"

    colour: str = dataclasses.field(metadata={"help": "any colour"})
    coats: int = 2

    def run(self, graph):
        raise RuntimeError("the paint is dry")


@dataclasses.dataclass(frozen=True)
class Scrape(Pass):
    name = "scrape"
'''


def write(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(textwrap.dedent(text))
    return path


@pytest.fixture
def site(tmp_path, monkeypatch):
    """A directory of installed packages; ``site(package, version, points, source)`` adds one."""
    monkeypatch.syspath_prepend(tmp_path / "site")

    def install(package: str, version: str, points: dict[str, str], source: str = PLUGIN) -> None:
        module = package.replace("-", "_")
        monkeypatch.delitem(sys.modules, module, raising=False)
        write(tmp_path / "site" / f"{module}.py", source)
        info = tmp_path / "site" / f"{module}-{version}.dist-info"
        write(info / "METADATA", f"Metadata-Version: 2.1\nName: {package}\nVersion: {version}\n")
        lines = "\n".join(f"{name} = {value}" for name, value in points.items())
        write(info / "entry_points.txt", f"[mosaic_toolkit.passes]\n{lines}\n")
        importlib.invalidate_caches()

    return install


# --- installed packages -----------------------------------------------------------


def test_our_own_passes_are_found_without_an_installation(tmp_path):
    program = "from mosaic_toolkit.plugins import installed_passes; print(*installed_passes())"
    roots = os.pathsep.join(str(ROOT / part) for part in ("toolkit", "passes"))
    done = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": roots},
    )
    assert done.stdout.split() == ["pipeline-depth"], done.stderr


def test_a_strangers_package(site):
    site("paint-shop", "1.2", {"paint": "paint_shop:Paint"})
    registry = installed_passes()
    assert registry.provider("paint") == "paint-shop 1.2"
    pipeline = PassPipeline.parse("paint{colour=red},pipeline-depth{stages=1}", registry)
    assert str(pipeline) == "paint{colour=red},pipeline-depth{stages=1}"


def test_an_installed_copy_of_this_project_does_not_count_twice(site):
    site(
        "mosaic-toolkit", "0.0.1", {"pipeline-depth": "mosaic_passes.pipeline_depth:PipelineDepth"}
    )
    assert list(installed_passes()) == ["pipeline-depth"]


def test_outside_the_tree_the_installed_copy_counts(site, monkeypatch):
    monkeypatch.setattr(plugins, "_tree_entry_points", list)
    site("Mosaic_Toolkit", "7.0", {"pipeline-depth": "mosaic_passes.pipeline_depth:PipelineDepth"})
    assert installed_passes().provider("pipeline-depth") == "Mosaic_Toolkit 7.0"


def test_a_name_taken_by_two_packages_names_both(site):
    site("paint-shop", "1.2", {"paint": "paint_shop:Paint"})
    site("other-shop", "0.3", {"paint": "other_shop:Paint"})
    with pytest.raises(PassPipelineError) as caught:
        installed_passes()
    assert "pass 'paint' is provided twice" in caught.value.message
    assert "paint-shop 1.2" in caught.value.message
    assert "other-shop 0.3" in caught.value.message


def test_a_name_of_ours_taken_by_a_package(site):
    site("paint-shop", "1.2", {"pipeline-depth": "paint_shop:Paint"})
    with pytest.raises(PassPipelineError, match=r"by mosaic-toolkit .* and by paint-shop 1\.2"):
        installed_passes()


def test_a_package_that_does_not_load_spoils_only_its_own_passes(site):
    site("paint-shop", "1.2", {"paint": "paint_shop:Paint"}, "import not_there_at_all")
    registry = installed_passes()
    PassPipeline.parse("pipeline-depth{stages=1}", registry)
    with pytest.raises(
        PassPipelineError, match=r"'paint' of paint-shop 1\.2 does not load: ModuleNotFoundError"
    ):
        PassPipeline.parse("paint{colour=red}", registry)
    paint, depth = registry.describe()
    assert (paint.name, paint.provider) == ("paint", "paint-shop 1.2")
    assert "not_there_at_all" in paint.error
    assert depth.error is None


def test_an_entry_point_under_another_name_than_its_class(site):
    site("paint-shop", "1.2", {"point": "paint_shop:Paint", "nothing": "paint_shop:dataclasses"})
    registry = installed_passes()
    with pytest.raises(PassPipelineError, match="class Paint calls itself 'paint'"):
        registry["point"]
    with pytest.raises(PassPipelineError, match="is no class that derives from"):
        registry["nothing"]


# --- plugin files ------------------------------------------------------------------


def test_a_plugin_file_adds_every_pass_that_it_defines(tmp_path):
    path = write(tmp_path / "my plugin.py", PLUGIN)
    registry = PassRegistry().with_plugin(path)
    assert sorted(registry) == ["paint", "scrape"]
    paint = registry["paint"]("red", coats=3)
    assert PassPipeline.parse("paint{coats=3 colour=red}", registry).passes == (paint,)


def test_what_is_said_of_each_pass(tmp_path):
    path = write(tmp_path / "plugin.py", PLUGIN)
    paint, scrape = PassRegistry().with_plugin(path).describe()
    assert paint.name == "paint"
    assert paint.summary == "Paints every operation."
    assert paint.backends == ("mosaic_gpu", "triton")
    assert paint.level == "dialect"
    assert paint.provider == paint.file == str(path)
    colour, coats = paint.options
    assert (colour.name, colour.kind, colour.required, colour.help) == (
        "colour",
        "str",
        True,
        "any colour",
    )
    assert (coats.name, coats.kind, coats.required, coats.default) == ("coats", "int", False, 2)
    assert (scrape.summary, scrape.options, scrape.backends) == ("", (), None)


def test_a_plugin_that_takes_an_installed_name_names_both(tmp_path):
    path = write(tmp_path / "plugin.py", PLUGIN.replace('"paint"', '"pipeline-depth"'))
    with pytest.raises(PassPipelineError, match=f"by mosaic-toolkit .* and by {path}"):
        installed_passes().with_plugin(path)


def test_two_plugins_with_one_name_name_both(tmp_path):
    a, b = write(tmp_path / "a.py", PLUGIN), write(tmp_path / "b.py", PLUGIN)
    with pytest.raises(PassPipelineError, match=f"by {a} and by {b}"):
        PassRegistry().with_plugin(a).with_plugin(b)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("x = 1\ny = x / 0\n", ":2: ZeroDivisionError: division by zero"),
        ("def f():\n    raise SystemExit(3)\nf()\n", ":2: SystemExit: 3"),
        ("x = 1\nclass (\n", ":2: SyntaxError: "),
        ("import not_there_at_all\n", ":1: ModuleNotFoundError: "),
        ("from mosaic_toolkit.passes import Pass\n", " defines no pass"),
        (
            "from mosaic_toolkit.passes import Pass\nclass P(Pass):\n    name = 'p'\n    n: int\n",
            "class P needs @dataclasses.dataclass(frozen=True)",
        ),
        (
            PLUGIN.replace("coats: int", "coats: float"),
            "option 'coats' of Paint is a <class 'float'>",
        ),
        (PLUGIN.replace("coats: int", "coats: Nowhere"), "name 'Nowhere' is not defined"),
        (PLUGIN.replace('"scrape"', '"9 lives"'), "a name is letters, digits"),
        (PLUGIN.replace('"scrape"', '"paint"'), "pass 'paint' is provided twice"),
        (PLUGIN.replace("frozen=True", ""), ":10: TypeError: cannot inherit non-frozen dataclass"),
    ],
)
def test_a_plugin_that_is_wrong(tmp_path, text, message):
    path = tmp_path / "plugin.py"
    path.write_text(text)
    with pytest.raises(PassPipelineError) as caught:
        PassRegistry().with_plugin(path)
    assert message in caught.value.message
    assert str(path) in caught.value.message


def test_a_plugin_that_is_no_file(tmp_path):
    with pytest.raises(PassPipelineError, match=r"nothing\.py: no such file"):
        PassRegistry().with_plugin(tmp_path / "nothing.py")
    other = write(tmp_path / "plugin.txt", PLUGIN)
    with pytest.raises(PassPipelineError, match=r"plugin\.txt is no Python file"):
        PassRegistry().with_plugin(other)
