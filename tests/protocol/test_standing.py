"""Whether an acquisition still holds, by the claim and by the heartbeat of its holder."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from agentcoord.protocol.claims import HolderState, fence
from agentcoord.protocol.instants import stamp
from agentcoord.protocol.standing import Reason, compare, explain, judge

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
