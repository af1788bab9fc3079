"""Live, stale, dead: a matter of two times and now."""

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentcoord.protocol.instants import stamp
from agentcoord.protocol.liveness import liveness, steady
from tests.protocol.strategies import NOW, Json, nearby

TTL = 900
AGES = {"live": 0, "stale": 1, "dead": 2}
ttls = st.integers(-10, 100_000)


def beat(updated: datetime, ttl: int) -> Json:
    return {"updated_at": stamp(updated), "expires_at": stamp(updated + timedelta(seconds=ttl))}


@pytest.mark.parametrize(
    ("elapsed", "seen"),
    [
        (-3600, "live"),
        (0, "live"),
        (TTL - 1, "live"),
        (TTL - 0.000001, "live"),
        (TTL, "stale"),
        (4 * TTL - 1, "stale"),
        (4 * TTL - 0.000001, "stale"),
        (4 * TTL, "dead"),
        (10**6, "dead"),
    ],
)
def test_an_agent_is_stale_at_its_expiry_and_dead_after_four_ttls(elapsed: float, seen: str) -> None:
    assert liveness(beat(NOW, TTL), NOW + timedelta(seconds=elapsed)) == seen


@pytest.mark.parametrize("ttl", [0, -1, -3600])
@pytest.mark.parametrize("elapsed", [-7200, 0, 7200])
def test_a_ttl_of_nothing_is_dead_at_once(ttl: int, elapsed: int) -> None:
    assert liveness(beat(NOW, ttl), NOW + timedelta(seconds=elapsed)) == "dead"


@pytest.mark.parametrize(
    "record",
    [
        {},
        {"updated_at": stamp(NOW)},
        {"expires_at": stamp(NOW)},
        {"updated_at": stamp(NOW), "expires_at": None},
        {"updated_at": "yesterday", "expires_at": stamp(NOW)},
        {"updated_at": stamp(NOW), "expires_at": "2026-02-30T00:00:00Z"},
        {"updated_at": stamp(NOW), "expires_at": "2026-01-01T12:00:00"},
        {"updated_at": 1767268800, "expires_at": 1767269700},
    ],
    ids=repr,
)
def test_without_two_readable_times_nobody_knows(record: Json) -> None:
    assert liveness(record, NOW) is None


@given(nearby, ttls, nearby, nearby)
def test_liveness_only_ever_fades(updated: datetime, ttl: int, one: datetime, other: datetime) -> None:
    record = beat(updated, ttl)
    first, second = liveness(record, min(one, other)), liveness(record, max(one, other))
    assert first is not None
    assert second is not None
    assert AGES[first] <= AGES[second]


@given(nearby, ttls.filter(lambda ttl: ttl > 0), nearby)
def test_the_three_states_are_the_three_spans(updated: datetime, ttl: int, now: datetime) -> None:
    elapsed = (now - updated).total_seconds()
    expected = "live" if elapsed < ttl else "stale" if elapsed < 4 * ttl else "dead"
    assert liveness(beat(updated, ttl), now) == expected


@given(nearby, ttls, nearby)
def test_the_offset_a_time_is_spelled_in_does_not_matter(updated: datetime, ttl: int, now: datetime) -> None:
    plain = beat(updated, ttl)
    spelled = {key: value.replace("Z", ".000+00:00") for key, value in plain.items()}
    assert liveness(spelled, now) == liveness(plain, now)


@given(ttls, st.integers(-500_000, 500_000), st.integers(-500_000, 500_000))
def test_between_two_turns_the_verdict_is_one(ttl: int, elapsed: int, other: int) -> None:
    record = beat(NOW, ttl)
    now, then = NOW + timedelta(seconds=elapsed), NOW + timedelta(seconds=other)
    since, until = steady(record["updated_at"], record["expires_at"], now)
    if (since is None or since <= then) and (until is None or then < until):
        assert liveness(record, then) == liveness(record, now)
    for turn in filter(None, (since, until)):
        assert liveness(record, turn) != liveness(record, turn - timedelta(microseconds=1))


def test_what_is_no_time_never_turns_and_the_last_year_holds_none() -> None:
    assert steady(None, stamp(NOW), NOW) == (None, None)
    assert steady("9000-01-01T00:00:00Z", "9999-01-01T00:00:00Z", NOW) == (None, datetime(9999, 1, 1, tzinfo=UTC))
