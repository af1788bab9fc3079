"""The rules of keeping a lease: whether it stands, what a renewal changes, and when each thing is due."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentcoord.protocol.claims import HolderState, fence
from agentcoord.protocol.custody import (
    Reason,
    beat_ttl,
    compare,
    explain,
    is_due,
    is_last,
    is_of,
    judge,
    last_beat,
    look_pause,
    pause,
    prolonged,
    protected_until,
    retry,
)
from agentcoord.protocol.instants import parse, stamp
from agentcoord.protocol.liveness import liveness

NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)


def at(seconds: float) -> str:
    return stamp(NOW + timedelta(seconds=seconds))


def claim(**more: Any) -> dict[str, Any]:
    return {
        "repo": "o/r",
        "target": "7",
        "agent_id": "a1",
        "status": "active",
        "claimed_at": at(-60),
        "updated_at": at(-60),
        "expires_at": at(60),
        "instance_id": "i1",
    } | more


def beat(begun: float = 0, ttl: float = 60, **more: Any) -> dict[str, Any]:
    return {"agent_id": "a1", "status": "in_progress", "updated_at": at(begun), "expires_at": at(begun + ttl)} | more


@pytest.mark.parametrize(
    ("stored", "reason"),
    [
        (None, "no_claim"),
        (claim(status="released"), "released"),
        (claim(agent_id="a2"), "another_acquisition"),
        (claim(instance_id="i2"), "another_acquisition"),
        (claim(claimed_at=at(-50)), "another_acquisition"),
        (claim(phase="testing", expires_at=at(9)), "held"),
    ],
)
def test_a_fence_is_compared_with_the_record(stored: Any, reason: Reason) -> None:
    standing = compare(stored, fence(claim()))
    assert (standing.reason, standing.held) == (reason, reason == "held")
    assert explain(standing, "o/r", "7").startswith("FENCE_LOST: ") is not standing.held


@pytest.mark.parametrize(
    ("seen", "left", "held"),
    [
        ("live", 60, True),
        ("live", -60, True),
        ("stale", -60, True),
        ("dead", 60, False),
        ("missing", 60, True),
        ("missing", 0, False),
        ("invalid", -1, False),
        ("unknown", 1, True),
        ("unknown", None, False),
    ],
)
def test_it_holds_while_everybody_else_is_refused(seen: HolderState, left: float | None, held: bool) -> None:
    stored = claim(expires_at=None if left is None else at(left))
    standing = judge(compare(stored, fence(stored)), seen, NOW)
    assert (standing.held, standing.reason) == (held, "held" if held else "expired")


def test_a_lease_belongs_to_one_instance() -> None:
    assert is_of(claim(generation=2), "a1", "i1")
    for other in (None, claim(status="released"), claim(agent_id="a2"), claim(instance_id="i2"), {"status": "active"}):
        assert not is_of(other, "a1", "i1")


class TestRenewals:
    def test_only_times_change(self) -> None:
        stored = claim(phase="testing", unheard_of=[1])
        renewed = prolonged(stored, 100, NOW)
        assert renewed == stored | {"updated_at": at(0), "expires_at": at(100)}
        assert fence(renewed) == fence(stored)

    @given(st.integers(-10_000, 10_000), st.integers(1, 10_000), st.integers(3, 10_000))
    def test_times_never_go_back(self, begun: int, ttl: int, wanted: int) -> None:
        before = beat(begun, ttl)
        after = prolonged(before, wanted, NOW)
        for name in ("updated_at", "expires_at"):
            assert after[name] >= before[name]
        assert after["expires_at"] >= at(wanted)

    def test_a_lease_is_due_when_less_than_half_is_left(self) -> None:
        assert not is_due(claim(expires_at=at(50)), 100, NOW)
        assert is_due(claim(expires_at=at(49)), 100, NOW)
        assert is_due(claim(expires_at="soon"), 100, NOW)

    def test_the_last_heartbeat_is_dead_in_four_seconds(self) -> None:
        last = last_beat(beat(-5, 900, phase="testing"), NOW)
        assert is_last(last)
        assert last["phase"] == "testing"
        assert liveness(last, NOW + timedelta(seconds=3)) == "stale"
        assert liveness(last, NOW + timedelta(seconds=4)) == "dead"
        assert not is_last(beat(ttl=3))

    def test_protection_ends_with_the_lease_or_with_the_heartbeat(self) -> None:
        assert protected_until(claim(), None) == parse(at(60))
        assert protected_until(claim(), beat(0, 10)) == parse(at(40))
        assert protected_until(claim(), beat(0, 100)) == parse(at(60))
        assert protected_until(claim(), beat(0, 10, status="done")) == parse(at(60))
        assert protected_until(claim(), beat(updated_at=7)) == parse(at(60))
        assert protected_until(claim(expires_at=None), beat()) is None


class TestTimes:
    @given(st.integers(3, 100_000), st.floats(0, 1, exclude_max=True))
    def test_a_heartbeat_is_renewed_about_three_times_within_its_ttl(self, ttl: int, chance: float) -> None:
        assert 0.3 * ttl * 0.99 <= pause(ttl, chance) <= ttl / 3

    @given(st.integers(0, 10**6), st.floats(0.1, 100_000), st.floats(0, 1, exclude_max=True))
    def test_a_failed_one_is_tried_again_within_the_time_that_is_left(
        self, failures: int, left: float, chance: float
    ) -> None:
        assert 0.1 <= retry(failures, left, chance) <= max(left / 3, 0.1)

    def test_failures_slow_it_down(self) -> None:
        waits = [retry(failures, 10_000, 0) for failures in range(1, 12)]
        assert waits == sorted(waits)
        assert waits[-1] == 30
        assert retry(1, float("inf"), 0) < 1

    def test_a_short_lease_has_a_short_heartbeat(self) -> None:
        assert (beat_ttl(30), beat_ttl(14400)) == (30, 900)
        assert 13 < look_pause(0.5) < 15
