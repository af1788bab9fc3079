"""Whether a batch's trail is complete, and who its history admits."""

from collections.abc import Callable, Sequence
from datetime import timedelta
from functools import partial
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentcoord.protocol.audit import LaneAudit, admits, audit_batch, is_terminal_event, usable
from agentcoord.protocol.batches import UNKNOWN, lanes_of
from agentcoord.protocol.instants import stamp
from tests.protocol.strategies import NOW, Json, named, records, values

W: Json = {"name": "w", "owner": "a1", "targets": ["7"]}
V: Json = {"name": "v", "owner": "a2", "targets": ["8"]}
BATCH: Json = {"batch_id": "b1", "repo": "o/r", "lanes": [W, V]}


def at(seconds: float) -> str:
    return stamp(NOW + timedelta(seconds=seconds))


def fact(type_: str, when: float, **fields: Any) -> Json:
    """Make an ordinary lifecycle event as the everyday commands leave it; a field of `...` is left out."""
    event = {
        "schema_version": 1,
        "event_id": f"e{when}",
        "batch_id": "b1",
        "type": type_,
        "agent_id": "a1",
        "repo": "o/r",
        "target": "7",
        "at": at(when),
    }
    return {k: v for k, v in (event | fields).items() if v is not ...}


def acquired(when: float = 0, **fields: Any) -> Json:
    return fact("claim.acquired", when, **fields)


def released(when: float = 100, **fields: Any) -> Json:
    return fact("claim.released", when, **{"status": "released"} | fields)


def phased(when: float = 50, **fields: Any) -> Json:
    return fact("phase.changed", when, **{"phase": "test", "previous_phase": "start"} | fields)


def closing(when: float = 100, **fields: Any) -> Json:
    event = {
        "schema_version": 2,
        "event_id": "lane_closed-87eba76e7f316453",
        "lane": "w",
        "terminal": "done",
        "workspace": "default",
        "closed_by": {"agent_id": "a1", "machine": "m1"},
    }
    return fact("lane_closed", when, **event | fields)


def audited(events: Sequence[object], batch: Json = BATCH) -> LaneAudit:
    return audit_batch("b1", batch, events)[0]


def missing(events: Sequence[object], batch: Json = BATCH) -> list[str]:
    return list(audited(events, batch).missing)


# The short rule ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("events", "lacks"),
    [
        pytest.param([], ["claim.acquired", "terminal"], id="nothing"),
        pytest.param([acquired()], ["terminal"], id="acquired"),
        pytest.param([acquired(), released()], [], id="acquired and released"),
        pytest.param([acquired(), closing()], [], id="acquired and closed"),
        pytest.param([acquired(), released(), closing(200)], [], id="released, then closed"),
        pytest.param([acquired(), phased(), released()], [], id="with a phase"),
        pytest.param([acquired(), fact("note", 5, phase="x"), released()], [], id="with a breadcrumb"),
        pytest.param([released()], ["claim.acquired"], id="only released"),
        pytest.param([closing()], ["claim.acquired"], id="only closed"),
        pytest.param([released(), acquired(200)], [], id="the owner may act before it acquires"),
        pytest.param([acquired(), acquired(60), released(70), released(80)], [], id="more than once"),
        pytest.param(
            [acquired(), released(), None, 5, "x", [1], {"type": "claim.acquired"}],
            [],
            id="what is no event is ignored",
        ),
        pytest.param([acquired(agent_id="a9"), released(agent_id="a9")], [], id="by another agent"),
        pytest.param(
            [
                acquired(),
                acquired(10, agent_id="a9"),
                closing(closed_by={"agent_id": "a9", "machine": "m"}, agent_id="a9"),
            ],
            [],
            id="closed by a successor",
        ),
    ],
)
def test_a_lane_is_complete_when_it_was_acquired_and_ended(events: list[object], lacks: list[str]) -> None:
    assert missing(events) == lacks


