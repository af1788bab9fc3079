"""Attention: what a record must say, in which order it is told, and whose word counts."""

import json
from collections.abc import Mapping
from datetime import datetime, timedelta
from fractions import Fraction
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentcoord.errors import CoordError, StoreError, UsageError
from agentcoord.protocol.attention import (
    INPUT_BYTES,
    LARGEST_GENERATION,
    PRIORITIES,
    Key,
    decide_resolve,
    decide_upsert,
    read_attention,
    require_attention,
    require_generation,
    require_key,
    require_stored,
    urgency,
)
from agentcoord.protocol.documents import decode, encode
from agentcoord.protocol.instants import exact, stamp
from tests.protocol.strategies import NOW, Json, nearby, values

SOURCE: Json = {
    "provider": "codex",
    "host_id": "m5",
    "task_id": "t-1",
    "last_seen_at": "2026-01-01T11:58:00Z",
    "capabilities": {"native_open": "available", "prompt_forwarding": "unknown"},
}
OPEN: Json = {
    "schema_version": 1,
    "workspace": "w",
    "id": "a-1",
    "repository": "o/r",
    "target": "7",
    "status": "open",
    "kind": "decision",
    "question": "Ship it?",
    "choices": ["yes", "no"],
    "priority_class": "unblocks-work",
    "priority_reason": "two lanes wait",
    "safe_resume": "rerun the checks",
    "source": SOURCE,
    "source_generation": 3,
    "created_at": "2026-01-01T11:00:00Z",
    "refreshed_at": "2026-01-01T11:50:00Z",
}
RESOLVED: Json = OPEN | {"status": "resolved", "resolved_at": "2026-01-01T11:55:00Z"}
PATH = "attention/w/o/r/a-1.json"
RANGE = "must be an integer between 0 and 9007199254740991"
CHOICES = "attention choices must contain 1 to 10 non-empty strings of at most 2000 characters"
INSTANT = "must be an RFC 3339 timestamp of at most 64 characters"


def without(record: Json, name: str) -> Json:
    return {key: value for key, value in record.items() if key != name}


def of(**fields: object) -> Json:
    return {"source": SOURCE | fields}


def fault_of(value: object, *, opening: bool = True) -> str | None:
    try:
        require_attention(value, opening=opening)
    except UsageError as error:
        return str(error)
    return None


