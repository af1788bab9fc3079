"""Retention as it is done: copied, then removed, wherever it is cut off."""

from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentcoord.errors import StoreError
from agentcoord.operations.retention import Retention, RetentionRequest, retain
from agentcoord.protocol.documents import Document, canonical
from agentcoord.protocol.instants import stamp
from agentcoord.protocol.retention import Archive, Compact, Delete, Policy
from agentcoord.stores.base import Store
from agentcoord.stores.memory import MemoryStore
from tests.operations.stage import CLAIM, START, FakeClock, FaultyStore, Stage
from tests.stores.counting import CountingStore

pytestmark = pytest.mark.anyio

OLD = stamp(START - timedelta(days=8))
EXPIRED = stamp(START - timedelta(days=1))
RELEASED: Document = {"status": "released", "updated_at": OLD, "agent_id": "a1"}


async def run(stage: Stage, store: Store | None = None, *, execute: bool = True, **more: Any) -> Retention:
    return await retain(stage.context(store), RetentionRequest(execute=execute, **more))


def envelope(source_path: str, data: Document, *, delete_after: str) -> Document:
    head = {"schema_version": 1, "record_family": "archived_record", "source_path": source_path}
    return head | {"reason": "x", "synthetic": False, "archived_at": OLD, "delete_after": delete_after, "data": data}


def lay_everything(stage: Stage) -> None:
    """Lay something of every kind that gc handles, and of every kind that it leaves."""
    stage.lay(CLAIM, RELEASED)
    stage.lay("claims/o/r/8.json", RELEASED | {"status": "active"})
    stage.lay("claims/o/r/9.json", RELEASED | {"agent_id": "a9"})
    stage.lay("archive/claims/o/r/9.json", envelope("claims/o/r/9.json", RELEASED, delete_after=EXPIRED))
    stage.lay("heartbeats/a1.json", {"status": "done", "updated_at": OLD, "expires_at": OLD})
    stage.lay("batches/b1.json", {"status": "completed", "updated_at": OLD})
    stage.lay("archive/heartbeats/gone.json", envelope("heartbeats/gone.json", {}, delete_after=EXPIRED))
    stage.lay("archive/heartbeats/kept.json", envelope("heartbeats/kept.json", {}, delete_after=stage.stamp(seconds=1)))
    stage.lay("attention/w/o/r/1.json", {"status": "resolved", "updated_at": OLD})
    lay_lane(stage)
    stage.lay("events/b2/1.json", event("1", batch_id="b2"))


def event(name: str, **more: Any) -> Document:
    document = {"schema_version": 1, "event_id": name, "batch_id": "b1", "type": "note", "repo": "o/r", "target": "7"}
    return document | {"at": OLD} | more


def lay_lane(stage: Stage) -> None:
    """Lay a closed lane, whose closing sorts before its events by name."""
    closer = {"agent_id": "a1", "machine": "m1"}
    facts = {"schema_version": 2, "type": "lane_closed", "terminal": "done", "workspace": "default"}
    stage.lay("events/b1/a.json", event("a", lane="qa", closed_by=closer, **facts))
    for name, more in (("b", {"lane": "qa", "phase": "x"}), ("c", {"lane": "qa", "phase": "x"}), ("d", {})):
        stage.lay(f"events/b1/{name}.json", event(name, **more))


def kept(records: dict[str, Any]) -> dict[str, set[bytes]]:
    """Give everything that is known of each source: hot, or in an envelope."""
    found: dict[str, set[bytes]] = {}
    for path, document in records.items():
        if not path.startswith("archive/"):
            found.setdefault(path, set()).add(canonical(document))
        elif "data" in document:
            found.setdefault(document["source_path"], set()).add(canonical(document["data"]))
        else:
            for record in document["records"]:
                found.setdefault(f"events/{record['batch_id']}/{record['event_id']}.json", set()).add(canonical(record))
    return found


