"""What answers of a copy say of themselves, which pages are let in, and how long it rests."""

from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentcoord.errors import StoreError
from agentcoord.protocol import replica
from agentcoord.protocol.replica import Label, poll_pause, require_page, retry_pause
from agentcoord.protocol.scopes import coverage, covers, meet

AT = datetime(2026, 3, 1, 12, 0, 0, 999_999, tzinfo=UTC)
CHANCE = st.floats(0, 1, exclude_max=True)


def test_a_label_never_makes_an_answer_newer_or_more_than_it_is() -> None:
    assert Label("backend", AT).facts() == {
        "source": "backend",
        "as_of": "2026-03-01T12:00:00Z",
        "age_seconds": 0.0,
    }
    assert Label("replica", AT, 4.26, filtered=True).facts() == {
        "source": "replica",
        "as_of": "2026-03-01T12:00:00Z",
        "age_seconds": 4.3,
        "complete": False,
        "filtered": True,
    }


@pytest.mark.parametrize(
    ("after", "paths", "cursor", "fault"),
    [
        (None, [], None, None),
        (None, ["c/b", "c/a"], None, None),  # a page is a set: its order means nothing
        ("c/a", ["c/b", "c/c"], "c/c", None),
        (None, ["c/a", "c/a"], None, "a record twice"),
        ("c/b", ["c/b"], None, "from before the cursor"),
        ("c/b", ["c/a", "c/c"], "c/c", "from before the cursor"),
        (None, ["c/a", "c/d"], "c/c", "from beyond the next cursor"),
        ("c/a", [], "c/c", "from beyond the next cursor"),
        (None, ["c/a"], "d/a", "from beyond the next cursor"),
    ],
)
def test_a_page_is_let_in_or_not(after: str | None, paths: list[str], cursor: str | None, fault: str | None) -> None:
    if fault is None:
        require_page("c", after, paths, cursor)
    else:
        with pytest.raises(StoreError, match=fault):
            require_page("c", after, paths, cursor)


@given(failures=st.integers(1, 10_000), counted=st.booleans(), chance=CHANCE)
def test_a_rest_grows_to_its_bound(failures: int, counted: bool, chance: float) -> None:
    pause = retry_pause(failures, counted=counted, wanted=None, chance=chance)
    assert 0.1 <= pause <= (replica.RETRY_COUNTED if counted else replica.RETRY)
    assert retry_pause(failures + 1, counted=counted, wanted=None, chance=chance) >= pause


@given(wanted=st.floats(0, 1e9), chance=CHANCE)
def test_a_server_gets_the_rest_it_wants_within_an_hour(wanted: float, chance: float) -> None:
    pause = retry_pause(1, counted=True, wanted=wanted, chance=chance)
    assert min(wanted, replica.LONGEST_REST) <= pause <= replica.LONGEST_REST * 1.1


@given(wanted=st.floats(0, 1e9), failures=st.integers(1, 10_000), chance=CHANCE)
def test_a_server_that_wants_less_rest_than_it_needs_gets_more(wanted: float, failures: int, chance: float) -> None:
    pause = retry_pause(failures, counted=True, wanted=wanted, chance=chance)
    assert pause >= min(replica.RETRY, 0.25 * 2.0 ** min(failures - 1, 10))
    assert pause <= max(replica.RETRY, min(wanted, replica.LONGEST_REST)) * 1.1


@given(quiet=st.integers(0, 10_000), requests=st.integers(0, 10_000), wanted=st.booleans(), chance=CHANCE)
def test_a_server_that_counts_requests_is_asked_no_more_than_was_promised(
    quiet: int, requests: int, wanted: bool, chance: float
) -> None:
    pause = poll_pause(quiet, requests, wanted=wanted, chance=chance)
    assert pause >= 0.9 * (2 * requests if wanted else 10 * requests)
    assert pause >= 0.9 * (replica.SOONEST if wanted else replica.UNWANTED)
    assert pause <= max(replica.LATEST if wanted else replica.UNWANTED, 10 * requests)
    assert poll_pause(quiet + 1, requests, wanted=wanted, chance=chance) >= pause


SCOPES = st.lists(
    st.sampled_from(["", "claims", "claims/o", "claims/o/r", "claims/o/r/1.json", "events", "events/b", "heartbeats"]),
    max_size=4,
)
PATHS = ("claims/o/r/1.json", "claims/o/r/2.json", "claims/o/s/1.json", "events/b/e.json", "heartbeats/a.json")
PREFIXES = ("claims", "claims/o", "claims/o/r", "events", "events/b", "heartbeats", "")


@given(some=SCOPES, others=SCOPES)
def test_what_two_lists_of_scopes_have_in_common(some: list[str], others: list[str]) -> None:
    both = meet(some, others)
    for path in PATHS:
        assert covers(both, path) == (covers(some, path) and covers(others, path))
    for prefix in PREFIXES:
        assert coverage(both, prefix).whole == (coverage(some, prefix).whole and coverage(others, prefix).whole)
