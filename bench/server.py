"""What the state server answers in a second, beside a bare route on its stack and beside its databases themselves.

Everything is measured in turns within one run. `--postgres URL` names a database that may be filled and emptied;
without it, that half is left out. Usage: python bench/server.py [--rounds N] [--postgres URL]
"""

import argparse
import asyncio
import json
import os
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import asyncpg
import uvloop

from agentcoord.protocol.scopes import Coverage
from agentcoordd.server.storage.base import Write
from agentcoordd.server.storage.sqlite import open_sqlite
from measure import BIN, ROOT, clean_environment, scratch

RECORD: dict[str, object] = {
    "schema_version": 1,
    "repo": "acme/widgets",
    "target": "319",
    "agent_id": "worker-a",
    "batch_id": "spring",
    "branch": "fix/319",
    "status": "active",
    "claimed_at": "2026-03-01T12:00:00Z",
    "updated_at": "2026-03-01T12:00:00Z",
    "expires_at": "2026-03-01T16:00:00Z",
    "phase": "implementing",
}
BODY = json.dumps({"data": RECORD}, separators=(",", ":")).encode()
DATA = json.dumps(RECORD, separators=(",", ":"))
CLIENTS = 32
SECONDS = 1.0
"""How long one load lasts within one round."""

Figures = dict[str, list[float]]


class Connection(asyncio.Protocol):
    """One keep-alive connection: sends a request, waits for the whole answer. As little client as can be."""

    def __init__(self) -> None:
        self._parts: list[bytes] = []
        self._missing = 0
        self._answer: asyncio.Future[bytes] | None = None
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport."""
        self._transport = transport  # pyright: ignore[reportAttributeAccessIssue]

    def data_received(self, data: bytes) -> None:
        """Collect the answer by its content length; a long one in parts, not anew with each of them."""
        if not self._parts:
            end = data.index(b"\r\n\r\n")
            head = data[:end].lower()
            at = head.index(b"content-length: ") + 16
            self._missing = end + 4 + int(head[at:].split(b"\r\n", 1)[0])
        self._parts.append(data)
        self._missing -= len(data)
        if not self._missing and self._answer is not None:
            answer, self._parts = b"".join(self._parts), []
            self._answer.set_result(answer)

    async def ask(self, request: bytes) -> bytes:
        """Send a request and give the answer. Ends the script for an answer that is no success."""
        assert self._transport is not None  # noqa: S101 - connected before anything is asked
        self._answer = asyncio.get_running_loop().create_future()
        self._transport.write(request)
        answer = await self._answer
        if answer[9:10] != b"2":
            sys.exit(f"{request[:120]!r}: {answer[-200:]!r}")
        return answer


@dataclass
class Target:
    """A server to be measured, with the clients that are connected to it."""

    name: str
    port: int
    token: str = "none"
    clients: list[Connection] = field(default_factory=list[Connection])
    versions: list[int] = field(default_factory=list[int])

    async def connect(self) -> None:
        """Connect all clients and give each a record of its own."""
        loop = asyncio.get_running_loop()
        for number in range(CLIENTS):
            _, connection = await loop.create_connection(Connection, "127.0.0.1", self.port)
            self.clients.append(connection)
            self.versions.append(1)
            await connection.ask(self.request("PUT", number, b"If-None-Match: *"))

    def request(self, method: str, number: int, condition: bytes = b"") -> bytes:
        """Spell a request for a client's record."""
        body = BODY if method == "PUT" else b""
        return b"%s /v1/state/claims%%2Facme%%2Fwidgets%%2F319-%06d.json HTTP/1.1\r\n%s%s\r\n\r\n%s" % (
            method.encode(),
            number,
            b"Host: x\r\nAuthorization: Bearer %s\r\nContent-Length: %d" % (self.token.encode(), len(body)),
            b"\r\n" + condition if condition else b"",
            body,
        )

    async def put(self, number: int) -> None:
        """Replace a client's record, on condition of its version."""
        await self.clients[number].ask(self.request("PUT", number, b"If-Match: %d" % self.versions[number]))
        self.versions[number] += 1

    async def get(self, number: int) -> None:
        """Read a client's record."""
        await self.clients[number].ask(self.request("GET", number))

    async def listing(self, prefix: str, _: int) -> None:
        """List a directory whole."""
        head = b"Host: x\r\nAuthorization: Bearer %s\r\nContent-Length: 0" % self.token.encode()
        await self.clients[0].ask(b"GET /v1/state?prefix=%s HTTP/1.1\r\n%s\r\n\r\n" % (prefix.encode(), head))


async def rate(act: Callable[[int], Awaitable[None]], clients: int) -> float:
    """Count what so many clients get done in a second, each one after the other."""
    until = perf_counter() + SECONDS
    done = 0

    async def client(number: int) -> None:
        nonlocal done
        while perf_counter() < until:
            await act(number)
            done += 1

    began = perf_counter()
    await asyncio.gather(*(client(number) for number in range(clients)))
    return done / (perf_counter() - began)


