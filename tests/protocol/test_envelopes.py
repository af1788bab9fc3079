"""What the archive adds to a trail, which copy of a record counts, and what is said of the rest."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentcoord.protocol.documents import encode
from agentcoord.protocol.envelopes import (
    Envelope,
    Folded,
    Scope,
    fold,
    identities,
    open_envelope,
    provenance,
    read_envelope_bytes,
    tally,
)
from agentcoord.protocol.trail import INVALID_TEXT, Item
from tests.protocol.strategies import Json, records

LATER = "2026-03-01T00:00:00Z"
FIELDS = ("record_family", "source_paths", "source_path", "records", "data", "archived_at", "delete_after", "synthetic")


def event(event_id: str, **fields: Any) -> Json:
    return {"event_id": event_id, "batch_id": "b-1", "repo": "o/r", "target": "7", "type": "note", **fields}


def compacted(*held: Any, sources: int | None = None, **fields: Any) -> Json:
    paths = [f"events/b-1/e-{number}.json" for number in range(len(held) if sources is None else sources)]
    return {
        "record_family": "compacted_events",
        "source_paths": paths,
        "records": list(held),
        "archived_at": "2026-02-01T00:00:00Z",
        "delete_after": LATER,
        **fields,
    }


def opened(path: str, document: Json) -> Envelope:
    envelope = open_envelope(path, document)
    assert envelope is not None
    return envelope


def folded(*documents: Json, live: set[Any] | None = None, scope: Scope | None = None) -> Folded:
    envelopes = [opened(f"p{number}", document) for number, document in enumerate(documents)]
    return fold(envelopes, live or set(), scope or Scope())


SEVEN = Scope(Item("o/r", "7").matcher())


@pytest.mark.parametrize(
    ("document", "defect"),
    [
        (compacted(event("e-1")), None),
        (compacted(event("e-1"), records={}), "malformed archived record body"),
        (compacted(event("e-1"), source_paths="x"), "malformed archived source paths"),
        (compacted(event("e-1"), source_paths=[" "]), "malformed archived source paths"),
        (compacted(event("e-1"), source_paths=["a", 1]), "malformed archived source paths"),
        (compacted(event("e-1"), source_paths=["a", "a"]), "duplicate archived source paths"),
        (compacted(sources=1), "no retained records for 1 source path"),
        (compacted(sources=2), "no retained records for 2 source paths"),
        (compacted(event("e-1"), event("e-2"), sources=1), "2 retained records exceed 1 source path"),
        (compacted(event("e-1"), 3, None), "2 unreadable archived records"),
        (compacted(3), "1 unreadable archived record"),
        ({"record_family": "archived_record", "source_path": "a", "data": event("e-1")}, None),
        ({"record_family": "archived_record", "source_path": "a", "data": 1}, "1 unreadable archived record"),
        ({"record_family": "archived_record", "source_path": "", "data": {}}, "malformed archived source path"),
    ],
)
def test_the_first_defect_of_an_envelope_is_named(document: Json, defect: str | None) -> None:
    assert opened("p", document).defect == defect


@pytest.mark.parametrize("document", [None, [], {}, {"record_family": "x"}, {"record_family": ["compacted_events"]}])
def test_an_unknown_family_is_no_envelope(document: object) -> None:
    assert open_envelope("p", document) is None


def test_legible_records_count_in_spite_of_a_defect() -> None:
    found = folded(compacted(event("e-1"), 3))
    assert [row.event_id for row in found.rows] == ["e-1"]
    assert found.warnings == ["warning: 1 unreadable archived record at p0; this trail may be incomplete"]


def test_the_live_copy_counts_and_then_the_newest() -> None:
    old = compacted(event("e-1", message="old"), event("e-2", message="archived"))
    new = compacted(event("e-1", message="new"), archived_at="2026-02-01T00:00:00.5Z")
    for documents in ((old, new), (new, old)):
        found = folded(*documents, live={("b-1", "e-2")})
        assert [(row.event_id, row.detail) for row in found.rows] == [("e-1", "new")]
        assert found.warnings == []


def test_copies_of_one_age_that_differ_are_told_of_once() -> None:
    one = compacted(event("e-1", message="a"), event("e-2", message="a"))
    two = compacted(event("e-1", message="b"), event("e-2", message="b"), archived_at="2026-02-01T01:00:00+01:00")
    said = "warning: ambiguous archive recency between p0 and p1; this trail may be incomplete"
    assert folded(one, two).warnings == [said]
    assert [row.detail for row in folded(one, two).rows] == ["b", "b"]
    assert folded(one, two, live={("b-1", "e-1"), ("b-1", "e-2")}).warnings == []
    assert folded(one, two, scope=Scope(Item("o/r", "8").matcher())).warnings == []
    assert folded(one, one).warnings == []
    undated = [document | {"archived_at": None} for document in (one, two)]
    assert not any("ambiguous" in warning for warning in folded(*undated).warnings)


def test_a_record_without_ids_is_a_copy_only_of_its_like() -> None:
    found = folded(compacted(event("")), compacted(event("")), compacted(event("", message="other")))
    assert len(found.rows) == 2


@pytest.mark.parametrize(
    ("documents", "scope", "warned"),
    [
        ([compacted(event("e-1"), archived_at="now")], Scope(), True),
        ([compacted(event("e-1"), archived_at="now")], SEVEN, True),
        ([compacted(event("e-1", target="8"), archived_at="now")], SEVEN, False),
        ([compacted(event("e-1", target="8"), archived_at="now"), compacted(event("e-1"))], SEVEN, True),
        ([compacted(event("e-1", synthetic=True), archived_at="now")], SEVEN, False),
        ([compacted(event("e-1", synthetic=True), archived_at="now")], Scope(SEVEN.matches, True), True),
    ],
)
def test_an_unknown_age_matters_where_a_copy_of_the_trail_is_concerned(
    documents: list[Json], scope: Scope, warned: bool
) -> None:
    warning = "warning: unreadable archive recency at p0; this trail may be incomplete"
    assert folded(*documents, scope=scope).warnings == ([warning] if warned else [])


def test_an_unknown_expiry_is_told_of() -> None:
    warning = "warning: unreadable archive expiry at p0; this trail may be incomplete"
    assert folded(compacted(event("e-1"), delete_after="2026-03-01"), scope=SEVEN).warnings == [warning]


MIRROR = "mirror it with log --sync"
UNTIL = f"archive deleted after {LATER}"
NOTES: list[tuple[Folded, int, int, list[str]]] = [
    (folded(), 3, 0, []),
    (folded(compacted(event("e-1", target="8")), scope=SEVEN), 3, 0, []),
    (folded(compacted(event("e-1", synthetic=True)), scope=SEVEN), 3, 0, []),
    (folded(compacted(event("e-1", synthetic=True))), 3, 0, []),
    (
        folded(compacted(event("e-1"), event("e-2"), sources=4), live={("b-1", "e-2")}),
        2,
        1,
        [
            "note: 1 of 3 events read from the archive",
            "1 more held there too",
            "2 source events were dropped by compaction",
            UNTIL,
        ],
    ),
    (
        folded(compacted(event("e-1"), sources=2), live={("b-1", "e-1")}),
        4,
        1,
        ["note: 1 of 4 events are also held in the archive", "1 source event was dropped by compaction", UNTIL],
    ),
    (
        folded(compacted(sources=2, delete_after="?")),
        0,
        0,
        [
            "note: the archive holds a compacted record for this trail",
            "compaction loss unknown for 1 unreadable envelope",
        ],
    ),
    (
        folded(compacted(event("e-1")), compacted(event("e-2"), delete_after="2026-03-01T00:30:00+01:00"), scope=SEVEN),
        0,
        0,
        ["note: 2 of 2 events read from the archive", "archive deleted after 2026-03-01T00:30:00+01:00"],
    ),
]


@pytest.mark.parametrize(("found", "live", "held", "clauses"), NOTES)
def test_the_note_says_what_rests_on_the_archive(found: Folded, live: int, held: int, clauses: list[str]) -> None:
    told = provenance(tally(found, held), live, syncing=False)
    assert told == ("; ".join([*clauses, MIRROR]) if clauses else None)
    told = provenance(tally(found, held), live, syncing=True)
    assert told == ("; ".join(clauses) if clauses else None)


def test_text_that_is_not_utf8_is_told_from_what_is_no_json() -> None:
    assert read_envelope_bytes(b'{"x":"\xff"}') is INVALID_TEXT
    assert read_envelope_bytes('{"x":"é"}'.encode()) == {"x": "é"}
    for data in (b'{"x":"\xff"', b"{", b""):
        with pytest.raises(ValueError, match=r"\w"):
            read_envelope_bytes(data)


@given(st.lists(records(FIELDS, compacted(event("e-1"), event("e-2", synthetic=True), 3)), max_size=4), st.booleans())
def test_no_envelope_breaks_a_trail_and_no_record_is_shown_twice(documents: list[Json], synthetic: bool) -> None:
    envelopes = [open_envelope(f"p{number}", document) for number, document in enumerate(documents)]
    known = [envelope for envelope in envelopes if envelope is not None]
    found = fold(known, set(), Scope(None, synthetic))
    assert len(found.rows) <= len(identities(known))
    assert fold(known, identities(known), Scope(None, synthetic)).rows == []
    assert len([warning for warning in found.warnings if " at p" in warning]) <= len(known)
    encode(provenance(tally(found, 0), 0, syncing=False))
