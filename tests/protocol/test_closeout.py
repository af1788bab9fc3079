"""Closing a lane: which one, by what right, and when two closeouts say the same."""

from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentcoord.errors import UsageError
from agentcoord.protocol.batches import lane_of, lanes_of
from agentcoord.protocol.closeout import (
    Closing,
    all_closed,
    apply_closing,
    build_closing_event,
    close_lane,
    closed_by,
    closing_event_id,
    closing_of,
    contradiction,
    is_http_url,
    require_payload,
    require_terminal,
    resolve_lane,
    stranger,
)
from agentcoord.protocol.identity import NOBODY, Identity
from agentcoord.protocol.instants import stamp
from tests.protocol.strategies import NOW, Json, named, records

LATER = NOW + timedelta(hours=1)
CLOSER = {"agent_id": "a1", "machine": "m1"}
FACTS = ("terminal", "workspace", "closed_by", "pr_url", "pr_state", "evidence_url")
W: Json = {"name": "w", "owner": "a1", "targets": ["7"]}
V: Json = {"name": "v", "owner": "a2", "targets": ["8", "issue:9"]}
BATCH: Json = {"batch_id": "b1", "repo": "o/r", "lanes": [W, V]}
PAYLOAD: Json = {"agent_id": "a1", "repo": "o/r", "target": "7", "terminal": "done"}


def fault(check: Any, *args: object) -> str | None:
    try:
        check(*args)
    except UsageError as error:
        return str(error)
    return None


def event(**fields: Any) -> Json:
    payload = PAYLOAD | fields
    lane = resolve_lane(BATCH, "b1", payload)
    return build_closing_event(payload, lane, "b1", Identity(machine_id="m1"), NOW)


def closed(batch: Json, closing: Json, *, name: str = "w", at: Any = LATER) -> Json | None:
    (lane,) = [own for own in lanes_of(batch) if own.name == name]
    return close_lane(batch, lane, closing, at)


# Names and facts -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("lane", "name"),
    [
        ("ac-a-i51", "lane_closed-0f5a0caebfed6139"),
        ("worker", "lane_closed-87eba76e7f316453"),
        ("qa", "lane_closed-3f3ef786b34d6dd7"),
    ],
)
def test_a_lane_has_one_closing_event(lane: str, name: str) -> None:
    assert closing_event_id(lane) == name


URLS = [
    ("https://x.test", True),
    ("http://x", True),
    ("HTTPS://X.test/", True),
    ("https://x.test:8443/a?b#c", True),
    ("https://x.test?a", True),
    ("https://user:pw@x.test/", True),
    ("https://127.0.0.1/a:b@c", True),
    ("http://[::1]:80/", True),
    ("https://éxample.test/é", True),
    ("https://", False),
    ("https:///a", False),
    ("https://:443/a", False),
    ("https://user@/a", False),
    ("https://user@:80", False),
    ("https://?q", False),
    ("https://#f", False),
    ("https:x.test", False),
    ("x.test", False),
    ("//x.test", False),
    ("ftp://x.test", False),
    ("javascript://x.test", False),
    ("http\u017f://x.test", False),  # a long s: no ASCII letter, though case folding makes it one
    (" https://x.test", False),
    ("https://x.test ", False),
    ("https://x.test\n", False),
    ("https://x y.test", False),
    ("https://x.test/a b", False),
    ("https://x.test/\u00a0", False),
    ("x y", False),
    ("", False),
    (None, False),
    (5, False),
]


@pytest.mark.parametrize(("value", "valid"), URLS)
def test_a_url_has_a_scheme_a_host_and_no_white_space(value: object, valid: bool) -> None:
    assert is_http_url(value) is valid


