"""The daemon keeps the mirror of what it serves: whoever writes, and beside whoever else syncs."""

import json
import os
import signal
import threading
from collections.abc import Generator
from itertools import count

import pytest

from agentcoord.errors import ConfigError
from agentcoord.files import release_lock, take_lock
from agentcoordd.configuration import load_configuration
from tests.command import PATIENCE
from tests.daemon.remembering import EVENT, command, configure, lay, lay_event, mirror_of, remembered
from tests.daemon.running import Daemon, run, until, words
from tests.stores.http_server import TOKEN, Reply, Server, State, error


@pytest.fixture
def quick(daemon: Daemon) -> Daemon:
    """A daemon that is not running yet: its mirror keeps no test waiting, and for nothing else is a server asked."""
    configure(daemon, mirror={"seconds": 0.05, "remote_seconds": 1}, replica={"on": False})
    return daemon


def test_what_any_program_writes_is_mirrored(quick: Daemon) -> None:
    lay_event(quick.root, "e1")
    quick.start()
    until(lambda: remembered(quick.root) == ["e1"])
    lay_event(quick.root, "e0", at="2026-03-01T10:00:00Z")
    until(lambda: remembered(quick.root) == ["e0", "e1"])
    lay_event(quick.root, "x1", batch="b2", at="2026-03-01T12:00:00Z")
    until(lambda: remembered(quick.root) == ["e0", "e1", "x1"])
    env = {"HOME": str(quick.home)}
    event = ("record-event", "--batch-id", "b1", "--type", "phase.changed", "--repo", "o/r", "--target", "7")
    assert run(quick.call(), words(*event, env=env)).exit == 0
    until(lambda: len(remembered(quick.root)) == 4)
    until(lambda: mirror_of(quick, quick.root)["state"] == "current")
    shown = mirror_of(quick, quick.root)
    assert (shown["added"], shown["error"], shown["root"]) == (4, None, str(quick.root))
    assert shown["synced_at"] is not None
    assert "WARNING" not in quick.said()


def test_what_a_command_shows_of_it(quick: Daemon) -> None:
    lay_event(quick.root, "e1")
    quick.start()
    until(lambda: quick.root.exists() and mirror_of(quick, quick.root)["state"] == "current")
    said = command(quick, "daemon", "status").stdout
    assert f"- backend {quick.root}, root {quick.root}, state current, added 1, synced_at 20" in said
    status = json.loads(command(quick, "daemon", "status", "--json").stdout)
    assert status["daemon"]["mirrors"] == quick.status()["mirrors"]


def test_a_state_root_that_is_not_there_is_not_made(quick: Daemon) -> None:
    quick.start()
    until(lambda: mirror_of(quick, quick.root)["state"] == "absent")
    assert not quick.root.exists()
    lay_event(quick.root, "e1")
    until(lambda: remembered(quick.root) == ["e1"])


def test_a_root_without_events_is_left_as_it_is(quick: Daemon) -> None:
    lay(quick.root, "heartbeats/a1.json", {"agent_id": "a1"})
    other = quick.directory / "other"
    lay_event(other, "e1")
    configure(quick, mirror={"seconds": 0.05}, serve_roots=[str(other)])
    quick.start()
    until(lambda: remembered(other) == ["e1"])
    assert sorted(path.name for path in quick.root.rglob("*")) == ["a1.json", "heartbeats"]
    assert mirror_of(quick, quick.root)["state"] == "current"


def test_a_mirror_that_was_removed_is_written_anew(quick: Daemon) -> None:
    lay_event(quick.root, "e1")
    quick.start()
    until(lambda: mirror_of(quick, quick.root)["state"] == "current")
    (quick.root / "log.tsv").unlink()
    until(lambda: remembered(quick.root) == ["e1"])


def test_somebody_elses_sync_goes_first(quick: Daemon) -> None:
    quick.root.mkdir(parents=True)
    lock = take_lock(str(quick.root / "log.tsv"))
    try:
        lay_event(quick.root, "e1")
        quick.start()
        until(lambda: mirror_of(quick, quick.root)["state"] == "waiting")
        assert remembered(quick.root) == []
        assert mirror_of(quick, quick.root)["error"] is None
    finally:
        release_lock(lock)
    until(lambda: remembered(quick.root) == ["e1"])
    assert "WARNING" not in quick.said()


def test_syncs_of_a_person_beside_the_daemons_leave_each_line_once(quick: Daemon) -> None:
    lay_event(quick.root, "e000")
    quick.start()
    over = threading.Event()

    def sync() -> None:
        while not over.is_set():
            assert command(quick, "log", "--sync").returncode == 0

    person = threading.Thread(target=sync)
    person.start()
    try:
        for number in range(1, 200):
            lay_event(quick.root, f"e{number:03}")
        until(lambda: len(remembered(quick.root)) == 200)
    finally:
        over.set()
        person.join()
    assert remembered(quick.root) == [f"e{number:03}" for number in range(200)]


def test_a_failure_is_said_once_and_shown_until_it_is_over(quick: Daemon) -> None:
    lay_event(quick.root, "e1")
    lay(quick.root, "claims/o/r/7.json", b"{")
    quick.start()
    until(lambda: mirror_of(quick, quick.root)["state"] == "failing")
    why = mirror_of(quick, quick.root)["error"]
    assert why.startswith("refusing to sync an incomplete trail: claims; warning: claims unreadable (")
    lay_event(quick.root, "e2")
    lay(quick.root, "claims/o/r/7.json", {"repo": "o/r"})
    until(lambda: mirror_of(quick, quick.root)["state"] == "current")
    assert remembered(quick.root) == ["e1", "e2"]
    assert mirror_of(quick, quick.root)["error"] is None
    assert quick.said().count("is not mirrored: ") == 1
    assert quick.said().count("is mirrored again") == 1


