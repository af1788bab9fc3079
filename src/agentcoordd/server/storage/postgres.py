"""State in PostgreSQL: the database for a fleet that several server processes serve.

Every statement stands alone, so a server that is cut off leaves no transaction open. Writes go through one
function of the database, which numbers the changes in the order in which they become visible.
"""

from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING, Any

import anyio
import asyncpg

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
)
from agentcoordd.server.storage.committer import Committer
from agentcoordd.server.storage.migrations import migrations
from agentcoordd.server.storage.query import Values, below, page_of, page_query, stored_scopes
from agentcoordd.server.storage.urls import place

if TYPE_CHECKING:
    from asyncpg.pool import Pool, PoolConnectionProxy

_MIGRATING = 4734952206111044
"""Advisory lock under which one server brings the schema up to date."""

_CHANGES = "agent_coord_changes"
_TOKENS = "agent_coord_tokens"
_CONNECTIONS = 8
_PATIENCE = 10.0
"""Seconds that one statement may take before nothing is known of it."""

_LISTINGS = 3
"""Connections that listings may take at most: they are slow, and nothing else is to wait behind them."""

_LISTING = 60.0
"""Seconds that a listing may take, and may wait for its turn."""

_FOLLOWING = 2
"""Connections that looks at the feed may take at most: each write wakes everybody who waits for changes."""

_RECONNECT = 1.0
_PULSE = 1.0
"""Seconds between two looks at whether the connection that hears of revoked tokens is still there."""

_POLL = 5.0
"""Seconds after which a waiter looks for itself, should a notification have been lost with its connection."""

_SETTINGS = {
    # A listing's rows are JSON text of our own making; nothing here is worth a just-in-time compilation.
    "jit": "off",
    # Records are read in the order of their key. Before it has statistics, the planner takes a listing for short, and
    # would rather fetch it out of order and sort it whole, on the disk.
    "enable_bitmapscan": "off",
    # Whoever waited for the lock of the writers must see what was written meanwhile, whatever the database prefers.
    "default_transaction_isolation": "read committed",
}
"""What each connection begins with. Given at its start, it outlives any reset; a SET would not."""

_MACHINES = 10_000
"""How many machines are remembered at most."""

_ENTRY = (
    """'{"path":"' || path || '","data":' || data || ',"version":' || version """
    """|| CASE WHEN updated_by IS NULL THEN '}' ELSE ',"updated_by":"' || updated_by || '"}' END"""
)
"""A record as the JSON object that a listing carries. Paths and machines have no character that JSON would escape."""

_FAILURES = (
    OSError,
    TimeoutError,
    asyncpg.PostgresError,
    asyncpg.InterfaceError,
    asyncpg.InternalClientError,  # how the client fails when the server ends a connection just as it is taken
)


@asynccontextmanager
async def open_postgres(url: str, *, keep: int, poll: float = _POLL) -> AsyncGenerator["PostgresStorage"]:
    """Open the database for one server among several, migrated as need be.

    Raises StorageDown when it cannot be used, UsageError when it is of a newer release.
    """
    async with _pool(url) as pool:
        storage = PostgresStorage(pool, keep=keep, poll=poll)
        try:
            async with open_tasks() as tasks:
                tasks.start_soon(storage.committer.run)
                tasks.start_soon(storage.listen)
                try:
                    yield storage
                finally:
                    storage.committer.close()
                    storage.closing.set()
        finally:
            await storage.let_go()


@asynccontextmanager
async def open_postgres_tokens(url: str) -> AsyncGenerator["PostgresStorage"]:
    """Open the database for managing tokens, beside the servers that may be running."""
    async with _pool(url) as pool:
        yield PostgresStorage(pool, keep=0)


@asynccontextmanager
async def _pool(url: str) -> AsyncGenerator["Pool[Any]"]:
    """Open connections to a database that is brought up to date. Raises StorageDown, which says where it would be."""
    try:
        pool = await asyncpg.create_pool(
            url,
            min_size=0,  # a floor would be restored in the background, with a traceback for each attempt
            max_size=_CONNECTIONS,
            timeout=_PATIENCE,
            command_timeout=_PATIENCE,
            server_settings=_SETTINGS,
            reset=_keep,
        )
    except (ValueError, *_FAILURES) as error:
        raise _not_opened(url, error) from error
    try:
        try:
            async with pool.acquire(timeout=_PATIENCE) as connection:
                await _migrate(connection)
        except (ValueError, *_FAILURES) as error:  # what in a URL cannot be meant is found out when it is first used
            raise _not_opened(url, error) from error
        yield pool
    finally:
        with anyio.move_on_after(_PATIENCE, shield=True) as patience:
            await pool.close()
        if patience.cancelled_caught:
            pool.terminate()


