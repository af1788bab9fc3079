"""Attention: one record a request, written by compare-and-swap, listed whole or not at all."""

from typing import Any

import pytest

from agentcoord.errors import Conflict, StoreError, UsageError
from agentcoord.operations.attention import (
    MOST_LISTED,
    Listed,
    ListRequest,
    get_attention,
    list_attention,
    resolve_attention,
    upsert_attention,
)
from agentcoord.protocol.attention import Key
from agentcoord.protocol.documents import Document, decode
from agentcoord.stores.base import Decode, Listing, Store, Version
from tests.operations.stage import FakeClock, FaultyStore, Stage
from tests.protocol.test_attention import OPEN as EXAMPLE
from tests.stores.counting import CountingStore

OPEN: Document = EXAMPLE | {"created_at": "2025-12-31T23:00:00Z", "refreshed_at": "2025-12-31T23:50:00Z"}
KEY = Key("w", "o/r", "a-1")
PATH = "attention/w/o/r/a-1.json"
ABSENT = "^attention record not found: a-1$"


async def upsert(stage: Stage, record: Document = OPEN, store: Any = None) -> Document:
    return (await upsert_attention(stage.context(store), record)).record


async def resolve(stage: Stage, generation: int = 3, store: Any = None, key: Key = KEY) -> Document:
    return (await resolve_attention(stage.context(store), key, generation)).record


async def listed(stage: Stage, store: Any = None, **more: Any) -> Listed:
    return await list_attention(stage.context(store), ListRequest(workspace="w", repository="o/r", **more))


async def test_a_request_is_stored_read_settled_and_asked_again(stage: Stage, clock: FakeClock) -> None:
    assert await upsert(stage) == OPEN == await stage.record(PATH)
    assert (await get_attention(stage.context(), KEY)).record == OPEN
    at = {"refreshed_at": "2026-01-01T00:00:00Z", "resolved_at": "2026-01-01T00:00:00Z"}
    settled = OPEN | {"status": "resolved", "source_generation": 4} | at
    assert await resolve(stage, 4) == settled == await stage.record(PATH)
    clock.advance(hours=1)
    store = CountingStore(stage.store)
    assert await resolve(stage, 4, store) == settled
    assert store.writes == []
    with pytest.raises(StoreError, match="^reopening attention must advance beyond resolved generation 4$"):
        await upsert(stage, OPEN | {"source_generation": 4})
    again = OPEN | {"source_generation": 5, "refreshed_at": "2026-01-01T00:30:00Z"}
    assert await upsert(stage, again) == again == await stage.record(PATH)
    assert list(await stage.records()) == [PATH]


async def test_there_is_nothing_to_settle_or_read(stage: Stage) -> None:
    with pytest.raises(StoreError, match=ABSENT):
        await resolve(stage)
    with pytest.raises(StoreError, match=ABSENT):
        await get_attention(stage.context(), KEY)
    assert await listed(stage) == Listed(records=[], limit=MOST_LISTED, truncated=False)


@pytest.mark.parametrize(
    ("key", "fault"),
    [
        (Key("a/b", "o/r", "a-1"), "^invalid attention workspace: a/b$"),
        (Key("w", "o", "a-1"), "^invalid attention repo: o$"),
        (Key("w", "o/r", "../x"), r"^invalid attention id: \.\./x$"),
        (Key("w" * 161, "o/r", "a-1"), "^attention workspace must be at most 160 characters$"),
    ],
)
async def test_a_key_is_checked_before_anything_is_read(stage: Stage, key: Key, fault: str) -> None:
    store = FaultyStore(stage.store, unreadable="")
    with pytest.raises(UsageError, match=fault):
        await resolve(stage, store=store, key=key)
    with pytest.raises(UsageError, match=fault):
        await get_attention(stage.context(store), key)


async def test_a_generation_and_a_limit_are_checked_before_anything_is_read(stage: Stage) -> None:
    store = FaultyStore(stage.store, unreadable="")
    with pytest.raises(UsageError, match="^--source-generation must be an integer between 0 and 9007199254740991$"):
        await resolve(stage, 2**53, store)
    for limit in (0, -1, 101):
        with pytest.raises(UsageError, match="^--limit must be between 1 and 100$"):
            await listed(stage, store, limit=limit)
    with pytest.raises(UsageError, match="^invalid attention repo: x$"):
        await list_attention(stage.context(store), ListRequest(workspace="w", repository="x"))


async def test_a_lost_race_is_decided_anew(stage: Stage) -> None:
    async def newer() -> None:
        stage.lay(PATH, OPEN | {"source_generation": 9})

    await upsert(stage)
    store = FaultyStore(stage.store, at=1, first=newer)
    with pytest.raises(StoreError, match="^source generation 3 is older than stored generation 9$"):
        await upsert(stage, store=store)
    store = FaultyStore(stage.store, at=1, error=Conflict)
    assert (await resolve(stage, 9, store))["status"] == "resolved"
    assert store.writes == 2


