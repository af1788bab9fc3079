"""Who gets the lease, when, and what the claim then says."""

from typing import Any

import pytest
from msgspec.structs import replace

from agentcoord.errors import Conflict, StoreError, Unreadable, UsageError
from agentcoord.operations.claims import Claimed, Refused, claim
from agentcoord.protocol.claims import Refuse, Wanted
from agentcoord.protocol.identity import Identity
from tests.operations.stage import CLAIM, FakeClock, FaultyStore, Stage
from tests.stores.counting import CountingStore


def wanted(agent_id: str = "a1", **more: Any) -> Wanted:
    facts: dict[str, Any] = {"repo": "o/r", "target": "7", "ttl": 14400, **more}
    return Wanted(agent_id=agent_id, **facts)


def refused(answer: Claimed | Refused) -> Refuse:
    assert isinstance(answer, Refused)
    return answer.refusal


def claimed(answer: Claimed | Refused) -> Claimed:
    assert isinstance(answer, Claimed)
    return answer


# -- acquiring


async def test_a_free_item_is_claimed_as_asked(stage: Stage) -> None:
    won = claimed(await stage.claim("a1", batch_id="b1", branch="main", metadata={"phase": "start", "generation": 3}))
    assert await stage.record(CLAIM) == won.record
    assert list(won.record.items()) == [
        ("schema_version", 1),
        ("repo", "o/r"),
        ("target", "7"),
        ("agent_id", "a1"),
        ("batch_id", "b1"),
        ("branch", "main"),
        ("status", "active"),
        ("claimed_at", "2026-01-01T00:00:00Z"),
        ("updated_at", "2026-01-01T00:00:00Z"),
        ("expires_at", "2026-01-01T04:00:00Z"),
        ("phase", "start"),
        ("generation", 3),
    ]
    assert (won.renewed, won.taken_over_from) == (False, None)


async def test_an_acquisition_within_a_batch_leaves_one_event(stage: Stage) -> None:
    await stage.claim("a1", batch_id="b1", metadata={"phase": "start"})
    assert await stage.events() == [
        {
            "schema_version": 1,
            "event_id": "20260101T000000.000000Z-00000001",
            "batch_id": "b1",
            "type": "claim.acquired",
            "agent_id": "a1",
            "repo": "o/r",
            "target": "7",
            "phase": "start",
            "at": "2026-01-01T00:00:00Z",
        }
    ]


async def test_without_a_batch_there_is_no_event(stage: Stage) -> None:
    await stage.claim("a1")
    assert list(await stage.records()) == [CLAIM]


async def test_an_event_that_cannot_be_recorded_costs_a_warning_and_not_the_claim(stage: Stage) -> None:
    context = stage.context(FaultyStore(stage.store, at=2, error=lambda path: StoreError(f"no room for {path}")))
    claimed(await claim(context, wanted(batch_id="b1")))
    assert context.notices == [
        "warning: claim.acquired event not recorded: no room for events/b1/20260101T000000.000000Z-00000001.json"
    ]
    assert (await stage.record(CLAIM))["status"] == "active"


async def test_a_batch_id_that_names_no_path_costs_the_event_only(stage: Stage) -> None:
    context = stage.context()
    claimed(await claim(context, wanted(batch_id="../b1")))
    assert context.notices == ["warning: claim.acquired event not recorded: invalid batch-id: ../b1"]


async def test_the_writer_is_named_as_the_environment_says(stage: Stage) -> None:
    identity = Identity(machine_id="m1", session_id="s1", session_source="codex_thread_id")
    await claim(stage.context(identity=identity), wanted(batch_id="b1"))
    for record in (await stage.records()).values():
        assert (record["machine_id"], record["session_id"], record["session_source"]) == ("m1", "s1", "codex_thread_id")


async def test_agent_ids_need_no_grammar_here(stage: Stage) -> None:
    assert claimed(await stage.claim("some one/else")).record["agent_id"] == "some one/else"