def test_lanes_are_reported_in_their_order_with_what_they_are() -> None:
    batch = BATCH | {"lanes": [W, "x", V, {"id": "u"}]}
    assert audit_batch("b1", batch, [acquired(), released(), fact("note", 1)]) == [
        LaneAudit("w", "a1", ("7",), 3, (), malformed=False),
        LaneAudit(UNKNOWN, UNKNOWN, (), 0, ("claim.acquired", "terminal"), malformed=True),
        LaneAudit("v", "a2", ("8",), 0, ("claim.acquired", "terminal"), malformed=False),
        LaneAudit("u", UNKNOWN, (), 0, ("claim.acquired", "terminal"), malformed=False),
    ]


# Ordinary events -----------------------------------------------------------------------------------

BAD_WORDS: list[Any] = [None, "", " ", "UNKNOWN", "unknown", " Unknown ", 5, [], True, {}]


@pytest.mark.parametrize(
    "event",
    [
        *[pytest.param(acquired(schema_version=v), id=f"version {v!r}") for v in (2, 0, "1", True, None, ...)],
        *[pytest.param(acquired(agent_id=v, lane="w"), id=f"agent {v!r}") for v in [*BAD_WORDS, ...]],
        *[pytest.param(acquired(batch_id=v), id=f"batch {v!r}") for v in [*BAD_WORDS, ..., "b2", "B1"]],
        *[pytest.param(acquired(lane=v), id=f"lane {v!r}") for v in [*BAD_WORDS[1:], "v", "W"]],
        *[pytest.param(acquired(target=v, lane="w"), id=f"target {v!r}") for v in [*BAD_WORDS[1:], "8", "70"]],
        pytest.param(acquired(status="released"), id="acquired as released"),
        pytest.param(acquired(status=""), id="acquired with a blank status"),
        pytest.param(acquired(agent_id="a9", target=..., lane="w"), id="acquired by another without a target"),
        pytest.param(released(50, status="active"), id="released as active"),
        pytest.param(released(50, agent_id="a9"), id="released by a stranger"),
        pytest.param(phased(agent_id="a9"), id="a stranger's phase"),
        pytest.param(phased(status=" "), id="a phase with a blank status"),
        *[pytest.param(phased(phase=v), id=f"phase {v!r}") for v in [*BAD_WORDS, ...]],
        *[pytest.param(phased(previous_phase=v), id=f"previous phase {v!r}") for v in [*BAD_WORDS, ..., "test"]],
        pytest.param(phased(previous_phase=..., old_phase="a"), id="half of the historical pair"),
        pytest.param(phased(previous_phase=..., new_phase="test"), id="other half of the historical pair"),
        pytest.param(phased(previous_phase=..., old_phase="test", new_phase="test"), id="pair without a change"),
        pytest.param(phased(previous_phase=..., old_phase="a", new_phase="b"), id="pair beside the phase"),
        pytest.param(phased(old_phase="UNKNOWN", new_phase="test"), id="one form sound, the other not"),
    ],
)
def test_an_invalid_event_breaks_the_history(event: Json) -> None:
    assert missing([acquired(-10), event | {"event_id": "odd"}, released(200)]) == ["lifecycle"]


@pytest.mark.parametrize(
    "event",
    [
        pytest.param(acquired(5, status="active"), id="acquired as active"),
        pytest.param(acquired(5, status=...), id="acquired, no status"),
        pytest.param(acquired(5, lane="w"), id="lane named"),
        pytest.param(acquired(5, target="issue:7"), id="target by an alias"),
        pytest.param(acquired(5, target=..., lane="w"), id="no target, lane named"),
        pytest.param(acquired(5, target=...), id="no target, sole owner"),
        pytest.param(acquired(5, agent_id="a9", lane="w"), id="another agent, lane named"),
        pytest.param(released(5, status=...), id="released, no status"),
        pytest.param(phased(5, status="in_progress"), id="a phase with a status"),
        pytest.param(phased(5, previous_phase=..., old_phase="start", new_phase="test"), id="the historical pair"),
        pytest.param(phased(5, old_phase="start", new_phase="test"), id="both forms"),
        pytest.param(phased(5, old_phase="other", new_phase="test"), id="both forms, different pasts"),
    ],
)
def test_a_valid_event_leaves_a_history_sound(event: Json) -> None:
    assert missing([acquired(), event | {"event_id": "more"}, released()]) == []


