"""The daemon's own database: the roster of lanes and the outbox, so that a restart goes on where it was killed.

A file that is damaged or of a newer release is refused and left as it is: what it says may still be wanted.
"""

import os
from collections.abc import AsyncGenerator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import datetime

import aiosqlite
import msgspec
from msgspec import Struct

from agentcoord.errors import StoreError
from agentcoord.files import opened_directory, sync_directory
from agentcoord.protocol.instants import parse
from agentcoord.protocol.keeping import Lane
from agentcoordd.backends import Backend
from agentcoordd.outbox import TABLES as OUTBOX
from agentcoordd.outbox import KeptOutbox, reported
from agentcoordd.processes import Watched

SCHEMA = 2
"""The version of the tables; a file of a higher one is of a newer release."""

_APPLICATION = 0x61676364  # "agcd": tells our file from any other database
_WAL_BYTES = 4 * 1024 * 1024
_TABLES = """
CREATE TABLE lanes (lane TEXT PRIMARY KEY, entry TEXT NOT NULL) STRICT, WITHOUT ROWID;
CREATE TABLE facts (name TEXT PRIMARY KEY, value TEXT NOT NULL) STRICT, WITHOUT ROWID;
"""
_GROWN = {1: OUTBOX}
"""What each version of the tables lacks of the next one."""
_ALIVE = "alive_at"


class Entry(Struct, frozen=True, omit_defaults=True):
    """One lane of the roster: what is kept, where, and as long as which process lives."""

    id: str
    lane: Lane
    backend: Backend
    process: Watched | None = None
    program: str | None = None
    chosen: str = ""
    batch_id: str | None = None


class Database:
    """The open database. Each change is committed before its method returns."""

    def __init__(self, connection: aiosqlite.Connection, outbox: KeptOutbox, path: str) -> None:
        self._connection = connection
        self.outbox = outbox
        self._path = path

    async def lanes(self) -> Sequence[Entry]:
        """Read the roster. Raises StoreError naming a lane that cannot be read."""
        entries: list[Entry] = []
        with reported(self._path):
            rows = await self._connection.execute_fetchall("SELECT lane, entry FROM lanes ORDER BY lane")
            for lane, entry in rows:
                try:
                    entries.append(msgspec.json.decode(entry, type=Entry))
                except msgspec.MsgspecError as error:
                    raise StoreError(f"daemon database is damaged: {self._path}: lane {lane}: {error}") from error
        return entries

    async def put(self, entry: Entry) -> None:
        """Add a lane, or replace it. Raises StoreError."""
        text = msgspec.json.encode(entry).decode()
        await self._change("INSERT OR REPLACE INTO lanes VALUES (?, ?)", entry.id, text)

    async def remove(self, lane: str) -> None:
        """Take a lane off the roster; one that is not on it is no error. Raises StoreError."""
        await self._change("DELETE FROM lanes WHERE lane = ?", lane)

    async def mark_alive(self, now: datetime) -> None:
        """Note that the daemon was at work at an instant of the wall clock. Raises StoreError."""
        await self._change("INSERT OR REPLACE INTO facts VALUES (?, ?)", _ALIVE, now.isoformat())

    async def alive_at(self) -> datetime | None:
        """Tell when the daemon was last known to be at work. Raises StoreError."""
        with reported(self._path):
            rows = list(await self._connection.execute_fetchall("SELECT value FROM facts WHERE name = ?", (_ALIVE,)))
        return parse(rows[0][0]) if rows else None

    async def _change(self, statement: str, *values: str) -> None:
        with reported(self._path):
            await self._connection.execute(statement, values)
            await self._connection.commit()


@asynccontextmanager
async def open_database(path: str) -> AsyncGenerator[Database]:
    """Open the database, made with its directory as need be, both for this user alone.

    Raises StoreError, and leaves the file as it is, when it is damaged, not ours or of a newer release.
    """
    with reported(path):
        os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            if os.fstat(descriptor).st_uid != os.geteuid():
                raise StoreError(f"daemon database belongs to another user: {path}")
            os.fchmod(descriptor, 0o600)
        finally:
            os.close(descriptor)
        with opened_directory(os.path.dirname(path)) as directory:
            sync_directory(directory)
    async with AsyncExitStack() as opened:
        with reported(path):
            connection = await aiosqlite.connect(path, timeout=5)
            opened.push_async_callback(connection.close)
            await _prepare(connection, path)
            durable = await aiosqlite.connect(path, timeout=5, isolation_level=None)
            opened.push_async_callback(durable.close)
            # What a command was told is queued outlasts the machine's power; the processes on the roster do not.
            await durable.execute("PRAGMA synchronous = FULL")
            await durable.execute(f"PRAGMA journal_size_limit = {_WAL_BYTES}")
        yield Database(connection, KeptOutbox(durable, path), path)


async def _prepare(connection: aiosqlite.Connection, path: str) -> None:
    version = await _number(connection, "PRAGMA user_version")
    application = await _number(connection, "PRAGMA application_id")
    empty = await _number(connection, "SELECT count(*) FROM sqlite_schema") == 0
    if not empty and application != _APPLICATION:
        raise StoreError(f"not a database of the daemon: {path}; move it away and start again")
    if version > SCHEMA:
        raise StoreError(
            f"daemon database is of a newer release (schema {version}, this one knows {SCHEMA}): {path}; "
            "install that release, or move the file away and start again"
        )
    checked = list(await connection.execute_fetchall("PRAGMA quick_check(1)"))
    if [tuple(row) for row in checked] != [("ok",)]:
        found = " ".join(str(checked[0][0]).split())
        raise StoreError(f"daemon database is damaged: {path}: {found}; move it away and start again")
    await connection.execute("PRAGMA journal_mode = WAL")
    # A killed process loses nothing that way. Losing power can, but then the processes on the roster are gone too.
    await connection.execute("PRAGMA synchronous = NORMAL")
    await connection.execute(f"PRAGMA journal_size_limit = {_WAL_BYTES}")
    steps = f"{_TABLES}{OUTBOX}PRAGMA application_id = {_APPLICATION};" if empty else "".join(_missing(version))
    if steps:
        await connection.executescript(f"BEGIN IMMEDIATE;{steps}PRAGMA user_version = {SCHEMA};COMMIT;")


def _missing(version: int) -> list[str]:
    return [_GROWN[old] for old in range(max(version, 1), SCHEMA)]


async def _number(connection: aiosqlite.Connection, query: str) -> int:
    rows = list(await connection.execute_fetchall(query))
    return int(rows[0][0])
