"""The README's commands and code, run as they stand."""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()


def blocks(marker: str, language: str) -> list[str]:
    return re.findall(rf"<!-- {marker} -->\n```{language}\n(.*?)```", README, re.DOTALL)


def commands() -> list[tuple[str, str]]:
    """Each command with the output that the README shows for it."""
    found = []
    for block in blocks("run", "console"):
        for part in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
            command, _, output = part.partition("\n")
            found.append((command, output))
    return found


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A directory from which the README's relative paths work."""
    place = tmp_path_factory.mktemp("readme")
    (place / "dumps").symlink_to(ROOT / "dumps")
    (plugin,) = blocks("plugin", "python")
    assert len(plugin.splitlines()) < 25
    (place / "start_copies_early.py").write_text(plugin)
    return place


def run(arguments, place):
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(ROOT / "toolkit"), str(ROOT / "passes")]),
        "JAX_PLATFORMS": "cpu",
    }
    return subprocess.run(
        [sys.executable, *arguments], cwd=place, env=environment, capture_output=True, text=True
    )


def shown_in(output: str, shown: str) -> bool:
    """Whether the output has the shown lines, in order; ``...`` stands for any others."""
    parts = [
        re.escape(part.strip("\n")) for part in re.split(r"^\.\.\.$", shown, flags=re.MULTILINE)
    ]
    return re.search(r"(?:.|\n)*".join(parts), output) is not None


def test_session(place):
    """One test, since each command builds on those before it."""
    assert len(commands()) >= 9
    for command, shown in commands():
        words = shlex.split(command)
        assert words[0] == "mosaic-dump"
        done = run(["-m", "mosaic_toolkit", *words[1:]], place)
        expected = 1 if words[1] == "diff" or "error:" in shown else 0
        assert done.returncode == expected, f"{command}\n{done.stdout}{done.stderr}"
        assert shown_in(done.stdout + done.stderr, shown), f"{command}\n{done.stdout}{done.stderr}"


def test_python(place):
    (code,) = blocks("python", "python")
    (place / "example.py").write_text(code)
    done = run(["example.py"], place)
    assert done.returncode == 0, done.stderr
    assert "MultiDiGraph" in done.stdout
    assert "synchronous" in done.stdout