async def seconds(act: Callable[[], Awaitable[object]]) -> float:
    """Say how long one act takes."""
    began = perf_counter()
    await act()
    return perf_counter() - began


# The databases themselves --------------------------------------------------------------------------


def rows_of_sqlite(path: Path, prefix: str) -> Callable[[], Awaitable[object]]:
    """Give the reading of the rows of a listing by the driver alone."""
    connection = sqlite3.connect(path)
    query = "SELECT path, data, version, updated_by FROM state WHERE path > ? AND path < ? ORDER BY path"

    async def read() -> object:
        return connection.execute(query, (f"{prefix}/", f"{prefix}0")).fetchall()

    return read


class RawPostgres:
    """The driver's own conditional updates and reads, on a table like the server's."""

    def __init__(self, connections: list["asyncpg.Connection[Any]"]) -> None:
        self._connections = connections
        self._versions = [1] * len(connections)

    @classmethod
    async def connect(cls, url: str) -> "RawPostgres":
        """Connect as many clients as the server has."""
        connections = [await asyncpg.connect(url) for _ in range(CLIENTS)]
        await connections[0].execute(
            'CREATE TABLE IF NOT EXISTS raw (path text COLLATE "C" PRIMARY KEY, data text, version bigint, '
            "updated_at text, updated_by text); TRUNCATE raw"
        )
        for number in range(CLIENTS):
            await connections[0].execute("INSERT INTO raw VALUES ($1, $2, 1, '', '')", str(number), DATA)
        return cls(connections)

    async def put(self, number: int) -> None:
        """Replace a client's row, on condition of its version."""
        done = await self._connections[number].execute(
            "UPDATE raw SET data = $1, version = version + 1, updated_at = 'now', updated_by = 'bench' "
            "WHERE path = $2 AND version = $3",
            DATA,
            str(number),
            self._versions[number],
        )
        if done != "UPDATE 1":
            sys.exit(f"the driver's update: {done}")
        self._versions[number] += 1

    async def rows(self, prefix: str) -> object:
        """Read the rows of a listing."""
        query = "SELECT path, data, version, updated_by FROM state WHERE path > $1 AND path < $2 ORDER BY path"
        return await self._connections[0].fetch(query, f"{prefix}/", f"{prefix}0")


# One run -------------------------------------------------------------------------------------------


def start(argv: list[str], home: Path, wanted: str) -> "subprocess.Popen[str]":
    """Start a server and wait until it says that it listens."""
    log = home / f"{argv[-1].rpartition('/')[2]}.log"
    with open(log, "w", encoding="utf-8") as file:
        process = subprocess.Popen(argv, env=clean_environment(home), stderr=file, text=True)
    for _ in count():
        if process.poll() is not None:
            sys.exit(f"{' '.join(argv)} ended: {log.read_text('utf-8')}")
        if not wanted or wanted in log.read_text("utf-8"):
            return process
        os.sched_yield()
    raise AssertionError


def serve(db: str, port: int, home: Path) -> tuple["subprocess.Popen[str]", str]:
    """Start our server on a database, with a token for everything."""
    coordd = str(BIN / "agentcoordd")
    argv = [coordd, "token", "add", "bench", "--rotate", "--all-state", "--db", db]
    said = subprocess.run(argv, env=clean_environment(home), capture_output=True, text=True, check=True).stdout
    token = next(line.split()[1] for line in said.splitlines() if line.startswith("token:"))
    options = ["--listen", f"127.0.0.1:{port}", "--no-access-log", "--db", db]
    return start([coordd, "server", *options], home, "listening on"), token


async def fill(target: Target, sizes: Iterable[int]) -> None:
    """Store what the listings will list, through the server."""
    for size in sizes:
        for first in range(0, size, CLIENTS):
            numbers = range(first, min(size, first + CLIENTS))
            await asyncio.gather(*(_create(target, size, number) for number in numbers))


async def _create(target: Target, size: int, number: int) -> None:
    path = b"claims%%2Fbench%%2Fr%d%%2F%06d.json" % (size, number)
    head = b"Host: x\r\nAuthorization: Bearer %s\r\nContent-Length: %d" % (target.token.encode(), len(BODY))
    request = b"PUT /v1/state/%s HTTP/1.1\r\n%s\r\nIf-None-Match: *\r\n\r\n%s" % (path, head, BODY)
    await target.clients[number % CLIENTS].ask(request)


