"""What is dropped into the spool in a real sandbox, and what the daemon takes of it."""

import json
import os
import platform
import sys
from collections.abc import Generator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from agentcoord import spool
from agentcoord.protocol.outbox import LateEvent
from agentcoord.settings.selection import Secret
from agentcoord.spool import MOST_FILES, Dropped, Spool
from agentcoord.stores.opening import settle
from tests.daemon.running import Daemon, stopped, until
from tests.faults.commands import ITEM, REQUIRED, Machine
from tests.faults.confined import NUMBERS
from tests.stores.http_server import TOKEN, Server, State

CONFINED = str(Path(__file__).with_name("confined.py"))
EVENT = ("record-event", "--type", "note", "--batch-id", "b")
RECORD = {
    "event_id": "20260101T000000.000000Z-0a1b2c3d",
    "batch_id": "b",
    "type": "note",
    "at": "2026-01-01T00:00:00Z",
}

pytestmark = pytest.mark.skipif(
    sys.platform != "linux" or platform.machine() not in NUMBERS, reason="its system calls are not known here"
)


def within(calls: str) -> list[str]:
    return [sys.executable, CONFINED, calls]


@pytest.fixture(scope="module")
def shared() -> Generator[tuple[Daemon, Server, State]]:
    state, daemon = State(), Daemon()
    try:
        with Server(state).running() as server:
            yield daemon, server, state
    finally:
        daemon.close()


@pytest.fixture
def daemon(shared: tuple[Daemon, Server, State]) -> Daemon:
    return shared[0]


@pytest.fixture
def server(shared: tuple[Daemon, Server, State]) -> Server:
    return shared[1]


@pytest.fixture
def state(shared: tuple[Daemon, Server, State]) -> State:
    shared[2].records.clear()
    return shared[2]


@pytest.fixture
def machine(daemon: Daemon, server: Server) -> Machine:
    machine = Machine(daemon)
    del machine.env["AGENT_COORD_STATE_ROOT"]
    machine.env |= {"AGENT_COORD_API_URL": server.url, "AGENT_COORD_API_TOKEN": TOKEN}
    return machine


@pytest.fixture
def place(daemon: Daemon, machine: Machine) -> Path:
    """The spool of a daemon that runs, and of which nothing is left that another test did."""
    if not daemon.processes or daemon.processes[-1].poll() is not None:
        daemon.start(env=machine.env)
    caller = daemon.call()
    if entries := caller.ask("outbox.list")["result"]["entries"]:
        caller.ask("outbox.drop", {"ids": [entry["id"] for entry in entries]})
    caller.close()
    return daemon.runtime / spool.NAME


def left(place: Path) -> list[str]:
    return sorted(path.name for path in place.iterdir() if path.name != spool.ASIDE)


def drop(place: Path, url: str, record: dict[str, Any], *, token: str = TOKEN) -> None:
    settle(Spool(str(place.parent), url, Secret(token)).put(LateEvent(record)))


def test_what_a_sandbox_lets_nobody_send_is_sent_by_the_daemon(
    daemon: Daemon, machine: Machine, place: Path, state: State
) -> None:
    assert oct(place.stat().st_mode & 0o7777) == "0o700"
    records: list[dict[str, Any]] = []
    for calls in ("connect", "socket", "socket,connect,socketpair"):
        ran = machine(*EVENT, "--json", before=within(calls))
        told = json.loads(ran.out)
        assert (ran.exit, told["queued"]) == (0, True)
        records.append(told["record"])
        refusal, queued = ran.err.splitlines()
        assert f"the daemon's socket {daemon.socket} may not be used here: Operation not permitted" in refusal
        assert f"allow the directory {daemon.runtime} in its settings" in refusal
        assert queued.startswith("notice: queued events/b/")
        assert "peration not permitted" in queued
    beaten = machine("heartbeat", "--agent-id", "ana", before=within("connect"))
    assert (beaten.exit, beaten.out[:21]) == (0, "queued heartbeat ana ")
    until(lambda: len(state.records) == 4)
    assert [state.document(f"events/b/{record['event_id']}.json") for record in records] == records
    until(lambda: left(place) == [])
    assert TOKEN not in daemon.said()


def test_a_claim_is_never_spooled(machine: Machine, place: Path, state: State) -> None:
    closing = ("--lane", "a", "--agent-id", "ana", *ITEM, "--terminal", "done", "--evidence-url", "https://e.example")
    for argv in (
        ("claim", "--agent-id", "ana", *ITEM),
        ("release", "--agent-id", "ana", *ITEM),
        ("record-event", "--batch-id", "b", "--type", "lane_closed", *closing),
        ("heartbeat", "--agent-id", "ana", "--keep"),
    ):
        ran = machine(*argv, before=within("connect"))
        assert (ran.exit, ran.out) == (2, ""), argv
    assert machine(*EVENT, env=REQUIRED, before=within("connect")).exit == 2, "whoever requires a daemon has none"
    assert machine(*EVENT, env={"AGENT_COORD_DAEMON": "off"}, before=within("connect")).exit == 2
    assert left(place) == []
    assert state.records == {}


