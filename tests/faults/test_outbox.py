"""The outbox with real commands, a real daemon that is killed at every step of a delivery, and servers that fail."""

import json
import resource
import sqlite3
import threading
from collections.abc import Generator
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pytest

from tests.command import PATIENCE, Answer
from tests.daemon.running import Daemon, until
from tests.daemon.stage import sleeping
from tests.faults.commands import ITEM, REQUIRED, Machine
from tests.stores.http_server import TOKEN, Asked, Reply, Server, State, error, reply

PORTAL = b"<html><body>Please accept our terms</body></html>"
EVENT = ("record-event", "--type", "note", "--batch-id")


class Backend:
    """A state server that counts what it takes, and that a test cuts off."""

    def __init__(self) -> None:
        self.state = State()
        self.server = Server(self.answer)
        self.outage: Reply | None = None
        self.taken: list[str] = []

    def answer(self, asked: Asked) -> Reply:
        return self.outage or self.take(asked)

    def take(self, asked: Asked) -> Reply:
        before = dict(self.state.records)
        answer = self.state(asked)
        self.taken += [path for path, stored in self.state.records.items() if before.get(path) != stored]
        return answer


@pytest.fixture
def backend() -> Generator[Backend]:
    backend = Backend()
    with backend.server.running():
        yield backend


@pytest.fixture
def machine(daemon: Daemon, backend: Backend) -> Machine:
    return _machine(daemon, backend)


def _machine(daemon: Daemon, backend: Backend) -> Machine:
    machine = Machine(daemon)
    del machine.env["AGENT_COORD_STATE_ROOT"]
    machine.env |= REQUIRED | {"AGENT_COORD_API_URL": backend.server.url, "AGENT_COORD_API_TOKEN": TOKEN}
    return machine


@pytest.fixture(scope="module")
def running() -> Generator[tuple[Machine, Backend]]:
    """A daemon that no test of this file ends, and its server."""
    backend, daemon = Backend(), Daemon()
    try:
        with backend.server.running():
            machine = _machine(daemon, backend)
            start(machine)
            yield machine, backend
    finally:
        daemon.close()


@pytest.fixture
def fleet(running: tuple[Machine, Backend]) -> tuple[Machine, Backend]:
    """The same, with nothing in the outbox and nothing on the server."""
    machine, backend = running
    caller = machine.daemon.call()
    if left := [entry["id"] for entry in caller.ask("outbox.list")["result"]["entries"]]:
        caller.ask("outbox.drop", {"ids": left})
    caller.close()
    backend.outage, backend.server.answering = None, backend.answer
    backend.state.records.clear()
    backend.taken.clear()
    return machine, backend


def start(machine: Machine) -> None:
    machine.daemon.start(env=machine.env)


def listed(machine: Machine) -> list[dict[str, Any]]:
    return json.loads(machine("outbox", "list", "--json").out)["entries"]


def empty(machine: Machine) -> bool:
    """Look without a process for each look."""
    return machine.daemon.status()["outbox"]["used"] == 0


def path_of(answer: Answer) -> str:
    """Name the record of an event that was said to be queued."""
    assert (answer.exit, answer.out[:13]) == (0, "queued event "), answer
    _, _, batch, name = answer.out.split()
    return f"events/{batch}/{name}.json"


NO_ANSWER = {
    "500": error(500, "oops"),
    "503": error(503, "unavailable"),
    "429": reply(429, {"error": "slow_down"}, "Retry-After: 1"),
    "portal": reply(200, PORTAL),
    "redirect": reply(302, PORTAL, "Location: http://portal.invalid/"),
    "gateway": reply(502, PORTAL),
    "reset": Reply(resets=True),
    "closed": Reply(closes=True),
    "truncated": Reply(b"HTTP/1.1 201 Created\r\nContent-Length: 99\r\n\r\n{", closes=True),
}


