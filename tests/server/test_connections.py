"""Connections as they come from a network: slow, broken, far too many, and the end of the server amid them."""

import os
import signal
import socket
import sqlite3
import ssl
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, suppress
from http.client import HTTPException
from pathlib import Path

import pytest

from tests.command import PATIENCE
from tests.server.calling import Caller, calling, grant, received, rest, wire
from tests.server.running import LOG, Running, agentcoordd, running

ABANDONED = 2500


def _answers(server: Running) -> bool:
    with calling(server, None) as caller:
        return caller.ask("GET", "/v1/health").status == 200


# --- requests that do not come whole ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "begun", [b"", b"G", b"GET /v1/health HTTP/1.1\r\nHost: h\r\n", b"\r\n\r\n", b"PUT /v1/state/cl"]
)
def test_a_head_that_does_not_come_is_not_waited_for(sqlite: str, begun: bytes) -> None:
    with running(sqlite, head_seconds=0.2) as server, wire(server) as connection:
        connection.sendall(begun)
        assert rest(connection) == b""  # it was ended by the server: we did not close it
        assert _answers(server)


def test_a_head_that_drips_has_no_more_time(sqlite: str) -> None:
    with running(sqlite, head_seconds=0.2) as server, wire(server) as connection:
        connection.settimeout(0.02)
        dripped = 0
        while True:  # a drop as often as nothing comes back: it ends, or the test never does
            try:
                connection.sendall(b"GET /v1/health HTTP/1.1\r\n" if not dripped else b"X: y\r\n")
                dripped += 1
                if connection.recv(100) == b"":
                    break
            except TimeoutError:
                continue
            except (BrokenPipeError, ConnectionResetError):
                break
        assert dripped > 1


def test_after_an_answer_the_next_head_has_its_time_again(sqlite: str) -> None:
    with running(sqlite, head_seconds=0.2) as server, wire(server) as connection:
        connection.sendall(b"GET /v1/health HTTP/1.1\r\nHost: h\r\n\r\nGET /v1/hea")
        answer = rest(connection)
        assert answer.startswith(b"HTTP/1.1 200 ")
        assert answer.count(b"HTTP/1.1") == 1


def test_a_head_without_end_is_refused(server: Running) -> None:
    with wire(server) as connection:
        connection.sendall(b"GET /v1/health HTTP/1.1\r\n")
        line = b"X: " + b"x" * 8000 + b"\r\n"
        try:
            for _ in range(10_000):  # 80 MB, were they taken
                connection.sendall(line)
        except (BrokenPipeError, ConnectionResetError):
            pass
        else:
            raise AssertionError("all of it was taken")
    assert _answers(server)


@pytest.mark.parametrize("fields", [["X: " + "x" * 140_000], ["X: " + "x" * 1000] * 100], ids=["one", "many"])
def test_a_head_that_is_too_large_is_refused_also_in_one_piece(server: Running, fields: list[str]) -> None:
    with wire(server) as connection:
        connection.sendall("\r\n".join(["GET /v1/health HTTP/1.1", "Host: h", *fields, "", ""]).encode())
        answer = rest(connection)
    assert answer.startswith(b"HTTP/1.1 431 ") or answer == b""  # with more unread than its answer could pass


@pytest.mark.parametrize(
    "garbage",
    [
        b"\0\1\2\3",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        b"hello\r\n\r\n",
        b"GET\r\n\r\n",
        b"GET /v1/health HTTP/9.9\r\n\r\n",
        b"GET /v1/health\x00 HTTP/1.1\r\n\r\n",
        b"GET /v1/state/claims/\xc3\xa9 HTTP/1.1\r\nHost: h\r\n\r\n",
        b"CONNECT example.org:443 HTTP/1.1\r\nHost: h\r\n\r\n",
        b"GET /v1/health HTTP/1.1\r\nContent-Length: x\r\n\r\n",
        b"GET /v1/health HTTP/1.1\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n",
        b"GET /v1/health HTTP/1.1\r\nContent-Length: " + b"9" * 30 + b"\r\n\r\n",
    ],
)
def test_what_is_not_http_is_refused_as_json(server: Running, garbage: bytes) -> None:
    with wire(server) as connection:
        connection.sendall(garbage)
        answer = rest(connection)
    head, _, body = answer.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 400 Bad Request\r\n")
    assert b"content-type: application/json" in head
    assert body == b'{"error":"bad_request"}'
    assert _answers(server)


