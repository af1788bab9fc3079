"""Who may hold a lease, and what the record says then."""

from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentcoord.protocol.claims import (
    Acquire,
    HolderState,
    Refuse,
    Renew,
    TakeOver,
    Wanted,
    build_claim,
    build_release,
    decide_claim,
    fence,
    holder_of,
    holder_state,
    refusal,
)
from agentcoord.protocol.identity import NOBODY, Identity
from agentcoord.protocol.instants import parse, stamp
from agentcoord.protocol.records import CLAIM_RENEWED, HANDOFF, IDENTITY
from tests.protocol.strategies import NOW, Json, metadata, nearby, records

LATER = NOW + timedelta(seconds=600)
FULL: Json = {field: f"old {field}" for field in CLAIM_RENEWED} | {"generation": 3, "synthetic": True}
HELD: Json = {
    "schema_version": 1,
    "repo": "o/r",
    "target": "7",
    "agent_id": "a1",
    "status": "active",
    "claimed_at": stamp(NOW),
    "updated_at": stamp(NOW),
    "expires_at": stamp(NOW + timedelta(hours=4)),
}


def wanted(agent_id: str = "a1", **fields: Any) -> Wanted:
    return Wanted(repo="o/r", target="7", agent_id=agent_id, ttl=fields.pop("ttl", 60), **fields)


def granted(stored: Json | None, asked: Wanted, now: datetime, *, identity: Identity = NOBODY) -> Json:
    """Claim where it must be granted: an own, a free or a dead holder's lease."""
    decision = decide_claim(stored, "dead", asked, now)
    assert not isinstance(decision, Refuse)
    return build_claim(stored, decision, asked, identity, now)


def released(stored: Json, now: datetime, **fields: Any) -> Json:
    plain: Json = {"branch": None, "metadata": {}, "handoff_to": None, "handoff_note": None, "identity": NOBODY}
    return build_release(stored, by=str(stored.get("agent_id")), now=now, **plain | fields)


# Who gets it ---------------------------------------------------------------------------------------

RUNS, RAN_OUT = stamp(LATER), stamp(NOW)
UNHEARD: tuple[HolderState, ...] = ("missing", "invalid", "unknown")


@pytest.mark.parametrize(
    ("seen", "expires_at", "allowed"),
    [
        ("live", RUNS, False),
        ("live", RAN_OUT, False),
        ("live", None, False),
        ("stale", RUNS, False),
        ("stale", RAN_OUT, False),
        ("dead", RUNS, True),
        ("dead", RAN_OUT, True),
        *[(seen, RUNS, False) for seen in UNHEARD],
        *[(seen, RAN_OUT, True) for seen in UNHEARD],
        *[(seen, stamp(NOW + timedelta(seconds=1)), False) for seen in UNHEARD],
        *[(seen, "soon", True) for seen in UNHEARD],
        *[(seen, None, True) for seen in UNHEARD],
        *[(seen, 5, True) for seen in UNHEARD],
    ],
)
def test_a_holder_is_judged_by_the_heartbeat_and_else_by_the_lease(
    seen: HolderState, expires_at: object, allowed: bool
) -> None:
    claim = HELD | {"expires_at": expires_at}
    decision = decide_claim(claim, seen, wanted("a2"), NOW)
    said = None if expires_at is None else str(expires_at)
    assert decision == (TakeOver(holder="a1") if allowed else Refuse(holder="a1", seen=seen, expires_at=said))


@pytest.mark.parametrize(
    ("record", "holder"),
    [
        (None, None),
        ({}, None),
        (HELD, "a1"),
        (HELD | {"status": "released"}, None),
        (HELD | {"status": "Active"}, None),
        (HELD | {"status": None}, None),
        (HELD | {"agent_id": None}, ""),
        (HELD | {"agent_id": ""}, ""),
    ],
    ids=["no record", "empty", "active", "released", "misspelled", "no status", "no agent", "blank agent"],
)
def test_the_holder_is_the_agent_of_an_active_claim(record: Json | None, holder: str | None) -> None:
    assert holder_of(record) == holder
    if holder is None:
        assert decide_claim(record, "missing", wanted("a2"), NOW) == Acquire()


