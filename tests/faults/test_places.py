"""Directories and files that the daemon may not write, or whose contents are not what they should be."""

import os
import shutil
import sqlite3
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from agentcoord.wire import socket_path
from agentcoordd.database import SCHEMA
from tests.command import PATIENCE, assert_presentable
from tests.daemon.running import COMMAND, Daemon, until
from tests.daemon.stage import sleeping
from tests.faults.commands import ITEM, REQUIRED, Machine

CLAIM = ("claim", "--agent-id", "ana", *ITEM)
NOBODY = 54321


@pytest.fixture
def somebody(daemon: Daemon) -> Sequence[str]:
    """What runs a program as a user to whom files can be closed, who owns all that the test has."""
    if os.geteuid() != 0:
        return []
    become = ["setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups"]
    try:
        subprocess.run([*become, *COMMAND, "--help"], check=True, capture_output=True, timeout=PATIENCE)
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("another user cannot run this Python, and nothing is closed to root")
    for place in (daemon.directory, daemon.home):
        os.chown(place, NOBODY, NOBODY)
    return become


def refused(daemon: Daemon, before: Sequence[str]) -> str:
    """Start a daemon that has to end with one line, and give it."""
    said = len(daemon.said())
    assert daemon.launch(before=before).wait(PATIENCE) == 2
    line = daemon.said()[said:]
    assert_presentable(line)
    assert line.count("\n") == 1, line
    return line


def assert_works_without(machine: Machine, before: Sequence[str], why: str) -> None:
    """Check that commands do what they can without a daemon, and that what needs one says why there is none."""
    ran = machine(*CLAIM, before=before)
    assert (ran.exit, ran.err) == (0, "")
    kept = machine(*CLAIM[:-1], "8", "--keep", "--watch-pid", str(os.getpid()), before=before)
    assert kept.exit == 2
    assert kept.out.startswith("claimed acme/widgets#8 by ana")
    assert kept.err.startswith("it is written, but nobody keeps it: ")
    assert why in kept.err
    assert kept.err.count("\n") == 1


@pytest.mark.parametrize("there", [True, False], ids=["unwritable", "not to be made"])
def test_a_runtime_directory_that_may_not_be_written(
    daemon: Daemon, machine: Machine, somebody: Sequence[str], there: bool
) -> None:
    if there:
        daemon.runtime.mkdir()
        os.chown(daemon.runtime, NOBODY, NOBODY) if somebody else None
        daemon.runtime.chmod(0o500)
    else:
        daemon.directory.chmod(0o500)
    try:
        line = refused(daemon, somebody)
        assert str(daemon.runtime) in line
        assert "permission denied" in line
        assert_works_without(machine, somebody, str(daemon.runtime))
    finally:
        for closed in (daemon.directory, daemon.runtime):
            if closed.exists():
                closed.chmod(0o700)


def read_only(place: Path) -> Sequence[str]:
    """What runs a program to which a directory is on a disk that nobody can write, root included."""
    script = 'mount --bind "$0" "$0" && mount -o remount,bind,ro "$0" && exec "$@"'
    before = ["unshare", "--mount", "sh", "-c", script, str(place)]
    if (
        shutil.which("unshare") is None
        or subprocess.run([*before, "true"], capture_output=True, check=False).returncode
    ):
        pytest.skip("needs a namespace of its own for mounts")
    return before


@pytest.mark.parametrize("began", [False, True], ids=["new", "used before"])
def test_a_home_that_may_only_be_read(daemon: Daemon, machine: Machine, began: bool) -> None:
    if began:
        process = daemon.start()
        process.terminate()
        assert process.wait(PATIENCE) == 0
    state = daemon.home / ".local/state/agentcoordd"
    found = sorted(path.name for path in state.glob("*"))
    machine.root = daemon.directory / "records"
    machine.env |= {"AGENT_COORD_STATE_ROOT": str(machine.root)}
    before = read_only(daemon.home)
    line = refused(daemon, before)
    assert str(state) in line
    assert "read-only file system" in line or "readonly database" in line
    assert_works_without(machine, before, str(state))
    assert sorted(path.name for path in state.glob("*")) == found
    # With a place of its own for what it writes it needs nothing of the home.
    elsewhere = {"XDG_STATE_HOME": str(daemon.directory / "elsewhere"), "AGENT_COORD_STATE_ROOT": str(machine.root)}
    daemon.start(before=before, env=elsewhere)
    ran = machine(*CLAIM, before=before, env=REQUIRED | elsewhere)
    assert (ran.exit, ran.err) == (0, "")


