"""An envelope that is remembered counts beside others as it did when it was read."""

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentcoord.protocol.envelopes import Envelope, Identity, Scope, fold, identities, open_envelope, tally
from agentcoord.protocol.remembered import Hints, Remembered, is_hint, recall, remember, spell_hints
from tests.protocol.strategies import Json, records

FIELDS = ("record_family", "source_paths", "records", "archived_at", "delete_after", "synthetic")
WHEN = ("2026-02-01T00:00:00Z", "2026-02-01T01:00:00+01:00", "2026-02-02T00:00:00Z")


def event(event_id: str, **fields: Any) -> Json:
    return {"event_id": event_id, "batch_id": "b", "type": "note", **fields}


def compacted(*held: Any, **fields: Any) -> Json:
    paths = [f"events/b/{number}.json" for number in range(len(held) + 1)]
    times = {"archived_at": WHEN[0], "delete_after": "2026-03-01T00:00:00Z"}
    return {"record_family": "compacted_events", "source_paths": paths, "records": list(held), **times, **fields}


def opened(path: str, document: Json) -> Envelope:
    envelope = open_envelope(path, document)
    assert envelope is not None
    return envelope


def remembered(envelope: Envelope) -> Envelope:
    """Give an envelope as it comes out of the memory, or as it is where it has to be read again."""
    kept = remember(envelope)
    if kept is None:
        return envelope
    return recall(envelope.path, msgspec.json.decode(msgspec.json.encode(kept), type=Remembered))


held = st.builds(
    event,
    st.sampled_from(["e1", "e2", "e3"]),
    batch_id=st.sampled_from(["b", "b", "c"]),
    synthetic=st.sampled_from([False, False, True, "true"]),
    message=st.sampled_from("xy"),
)
paths = st.sampled_from(["events/b/e1.json", "events/b/e2.json", "events/b/e3.json", "events/c/e1.json", "x", "y"])
documents = st.builds(
    compacted,
    held,
    held,
    source_paths=st.lists(paths, min_size=2, max_size=5, unique=True),
    archived_at=st.sampled_from(WHEN),
    delete_after=st.sampled_from(WHEN),
    synthetic=st.sampled_from([False, False, True]),
) | records(FIELDS, compacted(event("e1"), event("e2", synthetic=True)))


@given(st.lists(st.tuples(documents, st.booleans()), max_size=5), st.sets(st.sampled_from(["e1", "e2"])), st.booleans())
def test_what_is_said_of_the_archive_is_the_same(
    given: list[tuple[Json, bool]], live: set[str], simulated: bool
) -> None:
    pairs = [(open_envelope(f"p{number}", document), again) for number, (document, again) in enumerate(given)]
    read = [envelope for envelope, _ in pairs if envelope is not None]
    mixed = [envelope if again else remembered(envelope) for envelope, again in pairs if envelope is not None]
    there: set[Identity] = {("b", event_id) for event_id in live}
    scope = Scope(None, simulated)
    wanted, found = fold(read, there, scope), fold(mixed, there, scope)
    assert identities(mixed) == identities(read)
    assert (found.warnings, found.archived) == (wanted.warnings, wanted.archived)
    assert tally(found, 1) == tally(wanted, 1)
    assert len(wanted.rows) == wanted.archived
    again = {envelope.path for envelope, other in zip(read, mixed, strict=True) if envelope is other}
    assert found.hidden == [each for each in wanted.hidden if each[0] in again]
    assert all(row in wanted.rows for row in found.rows)


@pytest.mark.parametrize(
    "document",
    [
        compacted(event("e1"), archived_at="once"),
        compacted(event("e1"), delete_after="never"),
        compacted(event("e1"), "e2"),
        compacted(event("e1"), event("")),
        compacted(source_paths=["x", "x"]),
    ],
)
def test_what_there_may_be_to_warn_of_is_not_remembered(document: Json) -> None:
    assert remember(opened("p", document)) is None


@given(st.sets(st.tuples(st.text(min_size=1), st.text(min_size=1)), min_size=1, max_size=20))
def test_hints_know_each_event_that_an_envelope_holds(named: set[tuple[str, str]]) -> None:
    one = remember(opened("p", compacted(*(event(name, batch_id=batch) for batch, name in named))))
    assert one is not None
    spelled = spell_hints([one, one])
    hints = Hints(spelled)
    assert is_hint(spelled)
    assert all(identity in hints for identity in named)


def test_hints_know_few_others() -> None:
    names = [f"e{number}" for number in range(1000)]
    one = remember(opened("p", compacted(*map(event, names))))
    assert one is not None
    hints = Hints(spell_hints([one]))
    assert not any(("other", name) in hints for name in names)
    assert b"content" not in hints
    assert None not in hints
    assert not is_hint(b"abc")
    assert not Hints()