@pytest.mark.parametrize("count", [2, 3])
def test_the_same_fact_under_other_names_does_no_harm(count: int) -> None:
    events = [
        event | {"event_id": f"{event['event_id']}-{n}"} for event in (acquired(), released()) for n in range(count)
    ]
    assert missing(events) == []


@pytest.mark.parametrize("repo", [*BAD_WORDS[1:], "o/r", None])
def test_a_repository_that_an_event_names_must_say_something_even_where_none_is_asked_for(repo: object) -> None:
    batch = BATCH | {"repo": None}
    lacks = [] if repo in ("o/r", None) else ["lifecycle"]
    assert missing([acquired(), phased(repo=repo), released()], batch) == lacks


# Order ---------------------------------------------------------------------------------------------

UNDATED: list[Any] = [
    "",
    "yesterday",
    "2026-02-30T12:00:00Z",
    "2026-01-01T12:00:00",
    "2026-01-01T12:00:61Z",
    None,
    5,
    ...,
]


@pytest.mark.parametrize("event", [acquired(5), released(5), phased(5)], ids=lambda event: event["type"])
@pytest.mark.parametrize(
    "damage",
    [
        *[pytest.param({"event_id": v}, id=f"id {v!r}") for v in [*BAD_WORDS, ...]],
        *[pytest.param({"at": v}, id=f"at {v!r}") for v in UNDATED],
        pytest.param({"at": at(0), "event_id": "e0"}, id="same instant and id"),
        pytest.param({"at": at(0).replace("Z", ".000+00:00"), "event_id": "e0"}, id="same instant spelled otherwise"),
    ],
)
def test_a_history_that_cannot_be_ordered_admits_nobody(event: Json, damage: Json) -> None:
    damaged = {k: v for k, v in (event | damage).items() if v is not ...}
    assert missing([acquired(), damaged, released()]) == ["terminal", "lifecycle"]
    assert missing([acquired(), damaged, closing()]) == ["terminal", "lifecycle"]


def test_events_at_one_instant_follow_their_ids() -> None:
    taken = acquired(5, agent_id="a9", event_id="m")
    assert missing([acquired(), taken, released(5, agent_id="a9", event_id="n")]) == []
    assert missing([acquired(), taken, released(5, agent_id="a9", event_id="l")]) == ["terminal", "lifecycle"]


def test_events_follow_their_instants_to_the_last_digit_and_in_any_offset() -> None:
    taken = acquired(agent_id="a9", at="2026-01-01T13:00:00.0000000000000000001+01:00", event_id="z")
    later = released(agent_id="a9", at="2026-01-01T12:00:00.0000000000000000002Z", event_id="a")
    earlier = released(agent_id="a9", at="2026-01-01T12:00:00.00000000000000000009Z", event_id="a")
    assert missing([later, taken]) == []
    assert missing([earlier, taken]) == ["terminal", "lifecycle"]


