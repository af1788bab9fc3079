"""`watch` on a real terminal: what is seen, what keys do, and that the terminal is as before whatever ended it."""

import os
import signal
import socket
import sys
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.command import PATIENCE, Coord
from tests.daemon.conftest import daemon as daemon  # noqa: PLC0414 - a fixture
from tests.daemon.remembering import command, lay
from tests.daemon.running import Daemon
from tests.e2e.running import CLAIM
from tests.emulator import Emulator
from tests.stores.http_server import TOKEN
from tests.terminal import Screen, on_terminal

WATCH = (sys.executable, "-m", "agentcoord", "watch", "--interval", "1")
TERMINAL = {"TERM": "xterm-256color"}


class Looker:
    """A person in front of a terminal."""

    def __init__(self, screen: Screen, columns: int) -> None:
        self.screen = screen
        self.emulator = Emulator(columns, 50)
        self._seen = 0

    def lines(self) -> list[str]:
        self.emulator.print(self.screen.seen[self._seen :])
        self._seen = len(self.screen.seen)
        assert not self.emulator.overflowed
        return self.emulator.lines()

    def has_resized(self, columns: int, lines: int) -> None:
        self.screen.seen, self._seen = b"", 0
        self.emulator = Emulator(columns, lines)
        self.emulator.alternate = True
        self.screen.resize(columns, lines)

    def sees(self, *texts: str) -> None:
        """Look until all of these are on the screen at once."""
        self.looks_until(lambda lines: all(any(text in line for line in lines) for text in texts))

    def looks_until(self, holds: Callable[[Sequence[str]], bool]) -> None:
        self.screen.until_it(lambda: holds(self.lines()))

    def presses(self, keys: str, *texts: str) -> None:
        self.screen.type(keys)
        self.sees(*texts)

    def leaves(self, status: int) -> None:
        """Wait for the end, and look at what it left: the old screen, a cursor, and nothing on it."""
        assert self.screen.finished()[0] == status
        self.screen.seen = self.screen.seen.replace(b"\n", b"\r\n")
        self.lines()
        assert (self.emulator.alternate, self.emulator.cursor) == (False, True)


@contextmanager
def looking(
    coord: Coord, *options: str, columns: int = 100, env: Mapping[str, str] | None = None, argv: Sequence[str] = WATCH
) -> Generator[Looker]:
    chosen = coord.env | TERMINAL | dict(env or {})
    with on_terminal([*argv, *options], env=chosen, cwd=coord.work, columns=columns) as screen:
        yield Looker(screen, columns)


@pytest.fixture
def fleet(coord: Coord) -> Coord:
    """One claim with a holder, and one whose holder has long been gone."""
    lay(coord.state, "claims/o/r/7.json", {"agent_id": "a1", "status": "active", "expires_at": "2999-01-01T00:00:00Z"})
    lay(coord.state, "claims/o/s/8.json", {"agent_id": "a2", "status": "active", "expires_at": "2026-01-01T00:00:00Z"})
    beat = {"agent_id": "a2", "updated_at": "2025-12-31T00:00:00Z", "expires_at": "2025-12-31T01:00:00Z"}
    lay(coord.state, "heartbeats/a2.json", beat | {"machine_id": "m9"})
    return coord


def test_what_there_is_and_what_comes_is_seen(fleet: Coord) -> None:
    with looking(fleet) as person:
        person.sees("looking every 1 s: no daemon", "claims  2", "? never heard  o/r#7", "○ dead         o/s#8")
        assert fleet("heartbeat", "--agent-id", "a1", "--repo", "o/r", "--target", "7").exit == 0
        person.sees("● live  o/r#7")
        person.screen.type("q")
        person.leaves(0)


def test_a_filter_is_typed_and_cleared(fleet: Coord) -> None:
    with looking(fleet) as person:
        person.sees("claims  2")
        person.presses("rO/S", "claims  1 of 2", "repo: O/S")
        person.presses("\r", "only repo O/S")
        person.presses("m", "machine: ")
        person.presses("9", "machine: 9", "claims  1 of 2")
        person.presses("x\x7f\x7f8", "machine: 8", "claims  0 of 2")
        person.presses("\x1b", "claims  1 of 2", "only repo O/S")
        person.presses("bq", "batch: q", "claims  0 of 2")  # a letter, and not the end
        person.presses("\r\x1b", "claims  2", "q quit")
        person.screen.type("q")
        person.leaves(0)


def test_an_option_filters_from_the_start(fleet: Coord) -> None:
    with looking(fleet, "--repo", "o/s") as person:
        person.sees("claims  1 of 2", "only repo o/s")
        person.screen.type("q")
        person.leaves(0)