@pytest.mark.parametrize(
    ("state", "text"),
    [
        ("done", None),
        ("abandoned", None),
        ("superseded", None),
        ("merged", "--terminal must be one of: done, abandoned, superseded"),
        ("Done", "--terminal must be one of: done, abandoned, superseded"),
        ("", "--terminal must be one of: done, abandoned, superseded"),
        (None, "--terminal must be one of: done, abandoned, superseded"),
    ],
)
def test_the_states_a_lane_ends_in(state: str | None, text: str | None) -> None:
    assert fault(require_terminal, state) == text


@pytest.mark.parametrize(
    ("facts", "text"),
    [
        ({}, None),
        ({"workspace": "w", "host": "h", "branch": "b", "pr_state": "merged", "pr_url": "https://x.test/1"}, None),
        ({"repo": "o"}, "invalid terminal closeout repo: o"),
        ({"repo": 5}, "invalid terminal closeout repo: 5"),
        ({"workspace": ""}, "--workspace must not be empty for terminal closeout"),
        ({"workspace": " "}, "--workspace must not be empty for terminal closeout"),
        ({"host": ""}, "--host must not be empty for terminal closeout"),
        ({"branch": ""}, "--branch must not be empty for terminal closeout"),
        ({"pr_state": "\t"}, "--pr-state must not be empty for terminal closeout"),
        ({"pr_url": ""}, "--pr-url must be an HTTP(S) URL with a host"),
        ({"pr_url": "x y"}, "--pr-url must be an HTTP(S) URL with a host"),
        ({"evidence_url": "https://"}, "--evidence-url must be an HTTP(S) URL with a host"),
        ({"evidence_url": 5}, "--evidence-url must be an HTTP(S) URL with a host"),
        ({"pr_url": None, "workspace": None, "lane": None}, None),
        ({"lane": ""}, "--lane must not be empty"),
        ({"lane": "a:b"}, "event lane a:b cannot contain ':'"),
    ],
    ids=repr,
)
def test_what_a_closeout_would_publish_is_checked(facts: Json, text: str | None) -> None:
    assert fault(require_payload, PAYLOAD | facts) == text


@pytest.mark.parametrize(
    ("identity", "host", "machine"),
    [
        (Identity(machine_id="m1"), "h", "m1"),
        (NOBODY, "h", "h"),
        (NOBODY, None, "UNKNOWN"),
        (NOBODY, "", "UNKNOWN"),
        (Identity(session_id="s", session_source="x"), None, "UNKNOWN"),
    ],
)
def test_the_machine_is_the_environments_else_the_host(identity: Identity, host: str | None, machine: str) -> None:
    assert closed_by("a1", host, identity) == {"agent_id": "a1", "machine": machine}


# Which lane ----------------------------------------------------------------------------------------

ILL_SPELLED = "terminal closeout target does not match exact registered spelling for lane "
NONE_OR_MANY = "terminal closeout does not match exactly one lane in batch b1"
ANOTHER_REPO = "terminal closeout repo does not match batch b1"


