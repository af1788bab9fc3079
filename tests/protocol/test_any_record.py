"""No rule breaks on what somebody else stored: any JSON object gets an answer, or an error with a reason."""

from datetime import datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentcoord.errors import CoordError
from agentcoord.operations.projection import (
    Beats,
    archive_row,
    claim_row,
    event_row,
    heartbeat_row,
    lane_states,
    manifest,
)
from agentcoord.protocol.audit import admits, audit_batch
from agentcoord.protocol.batches import Lane, build_batch, lanes_of
from agentcoord.protocol.claims import (
    Refuse,
    Wanted,
    build_claim,
    build_release,
    decide_claim,
    fence,
    holder_of,
    holder_state,
    refusal,
)
from agentcoord.protocol.closeout import (
    apply_closing,
    build_closing_event,
    close_lane,
    closing_of,
    require_payload,
    resolve_lane,
)
from agentcoord.protocol.documents import decode, encode, is_document
from agentcoord.protocol.events import ACQUIRED, RELEASED, build_event, require_event, said_of_claim, said_of_phase
from agentcoord.protocol.heartbeats import Beat, build_heartbeat, phase_change
from agentcoord.protocol.identity import Identity
from agentcoord.protocol.liveness import liveness
from agentcoord.protocol.records import (
    ARCHIVE_SHOWN,
    BATCH_SHOWN,
    CLAIM_SHOWN,
    EVENT_SHOWN,
    HEARTBEAT_SHOWN,
    IDENTITY,
    LANE_SHOWN,
    METADATA,
)
from agentcoord.protocol.statuses import normalize
from tests.protocol.strategies import NOW, Json, metadata, nearby, records, values

TIMES = ("claimed_at", "updated_at", "expires_at", "at", "closed_at", "completed_at", "registered_at")
CLAIM = ("schema_version", "repo", "target", "agent_id", "status", "branch", "released_by", *CLAIM_SHOWN, *TIMES[:3])
BEAT = ("agent_id", "status", "repo", "target", *HEARTBEAT_SHOWN, *TIMES[:3])
EVENT = ("schema_version", "batch_id", "type", "at", "old_phase", "new_phase", *EVENT_SHOWN)
LANE = ("name", "id", "owner", "agent_id", "target", "targets", "depends_on", "status", "workspace", *LANE_SHOWN)

A_CLAIM: Json = {
    "schema_version": 1,
    "repo": "o/r",
    "target": "7",
    "agent_id": "a1",
    "status": "active",
    "batch_id": "b1",
}
A_BEAT: Json = {"agent_id": "a1", "repo": "o/r", "target": "7", "batch_id": "b1", "phase": "p"}
A_LANE: Json = {"name": "w", "owner": "a1", "targets": ["7"]}
AN_EVENT: Json = A_CLAIM | {"event_id": "e", "at": "2026-01-01T12:00:00Z", "type": "claim.acquired", "phase": "p"}
A_CLOSING: Json = AN_EVENT | {
    "schema_version": 2,
    "type": "lane_closed",
    "terminal": "done",
    "workspace": "default",
    "closed_by": {"agent_id": "a1", "machine": "m1"},
}

claims = records(CLAIM, A_CLAIM)
beats = records(BEAT, A_BEAT)
events = records(EVENT, AN_EVENT) | records(EVENT, A_CLOSING) | values


def with_lanes(batch: Json, lanes: list[Any], whole: bool) -> Json:
    return batch | {"lanes": lanes} if whole else batch


batches = st.builds(
    with_lanes,
    records(["batch_id", "lanes", *BATCH_SHOWN]),
    st.lists(records(LANE, A_LANE) | values, max_size=3),
    st.booleans(),
)
identities = st.builds(Identity, *[st.none() | st.sampled_from(["m1", "s1"])] * 3)


def lanes(batch: Json) -> list[Lane]:
    return [lane for lane in lanes_of(batch) if not lane.malformed]


