"""Frames that are malformed, huge, slow or many: each costs its sender at most the connection."""

import asyncio
import json
import socket
from collections.abc import Generator
from time import monotonic

import anyio
import pytest

from agentcoord.version import VERSION
from agentcoord.wire import FRAME_BYTES
from agentcoordd.api import connections
from agentcoordd.api.administration import MOST_CONNECTIONS
from agentcoordd.api.connections import FRAME_SECONDS, MOST_REQUESTS
from agentcoordd.api.messages import About
from tests.command import PATIENCE
from tests.daemon.hosting import hosted
from tests.daemon.running import Caller, Daemon, hurried, stopped, words


@pytest.fixture
def caller(shared: Daemon) -> Generator[Caller]:
    caller = Caller(shared.socket)
    yield caller
    caller.close()
    other = Caller(shared.socket)
    assert other.ask("hello")["result"], "the daemon is still there for others"
    other.close()


def test_hello_says_who_answers(shared: Daemon, caller: Caller) -> None:
    result = caller.ask("hello", {"version": "0", "api": 1})["result"]
    assert (result["version"], result["api"]) == (VERSION, 1)
    assert result["pid"] == shared.processes[0].pid
    assert {"hello", "cli.run", "subscribe", "daemon.status", "daemon.stop"} <= set(result["features"])


def test_anyone_can_try_it_in_one_go(caller: Caller) -> None:
    caller.raw(b'{"jsonrpc":"2.0","id":1,"method":"hello","params":{}}\n')
    caller.socket.shutdown(socket.SHUT_WR)
    assert caller.answer()["result"]["api"] == 1
    assert caller.next() == {}


@pytest.mark.parametrize(
    "garbage",
    [b"x\n", b"{\n", b'{"id":1\n', b"\xff\xfe\n", b"\x00\n", b"GET / HTTP/1.1\r\n\r\n", b"[" * 5000 + b"\n", b"nul\n"],
    ids=range(8),
)
def test_garbage_is_answered_once_and_ends_the_connection(caller: Caller, garbage: bytes) -> None:
    caller.raw(garbage + b'{"jsonrpc":"2.0","id":1,"method":"hello"}\n')
    answer = caller.next()
    assert (answer["id"], answer["error"]["code"]) == (None, -32700)
    assert caller.ended()


@pytest.mark.parametrize(
    "frame", [b"1", b"null", b"[]", b'"hello"', b"{}", b'{"method":"hello","id":{}}', b'{"jsonrpc":"1.0","id":true}']
)
def test_json_that_is_no_request_ends_the_connection_too(caller: Caller, frame: bytes) -> None:
    caller.raw(frame + b"\n")
    assert caller.next()["error"]["code"] == -32600
    assert caller.ended()


def test_a_request_that_is_wrong_in_itself_is_answered_and_the_next_one_served(caller: Caller) -> None:
    caller.raw(b'{"jsonrpc":"1.0","id":1,"method":"hello"}\n')
    assert caller.answer()["error"]["code"] == -32600
    assert caller.ask("no.such", id=2)["error"] == {"code": -32601, "message": "unknown method: no.such"}
    assert caller.ask("hello", {"api": "one"}, id=3)["error"]["code"] == -32602
    assert caller.ask("hello", [1], id=4)["error"]["code"] == -32602
    assert caller.ask("subscribe", {"topics": ["no.such"]}, id=5)["error"]["code"] == -32602
    assert caller.ask("hello", {"of": "the future"}, id="six")["result"]["api"] == 1


def test_notifications_are_never_answered(caller: Caller) -> None:
    caller.send(method="hello", params={})
    caller.send(method="no.such", params={})
    caller.send(method="go", params={"id": 99})
    caller.send(method="cancel", params={"id": 99})
    caller.send(method="content", params={"id": 99, "read": 1})
    caller.raw(b"\n  \n")
    assert caller.ask("hello", id=2)["id"] == 2


def test_a_huge_frame_is_turned_down_before_it_is_whole(caller: Caller) -> None:
    try:
        for _ in range(5):
            caller.raw(b"x" * (FRAME_BYTES // 4))
    except (BrokenPipeError, ConnectionResetError):
        pass
    assert caller.ended()


def test_a_frame_of_the_largest_size_is_taken(caller: Caller) -> None:
    frame = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "hello", "params": {"version": ""}}).encode()
    caller.raw(frame.replace(b'""', b'"' + b"v" * (FRAME_BYTES - len(frame) - 1) + b'"') + b"\n")
    assert caller.answer()["result"]["api"] == 1


def test_a_frame_may_come_byte_by_byte_and_frames_many_at_once(caller: Caller) -> None:
    for byte in b'{"jsonrpc":"2.0","id":1,"method":"hello"}\n':
        caller.raw(bytes([byte]))
    assert caller.answer()["result"]
    caller.raw(b"".join(b'{"id":%d,"method":"hello"}\n' % number for number in range(300)) + b'{"id":300,"method"')
    assert [caller.next()["id"] for _ in range(300)] == list(range(300))
    caller.raw(b':"hello"}\n')
    assert caller.answer(300)["result"]


