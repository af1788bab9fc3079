"""What bootstrap leaves on the disk: the command, the forerunner, the profile."""

import os
import shutil
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from agentcoord.cli.output import Invocation, Output
from agentcoord.cli.run import run
from agentcoord.stores.opening import settle
from tests.cli.line import nothing
from tests.command import PATIENCE
from tests.operations.stage import Chance, FakeClock

# Stands for the command: says what an installed one is started with.
PROBE = '#!/bin/sh\nprintf "%s\\n" "${AGENT_COORD_STATUS_STATE_ROOT-none}" "$@"\n'
ODD = [
    "plain",
    "two words",
    "it's",
    'a"b',
    "$HOME",
    "`id`",
    "back\\slash",
    "*?[a]",
    "new\nline",
    "tab\t",
    "é→",
    "~",
    "#!",
]
MARK = b"# agent-coord bootstrap\n"


class Machine:
    """A person's home, and a checkout with an executable command in it."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.home = directory / "home"
        self.home.mkdir()
        self.command = executable(directory / "checkout/bin/agent-coord", PROBE)
        self.forerunner = self.command.with_name("agent_coord")
        self.installed = self.home / ".local/bin/agent-coord"
        self.legacy = self.installed.with_name("agent_coord")
        self.bashrc = self.home / ".bashrc"
        self.env = {"HOME": str(self.home), "SHELL": "/bin/bash"}
        self.cwd = str(directory)

    def __call__(self, *argv: str, program: Path | str | None = None) -> Output:
        output = settle(
            run(
                Invocation(
                    argv=("bootstrap", *argv),
                    env=self.env,
                    cwd=self.cwd,
                    now=FakeClock().now,
                    random=Chance(),
                    read_file=nothing,
                    stdin=nothing,
                    program=str(self.command if program is None else program),
                )
            )
        )
        assert not list(self.directory.rglob("*tmp-*")), "a temporary file is left"
        assert self.command.read_text() == PROBE, "the command itself is never touched"
        return output

    def done(self, *argv: str, program: Path | str | None = None) -> list[str]:
        """Run what has to work; give the lines it says."""
        output = self(*argv, program=program)
        assert (output.exit, output.stderr) == (0, [])
        return os.fsdecode(output.stdout).splitlines()

    def refused(self, *argv: str, program: Path | str | None = None) -> str:
        """Run what has to fail; give the one line it says."""
        output = self(*argv, program=program)
        assert (output.exit, output.stdout) == (2, b"")
        [line] = output.stderr
        assert line.startswith("bootstrap failed: ")
        return line.removeprefix("bootstrap failed: ")

    def entry(self, directory: str = ".local/bin") -> bytes:
        """Give what is appended to a profile."""
        return b"\n" + MARK + b"export PATH=" + os.fsencode(self.home / directory) + b':"$PATH"\n'


def executable(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)
    return path


def said(path: Path | str, *argv: str, env: dict[str, str] | None = None) -> list[str]:
    """Run an installed command, and give the lines it prints."""
    ran = subprocess.run([path, *argv], env=env or {}, capture_output=True, check=True, timeout=PATIENCE)
    return os.fsdecode(ran.stdout).splitlines()


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


# The command --------------------------------------------------------------------------------------------------


def test_a_link_to_the_command(machine: Machine) -> None:
    assert machine.done() == [
        f"installed agent-coord -> {machine.installed}",
        f"profile updated: {machine.bashrc}",
    ]
    assert os.readlink(machine.installed) == str(machine.command)
    assert said(machine.installed, "a b", "") == ["none", "a b", ""]


def test_elsewhere(machine: Machine) -> None:
    assert machine.done("--install-dir", "here/../there/", "--no-profile") == [
        f"installed agent-coord -> {machine.directory}/there/agent-coord",
        "profile update skipped",
    ]
    assert os.readlink(machine.directory / "there/agent-coord") == str(machine.command)
    assert list(machine.home.iterdir()) == []


@pytest.mark.parametrize("name", ODD)
def test_a_wrapper_hands_the_root_over(machine: Machine, name: str) -> None:
    root = machine.directory / name
    command = executable(machine.directory / f"at {name}/agent-coord", PROBE)
    umask = os.umask(0o077)
    try:
        machine.done("--status-state-root", str(root), program=command)
    finally:
        os.umask(umask)
    assert stat.S_IMODE(machine.installed.lstat().st_mode) == 0o755
    assert said(machine.installed, "a  b", "", "$x") == [*str(root).splitlines(), "a  b", "", "$x"]


def test_the_text_of_a_wrapper(machine: Machine) -> None:
    machine.done("--status-state-root", "a b/../ü")
    assert machine.installed.read_text() == (
        f'#!/bin/sh\nexport AGENT_COORD_STATUS_STATE_ROOT={machine.directory}/\\ü\nexec {machine.command} "$@"\n'
    )


def test_a_wrapper_hands_over_bytes_that_are_no_text(machine: Machine) -> None:
    root = os.fsencode(machine.directory) + b"/\xff \xc3"
    machine.done("--status-state-root", os.fsdecode(root))
    assert said(machine.installed) == [os.fsdecode(root)]


@pytest.mark.parametrize("kind", ["file", "link", "dangling", "wrapper", "unwritable"])
@pytest.mark.parametrize("wanted", ["link", "wrapper"])
def test_what_is_there_is_replaced(machine: Machine, kind: str, wanted: str) -> None:
    other = executable(machine.directory / "other", "other")
    machine.installed.parent.mkdir(parents=True)
    if kind == "link":
        machine.installed.symlink_to(other)
    elif kind == "dangling":
        machine.installed.symlink_to("nowhere")
    elif kind == "wrapper":
        machine.done("--status-state-root", "old")
    else:
        machine.installed.write_text("x")
        machine.installed.chmod(0o444 if kind == "unwritable" else 0o644)
    machine.done(*(["--status-state-root", "/r"] if wanted == "wrapper" else []))
    assert machine.installed.is_symlink() == (wanted == "link")
    assert said(machine.installed) == ["/r" if wanted == "wrapper" else "none"]
    assert other.read_text() == "other"


def test_a_directory_of_that_name_stays(machine: Machine) -> None:
    machine.installed.mkdir(parents=True)
    for argv in ((), ("--status-state-root", "/r")):
        assert machine.refused(*argv) == f"Is a directory: {machine.installed}"
    assert not machine.bashrc.exists()


def test_a_second_run_changes_nothing(machine: Machine) -> None:
    first = machine.done()
    profile = machine.bashrc.read_bytes()
    assert machine.done() == first
    assert machine.bashrc.read_bytes() == profile
    assert os.readlink(machine.installed) == str(machine.command)


def test_through_its_own_link(machine: Machine) -> None:
    machine.done()
    machine.done("--status-state-root", "/r", program=machine.installed)
    assert not machine.installed.is_symlink()
    assert said(machine.installed) == ["/r"]
    machine.done()
    machine.done("--install-dir", "other", program=machine.installed)
    other = machine.directory / "other/agent-coord"
    assert os.readlink(other) == str(machine.command)
    machine.done(program=other)
    assert os.readlink(machine.installed) == str(machine.command)


def test_where_the_command_itself_is(machine: Machine) -> None:
    by_link = machine.directory / "by link"
    by_link.symlink_to(machine.command.parent)
    for directory in (machine.command.parent, by_link):
        place = directory / "agent-coord"
        assert machine.done("--install-dir", str(directory), "--no-profile") == [
            f"installed agent-coord -> {place}",
            "profile update skipped",
        ]
        assert machine.refused("--install-dir", str(directory), "--status-state-root", "/r", program=place) == (
            f"{place} is the command itself; pass another --install-dir"
        )
        assert not machine.command.is_symlink()
    assert not machine.bashrc.exists()


@pytest.mark.parametrize("program", ["checkout/agentcoord/__main__.py", "checkout/-c", "checkout"])
@pytest.mark.parametrize("mode", [0o644, 0o755])
def test_what_cannot_be_run_by_its_name(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, program: str, mode: int
) -> None:
    """As `python -m` does it: the script beside that Python is the command, if there is one."""
    module = machine.directory / "checkout/agentcoord/__main__.py"
    module.parent.mkdir()
    module.write_text("")
    module.chmod(mode)
    asked = machine.directory / program
    monkeypatch.setattr(sys, "executable", str(machine.command.with_name("python")))
    machine.done(program=asked)
    assert os.readlink(machine.installed) == str(machine.command)

    machine.installed.unlink()
    machine.bashrc.unlink()
    plain = machine.directory / "plain/agent-coord"
    for executable_ in (str(plain.with_name("python")), str(machine.directory / "empty/python")):
        plain.parent.mkdir(exist_ok=True)
        plain.write_text("not executable")
        monkeypatch.setattr(sys, "executable", executable_)
        beside = Path(executable_).with_name("agent-coord")
        assert machine.refused(program=asked) == (
            f"{asked} cannot be run by its name, and there is no executable {beside}; "
            "install the package with pip, and run `agent-coord bootstrap`"
        )
    monkeypatch.setattr(sys, "executable", "")
    assert machine.refused(program=asked)
    assert not machine.installed.exists()
    assert not machine.bashrc.exists()


# The forerunner -----------------------------------------------------------------------------------------------


def legacy(machine: Machine, *argv: str, program: Path | None = None) -> bool:
    """Run bootstrap, and tell whether the forerunner was removed."""
    lines = machine.done(*argv, "--no-profile", program=program)
    gone = f"removed legacy agent_coord -> {machine.legacy}" in lines
    assert gone == (not os.path.lexists(machine.legacy))
    assert len(lines) == 2 + gone
    return gone


@pytest.mark.parametrize("there", [True, False])
@pytest.mark.parametrize("form", ["absolute", "relative", "by a linked directory"])
@pytest.mark.parametrize("linked", [False, True])
def test_a_link_to_the_forerunner_is_removed(machine: Machine, there: bool, form: str, linked: bool) -> None:
    if linked:
        machine.done()
    if there:
        executable(machine.forerunner, PROBE)
    (machine.home / "src").symlink_to(machine.directory / "checkout")
    machine.legacy.parent.mkdir(parents=True, exist_ok=True)
    machine.legacy.symlink_to(
        {
            "absolute": str(machine.forerunner),
            "relative": "../../../checkout/bin/agent_coord",
            "by a linked directory": "../../src/bin/agent_coord",
        }[form]
    )
    assert legacy(machine, program=machine.installed if linked else None)
    assert machine.forerunner.exists() == there


@pytest.mark.parametrize(
    "target", ["nowhere", "agent-coord", "agent_coord", "../../other/agent_coord", "../../onward", "/"]
)
@pytest.mark.parametrize("linked", [False, True])
def test_a_stranger_s_link_stays(machine: Machine, target: str, linked: bool) -> None:
    """Also one that leads to the forerunner in the end, and one beside the link that the command runs through."""
    machine.done()
    executable(machine.forerunner, PROBE)
    executable(machine.home / "other/agent_coord", "other")
    (machine.home / "onward").symlink_to(machine.forerunner)
    machine.legacy.symlink_to(target)
    assert not legacy(machine, program=machine.installed if linked else None)
    assert os.readlink(machine.legacy) == target


@pytest.mark.parametrize("interpreter", ["#!/bin/sh", "#! /usr/bin/sh -e", "#!/usr/bin/env sh"])
@pytest.mark.parametrize("quote", ["{}", '"{}"', "'{}'"])
def test_a_wrapper_of_the_forerunner_is_removed(machine: Machine, interpreter: str, quote: str) -> None:
    machine.done("--no-profile")
    executable(machine.legacy, f'{interpreter}\nexec {quote.format(machine.forerunner)} "$@"\n')
    assert legacy(machine, program=machine.installed)


def test_a_wrapper_of_the_forerunner_in_an_odd_directory_is_removed(machine: Machine) -> None:
    command = executable(machine.directory / "it's odd/agent-coord", PROBE)
    machine.done("--no-profile")
    for path in (r"\ ".join(str(machine.directory / r"it\'s odd").split()), f'"{machine.directory}/it\'s odd"'):
        executable(machine.legacy, f"#!/bin/sh\nexec {path}/agent_coord\n".replace('"/agent_coord', '/agent_coord"'))
        assert legacy(machine, program=command)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{}",
        "# !/bin/sh\n{}\n",
        "#!/usr/bin/python3\nexec('{}')\n",
        "#!/usr/share/tool\n{}\n",
        "#!/bin/sh\nexec agent_coord\n",
        "#!/bin/sh\nexec {}_two\n",
        "#!/bin/sh\nexec {}.rb\n",
        "#!/bin/sh\nexec {}/tool\n",
        "#!/bin/sh\nexec /mnt{}\n",
    ],
)
def test_other_files_stay(machine: Machine, text: str) -> None:
    text = text.format(machine.forerunner)
    executable(machine.legacy, text)
    assert not legacy(machine)
    assert machine.legacy.read_text() == text


def test_what_is_no_file_stays(machine: Machine) -> None:
    machine.legacy.mkdir(parents=True)
    assert not legacy(machine)
    machine.legacy.rmdir()
    os.mkfifo(machine.legacy)
    assert not legacy(machine)


@pytest.mark.parametrize("kind", ["script", "link"])
def test_the_forerunner_itself_stays(machine: Machine, kind: str) -> None:
    if kind == "script":
        executable(machine.forerunner, f"#!/bin/sh\n# Usage: {machine.forerunner}\n")
    else:
        machine.forerunner.symlink_to("agent-coord")
    machine.done("--install-dir", str(machine.command.parent), "--no-profile")
    assert os.path.lexists(machine.forerunner)


# The profile --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("shell", "name"),
    [
        ("/bin/bash", ".bashrc"),
        ("/usr/bin/zsh", ".zshrc"),
        ("zsh", ".zshrc"),
        ("/bin/zsh-old", ".bashrc"),
        ("/usr/bin/fish", ".bashrc"),
        ("", ".bashrc"),
        (None, ".bashrc"),
    ],
)
def test_the_profile_of_the_shell(machine: Machine, shell: str | None, name: str) -> None:
    machine.env = {"HOME": str(machine.home)} | ({} if shell is None else {"SHELL": shell})
    assert machine.done()[-1] == f"profile updated: {machine.home / name}"
    assert (machine.home / name).read_bytes() == machine.entry()
    assert {path.name for path in machine.home.iterdir()} == {name, ".local"}


@pytest.mark.parametrize(
    ("before", "between"),
    [
        (b"", b""),
        (b"alias l=ls\n", b""),
        (b"alias l=ls", b"\n"),
        (b"alias l=ls\\", b"\n"),
        (b"# Gr\xfc\xdfe\nX=\xff\xfe\x00\n", b""),
        (b"alias l=ls\r\n", b""),
        (b"export PATH=$HOME/.local/bin:$PATH\n", b""),
    ],
)
def test_what_is_in_a_profile_stays(machine: Machine, before: bytes, between: bytes) -> None:
    machine.bashrc.write_bytes(before)
    machine.bashrc.chmod(0o640)
    for _ in range(2):
        machine.done()
        assert machine.bashrc.read_bytes() == before + between + machine.entry()
    assert stat.S_IMODE(machine.bashrc.stat().st_mode) == 0o640


@pytest.mark.parametrize(
    "form", [b"%s", b"%s\n", b"  \t%s \n", b"%s\r\n", b"a\n%s\nb\n", b"\xe9\n %s\n\xff", b"\n\n%s\n\n"]
)
def test_a_line_that_is_there_is_enough(machine: Machine, form: bytes) -> None:
    profile = form % machine.entry().splitlines()[-1]
    machine.bashrc.write_bytes(profile)
    assert machine.done()[-1] == f"profile updated: {machine.bashrc}"
    assert machine.bashrc.read_bytes() == profile


@pytest.mark.parametrize("form", [b"# %s\n", b"%s # mine\n", b"if x; then %s; fi\n", b"%s:/more\n"])
def test_a_line_with_more_in_it_is_another(machine: Machine, form: bytes) -> None:
    profile = form % machine.entry().splitlines()[-1]
    machine.bashrc.write_bytes(profile)
    machine.done()
    assert machine.bashrc.read_bytes() == profile + machine.entry()


def test_a_profile_elsewhere(machine: Machine) -> None:
    given = machine.directory / "a/b/profile"
    assert machine.done("--profile", "a/./b/profile")[-1] == f"profile updated: {given}"
    assert given.read_bytes() == machine.entry()
    assert not machine.bashrc.exists()


def test_no_profile_wins(machine: Machine) -> None:
    assert machine.done("--profile", "p", "--no-profile")[-1] == "profile update skipped"
    assert not (machine.directory / "p").exists()
    assert not machine.bashrc.exists()


@pytest.mark.parametrize("there", [True, False])
def test_a_profile_in_a_repository_of_dotfiles_stays_a_link(machine: Machine, there: bool) -> None:
    repository = machine.directory / "dotfiles/bash/bashrc"
    if there:
        repository.parent.mkdir(parents=True)
        repository.write_bytes(b"alias l=ls\n")
    machine.bashrc.symlink_to("../dotfiles/bash/bashrc")
    for _ in range(2):
        machine.done()
        assert os.readlink(machine.bashrc) == "../dotfiles/bash/bashrc"
        assert repository.read_bytes() == (b"alias l=ls\n" if there else b"") + machine.entry()


@pytest.mark.parametrize("shell", ["sh", "bash", "zsh"])
@pytest.mark.parametrize("name", ODD)
def test_shells_find_the_command_by_the_profile(machine: Machine, shell: str, name: str) -> None:
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed")
    directory = machine.directory / f"dir {name}"
    for _ in range(2):
        machine.done("--install-dir", str(directory), "--profile", "p")
    assert (machine.directory / "p").read_bytes().count(MARK) == 1
    # The system's own start files, which zsh always reads, may have set another PATH.
    script = 'PATH=$2; . "$1"; agent-coord x; printf %s "$PATH"'
    lines = said(shutil.which(shell) or shell, "-c", script, "-", str(machine.directory / "p"), os.defpath)
    assert lines == ["none", "x", *f"{directory}:{os.defpath}".splitlines()]


def test_a_directory_that_is_text_is_escaped_by_its_characters(machine: Machine) -> None:
    machine.done("--install-dir", "é →b", "--profile", "p")
    line = (machine.directory / "p").read_bytes().splitlines()[-1]
    assert line == b"export PATH=" + os.fsencode(machine.directory) + "/\\é\\ \\→b".encode() + b':"$PATH"'


def test_a_directory_that_is_no_text_is_escaped_by_its_bytes(machine: Machine) -> None:
    directory = os.fsencode(machine.directory) + b"/\xc3\xa9\xff"
    for _ in range(2):
        lines = machine.done("--install-dir", os.fsdecode(directory), "--profile", "p")
        assert lines[0] == f"installed agent-coord -> {os.fsdecode(directory)}/agent-coord"
    profile = (machine.directory / "p").read_bytes()
    line = b"export PATH=" + os.fsencode(machine.directory) + b'/\\\xc3\\\xa9\\\xff:"$PATH"\n'
    assert profile == b"\n" + MARK + line


# What is refused ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("home", [None, "", "relative"])
def test_without_a_home_both_places_must_be_named(machine: Machine, home: str | None) -> None:
    machine.env = {} if home is None else {"HOME": home}
    hint = "HOME is not an absolute path; set it or pass "
    assert machine.refused() == hint + "--install-dir"
    assert machine.refused("--no-profile") == hint + "--install-dir"
    assert machine.refused("--install-dir", "d") == hint + "--profile"
    assert not (machine.directory / "d").exists(), "nothing is done by half"
    machine.done("--install-dir", "d", "--profile", "p")
    machine.done("--install-dir", "e", "--no-profile")


@pytest.mark.parametrize("option", ["--install-dir", "--profile", "--status-state-root"])
def test_an_empty_path_is_none(machine: Machine, option: str) -> None:
    assert machine.refused(option, "") == f"{option} must not be empty"
    assert list(machine.home.iterdir()) == []


@pytest.mark.parametrize("option", ["--install-dir", "--profile", "--status-state-root"])
def test_a_relative_path_needs_a_working_directory(machine: Machine, option: str) -> None:
    machine.cwd = ""
    assert machine.refused(option, "x") == f"the working directory is gone; pass an absolute path to {option}"
    machine.done(option, str(machine.directory / "x"))


def test_a_directory_that_cannot_be_made(machine: Machine) -> None:
    (machine.home / "file").write_text("x")
    assert str(machine.home / "file") in machine.refused("--install-dir", str(machine.home / "file"))
    assert str(machine.home / "file") in machine.refused("--install-dir", str(machine.home / "file/bin"))
    assert not machine.bashrc.exists()


def test_a_profile_that_is_a_directory(machine: Machine) -> None:
    machine.bashrc.mkdir()
    assert machine.refused() == f"Is a directory: {machine.bashrc}"
