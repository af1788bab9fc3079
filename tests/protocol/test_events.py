"""Events: how they are named, what each type must say, and what the everyday commands leave behind."""

from datetime import datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentcoord.errors import UsageError
from agentcoord.protocol.events import (
    ACQUIRED,
    ID_BYTES,
    RELEASED,
    Said,
    build_event,
    event_id,
    option,
    require_event,
    said_of_claim,
    said_of_phase,
)
from agentcoord.protocol.heartbeats import Beat, PhaseChange
from agentcoord.protocol.identity import NOBODY, Identity
from agentcoord.protocol.paths import is_segment
from agentcoord.protocol.statuses import normalize
from tests.protocol.strategies import NOW, Json, instants, metadata, readable


def said(type_: str = "note", **fields: Any) -> Said:
    return Said(batch_id=fields.pop("batch_id", "b1"), type=type_, **fields)


def signal(type_: str, **fields: str) -> Said:
    return said(type_, message=fields.pop("message", None), signals=dict(fields))


def fault(event: Said) -> str | None:
    try:
        require_event(event)
    except UsageError as error:
        return str(error)
    return None


# What may be recorded ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("event", "text"),
    [
        (said(), None),
        (said(lane="lane with spaces"), None),
        (said(batch_id="b:1.x"), None),
        (said(batch_id="../b"), "invalid batch-id: ../b"),
        (said("no/te"), "invalid event type: no/te"),
        (said("a..b"), "invalid event type: a..b"),
        (said(lane=""), "--lane must not be empty"),
        (said(lane="a:b"), "event lane a:b cannot contain ':'"),
        (said("no/te", batch_id="../b", lane=""), "invalid batch-id: ../b"),
        (said("no/te", lane=""), "invalid event type: no/te"),
        (said("help_requested", lane=""), "missing required --reason"),
    ],
    ids=lambda value: repr(value) if not isinstance(value, Said) else "",
)
def test_the_first_fault_is_named(event: Said, text: str | None) -> None:
    assert fault(event) == text


REASONS = "--reason must be one of: blocked-user-input, question, permission"
SEVERITIES = "--severity must be one of: P0, P1, P2, P3"
KINDS = "--kind must be one of: takeover, supersede, manual-fix, drain"
SIGNALS = [
    (signal("help_requested", reason="question"), None),
    (signal("help_requested", reason="blocked-user-input", message="m"), None),
    (signal("help_requested", reason="permission"), None),
    (signal("help_requested"), "missing required --reason"),
    (signal("help_requested", reason=""), "missing required --reason"),
    (signal("help_requested", reason=" "), REASONS),
    (signal("help_requested", reason="bored"), REASONS),
    (signal("help_requested", reason="Question"), REASONS),
    (signal("help_requested", reason="bored", severity="P1"), "--severity is not valid for --type help_requested"),
    (signal("help_requested", kind="drain"), "--kind is not valid for --type help_requested"),
    (signal("help_requested", kind="drain", evidence="e"), "--evidence is not valid for --type help_requested"),
    (signal("help_requested", kind=""), "--kind is not valid for --type help_requested"),
    (signal("escalation_requested", from_route="a", to_route="b", evidence="e"), None),
    (signal("escalation_requested"), "missing required --from-route"),
    (signal("escalation_requested", to_route="b", evidence="e"), "missing required --from-route"),
    (signal("escalation_requested", from_route="a", evidence="e"), "missing required --to-route"),
    (signal("escalation_requested", from_route="a", to_route=" \t", evidence="e"), "missing required --to-route"),
    (signal("escalation_requested", from_route="a", to_route="b"), "missing required --evidence"),
    (signal("escalation_requested", from_route="a", to_route="b", evidence="\n"), "missing required --evidence"),
    (
        signal("escalation_requested", from_route="a", to_route="b", evidence="e", reason="question"),
        "--reason is not valid for --type escalation_requested",
    ),
    (signal("error", severity="P0", category="ci", message="red"), None),
    (signal("error", severity="P3", category="ci", message="red"), None),
    (signal("error", category="ci", message="red"), "missing required --severity"),
    (signal("error", severity="P4", category="ci", message="red"), SEVERITIES),
    (signal("error", severity="p0", category="ci", message="red"), SEVERITIES),
    (signal("error", severity=" ", category="ci", message="red"), SEVERITIES),
    (signal("error", severity="P4"), SEVERITIES),
    (signal("error", severity="P1", message="red"), "missing required --category"),
    (signal("error", severity="P1", category=" ", message="red"), "missing required --category"),
    (signal("error", severity="P1", category="ci"), "missing required --message"),
    (signal("error", severity="P1", category="ci", message=" "), "missing required --message"),
    (signal("error", severity="P1", category="ci", message="red", kind="k"), "--kind is not valid for --type error"),
    *[(signal("human_intervention", kind=kind), None) for kind in ("takeover", "supersede", "manual-fix", "drain")],
    (signal("human_intervention"), "missing required --kind"),
    (signal("human_intervention", kind="nap"), KINDS),
    (
        signal("human_intervention", kind="drain", from_route="a"),
        "--from-route is not valid for --type human_intervention",
    ),
    (signal("custom", reason="whatever", severity="P9", kind="", from_route=" "), None),
    (signal("Error", severity="P9"), None),
]


@pytest.mark.parametrize(
    ("event", "text"), SIGNALS, ids=[f"{n} {row[0].type}: {row[1]}" for n, row in enumerate(SIGNALS)]
)
def test_a_typed_signal_carries_its_own_fields_and_no_others(event: Said, text: str | None) -> None:
    assert fault(event) == text


def test_a_field_is_named_by_its_option() -> None:
    assert option("from_route") == "--from-route"


