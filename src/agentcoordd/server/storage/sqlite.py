"""State in one SQLite file: the database for a fleet that one server process serves.

Point reads are answered where they are asked: they cost less than handing them to a thread would.
Listings have a thread and a connection of their own, writes share transactions (see `committer`).
"""

import errno
import fcntl
import os
import sqlite3
from collections.abc import AsyncGenerator, Callable, Generator, Iterator, Sequence
from contextlib import ExitStack, asynccontextmanager, closing, contextmanager, suppress
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

_T = TypeVar("_T")
_SCHEME = "sqlite:///"
_BUSY = 7.0
"""Seconds to wait for another process that has the file, such as one that adds a token."""

_WAL_BYTES = 64 * 1024 * 1024
"""What the journal shrinks to again after it had to grow, as while a backup is made."""

_TRIM_EVERY = 1000
"""Changes between two looks at whether old ones can be forgotten."""


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
    with _alone(path):
        async with _opened(path, keep=keep) as storage, open_tasks() as tasks:
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
async def _opened(path: str, *, keep: int) -> AsyncGenerator["SqliteStorage"]:
    with ExitStack() as connections:
        with _reported(path):
            os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
            os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
            writer, reader, lister = [connections.enter_context(closing(_connect(path))) for _ in range(3)]
            _migrate(writer)
            writer.execute("PRAGMA wal_autocheckpoint = 2000")
            writer.execute(f"PRAGMA journal_size_limit = {_WAL_BYTES}")
            for connection in (reader, lister):
                connection.execute("PRAGMA query_only = ON")
        yield SqliteStorage(writer, reader, lister, keep=keep)


def _require_there(path: str) -> None:
    if not os.path.exists(path):
        raise StorageDown(f"there is no database: {path}")


