"""Where archived records go, in what envelope, and which envelopes will do."""

import json
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentcoord.errors import StoreError
from agentcoord.protocol.archive import (
    compaction_path,
    envelop_events,
    envelop_record,
    expiry,
    keeps,
    require_caps,
)
from agentcoord.protocol.documents import Document, encode
from agentcoord.protocol.paths import ARCHIVE_RECORD_BYTES
from agentcoord.protocol.retention import Event, Policy, plan_compactions
from tests.protocol.strategies import records, values

NOW = datetime(2026, 3, 1, tzinfo=UTC)
POLICY = Policy()
BASE: Document = {"batch_id": "b1", "repo": "o/r", "target": "7"}
CLOSED: Document = BASE | {
    "schema_version": 2,
    "event_id": "z",
    "type": "lane_closed",
    "lane": "qa",
    "terminal": "done",
    "workspace": "default",
    "closed_by": {"agent_id": "a", "machine": "m"},
    "at": "2026-01-01T01:00:00Z",
}


def test_the_first_worked_example_has_its_place() -> None:
    acquired = BASE | {"schema_version": 1, "event_id": "e1", "type": "claim.acquired", "phase": "start"}
    closed = CLOSED | {"event_id": "e2", "closed_by": {"agent_id": "a1", "machine": "m1"}}
    sources = [("events/b1/e1.json", acquired | {"at": "2026-01-01T00:00:00Z"}), ("events/b1/e2.json", closed)]
    place = compaction_path("b1", lane="qa", repo="o/r", target="7", sources=sources)
    assert place == "archive/events/b1/compact-e8516d23c4719c54-288a817f6c29330c.json"


def test_the_second_worked_example_has_its_place_and_its_records() -> None:
    events = [Event("events/b1/z.json", CLOSED)]
    for number, phase in enumerate(["a", "a", "b", None, "b", "c", "c"]):
        event = BASE | {
            "schema_version": 1,
            "event_id": f"e{number}",
            "type": "phase.changed",
            "at": f"2026-01-01T00:0{number}:00Z",
            "message": 'héllo "x" \u2028',
        }
        events.append(Event(f"events/b1/e{number}.json", event | ({"phase": phase} if phase else {})))
    (plan,) = plan_compactions(events, POLICY, NOW)
    assert plan.archive_path == "archive/events/b1/compact-e8516d23c4719c54-0c0019d51f96b03f.json"
    assert plan.source_paths == tuple(sorted(event.path for event in events))
    assert [record["event_id"] for record in plan.envelope["records"]] == ["e0", "e2", "e5", "z"]


def test_what_names_nothing_has_an_identity_too() -> None:
    place = compaction_path("b1", lane=None, repo=None, target=None, sources=[])
    assert place.startswith("archive/events/b1/compact-dd538856f7c9ea52-")


@given(records([*BASE, "at", "phase"], CLOSED), st.randoms(use_true_random=False))
def test_the_order_of_keys_does_not_matter_and_the_content_does(record: Document, chance: Any) -> None:
    def place(data: Document) -> str:
        return compaction_path("b1", lane="qa", repo="o/r", target="7", sources=[("events/b1/z.json", data)])

    keys = list(record)
    chance.shuffle(keys)
    assert place({key: record[key] for key in keys}) == place(record)
    assert place(record | {"one more": 1}) != place(record)


def test_an_envelope_says_what_it_keeps_and_until_when() -> None:
    envelope = envelop_record(("heartbeats/a1.json", {"synthetic": True}), reason="dead_heartbeat", now=NOW, days=30)
    assert list(envelope.items()) == [
        ("schema_version", 1),
        ("record_family", "archived_record"),
        ("source_path", "heartbeats/a1.json"),
        ("reason", "dead_heartbeat"),
        ("synthetic", True),
        ("archived_at", "2026-03-01T00:00:00Z"),
        ("delete_after", "2026-03-31T00:00:00Z"),
        ("data", {"synthetic": True}),
    ]
    sources = [("events/b/1.json", {"synthetic": True}), ("events/b/2.json", {"synthetic": 1})]
    compacted = envelop_events(sources, [sources[0][1]], reason="terminal_target_events", now=NOW, days=0)
    assert list(compacted.items()) == [
        ("schema_version", 1),
        ("record_family", "compacted_events"),
        ("source_paths", ["events/b/1.json", "events/b/2.json"]),
        ("reason", "terminal_target_events"),
        ("synthetic", False),
        ("archived_at", "2026-03-01T00:00:00Z"),
        ("delete_after", "2026-03-01T00:00:00Z"),
        ("records", [{"synthetic": True}]),
    ]


