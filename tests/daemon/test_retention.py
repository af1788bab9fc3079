"""Retention by a schedule: off unless it is asked for, and never before the mirror has what it drops."""

import json
from collections.abc import Generator

import pytest

from agentcoord.protocol.documents import Document
from tests.daemon.remembering import EVENT, command, configure, lay, lay_event, remembered
from tests.daemon.running import Daemon, until
from tests.stores.http_server import TOKEN, Server, State

OLD = "2026-01-01T00:0{}:00Z"
CLOSED = {
    **EVENT,
    "schema_version": 2,
    "event_id": "e9",
    "type": "lane_closed",
    "lane": "qa",
    "terminal": "done",
    "workspace": "default",
    "closed_by": {"agent_id": "a1", "machine": "m1"},
    "at": OLD.format(9),
}
TOLD = ["e0", "e1", "e2", "e9"]


def records() -> dict[str, Document]:
    """A lane that was closed long ago; compaction keeps its first and last event only."""
    made = {
        f"events/b1/e{number}.json": {**EVENT, "event_id": f"e{number}", "at": OLD.format(number)}
        for number in range(3)
    }
    return made | {"events/b1/e9.json": CLOSED}


def lay_lane(daemon: Daemon) -> None:
    for path, record in records().items():
        lay(daemon.root, path, record)


def rounds(daemon: Daemon) -> dict[str, object]:
    (found,) = daemon.status()["retention"]
    return found


def hot(daemon: Daemon) -> list[str]:
    return sorted(path.stem for path in (daemon.root / "events").rglob("*.json"))


def test_nothing_is_removed_unasked(daemon: Daemon) -> None:
    configure(daemon, mirror={"seconds": 0.05})
    lay_lane(daemon)
    daemon.start()
    until(lambda: remembered(daemon.root) == TOLD)
    assert daemon.status()["retention"] == []
    assert hot(daemon) == TOLD


def test_a_round_mirrors_and_then_drops(daemon: Daemon) -> None:
    configure(daemon, mirror={"on": False}, gc={"seconds": 1})
    lay_lane(daemon)
    lay_event(daemon.root, "new", lane="qa", at="2099-01-01T00:00:00Z", batch="b2")
    daemon.start()
    until(lambda: hot(daemon) == ["new"])
    assert remembered(daemon.root) == [*TOLD, "new"]
    until(lambda: rounds(daemon)["rounds"] not in (0, 1))
    shown = rounds(daemon)
    assert (shown["backend"], shown["actions"], shown["error"]) == (str(daemon.root), 1, None)
    assert "retention" in command(daemon, "daemon", "status").stdout
    trail = json.loads(command(daemon, "log", "--json").stdout)
    assert [row["event_id"] for row in trail["events"]] == ["e0", "e9", "new"]


def test_the_windows_are_those_of_the_settings(daemon: Daemon) -> None:
    configure(daemon, gc={"seconds": 1, "hot_days": 100_000})
    lay_lane(daemon)
    daemon.start()
    until(lambda: rounds(daemon)["rounds"] not in (0, 1))
    assert hot(daemon) == TOLD


def test_nothing_is_dropped_while_the_sync_refuses(daemon: Daemon) -> None:
    configure(daemon, gc={"seconds": 1})
    lay_lane(daemon)
    lay(daemon.root, "archive/batches/b0.json", {"record_family": "archived_record", "delete_after": OLD.format(0)})
    lay(
        daemon.root,
        "archive/events/b1/bad.json",
        {"record_family": "archived_record", "delete_after": "2099-01-01T00:00:00Z"},
    )
    daemon.start()
    until(lambda: rounds(daemon)["error"] is not None)
    assert str(rounds(daemon)["error"]).startswith("refusing to sync an incomplete trail: archive/events; warning: ")
    assert rounds(daemon)["rounds"] == 0
    assert hot(daemon) == TOLD
    assert (daemon.root / "archive/batches/b0.json").exists()
    (daemon.root / "archive/events/b1/bad.json").unlink()
    until(lambda: hot(daemon) == [])
    assert remembered(daemon.root) == TOLD


def test_a_state_root_that_is_not_there_is_not_made(daemon: Daemon) -> None:
    configure(daemon, gc={"seconds": 1})
    daemon.start()
    due = rounds(daemon)["next_round"]
    until(lambda: rounds(daemon)["next_round"] != due)
    assert not daemon.root.exists()
    assert rounds(daemon)["error"] is None


# -- a server


@pytest.fixture
def state() -> State:
    return State()


@pytest.fixture
def server(state: State) -> Generator[Server]:
    with Server(state).running() as server:
        yield server


@pytest.mark.parametrize("remote", [False, True])
def test_a_server_is_kept_small_only_on_request(daemon: Daemon, state: State, server: Server, remote: bool) -> None:
    # Without a mirror and a replica, whatever a server is asked is asked by retention.
    settings = {"mirror": {"remote_seconds": None}, "replica": {"on": False}}
    configure(daemon, **settings, gc={"seconds": 1, "remote": remote})
    daemon.root.mkdir(parents=True)
    for path, record in records().items():
        state.put(path, record)
    daemon.start(env={"AGENT_COORD_API_URL": server.url, "AGENT_COORD_API_TOKEN": TOKEN})
    if remote:
        until(lambda: not any(path.startswith("events/") for path in state.records))
        assert remembered(daemon.root) == TOLD
    else:
        until(lambda: rounds(daemon)["rounds"] not in (0, 1))
        assert server.targets("GET") == []
