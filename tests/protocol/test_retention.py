"""What has outlived its time, and what becomes of it."""

from collections.abc import Callable, Iterable
from datetime import datetime, timedelta
from typing import Any, TypeVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentcoord.errors import StoreError
from agentcoord.protocol.archive import envelop_record
from agentcoord.protocol.audit import is_terminal_event
from agentcoord.protocol.documents import Document, encode
from agentcoord.protocol.instants import stamp
from agentcoord.protocol.retention import (
    Archive,
    Compact,
    Delete,
    Event,
    Garbled,
    Policy,
    decode_event,
    meet,
    plan_archiving,
    plan_compactions,
)
from tests.protocol.strategies import NOW, named, nearby, records

Found = TypeVar("Found")
POLICY = Policy()
CLAIM, BEAT, BATCH = "claims/o/r/7.json", "heartbeats/a1.json", "batches/b1.json"
ALL = Policy(hot_days=0, archive_days=30, synthetic_hot_days=0)


def ago(**past: float) -> str:
    return stamp(NOW - timedelta(**past))


OLD, FRESH = ago(days=7), ago(days=7, seconds=-1)
"""The two sides of the usual window."""


def beat(status: str, *, dead_for: timedelta) -> Document:
    updated = NOW - dead_for - timedelta(hours=1)
    times = {"updated_at": stamp(updated), "expires_at": stamp(updated + timedelta(minutes=15))}
    return {"agent_id": "a1", "status": status, **times}


def answer(rule: Callable[..., Found], *given: object) -> Found | str:
    """Give what a rule says, or how it refuses to say anything."""
    try:
        return rule(*given, NOW)
    except StoreError as error:
        return str(error)


def reason_of(path: str, record: Document, policy: Policy = POLICY) -> str | None:
    found = plan_archiving(path, record, policy, NOW)
    return None if found is None else found.reason


# One record ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("path", "record", "reason"),
    [
        (CLAIM, {"status": "released"}, "terminal_claim"),
        (CLAIM, {"status": "active", "terminal": "done"}, "terminal_claim"),
        (CLAIM, {"status": "active", "terminal": "finished"}, None),
        (CLAIM, {"status": "active", "terminal": ["done"]}, None),
        (CLAIM, {"status": "active"}, None),
        (CLAIM, {"status": "active", "synthetic": True}, None),
        (CLAIM, {}, None),
        (BATCH, {"status": "completed"}, "completed_batch"),
        (BATCH, {"status": "done"}, None),
        (BATCH, {}, None),
        (BEAT, {"status": "merged"}, "terminal_heartbeat"),
        (BEAT, {"status": "completed"}, None),
        (BEAT, {"status": "in_progress"}, None),
        (BEAT, {"status": "released"}, None),
    ],
    ids=named,
)
def test_only_work_that_is_over_is_eligible(path: str, record: Document, reason: str | None) -> None:
    assert reason_of(path, record | {"updated_at": OLD}) == reason


@pytest.mark.parametrize("path", [CLAIM, BEAT, BATCH])
def test_a_record_stays_for_its_window_to_the_second(path: str) -> None:
    over = {CLAIM: {"status": "released"}, BEAT: {"status": "done"}, BATCH: {"status": "completed"}}[path]
    assert plan_archiving(path, over | {"updated_at": FRESH}, POLICY, NOW) is None
    found = plan_archiving(path, over | {"updated_at": OLD}, POLICY, NOW)
    assert found is not None
    assert (found.source_path, found.archive_path, found.eligible_at) == (path, f"archive/{path}", OLD)


@pytest.mark.parametrize("mark", [True, False, 1, "true", None])
def test_only_the_mark_itself_shortens_the_window(mark: object) -> None:
    record = {"status": "released", "updated_at": ago(days=1), "synthetic": mark}
    assert (reason_of(CLAIM, record) is not None) == (mark is True)
    assert reason_of(CLAIM, record | {"updated_at": ago(hours=23)}) is None


def test_a_dead_heartbeat_has_its_window_from_its_death() -> None:
    assert reason_of(BEAT, beat("in_progress", dead_for=timedelta(days=7))) == "dead_heartbeat"
    assert reason_of(BEAT, beat("in_progress", dead_for=timedelta(days=7, seconds=-1))) is None
    found = plan_archiving(BEAT, beat("in_progress", dead_for=timedelta(days=8)), POLICY, NOW)
    assert found is not None
    assert found.eligible_at == ago(days=8)


def test_a_heartbeat_that_never_lived_is_archived_all_the_same() -> None:
    record = {"status": "in_progress", "updated_at": "0001-01-02T00:00:00Z", "expires_at": "0001-01-01T00:00:00Z"}
    assert reason_of(BEAT, record) == "dead_heartbeat"


