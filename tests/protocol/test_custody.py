"""Which claims stand beside a trail, and what is shown of them."""

from datetime import timedelta
from typing import Any

import msgspec
import pytest

from agentcoord.protocol.custody import ClaimRecord, ClaimRow, current_claims, held, is_on
from agentcoord.protocol.instants import stamp
from agentcoord.protocol.trail import Item, Row
from tests.protocol.strategies import NOW, Json, row


def at(hours: float) -> str:
    return stamp(NOW + timedelta(hours=hours))


def claims(*fields: Json, rows: tuple[Row, ...] = ()) -> list[ClaimRow]:
    found: list[Any] = []
    for number, each in enumerate(fields):
        record: Json = {"repo": "acme/widgets", "target": "319", "agent_id": "w-1", "updated_at": at(-1)}
        claim = msgspec.convert(record | {"status": "active"} | each, ClaimRecord)
        found.append(held(f"claims/acme/widgets/{number}.json", claim))
    return current_claims(found, rows, NOW)


def test_a_lease_is_shown_once_as_it_is_now_and_the_newest_comes_last() -> None:
    shown = claims(
        {"updated_at": at(-1), "phase": "old"},
        {"updated_at": at(-0.5), "phase": "new"},
        {"target": "pr:319", "updated_at": at(-2)},
        {"agent_id": "w-2", "updated_at": "?"},
    )
    assert [(each.target, each.agent_id, each.phase) for each in shown] == [
        ("319", "w-2", "-"),
        ("pr:319", "w-1", "-"),
        ("319", "w-1", "new"),
    ]


def test_a_claim_that_names_no_target_or_agent_is_a_lease_of_its_path() -> None:
    assert [each.target for each in claims({"target": None}, {"target": None}, {"agent_id": None})] == ["0", "1", "319"]


@pytest.mark.parametrize(
    ("fields", "shown"),
    [
        ({"type": "claim.released", "at": at(-0.5)}, 0),
        ({"type": "lane_closed", "at": at(-0.5)}, 0),
        ({"type": "claim.released", "at": at(-1)}, 1),
        ({"type": "claim.released", "at": "?"}, 1),
        ({"type": "phase.changed", "at": at(-0.5)}, 1),
        ({"type": "claim.released", "at": at(-0.5), "target": "pr:319"}, 1),
        ({"type": "claim.released", "at": at(-0.5), "target": "319:qa"}, 1),
        ({"type": "claim.released", "at": at(-0.5), "repo": "Acme/widgets"}, 1),
    ],
)
def test_only_a_later_end_under_the_same_spelling_ends_custody(fields: Json, shown: int) -> None:
    assert len(claims({}, rows=(row(**fields),))) == shown


@pytest.mark.parametrize(("expires", "elapsed"), [(at(-1), True), (at(0), False), (at(1), False), ("soon", False)])
def test_a_lease_elapses_when_its_time_is_over(expires: str, elapsed: bool) -> None:
    assert claims({"expires_at": expires})[0].lease_elapsed is elapsed


def test_a_claim_is_on_the_item_in_any_spelling_but_on_no_lane_of_it() -> None:
    item = Item("acme/widgets", "issue:319")
    assert is_on(item, "ACME/widgets", "pr:319")
    assert not is_on(item, "acme/widgets", "319:qa")
    assert not is_on(item, "acme/widgets", "3190")