# Closing events ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "damage",
    [
        *[pytest.param({"schema_version": v}, id=f"version {v!r}") for v in (1, "2", None, ...)],
        *[pytest.param({"terminal": v}, id=f"terminal {v!r}") for v in ("merged", "Done", "", None, ..., 5)],
        *[pytest.param({"workspace": v}, id=f"workspace {v!r}") for v in [*BAD_WORDS, ...]],
        *[pytest.param({"target": v}, id=f"target {v!r}") for v in [*BAD_WORDS, ..., "8"]],
        *[pytest.param({"batch_id": v}, id=f"batch {v!r}") for v in [*BAD_WORDS, "b2"]],
        *[pytest.param({"branch": v}, id=f"branch {v!r}") for v in BAD_WORDS],
        *[pytest.param({"pr_state": v}, id=f"pr_state {v!r}") for v in BAD_WORDS],
        *[pytest.param({"host": v}, id=f"host {v!r}") for v in BAD_WORDS[1:]],
        *[pytest.param({"agent_id": v}, id=f"agent {v!r}") for v in [*BAD_WORDS[1:], "a2"]],
        *[pytest.param({"pr_url": v}, id=f"pr_url {v!r}") for v in ("x", "ftp://x.test", "https://", "", None, 5)],
        *[
            pytest.param({"evidence_url": v}, id=f"evidence {v!r}")
            for v in ("file:///x", "https://a b", "UNKNOWN", None)
        ],
        *[pytest.param({"closed_by": {"agent_id": "a1", "machine": v}}, id=f"machine {v!r}") for v in BAD_WORDS],
        *[
            pytest.param({"closed_by": {"agent_id": v, "machine": "m1"}, "agent_id": ...}, id=f"closer {v!r}")
            for v in BAD_WORDS
        ],
        pytest.param({"closed_by": {"agent_id": "a9", "machine": "m1"}, "agent_id": ...}, id="a stranger closes"),
        pytest.param(
            {"closed_by": {"agent_id": "a2", "machine": "m1"}, "agent_id": ...}, id="another lane's owner closes"
        ),
        pytest.param({"closed_by": {"agent_id": "a1"}}, id="closer without a machine"),
        pytest.param({"closed_by": {"machine": "m1"}, "agent_id": ...}, id="closer without an agent"),
        pytest.param({"closed_by": {"agent_id": "a1", "machine": "m1", "more": "x"}}, id="closer with more"),
        *[pytest.param({"closed_by": v}, id=f"closed_by {v!r}") for v in (None, ..., "a1", 5)],
    ],
)
def test_an_invalid_closing_event_ends_nothing(damage: Json) -> None:
    event = {k: v for k, v in (closing() | damage).items() if v is not ...}
    assert missing([acquired(), event]) == ["terminal"]
    assert missing([acquired(), released(90), event]) == ["terminal"]  # a release does not stand in for it


@pytest.mark.parametrize("when", UNDATED)
def test_a_closing_event_on_an_impossible_date_ends_nothing(when: object) -> None:
    event = {k: v for k, v in (closing() | {"at": when}).items() if v is not ...}
    assert missing([acquired(), event]) == ["terminal", "lifecycle"]


@pytest.mark.parametrize(
    "facts",
    [
        {"agent_id": ...},
        {"batch_id": ...},
        {"lane": ...},
        {"host": None},
        {
            "branch": "x",
            "host": "h",
            "pr_url": "http://x.test",
            "pr_state": "merged",
            "evidence_url": "https://x.test/1",
        },
        {"target": "PR:7"},
        {"terminal": "abandoned"},
        {"terminal": "superseded", "workspace": "ws"},
        {"at": "2026-01-01t13:00:00.5z"},
        {"custom": {"any": "thing"}},
    ],
    ids=repr,
)
def test_a_valid_closing_event_ends_the_lane(facts: Json) -> None:
    assert missing([acquired(), {k: v for k, v in (closing() | facts).items() if v is not ...}]) == []


@pytest.mark.parametrize(
    ("change", "lacks"),
    [
        ({}, []),
        ({"closed_by": {"agent_id": "a1", "machine": "m2"}}, []),
        ({"branch": "other", "host": "other"}, []),
        ({"terminal": "abandoned"}, ["terminal"]),
        ({"workspace": "other"}, ["terminal"]),
        ({"pr_state": "merged"}, ["terminal"]),
        ({"pr_url": "https://x.test/1"}, ["terminal"]),
        ({"evidence_url": "https://x.test/1"}, ["terminal"]),
        ({"closed_by": {"agent_id": "a9", "machine": "m1"}, "agent_id": "a9"}, ["terminal"]),
    ],
    ids=named,
)
def test_a_second_closing_event_must_say_the_same(change: Json, lacks: list[str]) -> None:
    successor = acquired(10, agent_id="a9")
    assert missing([acquired(), successor, closing(), closing(200, event_id="second", **change)]) == lacks


