"""What is watched: changes that lead from what was known to what is, filters, and who is needed."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentcoord.cli.watched import SECTIONS, Filter, Known, Section, changes, needs
from tests.protocol.strategies import Json, readable, values, words

BEAT: Json = {"path": "heartbeats/a1.json", "agent_id": "a1", "liveness": "live", "target": "o/r#7", "machine_id": "m1"}
CLAIM: Json = {"path": "claims/o/r/7.json", "repo": "o/r", "target": "7", "status": "active", "agent_id": "a1"}
LANE: Json = {"name": "worker", "owner": "a1", "liveness": "live", "status": "in_progress", "blocked_on": []}
BATCH: Json = {"path": "batches/b1.json", "batch_id": "b1", "repo": "o/r", "lanes": [LANE]}
EVENT: Json = {
    "path": "events/b1/e.json",
    "batch_id": "b1",
    "repo": "o/r",
    "machine_id": "m2",
    "at": "2026-01-01T12:00:00Z",
}
ASKED: Json = {
    "workspace": "w",
    "repository": "o/r",
    "id": "a-1",
    "target": "7",
    "status": "open",
    "question": "Ship it?",
    "source": {"host_id": "m1"},
}


def known(**sections: list[Json]) -> Known:
    found = Known()
    found.take_status({name: rows for name, rows in sections.items() if name != "records"})
    found.take_attention({"records": sections.get("records", [])})
    return found


def rows_of(found: Known) -> dict[Section, list[Json]]:
    return {name: list(found.rows[name].values()) for name in SECTIONS}


WHOLE = known(claims=[CLAIM], heartbeats=[BEAT], batches=[BATCH], events=[EVENT], records=[ASKED])


def taken(wanted: Filter) -> set[Section]:
    holders = WHOLE.holders
    return {name for name in SECTIONS for row in WHOLE.rows[name].values() if wanted.takes(name, row, holders)}


EVERY: set[str] = set(SECTIONS)
NONE: set[str] = set()


@pytest.mark.parametrize(
    ("wanted", "sections"),
    [
        (Filter(), EVERY),
        (Filter(repo="o/r"), EVERY),
        (Filter(repo="o/"), NONE),
        (Filter(repo="O/", loose=frozenset({"repo"})), EVERY),
        (Filter(batch="b1"), {"lanes", "events"}),
        (Filter(machine="m1"), {"attention", "claims", "heartbeats", "lanes"}),
        (Filter(machine="m2"), {"events"}),
        (Filter(machine="m", loose=frozenset({"machine"})), EVERY),
        (Filter(machine="m", loose=frozenset({"repo"})), NONE),
        (Filter(repo="o/r", machine="m2"), {"events"}),
    ],
)
def test_a_filter_lets_through_what_is_wanted(wanted: Filter, sections: set[str]) -> None:
    assert taken(wanted) == sections


def test_the_machine_of_a_claim_is_its_own_before_its_holders() -> None:
    wanted, holders = Filter(machine="m1"), WHOLE.holders
    assert not wanted.takes("claims", CLAIM | {"machine_id": "m9"}, holders)
    assert not wanted.takes("claims", CLAIM | {"agent_id": "nobody"}, holders)


@pytest.mark.parametrize(
    ("claim", "beat", "why"),
    [
        ({}, {}, None),
        ({}, {"liveness": "dead"}, "dead"),
        ({}, {"liveness": "stale"}, "stale"),
        ({}, {"agent_id": "another"}, "unheard"),
        ({"status": "released"}, {"liveness": "dead"}, None),
        ({"status": "done"}, {"liveness": "dead"}, None),
        ({"terminal": "abandoned"}, {"liveness": "dead"}, None),
        ({"status": []}, {"liveness": "dead"}, "dead"),
    ],
)
def test_a_claim_needs_somebody_while_its_holder_is_missed(claim: Json, beat: Json, why: str | None) -> None:
    found = known(claims=[CLAIM | claim], heartbeats=[BEAT | beat])
    rows = rows_of(found)
    assert [need.why for need in needs(rows, found.holders)] == ([] if why is None else [why])


def test_nobody_is_unheard_of_where_not_all_may_be_heard() -> None:
    found = known(claims=[CLAIM])
    found.take_status({"claims": [CLAIM], "section_notes": {"heartbeats": "heartbeats filtered by scoped token"}})
    rows = rows_of(found)
    assert needs(rows, found.holders, all_heard=found.all_heard) == []
    assert found.missing["status"] == ["heartbeats: heartbeats filtered by scoped token"]


def test_what_is_asked_comes_first_and_what_is_over_needs_nobody() -> None:
    blocked = LANE | {"blocked_on": ["b1:other"]}
    found = known(
        claims=[CLAIM],
        heartbeats=[BEAT | {"liveness": "stale"}],
        batches=[BATCH | {"lanes": [blocked, blocked | {"terminal": "done"}]}],
        records=[ASKED, ASKED | {"id": "a-2", "status": "resolved"}],
    )
    rows = rows_of(found)
    assert [need.why for need in needs(rows, found.holders)] == ["attention", "blocked", "stale"]


def test_lanes_of_one_name_are_kept_apart() -> None:
    found = known(batches=[BATCH | {"lanes": [LANE, LANE | {"status": "done"}]}])
    assert [row["status"] for row in found.rows["lanes"].values()] == ["in_progress", "done"]


_paths = st.integers(0, 3).map(lambda number: f"claims/o/r/{number}.json")
_states = st.dictionaries(_paths, st.dictionaries(words, values, max_size=2), max_size=4)


@given(_states, _states)
def test_changes_lead_from_one_state_to_the_other(before: dict[str, Json], after: dict[str, Json]) -> None:
    old, new = (known(claims=[{**row, "path": path} for path, row in state.items()]) for state in (before, after))
    rows = dict(old.rows["claims"])
    for each in changes(old.rows, new.rows):
        path = each.row["path"]
        assert each.section == "claims"
        assert (path in rows) is (each.change != "added")
        if each.change == "removed":
            assert rows.pop(path) == each.row
        else:
            assert rows.get(path) != each.row
            rows[path] = each.row
    assert rows == new.rows["claims"]


@given(st.dictionaries(st.sampled_from(["claims", "heartbeats", "batches", "events", "section_notes"]), values), values)
def test_anything_may_be_read(status: Json, records: Any) -> None:
    found = Known()
    found.take_status(status)
    found.take_attention({"records": records})
    wanted = Filter(repo="o", batch="b", machine="m")
    rows = rows_of(found)
    needs(rows, found.holders)
    assert not any(wanted.takes(name, row, found.holders) for name in SECTIONS for row in rows[name])


@given(readable)
def test_a_typed_filter_takes_what_holds_it(typed: str) -> None:
    wanted = Filter(repo=typed or None, loose=frozenset({"repo"}))
    expected = typed.casefold() in "o/r"
    assert wanted.takes("claims", CLAIM, {}) is expected
