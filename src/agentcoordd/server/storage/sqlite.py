"""State in one SQLite file: the database for a fleet that one server process serves.

Point reads are answered where they are asked: they cost less than handing them to a thread would.
Listings have a thread and a connection of their own, writes share transactions (see `committer`).
"""

import errno
import os
import sqlite3
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from contextlib import ExitStack, asynccontextmanager, closing
from datetime import UTC, datetime
from functools import partial
from typing import TypeVar
from urllib.parse import unquote

import anyio
import anyio.to_thread

from agentcoord.errors import UsageError
from agentcoord.protocol.scopes import Coverage, read_scopes
from agentcoordd.server.groups import open_tasks
from agentcoordd.server.storage.base import (
    CHANGES_BYTES,
    Change,
    Feed,
    Grant,
    Machine,
    Page,
    Row,
    StorageDown,
    Verdict,
    Write,
    stamp,
)
from agentcoordd.server.storage.committer import Committer
from agentcoordd.server.storage.migrations import migrations
from agentcoordd.server.storage.query import Values, below, page_of, page_query, stored_scopes
from agentcoordd.server.storage.serverlock import RememberedMachines, alone, mark_tokens_changed
from agentcoordd.server.storage.sqlitewrites import BUSY, HEAD, applied, begin, begun, trim

_T = TypeVar("_T")
_SCHEME = "sqlite:///"
_WAL_BYTES = 64 * 1024 * 1024
"""What the journal shrinks to again after it had to grow, as while a backup is made."""

_HERE = 0.002
"""Seconds for which the changes of a transaction are made where they come in; what is left then goes to a thread."""

_ENOUGH = 12
"""Writes that are worth a trip to the disk: the next ones are made while it lasts."""

_FEED = HEAD.replace("SELECT max(", "SELECT name, forgotten, max(", 1)

_ENTRY = (
    """CAST(CASE WHEN updated_by IS NULL THEN printf('{"path":"%s","data":%s,"version":%d}', path, data, version) """
    """ELSE printf('{"path":"%s","data":%s,"version":%d,"updated_by":"%s"}', path, data, version, updated_by) END """
    "AS BLOB)"
)
"""A record as the JSON object that a listing carries. Paths and machines have no character that JSON would escape."""


def path_of(url: str) -> str:
    """Read the file's absolute path from `sqlite:///PATH`. Raises UsageError."""
    path = unquote(url.removeprefix(_SCHEME))
    if not url.startswith(_SCHEME) or not path or "\0" in path:
        raise UsageError("--db must be sqlite:///PATH or postgresql://…")
    return path if path.startswith("/") else os.path.abspath(path)


@asynccontextmanager
async def open_sqlite(url: str, *, keep: int) -> AsyncGenerator["SqliteStorage"]:
    """Open the file for one server, made and migrated as need be.

    Raises StorageDown when it cannot be used or another server has it, UsageError when it is of a newer release.
    """
    path = path_of(url)
    with ExitStack() as held:
        with _reported(path):
            os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
            machines = held.enter_context(alone(path))
        async with _opened(path, keep=keep, machines=machines) as storage, open_tasks() as tasks:
            tasks.start_soon(storage.committer.run)
            try:
                yield storage
            finally:
                storage.committer.close()


@asynccontextmanager
async def open_sqlite_tokens(url: str, *, make: bool = True) -> AsyncGenerator["SqliteStorage"]:
    """Open the file for managing tokens, beside a server that may be running.

    Raises StorageDown when it cannot be used, or is not there and not to be made.
    """
    path = path_of(url)
    if not make:
        _require_there(path)
    async with _opened(path, keep=0) as storage:
        yield storage


@asynccontextmanager
async def _opened(
    path: str, *, keep: int, machines: RememberedMachines | None = None
) -> AsyncGenerator["SqliteStorage"]:
    with ExitStack() as connections:
        with _reported(path):
            os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
            os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
            writer, reader, lister = [connections.enter_context(closing(_connect(path))) for _ in range(3)]
            if machines is None:
                _migrate_unless_served(path, writer)
            else:
                _migrate(writer)
            writer.execute("PRAGMA wal_autocheckpoint = 2000")
            writer.execute(f"PRAGMA journal_size_limit = {_WAL_BYTES}")
            for connection in (reader, lister):
                connection.execute("PRAGMA query_only = ON")
            if machines is not None:  # a server has requests to answer while another process writes
                writer.execute("PRAGMA busy_timeout = 0")
        yield SqliteStorage(path, writer, reader, lister, keep=keep, machines=machines)


def _require_there(path: str) -> None:
    if not os.path.exists(path):
        raise StorageDown(f"there is no database: {path}")


class _reported:  # noqa: N801 - reads as a verb, like the functions of contextlib; a generator costs more than a read
    """Turn what the database or the system raises into StorageDown."""

    __slots__ = ("_what",)

    def __init__(self, what: str) -> None:
        self._what = what

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, sqlite3.Error):
            raise StorageDown(f"database error: {self._what}: {error}") from error
        if isinstance(error, OSError):
            raise StorageDown(f"database cannot be used: {self._what}: {error.strerror or error}") from error