def test_a_closer_must_have_been_admitted_before() -> None:
    by_successor = closing(closed_by={"agent_id": "a9", "machine": "m1"}, agent_id="a9")
    assert missing([acquired(), acquired(10, agent_id="a9"), by_successor]) == []
    assert missing([acquired(), by_successor, acquired(200, agent_id="a9")]) == ["terminal"]


# Attribution ---------------------------------------------------------------------------------------


def counts(batch: Json, event: object) -> list[int]:
    return [lane.event_count for lane in audit_batch("b1", BATCH | batch, [event])]


SHARED_TARGET: Json = {"lanes": [W, V | {"targets": ["7", "8"]}]}
SHARED_ALIAS: Json = {"lanes": [W, V | {"targets": ["issue:7"]}]}
SHARED_OWNER: Json = {"lanes": [W, V | {"owner": "a1"}]}


@pytest.mark.parametrize(
    ("batch", "event", "attributed"),
    [
        pytest.param({}, {"lane": "v"}, [0, 1], id="a named lane"),
        pytest.param({}, {"lane": "w", "agent_id": "x", "target": "999"}, [1, 0], id="a named lane is always trusted"),
        pytest.param({}, {"lane": "nope"}, [0, 0], id="a lane nobody registered"),
        pytest.param({}, {"lane": 5}, [0, 0], id="a lane that is no name"),
        pytest.param({}, {"target": "7"}, [1, 0], id="a unique target"),
        pytest.param({}, {"target": "PR:8"}, [0, 1], id="an alias of a target"),
        pytest.param({}, {"target": "7", "agent_id": "a2"}, [1, 0], id="a target before an owner"),
        pytest.param({}, {"target": "7:qa"}, [0, 0], id="a lane within the item"),
        pytest.param({"lanes": [W | {"targets": ["Foo"]}]}, {"target": "foo"}, [0], id="another case"),
        pytest.param(
            {"lanes": [W | {"targets": ["Foo"]}]}, {"target": "ADHOC:Foo"}, [1], id="a decoration of any case"
        ),
        pytest.param({"lanes": [W | {"targets": [7]}]}, {"target": "7"}, [1], id="a number registered"),
        pytest.param(SHARED_TARGET, {"target": "7"}, [0, 0], id="an ambiguous target"),
        pytest.param(SHARED_ALIAS, {"target": "7"}, [0, 0], id="a target ambiguous by alias"),
        pytest.param(SHARED_TARGET, {"target": "7", "agent_id": "a1"}, [1, 0], id="an ambiguous target by its owner"),
        pytest.param(SHARED_TARGET, {"target": "8", "agent_id": "a1"}, [0, 1], id="the unique one of two targets"),
        pytest.param(
            {"lanes": [W | {"targets": ["7", "issue:7"]}, V]}, {"target": "7"}, [1, 0], id="twice in one lane is unique"
        ),
        pytest.param({}, {"agent_id": "a1"}, [1, 0], id="the owner, no target"),
        pytest.param({}, {"agent_id": "a1", "target": None}, [1, 0], id="the owner, null target"),
        pytest.param({}, {"agent_id": "a1", "target": "999"}, [0, 0], id="the owner elsewhere"),
        pytest.param({}, {"agent_id": "a9"}, [0, 0], id="a stranger"),
        pytest.param(SHARED_OWNER, {"agent_id": "a1"}, [0, 0], id="an ambiguous owner"),
        pytest.param(SHARED_OWNER, {"agent_id": "a1", "target": "8"}, [0, 1], id="an ambiguous owner, unique target"),
        pytest.param({"lanes": [{"name": "w"}, V]}, {}, [0, 0], id="an event that says nothing"),
        pytest.param({"lanes": [W | {"targets": [""]}, V]}, {"target": ""}, [0, 0], id="empty targets never match"),
        pytest.param({"lanes": [W | {"targets": [" "]}, V]}, {"target": "\t"}, [0, 0], id="nor do blank ones"),
        pytest.param({"lanes": ["x", V]}, {"lane": UNKNOWN}, [0, 0], id="a malformed lane has no events"),
    ],
)
def test_which_lane_an_event_belongs_to(batch: Json, event: Json, attributed: list[int]) -> None:
    assert counts(batch, event | {"type": "note", "repo": "o/r"}) == attributed