@pytest.mark.parametrize(
    ("asked", "fault"),
    [
        ({"ttl": 0}, "--ttl must be positive"),
        ({"ttl": -5}, "--ttl must be positive"),
        ({"repo": "o"}, "invalid target repo: o"),
        ({"repo": "o/r/s"}, "invalid target repo: o/r/s"),
        ({"repo": "o/"}, "invalid target repo: o/"),
        ({"repo": "ö/r"}, "invalid target repo: ö/r"),
        ({"repo": "o/r\n"}, "invalid target repo: o/r\n"),
        ({"target": ".7"}, "invalid target: .7"),
        ({"target": "7."}, "invalid target: 7."),
        ({"target": "a..b"}, "invalid target: a..b"),
        ({"target": "a/b"}, "invalid target: a/b"),
        ({"target": "\uff17"}, "invalid target: \uff17"),
        ({"target": "7\n"}, "invalid target: 7\n"),
    ],
)
async def test_what_no_record_could_carry_is_refused_before_anything_is_read(
    stage: Stage, asked: dict[str, Any], fault: str
) -> None:
    store = CountingStore(stage.store)
    with pytest.raises(UsageError) as caught:
        await claim(stage.context(store), wanted(**asked))
    assert str(caught.value) == fault
    assert store.reads == store.writes == []


@pytest.mark.parametrize("repo", [".", "..", "./r", "o/.", "../r", "o/.."])
async def test_dots_lead_nowhere(stage: Stage, repo: str) -> None:
    with pytest.raises(UsageError):
        await claim(stage.context(), wanted(repo=repo))
    assert await stage.records() == {}


# -- renewing


async def test_a_renewal_moves_the_times_and_keeps_the_rest(stage: Stage, clock: FakeClock) -> None:
    first = claimed(await stage.claim("a1", batch_id="b1", branch="main", metadata={"phase": "start", "host": "codex"}))
    clock.advance(minutes=5)
    again = claimed(await stage.claim("a1", metadata={"phase": "test"}))
    assert again.renewed
    assert again.fence == first.fence
    assert again.record == first.record | {
        "phase": "test",
        "updated_at": "2026-01-01T00:05:00Z",
        "expires_at": "2026-01-01T04:05:00Z",
    }
    assert len(await stage.events()) == 1


async def test_a_lapsed_lease_of_ones_own_is_renewed(stage: Stage, clock: FakeClock) -> None:
    await stage.claim("a1", ttl=1)
    clock.advance(hours=9)
    assert claimed(await stage.claim("a1")).record["claimed_at"] == "2026-01-01T00:00:00Z"


@pytest.mark.parametrize(
    ("metadata", "events"), [({"generation": 1}, 1), ({"generation": 2}, 2), ({"instance_id": "i"}, 2)]
)
async def test_another_generation_or_instance_is_worth_an_event(
    stage: Stage, metadata: dict[str, Any], events: int
) -> None:
    await stage.claim("a1", batch_id="b1", metadata={"generation": 1})
    again = claimed(await stage.claim("a1", metadata=metadata))
    assert again.renewed == (events == 1)  # what is worth an event is an acquisition with a fence of its own
    assert len(await stage.events()) == events


@pytest.mark.parametrize("moved", [{"batch_id": "b2"}, {"branch": "other"}])
async def test_other_work_of_the_same_agent_starts_afresh(stage: Stage, moved: dict[str, str]) -> None:
    first = claimed(await stage.claim("a1", batch_id="b1", branch="main", metadata={"phase": "start"}))
    again = claimed(await stage.claim("a1", **moved))
    assert not again.renewed
    assert again.fence != first.fence
    assert "phase" not in again.record
    assert {"batch_id", "branch"} & again.record.keys() == moved.keys()


async def test_naming_a_batch_for_the_first_time_is_no_change(stage: Stage) -> None:
    await stage.claim("a1")
    assert claimed(await stage.claim("a1", batch_id="b1", branch="main")).renewed
    assert await stage.events() == []


@pytest.mark.parametrize("age", [0, 1, 3600])
async def test_a_renewal_announces_nothing_even_where_the_acquisition_was_not_announced(
    stage: Stage, clock: FakeClock, age: int
) -> None:
    stage.lay(CLAIM, claimed(await stage.claim("a1")).record | {"batch_id": "b1"})
    clock.advance(seconds=age)
    assert claimed(await stage.claim("a1", batch_id="b1")).renewed
    assert await stage.events() == []