def test_requests_of_one_connection_run_side_by_side_up_to_a_limit(shared: Daemon, caller: Caller) -> None:
    params = words("status", env={"HOME": str(shared.home)})
    for number in range(MOST_REQUESTS):
        caller.send(id=number, method="cli.run", params=params)
    accepted = {caller.next()["params"]["id"] for _ in range(MOST_REQUESTS)}
    assert accepted == set(range(MOST_REQUESTS))
    caller.send(id="more", method="cli.run", params=params)
    assert "16 requests" in caller.answer("more")["error"]["message"]
    caller.send(id=3, method="cli.run", params=params)
    assert "still running" in caller.answer(3)["error"]["message"]
    assert caller.ask("hello", id="meanwhile")["result"]
    for number in range(MOST_REQUESTS):
        caller.send(method="cancel", params={"id": number})
    assert {caller.next()["error"]["code"] for _ in range(MOST_REQUESTS)} == {-32003}


def test_a_thousand_idle_connections_are_bounded_and_keep_nobody_out(daemon: Daemon) -> None:
    daemon.start()
    idle = [daemon.call() for _ in range(1000)]
    status = daemon.status()
    assert status["connections"]["used"] <= status["connections"]["limit"] == MOST_CONNECTIONS
    assert status["descriptors"]["used"] < MOST_CONNECTIONS + 64
    assert idle[0].ended(), "who has been idle for longest goes first"
    assert idle[-1].ask("hello")["result"]


def test_a_reader_that_does_not_read_is_dropped(daemon: Daemon, monkeypatch: pytest.MonkeyPatch) -> None:
    command = hurried("import agentcoordd.api.connections as c; c.READ_SECONDS = 1.0")
    monkeypatch.setattr("tests.daemon.running.COMMAND", command)
    daemon.start()
    caller = daemon.call()
    with pytest.raises(ConnectionError):  # the daemon, too, stops reading, and hangs up in the end
        caller.raw(b'{"id":1,"method":"hello"}\n' * 2_000_000)
    assert daemon.status()["dropped"] == 1
    assert "dropped: read nothing for 1 s" in daemon.said()
    assert daemon.status()["memory"] < 100 * 1024 * 1024


async def test_a_frame_that_is_never_finished_costs_the_connection() -> None:
    async with hosted() as host:
        slow, other = await host.subscriber(), await host.subscriber()
        slow.end.send(b'{"id":1,')
        with anyio.fail_after(PATIENCE):
            while not host.hall.kept:
                await anyio.lowlevel.checkpoint()
        for connection in list(host.hall.present):
            connection.hurry(monotonic() + FRAME_SECONDS - 1)
        assert len(host.hall.present) == 2
        for connection in list(host.hall.present):
            connection.hurry(monotonic() + FRAME_SECONDS + 1)
        assert await slow.next() == {}
        assert (len(host.hall.present), host.hall.kept) == (1, 0)
        host.feed.publish("changed", {})
        assert (await other.next())["method"] == "event"


async def test_what_slow_readers_leave_unread_is_bounded_for_all_of_them_together(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(connections, "MOST_UNREAD", 8 << 20)
    async with hosted() as host:
        readers = [await host.subscriber() for _ in range(4)]
        for number, connection in enumerate(host.hall.present):
            connection.notify("said", About(id="x" * ((number + 1) << 20)))
        assert host.hall.tally.dropped == 1, "the one furthest behind"
        assert sum(connection.unread for connection in host.hall.present) < 8 << 20
        answers = [await reader.next() for reader in readers]
        assert answers.count({}) == 1


async def test_unfinished_frames_of_all_callers_together_are_bounded() -> None:
    async with hosted() as host:
        readers = [await host.subscriber() for _ in range(40)]
        loop = asyncio.get_running_loop()
        for reader in readers:
            try:
                await loop.sock_sendall(reader.end, b"x" * (FRAME_BYTES // 2))
            except OSError:
                pass
        with anyio.fail_after(PATIENCE):
            while len(host.hall.present) == len(readers):
                await anyio.lowlevel.checkpoint()
        assert host.hall.kept <= 64 * 1024 * 1024


def test_a_hung_daemon_accepts_nothing_by_itself(daemon: Daemon) -> None:
    process = daemon.start()
    caller = daemon.call()
    with stopped(process):
        caller.send(id=1, method="hello", params={})
    assert caller.answer()["result"]["api"] == 1


def test_the_status_shows_use_beside_limits(daemon: Daemon) -> None:
    daemon.start()
    status = daemon.status()
    assert status["roots"] == [str(daemon.root)]
    assert status["any_root"] is False
    for name in ("connections", "commands", "subscribers", "descriptors"):
        assert 0 <= status[name]["used"] <= status[name]["limit"]
    assert status["memory"] > 1_000_000
    assert status["requests"] == 1