@pytest.mark.parametrize(
    ("declared", "said", "counted"),
    [
        ("o/r", "o/r", 1),
        ("o/r", "o/x", 0),
        ("o/r", "O/R", 0),
        ("o/r", None, 0),
        (None, "o/x", 1),
        (None, None, 1),
        ("", "o/x", 1),
    ],
)
def test_the_repository_is_asked_first(declared: str | None, said: str | None, counted: int) -> None:
    assert counts({"repo": declared}, {"type": "note", "lane": "w", "repo": said})[0] == counted


def test_an_acquisition_of_an_ambiguous_target_needs_the_lane_or_the_owner() -> None:
    batch = BATCH | SHARED_TARGET
    stranger = acquired(5, agent_id="a9", event_id="s")
    assert missing([acquired(), stranger, released(agent_id="a9")], batch) == ["terminal"]  # attributed to no lane
    assert missing([acquired(), stranger | {"lane": "w"}, released(agent_id="a9", lane="w")], batch) == []
    assert missing([acquired(), released()], batch) == []


@pytest.mark.parametrize("owner", [UNKNOWN, "unknown", "", None])
def test_a_lane_without_an_owner_admits_nobody(owner: str | None) -> None:
    batch = BATCH | {"lanes": [W | {"owner": owner}]}
    assert missing([acquired(agent_id="a9"), released(agent_id="a9")], batch) == ["terminal", "lifecycle"]


# Who may close what is not theirs ------------------------------------------------------------------


@pytest.mark.parametrize(
    ("events", "admitted"),
    [
        pytest.param([], False, id="no history"),
        pytest.param([acquired(agent_id="a9")], True, id="acquired"),
        pytest.param([acquired(), released(), acquired(200, agent_id="a9")], True, id="acquired after a handoff"),
        pytest.param([acquired(agent_id="a9"), released(agent_id="a9")], True, id="acquired once"),
        pytest.param([acquired(agent_id="a8")], False, id="another acquired"),
        pytest.param([acquired(agent_id="a9", target="issue:7")], False, id="acquired under an alias"),
        pytest.param([acquired(agent_id="a9", lane="w")], True, id="lane named"),
        pytest.param([acquired(agent_id="a9", target="issue:7", lane="w")], False, id="alias, lane named"),
        pytest.param([acquired(agent_id="a9"), phased(agent_id="a7")], False, id="a forged phase"),
        pytest.param([acquired(agent_id="a9", at="soon")], False, id="a history without order"),
        pytest.param([acquired(agent_id="a9", schema_version=2)], False, id="an invalid acquisition"),
        pytest.param([acquired(agent_id="a9"), closing()], True, id="closed before, validly"),
        pytest.param([acquired(agent_id="a9"), closing(terminal="x")], False, id="closed before, invalidly"),
        pytest.param(
            [acquired(agent_id="a9"), closing(), closing(200, event_id="x", terminal="abandoned")], False,
            id="closed in two ways",
        ),
    ],
)  # fmt: skip
def test_history_admits_who_acquired(events: list[object], admitted: bool) -> None:
    lane = lanes_of(BATCH)[0]
    assert admits("b1", BATCH, events, lane, "a9") is admitted