@given(claims, beats | values, metadata, identities, nearby)
def test_claiming(claim: Json, beat: object, options: Json, identity: Identity, now: datetime) -> None:
    wanted = Wanted("o/r", "7", "a1", 60, batch_id="b1", branch=None, metadata=options)
    seen = holder_state(beat, now)
    for stored in (claim, claim | {"status": "active"}, claim | {"status": "active", "agent_id": "a1"}):
        decision = decide_claim(stored, seen, wanted, now)
        if isinstance(decision, Refuse):
            assert refusal(decision, "o/r", "7").startswith("CLAIM_REFUSED: ")
            continue
        record = build_claim(stored, decision, wanted, identity, now)
        assert holder_of(record) == "a1"
        assert decode(encode(record)) == record
        assert fence(record) == fence(decode_again(record))


def decode_again(record: Json) -> Json:
    again: Any = decode(encode(record))
    return again


@given(claims, metadata, identities)
def test_releasing(claim: Json, options: Json, identity: Identity) -> None:
    record = build_release(
        claim, by="a1", branch="x", metadata=options, handoff_to="a2", handoff_note="n", identity=identity, now=NOW
    )
    assert holder_of(record) is None
    assert decode(encode(record)) == record
    for type_ in (ACQUIRED, RELEASED):
        said, extra = said_of_claim(record | {"batch_id": record.get("batch_id")}, type_)
        encode(build_event(said, "e1", identity, NOW, extra))


@given(beats, metadata, identities, nearby, st.sampled_from([{}, {"repo": "o/r"}, {"repo": "o/r", "target": "7"}]))
def test_beating(stored: Json, options: Json, identity: Identity, now: datetime, work: Json) -> None:
    assert liveness(stored, now) in (None, "live", "stale", "dead")
    beat = Beat(agent_id="a1", ttl=900, status=normalize("blocked"), metadata=options, **work)
    record = build_heartbeat(stored, beat, identity, now)
    assert liveness(record, now) == "live"
    assert decode(encode(record)) == record
    change = phase_change(stored, beat)
    if change is not None:
        said, extra = said_of_phase(change, beat, stored)
        encode(build_event(said, "e1", identity, now, extra))


@given(batches, st.lists(events, max_size=4))
def test_auditing(batch: Json, trail: list[object]) -> None:
    found = audit_batch("b1", batch, trail)
    assert len(found) == len(lanes_of(batch))
    acquired = any(is_document(event) and event.get("agent_id") == "a9" for event in trail)
    for lane in lanes(batch):
        assert not admits("b1", batch, trail, lane, "a9") or acquired or lane.owner == "a9"


@given(claims, claims | records(EVENT))
def test_comparing_closeouts(one: Json, other: Json) -> None:
    for machine_counts in (True, False):
        mine, theirs = closing_of(one), closing_of(other)
        assert mine.agrees(theirs, machine_counts=machine_counts) == theirs.agrees(mine, machine_counts=machine_counts)
        assert mine.agrees(mine, machine_counts=machine_counts)
    applied = apply_closing(one, other)
    assert apply_closing(applied, other) == applied
    assert decode(encode(applied)) == applied


@given(batches, records(EVENT), claims, identities)
def test_closing(batch: Json, event: Json, claim: Json, identity: Identity) -> None:
    for lane in lanes(batch):
        payload = claim | {"agent_id": "a1", "target": "7", "terminal": "done"}
        closing = build_closing_event(payload, lane, "b1", identity, NOW)
        for closed in (closing, event | {"terminal": "done"}):
            try:
                record = close_lane(batch, lane, closed, NOW)
            except CoordError:
                continue
            assert record is None or decode(encode(record)) == record


@given(batches, claims)
def test_choosing_a_lane(batch: Json, payload: Json) -> None:
    for rule in (lambda: require_payload(payload), lambda: resolve_lane(batch, "b1", payload)):
        try:
            rule()
        except CoordError as error:
            assert str(error)  # noqa: PT017 - an answer is as good


@given(batches, metadata)
def test_registering_over_anything(stored: Json, options: Json) -> None:
    record = build_batch({"batch_id": "b1", "lanes": []}, stored, options, None, NOW)
    assert record["schema_version"] == 1
    encode(record)


@given(records(EVENT))
def test_saying_anything(event: Json) -> None:
    said, _ = said_of_claim(event | {"batch_id": event.get("batch_id")}, ACQUIRED)
    try:
        require_event(said)
    except CoordError as error:
        assert str(error)  # noqa: PT017 - an answer is as good


