"""A server in memory that is copied in the loop of a test, with a clock that goes forward by itself, and what a copy
has to keep: it never claims to be newer than it is.
"""

from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import msgspec
from msgspec import Raw

from agentcoord.errors import Rejected, StoreError
from agentcoord.operations.context import Snapshot
from agentcoord.protocol.paths import FAMILIES
from agentcoord.protocol.scopes import coverage
from agentcoord.settings.selection import Secret
from agentcoord.stores.base import Stored
from agentcoord.stores.httpwire import Change, Changes, Entry, Page, TokenIdentity
from agentcoord.stores.opening import settle
from agentcoordd.backends import HttpBackend
from agentcoordd.replica import Replica
from agentcoordd.services.sync import Remote, Replicas
from tests.command import PATIENCE

URL = "https://state.example"
START = datetime(2026, 3, 1, 12, tzinfo=UTC)


class Ticking:
    """Time that passes only where somebody waits, and a little with every request."""

    def __init__(self) -> None:
        self.passed = 0.0

    def boot(self) -> float:
        return self.passed

    def now(self) -> datetime:
        return START + timedelta(seconds=self.passed)

    async def wait(self, event: anyio.Event, seconds: float) -> None:
        self.passed += max(seconds, 0.0)
        await anyio.lowlevel.checkpoint()


def refused(status: int, reason: str, retry_after: float | None = None) -> Rejected:
    return Rejected(f"http backend failed: {status} {reason}", status=status, reason=reason, retry_after=retry_after)


class Backend:
    """Records, in the order in which they changed. `reads` None: it cannot say who is who; `feeds`: it has a feed."""

    def __init__(self, clock: Ticking) -> None:
        self.clock = clock
        self.records: dict[str, tuple[int, bytes]] = {}
        self.log: list[tuple[str, int, bool]] = []
        self.past: list[tuple[float, str, bytes | None]] = []
        """When each record became what."""
        self.name = "feed"
        self.reads: tuple[str, ...] | None = ("",)
        self.feeds = True
        self.patience: float | None = None
        """How long a request to its feed is held at most, as by a server that is about to close."""
        self.token = "t0ken-1"
        self.others: dict[str, tuple[str, ...]] = {}
        """What other tokens may see."""
        self.asked: list[str] = []
        self.before: Callable[[str], Awaitable[None]] | None = None
        """Called with each request before it is answered; may change the records, or raise."""
        self.mangle: Callable[[str, Any], Any] = lambda request, answer: answer

    def put(self, path: str, document: object = None) -> None:
        version = self.records[path][0] + 1 if path in self.records else 1
        data = msgspec.json.encode({"path": path, "n": len(self.log)} if document is None else document)
        self.records[path] = version, data
        self.log.append((path, version, False))
        self.past.append((self.clock.passed, path, data))

    def delete(self, path: str) -> None:
        version, _ = self.records.pop(path)
        self.log.append((path, version, True))
        self.past.append((self.clock.passed, path, None))

    def visible(self) -> dict[str, bytes]:
        seen = coverage(("",) if self.reads is None else self.reads, "")
        return {path: data for path, (_, data) in self.records.items() if seen.admits(path)}

    @asynccontextmanager
    async def opened(self, url: str, token: Secret | None) -> AsyncGenerator[Remote]:
        yield _Connection(self, token)

    async def ask(self, token: Secret | None, request: str, answer: Callable[[], Any]) -> Any:
        self.asked.append(request)
        self.clock.passed += 0.01
        await anyio.lowlevel.checkpoint()
        if self.before is not None:
            await self.before(request)
        named = "" if token is None else token.reveal()
        if named != self.token and named not in self.others:
            raise refused(401, "unknown_token")
        reads, self.reads = self.reads, self.others.get(named, self.reads)
        try:
            answered = self.mangle(request, answer())
        finally:
            self.reads = reads
        self.clock.passed += 0.01
        return answered

    def page(self, prefix: str, cursor: str | None, limit: int) -> Page:
        seen = coverage(("",) if self.reads is None else self.reads, prefix)
        if seen.forbidden:
            raise refused(403, "forbidden")
        paths = sorted(p for p in self.records if p.startswith(f"{prefix}/") and seen.admits(p))
        paths = [path for path in paths if cursor is None or path > cursor]
        entries = [Entry(p, Raw(self.records[p][1]), self.records[p][0]) for p in paths[:limit]]
        return Page(entries, filtered=not seen.whole, next_cursor=paths[limit - 1] if len(paths) > limit else None)

    def changes(self, since: str | None, limit: int) -> Changes | None:
        if not self.feeds:
            return None
        head = len(self.log)
        seen = coverage(("",) if self.reads is None else self.reads, "")
        if seen.forbidden:
            raise refused(403, "forbidden")
        if since is None:
            return Changes([], f"{self.name}.{head}")
        name, _, place = since.partition(".")
        if name != self.name:
            raise refused(410, "cursor_expired")
        shown: list[Change] = []
        for number in range(int(place), head):
            path, version, deleted = self.log[number]
            if not seen.admits(path):
                continue
            newest = all(other != path for other, _, _ in self.log[number + 1 :])
            data = Raw(self.records[path][1]) if newest and not deleted else Raw(b"")
            shown.append(Change(path, version, data, deleted))
            if len(shown) == limit:
                return Changes(shown, f"{self.name}.{number + 1}")
        return Changes(shown, f"{self.name}.{head}")