def newer(path: Path) -> str:
    with sqlite3.connect(path) as connection:
        connection.execute(f"PRAGMA user_version = {SCHEMA + 1}")
    connection.close()
    return "of a newer release"


def cut_short(path: Path) -> str:
    os.truncate(path, path.stat().st_size // 2)
    return "move it away and start again"


def garbage(path: Path) -> str:
    path.write_bytes(b"what somebody's editor saved here" * 300)
    return "not a database"


def no_file(path: Path) -> str:
    path.unlink()
    path.mkdir()
    return "is a directory"


def link(path: Path) -> str:
    path.rename(path.with_name("elsewhere"))
    path.symlink_to("elsewhere")
    return "too many levels of symbolic links"


@pytest.mark.parametrize("spoil", [newer, cut_short, garbage, no_file, link], ids=lambda spoil: spoil.__name__)
def test_a_roster_that_cannot_be_trusted_is_refused_and_stays(
    daemon: Daemon, machine: Machine, spoil: Callable[[Path], str]
) -> None:
    process = daemon.start()
    with sleeping() as agent:
        assert machine(*CLAIM, "--keep", "--watch-pid", str(agent.pid)).exit == 0
        process.terminate()
        assert process.wait(PATIENCE) == 0
        path = daemon.home / ".local/state/agentcoordd/daemon.db"
        why = spoil(path)
        before, line = path.read_bytes() if path.is_file() else None, ""
        for _ in range(2):
            line = daemon.refused()
            assert str(path) in line
            assert why in line.lower()
        assert (path.read_bytes() if path.is_file() else None) == before
        assert not daemon.socket.exists()
        assert_works_without(machine, [], f"the daemon did not start: {line.strip()}")
        # As it says: moved away, it is kept, and the daemon begins anew.
        path.rename(path.with_name("aside"))
        daemon.start()
        assert machine.lanes() == []
        assert machine(*CLAIM, "--keep", "--watch-pid", str(agent.pid)).exit == 0
        assert machine.lane("ana")["state"] == "kept"


def test_a_roster_that_is_removed_underneath_costs_no_lease_that_is_kept(daemon: Daemon, machine: Machine) -> None:
    process = daemon.start()
    with sleeping() as agent:
        assert machine(*CLAIM, "--ttl", "4", "--keep", "--watch-pid", str(agent.pid)).exit == 0
        for name in ("daemon.db", "daemon.db-wal", "daemon.db-shm"):
            (daemon.home / ".local/state/agentcoordd" / name).unlink(missing_ok=True)
        for _ in range(2):
            before = machine.beat("ana")["updated_at"]
            until(lambda before=before: machine.beat("ana")["updated_at"] > before)
        agent.kill()
        until(lambda: machine.lane("ana")["state"] == "dead")
    assert process.poll() is None


def test_a_runtime_directory_with_too_long_a_name_is_stood_for_by_the_same_short_one(
    daemon: Daemon, machine: Machine
) -> None:
    long = {"AGENT_COORD_RUNTIME_DIR": str(daemon.directory / ("long" * 30))}
    short = Path(socket_path(long["AGENT_COORD_RUNTIME_DIR"], os.geteuid())).parent
    try:
        daemon.start(env=long)
        ran = machine(*CLAIM, env=long | REQUIRED)
        assert (ran.exit, ran.err) == (0, "")
        status = machine("daemon", "status", env=long)
        assert (status.exit, str(short) in status.out) == (0, True)
        assert machine("daemon", "stop", env=long).exit == 0
    finally:
        shutil.rmtree(short)
