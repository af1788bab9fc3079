"""A state server of the tests' own: real sockets, records in memory, and every fault that a test asks for.

It speaks the routes of spec http §1 to §6 without authentication of machines and without the grammar of
paths: one token, no scopes.
"""

import json
import socket
import ssl
import struct
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from io import BufferedReader
from urllib.parse import parse_qs, unquote

import msgspec

TOKEN = "t0ps3cret-of-the-tests"


@dataclass(frozen=True)
class Asked:
    """A request as it came, and on which connection, counted from 1."""

    connection: int
    method: str
    target: str
    headers: dict[str, str]
    body: bytes


@dataclass(frozen=True)
class Reply:
    """What goes back: bytes as they are, and then the end of the connection, gentle or not, or none."""

    data: bytes = b""
    closes: bool = False
    resets: bool = False
    hangs: bool = False
    drips: bool = False  # the data over and over, until the other side has had enough


Answering = Callable[[Asked], Reply]


def reply(status: int, body: object = None, *headers: str) -> Reply:
    """Answer with JSON, or with bytes as they are."""
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    lines = (f"HTTP/1.1 {status} Because", "Content-Type: application/json", f"Content-Length: {len(data)}", *headers)
    return Reply("\r\n".join((*lines, "", "")).encode() + data)


def error(status: int, code: str) -> Reply:
    return reply(status, {"error": code})


class Server:
    """Answers on a port of this machine, each connection in a thread, until its block is left."""

    def __init__(self, answering: Answering, tls: ssl.SSLContext | None = None) -> None:
        self.answering: Answering = answering
        self.asked: list[Asked] = []
        self.connections = 0
        self._tls = tls
        self._listening = socket.create_server(("127.0.0.1", 0))
        self._open: list[socket.socket] = []
        self._threads: list[threading.Thread] = []
        self._ended = threading.Event()
        self.came = threading.Event()
        """Set once a request is there, and `left` once a connection is closed."""
        self.left = threading.Event()

    @property
    def port(self) -> int:
        return self._listening.getsockname()[1]

    @property
    def url(self) -> str:
        return f"http{'s' if self._tls else ''}://127.0.0.1:{self.port}"

    def targets(self, method: str) -> list[str]:
        """What was asked for by a method, in order."""
        return [asked.target for asked in self.asked if asked.method == method]

    @contextmanager
    def running(self) -> Generator["Server"]:
        accepting = threading.Thread(target=self._accept)
        accepting.start()
        try:
            yield self
        finally:
            self._ended.set()
            self._listening.shutdown(socket.SHUT_RDWR)
            accepting.join()
            self._listening.close()
            for connection in self._open:
                with _already_gone():
                    connection.shutdown(socket.SHUT_RDWR)
            for thread in self._threads:
                thread.join()

    def _accept(self) -> None:
        while not self._ended.is_set():
            try:
                plain, _ = self._listening.accept()
            except OSError:
                return
            self.connections += 1
            self._open.append(plain)
            thread = threading.Thread(target=self._serve, args=(plain, self.connections))
            self._threads.append(thread)
            thread.start()

    def _serve(self, plain: socket.socket, number: int) -> None:
        connection = plain
        with _already_gone():
            if self._tls is not None:
                connection = self._tls.wrap_socket(plain, server_side=True)
            with connection.makefile("rb") as stream:
                while self._one(connection, stream, number):
                    pass
        connection.close()
        plain.close()
        self.left.set()

    def _one(self, connection: socket.socket, stream: BufferedReader, number: int) -> bool:
        line = stream.readline().decode(errors="replace")
        if not line.endswith(" HTTP/1.1\r\n"):  # gone, or somebody who speaks TLS
            return False
        method, target, _ = line.split(" ", 2)
        headers: dict[str, str] = {}
        while (header := stream.readline().decode().rstrip("\r\n")) != "":
            name, _, value = header.partition(":")
            headers[name.lower()] = value.strip()
        body = stream.read(int(headers.get("content-length", "0"))) or b""
        asked = Asked(number, method, target, headers, body)
        self.asked.append(asked)
        self.came.set()
        answer = self.answering(asked)
        while answer.drips and not self._ended.wait(0.01):
            connection.sendall(answer.data)
        connection.sendall(answer.data)
        if answer.hangs:
            self._ended.wait()
        if answer.resets:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        return not (answer.closes or answer.resets or answer.hangs)


@contextmanager
def _already_gone() -> Generator[None]:
    """The other side may leave at any time, as may the test."""
    try:
        yield
    except OSError:
        return


@dataclass
class State:
    """The records, and what the routes make of requests for them."""

    records: dict[str, tuple[bytes, int]] = field(default_factory=dict[str, tuple[bytes, int]])
    filtered: bool = False
    page: int | None = None  # a server that pages although nobody asked for it

    def put(self, path: str, document: object, version: int = 1) -> None:
        self.records[path] = (document if isinstance(document, bytes) else json.dumps(document).encode(), version)

    def document(self, path: str) -> object:
        return json.loads(self.records[path][0])

    def __call__(self, asked: Asked) -> Reply:
        route, _, query = asked.target.partition("?")
        if route.endswith("/v1/health"):
            return reply(200, {"status": "ok"})
        if asked.headers.get("authorization") != f"Bearer {TOKEN}":
            return error(401, "unknown_token")
        if route.endswith("/v1/whoami"):
            return reply(200, {"machine": "m1", "read_prefixes": [""], "write_prefixes": ["claims"]})
        if route.endswith("/v1/state"):
            return self._list({name: values[0] for name, values in parse_qs(query).items()})
        _, found, path = route.partition("/v1/state/")
        if not found:
            return error(404, "route_not_found")
        return self._record(unquote(path), asked)

    def _list(self, query: dict[str, str]) -> Reply:
        limit = int(query["limit"]) if "limit" in query else self.page
        paths = sorted(path for path in self.records if path.startswith(f"{query['prefix']}/"))
        paths = [path for path in paths if path > query.get("cursor", "")]
        shown = paths[:limit]
        answer: dict[str, object] = {"entries": [self._entry(path) for path in shown]}
        if self.filtered:
            answer["filtered"] = True
        if len(shown) < len(paths):
            answer["next_cursor"] = shown[-1]
        return reply(200, msgspec.json.encode(answer))

    def _entry(self, path: str) -> dict[str, object]:
        data, version = self.records[path]
        return {"path": path, "data": msgspec.Raw(data), "version": version, "updated_by": "m1"}

    def _record(self, path: str, asked: Asked) -> Reply:
        found = self.records.get(path)
        if asked.method == "GET":
            return error(404, "not_found") if found is None else reply(200, msgspec.json.encode(self._entry(path)))
        if asked.headers.get("if-none-match") == "*":
            if found is not None:
                return error(409, "already_exists")
        elif found is None or found[1] != int(asked.headers["if-match"]):
            return error(409, "version_conflict")
        if asked.method == "DELETE":
            del self.records[path]
            return reply(200, {"path": path, "deleted": True, "updated_by": "m1"})
        data = msgspec.json.decode(asked.body, type=dict[str, msgspec.Raw])["data"]
        version = found[1] + 1 if found else 1
        self.put(path, bytes(data), version)
        return reply(200 if found else 201, {"path": path, "version": version, "updated_by": "m1"})