def test_a_root_whose_name_is_not_utf_8_is_mirrored_and_shown(daemon: Daemon) -> None:
    configure(daemon, mirror={"seconds": 0.05}, gc={"seconds": 1})
    root = daemon.root.with_name(os.fsdecode(b"st\xff"))
    lay_event(root, "e1")
    daemon.start(env={"AGENT_COORD_STATE_ROOT": str(root)})
    until(lambda: remembered(root) == ["e1"])
    shown = command(daemon, "daemon", "status", "--json")
    assert shown.returncode == 0, shown.stderr
    mirrors = json.loads(shown.stdout)["daemon"]["mirrors"]
    assert f"{root.with_name('st')}\ufffd" in [each["root"] for each in mirrors]


def test_it_can_be_switched_off(daemon: Daemon) -> None:
    configure(daemon, mirror={"on": False})
    lay_event(daemon.root, "e1")
    daemon.start()
    assert daemon.status()["mirrors"] == []
    assert command(daemon, "log", "--sync").returncode == 0
    assert sorted(path.name for path in daemon.root.iterdir()) == [".cache", "events", "log.tsv", "log.tsv.lock"]


@pytest.mark.parametrize(
    ("settings", "fault"),
    [
        ({"mirror": {"seconds": 0}}, "mirror.seconds has to be from 0.01 to 31622400 seconds"),
        ({"mirror": {"seconds": 1e-3}}, "mirror.seconds has to be from 0.01 to 31622400 seconds"),
        ({"mirror": {"remote_seconds": -1}}, "mirror.remote_seconds has to be from 1 to 31622400 seconds"),
        ({"mirror": {"remote_seconds": 0.999}}, "mirror.remote_seconds has to be from 1 to 31622400 seconds"),
        ({"mirror": {"seconds": 1e300}}, "mirror.seconds has to be from 0.01 to 31622400 seconds"),
        ({"gc": {"seconds": 1e16}}, "gc.seconds has to be from 1 to 31622400 seconds"),
        ({"gc": {"seconds": 0.001}}, "gc.seconds has to be from 1 to 31622400 seconds"),
        ({"mirror": {"often": True}}, "unknown field `often`"),
        ({"gc": {}}, "missing required field `seconds`"),
        ({"gc": {"seconds": 0}}, "gc.seconds has to be from 1 to 31622400 seconds"),
        ({"gc": {"seconds": 1, "hot_days": -1}}, "gc.hot_days has to be zero days or more"),
    ],
)
def test_settings_that_mean_nothing_are_refused(daemon: Daemon, settings: dict[str, object], fault: str) -> None:
    configure(daemon, **settings)
    with pytest.raises(ConfigError, match=f"config.json.*{fault}"):
        load_configuration(daemon.env, os.geteuid())


def test_a_daemon_killed_again_and_again_leaves_no_half_a_mirror(quick: Daemon) -> None:
    numbers = count()
    for _ in range(8):
        process = quick.start()
        before = len(remembered(quick.root))
        for _ in range(20):
            lay_event(quick.root, f"e{next(numbers):04}")
        until(lambda: len(remembered(quick.root)) > before)  # noqa: B023 - looked at in this turn only
        process.send_signal(signal.SIGKILL)
        process.wait(PATIENCE)
        remembered(quick.root)
    quick.start()
    made = [f"e{number:04}" for number in range(next(numbers))]  # once: to look again is not to count on
    until(lambda: remembered(quick.root) == made)


# -- a server


@pytest.fixture
def state() -> State:
    return State()


@pytest.fixture
def server(state: State) -> Generator[Server]:
    with Server(state).running() as server:
        yield server


def test_a_server_is_mirrored_into_the_status_root(quick: Daemon, state: State, server: Server) -> None:
    status_root = quick.directory / "status"
    status_root.mkdir()
    state.put("events/b1/e1.json", EVENT | {"event_id": "e1", "at": "2026-03-01T11:00:00Z"})
    env = {
        "AGENT_COORD_API_URL": server.url,
        "AGENT_COORD_API_TOKEN": TOKEN,
        "AGENT_COORD_STATUS_STATE_ROOT": str(status_root),
    }
    process = quick.start(env=env)
    until(lambda: remembered(status_root) == ["e1"])
    state.put("events/b1/e2.json", EVENT | {"event_id": "e2", "at": "2026-03-01T12:00:00Z"})
    until(lambda: remembered(status_root) == ["e1", "e2"])
    server.answering = lambda asked: error(503, "down")
    until(lambda: mirror_of(quick, server.url)["state"] == "failing")
    assert "503" in mirror_of(quick, server.url)["error"]
    assert TOKEN not in quick.said() + json.dumps(quick.status())
    process.send_signal(signal.SIGTERM)
    assert process.wait(PATIENCE) == 0


def test_a_server_that_hangs_does_not_hold_up_the_end(quick: Daemon, server: Server) -> None:
    quick.root.mkdir(parents=True)
    server.answering = lambda asked: Reply(hangs=True)
    process = quick.start(env={"AGENT_COORD_API_URL": server.url, "AGENT_COORD_API_TOKEN": TOKEN})
    until(lambda: bool(server.targets("GET")))
    process.send_signal(signal.SIGTERM)
    assert process.wait(PATIENCE) == 0
    assert "is not mirrored" not in quick.said()


def test_a_server_without_a_place_for_its_mirror_is_not_asked(quick: Daemon, server: Server) -> None:
    quick.start(env={"AGENT_COORD_API_URL": server.url, "AGENT_COORD_API_TOKEN": TOKEN})
    until(lambda: mirror_of(quick, server.url)["state"] == "absent")
    assert server.targets("GET") == []
