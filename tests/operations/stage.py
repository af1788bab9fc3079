"""What operations are played on: a clock that is set, a store that fails when told to, and records as they are met."""

from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from typing import Any

from agentcoord.errors import StoreError
from agentcoord.operations.claims import Claimed, Refused, claim
from agentcoord.operations.context import Context
from agentcoord.operations.heartbeats import heartbeat
from agentcoord.protocol.claims import Wanted
from agentcoord.protocol.documents import Document, decode, encode_pretty
from agentcoord.protocol.heartbeats import Beat
from agentcoord.protocol.identity import NOBODY, Identity
from agentcoord.protocol.paths import FAMILIES
from agentcoord.protocol.statuses import normalize
from agentcoord.stores.base import Decode, Listing, Store, Stored, Version
from agentcoord.stores.memory import MemoryStore

REPO = "o/r"
CLAIM = "claims/o/r/7.json"
START = datetime(2026, 1, 1, tzinfo=UTC)


class FakeClock:
    """Stands still until somebody moves it."""

    def __init__(self, now: datetime = START) -> None:
        self.instant = now

    def now(self) -> datetime:
        return self.instant

    def advance(self, *, seconds: int = 0, minutes: int = 0, hours: int = 0) -> None:
        self.instant += timedelta(seconds=seconds, minutes=minutes, hours=hours)


class Chance:
    """Gives 00000001, 00000002, … where random bytes are asked for."""

    def __init__(self) -> None:
        self.drawn = 0

    def __call__(self, count: int) -> bytes:
        self.drawn += 1
        return self.drawn.to_bytes(count, "big")


class FaultyStore:
    """Passes calls on; the n-th write, or every read below `unreadable`, fails as told.

    With `landed` the failing write happened all the same: its answer was lost on the way. With `deletes`
    deletions are counted, and fail, as writes.
    """

    def __init__(
        self,
        inner: Store,
        *,
        at: int | None = None,
        error: Callable[[str], StoreError] | None = None,
        landed: bool = False,
        deletes: bool = False,
        unreadable: str | None = None,
        first: Callable[[], Awaitable[object]] | None = None,
    ) -> None:
        self.inner = inner
        self.writes = 0
        self._at, self._error, self._landed, self._deletes = at, error, landed, deletes
        self._unreadable, self._first = unreadable, first

    async def read(self, path: str) -> Stored | None:
        if self._unreadable is not None and path.startswith(self._unreadable):
            raise StoreError(f"the backend did not answer for {path}")
        return await self.inner.read(path)

    async def write(self, path: str, document: object, *, version: Version | None, note: str) -> Version:
        self.writes += 1
        if self.writes != self._at:
            return await self.inner.write(path, document, version=version, note=note)
        if self._first is not None:
            await self._first()
        if self._error is None:
            return await self.inner.write(path, document, version=version, note=note)
        if self._landed:
            await self.inner.write(path, document, version=version, note=note)
        raise self._error(path)

    async def delete(self, path: str, *, version: Version, note: str) -> None:
        self.writes += self._deletes
        fails = self._deletes and self.writes == self._at
        if fails and self._first is not None:
            await self._first()
        if not fails or self._landed or self._error is None:
            await self.inner.delete(path, version=version, note=note)
        if fails and self._error is not None:
            raise self._error(path)

    async def check(self, *, writable: bool) -> None:
        await self.inner.check(writable=writable)

    async def list(self, prefix: str, *, decode: Decode = decode, at_most: int | None = None) -> Listing:
        if self._unreadable is not None and prefix.startswith(self._unreadable):
            raise StoreError(f"the backend did not answer for {prefix}")
        return await self.inner.list(prefix, decode=decode, at_most=at_most)


class Stage:
    """A store, a clock and the records that a test starts from."""

    def __init__(self, store: MemoryStore, clock: FakeClock) -> None:
        self.store = store
        self.clock = clock
        self.chance = Chance()

    def context(self, store: Store | None = None, identity: Identity = NOBODY) -> Context:
        """Give what an operation is given, around the stage's own store or another."""
        return Context(store=store or self.store, now=self.clock.now, random=self.chance, identity=identity, notices=[])

    def lay(self, path: str, document: object) -> None:
        """Put a record there as another program would."""
        self.store.plant(path, encode_pretty(document))

    def stamp(self, *, seconds: int = 0) -> str:
        """Spell the clock's time, some seconds on."""
        return (self.clock.instant + timedelta(seconds=seconds)).strftime("%Y-%m-%dT%H:%M:%SZ")

    async def claim(self, agent_id: str, target: str = "7", **more: Any) -> Claimed | Refused:
        """Claim a target of the usual repository."""
        wanted = Wanted(repo=REPO, target=target, agent_id=agent_id, ttl=more.pop("ttl", 14400), **more)
        return await claim(self.context(), wanted)

    async def beat(self, agent_id: str, *, ttl: int = 900, status: str = "in_progress", **more: Any) -> Document:
        """Beat once."""
        beat = Beat(agent_id=agent_id, ttl=ttl, status=normalize(status), **more)
        return (await heartbeat(self.context(), beat)).record

    async def record(self, path: str) -> Any:
        """Give a record as it is now."""
        stored = await self.store.read(path)
        assert stored is not None, path
        return stored.document

    async def records(self) -> dict[str, Any]:
        """Give everything there is."""
        return {
            entry.path: entry.document
            for family in FAMILIES
            for entry in (await self.store.list(family)).entries
            if isinstance(entry, Stored)
        }

    async def events(self, batch_id: str = "b1", type_: str | None = None) -> list[Any]:
        """Give a batch's events, of one type or all."""
        listing = await self.store.list(f"events/{batch_id}")
        found: list[Any] = [entry.document for entry in listing.entries if isinstance(entry, Stored)]
        return [event for event in found if type_ in (None, event["type"])]

    def register(self, *lanes: Document, batch_id: str = "b1", **more: object) -> None:
        """Lay down a registered batch."""
        stamp = self.stamp()
        stamps = {"schema_version": 1, "registered_at": stamp, "updated_at": stamp}
        self.lay(f"batches/{batch_id}.json", {"batch_id": batch_id, **more, "lanes": list(lanes), **stamps})


def lane(name: str = "worker", owner: str = "a1", targets: tuple[str, ...] = ("7",), **more: object) -> Document:
    return {"name": name, "owner": owner, "targets": list(targets), **more}
