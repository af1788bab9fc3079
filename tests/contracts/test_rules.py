"""What no schema can say: who gets a slot, what a retry changes, which report counts, and where a record is kept."""

from datetime import UTC, datetime, timedelta
from typing import Any
from urllib.parse import unquote

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentcoord.errors import StoreError, UsageError
from agentcoord.protocol.contracts import admission, capacity, host_limits, merge_authority, usage
from agentcoord.protocol.contracts.catalogue import BY_FAMILY, CONTRACTS
from agentcoord.protocol.contracts.vocabulary import storage_segment
from agentcoord.protocol.instants import stamp
from tests.contracts.published import ROOT, fixtures, schema_allows, types_allow
from tests.contracts.replays import plain

NOW = datetime(2026, 9, 1, 6, 5, tzinfo=UTC)
Json = dict[str, Any]


# Places ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "segment"),
    [("a-Z_0", "a-Z_0"), ("a.b", "a%2Eb"), ("o/r", "o%2Fr"), ("100%", "100%25"), ("é", "%C3%A9"), ("b:a ", "b%3Aa%20")],
)
def test_a_segment_keeps_what_is_safe_and_spells_the_rest(text: str, segment: str) -> None:
    assert storage_segment(text) == segment


@given(st.text(st.characters(codec="utf-8"), min_size=1))
def test_a_segment_stands_for_one_text_only_and_leads_nowhere(text: str) -> None:
    segment = storage_segment(text)
    assert unquote(segment) == text
    assert not set(segment) & set("/.")


def test_every_record_with_a_key_has_a_place_of_its_own() -> None:
    places = {
        "attention": "attention/default/acme/shop/shop-41-rounding.json",
        "host_limit": "host_limits/default/mill-02/team-pool.eu/weekly.json",
        "capacity_profile": "capacity_profiles/default/big.json",
        "inbox": "inboxes/default/issues.json",
        "lane_occupancy": "lane_occupancies/default/b7%3Aapi.json",
        "capacity_reservation": "capacity_reservations/default/r-1.json",
        "usage": "usage/default/acme%2Fshop/b7/api/ana/41/m-large.json",
        "batch_completion": "batch_completions/default/b7.json",
        "batch_blocker": "batch_blockers/default/b7.json",
    }
    assert places.keys() == {contract.family for contract in CONTRACTS if contract.key}
    for fixture in fixtures(ROOT, "valid"):
        family, record = fixture.contract.family, fixture.read()
        if fixture.path.stem in FIRST:
            assert BY_FAMILY[family].path(record) == places.pop(family)
    assert places == {}
    assert BY_FAMILY["route"].path({"route": "a/b"}) is None


FIRST = {
    *["attention-open", "host-limit-reset-known", "capacity-profile-disabled", "inbox-enabled", "usage-all-known"],
    *["lane-occupancy-occupied", "capacity-reservation-two-lanes", "completion-everything", "blocker-with-reply"],
}


# Host limits -------------------------------------------------------------------------------------------

LIMIT: Json = {
    "schema_version": 1,
    "workspace": "default",
    "machine": "mill",
    "quota_host": "pool",
    "scope": "weekly",
    "status": "active",
    "observed_at": "2026-09-01T06:00:00Z",
    "resets_at": None,
    "source": "hook",
}


def limit(**change: object) -> host_limits.HostLimit:
    return host_limits.require_host_limit(LIMIT | change)


def test_a_pool_is_trimmed_and_lower_case() -> None:
    assert host_limits.canonical_pool("  Team-Pool \n") == "team-pool"
    with pytest.raises(UsageError, match="quota"):
        host_limits.canonical_pool("https://pool/secret")


def test_a_limit_that_is_seen_again_was_first_seen_when_it_was() -> None:
    again = limit(observed_at="2026-09-01T08:00:00Z", resets_at="2026-09-02T00:00:00Z")
    assert host_limits.renew(None, again) is again
    kept = host_limits.renew(limit(), again)
    assert (kept.observed_at, kept.resets_at) == ("2026-09-01T06:00:00Z", "2026-09-02T00:00:00Z")
    assert host_limits.renew(kept, again) == kept
    assert host_limits.renew(host_limits.clear(limit(), NOW), again) is again


