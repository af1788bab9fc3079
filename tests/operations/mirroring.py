"""A state root on disk with its mirror, beside the mirror of somebody who always reads everything."""

import time
from collections.abc import Sequence
from contextlib import suppress
from datetime import timedelta
from pathlib import Path

from agentcoord.errors import StoreError
from agentcoord.operations.context import Context
from agentcoord.operations.mirror import Synced, sync_mirror
from agentcoord.operations.mirrored import CACHE, NAME
from agentcoord.operations.retention import RetentionRequest, retain
from agentcoord.operations.trail import TrailRequest
from agentcoord.protocol.documents import Document, decode, encode_pretty
from agentcoord.protocol.instants import stamp
from agentcoord.protocol.retention import Policy
from agentcoord.stores.base import Decode, Listing, Store
from agentcoord.stores.local import LocalStore
from tests.operations.stage import START, Chance, FakeClock
from tests.stores.counting import CountingStore


class WatchedStore(LocalStore):
    """Remembers which records a listing was asked to read."""

    def __init__(self, root: str) -> None:
        super().__init__(root)
        self.read_names: list[str] = []

    def records(self, names: Sequence[str], *, decode: Decode = decode) -> Listing:
        self.read_names += names
        return super().records(names, decode=decode)


class Scene:
    """A state root on disk, its mirror, and the mirror of somebody who always reads everything."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.root = directory / "state"
        self.clock = FakeClock()
        self.store = WatchedStore(str(self.root))

    @property
    def mirror(self) -> Path:
        return self.root / "log.tsv"

    @property
    def cache(self) -> Path:
        return self.root / CACHE / NAME

    def lay(self, path: str, document: object) -> None:
        """Put a record, or any bytes, in the place of what is there, as writers do."""
        place = self.root / path
        place.parent.mkdir(parents=True, exist_ok=True)
        beside = place.with_name(f".{place.name}.new")
        beside.write_bytes(document if isinstance(document, bytes) else encode_pretty(document))
        beside.replace(place)

    def event(self, name: str, **more: object) -> None:
        self.lay(f"events/b1/{name}.json", event(name, **more))

    async def sync(self, *, include_synthetic: bool = False, afresh: bool = False) -> Synced:
        self.store.read_names.clear()
        request = TrailRequest(sync=True, include_synthetic=include_synthetic)
        return await sync_mirror(self.context(), request, str(self.root), afresh=afresh, few=0)

    def context(self, store: Store | None = None) -> Context:
        return Context(store=store or self.store, now=self.clock.now, random=Chance(), notices=[])

    def ids(self) -> list[str]:
        return [line.split("\t")[10] for line in self.mirror.read_text().splitlines()]


def event(name: str, **more: object) -> Document:
    return {
        "event_id": name,
        "batch_id": "b1",
        "type": "note",
        "at": stamp(START),
        "repo": "o/r",
        "target": "7",
        **more,
    }


def compacted(copies: list[Document], **more: object) -> Document:
    """An envelope of some events, and of one that was dropped."""
    sources = [f"events/{copy['batch_id']}/{number}.json" for number, copy in enumerate([*copies, {"batch_id": "b1"}])]
    envelope: Document = {"record_family": "compacted_events", "source_paths": sources, "records": copies}
    return envelope | {"archived_at": stamp(START), "delete_after": stamp(START + timedelta(days=30))} | more


def settled(place: Path) -> bool:
    """Tell whether the next change of a directory gives it another time, however coarse the clock is."""
    return time.time_ns() - place.stat().st_ctime_ns > 100_000_000


closing: Document = {"schema_version": 2, "type": "lane_closed", "terminal": "done", "workspace": "default"}
closing |= {"lane": "qa", "closed_by": {"agent_id": "a", "machine": "m"}}


class Play(Scene):
    """What may happen to a state and its mirror, each as a method."""

    def lay_event(self, batch: str, name: str, more: Document) -> None:
        self.lay(f"events/{batch}/{name}.json", event(name) | {"batch_id": batch} | more)

    def close(self, batch: str, name: str, more: Document) -> None:
        self.lay_event(batch, name, closing | more)

    def remove(self, batch: str, name: str) -> None:
        (self.root / f"events/{batch}/{name}.json").unlink(missing_ok=True)

    async def trip_over(self, path: str, data: bytes, *, simulated: bool) -> None:
        """Sync while a record is broken."""
        place = self.root / path
        before = place.read_bytes() if place.exists() else None
        self.lay(path, data)
        await self.compare(simulated=simulated)
        place.unlink() if before is None else self.lay(path, before)

    def envelop(self, batch: str, number: int, days: int, copies: list[tuple[str, Document]], more: Document) -> None:
        """Put an envelope where one may be already, with copies of events that differ from others, or do not."""
        until = stamp(START + timedelta(days=days + 30))
        envelope = compacted([event(name) | {"batch_id": batch} | facts for name, facts in copies])
        envelope |= {"archived_at": stamp(START + timedelta(days=days)), "delete_after": until}
        self.lay(f"archive/events/{batch}/compact-{number}.json", envelope | more)

    @property
    def envelopes(self) -> list[Path]:
        return sorted((self.root / "archive/events").rglob("*.json"))

    def lose_envelope(self, number: int) -> None:
        for place in self.envelopes[number : number + 1]:
            place.unlink()

    async def cut_off_gc(self, left: int) -> None:
        """Archive, with every other event, or all of them, not yet removed."""
        live = {place: place.read_bytes() for place in sorted((self.root / "events").rglob("*.json"))}
        await self.gc(0, 40)
        for place in list(live)[::left]:
            self.lay(str(place.relative_to(self.root)), live[place])

    async def gc(self, hot: int, archive: int) -> None:
        policy = Policy(hot_days=hot, archive_days=archive, synthetic_hot_days=hot)
        with suppress(StoreError):  # something is broken, which is this test's own doing
            await retain(self.context(), RetentionRequest(execute=True, policy=policy))

    def wait(self, seconds: int) -> None:
        self.clock.instant += timedelta(seconds=seconds)

    def drop_line(self, number: int) -> None:
        for mirror in (self.mirror, self.plain / "log.tsv"):
            if mirror.exists():
                lines = mirror.read_bytes().splitlines(keepends=True)
                mirror.write_bytes(b"".join(lines[:number] + lines[number + 1 :]))

    @property
    def plain(self) -> Path:
        return self.directory / "plain"

    async def compare(self, *, simulated: bool, few: int = 0) -> None:
        """Sync with and without skipping, and compare all that is said and left."""
        skimmed = await self.outcome(self.store, self.root, simulated=simulated, few=few)
        full = await self.outcome(CountingStore(LocalStore(str(self.root))), self.plain, simulated=simulated)
        assert skimmed == full, f"{skimmed} is not {full}"

    async def outcome(self, store: Store, root: Path, *, simulated: bool, few: int = 0) -> tuple[object, ...]:
        context = self.context(store)
        said: object
        try:
            request = TrailRequest(sync=True, include_synthetic=simulated)
            said = (await sync_mirror(context, request, str(root), few=few)).added
        except StoreError as error:
            said = str(error)
        mirror = root / "log.tsv"
        return said, context.notices, mirror.read_bytes() if mirror.exists() else None
