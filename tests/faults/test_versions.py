"""A daemon of the next and of the previous release under commands of this one, while leases are kept."""

import json
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from agentcoord.version import VERSION
from agentcoord.wire import API
from tests.command import PATIENCE
from tests.daemon.running import Daemon, until
from tests.daemon.stage import sleeping
from tests.faults.commands import ITEM, REQUIRED, Machine

SOURCE = Path(__file__).parents[2] / "src"
KEEP = ("claim", "--agent-id", "ana", *ITEM, "--keep", "--ttl", "3")
STATUS = ("status", *ITEM, "--json")


def release(daemon: Daemon, version: str, api: int, changes: Mapping[str, tuple[str, str]]) -> dict[str, str]:
    """Copy the sources, make another release of them, and give the environment in which it is what runs."""
    place = daemon.directory / version
    shutil.copytree(SOURCE, place, ignore=shutil.ignore_patterns("*.egg-info"))
    for name, (before, after) in {
        "agentcoord/version.py": (f'VERSION = "{VERSION}"', f'VERSION = "{version}"'),
        "agentcoord/wire.py": (f"API = {API}", f"API = {api}"),
        **changes,
    }.items():
        text = (place / name).read_text()
        assert text.count(before) == 1, (name, before)
        (place / name).write_text(text.replace(before, after))
    said = subprocess.run(
        [sys.executable, "-m", "agentcoordd", "--version"],
        env={"PYTHONPATH": str(place)},
        capture_output=True,
        text=True,
        check=True,
        timeout=PATIENCE,
    )
    assert said.stdout == f"agentcoordd {version}\n"
    return {"PYTHONPATH": str(place)}


def later(daemon: Daemon, *, api: int = API) -> dict[str, str]:
    """The next release: its roster and its commands say more than ours."""
    return release(
        daemon,
        "99.1.0",
        api,
        {
            "agentcoordd/database.py": (
                "    batch_id: str | None = None\n",
                '    batch_id: str | None = None\n    news: str = ""\n    """Of the next release."""\n',
            ),
            "agentcoordd/services/keeper.py": ("chosen=chosen)", 'chosen=chosen, news="said by the next release")'),
            "agentcoordd/api/messages.py": ('    node: str = ""\n', '    node: str = ""\n    news: str = "none"\n'),
        },
    )


def earlier(daemon: Daemon, *, api: int = API) -> dict[str, str]:
    """The release before: it knows less."""
    return release(
        daemon,
        "0.0.9",
        api,
        {
            "agentcoordd/api/messages.py": ("    umask: Annotated[int, Meta(ge=0, le=0o777)] | None = None\n", ""),
            "agentcoordd/api/commands.py": ("umask=command.umask, ", ""),
        },
    )


def exchanged(daemon: Daemon, number: signal.Signals, env: Mapping[str, str] | None = None) -> None:
    """End the daemon that runs, in order or not, and start another."""
    process = daemon.processes[-1]
    process.send_signal(number)
    process.wait(PATIENCE)
    daemon.start(env=env)


def assert_kept(machine: Machine, pid: int, before: str | None) -> str:
    """Check that the lease is the same, and renewed by the daemon that is there now; gives when that was."""
    until(lambda: machine.beat("ana")["updated_at"] != before)
    lane = machine.lane("ana")
    assert (lane["state"], lane["pid"]) == ("kept", pid)
    return machine.beat("ana")["updated_at"]


def test_a_lease_survives_the_next_and_the_previous_release(daemon: Daemon, machine: Machine) -> None:
    daemon.start()
    with sleeping() as agent:
        kept = machine(*KEEP, "--watch-pid", str(agent.pid), "--json")
        assert kept.exit == 0, kept.err
        fence, at = kept.json()["fence"], None
        for env, version, number in (
            (later(daemon), "99.1.0", signal.SIGTERM),
            (earlier(daemon), "0.0.9", signal.SIGKILL),
            (None, VERSION, signal.SIGKILL),
        ):
            exchanged(daemon, number, env)
            at = assert_kept(machine, agent.pid, at or machine.beat("ana")["updated_at"])
            assert daemon.status()["version"] == version
            # The conversation is the same, so commands are served, and say nothing of it.
            ran = machine(*STATUS, env=REQUIRED)
            assert (ran.exit, ran.err) == (0, "")
            assert machine("verify", *ITEM, "--fence", fence, env=REQUIRED).exit == 0
            assert machine("claim", "--agent-id", "ben", *ITEM, env=REQUIRED).exit == 3
            # What a daemon of another release did not know is kept on, too.
            again = machine(*KEEP, "--watch-pid", str(agent.pid), "--json")
            assert (again.exit, again.json()["fence"]) == (0, fence)
        agent.kill()
        until(lambda: machine.lane("ana")["state"] == "dead")
        until(lambda: machine("claim", "--agent-id", "ben", *ITEM).exit == 0)


@pytest.mark.parametrize("other", [earlier, later])
def test_one_that_talks_in_another_way_is_told_once_and_keeps_what_it_kept(
    daemon: Daemon, machine: Machine, other: Callable[..., dict[str, str]]
) -> None:
    daemon.start()
    with sleeping() as agent:
        assert machine(*KEEP, "--watch-pid", str(agent.pid)).exit == 0
        before = machine.beat("ana")["updated_at"]
        exchanged(daemon, signal.SIGTERM, other(daemon, api=API + (1 if other is later else -1)))
        for argv in (STATUS, ("claim", "--agent-id", "cyd", *ITEM[:2], "--target", "8")):
            ran = machine(*argv)
            assert ran.exit == 0
            assert ran.err == (
                f"notice: the daemon is of a version that does not go with this one ({VERSION}); restart it; "
                "the command runs without it\n"
            )
        assert json.loads(machine(*STATUS).out)["claims"][0]["agent_id"] == "ana"
        required = machine(*STATUS, env=REQUIRED)
        assert (required.exit, required.out) == (2, "")
        assert "restart it" in required.err
        # It renews what this release's daemon was asked to keep, and cannot be asked for more.
        until(lambda: machine.beat("ana")["updated_at"] != before)
        more = machine("heartbeat", "--agent-id", "cyd", "--keep", "--watch-pid", str(agent.pid))
        assert more.exit == 2
        assert "it is written, but nobody keeps it" in more.err
        assert "agent-coord daemon restart" in more.err
        assert machine.beat("cyd")["agent_id"] == "cyd"
        # So it is restarted, as it said, and is one of this release then.
        assert machine("daemon", "restart").exit == 0
        until(lambda: daemon.status()["version"] == VERSION)
        assert_kept(machine, agent.pid, machine.beat("ana")["updated_at"])
        assert machine("daemon", "stop").exit == 0
        assert not daemon.socket.exists()