async def _keep(_: "asyncpg.Connection[Any]") -> None:
    """Give a connection back as it is: no statement here leaves anything in it, and cleaning it costs a round trip."""


@asynccontextmanager
async def _acquired(pool: "Pool[Any]") -> AsyncGenerator["PoolConnectionProxy[Any]"]:
    """Lend a connection. Raises StorageDown for whatever keeps an answer away."""
    try:
        async with pool.acquire(timeout=_PATIENCE) as connection:
            yield connection
    except _FAILURES as error:
        raise _down(error) from error


@asynccontextmanager
async def _turn(limiter: anyio.CapacityLimiter, what: str) -> AsyncGenerator[None]:
    """Wait until one more may begin. Raises StorageDown."""
    try:
        with anyio.fail_after(_LISTING):
            await limiter.acquire()
    except TimeoutError as error:
        raise StorageDown(f"too many {what} are waiting") from error
    try:
        yield
    finally:
        limiter.release()


def _lost(connection: "PoolConnectionProxy[Any]") -> bool:
    try:
        return connection.is_closed()
    except asyncpg.InterfaceError:  # the pool has taken it back by itself
        return True


def _down(error: BaseException) -> StorageDown:
    # The text of a connection error may carry the URL's password; the kind of the error never does.
    state = f" (SQLSTATE {error.sqlstate})" if isinstance(error, asyncpg.PostgresError) and error.sqlstate else ""
    return StorageDown(f"database error: {type(error).__name__}{state}")


def _not_opened(url: str, error: BaseException) -> StorageDown:
    advice = ""
    if isinstance(error, asyncpg.InsufficientPrivilegeError):
        advice = "; let a role that may create tables there open it once, or grant this one CREATE on the schema"
    told = error.message if isinstance(error, asyncpg.PostgresError) else ""  # by the server, which knows no password
    told = told or (error.strerror or "" if isinstance(error, OSError) else "")
    why = f"{_down(error)}{told and f', {told}'}"
    return StorageDown(f"{why}: {place(url) or 'the database of --db'}{advice}")


async def _migrate(connection: "PoolConnectionProxy[Any]") -> None:
    async with connection.transaction():
        await connection.execute("SELECT pg_advisory_xact_lock($1)", _MIGRATING)
        # Not IF NOT EXISTS: that asks for the right to create, also of a server that may only use what is there.
        if not await connection.fetchval("SELECT to_regclass('migrations') IS NOT NULL"):
            await connection.execute("CREATE TABLE migrations (number integer PRIMARY KEY, name text NOT NULL)")
        done: int = await connection.fetchval("SELECT coalesce(max(number), 0) FROM migrations")
        steps = list(migrations("postgres"))
        if done > steps[-1].number:
            raise UsageError(
                f"the database is of a newer release: schema {done}, this one knows {steps[-1].number}; "
                "use that release or a database of its own"
            )
        for step in steps:
            if step.number > done:
                await connection.execute(step.sql)
                await connection.execute("INSERT INTO migrations VALUES ($1, $2)", step.number, step.name)


