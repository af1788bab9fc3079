"""A backend that hangs: who asks for a lease to be kept there gets an answer in time, and nobody else waits for it."""

import sys
from collections.abc import Generator

import pytest

from agentcoord.files import release_lock, take_lock
from tests.command import PATIENCE
from tests.daemon.running import Caller, Daemon, until
from tests.daemon.stage import sleeping
from tests.faults.commands import ALONE, Machine, hold
from tests.stores.http_server import TOKEN, Reply, Server, State

HASTY = """\
import sys
import agentcoordd.services.keeper as keeper
import agentcoordd.api.records as records
keeper.HOLD_SECONDS = records.ANSWER_SECONDS = 0.5
from agentcoordd.__main__ import main
sys.exit(main())
"""
"""The daemon, but sooner at the end of its patience."""


STUCK = """\
import sys, threading
import agentcoordd.services.attention as attention
from agentcoordd.stamps import Tree
attention._FIRST = 0.1
Tree.look = lambda tree, closed=None: threading.Event().wait()
from agentcoordd.__main__ import main
sys.exit(main())
"""
"""The daemon, on a disk that never answers when it is looked at."""


@pytest.fixture(autouse=True)
def _hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.daemon.running.COMMAND", [sys.executable, "-c", HASTY, "run"])


@pytest.fixture
def agent() -> Generator[int]:
    with sleeping() as process:
        yield process.pid


def test_a_server_that_hangs_keeps_nobody_waiting(daemon: Daemon, machine: Machine, agent: int) -> None:
    with Server(State()).running() as server:
        server.answering = lambda asked: Reply(hangs=True)
        env = {"AGENT_COORD_API_URL": server.url, "AGENT_COORD_API_TOKEN": TOKEN}
        daemon.start(env=env)
        asked = [daemon.call() for _ in range(20)]  # more than are asked of one backend at a time
        params = {"backend": {"kind": "http", "url": server.url}, "kinds": ["heartbeat"], "ttl": 3600, "pid": agent}
        for number, caller in enumerate(asked):
            caller.send(id=1, method="lease.hold", params=params | {"agent_id": f"a{number}"})
        for caller in asked:
            assert caller.answer()["error"]["message"] == f"not kept: no answer of {server.url} within 0.5 s"
        assert machine.lanes() == []
        machine.hold("other", pid=agent, ttl=60, claim=False)
        # The command says so, too.
        del machine.env["AGENT_COORD_STATE_ROOT"]
        words = ("lease", "hold", "--agent-id", "ana", "--watch-pid", str(agent))
        ran = machine(*words, env=env)
        assert (ran.exit, ran.err) == (
            2,
            f"the daemon refused lease.hold: not kept: no answer of {server.url} within 0.5 s\n",
        )
        daemon.close_callers()


def test_files_that_hang_keep_nobody_waiting_and_are_not_written_later(
    daemon: Daemon, machine: Machine, agent: int
) -> None:
    other = daemon.directory / "other"
    daemon.start("--serve-any-root")
    assert machine("heartbeat", "--agent-id", "ana", env=ALONE).exit == 0
    lock = take_lock(str(machine.root / "heartbeats/dan.json"))
    try:
        asked = [daemon.call() for _ in range(8)]  # twice as many as there are threads for one root
        for caller in asked:
            params = {"backend": {"kind": "local", "root": str(machine.root)}, "agent_id": "dan"}
            caller.send(id=1, method="lease.hold", params=params | {"kinds": ["heartbeat"], "ttl": 60, "pid": agent})
        for caller in asked:
            assert caller.answer()["error"]["message"] == f"not kept: no answer of {machine.root} within 0.5 s"
        caller = Caller(daemon.socket)
        daemon.callers.append(caller)
        refused = hold(caller, machine.root, "ben", pid=agent, ttl=60, claim=False)
        assert refused["error"]["message"] == f"state root does not answer: {machine.root}"
        assert hold(caller, other, "ben", pid=agent, ttl=60, claim=False)["result"]
        assert machine.lane("ben")["state"] == "kept"
        assert (other / "heartbeats/ben.json").exists()
    finally:
        release_lock(lock)

    def holds() -> bool:
        return "result" in hold(caller, machine.root, "cyd", pid=agent, ttl=60, claim=False)

    until(holds)  # as soon as the threads are back
    assert not (machine.root / "heartbeats/dan.json").exists()


def test_a_root_that_does_not_answer_holds_up_neither_the_start_nor_the_end(
    daemon: Daemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tests.daemon.running.COMMAND", [sys.executable, "-c", STUCK, "run"])
    process = daemon.start()
    process.terminate()
    assert process.wait(PATIENCE) == 0
    assert daemon.said().splitlines()[-1].endswith("a state root does not answer; what was to be read of it is left")


def test_a_request_on_files_that_hang_is_given_up_and_changes_nothing_later(daemon: Daemon) -> None:
    daemon.start()
    record = daemon.root / "claims/o/r/7.json"
    record.parent.mkdir(parents=True)
    params = {"backend": {"kind": "local", "root": str(daemon.root)}, "agent_id": "ana", "repo": "o/r", "target": "7"}
    lock = take_lock(str(record))
    try:
        refused = daemon.call().ask("claim.acquire", params)["error"]
        assert refused["message"] == "given up: the backend did not answer within 0.5 s"
        assert refused["data"] == {"exit": 2}
    finally:
        release_lock(lock)
    until(lambda: daemon.status()["commands"]["used"] == 0)
    assert not record.exists()
    assert daemon.call().ask("claim.acquire", params)["result"]["record"]["agent_id"] == "ana"