@pytest.mark.parametrize(
    ("batch", "payload", "found"),
    [
        pytest.param({}, {}, "w", id="by target"),
        pytest.param({}, {"target": "issue:9"}, "v", id="by one of several targets"),
        pytest.param({}, {"lane": "v", "target": "8"}, "v", id="by name"),
        pytest.param({"repo": None}, {"repo": "any/repo"}, "w", id="a batch without a repository"),
        pytest.param({"repo": ""}, {"repo": "any/repo"}, "w", id="a batch with a blank repository"),
        pytest.param({"lanes": [None, "x", W]}, {}, "w", id="malformed lanes are passed over"),
        pytest.param({"lanes": [{"id": "w", "agent_id": "a1", "target": 7}]}, {}, "w", id="legacy fields"),
        pytest.param({}, {"repo": "o/x"}, ANOTHER_REPO, id="another repository"),
        pytest.param({}, {"repo": "O/r"}, ANOTHER_REPO, id="another case"),
        pytest.param({}, {"target": "70"}, NONE_OR_MANY, id="no lane"),
        pytest.param({"lanes": []}, {}, NONE_OR_MANY, id="no lanes"),
        pytest.param({"lanes": [W, W | {"name": "x"}]}, {}, NONE_OR_MANY, id="two lanes of one target"),
        pytest.param({"lanes": [W, W | {"name": "x"}]}, {"lane": "x"}, "x", id="two lanes of one target, named"),
        pytest.param({"lanes": [W, W]}, {"lane": "w"}, NONE_OR_MANY, id="two lanes of one name"),
        pytest.param({}, {"lane": "nope"}, NONE_OR_MANY, id="no such name"),
        pytest.param({}, {"target": "pr:7"}, f"{ILL_SPELLED}w; registered: 7", id="an alias"),
        pytest.param({}, {"target": "9"}, f"{ILL_SPELLED}v; registered: 8, issue:9", id="an alias the other way"),
        pytest.param({}, {"lane": "v", "target": "7"}, f"{ILL_SPELLED}v; registered: 8, issue:9", id="other target"),
        pytest.param({"lanes": [W | {"targets": ["adhoc:Foo"]}]}, {"target": "foo"}, NONE_OR_MANY, id="case is kept"),
        pytest.param(
            {"lanes": [W | {"targets": ["adhoc:Foo"]}]}, {"target": "Foo"}, f"{ILL_SPELLED}w; registered: adhoc:Foo",
            id="an ad hoc alias",
        ),
        pytest.param(
            {"lanes": [W | {"targets": ["7"]}, V | {"targets": ["pr:7"]}]}, {"target": "pr:7"}, NONE_OR_MANY,
            id="two spellings of one item",
        ),
        pytest.param({"lanes": [W | {"targets": ["7:qa"]}]}, {"target": "7"}, NONE_OR_MANY, id="a lane of the item"),
    ],
)  # fmt: skip
def test_a_closeout_means_exactly_one_lane(batch: Json, payload: Json, found: str) -> None:
    try:
        lane = resolve_lane(BATCH | batch, "b1", PAYLOAD | payload)
    except UsageError as error:
        assert str(error) == found  # noqa: PT017 - either way the answer is one text
    else:
        assert lane.name == found


def test_what_is_said_to_a_stranger_and_of_a_contradiction() -> None:
    lane = lane_of(W)
    assert str(stranger(lane)) == "terminal closeout agent does not match lane w"
    assert str(contradiction(lane)) == "conflicting terminal closeout for lane w; first closeout is authoritative"


# The event -----------------------------------------------------------------------------------------


def test_the_event_publishes_what_may_be_published_in_order() -> None:
    payload = PAYLOAD | {
        "status": "released",
        "batch_id": "x",
        "phase": "p",
        "operator": "o",
        "generation": 1,
        "lane": "x",
    }
    record = build_closing_event(payload, lane_of(W), "b1", NOBODY, NOW)
    assert list(record.items()) == [
        ("schema_version", 2),
        ("event_id", closing_event_id("w")),
        ("batch_id", "b1"),
        ("type", "lane_closed"),
        ("lane", "w"),
        ("agent_id", "a1"),
        ("repo", "o/r"),
        ("target", "7"),
        ("terminal", "done"),
        ("workspace", "default"),
        ("closed_by", {"agent_id": "a1", "machine": "UNKNOWN"}),
        ("at", "2026-01-01T12:00:00Z"),
    ]


def test_the_event_publishes_every_fact_that_was_given() -> None:
    facts = {
        "branch": "x",
        "host": "h",
        "pr_url": "https://x.test/1",
        "pr_state": "merged",
        "evidence_url": "https://x.test/2",
        "workspace": "ws",
        "synthetic": True,
        "synthetic_kind": "smoke",
    }
    identity = Identity("m1", "s1", "codex_thread_id")
    record = build_closing_event(PAYLOAD | facts, lane_of(W), "b1", identity, NOW)
    assert (facts | identity.fields() | {"closed_by": CLOSER}).items() <= record.items()


# When two say the same -----------------------------------------------------------------------------