def test_what_is_neither_yes_nor_no_is_queued_and_arrives_once_and_in_order(fleet: tuple[Machine, Backend]) -> None:
    machine, backend = fleet
    events: dict[str, list[str]] = {}
    for name, outage in NO_ANSWER.items():
        backend.outage = outage
        events[name] = [path_of(machine(*EVENT, name)), path_of(machine(*EVENT, name))]
        beaten = machine("heartbeat", "--agent-id", name, "--json")
        assert (beaten.exit, json.loads(beaten.out)["queued"]) == (0, True)
        assert beaten.err.count("\n") == 1
    assert backend.taken == []
    assert {entry["state"] for entry in listed(machine)} == {"waiting"}
    backend.outage = None
    until(lambda: empty(machine))
    for paths in events.values():
        assert [path for path in backend.taken if path in paths] == paths
    beats = {f"heartbeats/{name}.json" for name in NO_ANSWER}
    paths = [path for two in events.values() for path in two]
    assert sorted(backend.taken) == sorted([*paths, *beats]), "each of them once"


def test_a_server_that_is_gone_and_comes_back(daemon: Daemon, machine: Machine) -> None:
    with Server(State()).running() as gone:
        url = gone.url
    machine.env["AGENT_COORD_API_URL"] = url
    start(machine)
    queued = machine("record-event", "--batch-id", "b", "--type", "note", "--json")
    assert (queued.exit, json.loads(queued.out)["queued"]) == (0, True)
    assert "Connection refused" in queued.err
    assert machine("claim", "--agent-id", "ana", *ITEM).exit == 2
    assert daemon.status()["outbox"]["used"] == 1


def test_a_clear_no_stays_an_error(fleet: tuple[Machine, Backend]) -> None:
    machine, backend = fleet
    for status in (400, 401, 403, 404):
        backend.outage = error(status, "no")
        for argv in ((*EVENT, "b"), ("heartbeat", "--agent-id", "ana")):
            ran = machine(*argv)
            assert (ran.exit, ran.out) == (2, "")
    assert empty(machine)


def test_what_decides_is_never_queued(fleet: tuple[Machine, Backend]) -> None:
    machine, backend = fleet
    assert machine("claim", "--agent-id", "ana", *ITEM, "--batch-id", "b").exit == 0
    backend.outage = error(503, "unavailable")
    closing = ("--lane", "a", "--agent-id", "ana", *ITEM, "--terminal", "done", "--evidence-url", "https://e.example")
    for argv in (
        ("claim", "--agent-id", "ana", "--repo", "o/r", "--target", "8"),
        ("release", "--agent-id", "ana", *ITEM),
        ("record-event", "--batch-id", "b", "--type", "lane_closed", *closing),
        ("attention-resolve", "--workspace", "w", "--repo", "o/r", "--attention-id", "a", "--source-generation", "1"),
    ):
        ran = machine(*argv)
        assert (ran.exit, ran.out) == (2, ""), ran
    assert empty(machine)


def test_kept_heartbeats_are_not_queued(fleet: tuple[Machine, Backend]) -> None:
    """Whoever asks for a renewal is told that there is none; a queue would renew nothing."""
    machine, backend = fleet
    backend.outage = error(503, "unavailable")
    with sleeping() as agent:
        ran = machine("heartbeat", "--agent-id", "ana", "--keep", "--watch-pid", str(agent.pid))
    assert (ran.exit, ran.out) == (2, "")
    assert empty(machine)
    assert machine.lanes() == []


def test_another_token_than_the_daemons_is_not_sent_for(fleet: tuple[Machine, Backend]) -> None:
    machine, backend = fleet
    backend.outage = error(503, "unavailable")
    ran = machine(*EVENT, "b", env={"AGENT_COORD_API_TOKEN": "another"})
    assert (ran.exit, ran.out) == (2, "")
    assert "not queued: the outbox sends with the daemon's own token, and this command has another one" in ran.err
    path_of(machine(*EVENT, "b"))
    backend.outage = error(401, "unknown_token")
    assert machine(*EVENT, "b", env={"AGENT_COORD_API_TOKEN": "another"}).exit == 2, "it has no place in that queue"
    assert machine.daemon.status()["outbox"]["used"] == 1


