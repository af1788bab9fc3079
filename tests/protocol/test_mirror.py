"""The mirror only grows, keeps every line it had, and is in the order of what happened."""

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from agentcoord.protocol.instants import stamp
from agentcoord.protocol.mirror import insert, line_of, merge
from agentcoord.protocol.trail import by_instant, event_of, row_of
from tests.protocol.strategies import nearby, values, words


def event(at: object, event_id: object, message: object) -> Any:
    return row_of(event_of({"event_id": event_id, "at": at, "message": message}))


rows = st.lists(st.builds(event, values | nearby.map(stamp), words, values), max_size=8)
foreign = st.text(st.characters(exclude_characters="\n", exclude_categories=[]), max_size=12)


def lines(text: str) -> list[str]:
    return [line for line in text.split("\n") if line]


def test_a_line_has_thirteen_fields() -> None:
    made = event("2026-01-01T00:00:00Z", "e-1", "a\tb")
    assert line_of(made) == "2026-01-01T00:00:00Z\t?\t?\t-\t?\t?\t?\t?\ta b\t?\te-1\tfalse\t?"


@given(rows)
def test_a_new_mirror_holds_each_line_once_in_the_order_of_the_trail(trail: list[Any]) -> None:
    merged = merge("", map(line_of, trail))
    wanted = list(dict.fromkeys(line_of(row) for row in sorted(trail, key=by_instant)))
    assert merged.added == len(wanted)
    assert lines(merged.text or "") == wanted


@given(rows, rows)
def test_nothing_is_new_the_second_time(one: list[Any], two: list[Any]) -> None:
    first = merge("", map(line_of, one)).text or ""
    second = merge(first, map(line_of, two)).text
    again = merge(first if second is None else second, map(line_of, [*two, *one]))
    assert (again.text, again.added) == (None, 0)


@given(st.lists(foreign, max_size=5).map("\n".join), rows)
def test_no_line_is_ever_lost(mirror: str, trail: list[Any]) -> None:
    merged = merge(mirror, map(line_of, trail))
    kept = mirror if merged.text is None else merged.text
    assert set(lines(kept)) == {*lines(mirror), *map(line_of, trail)}
    assert merged.added == len(set(lines(kept))) - len(set(lines(mirror)))


def test_an_older_event_found_later_takes_its_place() -> None:
    old, new = event("2026-01-01T12:00:00+02:00", "b", "old"), event("2026-01-01T11:00:00Z", "a", "new")
    first = merge("", [line_of(new)]).text or ""
    assert lines(merge(first, [line_of(old)]).text or "") == [line_of(old), line_of(new)]


def test_an_unfinished_last_line_is_completed_and_not_glued_to_the_next() -> None:
    made = line_of(event("2026-01-01T12:00:00Z", "a", "m"))
    assert merge("cut off", [made]).text == f"cut off\n{made}\n"


@given(st.lists(foreign, max_size=5).map("\n".join), rows, rows)
def test_lines_are_inserted_as_they_would_be_merged(mirror: str, one: list[Any], two: list[Any]) -> None:
    tidy = merge(mirror, map(line_of, one)).text
    if tidy is None:
        return
    merged = merge(tidy, map(line_of, two))
    stored = tidy.encode(errors="surrogatepass")
    inserted = insert(stored, list(map(line_of, two)))
    wanted = None if merged.text is None else merged.text.encode(errors="surrogatepass")
    assert (inserted.data, inserted.added) == (wanted, merged.added)


def test_many_lines_find_their_places_between_many() -> None:
    made = [
        line_of(event(f"2026-01-01T00:{minute:02}:{minute % 7:02}Z", f"e{minute % 3}", "m")) for minute in range(60)
    ]
    tidy = merge("", made[::2]).text or ""
    assert (insert(tidy.encode(), made).data or b"").decode() == merge(tidy, made).text
