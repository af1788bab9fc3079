"""The copies of backends, as the replica's file holds them: its tables, and where the copy of each backend stands."""

import secrets
import sqlite3
from collections.abc import Mapping, Sequence
from datetime import datetime

import aiosqlite
import msgspec
from msgspec import Struct

from agentcoord.protocol.instants import parse
from agentcoord.protocol.paths import FAMILIES
from agentcoord.protocol.scopes import coverage
from agentcoordd.replicastore import Sight

SCHEMA = 1
"""The version of the tables; a file of another one is replaced."""
_APPLICATION = 0x61676372  # "agcr"
_WAL_BYTES = 4 * 1024 * 1024
_TABLES = """
CREATE TABLE replica (made TEXT NOT NULL) STRICT;
CREATE TABLE backends (
    backend INTEGER PRIMARY KEY,
    url TEXT NOT NULL UNIQUE,
    cursor TEXT,
    as_of TEXT,
    reads TEXT NOT NULL DEFAULT 'null',
    sights TEXT NOT NULL DEFAULT '{}',
    records INTEGER NOT NULL DEFAULT 0,
    bytes INTEGER NOT NULL DEFAULT 0
) STRICT;
CREATE TABLE records (
    backend INTEGER NOT NULL,
    path TEXT NOT NULL,
    version TEXT NOT NULL,
    data BLOB NOT NULL,
    UNIQUE (backend, path)
) STRICT;
CREATE TRIGGER more AFTER INSERT ON records BEGIN
    UPDATE backends SET records = records + 1, bytes = bytes + length(new.data) WHERE backend = new.backend;
END;
CREATE TRIGGER other AFTER UPDATE ON records BEGIN
    UPDATE backends SET bytes = bytes + length(new.data) - length(old.data) WHERE backend = new.backend;
END;
CREATE TRIGGER fewer AFTER DELETE ON records BEGIN
    UPDATE backends SET records = records - 1, bytes = bytes - length(old.data) WHERE backend = old.backend;
END;
"""
HELD = "SELECT backend, cursor, as_of, reads, sights, records, bytes FROM backends WHERE url = ?"
_DAMAGED = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)


class Held(Struct):
    """How the copy of one backend stands. `made` names the file it is in."""

    url: str
    backend: int
    made: str
    cursor: str | None = None
    as_of: datetime | None = None
    reads: tuple[str, ...] | None = None
    sights: dict[str, Sight] = {}
    records: int = 0
    bytes: int = 0

    @property
    def filtered(self) -> bool:
        """Whether there are records that the token may not see, as far as the backend says."""
        return is_filtered(self.reads, self.sights)


class Outdated(Exception):
    """A file that is to be replaced."""


async def prepared(connection: aiosqlite.Connection, most_bytes: int) -> str:
    """Make the tables if there are none, and give the name of the file. Raises Outdated, sqlite3.Error."""
    try:
        version = await _number(connection, "PRAGMA user_version")
        application = await _number(connection, "PRAGMA application_id")
        empty = await _number(connection, "SELECT count(*) FROM sqlite_schema") == 0
        if not empty and (application, version) != (_APPLICATION, SCHEMA):
            raise Outdated("it is of another release")
        if [tuple(row) for row in await connection.execute_fetchall("PRAGMA quick_check(1)")] != [("ok",)]:
            raise Outdated("it is damaged")
        await connection.execute_fetchall("PRAGMA journal_mode = WAL")
        await connection.execute("PRAGMA synchronous = NORMAL")  # a power failure costs the newest batches only
        await connection.execute_fetchall(f"PRAGMA journal_size_limit = {_WAL_BYTES}")
        page = await _number(connection, "PRAGMA page_size")
        await connection.execute_fetchall(f"PRAGMA max_page_count = {max(most_bytes // page, 64)}")
        if empty:
            await connection.executescript(
                f"BEGIN IMMEDIATE;{_TABLES}INSERT INTO replica VALUES ('{secrets.token_hex(8)}');"  # noqa: S608
                f"PRAGMA application_id = {_APPLICATION};PRAGMA user_version = {SCHEMA};COMMIT;"
            )
        ((made,),) = await connection.execute_fetchall("SELECT made FROM replica")
        return str(made)
    except sqlite3.DatabaseError as error:
        if is_damage(error):
            raise Outdated(f"it is damaged: {error}") from error
        raise


async def _number(connection: aiosqlite.Connection, query: str) -> int:
    rows = list(await connection.execute_fetchall(query))
    return int(rows[0][0])


def seen(connection: sqlite3.Connection, url: str) -> tuple[str, Held | None]:
    """Look in the open transaction which file it is, and how the copy of a backend stands."""
    if connection.execute("PRAGMA user_version").fetchone() != (SCHEMA,):
        return "", None
    (made,) = connection.execute("SELECT made FROM replica").fetchone()
    row = connection.execute(HELD, (url,)).fetchone()
    return made, None if row is None else held_of(url, made, row)


def held_of(url: str, made: str, row: tuple[object, ...]) -> Held:
    """Read what HELD gave of a backend."""
    backend, cursor, as_of, reads, sights, records, size = row
    return Held(
        url=url,
        backend=msgspec.convert(backend, int),
        made=made,
        cursor=None if cursor is None else str(cursor),
        as_of=parse(as_of),
        reads=msgspec.json.decode(str(reads), type=tuple[str, ...] | None),
        sights=msgspec.json.decode(str(sights), type=dict[str, Sight]),
        records=msgspec.convert(records, int),
        bytes=msgspec.convert(size, int),
    )


def is_filtered(reads: Sequence[str] | None, sights: Mapping[str, Sight]) -> bool:
    """Tell whether a token sees less than all records, by its scopes or else by what the listings said."""
    if reads is not None:
        return not all(coverage(reads, family).whole for family in FAMILIES)
    return any(sight.filtered or sight.status == 403 for sight in sights.values())


def is_damage(error: sqlite3.Error) -> bool:
    """Tell whether an error means that the file is no good, and not that it cannot be had at this moment."""
    return getattr(error, "sqlite_errorcode", 0) & 0xFF in _DAMAGED
