"""The command that bootstrap installed, run by its name."""

import ctypes
import os
import stat
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.command import PATIENCE, Answer, Coord, assert_presentable
from tests.e2e.running import CLAIM, finish, one_line, start

COMMAND = Path(sys.executable).with_name("agent-coord")
_PR_CAPBSET_DROP, _CAP_DAC_OVERRIDE, _CAP_DAC_READ_SEARCH = 24, 1, 2


def by_name(coord: Coord, *argv: str, env: Mapping[str, str] | None = None) -> Answer:
    """Run the installed command as a person does once the profile is read: the shell looks it up."""
    script = '. "$HOME/.bashrc"; exec agent-coord "$@"'
    ran = subprocess.run(
        ["/bin/sh", "-c", script, "sh", *argv],
        capture_output=True,
        check=False,
        cwd=coord.work,
        env={**coord.env, **(env or {})},
        text=True,
        timeout=PATIENCE,
    )
    assert_presentable(ran.stderr)
    return Answer(ran.returncode, ran.stdout, ran.stderr)


@pytest.fixture
def installed(coord: Coord) -> Path:
    """Where `python -m agentcoord bootstrap` put the command."""
    place = coord.home / ".local/bin/agent-coord"
    answer = coord("bootstrap")
    assert (answer.exit, answer.err) == (0, "")
    assert answer.out == f"installed agent-coord -> {place}\nprofile updated: {coord.home}/.bashrc\n"
    return place


def test_a_module_installs_the_script_beside_its_python(coord: Coord, installed: Path) -> None:
    assert os.readlink(installed) == str(COMMAND.resolve())
    assert by_name(coord, "version").exit == 0
    assert by_name(coord, *CLAIM).exit == 0


def test_the_script_installs_itself(coord: Coord) -> None:
    link = coord.work / "by another name"
    link.symlink_to(COMMAND)
    assert finish(start(coord, program=[str(link), "bootstrap"])).exit == 0
    assert os.readlink(coord.home / ".local/bin/agent-coord") == str(COMMAND.resolve())


def test_by_a_relative_name(coord: Coord, installed: Path) -> None:
    process = start(coord, program=["./agent-coord", "bootstrap"], cwd=installed.parent)
    assert finish(process).exit == 0
    assert os.readlink(installed) == str(COMMAND.resolve())


def test_the_link_becomes_a_wrapper_and_a_link_again(coord: Coord, installed: Path) -> None:
    there = coord.work / "it's there"
    assert coord(*CLAIM, "--state-root", str(there)).exit == 0
    assert by_name(coord, "bootstrap", "--status-state-root", "it's there").err == ""
    assert stat.S_IMODE(installed.lstat().st_mode) == 0o755
    unset = {"AGENT_COORD_STATE_ROOT": "", "XDG_STATE_HOME": str(coord.work / "own")}
    assert "o/r#7" in by_name(coord, "status", env=unset).out
    # Run through the wrapper, each of them is about the command again.
    assert by_name(coord, "bootstrap", "--status-state-root", "other").exit == 0
    assert "o/r#7" not in by_name(coord, "status", env=unset).out
    assert by_name(coord, "bootstrap").exit == 0
    assert os.readlink(installed) == str(COMMAND.resolve())
    assert (coord.home / ".bashrc").read_text().count("export PATH=") == 1


def test_through_the_link_it_goes_elsewhere_without_a_chain(coord: Coord, installed: Path) -> None:
    assert by_name(coord, "bootstrap", "--install-dir", "other", "--no-profile").exit == 0
    assert os.readlink(coord.work / "other/agent-coord") == str(COMMAND.resolve())
    assert os.readlink(installed) == str(COMMAND.resolve())


def test_through_the_link_a_stranger_s_forerunner_stays(coord: Coord, installed: Path) -> None:
    stranger = installed.with_name("agent_coord")
    stranger.symlink_to(coord.work / "tool")
    assert "legacy" not in by_name(coord, "bootstrap").out
    assert stranger.is_symlink()
    stranger.unlink()
    stranger.symlink_to(COMMAND.resolve().with_name("agent_coord"))
    assert f"removed legacy agent_coord -> {stranger}\n" in by_name(coord, "bootstrap").out
    assert not stranger.is_symlink()


def test_a_python_without_the_script_says_what_to_do(coord: Coord) -> None:
    code = f"import sys; sys.executable = {str(coord.work / 'python')!r}; "
    code += "from agentcoord.__main__ import main; sys.exit(main(sys.argv[1:]))"
    answer = finish(start(coord, program=[sys.executable, "-c", code, "bootstrap"]))
    assert (answer.exit, answer.out) == (2, "")
    assert one_line(answer).endswith("install the package with pip, and run `agent-coord bootstrap`")
    assert list(coord.home.iterdir()) == []


def test_an_odd_home_whatever_the_locale(coord: Coord) -> None:
    home = coord.work / "Zoë's → home"
    home.mkdir()
    for locale in ("C", "C.UTF-8", "xx_YY.nonsense"):
        env = {"HOME": str(home), "LC_ALL": locale, "PYTHONCOERCECLOCALE": "0"}
        assert coord("bootstrap", env=env).exit == 0
        assert by_name(coord, "version", env=env).exit == 0
    line = f'export PATH={coord.work}/Zo\\ë\\\'s\\ \\→\\ home/.local/bin:"$PATH"'
    assert (home / ".bashrc").read_text() == f"\n# agent-coord bootstrap\n{line}\n"


def as_others() -> None:
    """Let permissions count for root too."""
    if os.getuid() == 0:
        prctl = ctypes.CDLL(None).prctl
        for capability in (_CAP_DAC_OVERRIDE, _CAP_DAC_READ_SEARCH):
            prctl(_PR_CAPBSET_DROP, capability, 0, 0, 0)


@pytest.mark.skipif(sys.platform != "linux", reason="root's capabilities are Linux's")
@pytest.mark.parametrize("argv", [(), ("--status-state-root", "/r")])
def test_a_directory_that_may_not_be_written(coord: Coord, argv: tuple[str, ...]) -> None:
    directory = coord.work / "bin"
    directory.mkdir()
    old = directory / "agent-coord"
    old.write_text("old")
    directory.chmod(0o555)
    process = start(coord, "bootstrap", "--install-dir", "bin", *argv, preexec_fn=as_others)
    answer = finish(process)
    assert (answer.exit, answer.out) == (2, "")
    assert one_line(answer) == f"bootstrap failed: Permission denied: {old}"
    assert (list(directory.iterdir()), old.read_text()) == ([old], "old")
    assert not (coord.home / ".bashrc").exists()


@pytest.mark.skipif(sys.platform != "linux", reason="root's capabilities are Linux's")
def test_a_profile_that_may_not_be_written(coord: Coord) -> None:
    profile = coord.home / ".bashrc"
    profile.write_text("old")
    profile.chmod(0o444)
    answer = finish(start(coord, "bootstrap", preexec_fn=as_others))
    assert (answer.exit, answer.out) == (2, "")
    assert one_line(answer) == f"bootstrap failed: Permission denied: {profile}"
    assert profile.read_text() == "old"