class PostgresStorage:
    """One database, shared with other servers. See `storage.base.Storage` for what it promises."""

    def __init__(self, pool: "Pool[Any]", *, keep: int, poll: float = _POLL) -> None:
        self.committer = Committer(self._commit, self._trim)
        self.closing = anyio.Event()
        self._pool, self._keep, self._poll = pool, keep, poll
        self._listing, self._following = anyio.CapacityLimiter(_LISTINGS), anyio.CapacityLimiter(_FOLLOWING)
        self._news = anyio.Event()
        # Only one group is written at a time: its connection is kept, since borrowing one costs as much as a write.
        self._writer: PoolConnectionProxy[Any] | None = None
        # Whose tokens are, as long as somebody listens for their changes; None while nobody does.
        self._machines: dict[str, Machine] | None = None

    async def machine(self, token_hash: str) -> Machine | None:
        """Find whose token has this SHA-256, unless it was revoked."""
        known = self._machines
        if known is not None and (machine := known.get(token_hash)) is not None:
            return machine
        machine = await self._machine(token_hash)
        # What was asked before the tokens changed goes into a table that nobody looks at any more.
        if known is not None and machine is not None and len(known) < _MACHINES:
            known[token_hash] = machine
        return machine

    async def _machine(self, token_hash: str) -> Machine | None:
        query = (
            "SELECT machine, read_prefixes, write_prefixes FROM machines WHERE token_hash = $1 AND revoked_at IS NULL"
        )
        async with _acquired(self._pool) as connection:
            row = await connection.fetchrow(query, token_hash)
        return None if row is None else Machine(row[0], read_scopes(row[1]), read_scopes(row[2]))

    async def read(self, path: str) -> Row | None:
        """Read one record; None when there is none."""
        async with _acquired(self._pool) as connection:
            row = await connection.fetchrow("SELECT data, version, updated_by FROM state WHERE path = $1", path)
        return None if row is None else Row(row[0], row[1], row[2])

    async def page(self, prefix: str, coverage: Coverage, *, after: str | None, limit: int | None) -> Page:
        """List what may be seen below a prefix, strictly after a path."""
        values = Values(_mark)
        query = page_query(_ENTRY, prefix, coverage, values, after, limit)
        async with _turn(self._listing, "listings"), _acquired(self._pool) as connection:
            rows = await connection.fetch(query, *values, timeout=_LISTING)
        return page_of(rows, limit, lambda entries: ",".join(entries).encode())

    async def write(self, write: Write) -> Verdict:
        """Make one conditional change, durably."""
        return await self.committer.submit(write)

    async def feed(self) -> Feed:
        """Tell where the feed stands."""
        query = "SELECT name, greatest(forgotten, (SELECT max(seq) FROM changes)), forgotten FROM feed"
        async with _turn(self._following, "looks at the feed"), _acquired(self._pool) as connection:
            row = await connection.fetchrow(query)
        if row is None:
            raise StorageDown("the database has lost the name of its feed")
        return Feed(row[0], row[1], row[2])

    async def changes(self, since: int, prefix: str, coverage: Coverage, *, limit: int) -> tuple[Sequence[Change], int]:
        """List changes after a number, in order and without a gap, and the number to go on from."""
        values = Values(_mark, since)
        where = below(prefix, coverage, values.mark, "changes.path")
        # The head is read in the same statement, so in the same snapshot: what is not among the changes was not there.
        query = (
            "SELECT step.seq, step.path, step.version, step.deleted, step.updated_by, step.at, "  # noqa: S608 - as above
            "step.data, head.seq, step.last FROM "
            "(SELECT coalesce(max(seq), 0) AS seq FROM changes) AS head LEFT JOIN ("
            "SELECT *, max(seq) OVER () AS last, sum(size) OVER (ORDER BY seq) - size AS before FROM ("
            # A length is known without the data, which are read of those alone that are told.
            "SELECT told.*, state.data, coalesce(octet_length(state.data), 0) AS size FROM "
            f"(SELECT * FROM changes WHERE seq > $1 AND {where} ORDER BY seq LIMIT {limit}) AS told "
            # A record that was deleted and made anew has the same versions again: only its newest change is told apart.
            "LEFT JOIN state ON NOT told.deleted AND state.path = told.path AND state.version = told.version "
            "AND told.seq = (SELECT max(seq) FROM changes AS later WHERE later.path = told.path)"
            f") AS sized) AS step ON step.before < {CHANGES_BYTES} ORDER BY step.seq"
        )
        async with _turn(self._following, "looks at the feed"), _acquired(self._pool) as connection:
            rows = await connection.fetch(query, *values)
        found = [Change(row[0], row[1], row[2], row[3], row[4], row[5], row[6]) for row in rows if row[0] is not None]
        head: int = rows[0][7]
        if found and (len(found) == limit or found[-1].seq < rows[0][8]):
            return found, found[-1].seq
        return found, max(head, since)

    async def changed(self, after: int, *, seconds: float) -> None:
        """Wait until there may be a change after a number, at most so long."""
        with anyio.move_on_after(seconds):
            while True:
                news = self._news
                if (await self.feed()).head > after:
                    return
                with anyio.move_on_after(self._poll):
                    await news.wait()

    async def check(self) -> None:
        """Ask the database whether it answers."""
        async with _acquired(self._pool) as connection:
            await connection.fetchval("SELECT count(*) FROM feed")

    async def grant(
        self, machine: str, token_hash: str, *, reads: Sequence[str], writes: Sequence[str], rotate: bool
    ) -> bool:
        """Store a machine's token; with `rotate` in place of the one it had."""
        replace = (
            "DO UPDATE SET token_hash = excluded.token_hash, revoked_at = NULL, "
            "read_prefixes = excluded.read_prefixes, write_prefixes = excluded.write_prefixes, "
            "created_at = excluded.created_at"
        )
        query = (
            "INSERT INTO machines (machine, token_hash, read_prefixes, write_prefixes, created_at) "  # noqa: S608
            """VALUES ($1, $2, $3, $4, to_char(now() AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS"Z"')) """
            f"ON CONFLICT (machine) {replace if rotate else 'DO NOTHING'}"
        )
        async with _acquired(self._pool) as connection:
            done = await connection.execute(query, machine, token_hash, stored_scopes(reads), stored_scopes(writes))
        return done.endswith(" 1")

    async def revoke(self, machine: str) -> bool:
        """End a machine's token at once."""
        query = (
            """UPDATE machines SET revoked_at = to_char(now() AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS"Z"') """
            "WHERE machine = $1 AND revoked_at IS NULL"
        )
        async with _acquired(self._pool) as connection:
            return (await connection.execute(query, machine)).endswith(" 1")

    async def grants(self) -> Sequence[Grant]:
        """List all machines, by name."""
        query = "SELECT machine, read_prefixes, write_prefixes, created_at, revoked_at FROM machines ORDER BY machine"
        async with _acquired(self._pool) as connection:
            rows = await connection.fetch(query)
        return [Grant(*row.values()) for row in rows]

    async def listen(self) -> None:
        """Wake the waiters whenever any server has written, for as long as the storage is open."""
        while not self.closing.is_set():
            try:
                async with _acquired(self._pool) as connection:
                    await self._hear(connection)
            except StorageDown:
                # Nobody is told: whoever writes or reads finds out, and those who wait look for themselves.
                with anyio.move_on_after(_RECONNECT):
                    await self.closing.wait()

    async def _hear(self, connection: "PoolConnectionProxy[Any]") -> None:
        """Listen on one connection until it is lost or the storage closes."""
        lost = anyio.Event()

        def on_loss(*_: object) -> None:
            lost.set()

        connection.add_termination_listener(on_loss)
        await connection.add_listener(_CHANGES, self._notified)
        await connection.add_listener(_TOKENS, self._tokens_changed)
        self._notified()  # what was written while nobody listened is news as well
        self._machines = {}
        try:
            async with open_tasks() as either:

                async def until(event: anyio.Event) -> None:
                    await event.wait()
                    either.cancel_scope.cancel()

                either.start_soon(until, lost)
                either.start_soon(until, self.closing)
                while True:  # a connection that was cut without a word would never say that it is lost
                    await anyio.sleep(_PULSE)
                    await connection.fetchval("SELECT 1", timeout=_RECONNECT)
        finally:
            self._machines = None
            if not lost.is_set():
                with anyio.move_on_after(_RECONNECT, shield=True):
                    await connection.remove_listener(_CHANGES, self._notified)
                    await connection.remove_listener(_TOKENS, self._tokens_changed)

    def _tokens_changed(self, *_: object) -> None:
        if self._machines is not None:
            self._machines = {}

    def _notified(self, *_: object) -> None:
        news, self._news = self._news, anyio.Event()
        news.set()

    async def _commit(self, writes: Sequence[Write]) -> Sequence[Verdict]:
        columns = (
            [write.kind for write in writes],
            [write.path for write in writes],
            [write.version for write in writes],
            [write.data for write in writes],
            [write.machine for write in writes],
        )
        try:
            if self._writer is not None and _lost(self._writer):
                await self.let_go()
            if self._writer is None:
                self._writer = await self._pool.acquire(timeout=_PATIENCE)
            query = "SELECT apply_writes($1, $2, $3, $4, $5)"
            verdicts: list[int | None] = await self._writer.fetchval(query, *columns)
        except _FAILURES as error:
            await self.let_go()
            raise _down(error) from error
        return verdicts

    async def let_go(self) -> None:
        """Give back the connection that writes go through; another one is taken with the next."""
        writer, self._writer = self._writer, None
        if writer is not None:
            with anyio.move_on_after(_RECONNECT, shield=True), suppress(*_FAILURES):
                await self._pool.release(writer, timeout=_RECONNECT)

    async def _trim(self) -> None:
        """Forget the oldest changes, but `keep` of them, and say up to where."""
        query = (
            "WITH last AS (SELECT coalesce(max(seq), 0) - $1 AS seq FROM changes), "
            "gone AS (DELETE FROM changes USING last WHERE changes.seq <= last.seq) "
            "UPDATE feed SET forgotten = greatest(forgotten, last.seq) FROM last"
        )
        async with _acquired(self._pool) as connection:
            await connection.execute(query, self._keep)


def _mark(number: int) -> str:
    return f"${number}"