@pytest.mark.parametrize(
    ("beat", "seen"),
    [
        (None, "missing"),
        ([], "invalid"),
        ("x", "invalid"),
        (0, "invalid"),
        ({}, "unknown"),
        ({"updated_at": "x", "expires_at": RUNS}, "unknown"),
        ({"updated_at": RAN_OUT, "expires_at": RUNS}, "live"),
    ],
    ids=repr,
)
def test_a_heartbeat_says_how_its_agent_is(beat: object, seen: str) -> None:
    assert holder_state(beat, NOW) == seen


@given(records(["updated_at", "expires_at"]), nearby.map(stamp), nearby)
def test_only_the_dead_and_the_unheard_past_their_lease_are_robbed(beat: Json, expires_at: str, now: datetime) -> None:
    seen = holder_state(beat, now)
    decision = decide_claim(HELD | {"expires_at": expires_at}, seen, wanted("someone-else"), now)
    lease_ends = parse(expires_at)
    assert lease_ends is not None
    unheard = seen not in ("live", "stale", "dead")
    assert isinstance(decision, TakeOver) == (seen == "dead" or (unheard and now >= lease_ends))
    assert isinstance(decision, TakeOver | Refuse)


@given(records(HELD), st.sampled_from(["live", "stale", "dead", "missing", "invalid", "unknown"]), nearby)
def test_a_holder_is_never_refused_its_own(claim: Json, seen: HolderState, now: datetime) -> None:
    decision = decide_claim(claim | {"status": "active", "agent_id": "a1"}, seen, wanted("a1"), now)
    assert isinstance(decision, Renew | Acquire)


@pytest.mark.parametrize(
    ("stored", "asked", "decision"),
    [
        pytest.param({}, {}, Renew(stamp(NOW), routine=True), id="nothing stored, nothing asked"),
        pytest.param({"batch_id": "b1"}, {}, Renew(stamp(NOW), routine=True), id="omitting is no change"),
        pytest.param({"batch_id": "b1"}, {"batch_id": "b1"}, Renew(stamp(NOW), routine=True), id="the same batch"),
        pytest.param({}, {"batch_id": "b1"}, Renew(stamp(NOW), routine=True), id="a batch where none was"),
        pytest.param({"batch_id": "b1"}, {"batch_id": "b2"}, Acquire(), id="another batch"),
        pytest.param({"branch": "x"}, {"branch": "x"}, Renew(stamp(NOW), routine=True), id="the same branch"),
        pytest.param({}, {"branch": "x"}, Renew(stamp(NOW), routine=True), id="a branch where none was"),
        pytest.param({"branch": "x"}, {"branch": "y"}, Acquire(), id="another branch"),
        pytest.param(
            {"generation": 1}, {"metadata": {"generation": 1}}, Renew(stamp(NOW), routine=True), id="same generation"
        ),
        pytest.param(
            {"generation": 1}, {"metadata": {"generation": 2}}, Renew(stamp(NOW), routine=False), id="next generation"
        ),
        pytest.param(
            {}, {"metadata": {"generation": 1}}, Renew(stamp(NOW), routine=False), id="a generation where none was"
        ),
        pytest.param({"generation": 1}, {}, Renew(stamp(NOW), routine=True), id="generation omitted"),
        pytest.param(
            {"instance_id": "i"}, {"metadata": {"instance_id": "j"}}, Renew(stamp(NOW), routine=False), id="instance"
        ),
        pytest.param(
            {}, {"metadata": {"instance_id": "i"}}, Renew(stamp(NOW), routine=False), id="an instance where none was"
        ),
        pytest.param(
            {"phase": "a"}, {"metadata": {"phase": "b"}}, Renew(stamp(NOW), routine=True), id="a phase is no event here"
        ),
        pytest.param(
            {"expires_at": RAN_OUT}, {}, Renew(stamp(NOW), routine=True), id="a lapsed lease is still a renewal"
        ),
        pytest.param({"status": "released"}, {}, Acquire(), id="released"),
        pytest.param({"claimed_at": 5}, {}, Renew("", routine=True), id="a time that is none"),
    ],
)
def test_what_counts_as_a_renewal(stored: Json, asked: Json, decision: object) -> None:
    assert decide_claim(HELD | stored, "missing", wanted("a1", **asked), LATER) == decision