FAULTS: list[tuple[Json, str]] = [
    ({"schema_version": 2}, "attention schema_version must be 1"),
    ({"schema_version": True}, "attention schema_version must be 1"),
    ({"schema_version": "1"}, "attention schema_version must be 1"),
    ({"workspace": 7}, "attention workspace must be a string"),
    ({"id": None}, "attention id must be a string"),
    ({"repository": []}, "attention repository must be a string"),
    ({"workspace": "w" * 161}, "attention workspace must be at most 160 characters"),
    ({"id": "i" * 161}, "attention id must be at most 160 characters"),
    ({"repository": "o/" + "r" * 159}, "attention repository must be at most 160 characters"),
    ({"workspace": ""}, "invalid attention workspace: "),
    ({"workspace": "a/b"}, "invalid attention workspace: a/b"),
    ({"id": ".."}, "invalid attention id: .."),
    ({"id": "a."}, "invalid attention id: a."),
    ({"id": "é"}, "invalid attention id: é"),
    ({"repository": "acme"}, "invalid attention repo: acme"),
    ({"repository": "acme/a/b"}, "invalid attention repo: acme/a/b"),
    ({"repository": "acme/.."}, "invalid attention repo: acme/.."),
    ({"repository": "acme/x..y"}, "invalid attention repo: acme/x..y"),
    ({"repository": "acme/."}, "invalid attention repo: acme/."),
    ({"repository": "./acme"}, "invalid attention repo: ./acme"),
    ({"target": ""}, "attention target must be a non-empty string of at most 2000 characters"),
    ({"target": 7}, "attention target must be a non-empty string of at most 2000 characters"),
    ({"target": "é" * 2001}, "attention target must be a non-empty string of at most 2000 characters"),
    ({"kind": "k" * 101}, "attention kind must be a non-empty string of at most 100 characters"),
    ({"question": "q" * 4001}, "attention question must be a non-empty string of at most 4000 characters"),
    ({"priority_reason": ""}, "attention priority_reason must be a non-empty string of at most 4000 characters"),
    ({"safe_resume": None}, "attention safe_resume must be a non-empty string of at most 4000 characters"),
    *(({"choices": value}, CHOICES) for value in ([], ["x"] * 11, [""], ["x" * 2001], [1], "yes", None)),
    ({"priority_class": "soon"}, f"attention priority_class must be {', '.join(PRIORITIES)}"),
    ({"priority_class": []}, f"attention priority_class must be {', '.join(PRIORITIES)}"),
    ({"status": "closed"}, "attention status must be open or resolved"),
    ({"status": {}}, "attention status must be open or resolved"),
    ({"status": "resolved"}, "attention-upsert requires status open"),
    *(
        ({"source_generation": value}, f"attention source_generation {RANGE}")
        for value in (-1, -1.0, 2**53, float(2**53), 1.5, 1e300, 10**30, "3", True, None)
    ),
    ({"source": "codex"}, "attention source must be a JSON object"),
    *(({"source": without(SOURCE, name)}, f"attention source missing {name}") for name in SOURCE),
    (of(prompt="x"), "attention source contains unknown field prompt"),
    (of(provider=""), "attention source provider must be non-empty"),
    (of(host_id=7), "attention source host_id must be non-empty"),
    (of(provider="p" * 101, task_id=""), "attention source task_id must be non-empty"),
    (of(provider="p" * 101), "attention source provider must be at most 100 characters"),
    (of(host_id="h" * 256), "attention source host_id must be at most 255 characters"),
    (of(task_id="t" * 256), "attention source task_id must be at most 255 characters"),
    (of(last_seen_at="today"), f"attention source last_seen_at {INSTANT}"),
    (of(last_seen_at=7), f"attention source last_seen_at {INSTANT}"),
    *(
        (of(open_uri=uri), "attention source open_uri must be an absolute URI")
        for uri in (
            "task/9",
            "//host/9",
            "",
            "codex:",
            "co dex:x",
            "x:a b",
            "x:%zz",
            "x:\n",
            "x:é",
            "x:" + "a" * 1999,
            7,
        )
    ),
    (of(capabilities=[]), "attention capabilities must contain only native_open and prompt_forwarding"),
    (
        of(capabilities={"native_open": "unknown"}),
        "attention capabilities must contain only native_open and prompt_forwarding",
    ),
    (
        of(capabilities={"native_open": "unknown", "prompt_forwarding": "unknown", "voice": "unknown"}),
        "attention capabilities must contain only native_open and prompt_forwarding",
    ),
    (
        of(capabilities={"native_open": "yes", "prompt_forwarding": "unknown"}),
        "attention native_open must be available, unavailable, or unknown",
    ),
    (
        of(capabilities={"native_open": "unknown", "prompt_forwarding": []}),
        "attention prompt_forwarding must be available, unavailable, or unknown",
    ),
    *(
        ({"created_at": at}, f"attention created_at {INSTANT}")
        for at in (
            "2026-01-01T00:00:60Z",
            "2026-01-01T00:00:00",
            "2026-02-30T00:00:00Z",
            f"2026-01-01T00:00:00.{'0' * 44}Z",
        )
    ),
    ({"refreshed_at": None}, f"attention refreshed_at {INSTANT}"),
    ({"resolved_at": None}, f"attention resolved_at {INSTANT}"),
    ({"refreshed_at": "2026-01-01T10:59:59.999999999999Z"}, "attention refreshed_at must not precede created_at"),
    ({"resolved_at": "2026-01-01T11:55:00Z"}, "open attention must not contain resolved_at"),
]