async def test_a_renewal_that_has_to_date_the_lease_anew_is_not_called_one(stage: Stage) -> None:
    record = claimed(await stage.claim("a1")).record
    stage.lay(CLAIM, {key: value for key, value in record.items() if key != "claimed_at"})
    assert not claimed(await stage.claim("a1")).renewed


async def test_two_acquisitions_within_a_second_have_two_fences(stage: Stage) -> None:
    first = claimed(await stage.claim("a1"))
    stage.lay(CLAIM, first.record | {"status": "released"})
    second = claimed(await stage.claim("a1"))
    assert first.fence != second.fence
    assert second.record["claimed_at"] == "2026-01-01T00:00:01Z"


# -- somebody else's lease


@pytest.mark.parametrize(
    ("seconds", "seen"),
    [(0, "live"), (59, "live"), (60, "stale"), (239, "stale"), (240, None), (9999, None)],
)
async def test_a_holder_is_safe_until_four_times_its_ttl_have_passed(
    stage: Stage, clock: FakeClock, seconds: int, seen: str | None
) -> None:
    await stage.claim("a1", ttl=1)  # the lease itself is over at once: it is the heartbeat that counts
    await stage.beat("a1", ttl=60)
    clock.advance(seconds=seconds)
    answer = await stage.claim("a2")
    if seen is None:
        assert claimed(answer).taken_over_from == "a1"
    else:
        assert refused(answer) == Refuse(holder="a1", seen=seen, expires_at="2026-01-01T00:00:01Z")  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize("beat", [None, [], "beating", {}, {"updated_at": "soon", "expires_at": "later"}])
@pytest.mark.parametrize(("seconds", "over"), [(99, False), (100, True), (101, True)])
async def test_without_a_usable_heartbeat_the_lease_decides(
    stage: Stage, clock: FakeClock, beat: object, seconds: int, over: bool
) -> None:
    await stage.claim("a1", ttl=100)
    if beat is not None:
        stage.lay("heartbeats/a1.json", beat)
    clock.advance(seconds=seconds)
    answer = await stage.claim("a2")
    if over:
        assert claimed(answer).taken_over_from == "a1"
    else:
        expected = "missing" if beat is None else "unknown" if isinstance(beat, dict) else "invalid"
        assert refused(answer).seen == expected
        assert refused(answer).expires_at == "2026-01-01T00:01:40Z"


async def test_a_heartbeat_that_is_no_json_counts_as_none(stage: Stage) -> None:
    await stage.claim("a1")
    stage.store.plant("heartbeats/a1.json", b"{")
    assert refused(await stage.claim("a2")).seen == "invalid"


@pytest.mark.parametrize("expires", ["whenever", 7, None])
async def test_a_lease_without_a_readable_end_protects_nobody(stage: Stage, expires: object) -> None:
    stage.lay(CLAIM, {"status": "active", "agent_id": "a1", "expires_at": expires})
    assert claimed(await stage.claim("a2")).taken_over_from == "a1"


async def test_a_heartbeat_that_cannot_be_learned_of_leaves_everything_unknown(stage: Stage, clock: FakeClock) -> None:
    await stage.claim("a1", ttl=1)
    clock.advance(hours=1)
    before = await stage.records()
    with pytest.raises(StoreError, match="did not answer"):
        await claim(stage.context(FaultyStore(stage.store, unreadable="heartbeats")), wanted("a2"))
    assert await stage.records() == before


async def test_a_holder_whose_name_is_no_path_is_not_looked_for(stage: Stage) -> None:
    stage.lay(CLAIM, {"status": "active", "agent_id": "../../etc", "expires_at": "2026-01-01T00:00:01Z"})
    store = CountingStore(stage.store)
    answer = await claim(stage.context(store), wanted("a2"))
    assert refused(answer).seen == "missing"
    assert store.reads == [CLAIM]


async def test_a_claim_that_names_nobody_is_held_until_it_ends(stage: Stage, clock: FakeClock) -> None:
    stage.lay(CLAIM, {"status": "active", "expires_at": "2026-01-01T00:00:01Z"})
    assert refused(await stage.claim("a2")).holder == ""
    clock.advance(seconds=1)
    assert claimed(await stage.claim("a2")).taken_over_from == ""


