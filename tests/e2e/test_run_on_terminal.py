"""`agent-coord run` in an interactive shell: keys go to the command, and the shell stays what it is."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.command import Coord
from tests.e2e.running import ITEM
from tests.terminal import Screen, on_terminal

RUN = f"run {' '.join(ITEM)} --agent-id a1"
WAITS = "python waits"
_WAITS = """
import signal
signal.signal(signal.SIGINT, signal.SIG_DFL)  # a shell may lose one that comes just before it starts a program
print("ready", flush=True)
while True:
    print("got", input(), flush=True)
"""

pytestmark = pytest.mark.skipif(not Path("/bin/bash").exists(), reason="needs bash")


@pytest.fixture
def screen(coord: Coord) -> Iterator[Screen]:
    """An interactive bash that prompts with a word of its own and knows the command."""
    (coord.work / "ac").write_text(f'#!/bin/sh\nexec {sys.executable} -m agentcoord "$@"\n')
    (coord.work / "ac").chmod(0o755)
    (coord.work / "python").symlink_to(sys.executable)
    (coord.work / "waits").write_text(_WAITS)
    env = coord.env | {"PS1": "ready> ", "TERM": "dumb", "PATH": f"{coord.work}:{coord.env['PATH']}"}
    with on_terminal(["/bin/bash", "--norc", "--noprofile", "-i"], env=env, cwd=coord.work) as screen:
        screen.until("ready> ")
        yield screen


def enter(screen: Screen, line: str, until: str) -> None:
    """Type a line, or a key, and wait for what comes of it."""
    screen.seen = b""
    screen.type(line)
    screen.until(until)


def test_a_command_reads_the_terminal_and_ends_with_ctrl_c(coord: Coord, screen: Screen) -> None:
    enter(screen, f"ac {RUN} -- {WAITS}\n", "\r\nready\r\n")
    enter(screen, "hello\n", "got hello\r\n")
    enter(screen, "\x03", "ready> ")
    enter(screen, "echo status $?\n", "status 130\r\n")
    assert "o/r#7 released a1" in coord("status", "--plain").out


def test_a_command_is_stopped_with_ctrl_z_and_goes_on_in_the_foreground(coord: Coord, screen: Screen) -> None:
    enter(screen, f"ac {RUN} -- {WAITS}\n", "\r\nready\r\n")
    enter(screen, "\x1a", "ready> ")
    assert b"Stopped" in screen.seen
    assert "o/r#7 active a1" in coord("status", "--plain").out
    enter(screen, "fg\n", RUN)
    enter(screen, "again\n", "got again\r\n")
    enter(screen, "\x03", "ready> ")


@pytest.mark.parametrize("shell", ["bash", "sh"])
def test_ctrl_c_ends_the_script_as_well(coord: Coord, screen: Screen, shell: str) -> None:
    (coord.work / "script").write_text(f"ac {RUN} -- {WAITS}\necho went on\n")
    enter(screen, f"{shell} script\n", "\r\nready\r\n")
    enter(screen, "\x03", "ready> ")
    assert b"went on" not in screen.seen
    assert "o/r#7 released a1" in coord("status", "--plain").out


def test_in_the_background_it_leaves_the_terminal_alone(coord: Coord, screen: Screen) -> None:
    enter(screen, f"ac {RUN} -- sh -c 'echo beside; sleep 1000' & \n", "beside\r\n")
    enter(screen, "echo typed $((40 + 2))\n", "typed 42\r\n")
    enter(screen, "kill %1; wait %1; echo status $?\n", "status 143\r\n")


def test_the_other_end_of_a_pipeline_may_read_keys(coord: Coord, screen: Screen) -> None:
    pager = "sh -c 'cat; echo mo''re; read key </dev/tty; echo key $key'"
    enter(screen, f"ac {RUN} -- echo out | {pager}\n", "\r\nmore\r\n")
    enter(screen, "q\n", "key q\r\n")


def test_a_command_in_a_pipeline_gets_keys_when_it_asks(coord: Coord, screen: Screen) -> None:
    enter(screen, f"ac {RUN} -- {WAITS} | cat\n", "\r\nready\r\n")
    enter(screen, "hello\n", "got hello\r\n")
    enter(screen, "\x1a", "ready> ")
    enter(screen, "fg\n", RUN)
    enter(screen, "again\n", "got again\r\n")
    enter(screen, "\x03", "ready> ")


def test_a_command_in_the_background_that_asks_for_keys_waits_for_the_foreground(coord: Coord, screen: Screen) -> None:
    enter(screen, f"ac {RUN} -- {WAITS} &\n", "ready\r\n")
    for _ in range(100):
        enter(screen, "jobs\n", "ready> ")
        if b"Stopped" in screen.seen:
            break
    enter(screen, "fg\n", RUN)
    enter(screen, "hello\n", "got hello\r\n")
    enter(screen, "\x03", "ready> ")