def test_a_batch_counts_from_its_completion() -> None:
    record = {"status": "completed", "updated_at": OLD, "completed_at": FRESH}
    assert reason_of(BATCH, record) is None
    assert reason_of(BATCH, record | {"updated_at": FRESH, "completed_at": OLD}) == "completed_batch"


def test_the_first_time_that_is_there_counts() -> None:
    times = ["updated_at", "at", "released_at", "completed_at", "expires_at"]
    for number, field in enumerate(times):
        later = dict.fromkeys(times[number + 1 :], FRESH)
        earlier = dict.fromkeys(times[:number], None)
        assert reason_of(CLAIM, {"status": "released", **earlier, **later, field: OLD}) == "terminal_claim"


def test_a_record_that_does_not_say_since_when_is_named() -> None:
    with pytest.raises(StoreError, match=r"^gc record is missing a retention timestamp at claims/o/r/7\.json$"):
        reason_of(CLAIM, {"status": "released"})
    for value, said in (("yesterday", "yesterday"), ("", ""), (5, "5")):
        expected = rf"^gc record has invalid retention timestamp at claims/o/r/7\.json: {said}$"
        with pytest.raises(StoreError, match=expected):
            reason_of(CLAIM, {"status": "released", "updated_at": value, "released_at": OLD})
    assert reason_of(CLAIM, {"status": "active", "updated_at": "yesterday"}) is None


def test_a_window_longer_than_the_calendar_keeps_everything() -> None:
    for days in (10**6, 10**30):
        assert reason_of(CLAIM, {"status": "released", "updated_at": OLD}, Policy(hot_days=days)) is None


any_record = records(
    ["status", "terminal", "updated_at", "expires_at", "at", "released_at", "completed_at", "synthetic"],
    {"status": "in_progress", "updated_at": OLD, "expires_at": OLD},
)


@given(st.sampled_from([CLAIM, BEAT, BATCH]), any_record, st.integers(0, 10), st.integers(0, 10))
def test_whatever_a_record_says_it_is_kept_archived_or_named(
    path: str, record: Document, hot: int, longer: int
) -> None:
    found = answer(plan_archiving, path, record, Policy(hot_days=hot, synthetic_hot_days=hot))
    if isinstance(found, str):
        assert path in found
        return
    patient = plan_archiving(path, record, Policy(hot_days=hot + longer, synthetic_hot_days=hot + longer), NOW)
    assert patient is None or found is not None, "who waits longer archives nothing else"
    if found is not None:
        assert found.envelope["data"] == record


# Events --------------------------------------------------------------------------------------------


def event(name: str, at: str = OLD, **more: Any) -> Event:
    document = {"schema_version": 1, "event_id": name, "batch_id": "b1", "type": "note", "repo": "o/r", "target": "7"}
    return Event(f"events/b1/{name}.json", document | {"at": at} | more)


def closing(name: str = "z", at: str = OLD, lane: str | None = "qa", **more: Any) -> Event:
    facts: Document = {"schema_version": 2, "type": "lane_closed", "terminal": "done", "workspace": "default"}
    facts |= {"closed_by": {"agent_id": "a1", "machine": "m1"}} | ({} if lane is None else {"lane": lane})
    return event(name, at, **facts | more)


def names(plan: Compact) -> list[str]:
    return [path.rpartition("/")[2].removesuffix(".json") for path in plan.source_paths]


def groups(*events: Event, policy: Policy = POLICY) -> list[list[str]]:
    return [names(plan) for plan in plan_compactions(events, policy, NOW)]


def test_a_closed_lane_goes_with_all_its_events() -> None:
    assert groups(event("1", lane="qa"), event("2", lane="qa"), closing()) == [["1", "2", "z"]]
    assert groups(event("1", lane="qa"), event("2", lane="qa")) == []
    assert groups(event("1", lane="qa", terminal="done", type="lane_closed")) == []


def test_one_event_in_its_window_holds_the_group_back() -> None:
    assert groups(event("1", lane="qa"), closing(at=FRESH)) == []
    assert groups(event("1", FRESH, lane="qa"), closing()) == []
    assert groups(event("1", FRESH, lane="ui"), closing()) == [["z"]]


def test_an_event_without_a_lane_joins_the_only_one_that_was_closed() -> None:
    lost = event("1")
    assert groups(lost, closing()) == [["1", "z"]]
    assert groups(lost, closing(), closing("y", lane="ui")) == [["y"], ["z"]]
    assert groups(lost, event("2", lane="ui")) == []
    assert groups(lost, closing(lane=None), closing("y", lane="ui")) == [["1", "y", "z"]]
    assert groups(lost, closing(lane=None)) == [["1", "z"]]