SAID: Json = {
    "terminal": "done",
    "workspace": "default",
    "closed_by": CLOSER,
    "pr_url": "https://x.test/1",
    "pr_state": "merged",
    "evidence_url": "https://x.test/2",
}


@pytest.mark.parametrize(
    ("change", "same", "same_with_machine"),
    [
        ({}, True, True),
        ({"workspace": None}, True, True),
        ({"workspace": ""}, True, True),
        ({"at": "whenever", "status": "x", "agent_id": "someone", "host": "elsewhere"}, True, True),
        ({"closed_by": {"agent_id": "a1", "machine": "m2"}}, True, False),
        ({"closed_by": None, "agent_id": "a1", "host": "m1"}, True, True),
        ({"closed_by": None, "agent_id": "a1"}, True, False),  # without a host the machine is UNKNOWN
        ({"closed_by": None, "agent_id": "a1", "machine_id": "m1"}, True, False),
        ({"closed_by": {"agent_id": "a1", "machine": "UNKNOWN"}}, True, False),
        ({"closed_by": {"agent_id": "a2", "machine": "m1"}}, False, False),
        ({"closed_by": None, "agent_id": "a2", "host": "m1"}, False, False),
        ({"terminal": "abandoned"}, False, False),
        ({"workspace": "other"}, False, False),
        ({"pr_url": None}, False, False),
        ({"pr_url": "https://x.test/3"}, False, False),
        ({"pr_state": "closed"}, False, False),
        ({"evidence_url": None}, False, False),
    ],
    ids=named,
)
def test_two_closeouts_are_compared_by_what_they_publish(change: Json, same: bool, same_with_machine: bool) -> None:
    one, other = closing_of(SAID), closing_of(SAID | change)
    assert one.agrees(other, machine_counts=False) == other.agrees(one, machine_counts=False) == same
    assert one.agrees(other, machine_counts=True) == other.agrees(one, machine_counts=True) == same_with_machine


def test_who_closed_is_made_up_from_agent_and_host_alone() -> None:
    older = {"agent_id": "a1", "machine_id": "m1", "closed_by": None}
    assert (closing_of(older).agent_id, closing_of(older).machine) == ("a1", "UNKNOWN")
    assert closing_of(older | {"host": "h"}).machine == "h"


closings = records([*FACTS, "agent_id", "host"]).map(closing_of)


@given(closings, closings, st.booleans())
def test_saying_the_same_is_mutual(one: Closing, other: Closing, machine_counts: bool) -> None:
    assert one.agrees(one, machine_counts=machine_counts)
    assert one.agrees(other, machine_counts=machine_counts) == other.agrees(one, machine_counts=machine_counts)
    assert not one.agrees(other, machine_counts=True) or one.agrees(other, machine_counts=False)


@given(records(["status", *FACTS, "custom"]), records(FACTS))
def test_a_released_claim_takes_the_facts_of_the_event_alone(released: Json, authoritative: Json) -> None:
    record = apply_closing(released, authoritative)
    for field in FACTS:
        assert record.get(field) == authoritative.get(field)
        assert field not in record or record[field] is not None
    assert {k: v for k, v in record.items() if k not in FACTS} == {k: v for k, v in released.items() if k not in FACTS}
    assert apply_closing(record, authoritative) == record


# The batch -----------------------------------------------------------------------------------------


def test_a_closed_lane_is_stamped_in_order_and_the_others_are_left() -> None:
    batch = BATCH | {"registered_at": "r", "updated_at": "u"}
    record = closed(batch, event(pr_url="https://x.test/1", pr_state="merged", evidence_url="https://x.test/2"))
    assert record is not None
    assert list(record["lanes"][0].items()) == [
        *W.items(),
        ("status", "done"),
        ("terminal", "done"),
        ("closed_at", stamp(NOW)),
        ("closed_by", CLOSER),
        ("workspace", "default"),
        ("pr_url", "https://x.test/1"),
        ("pr_state", "merged"),
        ("evidence_url", "https://x.test/2"),
    ]
    assert record["lanes"][1] == V
    assert {k: v for k, v in record.items() if k != "lanes"} == {
        "batch_id": "b1", "repo": "o/r", "registered_at": "r", "updated_at": stamp(LATER)
    }  # fmt: skip
    assert BATCH["lanes"] == [W, V]  # what was read is not touched