@pytest.mark.parametrize(("change", "fault"), FAULTS, ids=range(len(FAULTS)))
def test_a_fault_is_named(change: Json, fault: str) -> None:
    assert fault_of(OPEN | change) == fault


@pytest.mark.parametrize("name", OPEN)
def test_every_field_is_needed(name: str) -> None:
    assert fault_of(without(OPEN, name)) == f"attention record missing {name}"


def test_of_several_faults_the_first_in_the_order_of_checks_is_told() -> None:
    broken = OPEN | {"extra": 1}
    assert fault_of(broken) == "attention record contains unknown field extra"
    assert fault_of(without(broken, "target")) == "attention record missing target"
    assert fault_of(OPEN | {"workspace": 7, "id": "i" * 161}) == "attention workspace must be a string"
    assert fault_of(OPEN | {"workspace": "a/b", "id": "i" * 161}) == "attention id must be at most 160 characters"
    assert fault_of(OPEN | {"id": "..", "repository": "acme"}) == "invalid attention id: .."
    assert fault_of(OPEN | {"status": "resolved", "source": 1}) == "attention-upsert requires status open"


@pytest.mark.parametrize("value", [None, [], "text", 7])
def test_a_record_is_an_object(value: object) -> None:
    assert fault_of(value) == "attention record must be a JSON object"


@pytest.mark.parametrize(
    "change",
    [
        {"repository": "acme/.github"},
        {"repository": ".acme/r"},
        {"workspace": "w" * 160, "id": "a:b_c-d.e", "repository": "o/" + "r" * 158},
        {"target": "é" * 2000, "kind": "k" * 100, "question": "q" * 4000, "choices": ["c" * 2000] * 10},
        {"source_generation": 0},
        {"source_generation": LARGEST_GENERATION},
        {"source_generation": 3.0},
        of(open_uri="codex://task/9?x=1"),
        of(open_uri="urn:a:b#c%20d"),
        of(open_uri="x:" + "a" * 1998),
        {"created_at": "2026-01-01t12:00:00.5+02:00"},
        {"created_at": f"2026-01-01T00:00:00.{'0' * 43}Z"},
    ],
)
def test_what_the_bounds_admit(change: Json) -> None:
    assert fault_of(OPEN | change) is None


def test_a_resolved_record_says_when() -> None:
    assert fault_of(RESOLVED, opening=False) is None
    assert fault_of(without(RESOLVED, "resolved_at"), opening=False) == "resolved attention requires resolved_at"
    early = RESOLVED | {"resolved_at": "2026-01-01T10:59:59Z"}
    assert fault_of(early, opening=False) == "attention resolved_at must not precede created_at"


@pytest.mark.parametrize(
    ("data", "fault"),
    [
        (b"", "attention record JSON must not be empty"),
        (b" \n", "attention record JSON must not be empty"),
        (b'{"id": "\xff"}', "attention record JSON must be valid UTF-8"),
        (b"x" * (INPUT_BYTES + 1), "attention record exceeds 262144 bytes"),
        (b"{not json", "attention record JSON invalid: "),
        (b"[" * 100_000, "attention record JSON invalid: nested too deeply"),
        (b"[]", "attention record must be a JSON object"),
    ],
    ids=str,
)
def test_input_that_is_no_record(data: bytes, fault: str) -> None:
    with pytest.raises(UsageError) as refused:
        read_attention(data)
    assert str(refused.value).startswith(fault)


def test_input_is_kept_as_it_is_but_for_a_generation_written_as_a_fraction() -> None:
    padding = b" " * (INPUT_BYTES - len(json.dumps(OPEN)))
    read = read_attention(json.dumps(OPEN).encode() + padding)
    assert list(read.items()) == list(OPEN.items())
    assert encode(read_attention(json.dumps(OPEN | {"source_generation": 3.0}).encode())) == encode(OPEN)