async def test_everything_due_is_moved_and_nothing_else(stage: Stage) -> None:
    lay_everything(stage)
    before = await stage.records()
    done = await run(stage)
    after = await stage.records()
    assert [(type(action).__name__, action.reason) for action in done.actions] == [
        ("Delete", "archive_expired"),
        ("Archive", "completed_batch"),
        ("Archive", "terminal_claim"),
        ("Archive", "expired_archive_replacement"),
        ("Compact", "terminal_target_events"),
        ("Archive", "terminal_heartbeat"),
    ]
    compaction = next(action for action in done.actions if isinstance(action, Compact))
    assert sorted(after) == sorted(
        [
            "archive/batches/b1.json",
            f"archive/{CLAIM}",
            "archive/claims/o/r/9.json",
            compaction.archive_path,
            "archive/heartbeats/a1.json",
            "archive/heartbeats/kept.json",
            "attention/w/o/r/1.json",
            "claims/o/r/8.json",
            "events/b2/1.json",
        ]
    )
    assert after[f"archive/{CLAIM}"]["data"] == before[CLAIM]
    assert after["archive/claims/o/r/9.json"]["data"] == before["claims/o/r/9.json"]
    assert [record["event_id"] for record in after[compaction.archive_path]["records"]] == ["b", "a"]
    assert (await run(stage)).actions == ()
    assert await stage.records() == after


async def test_what_is_announced_is_what_is_done_and_only_announced(stage: Stage) -> None:
    lay_everything(stage)
    before = await stage.records()
    store = CountingStore(stage.store)
    announced = await run(stage, store, execute=False)
    assert (store.writes, store.deletes) == ([], [])
    assert await stage.records() == before
    assert announced.actions == (await run(stage)).actions


async def _changes(clock: FakeClock) -> int:
    stage = Stage(MemoryStore(), clock)
    lay_everything(stage)
    store = FaultyStore(stage.store, deletes=True)
    await run(stage, store)
    return store.writes


@pytest.mark.parametrize("landed", [False, True])
async def test_a_run_that_is_killed_anywhere_is_taken_up_again(clock: FakeClock, *, landed: bool) -> None:
    whole = Stage(MemoryStore(), clock)
    lay_everything(whole)
    laid = await whole.records()
    await run(whole)
    wanted = kept(await whole.records())
    changes = await _changes(clock)
    assert changes == 4 * 2 + 1 + (1 + 4) + 1
    for number in range(1, changes + 1):
        stage = Stage(MemoryStore(), clock)
        lay_everything(stage)
        failing = FaultyStore(stage.store, at=number, error=StoreError, landed=landed, deletes=True)
        with pytest.raises(StoreError):
            await run(stage, failing)
        assert failing.writes == number, "nothing happens after the first failure"
        between = kept(await stage.records())
        assert wanted.keys() <= between.keys(), f"lost when killed at {number}"
        await run(stage)
        records = await stage.records()
        told = kept(records)
        assert all(facts <= told[path] for path, facts in wanted.items()), f"lost when killed at {number}"
        assert all(len(facts) == 1 for facts in told.values()), f"told twice, differently, when killed at {number}"
        assert not {path for path in records if f"archive/{path}" in records}, "hot and archived"
        hot = {path for path in records if not path.startswith("archive/")}
        assert hot == {"attention/w/o/r/1.json", "claims/o/r/8.json", "events/b2/1.json"}, number
        assert all(fact == canonical(laid[path]) for path in hot for fact in told[path])
        assert (await run(stage)).actions == ()
        assert await stage.records() == records


async def test_a_copy_that_a_run_left_is_used_as_it_is(stage: Stage) -> None:
    stage.lay(CLAIM, RELEASED)
    left = envelope(CLAIM, RELEASED, delete_after=stage.stamp(seconds=60))
    stage.lay(f"archive/{CLAIM}", left)
    await run(stage)
    assert await stage.records() == {f"archive/{CLAIM}": left}


async def test_a_copy_that_is_made_beside_this_run_is_used_if_it_is_the_same(stage: Stage) -> None:
    async def other_run() -> None:
        stage.lay(f"archive/{CLAIM}", envelope(CLAIM, RELEASED, delete_after=stage.stamp(seconds=60)))

    stage.lay(CLAIM, RELEASED)
    await run(stage, FaultyStore(stage.store, at=1, first=other_run))
    assert list(await stage.records()) == [f"archive/{CLAIM}"]


_DROPPED = ("events/b1/c.json", "events/b1/d.json")
"""What compaction leaves out of a lane."""