async def test_a_refusal_writes_nothing(stage: Stage) -> None:
    await stage.claim("a1", batch_id="b1")
    before = await stage.records()
    refused(await stage.claim("a2", batch_id="b1"))
    assert await stage.records() == before


async def test_after_a_release_nothing_of_the_old_claim_stays(stage: Stage) -> None:
    stage.lay(
        CLAIM,
        {"status": "released", "agent_id": "a1", "handoff_to": "a2", "handoff_note": "x", "phase": "p", "extra": 1},
    )
    record = claimed(await stage.claim("a2")).record
    assert not {"handoff_to", "handoff_note", "phase", "extra"} & record.keys()


# -- races and broken records


async def test_a_lost_race_to_create_says_so(stage: Stage) -> None:
    async def first() -> None:
        await stage.claim("a2")

    with pytest.raises(StoreError) as caught:
        await claim(stage.context(FaultyStore(stage.store, at=1, first=first)), wanted("a1"))
    assert str(caught.value) == f"claim write contention for o/r#7; state already exists at {CLAIM}"
    assert (await stage.record(CLAIM))["agent_id"] == "a2"


async def test_a_lost_race_to_change_says_so(stage: Stage, clock: FakeClock) -> None:
    await stage.claim("a1")

    async def first() -> None:
        clock.advance(seconds=1)
        await stage.claim("a1")

    with pytest.raises(StoreError) as caught:
        await claim(stage.context(FaultyStore(stage.store, at=1, first=first)), wanted("a1"))
    assert str(caught.value) == f"claim write contention for o/r#7; state changed at {CLAIM}"
    assert not isinstance(caught.value, Conflict)


@pytest.mark.parametrize("data", [b"", b"{", b"\xff", b"[" * 5000, b'{"a": 1} x', b"nul", b"[]", b'"x"', b"null", b"7"])
async def test_a_claim_that_is_no_object_is_left_as_it_is(stage: Stage, data: bytes) -> None:
    stage.store.plant(CLAIM, data)
    store = CountingStore(stage.store)
    with pytest.raises(Unreadable) as caught:
        await claim(stage.context(store), wanted())
    assert CLAIM in str(caught.value)
    assert "\n" not in str(caught.value)
    assert store.writes == []


@pytest.mark.parametrize("way", ["free", "dead", "changed"])
async def test_a_claim_that_is_run_again_makes_up_for_the_event_that_was_lost(
    stage: Stage, clock: FakeClock, way: str
) -> None:
    """The daemon was killed after the claim and before its event; the client says that it was acquired."""
    if way != "free":
        await stage.claim("a0" if way == "dead" else "a1", branch="old")
        await stage.beat("a0", ttl=1)
        clock.advance(seconds=60 if way == "dead" else 0)
    kept = len(await stage.events())
    lost = FaultyStore(stage.store, at=2, error=lambda path: StoreError("killed"))
    asked = wanted(batch_id="b1", branch="new")
    won = claimed(await claim(stage.context(lost), asked))
    assert len(await stage.events()) == kept
    stage.chance.drawn = 0
    for _ in range(2):
        again = claimed(await claim(replace(stage.context(), again=True), asked))
        assert (again.record, again.fence, again.renewed) == (won.record, won.fence, False)
        stage.chance.drawn = 0
        assert [event["type"] for event in await stage.events()][kept:] == ["claim.acquired"]


async def test_a_renewal_that_is_run_again_announces_nothing(stage: Stage, clock: FakeClock) -> None:
    await stage.claim("a1", batch_id="b1")
    clock.advance(seconds=1)
    await stage.claim("a1")
    assert claimed(await claim(replace(stage.context(), again=True), wanted())).renewed
    assert len(await stage.events()) == 1


async def test_a_claim_whose_answer_was_lost_is_ones_own_on_the_next_try(stage: Stage) -> None:
    lost = FaultyStore(stage.store, at=1, error=lambda path: StoreError("connection reset"), landed=True)
    with pytest.raises(StoreError):
        await claim(stage.context(lost), wanted())
    assert claimed(await stage.claim("a1")).renewed
