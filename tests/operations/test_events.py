"""Recording events: named by time and chance, never overwritten, checked by type."""

from typing import Any

import pytest

from agentcoord.errors import Conflict, StoreError, UsageError
from agentcoord.operations.events import record_event
from agentcoord.protocol.events import Said
from agentcoord.protocol.identity import Identity
from agentcoord.protocol.statuses import normalize
from tests.operations.stage import FaultyStore, Stage
from tests.stores.counting import CountingStore


def said(type_: str = "note", **more: Any) -> Said:
    return Said(batch_id=more.pop("batch_id", "b1"), type=type_, **more)


async def test_an_event_is_kept_under_its_own_name(stage: Stage) -> None:
    store = CountingStore(stage.store)
    context = stage.context(store, Identity(session_id="s1", session_source="codex_thread_id"))
    recorded = await record_event(
        context, said(lane="worker", message="half way", status=normalize("Done"), metadata={"phase": "test"})
    )
    assert list(recorded.record.items()) == [
        ("schema_version", 1),
        ("event_id", "20260101T000000.000000Z-00000001"),
        ("batch_id", "b1"),
        ("type", "note"),
        ("lane", "worker"),
        ("status", "done"),
        ("status_raw", "Done"),
        ("message", "half way"),
        ("phase", "test"),
        ("at", "2026-01-01T00:00:00Z"),
        ("session_id", "s1"),
        ("session_source", "codex_thread_id"),
    ]
    assert store.reads == store.lists == []  # a token that may only write suffices
    assert store.writes == ["events/b1/20260101T000000.000000Z-00000001.json"]


@pytest.mark.parametrize("taken", [0, 1, 2])
async def test_a_name_that_is_taken_is_left_alone(stage: Stage, taken: int) -> None:
    for number in range(1, taken + 1):
        stage.lay(f"events/b1/20260101T000000.000000Z-{number:08x}.json", {"other": number})
    recorded = await record_event(stage.context(), said())
    assert recorded.record["event_id"] == f"20260101T000000.000000Z-{taken + 1:08x}"
    assert len(await stage.records()) == taken + 1


async def test_the_work_of_the_same_command_is_not_done_twice(stage: Stage) -> None:
    first = await record_event(stage.context(), said(message="half way"))
    before = await stage.records()
    stage.chance.drawn = 0  # a command that a daemon was lost with draws the same again
    assert await record_event(stage.context(), said(message="half way")) == first
    assert await stage.records() == before


async def test_the_same_name_for_something_else_is_a_name_that_is_taken(stage: Stage) -> None:
    first = await record_event(stage.context(), said(message="half way"))
    stage.chance.drawn = 0
    second = await record_event(stage.context(), said(message="done"))
    assert first.record["event_id"] != second.record["event_id"]
    assert len(await stage.records()) == 2


async def test_a_name_that_is_taken_by_what_may_not_be_read_is_left_alone(stage: Stage) -> None:
    await record_event(stage.context(), said())
    stage.chance.drawn = 0
    await record_event(stage.context(FaultyStore(stage.store, unreadable="events/")), said())
    assert len(await stage.records()) == 2


async def test_three_taken_names_are_enough(stage: Stage) -> None:
    for number in (1, 2, 3):
        stage.lay(f"events/b1/20260101T000000.000000Z-{number:08x}.json", {"other": number})
    before = await stage.records()
    store = CountingStore(stage.store)
    with pytest.raises(StoreError) as caught:
        await record_event(stage.context(store), said())
    assert str(caught.value) == "event id collision while recording event for b1"
    assert not isinstance(caught.value, Conflict)
    assert len(store.writes) == 3
    assert await stage.records() == before


async def test_any_other_failure_is_not_tried_again(stage: Stage) -> None:
    store = FaultyStore(stage.store, at=1, error=lambda _: StoreError("no room"))
    with pytest.raises(StoreError, match="no room"):
        await record_event(stage.context(store), said())
    assert store.writes == 1


@pytest.mark.parametrize(
    "fine",
    [
        said("help_requested", signals={"reason": "question"}),
        said("escalation_requested", signals={"from_route": "a", "to_route": "b", "evidence": "c"}),
        said("error", signals={"severity": "P0", "category": "ci"}, message="red"),
        said("human_intervention", signals={"kind": "manual-fix"}),
        said("breadcrumb", signals={"severity": "whatever", "kind": "", "reason": "x"}),
        said("lane_closed:note", batch_id="b:1"),
    ],
)
async def test_signals_are_kept_with_their_fields(stage: Stage, fine: Said) -> None:
    record = (await record_event(stage.context(), fine)).record
    assert {key: record[key] for key in fine.signals} == fine.signals


@pytest.mark.parametrize(
    ("wrong", "fault"),
    [
        (said(batch_id="a/b"), "invalid batch-id: a/b"),
        (said("a b"), "invalid event type: a b"),
        (said(lane=""), "--lane must not be empty"),
        (said(lane="a:b"), "event lane a:b cannot contain ':'"),
        (said("help_requested"), "missing required --reason"),
        (said("help_requested", signals={"reason": ""}), "missing required --reason"),
        (
            said("help_requested", signals={"reason": "bored"}),
            "--reason must be one of: blocked-user-input, question, permission",
        ),
        (
            said("help_requested", signals={"severity": "P1"}),
            "--severity is not valid for --type help_requested",
        ),
        (
            said("error", signals={"reason": "question", "kind": "drain"}, message="x"),
            "--reason is not valid for --type error",
        ),
        (said("escalation_requested", signals={"to_route": "b"}), "missing required --from-route"),
        (said("escalation_requested", signals={"from_route": " ", "to_route": "b"}), "missing required --from-route"),
        (said("escalation_requested", signals={"from_route": "a"}), "missing required --to-route"),
        (
            said("escalation_requested", signals={"from_route": "a", "to_route": "b", "evidence": "\t"}),
            "missing required --evidence",
        ),
        (said("error", message="x"), "missing required --severity"),
        (said("error", signals={"severity": "P4"}, message="x"), "--severity must be one of: P0, P1, P2, P3"),
        (said("error", signals={"severity": "P1"}, message="x"), "missing required --category"),
        (said("error", signals={"severity": "P1", "category": "ci"}), "missing required --message"),
        (said("error", signals={"severity": "P1", "category": "ci"}, message=" "), "missing required --message"),
        (said("human_intervention"), "missing required --kind"),
        (
            said("human_intervention", signals={"kind": "x"}),
            "--kind must be one of: takeover, supersede, manual-fix, drain",
        ),
    ],
)
async def test_an_event_that_is_wrong_is_not_recorded(stage: Stage, wrong: Said, fault: str) -> None:
    store = CountingStore(stage.store)
    with pytest.raises(UsageError) as caught:
        await record_event(stage.context(store), wrong)
    assert str(caught.value) == fault
    assert store.writes == []
