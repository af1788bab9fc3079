"""A daemon that was stopped and goes on later: what it then does for callers that left is nothing."""

import json
import signal
from base64 import b64encode
from collections.abc import Sequence

import pytest

from agentcoord.files import release_lock, take_lock
from tests.daemon.running import Caller, Daemon, run, stopped, until, words
from tests.faults.commands import ALONE, ITEM, Machine
from tests.stores.http_server import TOKEN, Server, State

CLAIM = ("claim", "--agent-id", "ana", *ITEM)
HELD = ("claim", "--agent-id", "ben", *ITEM[:2], "--target", "8")
CHANGES = [
    CLAIM,
    ("release", "--agent-id", "ben", *ITEM[:2], "--target", "8"),
    ("heartbeat", "--agent-id", "ana"),
    ("record-event", "--batch-id", "spring", "--type", "note", "--message", "hello"),
]


def begin(caller: Caller, env: dict[str, str], *argv: str) -> None:
    """Go as far as to the daemon's word that it takes the command."""
    caller.send(id=1, method="cli.run", params=words(*argv, env=env))
    assert caller.next()["method"] == "accepted"


def leave_it_to_a_stopped_daemon(daemon: Daemon, caller: Caller) -> None:
    """Say that the command is to be done to a daemon that is stopped, give up, and let it go on."""
    process = daemon.processes[-1]
    process.send_signal(signal.SIGSTOP)
    caller.send(method="go", params={"id": 1})
    caller.close()
    process.send_signal(signal.SIGCONT)
    until(lambda: daemon.status()["commands"]["used"] == 0)


def contents(machine: Machine) -> dict[str, bytes]:
    files = [path for path in sorted(machine.root.rglob("*.json")) if path.is_file()]
    return {str(path.relative_to(machine.root)): path.read_bytes() for path in files}


@pytest.mark.parametrize("argv", CHANGES, ids=lambda argv: argv[0])
def test_nothing_is_written_for_a_caller_that_left(daemon: Daemon, machine: Machine, argv: Sequence[str]) -> None:
    daemon.start()
    env = {"HOME": str(daemon.home)}
    assert run(daemon.call(), words(*HELD, env=env)).exit == 0
    before = contents(machine)
    for _ in range(3):
        caller = Caller(daemon.socket)
        begin(caller, env, *argv)
        leave_it_to_a_stopped_daemon(daemon, caller)
    assert contents(machine) == before
    assert run(daemon.call(), words(*argv, env=env)).exit == 0
    assert contents(machine) != before


def test_a_lease_that_was_given_back_meanwhile_is_not_taken_again(daemon: Daemon, machine: Machine) -> None:
    daemon.start()
    caller = daemon.call()
    begin(caller, {"HOME": str(daemon.home)}, *CLAIM)
    process = daemon.processes[-1]
    process.send_signal(signal.SIGSTOP)
    caller.send(method="go", params={"id": 1})
    caller.close()
    daemon.callers.clear()
    assert machine(*CLAIM, env=ALONE).exit == 0
    assert machine("release", "--agent-id", "ana", *ITEM, env=ALONE).exit == 0
    process.send_signal(signal.SIGCONT)
    until(lambda: daemon.status()["commands"]["used"] == 0)
    assert machine.claim()["status"] == "released"


LATER = "2026-03-01T13:00:00.000000Z"
MANIFEST = {"batch_id": "spring", "lanes": [{"name": "worker", "owner": "ana", "targets": ["7"]}]}


@pytest.mark.parametrize("end", ["cancel", "leave", "leave a stopped daemon"])
def test_a_command_that_waited_for_a_lock_writes_nothing_for_nobody(daemon: Daemon, machine: Machine, end: str) -> None:
    process = daemon.start()
    env = {"HOME": str(daemon.home)}
    caller = Caller(daemon.socket)
    assert run(caller, words(*CLAIM, env=env)).exit == 0
    before = contents(machine)
    lock = take_lock(str(machine.root / "claims/acme/widgets/7.json"))
    caller.send(id=1, method="cli.run", params=words(*CLAIM, env=env, now=LATER))
    assert caller.next()["method"] == "accepted"
    caller.send(method="go", params={"id": 1})
    assert caller.next()["method"] == "working"
    if end == "cancel":
        caller.send(method="cancel", params={"id": 1})
        assert caller.answer()["error"]["code"] == -32003
        daemon.callers.append(caller)
    elif end == "leave":
        caller.close()
        until(lambda: daemon.status()["connections"]["used"] == 1)
    else:
        process.send_signal(signal.SIGSTOP)
        caller.close()
    release_lock(lock)
    process.send_signal(signal.SIGCONT)
    until(lambda: daemon.status()["commands"]["used"] == 0)
    assert contents(machine) == before
    assert run(daemon.call(), words(*CLAIM, env=env, now=LATER)).exit == 0
    assert contents(machine) != before


def test_a_command_that_waited_for_a_file_writes_nothing_for_nobody(daemon: Daemon, machine: Machine) -> None:
    process = daemon.start()
    caller = Caller(daemon.socket)
    begin(caller, {"HOME": str(daemon.home)}, "register-batch", "--file", "/batch.json")
    caller.send(method="go", params={"id": 1})
    assert caller.next()["method"] == "read"
    process.send_signal(signal.SIGSTOP)
    data = b64encode(json.dumps(MANIFEST).encode()).decode()
    caller.send(method="content", params={"id": 1, "read": 1, "data": data})
    caller.close()
    process.send_signal(signal.SIGCONT)
    until(lambda: daemon.status()["commands"]["used"] == 0)
    assert contents(machine) == {}


def test_commands_do_not_wait_for_a_daemon_that_is_stopped(daemon: Daemon, machine: Machine) -> None:
    process = daemon.start()
    with stopped(process):
        ran = machine(*CLAIM)
        assert (ran.exit, ran.err) == (
            0,
            "notice: the daemon did not answer within 2 s; the command runs without it\n",
        )
        at = machine.claim()["claimed_at"]
    until(lambda: daemon.status()["commands"]["used"] == 0)
    assert (machine.claim()["claimed_at"], machine(*CLAIM).err) == (at, "")


def test_nothing_is_sent_to_a_server_either(daemon: Daemon) -> None:
    state = State()
    with Server(state).running() as server:
        env = {"HOME": str(daemon.home), "AGENT_COORD_API_URL": server.url, "AGENT_COORD_API_TOKEN": TOKEN}
        daemon.start(env=env)
        caller = Caller(daemon.socket)
        begin(caller, env, *CLAIM)
        leave_it_to_a_stopped_daemon(daemon, caller)
        assert server.targets("PUT") == []
        assert run(daemon.call(), words(*CLAIM, env=env)).exit == 0
        assert server.targets("PUT") != []