@pytest.mark.parametrize("field", ["batch_id", "repo", "target"])
def test_events_of_other_work_are_no_part_of_it(field: str) -> None:
    other = {"batch_id": "b2", "repo": "o/s", "target": "8"}[field]
    assert groups(event("1", **{field: other}), closing()) == [["z"]]


def test_a_target_is_compared_by_its_text_and_a_batch_is_read_from_the_path() -> None:
    numbered = event("1", target=7)
    del numbered.document["batch_id"]
    (plan,) = plan_compactions([numbered, closing()], POLICY, NOW)
    assert names(plan) == ["1", "z"]


@pytest.mark.parametrize("batch_id", ["../x", "", "b/1", ["b1"], {}, None])
def test_an_envelope_stays_beside_its_events_whatever_they_call_their_batch(batch_id: object) -> None:
    (plan,) = plan_compactions([event("1", batch_id=batch_id, synthetic=True)], POLICY, NOW)
    assert plan.archive_path.startswith("archive/events/b1/compact-")


def test_simulation_that_nobody_closed_goes_as_a_whole() -> None:
    day = ago(days=1)
    orphans = [event("1", ago(days=2), synthetic=True), event("2", day, synthetic=True)]
    (plan,) = plan_compactions(orphans, POLICY, NOW)
    assert (plan.reason, plan.eligible_at, names(plan)) == ("synthetic_orphan_events", day, ["1", "2"])
    assert plan.envelope["synthetic"] is True
    assert groups(*orphans, event("3", OLD)) == []
    assert groups(*orphans, event("3", ago(hours=23), synthetic=True)) == []


def test_the_last_closing_decides_when() -> None:
    (plan,) = plan_compactions([closing("y", ago(days=9)), closing("z", ago(days=8)), event("1", OLD)], POLICY, NOW)
    assert (plan.reason, plan.eligible_at) == ("terminal_target_events", ago(days=8))


def test_an_event_without_a_time_is_named_only_where_it_matters() -> None:
    broken = event("1", "yesterday", lane="qa")
    with pytest.raises(
        StoreError, match=r"^gc record has invalid retention timestamp at events/b1/1\.json: yesterday$"
    ):
        groups(broken, closing())
    assert groups(broken) == []
    assert groups(broken, closing(at=FRESH)) == []
    assert groups(broken, event("0", FRESH, lane="qa"), closing()) == []


def test_damaged_text_keeps_its_own_group_and_no_other() -> None:
    damaged = event("1", lane="qa")
    events = [Event(damaged.path, damaged.document, garbled=True), closing(), closing("y", lane="ui")]
    assert groups(*events) == [["y"]]


@pytest.mark.parametrize("data", [b'{"lane": "qa", "message": "\\ud800"}', b'{"lane": "qa", "message": "\xff"}'])
def test_damaged_text_is_told_from_no_json(data: bytes) -> None:
    found = decode_event(data)
    assert isinstance(found, Garbled)
    assert found.document["lane"] == "qa"
    encode(found.document)
    for broken in (b"{", b"", b'"\xff"', b'["\\ud800"]', b'{"n": NaN}', b"[" * 100_000):
        with pytest.raises(ValueError, match=r"."):
            decode_event(broken)
    assert decode_event(b'{"lane": 1}') == {"lane": 1}


def test_an_envelope_keeps_the_ends_the_closings_and_each_new_phase() -> None:
    phases = [None, "a", "a", None, "a", "b", "", "b", "a", None, None]
    story = [
        event(f"{number:02}", ago(days=20, minutes=-number), lane="qa", **({} if phase is None else {"phase": phase}))
        for number, phase in enumerate(phases)
    ]
    (plan,) = plan_compactions([*story, closing("y", story[3].document["at"])], POLICY, NOW)
    kept = [record["event_id"] for record in plan.envelope["records"]]
    assert kept == ["00", "01", "y", "05", "08", "10"]
    (two,) = plan_compactions([event("1", lane="qa"), closing()], POLICY, NOW)
    assert [record["event_id"] for record in two.envelope["records"]] == ["1", "z"]


def test_the_closing_is_the_last_to_go() -> None:
    (plan,) = plan_compactions([event("z", lane="qa"), closing("a", ago(days=9)), event("b", lane="qa")], POLICY, NOW)
    assert plan.removal == ("events/b1/b.json", "events/b1/z.json", "events/b1/a.json")


def told(*, closes: bool, lane: str | None, target: str, at: str, phase: str | None, mark: bool) -> Event:
    more: Document = {"phase": phase} if phase else {}
    more |= {"synthetic": True} if mark else {}
    return (closing if closes else event)("n", at, lane=lane, target=target, **more)


trails = st.lists(
    st.builds(
        told,
        closes=st.booleans(),
        lane=st.sampled_from([None, "qa", "ui"]),
        target=st.sampled_from(["7", "8"]),
        at=nearby.map(stamp),
        phase=st.sampled_from([None, "a", "b"]),
        mark=st.booleans(),
    ),
    max_size=8,
)