def test_a_stored_record_is_checked_and_belongs_where_it_is() -> None:
    assert require_stored(PATH, RESOLVED) == RESOLVED
    with pytest.raises(StoreError, match=rf"^invalid stored attention record at {PATH}: attention record missing s"):
        require_stored(PATH, {})
    with pytest.raises(StoreError, match=f"^stored attention identity does not match path {PATH}$"):
        require_stored(PATH, OPEN | {"id": "a-9"})


def test_a_key_is_checked_as_far_as_it_is_given() -> None:
    assert Key("w", "o/r", "a-1").path == PATH
    require_key({"workspace": "w", "repository": "o/r"})
    with pytest.raises(UsageError, match=r"^invalid attention repo: \.\./x$"):
        require_key({"workspace": "w", "repository": "../x"})


@pytest.mark.parametrize("value", [-1, 2**53])
def test_a_generation_has_a_range(value: int) -> None:
    require_generation(0)
    require_generation(LARGEST_GENERATION)
    with pytest.raises(UsageError, match=f"^--source-generation {RANGE}$"):
        require_generation(value)


@given(st.dictionaries(st.sampled_from([*RESOLVED, "extra"]), values, max_size=3), values)
def test_any_value_is_told_to_be_a_record_or_not(changes: Json, other: Any) -> None:
    for value in (RESOLVED | changes, OPEN | {"source": SOURCE | changes}, other):
        fault = fault_of(value, opening=False)
        if fault is None:
            assert fault_of(decode(encode(value)), opening=False) is None


# Whose word counts -------------------------------------------------------------------------------


def refused(decide: Any) -> str:
    with pytest.raises(StoreError) as error:
        decide()
    return str(error.value)


def test_a_first_request_is_stored_as_it_is() -> None:
    assert decide_upsert(OPEN, None) is OPEN


def test_a_refresh_keeps_when_it_was_first_asked() -> None:
    wanted = OPEN | {"question": "Now?", "created_at": "2026-01-01T11:40:00Z"}
    for generation in (3, 4):
        decided = decide_upsert(wanted | {"source_generation": generation}, OPEN)
        assert decided == OPEN | {"question": "Now?", "source_generation": generation}
        assert list(decided) == list(wanted)


def test_an_older_source_is_not_heard() -> None:
    older = "source generation 2 is older than stored generation 3"
    stored = OPEN | {"source_generation": 3.0}
    assert refused(lambda: decide_upsert(OPEN | {"source_generation": 2}, stored)) == older
    assert refused(lambda: decide_resolve(stored, 2, NOW)) == older
    assert refused(lambda: decide_resolve(RESOLVED, 2, NOW)) == older


def test_what_is_settled_is_asked_again_by_a_newer_source_only() -> None:
    said = "reopening attention must advance beyond resolved generation 3"
    assert refused(lambda: decide_upsert(OPEN, RESOLVED)) == said
    reopened = OPEN | {"source_generation": 4}
    assert decide_upsert(reopened, RESOLVED) == reopened


def test_a_refresh_does_not_go_back_in_time() -> None:
    stored = OPEN | {"refreshed_at": "2026-01-01T11:50:00.00000000000001Z"}
    said = "attention refresh is older than the stored refresh at generation 3"
    assert refused(lambda: decide_upsert(OPEN, stored)) == said
    assert refused(lambda: decide_upsert(OPEN | {"source_generation": 4}, stored)) == said
    same = OPEN | {"refreshed_at": "2026-01-01T12:50:00.000000000000010+01:00"}
    assert decide_upsert(same, stored) == same


def test_resolving_stamps_the_record_and_keeps_the_rest() -> None:
    at = "2026-01-01T12:00:00Z"
    stamped = {"status": "resolved", "source_generation": 5, "refreshed_at": at, "resolved_at": at}
    assert decide_resolve(OPEN, 5, NOW) == OPEN | stamped