def _put(caller: Caller, path: str, *, size: int, more: str = "") -> bytes:
    fields = [
        f"PUT /v1/state/{path} HTTP/1.1",
        "Host: h",
        f"Authorization: Bearer {caller.token}",
        "If-None-Match: *",
        f"Content-Length: {size}",
        more,
    ]
    return "\r\n".join(field for field in fields if field).encode() + b"\r\n\r\n"


def test_garbage_behind_a_request_is_not_answered_in_its_name(server: Running, caller: Caller, mine: str) -> None:
    path = f"events/{mine}/a.json"
    with wire(server) as connection:
        connection.sendall(_put(caller, path, size=10) + b'{"data":1}' + b"\0garbage\r\n\r\n")
        answer = rest(connection)
    assert b" 400 " not in answer  # a 400 would say that nothing was written
    assert _answers(server)


def test_requests_may_come_before_answers(server: Running, caller: Caller, mine: str) -> None:
    path = f"events/{mine}/a.json"
    get = f"GET /v1/state/{path} HTTP/1.1\r\nHost: h\r\nAuthorization: Bearer {caller.token}\r\n".encode()
    with wire(server) as connection:
        put = _put(caller, path, size=10) + b'{"data":1}'
        connection.sendall(put + put + get + b"\r\n" + get + b"Connection: close\r\n\r\n")
        answer = rest(connection)
    statuses = [part[:3] for part in answer.split(b"HTTP/1.1 ")[1:]]
    assert statuses == [b"201", b"409", b"200", b"200"]


def test_a_request_may_come_byte_by_byte(server: Running, caller: Caller, mine: str) -> None:
    path = f"events/{mine}/a.json"
    with wire(server) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for byte in _put(caller, path, size=10, more="Connection: close") + b'{"data":1}':
            connection.sendall(bytes([byte]))
        assert rest(connection).startswith(b"HTTP/1.1 201 ")


@pytest.mark.parametrize("sent", [b"", b'{"data"'], ids=["nothing of it", "a part of it"])
def test_a_body_that_does_not_come_is_not_waited_for(sqlite: str, sent: bytes) -> None:
    token = grant(sqlite, "m", reads=[""], writes=[""])
    with (
        running(sqlite, body_seconds=0.2) as server,
        calling(server, token) as caller,
        wire(server) as connection,
    ):
        connection.sendall(_put(caller, "events/b/a.json", size=10) + sent)
        answer = rest(connection)
        assert answer.startswith(b"HTTP/1.1 408 ")
        assert answer.endswith(b'\r\n\r\n{"error":"request_timeout"}')
        assert answer.count(b"HTTP/1.1") == 1
        assert _answers(server)


def test_a_body_that_drips_has_no_more_time(sqlite: str) -> None:
    token = grant(sqlite, "m", reads=[""], writes=[""])
    with (
        running(sqlite, body_seconds=0.2) as server,
        calling(server, token) as caller,
        wire(server) as connection,
    ):
        connection.sendall(_put(caller, "events/b/a.json", size=100_000))
        connection.settimeout(0.02)
        while True:
            try:
                connection.sendall(b" ")
                answer = connection.recv(1000)
                break
            except TimeoutError:
                continue
        assert answer.startswith(b"HTTP/1.1 408 ")


def test_a_body_in_time_gives_the_next_one_its_time_again(sqlite: str) -> None:
    token = grant(sqlite, "m", reads=[""], writes=[""])
    with (
        running(sqlite, body_seconds=0.2) as server,
        calling(server, token) as caller,
        wire(server) as connection,
    ):
        put = _put(caller, "events/b/a.json", size=10)
        connection.sendall(put + b'{"data":1}' + put + b'{"da')
        answer = rest(connection)
        statuses = [part[:3] for part in answer.split(b"HTTP/1.1 ")[1:]]
        assert statuses == [b"201", b"408"]


