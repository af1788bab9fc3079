"""What this machine knows of its backends without asking them: a database of copies, which may be lost at any time.

It is a cache. A file that is damaged, of another release or somebody else's making is replaced, one that cannot be had
is done without; nothing that matters stands in it. One connection writes, one transaction a batch; whoever answers from
it opens a connection of its own, and so sees one moment.
"""

import logging
import os
import sqlite3
import stat
from collections.abc import AsyncGenerator, Generator, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from datetime import datetime, timedelta

import aiosqlite
import anyio
import msgspec
from msgspec import Struct

from agentcoord.errors import StoreError
from agentcoord.files import cause_of
from agentcoord.operations.context import Snapshot
from agentcoord.protocol.replica import Label
from agentcoordd.clock import Clock
from agentcoordd.copies import HELD, Held, Outdated, held_of, is_damage, prepared, seen
from agentcoordd.replicastore import ReplicaStore, Sight

MOST_BYTES = 1024 * 1024 * 1024
"""How large the file may become, unless the settings say otherwise."""

MOST_SPARED, SPARED_PART = 64 * 1024 * 1024, 8
"""What is left free on the disk: so many bytes, of a small disk one in so many. Outbox and roster may need them."""

_PATIENCE = 5.0
_PUT = (
    "INSERT INTO records (backend, path, version, data) VALUES (?, ?, ?, ?) "
    "ON CONFLICT (backend, path) DO UPDATE SET version = excluded.version, data = excluded.data "
    # A record that was removed and made anew may have the version of the one before.
    "WHERE version != excluded.version OR data != excluded.data"
)
_AHEAD = timedelta(seconds=2)

log = logging.getLogger(__name__)

Record = tuple[str, str, bytes]
"""Path, version and JSON as it came."""


class Unusable(StoreError):
    """The replica cannot be read or written at this moment, as on a full disk."""


class Lost(StoreError):
    """The file is not the one that was written before: whatever was in that has to be asked for again."""


class Moment(Struct, frozen=True):
    """An instant, by the wall clock in UTC and by the clock that counts through suspend."""

    wall: datetime
    boot: float