class _Connection:
    def __init__(self, backend: Backend, token: Secret | None) -> None:
        self._backend, self._token = backend, token

    async def whoami(self) -> TokenIdentity | None:
        def identity() -> TokenIdentity | None:
            reads = self._backend.reads
            return None if reads is None else TokenIdentity("m1", reads, ())

        return await self._backend.ask(self._token, "whoami", identity)

    async def page(self, prefix: str, cursor: str | None, limit: int) -> Page:
        request = f"list {prefix} {cursor or ''}".rstrip()
        return await self._backend.ask(self._token, request, lambda: self._backend.page(prefix, cursor, limit))

    async def changes(self, since: str | None, *, wait: int, limit: int) -> Changes | None:
        request = "head" if since is None else f"changes {wait}"
        found = await self._backend.ask(self._token, request, lambda: self._backend.changes(since, limit))
        if found is not None and not found.changes:
            patience = self._backend.patience
            self._backend.clock.passed += wait if patience is None else min(patience, wait)
        return found


class Told:
    """What was published."""

    def __init__(self) -> None:
        self.events: list[tuple[str, dict[str, Any]]] = []

    def publish(self, topic: str, data: dict[str, Any]) -> None:
        self.events.append((topic, data))


class Copying:
    """A daemon's copying of one backend, into a file that outlives it."""

    def __init__(self, backend: Backend, path: Path, make: type[Replica] = Replica) -> None:
        self.backend, self.path, self.clock, self._make = backend, path, backend.clock, make
        self.token: Secret | None = Secret(backend.token)
        self.told = Told()
        self.watched = False
        self.replicas = self._made()

    def _made(self) -> Replicas:
        self.replica = self._make(str(self.path), self.clock)
        return Replicas(
            self.replica,
            [HttpBackend(URL)],
            self.backend.opened,
            lambda url: self.token,
            self.told,
            self.clock,
            watched=lambda: self.watched,
            chance=lambda: 0.5,
        )

    async def run(self, until: Callable[[], bool]) -> None:
        """Copy until something holds, as a new daemon would."""
        self.replicas = self._made()
        with anyio.fail_after(PATIENCE):
            async with anyio.create_task_group() as tasks:
                await tasks.start(self.replicas.run)
                while not until():
                    await anyio.lowlevel.checkpoint()
                tasks.cancel_scope.cancel()

    @property
    def state(self) -> str:
        return self.replicas.list()[0].state

    def equal(self) -> bool:
        """Tell whether the copy says that it is current, and is."""
        return self.state == "current" and self.content() == self.backend.visible()

    def content(self) -> dict[str, bytes]:
        """Give the records of the copy, as raw as they are kept; {} without one."""
        try:
            with self.replicas.snapshot(URL) as snapshot:
                return records_of(snapshot)
        except StoreError:
            return {}

    def require_honest(self) -> None:
        """Check that each record of the copy is as it was at some time since the instant that the copy names."""
        try:
            with self.replicas.snapshot(URL) as snapshot:
                found, at = records_of(snapshot), snapshot.label.as_of
        except StoreError:
            return
        since = (at - START).total_seconds()
        for path in {entry[1] for entry in self.backend.past} | set(found):
            states: list[bytes | None] = [None]
            for when, changed, data in self.backend.past:
                if changed == path:
                    states = [data] if when <= since else [*states, data]
            assert found.get(path) in states, (path, at)


def records_of(snapshot: Snapshot) -> dict[str, bytes]:
    """Read all that a snapshot shows, family by family."""
    found: dict[str, bytes] = {}
    for family in FAMILIES:
        try:
            listing = settle(snapshot.store.list(family, decode=lambda data: data))
        except StoreError:
            continue
        for entry in listing.entries:
            assert isinstance(entry, Stored)
            assert isinstance(entry.document, bytes)
            found[entry.path] = entry.document
    return found


def furnished(clock: Ticking, more: Sequence[str] = ()) -> Backend:
    """Make a backend with a record in each family."""
    backend = Backend(clock)
    for path in (
        "claims/o/r/1.json",
        "claims/o/r/2.json",
        "heartbeats/a1.json",
        "batches/b1.json",
        "events/b1/e1.json",
        "attention/w/o/r/x.json",
        "archive/events/b0/e0.json",
        *more,
    ):
        backend.put(path)
    return backend
