"""What the installed package says about itself, and the shape its files keep."""

import ast
import subprocess
import sys
import tarfile
from importlib.metadata import distribution
from pathlib import Path

import pytest

from agentcoord.version import VERSION

ROOT = Path(__file__).parents[2]
SOURCES = sorted((ROOT / "src").rglob("*.py"))
PYTHON = sorted([*SOURCES, *(ROOT / "tests").rglob("*.py"), *(ROOT / "bench").rglob("*.py")])
LONGEST = 450  # lines; a longer file has more than one subject


def _name(path: Path) -> str:
    return str(path.relative_to(ROOT))


def test_the_version_has_one_home() -> None:
    assert distribution("agent-coord").version == VERSION


def test_the_package_is_typed() -> None:
    assert (ROOT / "src/agentcoord/py.typed").is_file()


@pytest.mark.parametrize("command", ["agent-coord", "agentcoordd"])
def test_a_console_script_is_installed_and_can_be_loaded(command: str) -> None:
    (entry,) = distribution("agent-coord").entry_points.select(group="console_scripts", name=command)
    assert callable(entry.load())
    assert Path(sys.executable).with_name(command).is_file()


def test_the_daemon_knows_its_version() -> None:
    ran = subprocess.run([sys.executable, "-m", "agentcoordd", "--version"], capture_output=True, text=True, check=True)
    assert ran.stdout == f"agentcoordd {VERSION}\n"


def test_the_source_distribution_has_every_schema_and_fixture(tmp_path: Path) -> None:
    build = [sys.executable, "-m", "hatchling", "build", "--target", "sdist", "--directory", str(tmp_path)]
    subprocess.run(build, cwd=ROOT, capture_output=True, check=True)
    (archive,) = tmp_path.glob("*.tar.gz")
    with tarfile.open(archive) as packed:
        names = {name.partition("/")[2] for name in packed.getnames()}
    published = {_name(path) for top in ("schema", "contracts") for path in (ROOT / top).rglob("*.json")}
    assert published
    assert published <= names


@pytest.mark.parametrize("path", PYTHON, ids=_name)
def test_a_file_opens_with_its_idea(path: Path) -> None:
    assert ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))), f"{_name(path)} has no module docstring"


@pytest.mark.parametrize("path", SOURCES, ids=_name)
def test_a_file_holds_one_concept(path: Path) -> None:
    lines = len(path.read_text(encoding="utf-8").splitlines())
    assert lines <= LONGEST, f"{_name(path)} has {lines} lines"