def test_tables_are_scrolled_and_changed_with_keys(coord: Coord) -> None:
    for number in range(100):
        lay(coord.state, f"claims/o/r/{number:03}.json", {"agent_id": "a1"})
        lay(coord.state, f"events/b1/{number:03}.json", {"at": f"2026-01-01T12:{number % 60:02}:00Z", "message": "x"})
    with looking(coord) as person:
        person.sees("▸ claims  100", "o/r#000")
        person.presses("\x1b[B", "1 above, ")
        person.presses("\x1b[6~\x1b[F", "o/r#099")
        person.presses("\x1b[5~\x1bOH", "o/r#000")
        person.presses("\t\t", "▸ trail  100")
        person.presses("\x1b[Z", "▸ lanes  0")
        person.screen.type("q")
        person.leaves(0)


@pytest.mark.parametrize(
    ("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129), (signal.SIGQUIT, 131)]
)
def test_a_signal_ends_it_and_the_terminal_is_as_before(fleet: Coord, number: int, status: int) -> None:
    with looking(fleet) as person:
        before = person.screen.modes()
        person.sees("claims  2")
        assert person.screen.modes() != before
        person.screen.process.send_signal(number)
        person.leaves(status)
        assert person.screen.modes() == before


def test_the_end_of_the_input_ends_it(fleet: Coord) -> None:
    with looking(fleet) as person:
        before = person.screen.modes()
        person.sees("claims  2")
        person.screen.type("\x04")
        person.leaves(0)
        assert person.screen.modes() == before


def test_a_window_that_is_closed_ends_it(fleet: Coord) -> None:
    with looking(fleet) as person:
        person.sees("claims  2")
        person.screen.hang_up()
        assert person.screen.process.wait(PATIENCE) == 0


def test_a_fault_of_ours_leaves_the_terminal_as_it_was(fleet: Coord) -> None:
    program = (
        "import sys; from agentcoord import __main__ as main; from agentcoord.cli import viewing\n"
        "def broken(*given): raise KeyError('frame')\n"
        "viewing.frame = broken; sys.argv[1:] = ['watch']; main.main()"
    )
    with looking(fleet, argv=(sys.executable, "-c", program)) as person:
        before = person.screen.modes()
        person.leaves(2)
        assert person.screen.modes() == before
        assert b"internal error at " in person.screen.seen.rpartition(b"\x1b[?1049l")[2]


def test_a_terminal_that_takes_nothing_holds_up_no_end(fleet: Coord) -> None:
    with looking(fleet) as person:
        person.sees("claims  2")
        for _ in range(200):  # each makes a whole frame, which soon has no room any more
            person.screen.process.send_signal(signal.SIGWINCH)
        person.screen.process.send_signal(signal.SIGTERM)
        assert person.screen.process.wait(PATIENCE) == 143


def test_a_backend_that_hangs_holds_up_neither_keys_nor_the_end(coord: Coord) -> None:
    with socket.socket() as deaf:
        deaf.bind(("127.0.0.1", 0))
        deaf.listen()
        url = f"http://127.0.0.1:{deaf.getsockname()[1]}"
        with looking(coord, "--api-url", url, env={"AGENT_COORD_API_TOKEN": TOKEN}) as person:
            person.sees("claims  0  reading…", url)
            person.presses("rx", "repo: x")
            person.screen.type("\rq")
            person.leaves(0)


def test_another_size_is_filled(fleet: Coord) -> None:
    with looking(fleet, columns=60) as person:
        person.sees("claims  2")
        person.has_resized(100, 12)
        person.looks_until(lambda lines: lines[-1].startswith("q quit") and "claims  2" in "".join(lines))
        person.screen.type("q")
        person.leaves(0)


@pytest.mark.parametrize("columns", [20, 33, 34, 64, 300])
def test_it_fits_any_width(fleet: Coord, columns: int) -> None:
    with looking(fleet, columns=columns) as person:
        person.sees("claims  2", "o/s#8")
        person.screen.type("q")
        person.leaves(0)


@pytest.mark.parametrize(("env", "coloured"), [({}, True), ({"NO_COLOR": "1"}, False)])
def test_colour_can_be_declined(fleet: Coord, env: Mapping[str, str], coloured: bool) -> None:
    with looking(fleet, env=env) as person:
        person.sees("claims  2")
        assert (person.emulator.styles - {"0"} != set()) is coloured
        person.screen.type("q")
        person.leaves(0)


def test_what_records_hold_moves_no_cursor(coord: Coord) -> None:
    lay(coord.state, "claims/o/r/7.json", {"agent_id": "\x1b[2J\x07a\u202e1\r\n", "branch": "\x9b31m", "status": "x"})
    with looking(coord, columns=120) as person:
        person.sees("claims  1", "�[2J�a1")
        person.screen.type("q")
        person.leaves(0)


@pytest.mark.parametrize(
    ("env", "said"), [({"TERM": "dumb"}, b"TERM says dumb; --json prints lines"), ({"TERM": ""}, b"--interval")]
)
def test_a_terminal_that_cannot_show_it_is_refused(coord: Coord, env: Mapping[str, str], said: bytes) -> None:
    options = () if env["TERM"] else ("--interval", "0")
    with looking(coord, *options, env=env) as person:
        status, printed = person.screen.finished()
    assert status == 1
    assert printed.count(b"\n") == 1
    assert said in printed


def test_the_daemon_goes_and_comes(daemon: Daemon) -> None:
    process = daemon.start()
    with on_terminal(WATCH, env=daemon.env | TERMINAL, cwd=daemon.directory, columns=100) as screen:
        person = Looker(screen, 100)
        person.sees("● the daemon tells of changes", "claims  0")
        assert command(daemon, *CLAIM).returncode == 0
        person.sees("claims  1", "? never heard  o/r#7")
        process.kill()
        process.wait()
        person.sees("○ looking every 1 s: ")
        daemon.start()
        person.sees("● the daemon tells of changes")
        screen.type("q")
        person.leaves(0)


# In a shell that has the terminal ------------------------------------------------------------------------


@pytest.fixture
def shell(fleet: Coord) -> Generator[Screen]:
    """An interactive bash that prompts with a word of its own."""
    if not Path("/bin/bash").exists():
        pytest.skip("needs bash")
    (fleet.work / "ac").write_text(f'#!/bin/sh\nexec {" ".join(WATCH)} "$@"\n')
    (fleet.work / "ac").chmod(0o755)
    env = fleet.env | TERMINAL | {"PS1": "ready> ", "PATH": f"{fleet.work}:{os.defpath}"}
    with on_terminal(["/bin/bash", "--norc", "--noprofile", "--noediting", "-i"], env=env, cwd=fleet.work) as screen:
        screen.until("ready> ")
        yield screen


def enter(screen: Screen, keys: str, until: str) -> None:
    screen.seen = b""
    screen.type(keys)
    screen.until(until)


def test_ctrl_c_ends_it(shell: Screen) -> None:
    before = shell.modes()
    enter(shell, "ac\n", "claims")
    enter(shell, "\x03", "ready> ")
    enter(shell, "echo status $?\n", "status 130\r\n")
    assert shell.modes() == before


def test_ctrl_z_gives_the_terminal_back_for_a_while(shell: Screen) -> None:
    before = shell.modes()
    enter(shell, "ac\n", "claims")
    enter(shell, "\x1a", "ready> ")
    assert b"\x1b[?1049l" in shell.seen
    assert b"\x1b[?25h" in shell.seen
    assert shell.modes() == before
    enter(shell, "echo typed $((40 + 2))\n", "typed 42\r\n")
    enter(shell, "fg\n", "\x1b[?1049h")
    shell.until("claims")
    enter(shell, "q", "ready> ")
    enter(shell, "echo status $?\n", "status 0\r\n")
    assert shell.modes() == before


def test_in_the_background_it_leaves_the_terminal_alone_and_takes_it_when_it_comes_back(shell: Screen) -> None:
    before = shell.modes()
    enter(shell, "ac\n", "claims")
    enter(shell, "\x1a", "ready> ")
    enter(shell, "bg\n", "ready> ")
    enter(shell, "echo typed $((40 + 2))\n", "typed 42\r\n")
    assert shell.modes() == before
    enter(shell, "fg\n", "\x1b[?1049h")
    shell.until("claims")
    enter(shell, "q", "ready> ")
    enter(shell, "echo status $?\n", "status 0\r\n")
    assert shell.modes() == before


def test_what_is_started_in_the_background_is_shown_once_it_is_in_front(shell: Screen) -> None:
    before = shell.modes()
    enter(shell, "ac &\n", "ready> ")
    enter(shell, "fg\n", "\x1b[?1049h")
    shell.until("claims")
    enter(shell, "q", "ready> ")
    enter(shell, "echo status $?\n", "status 0\r\n")
    assert shell.modes() == before


def test_what_is_stopped_ends_at_a_signal_without_being_looked_at_again(shell: Screen) -> None:
    enter(shell, "ac\n", "claims")
    enter(shell, "\x1a", "ready> ")
    # bash may not have heard yet that the job goes on, and would not wait for one that is stopped
    gone = "p=$(jobs -p %1); kill %1; while kill -0 $p 2>&-; do :; done"
    enter(shell, f"{gone}; wait $p; echo status $?\n", "status 143\r\n")
    assert b"\x1b[?1049h" not in shell.seen