def test_a_body_that_the_server_does_not_take_yet_has_its_time_still(sqlite: str) -> None:
    """Behind a request that is still being answered nothing is read, and that is not the caller's fault."""
    token = grant(sqlite, "m", reads=[""], writes=[""])
    with (
        running(sqlite, body_seconds=0.1) as server,
        calling(server, token) as caller,
        wire(server) as connection,
        closing(sqlite3.connect(sqlite.removeprefix("sqlite:///"), isolation_level=None)) as other,
    ):
        other.execute("BEGIN IMMEDIATE")  # the first write waits
        first, second = (_put(caller, f"events/b/{name}.json", size=10) for name in "ab")
        connection.sendall(first + b'{"data":1}' + second)
        while caller.open_requests() < 2:
            pass
        connection.settimeout(0.5)
        with suppress(TimeoutError):
            raise AssertionError(connection.recv(1000))
        connection.settimeout(PATIENCE)
        other.execute("COMMIT")
        assert received(connection, until=b"}").startswith(b"HTTP/1.1 201 ")
        connection.sendall(b'{"data":1}')
        assert received(connection, until=b"}").startswith(b"HTTP/1.1 201 ")


def test_a_body_that_nobody_asked_for_is_not_waited_for_either(sqlite: str) -> None:
    with running(sqlite, body_seconds=0.2) as server, wire(server) as connection:
        connection.sendall(b"POST /v1/health HTTP/1.1\r\nHost: h\r\nContent-Length: 10\r\n\r\n")
        answer = rest(connection)  # it was ended by the server: we did not close it
        assert answer.startswith(b"HTTP/1.1 200 ")
        assert answer.count(b"HTTP/1.1") == 1


def test_a_body_for_another_protocol_is_refused_and_not_lost(server: Running, caller: Caller, mine: str) -> None:
    path = f"events/{mine}/a.json"
    with wire(server) as connection:
        upgrade = "Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABkAAQAoAAAAAIAAAAA"
        connection.sendall(_put(caller, path, size=10, more=upgrade) + b'{"data":1}')
        answer = rest(connection)
    assert answer.startswith(b"HTTP/1.1 501 Not Implemented\r\n")
    assert answer.endswith(b'\r\n\r\n{"error":"upgrade_unsupported"}')
    assert answer.count(b"HTTP/1.1") == 1
    assert caller.get(path).refusal == (404, "not_found")


def test_what_comes_behind_an_offer_of_another_protocol_is_not_taken_for_answered(server: Running) -> None:
    health = b"GET /v1/health HTTP/1.1\r\nHost: h\r\n"
    with wire(server) as connection:
        connection.sendall(health + b"Connection: Upgrade\r\nUpgrade: h2c\r\n\r\n" + health + b"\r\n")
        answer = rest(connection)  # it is ended by the server
    assert answer.startswith(b"HTTP/1.1 200 ")
    assert answer.count(b"HTTP/1.1") == 1


def test_without_a_body_an_offer_of_another_protocol_is_passed_over(server: Running) -> None:
    with wire(server) as connection:
        connection.sendall(b"GET /v1/health HTTP/1.1\r\nHost: h\r\nConnection: Upgrade, close\r\nUpgrade: h2c\r\n\r\n")
        assert rest(connection).startswith(b"HTTP/1.1 200 ")


@pytest.mark.parametrize("half", [True, False], ids=["half-closed", "closed"])
def test_a_body_that_breaks_off_is_not_stored(server: Running, caller: Caller, mine: str, *, half: bool) -> None:
    path = f"events/{mine}/a.json"
    with wire(server) as connection:
        connection.sendall(_put(caller, path, size=10) + b'{"data"')
        if half:
            connection.shutdown(socket.SHUT_WR)
            assert b"201" not in rest(connection)
    assert caller.get(path).refusal == (404, "not_found")