# Rows ----------------------------------------------------------------------------------------------


def shown(row: Json, fixed: list[str], record: Json, optional: tuple[str, ...]) -> None:
    """Check a row: its first keys always, then what the record has of the others, in their order."""
    assert list(row)[: len(fixed)] == fixed
    more = [key for key in optional if record.get(key) is not None]
    assert [key for key in row if key not in fixed] == [key for key in more if key not in fixed]
    assert all(row[key] == record[key] for key in more)
    assert None not in row.values()
    encode(row)


@given(claims)
def test_a_claim_is_shown(claim: Json) -> None:
    row = claim_row("claims/o/r/7.json", claim).facts()
    shown(row, ["path", "repo", "target", "status", "agent_id", "branch", "expires_at"], claim, CLAIM_SHOWN)


@given(beats, nearby)
def test_a_heartbeat_is_shown(beat: Json, now: datetime) -> None:
    row = heartbeat_row("heartbeats/a1.json", beat, now).facts()
    shown(row, ["path", "agent_id", "status", "liveness", "target", "updated_at"], beat, HEARTBEAT_SHOWN)
    assert row["liveness"] in ("live", "stale", "dead", "unknown")


@given(records(EVENT))
def test_an_event_is_shown(event: Json) -> None:
    shown(event_row("events/b1/e1.json", event).facts(), ["path", "batch_id", "type", "at"], event, EVENT_SHOWN)


@given(records(ARCHIVE_SHOWN))
def test_an_archive_envelope_is_shown(envelope: Json) -> None:
    row = archive_row("archive/claims/o/r/7.json", envelope)
    assert {"path", "record_family", "reason", "synthetic", "delete_after"} <= set(row)
    assert list(row) == ["path", *(field for field in ARCHIVE_SHOWN if field in row)]
    assert None not in row.values()
    encode(row)


@given(batches, st.lists(beats, max_size=3), nearby)
def test_a_batch_is_shown(batch: Json, heard: list[Json], now: datetime) -> None:
    known = Beats()
    for beat in heard:
        known.add(heartbeat_row("heartbeats/a1.json", beat, now))
    known.miss("a2", "unreadable")
    read = manifest(batch)
    row = read.row("batches/b1.json", known, lane_states([("batches/b1.json", read)], known))
    shown(row, ["path", "batch_id", "lanes"], batch, BATCH_SHOWN)
    for lane, entry in zip(lanes_of(batch), row["lanes"], strict=True):
        fixed = ["name", "owner", "targets", "status", "liveness", "deps", "blocked_on"]
        shown(entry, fixed, lane.document, LANE_SHOWN)
        assert set(entry["blocked_on"]) <= set(entry["deps"])


@pytest.mark.parametrize(
    ("row", "defaults"),
    [
        (
            claim_row("claims/o/r/7.json", {}).facts(),
            {"repo": "o/r", "target": "7", "status": "unknown"}
            | dict.fromkeys(("agent_id", "branch", "expires_at"), "UNKNOWN"),
        ),
        (
            heartbeat_row("heartbeats/a1.json", {}, NOW).facts(),
            {"agent_id": "a1", "status": "unknown", "liveness": "unknown", "target": "-", "updated_at": "UNKNOWN"},
        ),
        (event_row("events/b1/e1.json", {}).facts(), {"batch_id": "b1", "type": "unknown", "at": "UNKNOWN"}),
        (
            archive_row("archive/x.json", {}),
            {"record_family": "unknown", "reason": "unknown", "synthetic": False, "delete_after": "UNKNOWN"},
        ),
        (manifest({}).row("batches/b1.json", Beats(), {}), {"batch_id": "b1", "lanes": []}),
    ],
    ids=["claim", "heartbeat", "event", "archive", "batch"],
)
def test_an_empty_record_is_shown_by_what_its_path_says(row: Json, defaults: Json) -> None:
    assert {key: value for key, value in row.items() if key != "path"} == defaults


def test_the_strategies_reach_what_the_rules_look_at() -> None:
    assert {*METADATA, *IDENTITY} <= set(CLAIM) & set(BEAT) & set(EVENT)
