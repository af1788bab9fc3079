"""What one beat writes, keeps and tells."""

from typing import Any

import pytest

from agentcoord.errors import Conflict, StoreError, Unreadable, UsageError
from agentcoord.operations.heartbeats import heartbeat
from agentcoord.protocol.heartbeats import Beat
from agentcoord.protocol.statuses import normalize
from tests.operations.stage import FakeClock, FaultyStore, Stage
from tests.stores.counting import CountingStore

BEAT = "heartbeats/a1.json"


def beat(agent_id: str = "a1", **more: Any) -> Beat:
    facts: dict[str, Any] = {"ttl": 900, "status": normalize("in_progress"), **more}
    return Beat(agent_id=agent_id, **facts)


async def test_a_beat_says_until_when_it_lasts(stage: Stage) -> None:
    await stage.beat("a1", ttl=60, repo="o/r", target="7", metadata={"phase": "start"})
    assert await stage.record(BEAT) == {
        "repo": "o/r",
        "target": "7",
        "schema_version": 1,
        "agent_id": "a1",
        "status": "in_progress",
        "updated_at": "2026-01-01T00:00:00Z",
        "expires_at": "2026-01-01T00:01:00Z",
        "phase": "start",
    }


async def test_the_next_beat_keeps_the_work_and_drops_other_work(stage: Stage) -> None:
    await stage.beat("a1", repo="o/r", target="7", batch_id="b1", metadata={"phase": "start", "host": "codex"})
    kept = await stage.beat("a1")
    assert (kept["target"], kept["batch_id"], kept["phase"], kept["host"]) == ("7", "b1", "start", "codex")
    moved = await stage.beat("a1", repo="o/r", target="8")
    assert moved["repo"] == "o/r"
    assert not {"batch_id", "phase", "host"} & moved.keys()
    homeless = await stage.beat("a1", repo="o/other")
    assert "target" not in homeless


async def test_a_change_of_phase_is_told_once(stage: Stage) -> None:
    work: dict[str, Any] = {"repo": "o/r", "target": "7", "batch_id": "b1"}
    await stage.beat("a1", **work, metadata={"phase": "start"})
    await stage.beat("a1", **work, metadata={"phase": "start"})
    await stage.beat("a1", metadata={"phase": "test"})
    await stage.beat("a1")
    [event] = await stage.events()
    assert event == {
        "schema_version": 1,
        "event_id": "20260101T000000.000000Z-00000001",
        "batch_id": "b1",
        "type": "phase.changed",
        "agent_id": "a1",
        "repo": "o/r",
        "target": "7",
        "message": "phase start -> test",
        "phase": "test",
        "previous_phase": "start",
        "at": "2026-01-01T00:00:00Z",
    }


@pytest.mark.parametrize("other", [{"batch_id": "b2"}, {"repo": "o/x"}, {"target": "8"}])
async def test_a_phase_of_other_work_is_no_change(stage: Stage, other: dict[str, Any]) -> None:
    await stage.beat("a1", repo="o/r", target="7", batch_id="b1", metadata={"phase": "start"})
    await stage.beat("a1", **other, metadata={"phase": "test"})
    assert await stage.events() == await stage.events("b2") == []


async def test_a_phase_event_that_fails_costs_a_warning(stage: Stage) -> None:
    await stage.beat("a1", batch_id="b1", metadata={"phase": "start"})
    context = stage.context(FaultyStore(stage.store, at=2, error=lambda _: StoreError("no room")))
    await heartbeat(context, beat(metadata={"phase": "test"}))
    assert context.notices == ["warning: phase.changed event not recorded: no room"]


@pytest.mark.parametrize(
    ("said", "value", "raw"),
    [
        ("Done", "done", "Done"),
        ("waiting-on-checks-or-review", "waiting_on_checks_or_review", "waiting-on-checks-or-review"),
        ("completed", "done", "completed"),
        ("blocked", "blocked", None),
        ("released", "released", "released"),
        ("", "", ""),
    ],
)
async def test_statuses_fold_and_the_callers_spelling_stays(
    stage: Stage, said: str, value: str, raw: str | None
) -> None:
    record = await stage.beat("a1", status=said)
    assert (record["status"], record.get("status_raw")) == (value, raw)
    assert "status_raw" not in await stage.beat("a1")


async def test_an_unknown_status_is_kept_with_a_warning(stage: Stage) -> None:
    context = stage.context()
    await heartbeat(context, beat(status=normalize("released")))
    [warning] = context.notices
    assert warning.startswith('warning: status "released" is not in the canonical status vocabulary; preserving')
    assert warning.endswith("ready_no_merge_authority, abandoned, superseded.")


@pytest.mark.parametrize(
    ("wrong", "fault"),
    [
        (beat("a/b"), "invalid agent-id: a/b"),
        (beat("../a"), "invalid agent-id: ../a"),
        (beat("a b"), "invalid agent-id: a b"),
        (beat("a\n"), "invalid agent-id: a\n"),
        (beat(ttl=0), "--ttl must be positive"),
        (beat(ttl=-1), "--ttl must be positive"),
    ],
)
async def test_a_beat_that_says_nothing_is_refused(stage: Stage, wrong: Beat, fault: str) -> None:
    store = CountingStore(stage.store)
    with pytest.raises(UsageError) as caught:
        await heartbeat(stage.context(store), wrong)
    assert str(caught.value) == fault
    assert store.reads == store.writes == []


async def test_one_lost_race_is_run_again_on_what_the_other_wrote(stage: Stage, clock: FakeClock) -> None:
    await stage.beat("a1", metadata={"phase": "start"})

    async def first() -> None:
        clock.advance(seconds=1)
        await stage.beat("a1", metadata={"host": "codex"})

    store = FaultyStore(stage.store, at=1, first=first)
    record = (await heartbeat(stage.context(store), beat())).record
    assert store.writes == 2
    assert (record["host"], record["phase"]) == ("codex", "start")


async def test_a_second_lost_race_is_the_end(stage: Stage) -> None:
    store = Raced(stage.store)
    with pytest.raises(StoreError) as caught:
        await heartbeat(stage.context(store), beat())
    assert str(caught.value) == f"state changed while writing {BEAT}"
    assert store.writes == 2
    assert await stage.records() == {}


class Raced(FaultyStore):
    async def write(self, path: str, document: object, *, version: str | None, note: str) -> str:
        self.writes += 1
        raise Conflict(path)


@pytest.mark.parametrize("data", [b"", b"{", b"\xff"])
async def test_a_broken_heartbeat_is_not_overwritten(stage: Stage, data: bytes) -> None:
    stage.store.plant(BEAT, data)
    store = CountingStore(stage.store)
    with pytest.raises(Unreadable, match=BEAT):
        await heartbeat(stage.context(store), beat())
    assert store.writes == []