@pytest.mark.parametrize("minutes", [-60, 0, 60])
def test_a_limit_is_lifted_once_and_never_before_it_was_seen(minutes: int) -> None:
    lifted = host_limits.clear(limit(), NOW + timedelta(minutes=minutes))
    host_limits.require_limits([lifted])
    assert schema_allows(BY_FAMILY["host_limit"], plain(lifted))
    assert host_limits.clear(lifted, NOW + timedelta(days=1)) is lifted
    assert not host_limits.is_effective(lifted, NOW)


# Merge authority -----------------------------------------------------------------------------------------


def test_what_a_launch_declares_is_kept_in_a_short_word() -> None:
    declared = ("auto_merge_when_gates_pass", "ask", "none")
    assert [merge_authority.from_launch(word) for word in declared] == ["auto", "ask", "none"]
    with pytest.raises(UsageError, match="must be one of"):
        merge_authority.from_launch("auto")


# Usage -------------------------------------------------------------------------------------------------

REPORT: Json = {
    "schema_version": 1,
    "workspace": "default",
    "repo": "acme/shop",
    "batch_id": "b7",
    "lane_name": "api",
    "agent_id": "ana",
    "target": "41",
    "model": "m",
    "input_tokens": 1,
    "output_tokens": 1,
    "cost": 0.1,
    "reported_at": "2026-09-01T06:00:00Z",
}
metrics = st.none() | st.just("—") | st.integers(0, 10**20)
reports = st.fixed_dictionaries(
    {
        "model": st.sampled_from(["m", "n"]),
        "lane_name": st.sampled_from(["api", "ui"]),
        "input_tokens": metrics,
        "cost": metrics | st.floats(0, 1e6),
        "reported_at": st.sampled_from(
            ["2026-09-01T06:00:00Z", "2026-09-01T08:00:00+02:00", "2026-09-01T06:00:00.1Z", "2026-09-01T06:00:01Z"]
        ),
    }
).map(lambda change: usage.require_usage(REPORT | change))


@given(st.lists(reports, max_size=6), st.randoms(use_true_random=False))
def test_reports_may_come_again_and_in_any_order(seen: list[usage.Usage], chance: Any) -> None:
    shuffled = [*seen, *chance.choices(seen, k=3)] if seen else []
    chance.shuffle(shuffled)
    assert usage.aggregate(shuffled) == usage.aggregate(seen)


def test_money_is_added_in_decimal_and_a_half_cent_is_a_cent() -> None:
    lanes = [REPORT | {"lane_name": name, "cost": cost} for name, cost in (("a", 0.1), ("b", 0.2), ("c", 0.005))]
    told = usage.aggregate(map(usage.require_usage, lanes))
    assert told.batch_totals.cost == 0.31


# Slots -------------------------------------------------------------------------------------------------

BASE: Json = {"schema_version": 1, "workspace": "default", "capacity_profile_id": "big"}
SEEN = "2026-09-01T06:00:00Z"
INBOX: Json = BASE | {"inbox_id": "in", "status": "enabled", "updated_at": SEEN}
PROFILE: Json = BASE | {"status": "enabled", "max_concurrency": 3, "updated_at": SEEN}
OWNER: Json = {"owner_machine": "m", "owner_id": "o", "instance_id": "i"}
ME = ("m", "o", "i")
REQUEST: Json = {
    **OWNER,
    "reservation_id": "r",
    "capacity_profile_id": "big",
    "inbox_id": "in",
    "batch_id": "b",
    "lane_refs": ["b:x"],
}


def lane(ref: str, **change: object) -> Json:
    return BASE | {"inbox_id": "in", "lane_ref": ref, "state": "occupied", "updated_at": SEEN} | change


def world(**change: object) -> Json:
    empty: Json = {"capacity_profile": PROFILE, "inboxes": [INBOX], "lane_occupancies": [], "active_reservations": []}
    return empty | change


