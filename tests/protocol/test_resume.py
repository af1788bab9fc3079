"""Which claim says most of an item, and who has it by which evidence."""

from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentcoord.protocol.claims import Handoff, handoff_of
from agentcoord.protocol.resume import Found, foremost, said_of, tenure
from tests.protocol.strategies import records

NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)
HELD: dict[str, Any] = {
    "status": "active",
    "agent_id": "a1",
    "claimed_at": "2026-01-01T10:00:00Z",
    "expires_at": "2026-01-01T14:00:00Z",
    "machine_id": "m1",
}
CLAIMS = records(
    (*HELD, "updated_at", "released_at", "released_by", "handoff_to", "handoff_note", "terminal", "branch"), HELD
)


def beat(updated: str, expires: str) -> dict[str, Any]:
    return {"agent_id": "a1", "updated_at": f"2026-01-01T{updated}Z", "expires_at": f"2026-01-01T{expires}Z"}


@pytest.mark.parametrize(
    ("seen", "liveness"),
    [
        (None, None),
        (beat("11:59:30", "12:00:30"), "live"),
        (beat("11:58:00", "11:59:00"), "stale"),
        (beat("11:00:00", "11:01:00"), "dead"),
        ({"agent_id": "a1"}, None),
    ],
)
def test_a_held_item_is_shown_with_its_evidence(seen: dict[str, Any] | None, liveness: str | None) -> None:
    found = tenure(HELD, seen, NOW)
    assert (found.standing, found.holder, found.liveness) == ("held", "a1", liveness)
    assert (found.since, found.machine, found.lease_elapsed) == ("2026-01-01T10:00:00Z", "m1", False)
    assert found.ttl == (None if seen is None or "updated_at" not in seen else 60)


def test_an_item_that_is_held_no_more_says_how_it_ended() -> None:
    assert tenure(None, None, NOW).standing == "unclaimed"
    over = HELD | {"status": "released", "released_at": "2026-01-01T11:00:00Z"}
    assert (tenure(over, None, NOW).standing, tenure(over, None, NOW).since) == ("released", over["released_at"])
    assert tenure(over | {"terminal": "done"}, None, NOW).standing == "closed"
    assert tenure(HELD | {"status": "paused"}, None, NOW).standing == "unknown"
    assert tenure(HELD | {"expires_at": "2026-01-01T12:00:00Z"}, None, NOW).lease_elapsed


def test_a_claim_that_is_held_says_more_than_a_later_one_that_is_not() -> None:
    over = Found("claims/o/r/issue:7.json", {"status": "released", "updated_at": "2026-01-01T11:00:00Z"})
    held = Found("claims/o/r/7.json", HELD | {"updated_at": "2026-01-01T09:00:00Z"})
    later = Found("claims/o/r/pr:7.json", {"status": "released", "updated_at": "2026-01-01T12:30:00+01:00"})
    assert foremost([over, held, later]) is held
    assert foremost([over, later]) is later, "instants are compared, not their spelling"
    assert foremost([]) is None


def test_what_was_said_on_leaving() -> None:
    said = {"handoff_to": "b", "handoff_note": "half done", "released_by": "a", "released_at": "t"}
    assert handoff_of(said) == Handoff(to="b", note="half done", by="a", at="t")
    assert handoff_of({"handoff_to": "b", "agent_id": "a", "at": "t"}) == Handoff(to="b", note=None, by="a", at="t")
    assert handoff_of(HELD) is None
    assert handoff_of({"handoff_note": ["not a text"]}) is None


@given(claim=CLAIMS, seen=CLAIMS)
def test_any_record_can_be_shown(claim: dict[str, Any], seen: dict[str, Any]) -> None:
    tenure(claim, seen, NOW)
    handoff_of(claim)
    said_of((claim, None, seen), "branch")


@given(st.lists(CLAIMS, min_size=1))
def test_any_claims_have_a_foremost_one(claims: list[dict[str, Any]]) -> None:
    found = [Found(str(number), claim) for number, claim in enumerate(claims)]
    assert foremost(found) in found
