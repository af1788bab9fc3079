"""Commands and daemons in a sandbox whose kernel refuses sockets: told from "no daemon", and never a traceback."""

import platform
import subprocess
import sys
from collections.abc import Generator
from pathlib import Path

import pytest

from tests.command import PATIENCE, assert_presentable
from tests.daemon.running import Daemon
from tests.daemon.stage import sleeping
from tests.faults.commands import ALONE, ITEM, REQUIRED, Machine
from tests.faults.confined import NUMBERS
from tests.stores.http_server import TOKEN, Server, State

CONFINED = str(Path(__file__).with_name("confined.py"))
CLAIM = ("claim", "--agent-id", "ana", *ITEM)
REFUSED = (
    "import socket\n"
    "try:\n socket.socket(socket.AF_UNIX).connect('/nothing')\n"
    "except OSError as error:\n print(type(error).__name__)\n"
)


def within(calls: str) -> list[str]:
    return [sys.executable, CONFINED, calls]


@pytest.fixture(autouse=True, scope="module")
def _filters() -> None:
    """Look whether this kernel filters at all, and whether what the tests stand on really refuses."""
    if sys.platform != "linux" or platform.machine() not in NUMBERS:
        pytest.skip("the numbers of its system calls are not known here")
    for calls in ("connect", "socket"):
        ran = subprocess.run(
            [*within(calls), sys.executable, "-c", REFUSED],
            capture_output=True,
            text=True,
            check=False,
            timeout=PATIENCE,
        )
        if ran.returncode:
            pytest.skip(f"no filters of system calls here: {ran.stderr.splitlines()[-1]}")
        assert ran.stdout == "PermissionError\n"


@pytest.mark.parametrize("calls", ["connect", "socket", "socket,connect,socketpair"])
def test_a_daemon_that_may_not_be_asked_is_no_missing_daemon(daemon: Daemon, machine: Machine, calls: str) -> None:
    daemon.start()
    for argv in (CLAIM, ("status", *ITEM)):
        ran = machine(*argv, before=within(calls))
        assert ran.exit == 0
        assert ran.err == (
            f"notice: the daemon's socket {daemon.socket} may not be used here: Operation not permitted; "
            f"if this is a sandbox, allow the directory {daemon.runtime} in its settings; the command runs without it\n"
        )
        assert "ana" in ran.out
        required = machine(*argv, env=REQUIRED, before=within(calls))
        assert (required.exit, required.out) == (2, "")
        assert "may not be used here" in required.err
    assert daemon.status()["requests"] == 1, "nothing came through"


@pytest.mark.parametrize("calls", ["connect", "socket"])
def test_what_needs_the_daemon_says_what_refused(daemon: Daemon, machine: Machine, calls: str) -> None:
    daemon.start()
    with sleeping() as agent:
        kept = machine(*CLAIM, "--keep", "--watch-pid", str(agent.pid), before=within(calls))
    assert kept.exit == 2
    assert kept.out.startswith("claimed acme/widgets#7 by ana")
    for line in (kept.err, machine("lease", "list", before=within(calls)).err):
        assert "this process may not connect to the daemon (operation not permitted), as in a sandbox" in line
        assert f"allow Unix sockets in the directory {daemon.runtime} in its settings" in line
        assert line.count("\n") == 1
    status = machine("daemon", "status", before=within(calls))
    assert (status.exit, "running: no" in status.out) == (2, False)
    assert len(daemon.processes) == 1
    assert machine.lanes() == []


@pytest.fixture
def server() -> Generator[Server]:
    with Server(State()).running() as server:
        yield server


@pytest.mark.parametrize("calls", ["connect", "socket", "socketpair"])
def test_a_server_that_may_not_be_asked_is_named_and_nothing_is_guessed(
    machine: Machine, server: Server, calls: str
) -> None:
    env = ALONE | {"AGENT_COORD_API_URL": server.url, "AGENT_COORD_API_TOKEN": TOKEN}
    del machine.env["AGENT_COORD_STATE_ROOT"]
    ran = machine(*CLAIM, env=env, before=within(calls))
    assert (ran.exit, ran.out) == (2, "")
    assert ran.err.count("\n") == 1
    assert "peration not permitted" in ran.err
    assert server.asked == []
    assert machine(*CLAIM, env=env).exit == 0


@pytest.mark.parametrize("calls", ["socket", "socketpair"])
def test_a_daemon_that_may_have_no_sockets_says_so(daemon: Daemon, calls: str) -> None:
    """The second are those with which an event loop wakes itself."""
    process = daemon.launch(before=within(calls))
    assert process.wait(PATIENCE) == 2
    assert_presentable(daemon.said())
    assert daemon.said().count("\n") == 1
    assert "peration not permitted" in daemon.said()
    daemon.start()
    assert daemon.status()["errors"] == []


def test_a_daemon_that_may_not_connect_serves_all_the_same(daemon: Daemon, machine: Machine) -> None:
    daemon.start(before=within("connect"))
    assert machine(*CLAIM, env=REQUIRED).exit == 0