class Contended(FaultyStore):
    """Somebody else always writes first."""

    async def write(self, path: str, document: object, *, version: Version | None, note: str) -> Version:
        self.writes += 1
        stored = await self.inner.read(path)
        other = OPEN | {"question": "?" * self.writes}
        await self.inner.write(path, other, version=stored.version if stored else None, note="")
        return await self.inner.write(path, document, version=version, note=note)


async def test_two_lost_races_are_the_end_of_it(stage: Stage) -> None:
    for change in (upsert, resolve):
        store = Contended(stage.store)
        with pytest.raises(StoreError, match=f"^state changed while writing {PATH}$"):
            await change(stage, store=store)
        assert store.writes == 2
        assert await stage.record(PATH) == OPEN | {"question": "??"}


class Noting(FaultyStore):
    """Keeps what is noted beside the changes."""

    def __init__(self, inner: Store) -> None:
        super().__init__(inner)
        self.notes: list[str] = []

    async def write(self, path: str, document: object, *, version: Version | None, note: str) -> Version:
        self.notes.append(note)
        return await super().write(path, document, version=version, note=note)


async def test_a_change_is_noted(stage: Stage) -> None:
    store = Noting(stage.store)
    await upsert(stage, store=store)
    await resolve(stage, store=store)
    assert store.notes == ["Upsert attention a-1", "Resolve attention a-1"]


async def test_a_write_that_may_have_failed_is_not_repeated(stage: Stage) -> None:
    store = FaultyStore(stage.store, at=1, error=lambda path: StoreError(f"no answer for {path}"))
    with pytest.raises(StoreError, match=f"^no answer for {PATH}$"):
        await upsert(stage, store=store)
    assert store.writes == 1


@pytest.mark.parametrize(
    ("stored", "fault"),
    [
        (b"{", f"^malformed stored JSON at {PATH}: input data was truncated$"),
        (b"", f"^malformed stored JSON at {PATH}: the file is empty$"),
        (b"[]", f"^invalid stored attention record at {PATH}: attention record must be a JSON object$"),
        (b"{}", f"^invalid stored attention record at {PATH}: attention record missing schema_version$"),
        ({"id": "a-9"}, f"^stored attention identity does not match path {PATH}$"),
        ({"workspace": "v"}, f"^stored attention identity does not match path {PATH}$"),
        ({"choices": []}, f"^invalid stored attention record at {PATH}: attention choices must contain"),
    ],
)
async def test_a_stored_record_that_is_not_to_be_trusted_stops_every_command(
    stage: Stage, stored: Any, fault: str
) -> None:
    if isinstance(stored, bytes):
        stage.store.plant(PATH, stored)
    else:
        stage.lay(PATH, OPEN | stored)
    store = CountingStore(stage.store)
    for command in (
        upsert(stage, store=store),
        resolve(stage, store=store),
        get_attention(stage.context(store), KEY),
        listed(stage, store),
    ):
        with pytest.raises(StoreError, match=fault):
            await command
    assert store.writes == []


def lay(stage: Stage, name: str, **more: object) -> None:
    stage.lay(f"attention/w/o/r/{name}.json", OPEN | {"id": name} | more)


async def test_a_list_is_of_open_requests_most_urgent_first(stage: Stage) -> None:
    lay(stage, "a-1")
    lay(stage, "a-2", priority_class="urgent-risk")
    lay(stage, "a-3", created_at="2025-12-31T22:59:59.5Z")
    lay(stage, "a-4", status="resolved", resolved_at="2025-12-31T23:50:00Z", priority_class="urgent-risk")
    stage.lay("attention/w/o/other/a-5.json", OPEN | {"id": "a-5", "repository": "o/other"})
    found = await listed(stage)
    assert [record["id"] for record in found.records] == ["a-2", "a-3", "a-1"]
    assert (found.limit, found.truncated) == (100, False)
    everything = await listed(stage, include_resolved=True, limit=3)
    assert [record["id"] for record in everything.records] == ["a-2", "a-4", "a-3"]
    assert (everything.limit, everything.truncated) == (3, True)
    assert not (await listed(stage, limit=3)).truncated


async def test_a_list_is_refused_before_a_record_of_too_many_is_parsed(stage: Stage) -> None:
    for number in range(1000):
        lay(stage, f"a-{number}")
    assert (await listed(stage)).truncated
    stage.store.plant("attention/w/o/r/b.json", b"{")
    with pytest.raises(StoreError, match="^state prefix attention/w/o/r exceeds scan maximum 1000$"):
        await listed(stage)


class Filtered(FaultyStore):
    """Shows what a scoped token may see."""

    async def list(self, prefix: str, *, decode: Decode = decode, at_most: int | None = None) -> Listing:
        return Listing((await self.inner.list(prefix, decode=decode, at_most=at_most)).entries, filtered=True)


async def test_a_list_seen_in_part_is_no_list(stage: Stage) -> None:
    lay(stage, "a-1")
    with pytest.raises(StoreError, match="^attention list is filtered and incomplete for the scoped token$"):
        await listed(stage, Filtered(stage.store))
