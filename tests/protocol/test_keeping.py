"""When leases are renewed, what a renewal writes, and what ends one."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentcoord.protocol.claims import fence
from agentcoord.protocol.instants import parse, stamp
from agentcoord.protocol.keeping import (
    Finished,
    Lane,
    Lost,
    age,
    ended,
    interval,
    is_due,
    is_ended,
    judge_beat,
    judge_claim,
    patience,
    refreshed,
    retry,
    together,
)
from agentcoord.protocol.liveness import liveness

NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)
SECOND = timedelta(seconds=1)
CHANCE = st.floats(0, 1)
TTL = st.integers(1, 100_000)
INSTANT = st.integers(0, 10**9).map(lambda seconds: datetime(2000, 1, 1, tzinfo=UTC) + timedelta(seconds=seconds))
LANE = Lane(agent_id="a1", ttl=60, kinds=("heartbeat", "claim"), repo="o/r", target="7")


def claim(**more: Any) -> dict[str, Any]:
    return {
        "status": "active",
        "repo": "o/r",
        "target": "7",
        "agent_id": "a1",
        "claimed_at": stamp(NOW),
        "updated_at": stamp(NOW),
        "expires_at": stamp(NOW + timedelta(seconds=60)),
    } | more


def beat(**more: Any) -> dict[str, Any]:
    return {
        "agent_id": "a1",
        "status": "in_progress",
        "updated_at": stamp(NOW),
        "expires_at": stamp(NOW + timedelta(seconds=60)),
    } | more


@given(TTL, CHANCE)
def test_a_renewal_comes_after_about_a_third_of_the_ttl(ttl: int, chance: float) -> None:
    assert 0.3 * ttl - 1e-6 <= interval(ttl, chance) <= 0.367 * ttl


@given(st.floats(0, 10**7), TTL)
def test_renewals_are_made_together_and_never_later_than_they_are_due(due: float, ttl: int) -> None:
    assert due - min(ttl / 60, 1) - 1e-3 <= together(due, ttl) <= due


@given(TTL, CHANCE)
def test_a_failed_renewal_is_tried_again_several_times_within_the_ttl(ttl: int, chance: float) -> None:
    at, tries = interval(ttl, chance), 0
    while at < ttl:
        tries += 1
        at += retry(ttl, tries, chance)
    assert tries >= 4


@given(TTL, st.integers(1, 10_000), CHANCE)
def test_a_retry_is_never_at_once_and_never_far_off(ttl: int, failures: int, chance: float) -> None:
    assert 0 < retry(ttl, failures, chance) <= min(ttl / 6, 60)


@given(TTL)
def test_one_try_cannot_take_all_the_time_there_is(ttl: int) -> None:
    assert 1 <= patience(ttl) <= max(1, ttl / 4)


@pytest.mark.parametrize(("since", "told"), [(0, "kept"), (79.9, "kept"), (80, "expiring"), (100, "expired")])
def test_an_age_is_told_at_four_fifths_and_at_the_end(since: float, told: str) -> None:
    assert age(since, 100) == told


@given(INSTANT, INSTANT, TTL, TTL)
def test_times_only_go_forward(before: datetime, now: datetime, ttl: int, stored_ttl: int) -> None:
    record = beat(updated_at=stamp(before), expires_at=stamp(before + timedelta(seconds=stored_ttl)), extra=1)
    after = refreshed(record, ttl, now)
    for name in ("updated_at", "expires_at"):
        was, then = parse(record[name]), parse(after[name])
        assert was is not None
        assert then is not None
        assert then >= was
    assert liveness(after, now) == "live"
    assert {**after, "updated_at": 0, "expires_at": 0} == {**record, "updated_at": 0, "expires_at": 0}


@given(INSTANT, INSTANT, TTL)
def test_a_dead_agent_is_dead_to_every_reader_within_four_seconds(before: datetime, now: datetime, ttl: int) -> None:
    record = beat(updated_at=stamp(before), expires_at=stamp(before + timedelta(seconds=ttl)))
    last = ended(record, now)
    assert liveness(last, now + timedelta(seconds=4)) == "dead"
    assert is_ended(last, now + timedelta(seconds=1))
    was, then = parse(record["updated_at"]), parse(last["updated_at"])
    assert was is not None
    assert then is not None
    assert then >= was


@given(st.integers(2, 100_000), CHANCE, CHANCE)
def test_a_claim_is_extended_before_it_ends(ttl: int, first: float, second: float) -> None:
    lease = claim(expires_at=stamp(NOW + timedelta(seconds=ttl)))
    assert not is_due(lease, 1, NOW)
    at = NOW + timedelta(seconds=interval(ttl, first) + interval(ttl, second))
    assert is_due(lease, 1, at)
    expires = parse(lease["expires_at"])
    assert expires is not None
    assert at < expires


@pytest.mark.parametrize(
    ("lane", "record", "verdict"),
    [
        (LANE, claim(), None),
        (LANE, claim(instance_id="i1"), None),
        (LANE, None, Lost("the claim on o/r#7 is gone")),
        (LANE, claim(status="released"), Finished("the claim on o/r#7 was released")),
        (LANE, claim(agent_id="a2"), Lost("o/r#7 is now held by a2")),
        (LANE, claim(agent_id="a2", status="released"), Lost("the claim on o/r#7 was a2's last, and released")),
        (
            Lane("a1", 60, ("claim",), "o/r", "7", instance="i1"),
            claim(instance_id="i2"),
            Lost("o/r#7 is now held by another instance of a1"),
        ),
        (Lane("a1", 60, ("claim",), "o/r", "7", fence=fence(claim())), claim(updated_at=stamp(NOW)), None),
        (
            Lane("a1", 60, ("claim",), "o/r", "7", fence=fence(claim())),
            claim(claimed_at=stamp(NOW + timedelta(seconds=1))),
            Lost("o/r#7 was acquired anew by a1"),
        ),
    ],
)
def test_what_a_claim_says_of_the_lease(lane: Lane, record: dict[str, Any] | None, verdict: object) -> None:
    assert judge_claim(lane, record) == verdict


@pytest.mark.parametrize(
    ("record", "verdict"),
    [
        (beat(), None),
        (beat(status="blocked"), None),
        (beat(status="no such status"), None),
        (beat(status="done"), Finished("a1 reported done")),
        (beat(status="completed", repo="o/r", target="7"), Finished("a1 reported completed")),
        (beat(status="done", repo="o/r", target="8"), None),  # said of other work
        (beat(status="done", updated_at=stamp(NOW - timedelta(seconds=1))), None),  # said before the claim
        (beat(instance_id="i2", updated_at=stamp(NOW + SECOND)), Lost("the heartbeat of a1 is another instance's")),
        (beat(instance_id="i2"), None),  # no later than what this instance wrote into the claim
        (beat(instance_id="i2", updated_at=stamp(NOW + SECOND), expires_at=stamp(NOW + SECOND)), None),  # ended
        (beat(instance_id="i1"), None),
    ],
)
def test_what_a_heartbeat_says_of_the_lease(record: dict[str, Any], verdict: object) -> None:
    lane = Lane("a1", 60, ("heartbeat", "claim"), "o/r", "7", instance="i1")
    assert judge_beat(lane, record, claim(instance_id="i1"), NOW + SECOND) == verdict