def test_a_fraction_of_a_second_is_kept_without_its_zeros() -> None:
    decided = decide_resolve(OPEN, 3, NOW + timedelta(microseconds=120_300))
    assert decided is not None
    assert decided["resolved_at"] == "2026-01-01T12:00:00.1203Z"


def test_what_is_settled_stays_as_it_is_or_goes_to_a_newer_generation() -> None:
    assert decide_resolve(RESOLVED, 3, NOW) is None
    moved = decide_resolve(RESOLVED, 8, NOW)
    assert moved == RESOLVED | {"source_generation": 8, "refreshed_at": "2026-01-01T12:00:00Z"}


@pytest.mark.parametrize("name", ["created_at", "refreshed_at", "resolved_at"])
def test_a_stored_moment_ahead_of_this_clock_keeps_its_spelling(name: str) -> None:
    ahead = "2126-01-01T00:00:00.1234567890123+01:00"
    stored = (RESOLVED if name == "resolved_at" else OPEN) | {name: ahead}
    decided = decide_resolve(stored, 4, NOW)
    assert decided is not None
    assert decided["refreshed_at"] == decided["resolved_at"] == ahead


@st.composite
def attention(draw: st.DrawFn) -> Json:
    """Sound records of one key, whose times are near each other and spelled in any way."""
    digits = st.text("0123456789", max_size=12).map(lambda text: f".{text}" if text else "")
    times = [
        stamp(at)[:-1] + draw(digits) + draw(st.sampled_from(["Z", "+00:00"])) for at in draw(st.tuples(*[nearby] * 3))
    ]
    created, refreshed, resolved = sorted(times, key=lambda at: cast("Any", exact(at)))
    record = OPEN | {
        "source_generation": draw(st.integers(0, 3) | st.sampled_from([0.0, 2.0])),
        "priority_class": draw(st.sampled_from(PRIORITIES)),
        "created_at": created,
        "refreshed_at": refreshed,
    }
    return record | {"status": "resolved", "resolved_at": resolved} if draw(st.booleans()) else record


def instant(record: Mapping[str, Any], name: str) -> Fraction:
    seconds, digits = cast("tuple[int, str]", exact(record[name]))
    return seconds + Fraction(int(digits or 0), 10 ** len(digits))


@given(st.lists(st.tuples(attention(), st.none() | st.integers(0, 4), nearby), max_size=6))
def test_whatever_is_asked_and_settled_the_record_stays_sound_and_time_and_generation_grow(
    steps: list[tuple[Json, int | None, datetime]],
) -> None:
    stored: Json | None = None
    for record, resolving, now in steps:
        try:
            if resolving is not None:
                decided = None if stored is None else decide_resolve(stored, resolving, now)
            else:
                wanted = without(record, "resolved_at") | {"status": "open"}
                decided = decide_upsert(require_attention(wanted, opening=True), stored)
        except CoordError:
            continue
        if decided is None:
            continue
        assert fault_of(decided, opening=False) is None
        if stored is not None:
            assert decided["source_generation"] >= stored["source_generation"]
            assert instant(decided, "refreshed_at") >= instant(stored, "refreshed_at")
            assert decided["created_at"] == stored["created_at"]
            if (stored["status"], decided["status"]) == ("resolved", "open"):
                assert decided["source_generation"] > stored["source_generation"]
        stored = decided


@given(st.lists(attention(), max_size=5))
def test_the_most_urgent_comes_first_then_the_longest_waiting(records: list[Json]) -> None:
    numbered = [record | {"id": f"a-{number}"} for number, record in enumerate(records)]
    # Ties are decided by the id alone, so the order they come in must not matter.
    expected = sorted(
        numbered, key=lambda one: (PRIORITIES.index(one["priority_class"]), instant(one, "created_at"), one["id"])
    )
    backwards = numbered[::-1]
    backwards.sort(key=urgency)
    assert backwards == expected