@pytest.mark.parametrize(
    ("refused", "line"),
    [
        (Refuse("a1", "live", RUNS), "heartbeat live"),
        (Refuse("a1", "stale", None), "heartbeat stale"),
        (Refuse("a1", "missing", RUNS), f"heartbeat missing; fallback claim expires at {RUNS}"),
        (Refuse("a1", "invalid", RUNS), f"heartbeat invalid; fallback claim expires at {RUNS}"),
        (Refuse("a1", "unknown", None), "heartbeat unknown; fallback claim expires at UNKNOWN"),
    ],
    ids=lambda value: value.seen if isinstance(value, Refuse) else "",
)
def test_the_line_other_programs_read(refused: Refuse, line: str) -> None:
    assert refusal(refused, "o/r", "7") == f"CLAIM_REFUSED: active claim for o/r#7 held by a1; {line}"


# What the record says ------------------------------------------------------------------------------


def test_a_new_claim_says_what_was_asked_in_order() -> None:
    asked = wanted(batch_id="b1", branch="x", metadata={"phase": "start", "generation": 2})
    record = granted(None, asked, NOW, identity=Identity("m1", "s1", "codex_thread_id"))
    assert list(record.items()) == [
        ("schema_version", 1),
        ("repo", "o/r"),
        ("target", "7"),
        ("agent_id", "a1"),
        ("batch_id", "b1"),
        ("branch", "x"),
        ("status", "active"),
        ("claimed_at", "2026-01-01T12:00:00Z"),
        ("updated_at", "2026-01-01T12:00:00Z"),
        ("expires_at", "2026-01-01T12:01:00Z"),
        ("phase", "start"),
        ("generation", 2),
        ("machine_id", "m1"),
        ("session_id", "s1"),
        ("session_source", "codex_thread_id"),
    ]


PRESERVED = [
    "batch_id",
    "branch",
    "thread_handle",
    "chat_handle",
    "host",
    "machine_id",
    "session_id",
    "session_source",
    "pr_url",
    "dashboard_url",
    "operator",
    "phase",
    "generation",
    "instance_id",
    "release_mode",
    "handoff_to",
    "handoff_note",
    "terminal",
    "pr_state",
    "evidence_url",
    "workspace",
    "closed_by",
    "synthetic",
    "synthetic_kind",
]
FORGOTTEN = ["released_by", "released_at", "custom", "status_raw", "message"]


@pytest.mark.parametrize("field", PRESERVED)
def test_a_renewal_keeps(field: str) -> None:
    record = granted(HELD | {field: FULL[field]}, wanted("a1"), LATER)
    assert record.get(field) == FULL[field]
    assert record["claimed_at"] == HELD["claimed_at"]
    assert (record["updated_at"], record["expires_at"]) == (stamp(LATER), stamp(LATER + timedelta(seconds=60)))


@pytest.mark.parametrize("field", FORGOTTEN)
def test_a_renewal_forgets(field: str) -> None:
    assert field not in granted(HELD | {field: "x"}, wanted("a1"), LATER)


@pytest.mark.parametrize("field", [*PRESERVED, *FORGOTTEN])
@pytest.mark.parametrize(
    ("stored", "asked"),
    [
        ({}, wanted("a2")),
        ({"status": "released"}, wanted("a1")),
        ({"status": "released"}, wanted("a2")),
        ({"batch_id": "b1"}, wanted("a1", batch_id="b2")),
        ({"branch": "x"}, wanted("a1", branch="y")),
    ],
    ids=["takeover", "own released claim", "released to another", "other batch", "other branch"],
)
def test_what_is_no_renewal_keeps_nothing(field: str, stored: Json, asked: Wanted) -> None:
    record = granted(HELD | {field: FULL.get(field, "x")} | stored, asked, LATER)
    assert record == granted(None, asked, LATER) | {"claimed_at": stamp(LATER)}