def _connect(path: str) -> sqlite3.Connection:
    # One thread at a time uses each connection, but not always the same one.
    connection = sqlite3.connect(path, timeout=BUSY, isolation_level=None, check_same_thread=False)
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA synchronous = FULL")
    return connection


def _migrate_unless_served(path: str, connection: sqlite3.Connection) -> None:
    """Keep a schema from changing under a server, which would be of an earlier release. Raises StorageDown."""
    (done,) = connection.execute("PRAGMA user_version").fetchone()
    if not 0 < done < max(step.number for step in migrations("sqlite")):
        return _migrate(connection)
    try:
        with alone(path):
            return _migrate(connection)
    except StorageDown as error:
        raise StorageDown(f"{error}, of an earlier release: stop it first, then start this release's") from error


def _migrate(connection: sqlite3.Connection) -> None:
    connection.execute("BEGIN IMMEDIATE")
    try:
        (done,) = connection.execute("PRAGMA user_version").fetchone()
        for step in migrations("sqlite"):
            if step.number > done:
                for statement in _statements(step.sql):
                    connection.execute(statement)
                connection.execute(f"PRAGMA user_version = {step.number}")
        known = max(step.number for step in migrations("sqlite"))
        if done > known:
            raise UsageError(
                f"the database is of a newer release: schema {done}, this one knows {known}; "
                "use that release or a database of its own"
            )
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:  # of some errors, SQLite has ended it already
            connection.execute("ROLLBACK")
        raise


def _statements(script: str) -> Iterator[str]:
    """Split a script; `executescript` would commit the transaction that all steps share."""
    statement = ""
    for line in script.splitlines():
        if line.startswith("--"):
            continue
        statement += line + "\n"
        if sqlite3.complete_statement(statement):
            yield statement
            statement = ""