@pytest.mark.parametrize("days", [10**7, 10**30])
def test_an_archive_that_outlives_the_calendar_ends_with_it(days: int) -> None:
    envelope = envelop_record(("heartbeats/a1.json", {}), reason="dead_heartbeat", now=NOW, days=days)
    assert envelope["delete_after"] == "9999-12-31T23:59:59Z"


def test_an_envelope_may_be_as_large_as_a_server_takes_it_and_no_larger() -> None:
    envelope = envelop_record(("heartbeats/a1.json", {"é": ""}), reason="dead_heartbeat", now=NOW, days=30)
    room = ARCHIVE_RECORD_BYTES - len(encode(envelope))
    envelope["data"]["é"] = "é" * (room // 2) + "x" * (room % 2)
    require_caps("archive/heartbeats/a1.json", envelope)
    envelope["data"]["é"] += "x"
    with pytest.raises(StoreError, match=r"^gc archive envelope exceeds 1048576 bytes at archive/heartbeats/a1\.json$"):
        require_caps("archive/heartbeats/a1.json", envelope)


def test_a_place_may_be_as_long_as_a_server_takes_it_and_no_longer() -> None:
    longest = "archive/events/" + "b" * 498 + "/e.json"
    assert len(longest) == 520
    require_caps(longest, {})
    with pytest.raises(StoreError, match=r"^gc archive path exceeds 520 bytes: archive/"):
        require_caps(longest.replace("/e.", "/ee."), {})


@pytest.mark.parametrize(
    ("envelope", "said"),
    [
        ({"record_family": "other", "delete_after": "2026-01-01T00:00:00Z"}, "unknown family"),
        ({"record_family": ["archived_record"], "delete_after": "2026-01-01T00:00:00Z"}, "unknown family"),
        ({"delete_after": "2026-01-01T00:00:00Z"}, "unknown family"),
        ({"record_family": "archived_record"}, "invalid delete_after"),
        ({"record_family": "compacted_events", "delete_after": "soon"}, "invalid delete_after"),
        ({"record_family": "compacted_events", "delete_after": "2026-01-01"}, "invalid delete_after"),
        ({"record_family": "archived_record", "delete_after": "2026-01-01T00:00:00+0000"}, "invalid delete_after"),
        ({"record_family": "archived_record", "delete_after": " 2026-01-01T00:00:00Z"}, "invalid delete_after"),
    ],
)
def test_an_envelope_that_cannot_be_judged_is_named(envelope: Document, said: str) -> None:
    with pytest.raises(StoreError, match=rf"^archive record has {said} at archive/x\.json$"):
        expiry("archive/x.json", envelope)


def test_an_envelope_of_the_same_record_will_do_whenever_it_was_made() -> None:
    wanted = envelop_record(("claims/o/r/7.json", {"n": 1}), reason="terminal_claim", now=NOW, days=30)
    assert keeps(wanted | {"archived_at": "then", "delete_after": "soon", "reason": "other"}, wanted)
    for other in ({"data": {"n": True}}, {"data": {"n": 2}}, {"data": None}, {"source_path": "claims/o/r/8.json"}):
        assert not keeps(wanted | other, wanted), other
    nothings: list[object] = [None, [], "x"]
    for nothing in nothings:
        assert not keeps(nothing, wanted)


def test_an_envelope_with_all_the_events_will_do() -> None:
    sources = [("events/b/1.json", {"n": 1}), ("events/b/2.json", {"n": 2})]
    wanted = envelop_events(sources, [{"n": 1}], reason="terminal_target_events", now=NOW, days=30)
    more = {"source_paths": ["events/b/3.json", *wanted["source_paths"]], "records": [{"n": 3}, {"n": 1}]}
    assert keeps(wanted | more, wanted)
    lacking: list[Document] = [{"source_paths": ["events/b/1.json"]}, {"source_paths": "events/b/1.json"}]
    for less in (*lacking, {"records": list[Document]()}, {"records": None}):
        assert not keeps(wanted | less, wanted), less


@given(values, records(["data", "source_path"]))
def test_any_record_is_kept_by_its_own_envelope_as_it_is_stored(found: object, record: Document) -> None:
    wanted = envelop_record(("claims/o/r/7.json", record), reason="terminal_claim", now=NOW, days=30)
    assert keeps(json.loads(encode(wanted)), wanted)
    assert not keeps(found, wanted)