def promised(request: Json = REQUEST, at: datetime = NOW) -> capacity.CapacityReservation:
    decision = admission.decide_reservation(request, world(), at)
    assert isinstance(decision, admission.Accepted)
    return decision.reservation


def test_a_promise_is_a_record_that_keeps_its_contract() -> None:
    record = plain(promised())
    assert schema_allows(BY_FAMILY["capacity_reservation"], record)
    assert types_allow(BY_FAMILY["capacity_reservation"], record)
    capacity.require_consistent(promised())
    assert (record["created_at"], record["expires_at"]) == ("2026-09-01T06:05:00Z", "2026-09-01T06:20:00Z")


@pytest.mark.parametrize(
    ("facts", "why"),
    [
        ({}, "missing required field `capacity_profile`"),
        *(({name: value for name, value in world().items() if name != left}, left) for left in world()),
        (world(hints=[]), "unknown field `hints`"),
        ([], "Expected `object`"),
        (world(capacity_profile=PROFILE | {"status": "disabled"}), "profile big is disabled"),
        (world(capacity_profile=PROFILE | {"max_concurrency": 0}), ">= 1"),
        (world(capacity_profile=PROFILE | {"capacity_profile_id": "small"}), "not of capacity profile big"),
        (world(inboxes=[]), "inbox in is not there"),
        (world(inboxes=[INBOX, INBOX]), "two inbox records"),
        (world(inboxes=[INBOX | {"status": "disabled"}]), "inbox in is not there"),
        (world(inboxes=[INBOX | {"workspace": "night"}]), "another workspace"),
        (world(inboxes=[INBOX | {"capacity_profile_id": "small"}]), "inbox in is not there"),
        (world(lane_occupancies=[lane("b:y", workspace="night")]), "another workspace or profile"),
        (world(lane_occupancies=[lane("b:y", capacity_profile_id="small")]), "another workspace or profile"),
        (world(lane_occupancies=[lane("b:y", inbox_id="lost")]), "another workspace or profile"),
        (world(lane_occupancies=[lane("b:y", state="gone")]), "Invalid enum value"),
        (world(lane_occupancies=[lane("b:y"), lane("b:y", state="blocked", blocked_reason="?")]), "two lane occupancy"),
        (world(lane_occupancies=[lane(f"b:{name}") for name in "abc"]), "1 slots wanted, 0 free"),
        (world(lane_occupancies=[lane(f"b:{name}") for name in "abcd"]), "1 slots wanted, 0 free"),
        (world(lane_occupancies=[lane("b:x")]), "lane b:x has a slot"),
    ],
)
def test_whatever_is_missing_or_wrong_refuses(facts: object, why: str) -> None:
    decision = admission.decide_reservation(REQUEST, facts, NOW)
    assert isinstance(decision, admission.Refused)
    assert why in decision.reason


def test_lanes_that_have_ended_and_promises_that_have_expired_take_no_slot() -> None:
    early = plain(promised(REQUEST | {"reservation_id": "early"}, NOW - timedelta(seconds=900)))
    facts = world(
        capacity_profile=PROFILE | {"max_concurrency": 1},
        lane_occupancies=[
            lane("b:y", state="terminal", terminal_at=SEEN),
            lane("b:x", state="cancelled", terminal_at=SEEN),
        ],
        active_reservations=[early],
    )
    assert isinstance(admission.decide_reservation(REQUEST, facts, NOW), admission.Accepted)
    assert isinstance(admission.decide_reservation(REQUEST, facts, NOW - timedelta(seconds=1)), admission.Refused)


@pytest.mark.parametrize(
    "change",
    [
        {"lane_refs": ["b:y"]},
        {"lane_refs": ["b:x", "b:y"]},
        {"ttl_seconds": 901},
        {"inbox_id": "other"},
        {"owner_machine": "n"},
        {"owner_id": "n"},
        {"instance_id": "n"},
    ],
)
def test_an_id_stands_for_one_request(change: Json) -> None:
    facts = world(active_reservations=[plain(promised())])
    again = admission.decide_reservation(REQUEST | {"ttl_seconds": 900.0}, facts, NOW + timedelta(days=1))
    assert again == admission.Idempotent(promised())
    assert admission.decide_reservation(REQUEST | change, facts, NOW) == admission.Conflict(promised())


