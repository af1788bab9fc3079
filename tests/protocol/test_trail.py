"""Rows of a trail: what of a record is shown, and in which order."""

from datetime import datetime, timedelta

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentcoord.protocol.documents import canonical, encode
from agentcoord.protocol.instants import exact, stamp
from agentcoord.protocol.trail import (
    INVALID_TEXT,
    SHOWN,
    EventRecord,
    Item,
    Narrowing,
    Row,
    by_instant,
    event_of,
    identity_of,
    parse_since,
    read_event,
    row_of,
    scrubbed,
)
from tests.protocol.strategies import EVENT, NOW, Json, nearby, records, row, values, words


@pytest.mark.parametrize(
    ("fields", "shown"),
    [
        ({}, {"machine": "?", "host": "?", "phase": "?", "detail": "", "synthetic": False, "synthetic_kind": "?"}),
        ({"machine_id": " m1 "}, {"machine": "m1"}),
        ({"machine_id": " ", "closed_by": {"machine": "m2"}}, {"machine": "m2"}),
        ({"agent_id": None, "closed_by": {"agent_id": "w-9"}}, {"agent_id": "w-9"}),
        ({"host": "Codex-Desktop"}, {"host": "codex", "host_raw": "Codex-Desktop"}),
        ({"host": "claude-code"}, {"host": "claude"}),
        ({"host": "Gemini"}, {"host": "gemini"}),
        ({"repo": None}, {"work_item": "?#319"}),
        ({"target": " "}, {"work_item": "acme/widgets#?"}),
        ({"repo": None, "target": None}, {"work_item": "-"}),
        ({"target": 319}, {"work_item": "acme/widgets#319"}),
        ({"new_phase": "b", "terminal": "done", "status": "s"}, {"phase": "b"}),
        ({"phase": "", "terminal": "done", "status": "s"}, {"phase": "done"}),
        ({"status": "released"}, {"phase": "released"}),
        ({"synthetic": True, "synthetic_kind": "smoke"}, {"synthetic": True, "synthetic_kind": "smoke"}),
        ({"synthetic": "true"}, {"synthetic": False}),
    ],
)
def test_a_row_says_what_the_record_says(fields: Json, shown: Json) -> None:
    made = row(**fields)
    assert {field: getattr(made, field) for field in shown} == shown


@pytest.mark.parametrize(
    ("type_", "fields", "detail"),
    [
        ("phase.changed", {"previous_phase": "a", "phase": "b", "message": "m"}, "a -> b"),
        ("phase.changed", {"old_phase": "o", "previous_phase": "a", "new_phase": "b"}, "o -> b"),
        ("phase.changed", {"phase": "b", "message": "m"}, "m"),
        ("claim.released", {"handoff_to": "w-2", "handoff_note": "red", "message": "m"}, "-> w-2 red"),
        ("claim.released", {"handoff_to": "w-2"}, "-> w-2"),
        ("handoff", {"handoff_to": "w-2", "message": "m"}, "-> w-2 m"),
        ("handoff", {"message": "m"}, "m"),
        ("escalation_requested", {"to_route": "boss"}, "? -> boss"),
        ("error", {"severity": "P1", "category": "ci", "message": "hangs"}, "P1 ci hangs"),
        ("error", {"category": "ci"}, "ci"),
        ("help_requested", {"reason": "question", "message": "which"}, "question which"),
        ("human_intervention", {"kind": "drain"}, "drain"),
        ("anything", {"message": " a\n\tb ", "reason": "unseen"}, "a b"),
    ],
)
def test_the_detail_depends_on_the_type(type_: str, fields: Json, detail: str) -> None:
    assert row(type=type_, **fields).detail == detail


@given(records((*EventRecord.__struct_fields__, "x"), EVENT))
def test_any_record_is_a_row_of_thirteen_columns_on_one_line(record: Json) -> None:
    made = row_of(event_of(record))
    texts = [getattr(made, field) for field in SHOWN if field != "synthetic"]
    assert all(text or field == "detail" for field, text in zip(SHOWN, texts, strict=False))
    assert not any(ord(char) < 32 or 127 <= ord(char) < 160 for text in texts for char in text)


@given(records((*EventRecord.__struct_fields__, "content"), EVENT))
def test_a_live_record_is_read_as_an_archived_one(record: Json) -> None:
    read = read_event(encode(record))
    assert isinstance(read, EventRecord)
    assert row_of(read) == row_of(event_of(msgspec.json.decode(encode(record))))
    assert identity_of(read) == identity_of(event_of(msgspec.json.decode(encode(record))))


@pytest.mark.parametrize("field", ["batch_id", "event_id"])
@pytest.mark.parametrize("value", [None, "", 7])
def test_an_event_without_ids_is_known_by_all_it_says(field: str, value: object) -> None:
    record = EVENT | {field: value, "custom": [1]}
    assert identity_of(event_of(record)) == canonical(record)
    assert identity_of(event_of(EVENT | {"custom": 1})) == ("b-1", "e-1")