def test_over_the_socket_it_is_the_same(fleet: tuple[Machine, Backend]) -> None:
    machine, backend = fleet
    backend.outage = error(503, "unavailable")
    caller = machine.daemon.call()
    told = caller.ask("event.record", {"batch_id": "b", "type": "note"})["result"]
    assert told["queued"] is True
    assert told["notices"]
    assert caller.ask("heartbeat.beat", {"agent_id": "ana"})["result"]["queued"] is True
    assert caller.ask("claim.acquire", {"agent_id": "a", "repo": "o/r", "target": "1"})["error"]["data"]["exit"] == 2
    backend.outage = None
    backend.server.answering = lambda asked: error(503, "no") if "/events" in asked.target else backend.take(asked)
    claimed = caller.ask("claim.acquire", {"agent_id": "a", "repo": "o/r", "target": "1", "batch_id": "b"})["result"]
    assert "claim.acquired event not recorded" in claimed["notices"][0], "as the command says it"
    backend.taken.remove("claims/o/r/1.json")
    backend.server.answering = backend.answer
    until(lambda: empty(machine))
    assert sorted(backend.taken) == [f"events/b/{told['record']['event_id']}.json", "heartbeats/ana.json"]


# Killed at each step -----------------------------------------------------------------------------------


def database_of(daemon: Daemon) -> Path:
    return daemon.home / ".local/state/agentcoordd/daemon.db"


@pytest.mark.parametrize("step", ["before it is sent", "when it is sent", "when it is taken", "when that is told"])
@pytest.mark.parametrize("kind", ["event", "heartbeat"])
def test_a_daemon_that_is_killed_at_any_step_doubles_and_loses_nothing(
    machine: Machine, backend: Backend, step: str, kind: str
) -> None:
    start(machine)
    caller = machine.daemon.call()
    caller.ask("heartbeat.beat", {"agent_id": "ana", "batch_id": "b", "phase": "one"})
    backend.taken.clear()
    backend.outage = error(503, "unavailable")
    asked: list[tuple[str, dict[str, object]]] = [("event.record", {"batch_id": "b", "type": "note"})] * 2
    if kind == "heartbeat":
        asked = [("heartbeat.beat", {"agent_id": "ana", "phase": phase}) for phase in ("two", "three")]
    queued = [caller.ask(method, params)["result"] for method, params in asked]
    assert [told["queued"] for told in queued] == [True, True]
    reached = threading.Event()
    locks: list[sqlite3.Connection] = []

    def answer(asked: Asked) -> Reply:
        if asked.method != "PUT":
            return backend.take(asked)
        if step == "when it is sent":
            reached.set()
            return Reply(hangs=True)
        answered = backend.take(asked)
        if step == "when that is told":  # what the daemon then wants to forget, it cannot
            locks.append(sqlite3.connect(database_of(machine.daemon), isolation_level=None, check_same_thread=False))
            locks[0].execute("BEGIN IMMEDIATE")
        reached.set()
        return Reply(hangs=True) if step == "when it is taken" else answered

    if step != "before it is sent":
        backend.server.answering = answer
        caller.send(id=2, method="outbox.retry", params={"ids": [1]})  # it may have to wait for the lock
        assert reached.wait(PATIENCE)
    machine.daemon.processes[-1].kill()
    machine.daemon.processes[-1].wait()
    for lock in locks:
        assert lock.execute("SELECT count(*) FROM outbox").fetchone() == (2,)
        lock.close()
    backend.outage, backend.server.answering = None, backend.answer
    start(machine)
    until(lambda: empty(machine))
    if kind == "event":
        assert backend.taken == [f"events/b/{told['record']['event_id']}.json" for told in queued]
        return
    assert [path for path in backend.taken if path == "heartbeats/ana.json"] == ["heartbeats/ana.json"] * 2
    changes = [
        json.loads(data)["message"]
        for path, (data, _) in sorted(backend.state.records.items())
        if path.startswith("events/b/")
    ]
    assert changes == ["phase one -> two", "phase two -> three"]
    assert len(backend.taken) == 4


# What a person sees and does -------------------------------------------------------------------------