def test_what_is_dropped_waits_for_a_daemon_that_is_gone_and_is_taken_once(
    daemon: Daemon, machine: Machine, place: Path, state: State
) -> None:
    """The socket stays when a daemon is killed, so nobody in a sandbox can tell."""
    daemon.processes[-1].kill()
    daemon.processes[-1].wait()
    for _ in range(2):
        assert machine(*EVENT, before=within("connect")).out.startswith("queued event b ")
    first, last = left(place)
    for name in (first, last):
        assert oct((place / name).stat().st_mode & 0o7777) == "0o600"
        assert TOKEN.encode() not in (place / name).read_bytes()
    daemon.start(env=machine.env)
    until(lambda: len(state.records) == 2)
    until(lambda: left(place) == [])


def test_a_spool_that_others_could_use_is_not_used(machine: Machine, place: Path, tmp_path: Path) -> None:
    place.chmod(0o755)
    ran = machine(*EVENT, before=within("connect"))
    assert (ran.exit, ran.out) == (2, "")
    assert f"not queued: others can use {place}" in ran.err
    place.chmod(0o700)
    away = place.rename(tmp_path / "away")
    place.symlink_to(away)
    ran = machine(*EVENT, before=within("connect"))
    assert (ran.exit, ran.out) == (2, "")
    assert f"nothing can be dropped into the spool {place}" in ran.err
    assert left(away) == []
    place.unlink()
    away.rename(place)


def test_a_spool_that_is_full_takes_no_more(machine: Machine, daemon: Daemon, place: Path) -> None:
    daemon.processes[-1].kill()
    daemon.processes[-1].wait()
    for number in range(MOST_FILES):
        (place / f"{number:020}-0123456789abcdef.json").touch(mode=0o600)
    ran = machine(*EVENT, before=within("connect"))
    assert (ran.exit, ran.out) == (2, "")
    assert f"not queued: the spool {place} holds {MOST_FILES} files already: is the daemon running?" in ran.err
    for path in place.glob("*.json"):
        path.unlink()


def test_another_token_is_set_aside_with_its_reason(
    daemon: Daemon, server: Server, place: Path, state: State, machine: Machine
) -> None:
    drop(place, server.url, RECORD, token="another")
    until(lambda: daemon.status()["outbox_set_aside"] == 1)
    [entry] = json.loads(machine("outbox", "list", "--json").out)["entries"]
    assert entry["error"] == "whoever dropped it has another token than the daemon"
    assert state.records == {}


def test_what_no_command_dropped_is_put_aside_and_read_nowhere_else(
    daemon: Daemon, server: Server, place: Path, state: State, tmp_path: Path
) -> None:
    good = Dropped(1, server.url, "0" * 32, "", LateEvent(RECORD))
    outside = tmp_path / "outside.json"
    outside.write_bytes(msgspec.json.encode(good))
    outside.chmod(0o600)

    def name(number: int) -> Path:
        return place / f"{number:020}-0123456789abcdef.json"

    with stopped(daemon.processes[-1]):
        name(1).symlink_to(outside)
        os.link(outside, name(2))
        os.mkfifo(name(3), 0o600)
        name(4).mkdir()
        by = {"spool": 1, "url": server.url, "salt": "", "proof": ""}
        contents = {
            5: b"",
            6: b"{}",
            7: b"[" * 100_000,
            8: b"x" * (spool.FILE_BYTES + 1),
            9: msgspec.json.encode(good) + b"x",
            10: msgspec.json.encode(by | {"late": {"kind": "claim", "record": RECORD}}),
            11: msgspec.json.encode(Dropped(1, "https://elsewhere.example", "", "", LateEvent(RECORD))),
            12: msgspec.json.encode(
                Dropped(1, server.url, "", "", LateEvent(RECORD | {"event_id": "lane_closed-0123456789abcdef"}))
            ),
            13: msgspec.json.encode(by | {"late": {"kind": "event", "record": RECORD | {"batch_id": "../../claims"}}}),
        }
        for number, content in contents.items():
            name(number).write_bytes(content)
            name(number).chmod(0o600)
        name(14).write_bytes(msgspec.json.encode(good))
        name(14).chmod(0o644)
        (place / "readme").touch()
        bad = {path.name for path in place.iterdir()} - {spool.ASIDE}
        drop(place, server.url, RECORD)
    until(lambda: len(state.records) == 1)
    until(lambda: left(place) == [])
    assert {path.name for path in (place / spool.ASIDE).iterdir()} == bad
    until(lambda: daemon.status()["outbox"]["used"] == 0)
    assert all(f"put aside {place}/{name}: " in daemon.said() for name in bad)
    assert outside.exists()