# One closing event by itself -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "valid"),
    [
        ({}, True),
        ({"agent_id": ..., "batch_id": ..., "lane": ...}, True),
        (
            {"workspace": "UNKNOWN", "closed_by": {"agent_id": "UNKNOWN", "machine": " "}},
            True,
        ),  # the audit asks for more
        ({"repo": "any thing/é"}, True),
        ({"repo": "o"}, False),
        ({"repo": "o/"}, False),
        ({"repo": "o/r/x"}, False),
        ({"repo": ...}, False),
        ({"schema_version": 1}, False),
        ({"schema_version": 2.0}, True),
        ({"schema_version": 2.5}, False),
        ({"schema_version": "2"}, False),
        ({"type": "claim.released"}, False),
        ({"terminal": "merged"}, False),
        ({"event_id": ""}, False),
        ({"event_id": 5}, False),
        ({"target": 7}, False),
        ({"workspace": ...}, False),
        ({"closed_by": {"agent_id": "a", "machine": ""}}, False),
        ({"closed_by": {"agent_id": "a", "machine": "m", "x": "y"}}, False),
        ({"at": "2026-02-30T00:00:00Z"}, False),
        ({"at": "2026-01-01t00:00:60z"}, True),
        ({"branch": ""}, False),
        ({"pr_state": None}, False),
        ({"lane": 5}, False),
        ({"pr_url": "https://x.test"}, True),
        ({"pr_url": "x"}, False),
        ({"evidence_url": None}, False),
    ],
    ids=named,
)
def test_a_version_two_closing_event(change: Json, valid: bool) -> None:
    assert is_terminal_event({k: v for k, v in (closing() | change).items() if v is not ...}) is valid


@given(values)
def test_usable_is_text_that_says_something(value: object) -> None:
    expected = isinstance(value, str) and value.strip() != "" and value.strip().lower() != "unknown"
    assert usable(value) == expected


# What holds of any history -------------------------------------------------------------------------

agents = st.sampled_from(["a1", "a2", "a9", "UNKNOWN"])


def noted(when: float, **fields: Any) -> Json:
    return fact("note", when, **fields)


kinds: st.SearchStrategy[Callable[..., Json]] = st.sampled_from([acquired, released, phased, closing, noted])
somewhere = st.fixed_dictionaries(
    {"agent_id": agents, "target": st.sampled_from(["7", "issue:7", "8", ...])},
    optional={
        "lane": st.sampled_from(["w", "v", ""]),
        "repo": st.sampled_from(["o/r", "o/x"]),
        "at": st.sampled_from([at(3), "soon"]),
        "event_id": st.sampled_from(["x", "UNKNOWN"]),
        "schema_version": st.sampled_from([1, 2]),
        "terminal": st.sampled_from(["done", "abandoned"]),
        "status": st.sampled_from(["active", "released"]),
    },
)


def lived(drawn: list[tuple[Callable[..., Json], int, Json]]) -> list[Json]:
    return [kind(when, **{"event_id": f"n{n}"} | where) for n, (kind, when, where) in enumerate(drawn)]


histories = st.lists(st.tuples(kinds, st.integers(0, 300), somewhere), max_size=8).map(lived)
batches = st.sampled_from(
    [BATCH, BATCH | SHARED_TARGET, BATCH | SHARED_OWNER, BATCH | {"repo": None}, BATCH | {"lanes": [W]}]
)


@given(batches, histories, st.randoms(use_true_random=False))
def test_the_order_in_which_events_are_read_does_not_matter(batch: Json, events: list[Json], chance: Any) -> None:
    shuffled = list(events)
    chance.shuffle(shuffled)
    assert audit_batch("b1", batch, shuffled) == audit_batch("b1", batch, events)


@given(batches, histories)
def test_complete_needs_an_acquisition_and_an_end_by_the_short_rule_too(batch: Json, events: list[Json]) -> None:
    for lane in audit_batch("b1", batch, events):
        if lane.complete:
            types = {event["type"] for event in events}
            assert "claim.acquired" in types
            assert types & {"claim.released", "lane_closed"}