@given(metadata, metadata)
def test_what_is_given_overrides_what_is_kept(stored: Json, given_now: Json) -> None:
    record = granted(HELD | stored, wanted("a1", metadata=given_now), LATER)
    for field, value in (stored | given_now).items():
        assert record[field] == value


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        (NOBODY, ("m1", "s1")),
        (Identity(machine_id="m1"), ("m1", "s1")),
        (Identity(machine_id="m2"), ("m2", None)),
        (Identity(session_id="s2", session_source="codex_thread_id"), (None, "s2")),
    ],
    ids=["silent", "same machine", "other machine", "other session"],
)
def test_a_renewal_and_a_release_merge_who_writes(environment: Identity, expected: tuple[str | None, ...]) -> None:
    stored = HELD | {"machine_id": "m1", "session_id": "s1", "session_source": "agent_coord_session_id"}
    for record in (
        granted(stored, wanted("a1"), LATER, identity=environment),
        released(stored, LATER, identity=environment),
    ):
        assert (record.get("machine_id"), record.get("session_id")) == expected


def test_a_lease_that_would_outlast_the_calendar_ends_with_it() -> None:
    assert granted(None, wanted(ttl=10**15), NOW)["expires_at"] == "9999-12-31T23:59:59Z"


@given(records([*HELD, *CLAIM_RENEWED]), metadata, nearby)
def test_no_record_stores_a_null(stored: Json, options: Json, now: datetime) -> None:
    own = stored | {"status": "active", "agent_id": "a1"}
    assert None not in granted(own, wanted("a1", metadata=options), now).values()


# Giving it back ------------------------------------------------------------------------------------


def test_a_release_ends_the_stored_record_and_keeps_the_rest_of_it() -> None:
    stored = HELD | FULL | {"custom": [1, None]}
    record = released(stored, LATER)
    ended = stamp(LATER)
    changed = {
        "status": "released",
        "released_by": "a1",
        "released_at": ended,
        "updated_at": ended,
        "expires_at": ended,
    }
    assert record == {k: v for k, v in (stored | changed).items() if k not in HANDOFF}
    assert stored == HELD | FULL | {"custom": [1, None]}  # what was read is not touched


@pytest.mark.parametrize(
    ("options", "fields"),
    [
        ({}, {}),
        ({"handoff_to": "a2"}, {"release_mode": "handoff", "handoff_to": "a2"}),
        ({"handoff_note": "see PR"}, {"release_mode": "handoff", "handoff_note": "see PR"}),
        (
            {"handoff_to": "a2", "handoff_note": "n"},
            {"release_mode": "handoff", "handoff_to": "a2", "handoff_note": "n"},
        ),
    ],
    ids=["none", "to", "note", "both"],
)
def test_a_handoff_replaces_the_one_before(options: Json, fields: Json) -> None:
    before = {"release_mode": "handoff", "handoff_to": "old", "handoff_note": "old"}
    record = released(HELD | before, LATER, **options)
    assert {name: record[name] for name in HANDOFF if name in record} == fields


@given(records([*HELD, *CLAIM_RENEWED]), metadata, st.none() | st.just("x"))
def test_a_release_changes_only_what_it_says(stored: Json, options: Json, branch: str | None) -> None:
    record = released(stored, LATER, metadata=options, branch=branch)
    touched = {
        "status",
        "released_by",
        "released_at",
        "updated_at",
        "expires_at",
        "branch",
        *HANDOFF,
        *IDENTITY,
        *options,
    }
    assert {k: v for k, v in record.items() if k not in touched} == {
        k: v for k, v in stored.items() if k not in touched
    }
    assert options.items() <= record.items()
    assert record.get("branch") == (branch or stored.get("branch"))


# The fence -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("elapsed", [0, 0.25, 1, 3600])
def test_a_routine_renewal_keeps_the_fence_and_the_time_of_acquisition(elapsed: float) -> None:
    first = granted(None, wanted("a1", metadata={"generation": 1, "instance_id": "i"}), NOW)
    record = first
    for number in range(1, 5):
        record = granted(
            record, wanted("a1", metadata={"phase": f"p{number}"}), NOW + timedelta(seconds=elapsed * number)
        )
        assert (record["claimed_at"], fence(record)) == (first["claimed_at"], fence(first))


@given(st.lists(st.tuples(metadata, nearby), max_size=5))
def test_no_chain_of_routine_renewals_changes_the_fence(renewals: list[tuple[Json, datetime]]) -> None:
    first = record = granted(None, wanted("a1", metadata={"generation": 1}), NOW)
    for options, now in renewals:
        asked = wanted("a1", metadata={k: v for k, v in options.items() if k not in ("generation", "instance_id")})
        record = granted(record, asked, now)
        assert (record["claimed_at"], fence(record)) == (first["claimed_at"], fence(first))