class SqliteStorage:
    """One database file. See `storage.base.Storage` for what it promises."""

    def __init__(
        self,
        path: str,
        writer: sqlite3.Connection,
        reader: sqlite3.Connection,
        lister: sqlite3.Connection,
        *,
        keep: int,
        machines: RememberedMachines | None = None,
    ) -> None:
        self.committer = Committer(self._commit, self._trim, enough=_ENOUGH)
        self._path, self._writer, self._reader, self._lister, self._keep = path, writer, reader, lister, keep
        self._machines = machines
        self._writing = anyio.CapacityLimiter(1)
        self._listing = anyio.CapacityLimiter(1)
        self._news = anyio.Event()
        self._inode = os.stat(path).st_ino

    async def machine(self, token_hash: str) -> Machine | None:
        """Find whose token has this SHA-256, unless it was revoked."""
        query = (
            "SELECT machine, read_prefixes, write_prefixes FROM machines WHERE token_hash = ? AND revoked_at IS NULL"
        )
        with _reported("tokens"):
            if self._machines is not None and (known := self._machines.get(token_hash)) is not None:
                return known
            row = self._reader.execute(query, (token_hash,)).fetchone()
        if row is None:
            return None
        machine = Machine(row[0], read_scopes(row[1]), read_scopes(row[2]))
        if self._machines is not None:
            self._machines.put(token_hash, machine)
        return machine

    async def read(self, path: str) -> Row | None:
        """Read one record; None when there is none."""
        with _reported(path):
            row = self._reader.execute("SELECT data, version, updated_by FROM state WHERE path = ?", (path,)).fetchone()
        return None if row is None else Row(*row)

    async def page(self, prefix: str, coverage: Coverage, *, after: str | None, limit: int | None) -> Page:
        """List what may be seen below a prefix, strictly after a path."""
        values = Values(_mark)
        query = page_query(_ENTRY, prefix, coverage, values, after, limit)
        with _reported(prefix):
            return await self._listed(partial(_page, self._lister, query, values, limit))

    async def write(self, write: Write) -> Verdict:
        """Make one conditional change, durably."""
        return await self.committer.submit(write)

    async def feed(self) -> Feed:
        """Tell where the feed stands."""
        with _reported("feed"):
            name, forgotten, head = self._reader.execute(_FEED).fetchone()
        return Feed(name, head, forgotten)

    async def changes(self, since: int, prefix: str, coverage: Coverage, *, limit: int) -> tuple[Sequence[Change], int]:
        """List changes after a number, in order and without a gap, and the number to go on from."""
        values = Values(_mark, since)
        where = below(prefix, coverage, values.mark, "changes.path")
        query = (
            "SELECT changes.seq, changes.path, changes.version, deleted, changes.updated_by, at, "  # noqa: S608 - as above
            # Of a record, only its newest change carries data: the older ones have it no more.
            "state.data FROM changes LEFT JOIN state ON state.path = changes.path AND state.seq = changes.seq "
            f"WHERE changes.seq > ? AND {where} ORDER BY changes.seq LIMIT {limit}"
        )
        with _reported("changes"):
            found, head = await self._listed(partial(_changes, self._lister, query, values))
        if len(found) == limit or sum(map(_size, found)) >= CHANGES_BYTES:
            return found, found[-1].seq
        return found, max(head, since)

    async def changed(self, after: int, *, seconds: float) -> None:
        """Wait until there may be a change after a number, at most so long."""
        news = self._news
        if (await self.feed()).head > after:
            return
        with anyio.move_on_after(seconds):
            await news.wait()

    async def check(self) -> None:
        """Ask the database whether it answers."""
        with _reported("check"):
            self._require_in_place()
            self._reader.execute("SELECT count(*) FROM feed").fetchone()

    def _require_in_place(self) -> None:
        """Refuse to go on with a file that was removed or replaced: what it is given ends with this process."""
        if os.stat(self._path).st_ino != self._inode:
            raise OSError(errno.ESTALE, "the file was replaced under the server, which has to be started anew")

    async def grant(
        self, machine: str, token_hash: str, *, reads: Sequence[str], writes: Sequence[str], rotate: bool
    ) -> bool:
        """Store a machine's token; with `rotate` in place of the one it had."""
        replace = (
            "ON CONFLICT (machine) DO UPDATE SET token_hash = excluded.token_hash, revoked_at = NULL, "
            "read_prefixes = excluded.read_prefixes, write_prefixes = excluded.write_prefixes, "
            "created_at = excluded.created_at"
        )
        query = (
            "INSERT INTO machines (machine, token_hash, read_prefixes, write_prefixes, created_at) "  # noqa: S608
            f"VALUES (?, ?, ?, ?, strftime('%Y-%m-%dT%H:%M:%SZ', 'now')) {replace if rotate else ''}"
        )
        try:
            with _reported("tokens"):
                self._writer.execute(query, (machine, token_hash, stored_scopes(reads), stored_scopes(writes)))
        except StorageDown as error:
            if isinstance(error.__cause__, sqlite3.IntegrityError):
                return False
            raise
        mark_tokens_changed(self._path)
        return True

    async def revoke(self, machine: str) -> bool:
        """End a machine's token at once."""
        query = (
            "UPDATE machines SET revoked_at = strftime('%Y-%m-%dT%H:%M:%SZ', 'now') "
            "WHERE machine = ? AND revoked_at IS NULL"
        )
        with _reported("tokens"):
            revoked = self._writer.execute(query, (machine,)).rowcount == 1
        mark_tokens_changed(self._path)  # also of one that was revoked before: whoever was cut off then has not said so
        return revoked

    async def grants(self) -> Sequence[Grant]:
        """List all machines, by name."""
        query = "SELECT machine, read_prefixes, write_prefixes, created_at, revoked_at FROM machines ORDER BY machine"
        with _reported("tokens"):
            return [Grant(*row) for row in self._reader.execute(query)]

    async def _listed(self, ask: Callable[[], _T]) -> _T:
        return await anyio.to_thread.run_sync(ask, limiter=self._listing)

    async def _written(self, transact: Callable[[], _T]) -> _T:
        return await anyio.to_thread.run_sync(transact, limiter=self._writing)

    async def _commit(self, writes: Sequence[Write]) -> Sequence[Verdict]:
        at = stamp(datetime.now(UTC))
        with _reported(self._path):
            self._require_in_place()
            try:
                if not begun(self._writer):
                    await self._written(partial(begin, self._writer))
                # In memory until the commit, which alone has to wait for the disk. A thread would have to ask for the
                # interpreter after each statement, from one that has requests to answer. What is large goes there.
                verdicts = applied(self._writer, writes, at, seconds=_HERE)
                if len(verdicts) < len(writes):
                    rest = writes[len(verdicts) :]
                    verdicts += await self._written(partial(applied, self._writer, rest, at))
                await self._written(partial(self._writer.execute, "COMMIT"))
            except BaseException:
                if self._writer.in_transaction:  # of some errors, SQLite has ended it already
                    self._writer.execute("ROLLBACK")
                raise
        news, self._news = self._news, anyio.Event()
        news.set()
        return verdicts

    async def _trim(self) -> None:
        with _reported("changes"):
            await self._written(partial(trim, self._writer, self._keep))


def _mark(_: int) -> str:
    return "?"


def _page(connection: sqlite3.Connection, query: str, values: Sequence[object], limit: int | None) -> Page:
    return page_of(connection.execute(query, values).fetchall(), limit, b",".join)


def _changes(connection: sqlite3.Connection, query: str, values: Sequence[object]) -> tuple[list[Change], int]:
    """Read changes and the head of one and the same moment: what is not among them was not there yet."""
    connection.execute("BEGIN")
    try:
        (head,) = connection.execute(HEAD).fetchone()
        found: list[Change] = []
        size = 0
        with closing(connection.execute(query, values)) as rows:
            for row in rows:
                found.append(Change(row[0], row[1], row[2], bool(row[3]), row[4], row[5], row[6]))
                size += _size(found[-1])
                if size >= CHANGES_BYTES:
                    break
        return found, head
    finally:
        connection.execute("COMMIT")


def _size(change: Change) -> int:
    return len(change.data or "")
