"""When leases are renewed, what a renewal writes, and what ends one."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentcoord.protocol.claims import fence
from agentcoord.protocol.instants import exact, parse, stamp, whole
from agentcoord.protocol.keeping import (
    DEAD_TTL,
    Finished,
    Lane,
    Lost,
    age,
    beat_ttl,
    ended,
    interval,
    is_due,
    is_ended,
    is_past,
    judge_beat,
    judge_claim,
    look_interval,
    patience,
    protected_until,
    refreshed,
    retry,
    together,
    was_ended,
)
from agentcoord.protocol.liveness import DEAD_AFTER_TTLS, liveness

NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)
SECOND = timedelta(seconds=1)
CHANCE = st.floats(0, 1)
TTL = st.integers(1, 100_000)
INSTANT = st.integers(0, 10**7).map(lambda tenths: datetime(2000, 1, 1, tzinfo=UTC) + timedelta(seconds=tenths / 10))
FRACTIONS = st.sampled_from(["", ".2", ".95"])
SPELLED = st.none() | st.tuples(INSTANT, FRACTIONS).map(lambda spelled: stamp(spelled[0])[:-1] + spelled[1] + "Z")
"""A time in a record, as any program may have written it."""

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
def test_a_renewal_comes_after_a_third_of_the_ttl_or_shortly_before(ttl: int, chance: float) -> None:
    assert 0.3 * ttl - 1e-6 <= interval(ttl, chance) <= ttl / 3


@given(CHANCE)
def test_what_others_may_end_is_looked_at_in_time_to_go_on(chance: float) -> None:
    assert 13 < look_interval(chance, shared=False) <= 15
    assert 2 * look_interval(chance, shared=True) < DEAD_AFTER_TTLS * DEAD_TTL


@given(st.floats(0, 10**7), TTL)
def test_renewals_are_made_together_and_never_later_than_they_are_due(due: float, ttl: int) -> None:
    assert due - min(ttl / 60, 1) - 1e-3 <= together(due, ttl) <= due


@given(TTL, CHANCE)
def test_a_failed_renewal_is_tried_again_several_times_within_the_ttl(ttl: int, chance: float) -> None:
    at, tries = interval(ttl, chance), 0
    while at < ttl:
        tries += 1
        at += retry(ttl, tries, ttl - at, chance)
    assert tries >= 4


@given(TTL, st.integers(0, 10**6), st.floats(-10, 10**6), CHANCE)
def test_a_retry_is_never_at_once_and_never_far_off(ttl: int, failures: int, left: float, chance: float) -> None:
    assert 0 < retry(ttl, failures, left, chance) <= min(ttl / 6, 30)


@given(TTL, st.integers(1, 10**6), st.floats(0.31, 10**6) | st.just(float("inf")), CHANCE)
def test_a_retry_leaves_time_for_two_more_within_the_protection(
    ttl: int, failures: int, left: float, chance: float
) -> None:
    assert retry(ttl, failures, left, chance) <= left / 3


def test_failures_slow_it_down() -> None:
    waits = [retry(900, failures, 10_000, 0) for failures in range(1, 12)]
    assert waits == sorted(waits)
    assert (waits[0], waits[-1]) == (5, 30)
    assert retry(3, 1, 10_000, 0) == 0.1


def test_a_short_lease_has_a_short_heartbeat() -> None:
    assert (beat_ttl(30), beat_ttl(14400)) == (30, 900)


@given(TTL)
def test_one_try_cannot_take_all_the_time_there_is(ttl: int) -> None:
    assert 1 <= patience(ttl) <= max(1, ttl / 4)


@pytest.mark.parametrize(("since", "told"), [(0, "kept"), (79.9, "kept"), (80, "expiring"), (100, "expired")])
def test_an_age_is_told_at_four_fifths_and_at_the_end(since: float, told: str) -> None:
    assert age(since, 100) == told


@given(SPELLED, SPELLED, INSTANT, TTL)
def test_a_renewal_moves_times_forward_only_and_nothing_else(
    updated: str | None, expires: str | None, now: datetime, ttl: int
) -> None:
    record = claim(instance_id="i1", updated_at=updated, expires_at=expires, extra=[1])
    after = refreshed(record, ttl, now)
    for name in ("updated_at", "expires_at"):
        was, then = exact(record[name]), exact(after[name])
        assert then is not None
        assert was is None or then >= was
    assert liveness(after, now) == "live"
    assert {**after, "updated_at": 0, "expires_at": 0} == {**record, "updated_at": 0, "expires_at": 0}
    assert fence(after) == fence(record)
    assert refreshed(after, ttl, now) == after  # a second one within the second has nothing to write


@given(SPELLED, SPELLED, INSTANT, TTL)
def test_a_renewal_shortens_no_protection(updated: str | None, expires: str | None, now: datetime, ttl: int) -> None:
    lease, said = claim(expires_at=expires), beat(updated_at=updated, expires_at=expires)
    before, after = protected_until(lease, None), protected_until(refreshed(lease, ttl, now), None)
    assert after is not None
    assert before is None or after >= before
    # An agent that gave its heartbeat a longer ttl than it is kept with has four of the shorter from now on.
    alive = protected_until(None, refreshed(said, ttl, now))
    assert alive is not None
    assert alive >= whole(now) + DEAD_AFTER_TTLS * ttl * SECOND


@given(SPELLED, SPELLED, INSTANT)
def test_a_dead_agent_is_dead_to_every_reader_within_four_seconds(
    updated: str | None, expires: str | None, now: datetime
) -> None:
    record = beat(updated_at=updated, expires_at=expires, phase="test")
    last = ended(record, now)
    assert liveness(last, now + timedelta(seconds=4)) == "dead"
    assert was_ended(last)
    assert is_ended(last, now + SECOND)
    was, then = exact(record["updated_at"]), exact(last["updated_at"])
    assert then is not None
    assert was is None or then >= was
    assert {**last, "updated_at": 0, "expires_at": 0} == {**record, "updated_at": 0, "expires_at": 0}


@given(SPELLED, INSTANT, TTL)
def test_who_goes_on_after_an_end_lives_again(updated: str | None, now: datetime, ttl: int) -> None:
    last = ended(beat(updated_at=updated), now)
    assert liveness(refreshed(last, ttl, now), now) == "live"


def test_a_heartbeat_is_ended_if_somebody_left_it_so() -> None:
    last = ended(beat(), NOW)
    assert liveness(last, NOW + timedelta(seconds=3)) == "stale"
    short = beat(expires_at=stamp(NOW + 3 * SECOND))
    assert not was_ended(short)
    assert not is_ended(short, NOW + 11 * SECOND)
    assert is_ended(short, NOW + 12 * SECOND)


def test_protection_ends_with_the_claim_or_with_the_heartbeat() -> None:
    def ends(lease: dict[str, Any] | None, said: dict[str, Any] | None) -> float | None:
        until = protected_until(lease, said)
        return None if until is None else (until - NOW).total_seconds()

    short = {"expires_at": stamp(NOW + 10 * SECOND)}
    assert ends(claim(), None) == 60
    assert ends(claim(), beat(**short)) == 40
    assert ends(claim(), beat()) == 60
    assert ends(claim(), beat(**short, status="done")) == 40  # dead is dead to whoever reads it
    assert ends(claim(), beat(updated_at=7)) == 60
    assert ends(claim(expires_at=None), beat()) == 240
    assert ends(claim(expires_at=None), None) is None
    assert ends(None, beat(expires_at="9999-12-31T23:59:59Z")) is not None


@given(st.integers(2, 100_000), CHANCE, CHANCE)
def test_a_claim_is_extended_before_it_ends(ttl: int, first: float, second: float) -> None:
    lease = claim(expires_at=stamp(NOW + timedelta(seconds=ttl)))
    assert not is_due(lease, 1, NOW)
    assert not is_due(lease, 1, NOW + ttl / 2 * SECOND)
    assert is_due(lease, 1, NOW + (ttl / 2 + 0.1) * SECOND)
    assert is_due(claim(expires_at="soon"), 1, NOW)
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
        (beat(status="done"), Finished("a1 reported done", held=True)),
        (beat(status="completed", repo="o/r", target="7"), Finished("a1 reported completed", held=True)),
        (beat(status="done", repo="o/r", target="8"), None),  # said of other work
        (beat(status="done", updated_at=stamp(NOW - timedelta(seconds=1))), None),  # said before the claim
        (
            beat(instance_id="i2", updated_at=stamp(NOW + SECOND)),
            Lost("the heartbeat of a1 is another instance's", held=True),
        ),
        (beat(instance_id="i2"), None),  # no later than what this instance wrote into the claim
        (beat(instance_id="i2", updated_at=stamp(NOW + SECOND), expires_at=stamp(NOW + SECOND)), None),  # ended
        (beat(instance_id="i1"), None),
    ],
)
def test_what_a_heartbeat_says_of_the_lease(record: dict[str, Any], verdict: object) -> None:
    lane = Lane("a1", 60, ("heartbeat", "claim"), "o/r", "7", instance="i1")
    assert judge_beat(lane, record, claim(instance_id="i1"), NOW + SECOND) == verdict


@pytest.mark.parametrize(
    ("record", "past"),
    [
        (beat(instance_id="i2"), False),  # earlier than what this instance wrote, but alive: it is prolonged
        (beat(instance_id="i2", expires_at=stamp(NOW + SECOND)), True),  # somebody ended it
        (beat(instance_id="i2", updated_at=stamp(NOW - 240 * SECOND), expires_at=stamp(NOW - 180 * SECOND)), True),
        (beat(expires_at=stamp(NOW + SECOND)), True),  # nobody's in particular
        (beat(), False),
        (beat(instance_id="i1", expires_at=stamp(NOW + SECOND)), False),
    ],
)
def test_a_shared_heartbeat_is_begun_anew_once_it_ended(record: dict[str, Any], past: bool) -> None:
    lane = Lane("a1", 60, ("heartbeat", "claim"), "o/r", "7", instance="i1", shared=True)
    lease = claim(instance_id="i1", updated_at=stamp(NOW + SECOND))
    assert is_past(lane, record, lease, NOW + SECOND) is past
    assert judge_beat(lane, record, lease, NOW + SECOND) is None


@pytest.mark.parametrize("more", [{"generation": 2}, {"claimed_at": stamp(NOW + SECOND)}, {"phase": "x"}])
def test_a_lease_is_its_instances_whatever_else_is_written_into_it(more: dict[str, Any]) -> None:
    lane = Lane("a1", 60, ("heartbeat", "claim"), "o/r", "7", instance="i1")
    assert judge_claim(lane, claim(instance_id="i1", **more)) is None