@pytest.mark.parametrize(
    "data",
    [b'{"a":"\xff"}', b'{"a\xc3":1}', b'{"custom":[{"x":"\xed\xa0\x80"}]}', b'{"event_id":"\xff"}'],
)
def test_text_that_is_not_utf8_is_told_from_what_is_no_json(data: bytes) -> None:
    assert read_event(data) is INVALID_TEXT
    with pytest.raises(ValueError, match="malformed|truncated|early|JSON"):
        read_event(data[:-1])


def test_what_is_no_object_is_no_event() -> None:
    assert read_event(b"[1]") == [1]
    assert read_event(b"null") is None


@pytest.mark.parametrize(
    ("text", "clean"),
    [
        ("a\t\r\nb", "a b"),
        ("a\x1b[31mc\x07\x7f\x9bd", "a[31mcd"),
        ("\x00 \x1b x \n", "x"),
        ("é\u2028→", "é\u2028→"),
        ("a\ud800b", "a\ufffd\ufffd\ufffdb"),
    ],
)
def test_texts_are_scrubbed(text: str, clean: str) -> None:
    assert scrubbed(text) == clean


@pytest.mark.parametrize(
    ("asked", "taken", "left"),
    [
        ("319", ["319", "issue:319", "PR:319", "319:qa", "issue:319:QA"], ["3190", "issue:3190", "adhoc:319"]),
        ("pr:319:qa", ["319:qa", "issue:319:QA"], ["319", "319:qa:x", "319:"]),
        ("foo", ["adhoc:Foo", "foo:qa"], ["issue:foo", "food"]),
    ],
)
def test_a_query_covers_spellings_and_lanes(asked: str, taken: list[str], left: list[str]) -> None:
    matches = Item("Acme/Widgets", asked).matcher()
    assert [target for target in taken + left if matches("acme/WIDGETS", target)] == taken
    assert not matches("acme/other", taken[0])
    assert not matches(None, taken[0])
    assert not matches("acme/widgets", None)


@pytest.mark.parametrize(
    ("value", "ago"),
    [
        ("25m", timedelta(minutes=25)),
        ("0025m", timedelta(minutes=25)),
        ("12h", timedelta(hours=12)),
        ("3d", timedelta(days=3)),
        ("1w", timedelta(days=7)),
        ("0m", timedelta()),
    ],
)
def test_a_window_reaches_back_from_now(value: str, ago: timedelta) -> None:
    assert parse_since(value, NOW) == exact(stamp(NOW - ago))


def test_a_window_longer_than_the_calendar_takes_everything() -> None:
    start = parse_since("9" * 10_000 + "w", NOW)
    assert start is not None
    assert Narrowing(since=start).takes(row(at="0001-01-01T00:00:00Z"))


@pytest.mark.parametrize("value", ["", "d", "3", "3y", "3.5d", "-3d", "+3d", "٣d", "2020-01-01", "2020-01-01T00:00:00"])
def test_anything_else_opens_no_window(value: str) -> None:
    assert parse_since(value, NOW) is None


@given(nearby, nearby, st.sampled_from(["", ".5", ".25", ".123456789012"]))
def test_a_row_is_in_the_window_from_its_very_start(at: datetime, since: datetime, fraction: str) -> None:
    start = parse_since(stamp(since), NOW)
    spelled = stamp(at).replace("Z", f"{fraction}+00:00")
    assert Narrowing(since=start).takes(row(at=spelled)) == (at >= since)


def test_an_undated_row_is_first_and_in_no_window() -> None:
    undated, old = row(at="last week"), row(at="0001-01-01T00:00:00Z")
    assert sorted([old, undated], key=by_instant) == [undated, old]
    assert not Narrowing(since=(-(10**15), "")).takes(undated)


def happened(at: object, event_id: object) -> Row:
    return row(at=at, event_id=event_id)


@given(st.lists(st.builds(happened, values | nearby.map(stamp), words)))
def test_rows_are_ordered_by_instant_and_then_by_id(rows: list[Row]) -> None:
    ordered = sorted(rows, key=by_instant)
    dated = [each for each in ordered if each.instant is not None]
    assert ordered[len(ordered) - len(dated) :] == dated
    keys = [(each.instant or (0, ""), each.event_id) for each in dated]
    assert keys == sorted(keys)


def test_filters_compare_whole_values_in_any_case() -> None:
    made = row(machine_id="M1", host="codex-desktop", type="Note")
    for narrowing in (Narrowing(machine="m1"), Narrowing(host="CODEX-x"), Narrowing(type="nOTE"), Narrowing(type="")):
        assert narrowing.takes(made)
    for narrowing in (Narrowing(machine="m"), Narrowing(host="claude"), Narrowing(type="not")):
        assert not narrowing.takes(made)