@given(batches, histories, st.data())
def test_removing_an_event_never_supplies_what_was_not_there(
    batch: Json, events: list[Json], data: st.DataObject
) -> None:
    if not events:
        return
    gone = data.draw(st.integers(0, len(events) - 1))
    left = events[:gone] + events[gone + 1 :]
    for before, after in zip(audit_batch("b1", batch, events), audit_batch("b1", batch, left), strict=True):
        assert after.event_count <= before.event_count
        assert "claim.acquired" not in before.missing or "claim.acquired" in after.missing
        if events[gone]["type"] == "note":
            assert after.missing == before.missing  # a breadcrumb is no evidence
        if after.event_count == before.event_count:
            assert after == before  # nor is what happened elsewhere


SOUND: list[Callable[[float], Json]] = [
    acquired,
    partial(acquired, agent_id="a9"),
    partial(acquired, lane="w", target="pr:7"),
    phased,
    released,
    partial(released, status=...),
]


def in_turn(makers: list[Callable[[float], Json]]) -> list[Json]:
    return [maker(10 * (n + 1)) for n, maker in enumerate(makers)]


good = st.lists(st.sampled_from(SOUND), max_size=6).map(in_turn)
ANOMALIES = [
    acquired(33, schema_version=7),
    acquired(33, agent_id="a9", target=..., lane="w"),
    released(33, agent_id="a7"),
    phased(33, phase="UNKNOWN"),
    released(33, at="soon"),
    released(33, event_id="unknown"),
    closing(33, workspace=" "),
    closing(33, closed_by={"agent_id": "a1", "machine": "UNKNOWN"}),
]


@given(good)
def test_a_sound_history_of_the_owner_is_complete_by_the_short_rule_alone(events: list[Json]) -> None:
    types = [event["type"] for event in events]
    expected = [name for name in ("claim.acquired",) if name not in types]
    assert missing(events) == expected + ([] if "claim.released" in types else ["terminal"])


@given(good, st.lists(st.sampled_from(ANOMALIES), max_size=2, unique_by=repr))
def test_only_taking_the_anomaly_away_makes_a_lane_complete(events: list[Json], odd: list[Json]) -> None:
    marked = [
        event | {"event_id": event["event_id"] if event["event_id"] == "unknown" else f"odd{n}"}
        for n, event in enumerate(odd)
    ]
    everything = events + marked
    if audited(everything).complete:
        return
    for event in everything:
        if audited([other for other in everything if other is not event]).complete:
            assert event in marked


@given(good, st.sampled_from(ANOMALIES))
def test_no_anomaly_passes(events: list[Json], odd: Json) -> None:
    assert missing([acquired(1), *events, released(299), odd]) != []


@given(st.lists(st.sampled_from(["a1", "a9", "a8"]), min_size=1, max_size=4), st.booleans())
def test_custody_may_pass_through_any_hands_that_acquired(agents: list[str], for_good: bool) -> None:
    events = [
        event
        for n, agent in enumerate(agents)
        for event in (acquired(20 * n, agent_id=agent), released(20 * n + 10, agent_id=agent))
    ]
    if for_good:
        last = agents[-1]
        events[-1] = closing(500, agent_id=last, closed_by={"agent_id": last, "machine": "m1"})
    assert missing(events) == []
    stranger = released(600, agent_id="thief")
    assert "lifecycle" in missing([*events, stranger])
    assert "terminal" in missing([events[0], stranger])


@given(
    records([*BATCH, "lanes"]).map(lambda batch: batch | {"lanes": [batch.get("lanes"), W]}),
    st.lists(values, max_size=3),
)
def test_a_malformed_lane_is_never_complete(batch: Json, events: list[Any]) -> None:
    for lane in audit_batch("b1", batch, events):
        assert not (lane.malformed and lane.complete)