def test_the_last_lane_completes_the_batch() -> None:
    first = closed(BATCH, event())
    assert first is not None
    assert "status" not in first
    second = closed(first, event(agent_id="a2", target="8", terminal="superseded"), name="v")
    assert second is not None
    assert (second["status"], second["completed_at"]) == ("completed", stamp(LATER))


@pytest.mark.parametrize(
    ("other", "completes"),
    [
        (V | {"terminal": "done"}, True),
        (V | {"terminal": "abandoned"}, True),
        (V | {"terminal": "superseded"}, True),
        (V | {"terminal": "merged"}, False),
        (V | {"status": "done"}, False),
        (V, False),
        (None, False),
        ("v", False),
    ],
    ids=repr,
)
def test_a_batch_is_complete_when_every_lane_is_closed_for_good(other: object, completes: bool) -> None:
    record = closed(BATCH | {"lanes": [W, other]}, event())
    assert record is not None
    assert (record.get("status") == "completed") == completes == all_closed(record["lanes"])
    assert ("completed_at" in record) == completes


def test_the_time_of_completion_stays() -> None:
    record = closed(BATCH | {"lanes": [W], "completed_at": "before"}, event())
    assert record is not None
    assert record["completed_at"] == "before"


@pytest.mark.parametrize("field", ["closed_at", "closed_by", "workspace"])
def test_what_a_lane_says_of_its_end_already_stays(field: str) -> None:
    record = closed(BATCH | {"lanes": [W | {field: "own"}, V]}, event())
    assert record is not None
    assert record["lanes"][0][field] == "own"


@pytest.mark.parametrize(
    ("lane", "facts", "fields"),
    [
        ({}, {}, {}),
        ({}, {"pr_state": "merged", "workspace": "ws"}, {}),
        ({"pr_url": "https://x.test/1"}, {"pr_url": "https://x.test/1"}, {}),
        ({"pr_url": "https://x.test/1"}, {"pr_url": "https://x.test/9"}, {}),
        ({"pr_url": "https://x.test/1"}, {}, {}),  # a manifest may name the pull request from the start
        ({"status": "blocked", "phase": "p"}, {}, {}),
        ({}, {"host": "h"}, {"closed_by": None}),  # an event as an older producer may have left it
        ({}, {}, {"closed_by": None, "workspace": None, "at": None}),
        ({}, {}, {"closed_by": "a1"}),
    ],
    ids=repr,
)
def test_closing_again_the_same_way_changes_nothing(lane: Json, facts: Json, fields: Json) -> None:
    closing = {k: v for k, v in (event(**facts) | fields).items() if v is not None}
    once = closed(BATCH | {"lanes": [W | lane, V]}, closing)
    assert once is not None
    assert closed(once, closing) is None
    assert None not in once["lanes"][0].values()


@pytest.mark.parametrize(
    "facts",
    [
        {"terminal": "abandoned"},
        {"pr_state": "merged"},
        {"evidence_url": "https://x.test/2"},
        {"pr_url": "https://x.test/1"},
        {"workspace": "other"},
        {"agent_id": "a2"},
    ],
    ids=repr,
)
def test_closing_again_in_another_way_is_refused(facts: Json) -> None:
    once = closed(BATCH, event())
    assert once is not None
    with pytest.raises(
        UsageError, match=r"^conflicting terminal closeout for lane w; first closeout is authoritative$"
    ):
        closed(once, event(**facts))


def test_closing_again_from_another_machine_is_the_same() -> None:
    once = closed(BATCH, event())
    assert once is not None
    assert closed(once, event() | {"closed_by": {"agent_id": "a1", "machine": "m2"}}) is None