async def _cut_off_long_ago(stage: Stage, clock: FakeClock) -> dict[str, set[bytes]]:
    """Have copies of a claim and a lane whose run removed nothing and that have expired; give what they tell."""
    stage.lay(CLAIM, RELEASED)
    lay_lane(stage)
    hot = await stage.records()
    copies = [action for action in (await run(stage, execute=False)).actions if not isinstance(action, Delete)]
    for action in copies:
        stage.lay(action.archive_path, action.envelope)
    clock.advance(hours=31 * 24)
    return {path: told for path, told in kept(hot).items() if path not in _DROPPED}


async def test_a_copy_whose_time_is_over_is_made_anew_before_its_sources_go(stage: Stage, clock: FakeClock) -> None:
    told = await _cut_off_long_ago(stage, clock)
    await run(stage)
    assert (await run(stage)).actions == (), "the copies are kept for their time"
    records = await stage.records()
    assert kept(records) == told
    assert {record["delete_after"] for record in records.values()} == {stage.stamp(seconds=30 * 24 * 3600)}


@pytest.mark.parametrize("at", range(1, 10))
async def test_a_run_that_deletes_what_expired_beside_this_one_costs_nothing(
    stage: Stage, clock: FakeClock, at: int
) -> None:
    async def other_run() -> None:
        await run(stage, prefixes=("heartbeats",))  # to it nothing stands against deleting the copies

    told = await _cut_off_long_ago(stage, clock)
    with suppress(StoreError):  # as when the copy that was found is gone: its source is not touched
        await run(stage, FaultyStore(stage.store, at=at, first=other_run, deletes=True))
    assert kept(await stage.records()).keys() >= told.keys()
    await run(stage)
    await run(stage)
    assert kept(await stage.records()).items() >= told.items()


Lay = Callable[[Stage], None]


def _claim(stage: Stage) -> None:
    stage.lay(CLAIM, RELEASED)


def _replaced(stage: Stage) -> None:
    stage.lay(CLAIM, RELEASED)
    stage.lay(f"archive/{CLAIM}", envelope(CLAIM, {}, delete_after=EXPIRED))


def _expired(stage: Stage) -> None:
    stage.lay(f"archive/{CLAIM}", envelope(CLAIM, {}, delete_after=EXPIRED))


_CHANGED = r"; state changed at "


@pytest.mark.parametrize(
    ("lay", "at", "path", "said"),
    [
        (_claim, 1, f"archive/{CLAIM}", rf"^archive destination conflict at archive/{CLAIM}$"),
        (_claim, 2, CLAIM, rf"^gc source changed at {CLAIM}{_CHANGED}"),
        (_replaced, 1, f"archive/{CLAIM}", rf"^gc archive replacement changed at archive/{CLAIM}{_CHANGED}"),
        (_replaced, 2, f"archive/{CLAIM}", rf"^archive destination conflict at archive/{CLAIM}$"),
        (_replaced, 3, CLAIM, rf"^gc source changed at {CLAIM}{_CHANGED}"),
        (_expired, 1, f"archive/{CLAIM}", rf"^gc archive changed at archive/{CLAIM}{_CHANGED}"),
        (lay_lane, 1, "archive/events/b1/", r"^event compaction destination conflict at archive/events/b1/compact-"),
        (lay_lane, 2, "events/b1/b.json", rf"^gc event changed at events/b1/b\.json{_CHANGED}"),
        (lay_lane, 5, "events/b1/a.json", rf"^gc event changed at events/b1/a\.json{_CHANGED}"),
    ],
    ids=lambda value: None if isinstance(value, str) else getattr(value, "__name__", str(value)),
)
async def test_news_that_come_in_between_are_never_removed(
    stage: Stage, lay: Lay, at: int, path: str, said: str
) -> None:
    lay(stage)
    planned = await run(stage, execute=False)
    if path.endswith("/"):
        (action,) = planned.actions
        assert isinstance(action, Compact)
        path = action.archive_path
    news = {"record_family": "archived_record", "delete_after": EXPIRED, "news": True}

    async def somebody_writes() -> None:
        stage.lay(path, news)

    with pytest.raises(StoreError, match=said):
        await run(stage, FaultyStore(stage.store, at=at, first=somebody_writes, deletes=True))
    assert await stage.record(path) == news


