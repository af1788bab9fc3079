"""One work item and its spellings."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentcoord.protocol.workitems import DECORATIONS, WorkItem, folded, identify, spellings

TABLE = [
    ("319", "319", None),
    ("issue:319", "319", None),
    ("PR:319", "319", None),
    ("Issue:319", "319", None),
    (" 319 ", "319", None),
    ("issue:319:qa", "319", "qa"),
    ("319:qa", "319", "qa"),
    ("319:QA:Deep", "319", "qa:deep"),
    ("foo", "foo", None),
    ("Foo", "foo", None),
    ("adhoc:foo", "foo", None),
    ("adhoc:Foo:QA", "foo", "qa"),
    ("issue:foo", "issue:foo", None),
    ("pr:foo:qa", "pr:foo", "qa"),
    ("adhoc:319", "adhoc:319", None),
    ("adhoc:319:qa", "adhoc:319", "qa"),
    ("adhoc::qa", "adhoc:", "qa"),
    ("issue:", "issue:", None),
    (":qa", "", "qa"),
    ("", "", None),
    ("319:", "319", ""),
    ("issue:319:", "319", ""),
    ("adhoc:issue:319", "issue", "319"),
    ("issue:issue:319", "issue:issue", "319"),
    ("issues:319", "issues", "319"),
    ("issue", "issue", None),
    ("issue:٣", "issue:٣", None),  # a digit of another script is not the number the tracker knows
]
targets = (
    st.lists(st.sampled_from(["issue", "PR", "adhoc", "Adhoc", "319", "7", "foo", "QA", "", " ", "É"]), max_size=4)
    .map(":".join)
    .flatmap(lambda target: st.sampled_from([target, f" {target}"]))
) | st.text(max_size=8)


@pytest.mark.parametrize(("target", "base", "lane"), TABLE, ids=[repr(row[0]) for row in TABLE])
def test_identity(target: str, base: str, lane: str | None) -> None:
    assert identify(target) == WorkItem(base=base, lane=lane)


@pytest.mark.parametrize(
    ("target", "kept"),
    [
        ("issue:319", "319"),
        ("PR:319:QA", "319:QA"),
        ("adhoc:Foo", "Foo"),
        ("Issue:Foo", "Issue:Foo"),
        ("adhoc:319", "adhoc:319"),
        ("319:", "319:"),
        ("Foo:QA", "Foo:QA"),
    ],
)
def test_folding_drops_a_decoration_and_keeps_the_case(target: str, kept: str) -> None:
    assert folded(target) == kept


@pytest.mark.parametrize(
    ("target", "read"),
    [
        ("319", ["319", "issue:319", "pr:319"]),
        ("pr:319", ["pr:319", "319", "issue:319"]),
        ("Issue:319", ["Issue:319", "319", "issue:319", "pr:319"]),
        ("319:qa", ["319:qa", "issue:319:qa", "pr:319:qa"]),
        ("foo", ["foo", "adhoc:foo"]),
        ("adhoc:foo", ["adhoc:foo", "foo"]),
        ("adhoc:319", ["adhoc:319"]),
        ("issue:foo", ["issue:foo"]),
        ("adhoc:issue:319", ["adhoc:issue:319"]),  # `issue:319` is another item
    ],
)
def test_spellings_are_read_as_typed_first(target: str, read: list[str]) -> None:
    assert spellings(target) == read


@given(targets)
def test_every_spelling_names_the_same_item(target: str) -> None:
    for spelling in spellings(target):
        assert identify(spelling) == identify(target)


@given(targets)
def test_spellings_are_few_distinct_and_start_as_typed(target: str) -> None:
    listed = spellings(target)
    assert listed[0] == target
    assert len(listed) == len(set(listed)) <= 4


@given(targets)
def test_who_asks_for_one_spelling_finds_the_others(target: str) -> None:
    listed = spellings(target)
    for spelling in listed:
        assert {*spellings(spelling), target} == set(listed)


@given(targets, targets)
def test_canonical_spellings_find_each_other_both_ways(one: str, other: str) -> None:
    canonical = {*(identify(t).spelled() for t in (one, other))}
    for a in canonical:
        for b in canonical:
            assert (b in spellings(a)) == (a in spellings(b))


@given(st.text("0123456789", min_size=1, max_size=6), st.none() | st.sampled_from(["qa", "docs:deep"]))
def test_a_number_is_an_issue_and_a_pull_request(number: str, lane: str | None) -> None:
    suffix = "" if lane is None else f":{lane}"
    assert identify(number + suffix) == identify(f"issue:{number}{suffix}") == identify(f"pr:{number}{suffix}")
    assert identify(number + suffix) != identify(f"adhoc:{number}{suffix}")
    assert identify(number + suffix) != identify(number + "x" + suffix)


@given(targets)
def test_a_lane_is_never_folded_into_its_item(target: str) -> None:
    item = identify(target)
    if item.lane is not None:
        assert item.base not in spellings(target)


@given(targets)
def test_folding_and_identity_agree_but_for_the_case(target: str) -> None:
    item = identify(target)
    assert [part.lower() for part in folded(target).split(":")] == item.spelled().split(":")
    assert set(DECORATIONS) == {"issue", "pr", "adhoc"}
