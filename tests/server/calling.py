"""Callers of a server: HTTP as it goes over the wire, with nothing normalized on the way."""

import http.client
import json
import os
import socket
import sqlite3
from collections.abc import Generator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlencode
from urllib.request import Request, urlopen

import anyio

from agentcoordd.server.storage.opening import open_tokens
from agentcoordd.server.tokens import Provision, issue
from tests.command import PATIENCE
from tests.server.postgres import execute, execute_script
from tests.server.running import Running


@dataclass(frozen=True)
class Reply:
    """What came back."""

    status: int
    body: bytes
    headers: Mapping[str, str] = field(default_factory=dict[str, str])

    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def refusal(self) -> tuple[int, str]:
        """The status and the code of an error, which is all that its body says."""
        body = self.json()
        assert list(body) == ["error"], body
        return self.status, body["error"]


class Caller:
    """One machine that calls a server; every answer has to be JSON."""

    def __init__(self, server: Running, token: str | None) -> None:
        self.server, self.token = server, token
        self._connection = http.client.HTTPConnection(server.host, server.port, timeout=PATIENCE)

    def close(self) -> None:
        self._connection.close()

    def ask(
        self, method: str, target: str, body: bytes | str | None = None, headers: Mapping[str, str] | None = None
    ) -> Reply:
        """Send one request; `target` goes out as it is."""
        self._connection.putrequest(method, target, skip_accept_encoding=True)
        fields = {} if self.token is None else {"Authorization": f"Bearer {self.token}"}
        content = body.encode() if isinstance(body, str) else body
        if content is not None:
            fields["Content-Length"] = str(len(content))
        for name, value in {**fields, **(headers or {})}.items():
            self._connection.putheader(name, value)
        self._connection.endheaders(content)
        with self._connection.getresponse() as response:
            reply = Reply(response.status, response.read(), {k.lower(): v for k, v in response.getheaders()})
        assert reply.headers["content-type"] == "application/json"
        return reply

    def get(self, path: str) -> Reply:
        return self.ask("GET", f"/v1/state/{path}")

    def put(self, path: str, data: object, **conditions: str) -> Reply:
        """Write a record, with conditions such as `if_match="1"`."""
        return self.ask("PUT", f"/v1/state/{path}", json.dumps({"data": data}, ensure_ascii=False), _fields(conditions))

    def create(self, path: str, data: object = 1) -> Reply:
        """Make a record that must not be there yet."""
        reply = self.put(path, data, if_none_match="*")
        assert reply.status == 201, reply
        return reply

    def delete(self, path: str, **conditions: str) -> Reply:
        return self.ask("DELETE", f"/v1/state/{path}", None, _fields(conditions))

    def open_requests(self) -> int:
        """Ask how many requests are being answered, this one among them."""
        with urlopen(
            Request(f"{self.server.url}/metrics", headers={"Authorization": f"Bearer {self.token}"}), timeout=PATIENCE
        ) as response:
            lines: list[str] = response.read().decode().splitlines()
        [found] = [line for line in lines if line.startswith("agent_coord_open_requests ")]
        return int(float(found.split()[1]))

    def list(self, prefix: str, **query: object) -> Reply:
        return self.ask("GET", "/v1/state?" + urlencode({"prefix": prefix, **query}))

    def changes(self, since: str | None = None, **query: object) -> Reply:
        asked = query if since is None else {"since": since, **query}
        return self.ask("GET", "/v1/changes?" + urlencode(asked))


def _fields(conditions: Mapping[str, str]) -> dict[str, str]:
    return {name.replace("_", "-"): value for name, value in conditions.items()}


@contextmanager
def calling(server: Running, token: str | None) -> Generator[Caller]:
    """Call a server for a block, over one connection."""
    caller = Caller(server, token)
    try:
        yield caller
    finally:
        caller.close()


@contextmanager
def wire(server: Running) -> Generator[socket.socket]:
    """Open a bare connection."""
    with socket.create_connection((server.host, server.port), timeout=PATIENCE) as connection:
        yield connection


def received(connection: socket.socket, *, until: bytes) -> bytes:
    """Read until something has come, however many pieces it came in."""
    came = b""
    while not came.endswith(until):
        part = connection.recv(65536)
        assert part, came
        came += part
    return came


def rest(connection: socket.socket) -> bytes:
    """Read until the server ends the connection, in whatever way."""
    parts: list[bytes] = []
    try:
        while part := connection.recv(65536):
            parts.append(part)
    except ConnectionResetError:
        pass  # it ended with something unread
    return b"".join(parts)


def grant(db: str, machine: str, *, reads: Sequence[str], writes: Sequence[str], rotate: bool = False) -> str:
    """Give a machine a token."""

    async def run() -> str:
        async with open_tokens(db) as storage:
            provision = Provision(machine, tuple(reads), tuple(writes), rotate=rotate)
            return (await issue(storage, provision, os.urandom)).token

    return anyio.run(run)


def revoke(db: str, machine: str) -> None:
    """End a machine's token."""

    async def run() -> bool:
        async with open_tokens(db) as storage:
            return await storage.revoke(machine)

    assert anyio.run(run)


def sql(db: str, statement: str, *values: object) -> list[Any]:
    """Run one statement on a database, past the server; values stand at $1, $2 and so on."""
    if db.startswith("sqlite:///"):
        with closing(sqlite3.connect(db.removeprefix("sqlite:///"), isolation_level=None)) as connection:
            marks = {str(number): value for number, value in enumerate(values, 1)}
            return connection.execute(statement, marks).fetchall()
    return anyio.run(execute, db, statement, *values)


def script(db: str, text: str) -> None:
    """Run a script on a database, past the server."""
    if db.startswith("sqlite:///"):
        with closing(sqlite3.connect(db.removeprefix("sqlite:///"))) as connection:
            connection.executescript(text)
    else:
        anyio.run(execute_script, db, text)