async def test_nothing_is_written_before_every_envelope_is_known_to_fit(stage: Stage) -> None:
    lay_everything(stage)
    stage.lay("heartbeats/zz.json", {"status": "done", "updated_at": OLD, "note": "x" * 1024 * 1024})
    before = await stage.records()
    for execute in (False, True):
        expected = r"^gc archive envelope exceeds 1048576 bytes at archive/heartbeats/zz\.json$"
        with pytest.raises(StoreError, match=expected):
            await run(stage, execute=execute)
    assert await stage.records() == before


async def test_a_batch_whose_name_leaves_no_room_for_an_envelope_stops_the_plan(stage: Stage) -> None:
    batch = "b" * 480
    stage.lay(f"events/{batch}/1.json", event("1", batch_id=batch, synthetic=True))
    with pytest.raises(StoreError, match=r"^gc archive path exceeds 520 bytes: archive/events/bbb"):
        await run(stage)


@pytest.mark.parametrize("path", [CLAIM, "heartbeats/a1.json", "batches/b1.json", "events/b1/1.json", "archive/x.json"])
@pytest.mark.parametrize("data", [b"{", b"[]", b"null"])
async def test_a_record_that_cannot_be_read_stops_the_plan_and_is_named(stage: Stage, path: str, data: bytes) -> None:
    lay_everything(stage)
    stage.store.plant(path, data)
    store = CountingStore(stage.store)
    with pytest.raises(StoreError, match=path):
        await run(stage, store)
    assert (store.writes, store.deletes) == ([], [])


async def test_an_event_with_damaged_text_stays_with_its_group(stage: Stage) -> None:
    lay_everything(stage)
    damaged = b'{"batch_id": "b1", "repo": "o/r", "target": "7", "lane": "qa", "message": "\\ud800"}'
    stage.store.plant("events/b1/e.json", damaged)
    done = await run(stage)
    assert {type(action) for action in done.actions} == {Archive, Delete}
    assert len(list((await stage.store.list("events/b1")).entries)) == 5


async def test_only_the_families_asked_for_are_looked_through_and_the_archive_always(stage: Stage) -> None:
    lay_everything(stage)
    store = CountingStore(stage.store)
    done = await run(stage, store, prefixes=("heartbeats",))
    assert store.lists == ["heartbeats", "archive"]
    assert [action.reason for action in done.actions] == ["archive_expired", "archive_expired", "terminal_heartbeat"]


async def test_a_part_of_the_state_that_does_not_answer_stops_the_plan(stage: Stage) -> None:
    lay_everything(stage)
    for prefix in ("claims", "events", "archive"):
        store = FaultyStore(stage.store, unreadable=prefix)
        with pytest.raises(StoreError, match=f"did not answer for {prefix}"):
            await run(stage, store)
        assert store.writes == 0


async def test_a_lane_ends_with_nothing_left_once_its_archive_expired(stage: Stage, clock: FakeClock) -> None:
    lay_lane(stage)
    await run(stage)
    assert len(await stage.records()) == 1
    clock.advance(hours=30 * 24)
    (action,) = (await run(stage)).actions
    assert isinstance(action, Delete)
    assert await stage.records() == {}


@given(st.integers(0, 20), st.integers(0, 20), st.integers(0, 40), st.integers(1, 12))
async def test_at_any_policy_a_killed_run_loses_nothing(hot: int, synthetic: int, archive: int, at: int) -> None:
    policy = Policy(hot_days=hot, archive_days=archive, synthetic_hot_days=synthetic)
    stage = Stage(MemoryStore(), FakeClock())
    lay_everything(stage)
    hot_before = {path for path in await stage.records() if not path.startswith("archive/")}
    failing = FaultyStore(stage.store, at=at, error=StoreError, deletes=True)
    planned = await run(stage, execute=False, policy=policy)
    if planned.actions and at <= len(planned.actions):
        with pytest.raises(StoreError):
            await run(stage, failing, policy=policy)
    records = await stage.records()
    told = kept(records)
    named = {path for document in records.values() for path in document.get("source_paths", [])}
    assert hot_before <= told.keys() | named