def acquisitions(agents: str, now: datetime, *, release_between: bool) -> Iterator[Json]:
    """Let agents acquire one work item in turn, each from the dead holder before or after its release."""
    record: Json | None = None
    for agent in agents:
        if record is not None and release_between:
            record = released(record, now)
        record = granted(record, wanted(agent), now)
        yield record


@pytest.mark.parametrize("fraction", [0, 0.000001, 0.5, 0.999999])
@pytest.mark.parametrize("agents", ["aa", "ab", "aba", "abab", "abcabc", "a" * 60, "ab" * 300])
@pytest.mark.parametrize("release_between", [False, True], ids=["takeovers", "releases"])
def test_no_fence_repeats_within_a_second(agents: str, release_between: bool, fraction: float) -> None:
    now = NOW + timedelta(seconds=fraction)
    if not release_between:
        agents = "".join(agent for agent, before in zip(agents, "-" + agents, strict=False) if agent != before)
    records = list(acquisitions(agents, now, release_between=release_between))
    assert len({fence(record) for record in records}) == len(agents)
    assert [record["claimed_at"] for record in records] == [
        stamp(NOW + timedelta(seconds=number)) for number in range(len(agents))
    ]


def test_a_clock_set_back_repeats_no_fence() -> None:
    record, fences = granted(None, wanted("a"), NOW), list[str]()
    for second in (0, -1, -5, -30, -59):
        record = granted(released(record, NOW), wanted("a"), NOW + timedelta(seconds=second))
        fences.append(fence(record))
    assert len(set(fences)) == len(fences)


def test_an_instance_that_returns_after_a_release_has_another_fence() -> None:
    record: Json | None = None
    fences: list[str] = []
    for instance in ("i", "j", "i", "j"):
        record = granted(record and released(record, NOW), wanted("a", metadata={"instance_id": instance}), NOW)
        fences.append(fence(record))
    assert len(set(fences)) == 4


steps = st.lists(
    st.tuples(
        st.sampled_from(["claim", "claim", "release", "move"]), st.sampled_from("ab"), st.sampled_from([0, 0.3, 1, 2.5])
    ),
    max_size=40,
)


@given(steps)
def test_through_any_history_every_acquisition_has_a_fence_of_its_own(
    history: list[tuple[str, str, float]],
) -> None:
    now, record = NOW, granted(None, wanted("a"), NOW)
    seen = {fence(record)}
    for number, (step, agent, elapsed) in enumerate(history):
        now += timedelta(seconds=elapsed)
        before, active = fence(record), record["status"] == "active"
        if step == "release":
            record = released(record, now)
            assert (fence(record) != before) == active
        else:
            renewal = active and record["agent_id"] == agent and (step == "claim" or "branch" not in record)
            record = granted(record, wanted(agent, branch=f"x{number}" if step == "move" else None), now)
            assert (fence(record) == before) == renewal
            assert renewal or fence(record) not in seen
        seen.add(fence(record))


@pytest.mark.parametrize("change", [{"generation": 2}, {"instance_id": "j"}], ids=["generation", "instance"])
def test_another_generation_or_instance_of_an_agent_has_another_fence(change: Json) -> None:
    before = granted(None, wanted("a1", metadata={"generation": 1, "instance_id": "i"}), NOW)
    assert fence(granted(before, wanted("a1", metadata=change), LATER)) != fence(before)


def test_a_release_and_a_takeover_change_the_fence() -> None:
    held = granted(None, wanted("a1"), NOW)
    assert fence(released(held, NOW)) != fence(held)
    assert fence(granted(held, wanted("a2"), NOW)) != fence(held)


@pytest.mark.parametrize("ahead", [timedelta(days=1), timedelta(days=365 * 5000)], ids=["a day", "ages"])
def test_a_clock_far_ahead_is_not_followed(ahead: timedelta) -> None:
    stored = HELD | {"claimed_at": stamp(NOW + ahead), "updated_at": stamp(NOW + ahead)}
    record = granted(stored, wanted("a2"), NOW)
    assert record["claimed_at"] == stamp(NOW)
    assert fence(record) != fence(stored)
