"""Retention on every store: it is one plan, and none of them loses anything when it is cut off."""

import itertools
from datetime import timedelta
from typing import Any

import pytest

from agentcoord.errors import StoreError
from agentcoord.operations.context import Context
from agentcoord.operations.retention import Retention, RetentionRequest, retain
from agentcoord.protocol.documents import Document
from agentcoord.protocol.instants import stamp
from agentcoord.protocol.retention import Delete
from agentcoord.stores.base import Store, Stored
from agentcoord.stores.github import GithubStore
from tests.operations.stage import CLAIM, START, Chance, FaultyStore
from tests.stores.github_server import GithubServer

OLD = stamp(START - timedelta(days=8))
ARCHIVED = f"archive/{CLAIM}"
EXPIRED = "archive/heartbeats/gone.json"


async def run(store: Store) -> Retention:
    context = Context(store=store, now=lambda: START, random=Chance())
    return await retain(context, RetentionRequest(execute=True))


async def lay(store: Store) -> None:
    """Lay a released claim, a closed lane and an envelope that has expired."""
    lane: Document = {"batch_id": "b1", "repo": "o/r", "target": "7", "lane": "qa", "at": OLD}
    closing = {"schema_version": 2, "event_id": "e2", "type": "lane_closed", "terminal": "done", "workspace": "default"}
    records: dict[str, Document] = {
        CLAIM: {"status": "released", "updated_at": OLD},
        "events/b1/e1.json": lane | {"event_id": "e1"},
        "events/b1/e2.json": lane | closing | {"closed_by": {"agent_id": "a1", "machine": "m1"}},
        EXPIRED: {"record_family": "archived_record", "delete_after": OLD},
    }
    for path, record in records.items():
        await store.write(path, record, version=None, note=f"Lay {path}")


async def found(store: Store) -> dict[str, Any]:
    """Give all records."""
    listings = [await store.list(family) for family in ("claims", "events", "archive")]
    entries = itertools.chain.from_iterable(listing.entries for listing in listings)
    return {entry.path: entry.document for entry in entries if isinstance(entry, Stored)}


@pytest.mark.parametrize("at", [*range(1, 7), None])
async def test_a_run_that_is_killed_at_any_change_is_taken_up_again(store: Store, at: int | None) -> None:
    await lay(store)
    if at is not None:
        with pytest.raises(StoreError):
            await run(FaultyStore(store, at=at, error=StoreError, deletes=True))
    await run(store)
    records = await found(store)
    assert records[ARCHIVED]["data"] == {"status": "released", "updated_at": OLD}
    compacted = sorted(path for path in records if path.startswith("archive/events/b1/compact-e8516d23c4719c54-"))
    told = sorted([record["event_id"] for record in records[path]["records"]] for path in compacted)
    # Only a removal that was cut off in its midst is compacted once more.
    assert told == ([["e1", "e2"], ["e2"]] if at == 5 else [["e1", "e2"]])
    assert set(records) == {ARCHIVED, *compacted}
    assert (await run(store)).actions == ()


async def test_a_copy_that_has_expired_is_made_anew_before_its_source_goes(store: Store) -> None:
    await lay(store)
    context = Context(store=store, now=lambda: START, random=Chance())
    for action in (await retain(context, RetentionRequest(execute=False))).actions:
        if not isinstance(action, Delete):
            await store.write(action.archive_path, action.envelope | {"delete_after": OLD}, version=None, note="Lay")
    await run(store)
    records = await found(store)
    assert len(records) == 2
    assert {record["delete_after"] for record in records.values()} == {stamp(START + timedelta(days=30))}
    assert (await run(store)).actions == ()


async def test_a_store_with_a_history_tells_what_was_done(github: GithubStore, server: GithubServer) -> None:
    await lay(github)
    laid = len(server.messages())
    await run(github)
    assert server.messages()[:-laid] == [
        f"Delete expired archive {EXPIRED}",
        *["Compact terminal events"] * 3,
        *[f"Archive {CLAIM}"] * 2,
    ]