async def group_commit(db: str) -> tuple[float, float]:
    """Count durable writes in a second by one caller and by 64, in the storage alone."""
    async with open_sqlite(db, keep=1000) as storage:
        versions: list[int] = []
        for number in range(64):
            await storage.write(Write("create", f"batches/{number}.json", "bench", DATA))
            versions.append(1)

        async def put(number: int) -> None:
            wanted = Write("update", f"batches/{number}.json", "bench", DATA, versions[number])
            if await storage.write(wanted) is None:
                sys.exit("a write of one caller lost a race")
            versions[number] += 1

        await storage.page("batches", Coverage(whole=True), after=None, limit=None)
        return await rate(put, 1), await rate(put, 64)


async def measure(rounds: int, home: Path, postgres: str | None) -> None:
    """Run all loads in turns and print what came of them."""
    sizes = (1_000, 10_000)
    running: list[subprocess.Popen[str]] = []
    try:
        bare = Target("bare route", 18790)
        running.append(start([sys.executable, str(ROOT / "bench" / "bare_server.py"), "18790"], home, ""))
        await _until_open(18790)
        process, token = serve(f"sqlite:///{home}/state.db", 18791, home)
        running.append(process)
        targets = [bare, Target("SQLite", 18791, token)]
        if postgres is not None:
            await _empty(postgres)
            process, token = serve(postgres, 18792, home)
            running.append(process)
            targets.append(Target("PostgreSQL", 18792, token))
        for target in targets:
            await target.connect()
        for target in targets[1:]:
            await fill(target, sizes)
        raw = None if postgres is None else await RawPostgres.connect(postgres)
        figures: Figures = {}
        for _ in range(rounds):
            await _round(targets, raw, home, sizes, figures)
            for callers, found in zip((1, 64), await group_commit(f"sqlite:///{home}/alone.db"), strict=True):
                figures.setdefault(f"SQLite storage, durable writes, {callers} callers", []).append(found)
            (home / "alone.db").unlink()
        _print(figures, sizes)
    finally:
        for process in running:
            process.send_signal(signal.SIGKILL)
            process.wait()


async def _empty(url: str) -> None:
    connection = await asyncpg.connect(url)
    await connection.execute("DROP SCHEMA public CASCADE; CREATE SCHEMA public")
    await connection.close()


async def _until_open(port: int) -> None:
    while True:
        try:
            _, writer = await asyncio.open_connection("127.0.0.1", port)
        except OSError:
            await asyncio.sleep(0.02)
            continue
        writer.close()
        return


async def _round(
    targets: list[Target], raw: RawPostgres | None, home: Path, sizes: Iterable[int], figures: Figures
) -> None:
    for clients in (1, CLIENTS):
        for target in targets:
            for name, act in (("PUT", target.put), ("GET", target.get)):
                figures.setdefault(f"{target.name}, {name}, {clients} clients", []).append(await rate(act, clients))
        if raw is not None:
            figures.setdefault(f"raw driver, PUT, {clients} clients", []).append(await rate(raw.put, clients))
    for size in sizes:
        prefix = f"claims/bench/r{size}"
        for target in targets[1:]:
            listed = await seconds(partial(target.listing, prefix, 0))
            figures.setdefault(f"{target.name}, list {size}", []).append(listed)
        figures.setdefault(f"raw rows SQLite, {size}", []).append(
            await seconds(rows_of_sqlite(home / "state.db", prefix))
        )
        if raw is not None:
            figures.setdefault(f"raw rows PostgreSQL, {size}", []).append(await seconds(partial(raw.rows, prefix)))


def _print(figures: Figures, sizes: Iterable[int]) -> None:
    middle = {name: median(values) for name, values in figures.items()}
    for name, value in middle.items():
        unit = f"{1000 * value:10.1f} ms" if "list" in name or "rows" in name else f"{value:10.0f} /s"
        print(f"{name:46}{unit}")
    print()
    for database in ("SQLite", "PostgreSQL"):
        if f"{database}, PUT, 1 clients" not in middle:
            continue
        for load in (f"PUT, {clients} clients" for clients in (1, CLIENTS)):
            put = middle[f"{database}, {load}"]
            print(f"{database}: {load}: {put / middle[f'bare route, {load}']:.2f} of the bare route")
            if database == "PostgreSQL":
                print(f"{database}: {load}: {put / middle[f'raw driver, {load}']:.2f} of the raw driver")
        for size in sizes:
            ratio = middle[f"{database}, list {size}"] / middle[f"raw rows {database}, {size}"]
            print(f"{database}: list {size}: {ratio:.2f} x reading the rows")
    alone = "SQLite storage, durable writes, {} callers"
    print(f"group commit: 64 callers {middle[alone.format(64)] / middle[alone.format(1)]:.1f} x one")


def main() -> None:
    """Read the options and run."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--postgres", help="postgresql://… of a database to fill")
    options = parser.parse_args()
    with scratch("server") as home:
        uvloop.run(measure(options.rounds, home, options.postgres))


if __name__ == "__main__":
    main()