def test_a_half_closed_request_is_done_once_or_not_at_all(server: Running, caller: Caller, mine: str) -> None:
    path = f"events/{mine}/a.json"
    with wire(server) as connection:
        connection.sendall(_put(caller, path, size=10) + b'{"data":1}')
        connection.shutdown(socket.SHUT_WR)
        answer = rest(connection)
    assert answer == b"" or answer.startswith(b"HTTP/1.1 201 ")
    found = caller.get(path)
    assert found.status == 200 or (answer == b"" and found.status == 404)


def test_who_expects_leave_to_send_gets_it(server: Running, caller: Caller, mine: str) -> None:
    path = f"events/{mine}/a.json"
    with wire(server) as connection:
        connection.sendall(_put(caller, path, size=10, more="Expect: 100-continue\r\nConnection: close"))
        assert received(connection, until=b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
        connection.sendall(b'{"data":1}')
        assert rest(connection).startswith(b"HTTP/1.1 201 ")


@pytest.mark.parametrize(
    ("begun", "more"),
    [(b"0\r\n", b"a: b\r\n" * 2000), (b"0\r\nx: ", b"y" * 12_000), (b"1;", b"y" * 12_000)],
    ids=["fields", "one field", "what a chunk says of itself"],
)
def test_what_stands_behind_a_body_does_not_go_on_for_ever(server: Running, begun: bytes, more: bytes) -> None:
    with wire(server) as connection:
        connection.sendall(b"POST /v1/health HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n" + begun)
        try:
            for _ in range(5_000):  # 60 MB, were they taken
                connection.sendall(more)
        except (BrokenPipeError, ConnectionResetError):
            pass
        else:
            raise AssertionError("all of it was taken")
    assert _answers(server)


def test_what_stands_behind_a_body_is_no_header(server: Running, caller: Caller, mine: str) -> None:
    path = f"events/{mine}/a.json"
    head = f"PUT /v1/state/{path} HTTP/1.1\r\nHost: h\r\nAuthorization: Bearer {caller.token}\r\n".encode()
    body = b"Transfer-Encoding: chunked\r\n\r\na\r\n" + b'{"data":1}' + b"\r\n0\r\nIf-None-Match: *\r\n\r\n"
    with wire(server) as connection:
        connection.sendall(head + body)
        assert received(connection, until=b"}").endswith(b'{"error":"precondition_required"}')


@pytest.mark.parametrize("more", ["", "Expect: 100-continue"])
def test_who_is_refused_before_the_body_came_is_told_to_go(server: Running, mine: str, more: str) -> None:
    with calling(server, "0" * 48) as stranger, wire(server) as connection:
        connection.sendall(_put(stranger, f"events/{mine}/a.json", size=10, more=more))
        answer = rest(connection)
    assert answer.startswith(b"HTTP/1.1 401 ")
    assert b"connection: close" in answer


def test_who_is_refused_after_the_body_came_may_stay(server: Running, mine: str) -> None:
    with calling(server, "0" * 48) as stranger, wire(server) as connection:
        for _ in range(2):
            connection.sendall(_put(stranger, f"events/{mine}/a.json", size=10) + b'{"data":1}')
            assert received(connection, until=b"}").startswith(b"HTTP/1.1 401 ")


@pytest.mark.parametrize(("asked", "least", "most"), [(17, 17, 17), (14_000, 0, 17)])
def test_few_requests_wait_for_those_before_them(server: Running, asked: int, least: int, most: int) -> None:
    with wire(server) as connection:
        with suppress(OSError):  # it may be closed while this is on its way
            get = b"GET /v1/whoami HTTP/1.1\r\nHost: h\r\n"
            connection.sendall((get + b"\r\n") * (asked - 1) + get + b"Connection: close\r\n\r\n")
        answers = rest(connection).count(b"HTTP/1.1 401 ")
    assert least <= answers <= most
    assert _answers(server)


def test_an_answer_that_nobody_reads_is_given_up(sqlite: str) -> None:
    token = grant(sqlite, "m", reads=[""], writes=[""])
    asking = f"Host: h\r\nAuthorization: Bearer {token}\r\n".encode()
    with running(sqlite, unread_seconds=0.1) as server, calling(server, token) as caller:
        for number in range(60):
            caller.create(f"events/b/{number}.json", "x" * 200_000)
        descriptors = Path(f"/proc/{server.process.pid}/fd")
        open_before = len(list(descriptors.iterdir()))
        for last in (b"", b"Connection: close\r\n"):  # the second is closing already when nobody reads it
            with socket.socket() as unread:
                unread.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
                unread.settimeout(PATIENCE)
                unread.connect((server.host, server.port))
                unread.sendall(b"GET /v1/state?prefix=events/b HTTP/1.1\r\n" + asking + last + b"\r\n")
                assert unread.recv(1) == b"H"  # now it is being answered
                for _ in range(100_000):
                    if len(list(descriptors.iterdir())) == open_before:
                        break
                else:
                    raise AssertionError("it is still waited for")
                assert len(rest(unread)) < 60 * 200_000


# --- too many -----------------------------------------------------------------------------------------------------


def test_abandoned_connections_are_nobodys_loss(sqlite: str) -> None:
    token = grant(sqlite, "m", reads=[""], writes=[""])
    with running(sqlite) as server:
        for number in range(ABANDONED):
            with wire(server) as connection:
                if number % 3 == 0:
                    connection.sendall(b"GET /v1/state/claims HTTP/1.1\r\nHost")
                elif number % 3 == 1:
                    connection.sendall(b"GET /v1/health HTTP/1.1\r\nHost: h\r\n\r\n")
        with calling(server, token) as caller:
            caller.create("claims/o/r/7.json")
        descriptors = Path(f"/proc/{server.process.pid}/fd")
        if descriptors.exists():
            for _ in range(1_000_000):
                if len(list(descriptors.iterdir())) < 100:
                    break
            else:
                raise AssertionError("it keeps what was abandoned")


def test_the_longest_idle_make_room_when_there_are_too_many(sqlite: str) -> None:
    with ExitStack() as stack:
        server = stack.enter_context(running(sqlite, connections=50))
        idle = [stack.enter_context(wire(server)) for _ in range(120)]
        assert _answers(server)
        assert rest(idle[0]) == b""
        idle[-1].sendall(b"GET /v1/health HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n")
        assert rest(idle[-1]).startswith(b"HTTP/1.1 200 ")


# --- the end ------------------------------------------------------------------------------------------------------


def test_what_was_begun_is_finished_and_what_is_idle_closed(db: str) -> None:
    token = grant(db, "m", reads=[""], writes=[""])
    with running(db) as server, calling(server, token) as caller, wire(server) as idle, wire(server) as busy:
        idle.sendall(b"GET /v1/health HTTP/1.1\r\nHost: h\r\n\r\n")
        assert received(idle, until=b"}").startswith(b"HTTP/1.1 200 ")
        # The leave to go on says that the request is under way.
        busy.sendall(_put(caller, "claims/o/r/7.json", size=10, more="Expect: 100-continue"))
        assert received(busy, until=b"\r\n\r\n").startswith(b"HTTP/1.1 100 ")
        server.process.send_signal(signal.SIGTERM)
        assert rest(idle) == b""  # by now it is closing
        busy.sendall(b'{"data":1}')
        assert rest(busy).startswith(b"HTTP/1.1 201 ")
        server.ended()
    with running(db) as server, calling(server, token) as caller:
        assert caller.get("claims/o/r/7.json").json()["data"] == 1


def test_what_was_acknowledged_survives_a_crash(db: str) -> None:
    token = grant(db, "m", reads=[""], writes=[""])

    def write(writer: int) -> list[str]:
        done: list[str] = []
        with calling(server, token) as own:
            try:
                for step in range(100_000):
                    own.create(f"events/b/{writer}-{step}.json")
                    done.append(f"events/b/{writer}-{step}.json")
                    if step == 20 and writer == 0:
                        server.process.kill()
            except (OSError, HTTPException):  # it may be killed in the middle of an answer
                return done
        raise AssertionError("it was not killed")

    with running(db) as server, ThreadPoolExecutor(4) as pool:
        acknowledged = [path for done in pool.map(write, range(4)) for path in done]
        server.kill()
    with running(db) as server, calling(server, token) as caller:
        listed = {entry["path"] for entry in caller.list("events/b").json()["entries"]}
        assert set(acknowledged) <= listed
        feed = caller.changes().json()["cursor"].partition(".")[0]
        changes = caller.changes(f"{feed}.0").json()["changes"]
        assert sorted(change["path"] for change in changes) == sorted(listed)


def test_the_log_names_requests_and_no_token(sqlite: str) -> None:
    token = grant(sqlite, "m", reads=[""], writes=[""])
    with running(sqlite) as server, calling(server, token) as caller:
        caller.get("claims/o/r/7.json")
        caller.ask("GET", f"/v1/state?prefix=claims&secret={token}")
    assert [line.split()[2:5] for line in server.lines[2:]] == [
        ["GET", "/v1/state/claims/o/r/7.json", "404"],
        ["GET", "/v1/state", "200"],
    ]
    assert not any(token in line for line in server.lines)


# --- what keeps a server from beginning ---------------------------------------------------------------------------


def _refused(*options: str, exit_: int) -> str:
    """Start a server that cannot begin, and give its last word: log lines apart, the only one."""
    answer = agentcoordd("server", *options)
    assert (answer.exit, answer.out) == (exit_, "")
    [line] = [line for line in answer.err.splitlines() if not LOG.match(line)]
    return line


def test_a_file_has_one_server(sqlite: str, tmp_path: Path) -> None:
    with running(sqlite):
        said = _refused("--db", sqlite, "--listen", "127.0.0.1:0", exit_=2)
        assert said == f"another server has this database: {tmp_path}/state.db"
        assert agentcoordd("token", "add", "m", "--all-state", "--db", sqlite).exit == 0
    with running(sqlite) as server:
        server.kill()
    with running(sqlite):
        pass


def test_too_few_descriptors_are_one_line(sqlite: str) -> None:
    limited = f"ulimit -n 150 && exec {sys.executable} -m agentcoordd server --db {sqlite} --listen 127.0.0.1:0"
    ran = subprocess.run(
        ["/bin/sh", "-c", limited],
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE,
        env={"PATH": os.defpath},
    )
    assert ran.returncode == 2
    [line] = [line for line in ran.stderr.splitlines() if not LOG.match(line)]
    assert line.startswith("a limit of 150 open files is too low: ")


def test_an_address_has_one_server(sqlite: str, tmp_path: Path) -> None:
    with running(sqlite) as server:
        other = f"sqlite:///{tmp_path}/other.db"
        said = _refused("--db", other, "--listen", f"127.0.0.1:{server.port}", exit_=2)
        assert said == f"cannot listen on 127.0.0.1:{server.port}: Address already in use; choose another --listen"
        assert not (tmp_path / "other.db").exists()


@pytest.mark.parametrize(
    ("db", "exit_", "said"),
    [
        ("state.db", 1, "--db must be sqlite:///PATH or postgresql://…"),
        ("sqlite://", 1, "--db must be sqlite:///PATH or postgresql://…"),
        ("sqlite:///", 1, "--db must be sqlite:///PATH or postgresql://…"),
        ("sqlite:///a%00b", 1, "--db must be sqlite:///PATH or postgresql://…"),
        ("mysql://u:secret@h/d", 1, "--db must be sqlite:///PATH or postgresql://…"),
        ("sqlite:////proc/none/state.db", 2, "database cannot be used: /proc/none/state.db: No such file or directory"),
        ("postgresql://h:port/d", 2, "database error: ValueError: h:port/d"),
        ("postgresql://u:secret@127.0.0.1:1/d?x=secret", 2, "database error: ConnectionRefusedError, "),
        ("postgresql://u:sec?r@t@127.0.0.1:1/d", 2, "database error: "),
    ],
)
def test_a_database_that_cannot_be_used_is_one_line(db: str, exit_: int, said: str) -> None:
    refused = _refused("--db", db, "--listen", "127.0.0.1:0", exit_=exit_)
    assert refused.startswith(said)
    assert "sec" not in refused


def test_a_file_that_is_no_database_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "x.db").write_text("something else entirely, and long enough to be looked at as a header of a file")
    said = _refused("--db", f"sqlite:///{tmp_path}/x.db", "--listen", "127.0.0.1:0", exit_=2)
    assert said == f"database error: {tmp_path}/x.db: file is not a database"