class Replica:
    """The file. Every method raises Unusable when it cannot be used now, Lost when it is another one by now."""

    def __init__(self, path: str, clock: Clock, *, most_bytes: int = MOST_BYTES) -> None:
        self.path = path
        self._clock, self.most_bytes = clock, most_bytes
        self._connection: aiosqlite.Connection | None = None
        self._identity: tuple[int, int] | None = None
        self._made = ""
        self._damaged = self._told = False
        self._turn = anyio.Lock()
        self._fresh: dict[str, tuple[str, Moment]] = {}
        """Of each backend, the file it is in and the moment it is known to be equal to. Read by other threads."""

    # What the copying does --------------------------------------------------------------------------

    async def begin(self, url: str) -> Held:
        """Look how far the copy of a backend is; there is an empty one if there was none."""
        async with self._batch(None) as connection:
            await connection.execute("INSERT INTO backends (url) VALUES (?) ON CONFLICT DO NOTHING", (url,))
            held = Held(url, 0, self._made)
            await self._refresh(connection, held)
        if (fresh := self._fresh.get(url)) is not None and fresh[0] == held.made:
            held.as_of = fresh[1].wall
        if held.as_of is not None and held.as_of > self._clock.now() + _AHEAD:  # nobody can tell how old it is
            held.as_of = None
        return held

    async def forget_others(self, urls: Iterable[str]) -> None:
        """Drop the copies of backends that are no longer served."""
        named = msgspec.json.encode(sorted(urls)).decode()
        others = "SELECT backend FROM backends WHERE url NOT IN (SELECT value FROM json_each(?))"
        async with self._batch(None) as connection:
            await connection.execute(f"DELETE FROM records WHERE backend IN ({others})", (named,))  # noqa: S608
            await connection.execute("DELETE FROM backends WHERE url NOT IN (SELECT value FROM json_each(?))", (named,))

    def discard(self) -> None:
        """Remove the file, where no copies are wanted. Raises OSError."""
        self._remove()

    async def put_page(
        self, held: Held, prefix: str, after: str | None, upto: str | None, records: Sequence[Record]
    ) -> bool:
        """Have exactly these records below a prefix, after one path and up to another; tells whether it is news."""
        above, below = (after or f"{prefix}/"), (upto or f"{prefix}0")
        end = "<=" if upto else "<"
        named = msgspec.json.encode([record[0] for record in records]).decode()
        self._require_room(records)
        async with self._batch(held) as connection:
            before = connection.total_changes
            await connection.execute(
                f"DELETE FROM records WHERE backend = ? AND path > ? AND path {end} ? "  # noqa: S608
                "AND path NOT IN (SELECT value FROM json_each(?))",
                (held.backend, above, below, named),
            )
            await connection.executemany(_PUT, [(held.backend, *record) for record in records])
            changed = connection.total_changes > before
            await self._refresh(connection, held)
        return changed

    async def put_changes(
        self, held: Held, changed: Sequence[Record], deleted: Sequence[str], cursor: str, equal_at: Moment | None
    ) -> None:
        """Take over what a feed told, each path once, with the cursor after it; `equal_at` once that was all of it."""
        self._require_room(changed)
        async with self._batch(held) as connection:
            await connection.executemany(
                "DELETE FROM records WHERE backend = ? AND path = ?", [(held.backend, path) for path in deleted]
            )
            await connection.executemany(_PUT, [(held.backend, *record) for record in changed])
            await self._note(connection, held, cursor=cursor, equal_at=equal_at)
            await self._refresh(connection, held)
        self._mark(held, equal_at)

    async def settle(
        self,
        held: Held,
        *,
        cursor: str | None,
        reads: Sequence[str] | None,
        sights: Mapping[str, Sight],
        equal_at: Moment,
    ) -> None:
        """Note that all listings were gone through, and with whose eyes."""
        async with self._batch(held) as connection:
            await connection.execute(
                "UPDATE backends SET reads = ?, sights = ? WHERE backend = ?",
                (msgspec.json.encode(reads).decode(), msgspec.json.encode(dict(sights)).decode(), held.backend),
            )
            await self._note(connection, held, cursor=cursor, equal_at=equal_at)
            await self._refresh(connection, held)
        self._mark(held, equal_at)
        async with self._turn:
            if self._connection is not None:
                with suppress(sqlite3.Error):  # somebody reads; the next time will do
                    await self._connection.execute_fetchall("PRAGMA wal_checkpoint(TRUNCATE)")

    async def unsettle(self, held: Held, *, reads: Sequence[str] | None, sights: Mapping[str, Sight]) -> None:
        """Note that the listings are gone through again, whatever becomes of this process, and what may go with that.

        `reads` and `sights` are of what may be seen before and after it.
        """
        async with self._batch(held) as connection:
            await connection.execute(
                "UPDATE backends SET cursor = NULL, reads = ?, sights = ? WHERE backend = ?",
                (msgspec.json.encode(reads).decode(), msgspec.json.encode(dict(sights)).decode(), held.backend),
            )
            await self._refresh(connection, held)

    async def equal(self, held: Held, at: Moment, *, lasting: bool) -> None:
        """Note that the copy is equal to its backend; `lasting`: also for the time after a restart."""
        self.require_there(held)
        if lasting:
            async with self._batch(held) as connection:
                await self._note(connection, held, cursor=held.cursor, equal_at=at)
        self._mark(held, at)

    def require_there(self, held: Held) -> None:
        """Raise Lost when the file is not the one that the copy was written to."""
        if held.made != self._made or self._damaged or self._identity != _identity_of(self.path):
            raise Lost(f"the replica was lost: {self.path}")

    async def aclose(self) -> None:
        """Close the file."""
        with anyio.CancelScope(shield=True):
            await self._close()

    def _require_room(self, records: Sequence[Record]) -> None:
        """Raise Unusable when these records would take the last of the disk: a cache must not be what fills it."""
        wanted = 2 * sum(len(data) for _, _, data in records)  # in the log of writes, and then in the file
        try:
            disk = os.statvfs(os.path.dirname(self.path))
        except OSError:  # which opening the file tells better
            return
        free, spared = disk.f_bavail * disk.f_frsize, min(MOST_SPARED, disk.f_blocks * disk.f_frsize // SPARED_PART)
        if wanted and free - wanted < spared:
            room = f"{free // 1024} KiB are free, which is too little for {wanted // 1024} KiB more"
            why = f"disk is full but for what outbox and roster may need: {room}"
            raise Unusable(f"replica cannot be used: {self.path}: {why}")

    def _mark(self, held: Held, at: Moment | None) -> None:
        if at is not None:
            held.as_of = at.wall
            self._fresh[held.url] = held.made, at

    async def _note(
        self, connection: aiosqlite.Connection, held: Held, *, cursor: str | None, equal_at: Moment | None
    ) -> None:
        as_of = None if equal_at is None else equal_at.wall.isoformat()
        await connection.execute(
            "UPDATE backends SET cursor = ?, as_of = coalesce(?, as_of) WHERE backend = ?",
            (cursor, as_of, held.backend),
        )

    async def _refresh(self, connection: aiosqlite.Connection, held: Held) -> None:
        (row,) = await connection.execute_fetchall(HELD, (held.url,))
        found = held_of(held.url, self._made, tuple(row))
        held.backend, held.cursor, held.reads, held.sights = found.backend, found.cursor, found.reads, found.sights
        held.records, held.bytes, held.as_of = found.records, found.bytes, held.as_of or found.as_of

    # The file ---------------------------------------------------------------------------------------

    @asynccontextmanager
    async def _batch(self, held: Held | None) -> AsyncGenerator[aiosqlite.Connection]:
        """Change the file in one transaction, or not at all."""
        async with self._turn:
            connection = await self._opened()
            if held is not None and held.made != self._made:
                raise Lost(f"the replica was lost: {self.path}")
            try:
                await connection.execute("BEGIN IMMEDIATE")
                yield connection
                await connection.execute("COMMIT")
            except BaseException as error:
                with anyio.CancelScope(shield=True):
                    if isinstance(error, sqlite3.Error):
                        self._damaged = self._damaged or is_damage(error)
                        await self._close()  # what is left of the transaction goes with it
                        raise Unusable(f"replica cannot be used: {self.path}: {error}") from error
                    with suppress(sqlite3.Error):
                        await connection.rollback()
                raise
            self._told = False

    async def _opened(self) -> aiosqlite.Connection:
        if self._connection is not None:
            if not self._damaged and self._identity == _identity_of(self.path):
                return self._connection
            await self._close()
            self._tell("it is damaged" if self._damaged else "its file was removed or replaced")
        try:
            if self._damaged:
                self._remove()
            return await self._open()
        except Outdated as error:
            self._tell(str(error))
            self._remove()
            return await self._open()
        except sqlite3.Error as error:
            raise Unusable(f"replica cannot be used: {self.path}: {error}") from error
        except OSError as error:
            raise Unusable(f"replica cannot be used: {self.path}: {cause_of(error)}") from error

    async def _open(self) -> aiosqlite.Connection:
        """Raises Outdated for a file that is to be replaced, sqlite3.Error, OSError, StoreError."""
        descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK, 0o600)
        try:
            found = os.fstat(descriptor)
            if not stat.S_ISREG(found.st_mode) or found.st_uid != os.geteuid():
                raise Unusable(f"replica cannot be used: {self.path} is no file of this user")
            os.fchmod(descriptor, 0o600)
        finally:
            os.close(descriptor)
        connection = await aiosqlite.connect(self.path, timeout=_PATIENCE, isolation_level=None)
        try:
            self._made = await prepared(connection, self.most_bytes)
            self._identity = _identity_of(self.path)
        except BaseException:
            with anyio.CancelScope(shield=True):
                await connection.close()
            raise
        self._connection, self._damaged = connection, False
        return connection

    def _remove(self) -> None:
        for name in (self.path, f"{self.path}-wal", f"{self.path}-shm"):
            with suppress(FileNotFoundError):
                os.unlink(name)

    async def _close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            with suppress(sqlite3.Error):
                await connection.close()

    def _tell(self, why: str) -> None:
        """Say once that everything is asked for again, until something could be written."""
        level = logging.DEBUG if self._told else logging.WARNING
        log.log(level, "the replica %s is made anew: %s", self.path, why)
        self._told = True

    # What answers do --------------------------------------------------------------------------------

    @contextmanager
    def snapshot(self, url: str) -> Generator[Snapshot]:
        """Open what is known of a backend, in any thread. What is read of it may raise StoreError as well."""
        fresh = self._fresh.get(url)  # before the file is read: so what is found there is as new as that
        try:
            place = self.path.replace("%", "%25").replace("?", "%3f").replace("#", "%23")
            connection = sqlite3.connect(f"file:{place}?mode=ro", uri=True, timeout=_PATIENCE, isolation_level=None)
            try:
                connection.execute("BEGIN")
                made, held = seen(connection, url)
                yield self._snapshot(connection, made, held, fresh)
            finally:
                connection.close()
        except sqlite3.Error as error:
            self._damaged = self._damaged or is_damage(error)
            raise Unusable(f"the replica cannot be read: {self.path}: {error}") from error

    def _snapshot(
        self, connection: sqlite3.Connection, made: str, held: Held | None, fresh: tuple[str, Moment] | None
    ) -> Snapshot:
        if held is None or held.as_of is None:
            raise StoreError("the replica holds no complete copy of this backend yet")
        as_of, age = held.as_of, (self._clock.now() - held.as_of).total_seconds()
        if fresh is not None and fresh[0] == made:
            as_of, age = fresh[1].wall, self._clock.boot() - fresh[1].boot
        if age < -_AHEAD.total_seconds():
            raise StoreError("the age of the replica cannot be told: the clock was set back")
        label = Label("replica", as_of, max(age, 0.0), held.filtered)
        return Snapshot(ReplicaStore(connection, held.backend, held.reads, held.sights), label)


def _identity_of(path: str) -> tuple[int, int] | None:
    try:
        found = os.lstat(path)
    except OSError:
        return None
    return found.st_dev, found.st_ino
