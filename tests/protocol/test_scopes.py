"""Which paths a server keeps records at, and what a token's scopes cover of them."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentcoord.protocol.scopes import (
    Coverage,
    Filter,
    coverage,
    covers,
    is_directory_prefix,
    is_record_path,
    is_scope,
    may_delete,
    read_scopes,
)

RECORDS = [
    "claims/o/r/7.json",
    "claims/.github/.github/issue:7.json",
    "claims/o/api.json/7.json",
    "heartbeats/a.b-c_d:e.json",
    "batches/b1.json",
    "events/b1/20260101T000000.000000Z-0badcafe.json",
    "attention/default/acme/.github/a-1.json",
    "archive/claims/o/r/7.json",
    "archive/heartbeats/a.json",
    "archive/batches/b1.json",
    "archive/events/b1/compact-1-2.json",
    "events/b/" + "e" * (512 - 14) + ".json",
    "archive/events/b/" + "e" * (512 - 14) + ".json",
]
NO_RECORDS = [
    "",
    "claims",
    "claims/o/r.json",
    "claims/o/r/7",
    "claims/o/r/7.json/",
    "claims/o/r/7.json\n",
    "claims//r/7.json",
    "claims/../r/7.json",
    "claims/./r/7.json",
    "claims/o/r/a..b.json",
    "claims/o/r/.7.json",
    "claims/o/r/7..json",
    "claims/o/r/s/7.json",
    "claims/o/r/é.json",
    "claims/o/r/a b.json",
    "claims/o/r/a%2Fb.json",
    "/claims/o/r/7.json",
    "heartbeats/a/b.json",
    "events/e.json",
    "events/b/c/e.json",
    "archive/attention/default/acme/r/a.json",
    "archive/archive/batches/b.json",
    "archive/b.json",
    "attention/default/acme/a.json",
    "attention/default/./r/a.json",
    f"attention/{'w' * 161}/o/r/a.json",
    f"attention/w/{'o' * 80}/{'r' * 80}/a.json",
    "etc/passwd",
    "events/b/" + "e" * (513 - 14) + ".json",
]
DIRECTORIES = [
    *("claims", "claims/o", "claims/o/r", "claims/o/api.json", "heartbeats", "batches", "events", "events/b1"),
    *("attention", "attention/w", "attention/w/o", "attention/w/o/r", "archive", "archive/claims", "archive/claims/o"),
    *("archive/claims/o/r", "archive/heartbeats", "archive/batches", "archive/events", "archive/events/b1"),
    f"attention/w/{'o' * 158}",
    f"attention/w/{'o' * 80}/{'r' * 79}",
]
NO_DIRECTORIES = [
    *("", "/", "claims/", "claims/o/r/s", "claims/o/r/7.json", "heartbeats/a", "batches/b", "events/a/b", "archive/x"),
    *(
        "archive/attention",
        "archive/archive",
        "attention/w/o/r/a",
        "attention/w/.",
        "claims/..",
        "claims/a..b",
        "Claims",
    ),
    f"attention/w/{'o' * 159}",
    "events/" + "b" * 506,
]


@pytest.mark.parametrize("path", RECORDS)
def test_a_record_path(path: str) -> None:
    assert is_record_path(path)
    assert not is_directory_prefix(path)
    assert is_scope(path)


@pytest.mark.parametrize("path", NO_RECORDS)
def test_no_record_path(path: str) -> None:
    assert not is_record_path(path)


@pytest.mark.parametrize("prefix", DIRECTORIES)
def test_a_directory(prefix: str) -> None:
    assert is_directory_prefix(prefix)
    assert not is_record_path(prefix)
    assert is_scope(prefix)


@pytest.mark.parametrize("prefix", NO_DIRECTORIES)
def test_no_directory(prefix: str) -> None:
    assert not is_directory_prefix(prefix)


@pytest.mark.parametrize(
    "stored", ["", "{}", "7", "null", "[7]", '["claims",null]', '["claims","etc"]', "[]", '["", ".."]']
)
def test_scopes_that_are_not_whole_grant_nothing(stored: str) -> None:
    assert read_scopes(stored) == ()


def test_scopes_are_read_in_their_order() -> None:
    assert read_scopes('["heartbeats/a.json", "claims/o", ""]') == ("heartbeats/a.json", "claims/o", "")


@pytest.mark.parametrize(
    ("scope", "path", "covered"),
    [
        ("", "claims/o/r/7.json", True),
        ("claims", "claims/o/r/7.json", True),
        ("claims/o", "claims/o/r/7.json", True),
        ("claims/o", "claims/o-o/r/7.json", False),
        ("claims/o/r", "claims/o/r2/7.json", False),
        ("heartbeats/a.json", "heartbeats/a.json", True),
        ("heartbeats/a.json", "heartbeats/a.json.json", False),
        ("claims/o/api.json", "claims/o/api.json/7.json", True),
        ("archive", "archive/claims/o/r/7.json", True),
        ("claims", "archive/claims/o/r/7.json", False),
    ],
)
def test_what_a_scope_covers(scope: str, path: str, covered: bool) -> None:
    assert covers([scope], path) == covered
    assert covers(["batches", scope], path) == covered
    assert not covers([], path)


@pytest.mark.parametrize(
    ("scopes", "prefix", "expected"),
    [
        ([""], "claims", Coverage(whole=True)),
        (["claims"], "claims", Coverage(whole=True)),
        (["claims"], "claims/o", Coverage(whole=True)),
        (["claims/o"], "claims", Coverage(whole=False, filters=(Filter("claims/o", exact=False),))),
        (["heartbeats/a.json"], "heartbeats", Coverage(False, (Filter("heartbeats/a.json", exact=True),))),
        (["heartbeats/a.json", "heartbeats"], "heartbeats", Coverage(whole=True)),
        (["claims/o-o"], "claims/o", Coverage(whole=False)),
        (["batches"], "claims", Coverage(whole=False)),
        ([], "claims", Coverage(whole=False)),
        ([""], "", Coverage(whole=True)),
        (["claims/o"], "", Coverage(whole=False, filters=(Filter("claims/o", exact=False),))),
    ],
)
def test_what_a_listing_shows(scopes: list[str], prefix: str, expected: Coverage) -> None:
    assert coverage(scopes, prefix) == expected
    assert expected.forbidden == (not expected.whole and not expected.filters)


scopes = st.sampled_from(["", *RECORDS[:10], *DIRECTORIES])


@given(st.lists(scopes, max_size=4), st.sampled_from(DIRECTORIES), st.sampled_from(RECORDS))
def test_a_listing_shows_exactly_the_records_that_may_be_read(granted: list[str], prefix: str, path: str) -> None:
    if path.startswith(prefix + "/"):
        assert coverage(granted, prefix).admits(path) == covers(granted, path)
    assert coverage(granted, "").admits(path) == covers(granted, path)


@given(st.lists(scopes, max_size=4))
def test_stored_scopes_come_back(granted: list[str]) -> None:
    assert read_scopes(json.dumps(granted)) == tuple(granted)


@pytest.mark.parametrize(
    ("scopes", "path", "may"),
    [
        ([""], "claims/o/r/7.json", True),
        (["claims"], "claims/o/r/7.json", False),
        (["claims", "archive"], "claims/o/r/7.json", True),
        (["claims/o", "archive/claims/o"], "claims/o/r/7.json", True),
        (["archive"], "claims/o/r/7.json", False),
        (["archive"], "archive/claims/o/r/7.json", True),
        (["claims"], "archive/claims/o/r/7.json", False),
    ],
)
def test_an_active_record_is_deleted_only_with_its_archived_copy(scopes: list[str], path: str, may: bool) -> None:
    assert may_delete(scopes, path) == may