@contextmanager
def _alone(path: str) -> Generator[None]:
    """Keep a second server from the file: it would not hear of this one's changes."""
    with _reported(path):
        os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
        descriptor = os.open(f"{path}.server-lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno in (errno.EAGAIN, errno.EACCES):
                raise StorageDown(f"another server has this database: {path}") from error
            raise StorageDown(f"database cannot be locked: {path}: {error.strerror}") from error
        yield
    finally:
        os.close(descriptor)


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
    connection = sqlite3.connect(path, timeout=_BUSY, isolation_level=None, check_same_thread=False)
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA synchronous = FULL")
    return connection


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
        self, writer: sqlite3.Connection, reader: sqlite3.Connection, lister: sqlite3.Connection, *, keep: int
    ) -> None:
        self.committer = Committer(self._commit)
        self._writer, self._reader, self._lister, self._keep = writer, reader, lister, keep
        self._writing = anyio.CapacityLimiter(1)
        self._listing = anyio.CapacityLimiter(1)
        self._news = anyio.Event()
        self._untrimmed = 0

    async def machine(self, token_hash: str) -> Machine | None:
        """Find whose token has this SHA-256, unless it was revoked."""
        query = (
            "SELECT machine, read_prefixes, write_prefixes FROM machines WHERE token_hash = ? AND revoked_at IS NULL"
        )
        with _reported("tokens"):
            row = self._reader.execute(query, (token_hash,)).fetchone()
        return None if row is None else Machine(row[0], read_scopes(row[1]), read_scopes(row[2]))

    async def read(self, path: str) -> Row | None:
        """Read one record; None when there is none."""
        with _reported(path):
            row = self._reader.execute("SELECT data, version, updated_by FROM state WHERE path = ?", (path,)).fetchone()
        return None if row is None else Row(*row)

    async def page(self, prefix: str, coverage: Coverage, *, after: str | None, limit: int | None) -> Page:
        """List what may be seen below a prefix, strictly after a path."""
        values = Values(_mark)
        query = page_query(prefix, coverage, values, after, limit)
        with _reported(prefix):
            rows = await self._listed(partial(_all, self._lister, query, values))
        return page_of(rows, limit)

    async def write(self, write: Write) -> Verdict:
        """Make one conditional change, durably."""
        return await self.committer.submit(write)

    async def feed(self) -> Feed:
        """Tell where the feed stands."""
        query = "SELECT name, forgotten, max(forgotten, ifnull((SELECT max(seq) FROM changes), 0)) FROM feed"
        with _reported("feed"):
            name, forgotten, head = self._reader.execute(query).fetchone()
        return Feed(name, head, forgotten)

    async def changes(self, since: int, prefix: str, coverage: Coverage, *, limit: int) -> tuple[Sequence[Change], int]:
        """List changes after a number, in order and without a gap, and the number to go on from."""
        values = Values(_mark, since)
        where = below(prefix, coverage, values.mark, "changes.path")
        query = (
            "SELECT seq, changes.path, changes.version, deleted, changes.updated_by, at, "  # noqa: S608 - as above
            # A record that was deleted and made anew has the same versions again: only its newest change is told apart.
            "CASE WHEN deleted OR seq <> (SELECT max(seq) FROM changes AS later WHERE later.path = changes.path) "
            "THEN NULL ELSE state.data END FROM changes "
            "LEFT JOIN state ON state.path = changes.path AND state.version = changes.version "
            f"WHERE seq > ? AND {where} ORDER BY seq LIMIT {limit}"
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
            self._reader.execute("SELECT count(*) FROM feed").fetchone()

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
        return True

    async def revoke(self, machine: str) -> bool:
        """End a machine's token at once."""
        query = (
            "UPDATE machines SET revoked_at = strftime('%Y-%m-%dT%H:%M:%SZ', 'now') "
            "WHERE machine = ? AND revoked_at IS NULL"
        )
        with _reported("tokens"):
            return self._writer.execute(query, (machine,)).rowcount == 1

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
        now = datetime.now(UTC)
        with _reported("write"):
            verdicts = await self._written(partial(_transact, self._writer, writes, now))
        news, self._news = self._news, anyio.Event()
        news.set()
        self._untrimmed += len(writes)
        if self._untrimmed >= _TRIM_EVERY:
            self._untrimmed = 0
            with suppress(StorageDown), _reported("changes"):  # the writes are stored; old changes can wait
                await self._written(partial(_trim, self._writer, self._keep))
        return verdicts


def _mark(_: int) -> str:
    return "?"


def _all(connection: sqlite3.Connection, query: str, values: Sequence[object]) -> list[tuple[str, str]]:
    return connection.execute(query, values).fetchall()


def _changes(connection: sqlite3.Connection, query: str, values: Sequence[object]) -> tuple[list[Change], int]:
    """Read changes and the head of one and the same moment: what is not among them was not there yet."""
    connection.execute("BEGIN")
    try:
        (head,) = connection.execute("SELECT ifnull(max(seq), 0) FROM changes").fetchone()
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


def _transact(connection: sqlite3.Connection, writes: Sequence[Write], now: datetime) -> list[Verdict]:
    at = stamp(now)
    connection.execute("BEGIN IMMEDIATE")
    try:
        verdicts = [_apply(connection, write, at) for write in writes]
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise
    return verdicts


def _apply(connection: sqlite3.Connection, write: Write, at: str) -> Verdict:
    match write.kind:
        case "create":
            made = connection.execute(
                "INSERT INTO state (path, data, version, updated_at, updated_by) VALUES (?, ?, 1, ?, ?) "
                "ON CONFLICT (path) DO NOTHING",
                (write.path, write.data, at, write.machine),
            )
            version = 1
        case "update":
            made = connection.execute(
                "UPDATE state SET data = ?, version = version + 1, updated_at = ?, updated_by = ? "
                "WHERE path = ? AND version = ?",
                (write.data, at, write.machine, write.path, write.version),
            )
            version = write.version + 1
        case "delete":
            made = connection.execute("DELETE FROM state WHERE path = ? AND version = ?", (write.path, write.version))
            version = write.version
    if made.rowcount != 1:
        return None
    connection.execute(
        "INSERT INTO changes (path, version, deleted, updated_by, at) VALUES (?, ?, ?, ?, ?)",
        (write.path, version, write.kind == "delete", write.machine, at),
    )
    return version


def _trim(connection: sqlite3.Connection, keep: int) -> None:
    """Forget the oldest changes, but `keep` of them, and say up to where."""
    (head,) = connection.execute("SELECT ifnull(max(seq), 0) FROM changes").fetchone()
    last = head - keep
    if last <= 0:
        return
    connection.execute("BEGIN IMMEDIATE")
    try:
        connection.execute("UPDATE feed SET forgotten = max(forgotten, ?)", (last,))
        connection.execute("DELETE FROM changes WHERE seq <= ?", (last,))
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise
