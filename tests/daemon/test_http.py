"""Commands of callers on a remote backend: waited for in the daemon's loop, with the caller's own token."""

import os
from collections.abc import Generator
from pathlib import Path

import pytest

from agentcoord.files import release_lock, take_lock
from tests.daemon.remembering import configure
from tests.daemon.running import Daemon, run, until, words
from tests.stores.http_server import TOKEN, Reply, Server, State

CLAIM = ("claim", "--agent-id", "a1", "--repo", "o/r", "--target", "7")


@pytest.fixture
def state() -> State:
    return State()


@pytest.fixture
def server(daemon: Daemon, state: State) -> Generator[Server]:
    configure(daemon, mirror={"on": False}, replica={"on": False})  # it asks for its callers only
    with Server(state).running() as server:
        daemon.start(env={"AGENT_COORD_API_URL": server.url, "AGENT_COORD_API_TOKEN": "t0ken-of-the-daemon"})
        yield server
        daemon.close_callers()


@pytest.fixture
def env(daemon: Daemon, server: Server) -> dict[str, str]:
    return {"HOME": str(daemon.home), "AGENT_COORD_API_URL": server.url, "AGENT_COORD_API_TOKEN": TOKEN}


def test_a_lease_is_taken_and_refused(daemon: Daemon, state: State, env: dict[str, str]) -> None:
    caller = daemon.call()
    ran = run(caller, words(*CLAIM, env=env))
    assert (ran.exit, ran.stdout, ran.stderr) == (0, "claimed o/r#7 by a1 until 2026-03-01T16:00:00Z\n", "")
    assert set(state.records) == {"claims/o/r/7.json"}
    assert run(caller, words("claim", "--agent-id", "a2", *CLAIM[3:], env=env)).exit == 3
    assert TOKEN not in daemon.said()


def test_the_token_of_the_daemon_is_not_its_callers(daemon: Daemon, server: Server, env: dict[str, str]) -> None:
    del env["AGENT_COORD_API_TOKEN"]
    ran = run(daemon.call(), words(*CLAIM, env=env))
    assert (ran.exit, ran.stdout) == (2, "")
    assert "AGENT_COORD_API_TOKEN is required" in ran.stderr
    assert server.targets("GET") == server.targets("PUT") == []


def test_others_are_served_while_a_backend_hangs_and_the_command_can_be_cancelled(
    daemon: Daemon, server: Server, env: dict[str, str]
) -> None:
    server.answering = lambda asked: Reply(hangs=True)
    caller = daemon.call()
    caller.send(id=1, method="cli.run", params=words(*CLAIM, env=env))
    assert caller.next()["method"] == "accepted"
    caller.send(method="go", params={"id": 1})
    assert caller.next()["method"] == "working"
    assert daemon.status()["commands"]["used"] == 1
    caller.send(method="cancel", params={"id": 1})
    assert caller.answer()["error"]["code"] == -32003
    until(lambda: daemon.status()["commands"]["used"] == 0)


def test_others_are_served_while_a_command_waits_for_the_lock_of_a_mirror(daemon: Daemon, env: dict[str, str]) -> None:
    mirror = daemon.root / "log.tsv"
    daemon.root.mkdir(parents=True)
    held = take_lock(str(mirror))
    try:
        caller = daemon.call()
        params = words("log", "--sync", env=env | {"AGENT_COORD_STATUS_STATE_ROOT": str(daemon.root)})
        caller.send(id=1, method="cli.run", params=params)
        assert caller.next()["method"] == "accepted"
        caller.send(method="go", params={"id": 1})
        descriptors = Path(f"/proc/{daemon.processes[0].pid}/fd")
        until(lambda: f"{mirror}.lock" in [os.readlink(found) for found in descriptors.iterdir()])
        caller.send(id=2, method="daemon.status", params={})
        frames = [caller.next()]
        while frames[-1].get("id") != 2:
            frames.append(caller.next())
        assert [frame["id"] for frame in frames if "id" in frame] == [2]
        assert frames[-1]["result"]["commands"]["used"] == 1
    finally:
        release_lock(held)
    assert caller.answer()["result"]["exit"] == 0