def test_what_was_refused_is_shown_and_can_be_retried_and_dropped(fleet: tuple[Machine, Backend]) -> None:
    machine, backend = fleet
    backend.outage = error(503, "unavailable")
    first, second, third = [path_of(machine(*EVENT, "b")) for _ in range(3)]

    def answer(asked: Asked) -> Reply:
        refused = asked.method == "PUT" and unquote(asked.target).endswith((first, second))
        return error(403, "forbidden") if refused else backend.take(asked)

    backend.outage, backend.server.answering = None, answer
    until(lambda: machine.daemon.status()["outbox_set_aside"] == 2 and backend.taken == [third])
    said = machine("outbox", "list")
    assert (said.exit, said.err) == (0, "")
    line, _ = said.out.splitlines()
    [entry, other] = listed(machine)
    assert set(entry) == {"id", "kind", "path", "backend", "queued_at", "age", "attempts", "error", "state"}
    assert (entry["kind"], entry["state"]) == ("event", "set_aside")
    assert line.startswith(f"{entry['id']} set aside event {first}; for {backend.server.url}; queued 20")
    assert line.endswith(f"last error: http backend write {first} failed: 403 forbidden")
    wrong = machine("outbox", "drop", str(entry["id"]), "777777")
    assert (wrong.exit, wrong.out) == (1, "")
    assert wrong.err == "the outbox has no entry 777777: agent-coord outbox list shows what it has\n"
    dropped = machine("outbox", "drop", str(entry["id"]))
    assert (dropped.exit, dropped.out) == (0, f"dropped {entry['id']} event {first}\n")
    backend.server.answering = backend.answer
    retried = machine("outbox", "retry", "--all")
    assert (retried.exit, retried.out) == (0, f"retried {other['id']} event {second}\n")
    until(lambda: empty(machine))
    assert backend.taken == [third, second]
    assert machine("outbox", "list").out == "nothing waits\n"
    assert machine("outbox", "retry", "--all").out == "nothing was set aside\n"


@pytest.mark.parametrize("argv", [("retry",), ("retry", "1", "--all"), ("drop",), ("drop", "x"), ("drop", "0"), ()])
def test_a_wrong_word_is_said(machine: Machine, argv: tuple[str, ...]) -> None:
    ran = machine("outbox", *argv)
    assert (ran.exit, ran.out) == (1, "")
    assert ran.err.count("\n") == 1


def test_without_a_daemon_nobody_knows(machine: Machine) -> None:
    ran = machine("outbox", "list")
    assert (ran.exit, ran.out) == (2, "")
    assert "no daemon listens at" in ran.err


# The disk ----------------------------------------------------------------------------------------------


def test_a_full_disk_is_said_and_loses_nothing(fleet: tuple[Machine, Backend]) -> None:
    machine, backend = fleet
    backend.outage = error(503, "unavailable")
    first = path_of(machine(*EVENT, "b"))
    pid = machine.daemon.processes[-1].pid
    limits = resource.prlimit(pid, resource.RLIMIT_FSIZE)
    resource.prlimit(pid, resource.RLIMIT_FSIZE, (0, limits[1]))
    try:
        ran = machine(*EVENT, "b")
    finally:
        resource.prlimit(pid, resource.RLIMIT_FSIZE, limits)
    assert (ran.exit, ran.out) == (2, "")
    assert "daemon database cannot be used now" in ran.err
    last = path_of(machine(*EVENT, "b"))
    backend.outage = None
    until(lambda: empty(machine))
    assert backend.taken == [first, last]


def test_a_damaged_database_is_left_as_it_is(daemon: Daemon, machine: Machine, backend: Backend) -> None:
    start(machine)
    backend.outage = error(503, "unavailable")
    path_of(machine(*EVENT, "b"))
    daemon.processes[-1].kill()
    daemon.processes[-1].wait()
    path = database_of(daemon)
    path.write_bytes(b"broken" * 1000)
    path.with_name("daemon.db-wal").unlink()
    assert "move it away" in daemon.refused(env=machine.env)
    assert path.read_bytes() == b"broken" * 1000