def numbered(trail: Iterable[Event]) -> list[Event]:
    return [
        Event(f"events/b1/{number}.json", {**each.document, "event_id": str(number)})
        for number, each in enumerate(trail)
    ]


@given(trails, st.randoms(use_true_random=False))
def test_a_plan_takes_whole_groups_and_keeps_their_ends(trail: list[Event], chance: Any) -> None:
    events = {each.path: each for each in numbered(trail)}
    plans = plan_compactions(events.values(), ALL, NOW)
    taken = [path for plan in plans for path in plan.source_paths]
    assert len(taken) == len(set(taken)), "no event is in two envelopes"
    for plan in plans:
        group = [events[path].document for path in plan.source_paths]
        assert all(each["at"] <= stamp(NOW) for each in group), "no event leaves before its time"
        kept = plan.envelope["records"]
        assert all(record in group for record in kept)
        assert {min(each["at"] for each in group), max(each["at"] for each in group)} <= {each["at"] for each in kept}
        assert [each for each in kept if is_terminal_event(each)] == sorted(
            (each for each in group if is_terminal_event(each)), key=lambda each: (each["at"], each["event_id"])
        )
        assert sorted(plan.removal) == list(plan.source_paths)
    shuffled = list(events.values())
    chance.shuffle(shuffled)
    assert plan_compactions(shuffled, ALL, NOW) == plans


@given(trails, st.data())
def test_what_a_cut_off_removal_leaves_is_due_again(trail: list[Event], data: st.DataObject) -> None:
    events = {each.path: each for each in numbered(trail)}
    plans = plan_compactions(events.values(), ALL, NOW)
    if not plans:
        return
    plan = data.draw(st.sampled_from(plans))
    done = data.draw(st.integers(0, len(plan.removal) - 1))
    left = [each for path, each in events.items() if path not in plan.removal[:done]]
    again = [path for found in plan_compactions(left, ALL, NOW) for path in found.source_paths]
    assert set(plan.removal[done:]) <= set(again)


@given(st.lists(records(["lane", "repo", "target", "batch_id", "phase", "updated_at", "at"], closing().document)))
def test_any_events_are_grouped_or_named(documents: list[Document]) -> None:
    events = [Event(f"events/b1/{number}.json", document) for number, document in enumerate(documents)]
    plans = answer(plan_compactions, events, ALL)
    if isinstance(plans, str):
        assert "events/b1/" in plans
        return
    assert len({plan.archive_path for plan in plans}) == len(plans)


# The archive ---------------------------------------------------------------------------------------


def envelope(record: Document, *, until: datetime) -> Document:
    found = envelop_record((CLAIM, record), reason="terminal_claim", now=NOW, days=0)
    return found | {"delete_after": stamp(until)}


RELEASED: Document = {"status": "released", "updated_at": OLD}


def planned() -> Archive:
    found = plan_archiving(CLAIM, RELEASED, POLICY, NOW)
    assert found is not None
    return found


def test_an_envelope_that_expired_is_deleted() -> None:
    place, later = f"archive/{CLAIM}", NOW + timedelta(seconds=1)
    assert meet(place, envelope({}, until=NOW), None, NOW) == Delete(place, "archive_expired", stamp(NOW))
    assert meet(place, envelope({}, until=later), None, NOW) is None


def test_an_envelope_of_the_same_record_is_used_even_if_it_expired() -> None:
    for until in (NOW, NOW + timedelta(days=1)):
        assert meet(f"archive/{CLAIM}", envelope(RELEASED, until=until), planned(), NOW) == planned()


def test_an_envelope_of_another_record_is_waited_for() -> None:
    place = f"archive/{CLAIM}"
    assert meet(place, envelope({}, until=NOW + timedelta(days=1)), planned(), NOW) is None
    found = meet(place, envelope({}, until=NOW), planned(), NOW)
    assert isinstance(found, Archive)
    assert found.replaces
    assert found.reason == found.envelope["reason"] == "expired_archive_replacement"
    assert (found.eligible_at, found.envelope["data"]) == (OLD, RELEASED)
    assert list(found.envelope) == list(planned().envelope)


def test_an_envelope_that_cannot_be_judged_stops_everything() -> None:
    with pytest.raises(StoreError, match="unknown family"):
        meet(f"archive/{CLAIM}", {"delete_after": OLD}, planned(), NOW)


def test_the_place_of_a_compaction_is_not_cleared_before_it() -> None:
    (plan,) = plan_compactions([closing()], POLICY, NOW)
    assert meet(plan.archive_path, plan.envelope | {"delete_after": OLD}, plan, NOW) == plan
