"""The outbox as it is kept: a table of the daemon's own database, each change of which is on the disk when it is made.

Every change is one statement, so that nobody who is killed or cancelled leaves half of one.
"""

import json
import os
import sqlite3
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from datetime import datetime
from typing import Literal

import aiosqlite
import msgspec
from msgspec import Struct

from agentcoord.errors import StoreError
from agentcoord.files import cause_of
from agentcoord.protocol.instants import parse
from agentcoord.protocol.outbox import Late, require_shallow

TABLES = """
CREATE TABLE outbox (
  number INTEGER PRIMARY KEY AUTOINCREMENT, url TEXT NOT NULL, late TEXT NOT NULL, queued_at TEXT NOT NULL,
  origin TEXT UNIQUE, attempts INTEGER NOT NULL DEFAULT 0, error TEXT, aside INTEGER NOT NULL DEFAULT 0
) STRICT;
"""

_decoder = msgspec.json.Decoder(Late)


class KeptEntry(Struct, frozen=True):
    """One record that waits for the server at `url`, or was set `aside`; `size` in bytes. Numbers grow with time."""

    number: int
    url: str
    late: Late
    size: int
    queued_at: datetime
    attempts: int
    error: str | None
    aside: bool


class EntryView(Struct, frozen=True):
    """An entry as it is listed: its record's path, when it was queued (UTC), how many seconds ago, and how it went."""

    id: int
    kind: str
    path: str
    backend: str
    queued_at: str
    age: int
    attempts: int
    error: str | None
    state: Literal["waiting", "set_aside"]


class KeptOutbox:
    """The table, over a connection of its own that waits for the disk."""

    def __init__(self, connection: aiosqlite.Connection, path: str) -> None:
        self._connection, self._path = connection, path
        self._files = _identities(path)

    async def entries(self) -> Sequence[KeptEntry]:
        """Read all of it, in order. Raises StoreError naming an entry that cannot be read."""
        with reported(self._path):
            rows = await self._connection.execute_fetchall(
                "SELECT number, url, late, queued_at, attempts, error, aside FROM outbox ORDER BY number"
            )
        return [self._entry(*row) for row in rows]

    def _entry(
        self, number: int, url: str, text: str, queued: str, attempts: int, error: str | None, aside: int
    ) -> KeptEntry:
        try:
            late, queued_at = _decoder.decode(text), parse(queued)
        except msgspec.MsgspecError as fault:
            raise StoreError(f"daemon database is damaged: {self._path}: outbox entry {number}: {fault}") from fault
        if queued_at is None:
            raise StoreError(f"daemon database is damaged: {self._path}: outbox entry {number}: queued at {queued!r}")
        return KeptEntry(number, url, late, len(text.encode()), queued_at, attempts, error, bool(aside))

    async def late(self, number: int) -> Late | None:
        """Read one entry's content; None for one that is gone. Raises StoreError."""
        with reported(self._path):
            rows = list(await self._connection.execute_fetchall("SELECT late FROM outbox WHERE number = ?", (number,)))
        return _decoder.decode(rows[0][0]) if rows else None

    async def add(
        self, url: str, text: str, queued_at: datetime, *, origin: str | None = None, refused: str | None = None
    ) -> int | None:
        """Add an entry and give its number; None if one of that origin is there. Raises StoreError.

        Also where the database was removed under us: what goes into a file without a name ends with the daemon.
        """
        with reported(self._path):
            if _identities(self._path) != self._files:
                raise StoreError(
                    f"daemon database was removed or replaced under the daemon: {self._path}; run agent-coord daemon "
                    "restart once agent-coord outbox list shows that nothing waits any more"
                )
        rows = await self._change(
            "INSERT INTO outbox (url, late, queued_at, origin, error, aside) VALUES (?, ?, ?, ?, ?, ?) "
            "ON CONFLICT (origin) DO NOTHING RETURNING number",
            url,
            text,
            queued_at.isoformat(),
            origin,
            refused,
            int(refused is not None),
        )
        return rows[0][0] if rows else None

    async def replace(self, number: int, text: str) -> None:
        """Put other content in an entry's place. Raises StoreError."""
        await self._change("UPDATE outbox SET late = ? WHERE number = ?", text, number)

    async def mark(self, number: int, attempts: int, error: str | None, *, aside: bool) -> None:
        """Note what came of an entry so far. Raises StoreError."""
        await self._change(
            "UPDATE outbox SET attempts = ?, error = ?, aside = ? WHERE number = ?",
            attempts,
            error,
            int(aside),
            number,
        )

    async def revive(self, numbers: Sequence[int]) -> None:
        """Have entries wait again that were set aside, all of them or none. Raises StoreError."""
        await self._change(
            "UPDATE outbox SET aside = 0, attempts = 0 WHERE number IN (SELECT value FROM json_each(?))",
            json.dumps(numbers),
        )

    async def remove(self, *numbers: int) -> None:
        """Take entries out, all of them or none; one that is gone is no error. Raises StoreError."""
        among = json.dumps(numbers)
        await self._change("DELETE FROM outbox WHERE number IN (SELECT value FROM json_each(?))", among)

    async def _change(self, statement: str, *values: str | int | None) -> list[sqlite3.Row]:
        with reported(self._path):
            return list(await self._connection.execute_fetchall(statement, values))


def _identities(path: str) -> list[tuple[int, int] | None]:
    """Tell which files the database is made of, by device and inode. Raises OSError."""
    found: list[tuple[int, int] | None] = []
    for name in (path, f"{path}-wal"):
        try:
            seen = os.stat(name)
        except FileNotFoundError:
            found.append(None)
        else:
            found.append((seen.st_dev, seen.st_ino))
    return found


def encoded(late: Late) -> str:
    """Give the text that an entry is kept as. StoreError for one that is no Unicode, UsageError if too deep."""
    require_shallow(late)
    try:
        return msgspec.json.encode(late).decode()
    except UnicodeEncodeError:
        raise StoreError(f"it is not valid UTF-8: {late.path!a}") from None


@contextmanager
def reported(path: str) -> Generator[None]:
    """Turn what the database or the system raises into one line."""
    try:
        yield
    except sqlite3.OperationalError as error:  # a full disk, a lock: the file is whole, and to be kept
        raise StoreError(f"daemon database cannot be used now: {path}: {error}") from error
    except sqlite3.Error as error:
        raise StoreError(f"daemon database cannot be used: {path}: {error}; move it away and start again") from error
    except OSError as error:
        raise StoreError(f"daemon database cannot be used: {path}: {cause_of(error)}") from error