names = st.sampled_from("abcdef")
asked = st.tuples(st.sampled_from(["r", "s", "t", "u"]), st.lists(names, min_size=1, max_size=3), st.integers(0, 1200))


@settings(max_examples=150)
@given(st.lists(asked, max_size=8), st.sets(names, max_size=2), st.integers(1, 4))
def test_no_profile_is_ever_overdrawn_and_asking_again_changes_nothing(
    attempts: list[tuple[str, list[str], int]], running: set[str], slots: int
) -> None:
    facts = world(
        capacity_profile=PROFILE | {"max_concurrency": slots},
        lane_occupancies=[lane(f"b:{name}") for name in sorted(running)],
    )
    for name, wanted, after in attempts:
        at = NOW + timedelta(seconds=after)
        request = REQUEST | {"reservation_id": name, "lane_refs": [f"b:{each}" for each in wanted]}
        decision = admission.decide_reservation(request, facts, at)
        if isinstance(decision, admission.Accepted):
            facts = facts | {"active_reservations": [*facts["active_reservations"], plain(decision.reservation)]}
            assert admission.decide_reservation(request, facts, at) == admission.Idempotent(decision.reservation)
        else:
            assert admission.decide_reservation(request, facts, at) == decision
        read = admission.read_snapshot(facts, at)
        used = capacity.used_refs(read.lane_occupancies, read.active_reservations, at)
        assert len(used) <= max(slots, len(running))


steps = st.lists(st.tuples(st.sampled_from(["x", "y", "z", None]), st.integers(-10, 1000)), max_size=6)


@settings(max_examples=150)
@given(steps)
def test_what_has_ended_stays_as_it_ended(moves: list[tuple[str | None, int]]) -> None:
    reservation = promised(REQUEST | {"lane_refs": ["b:x", "b:y"]})
    running = [capacity.require_occupancy(lane(f"b:{name}")) for name in "xz"]
    for name, after in moves:
        at, before = NOW + timedelta(seconds=after), reservation
        try:
            if name is None:
                reservation = admission.release(reservation, owner=ME, now=at)
            else:
                reservation = admission.consume(reservation, f"b:{name}", owner=ME, occupancies=running, now=at)
                assert name == "x", "only this lane is promised and runs"
        except StoreError:
            continue
        assert schema_allows(BY_FAMILY["capacity_reservation"], plain(reservation))
        for old, new in zip(before.lane_holds, reservation.lane_holds, strict=True):
            assert old.lane_ref == new.lane_ref
            assert old.state == "active" or old == new
            if new.state == "expired":
                assert new.expired_at == reservation.expires_at


@pytest.mark.parametrize("part", range(3))
def test_only_the_whole_owner_may_act(part: int) -> None:
    owner = tuple("else" if at == part else word for at, word in enumerate(ME))
    with pytest.raises(StoreError, match="is owned by m/o/i"):
        admission.release(promised(), owner=owner, now=NOW)  # pyright: ignore[reportArgumentType]


def test_a_promise_is_for_the_same_profile_and_inbox() -> None:
    for change in (
        {"inbox_id": "other"},
        {"capacity_profile_id": "small"},
        {"workspace": "night"},
        {"lane_ref": "b:y"},
    ):
        elsewhere = [capacity.require_occupancy(lane("b:x") | change)]
        with pytest.raises(StoreError, match="does not run"):
            admission.consume(promised(), "b:x", owner=ME, occupancies=elsewhere, now=NOW)
    blocked = [capacity.require_occupancy(lane("b:x", state="blocked", blocked_reason="?"))]
    with pytest.raises(StoreError, match="does not run"):
        admission.consume(promised(), "b:x", owner=ME, occupancies=blocked, now=NOW)
    taken = admission.consume(
        promised(), "b:x", owner=ME, occupancies=[capacity.require_occupancy(lane("b:x"))], now=NOW
    )
    assert taken.lane_holds[0].consumed_at == stamp(NOW)