@pytest.mark.parametrize(
    ("listen", "exit_", "said"),
    [
        ("8787", 1, "--listen must be HOST:PORT: 8787"),
        (":8787", 1, "--listen must be HOST:PORT: :8787"),
        ("localhost:", 1, "--listen must be HOST:PORT: localhost:"),
        ("localhost:http", 1, "--listen must be HOST:PORT: localhost:http"),
        ("127.0.0.1:-1", 1, "--listen must be HOST:PORT: 127.0.0.1:-1"),
        ("127.0.0.1:65536", 1, "--listen must be HOST:PORT: 127.0.0.1:65536"),
        ("192.0.2.1:0", 2, "cannot listen on 192.0.2.1:0: "),
        ("a..b:0", 2, "cannot listen on a..b:0: "),
    ],
)
def test_an_address_that_cannot_be_used_is_one_line(sqlite: str, listen: str, exit_: int, said: str) -> None:
    assert _refused("--db", sqlite, "--listen", listen, exit_=exit_).startswith(said)


@pytest.mark.parametrize("options", [["--bogus"], ["extra"], ["--keep-changes", "10"], ["--listen"]])
def test_options_are_checked_first(sqlite: str, tmp_path: Path, options: list[str]) -> None:
    assert _refused("--db", sqlite, *options, exit_=1)
    assert list(tmp_path.iterdir()) == []