# Names ---------------------------------------------------------------------------------------------


def test_an_event_is_named_by_time_and_chance() -> None:
    moment = datetime(2026, 7, 8, 23, 55, 0, 123456, tzinfo=NOW.tzinfo)
    assert event_id(moment, bytes.fromhex("DEADBEEF")) == "20260708T235500.123456Z-deadbeef"
    assert ID_BYTES == 4


@given(instants, instants, st.binary(min_size=4, max_size=4), st.binary(min_size=4, max_size=4))
def test_names_sort_by_time_and_may_stand_in_a_path(one: datetime, other: datetime, chance: bytes, more: bytes) -> None:
    a, b = event_id(one, chance), event_id(other, more)
    assert is_segment(a)
    assert one == other or (a < b) == (one < other)
    assert (a == b) == ((one, chance) == (other, more))


# Records -------------------------------------------------------------------------------------------


def test_an_event_says_what_was_said_in_order() -> None:
    event = said(
        lane="w", agent_id="a1", repo="o/r", target="7", branch="x", message="m", status=normalize("Completed"),
        metadata={"phase": "p"}, signals={"reason": "r"},
    )  # fmt: skip
    assert list(build_event(event, "e1", Identity(machine_id="m1"), NOW, {"previous_phase": "o"}).items()) == [
        ("schema_version", 1),
        ("event_id", "e1"),
        ("batch_id", "b1"),
        ("type", "note"),
        ("lane", "w"),
        ("agent_id", "a1"),
        ("repo", "o/r"),
        ("target", "7"),
        ("branch", "x"),
        ("status", "done"),
        ("status_raw", "Completed"),
        ("message", "m"),
        ("phase", "p"),
        ("reason", "r"),
        ("previous_phase", "o"),
        ("at", "2026-01-01T12:00:00Z"),
        ("machine_id", "m1"),
    ]


def test_an_event_that_says_little_carries_little() -> None:
    assert build_event(said(), "e1", NOBODY, NOW) == {
        "schema_version": 1,
        "event_id": "e1",
        "batch_id": "b1",
        "type": "note",
        "at": "2026-01-01T12:00:00Z",
    }


CLAIM: Json = {
    "schema_version": 1,
    "repo": "o/r",
    "target": "7",
    "agent_id": "a1",
    "batch_id": "b1",
    "branch": "x",
    "status": "active",
    "claimed_at": "2026-01-01T12:00:00Z",
    "phase": "start",
    "generation": 2,
    "synthetic": True,
    "machine_id": "stored",
    "session_id": "stored",
    "session_source": "stored",
    "release_mode": "handoff",
    "handoff_to": "a2",
    "handoff_note": "see PR",
    "terminal": "done",
    "custom": 1,
}


def of_claim(claim: Json, type_: str) -> Json:
    event, extra = said_of_claim(claim, type_)
    require_event(event)
    return build_event(event, "e1", Identity(machine_id="m1"), NOW, extra)


def test_an_acquisition_carries_the_claims_own_facts() -> None:
    assert of_claim(CLAIM, ACQUIRED) == {
        "schema_version": 1,
        "event_id": "e1",
        "batch_id": "b1",
        "type": "claim.acquired",
        "agent_id": "a1",
        "repo": "o/r",
        "target": "7",
        "branch": "x",
        "phase": "start",
        "generation": 2,
        "synthetic": True,
        "at": "2026-01-01T12:00:00Z",
        "machine_id": "m1",  # of the writer: who wrote the claim before is not inherited
    }


def test_a_release_carries_its_status_to_the_letter_and_its_handoff() -> None:
    assert of_claim(CLAIM | {"status": "released"}, RELEASED) == of_claim(CLAIM, ACQUIRED) | {
        "type": "claim.released",
        "status": "released",
        "message": "see PR",
        "release_mode": "handoff",
        "handoff_to": "a2",
        "handoff_note": "see PR",
    }


BEFORE: Json = {
    "agent_id": "a1",
    "repo": "o/r",
    "target": "7",
    "branch": "x",
    "phase": "start",
    "host": "codex",
    "status": "s",
}


@pytest.mark.parametrize(
    ("told", "carried"),
    [
        ({}, {}),
        ({"branch": "y"}, {"branch": "y"}),
        ({"metadata": {"phase": "test", "operator": "o"}}, {"operator": "o"}),
        ({"metadata": {"phase": "test", "host": "claude"}}, {"host": "claude"}),
    ],
    ids=["all from before", "branch told", "more metadata", "other metadata"],
)
def test_a_phase_change_carries_what_was_told_and_else_what_was_before(told: Json, carried: Json) -> None:
    metadata: Json = {"metadata": {"phase": "test"}}
    beat = Beat(agent_id="a1", ttl=60, status=normalize("blocked"), **metadata | told)
    event, extra = said_of_phase(PhaseChange("b1", "start", "test"), beat, BEFORE)
    require_event(event)
    assert (
        build_event(event, "e1", NOBODY, NOW, extra)
        == {
            "schema_version": 1,
            "event_id": "e1",
            "batch_id": "b1",
            "type": "phase.changed",
            "agent_id": "a1",
            "repo": "o/r",
            "target": "7",
            "branch": "x",
            "message": "phase start -> test",
            "host": "codex",
            "phase": "test",
            "previous_phase": "start",
            "at": "2026-01-01T12:00:00Z",
        }
        | carried
    )


@given(metadata, readable, st.none() | readable)
def test_no_event_stores_a_null(options: Json, status: str, message: str | None) -> None:
    event = said(message=message, status=normalize(status), metadata=options)
    record = build_event(event, "e1", NOBODY, NOW)
    assert None not in record.values()
    assert options.items() <= record.items()