# --- TLS ----------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    """A certificate for 127.0.0.1 and its key, for as long as these tests run."""
    directory = tmp_path_factory.mktemp("tls")
    names = (str(directory / "cert.pem"), str(directory / "key.pem"))
    command = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 -subj /CN=test"
    subprocess.run(
        [*command.split(), "-addext", "subjectAltName=IP:127.0.0.1", "-out", names[0], "-keyout", names[1]],
        check=True,
        capture_output=True,
        timeout=PATIENCE,
        env={"PATH": os.defpath},
    )
    return names


def test_a_certificate_makes_it_https(sqlite: str, certificate: tuple[str, str]) -> None:
    cert, key = certificate
    with running(sqlite, "--tls-cert", cert, "--tls-key", key) as server:
        assert server.url.startswith("https://127.0.0.1:")
        trusting = ssl.create_default_context(cafile=cert)
        with wire(server) as plain, trusting.wrap_socket(plain, server_hostname="127.0.0.1") as connection:
            connection.sendall(b"GET /v1/health HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n")
            assert rest(connection).endswith(b'{"status":"ok"}')
        with wire(server) as plain:
            plain.sendall(b"GET /v1/health HTTP/1.1\r\nHost: h\r\n\r\n")
            assert b"200" not in rest(plain)


def test_a_handshake_that_does_not_come_is_not_waited_for(sqlite: str, certificate: tuple[str, str]) -> None:
    cert, key = certificate
    with running(sqlite, certificate=cert, key=key, head_seconds=0.2) as server, wire(server) as connection:
        assert rest(connection) == b""


def test_a_certificate_that_cannot_be_used_is_one_line(db: str, certificate: tuple[str, str], tmp_path: Path) -> None:
    cert, key = certificate
    broken = tmp_path / "broken.pem"
    broken.write_text("no certificate")
    for one, two in ((str(tmp_path / "none.pem"), key), (str(broken), key), (cert, cert), (key, cert)):
        said = _refused("--db", db, "--listen", "127.0.0.1:0", "--tls-cert", one, "--tls-key", two, exit_=2)
        assert said.startswith(f"--tls-cert {one} and --tls-key {two} cannot be used: ")
    for option in ("--tls-cert", "--tls-key"):
        said = _refused("--db", db, "--listen", "127.0.0.1:0", option, cert, exit_=1)
        assert said == "--tls-cert and --tls-key belong together"
