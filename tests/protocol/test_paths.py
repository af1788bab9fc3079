"""What may become part of a path, and what a path says."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentcoord.errors import UsageError
from agentcoord.protocol import paths
from agentcoord.protocol.paths import (
    batch_path,
    claim_key,
    claim_path,
    event_batch,
    event_path,
    events_prefix,
    heartbeat_path,
    is_record,
    is_repo,
    is_segment,
    require_repo,
    require_safe,
    require_segment,
    stem,
)

segments = st.lists(st.text("aZ09_:-", min_size=1, max_size=3), min_size=1, max_size=3).map(".".join)
names = st.lists(st.text("aZ09_-", min_size=1, max_size=3), min_size=1, max_size=3).map(".".join)
repos = st.builds("{}/{}".format, names, names)

SEGMENTS = [
    ("a", True),
    ("A-1_b:c", True),
    ("a.b.c", True),
    (":", True),
    ("issue:319:qa", True),
    ("", False),
    (".", False),
    ("..", False),
    (".a", False),
    ("a.", False),
    ("a..b", False),
    ("a/b", False),
    ("a b", False),
    ("a\n", False),
    ("é", False),
    ("٣", False),
    ("a\0", False),
    ("a@b", False),
    (None, False),
    (319, False),
    (["a"], False),
]
REPOS = [
    ("o/r", True),
    ("o.o/r.r", True),
    ("-/_", True),
    ("../..", True),  # grammar only: such a path is refused as unsafe
    ("o", False),
    ("o/", False),
    ("/r", False),
    ("o/r/x", False),
    ("o//r", False),
    ("o r/x", False),
    ("o:o/r", False),
    ("o/r\n", False),
    ("ö/r", False),
    ("", False),
    (None, False),
    (1, False),
]


@pytest.mark.parametrize(("value", "valid"), SEGMENTS, ids=repr)
def test_segments(value: object, valid: bool) -> None:
    assert is_segment(value) is valid


@pytest.mark.parametrize(("value", "valid"), REPOS, ids=repr)
def test_repositories(value: object, valid: bool) -> None:
    assert is_repo(value) is valid


def test_a_requirement_gives_the_value_back_or_names_what_it_was() -> None:
    assert require_segment("a.b", "target") == "a.b"
    assert require_repo("o/r", "target repo") == "o/r"
    with pytest.raises(UsageError, match=r"^invalid target: \.\./x$"):
        require_segment("../x", "target")
    with pytest.raises(UsageError, match=r"^invalid target repo: o$"):
        require_repo("o", "target repo")


@pytest.mark.parametrize(
    "path", ["", "..", "a/../b", "a..b", "/a", "a/", "a//b", ".", "./a", "a/./b", "a\0b", "claims/../x/1.json"]
)
def test_an_unsafe_path_is_refused_in_one_line(path: str) -> None:
    with pytest.raises(UsageError, match=r"^unsafe state path: ") as raised:
        require_safe(path)
    assert len(str(raised.value).splitlines()) == 1
    assert "\0" not in str(raised.value)


@given(repos, segments, segments)
def test_every_path_of_a_record_is_safe_and_says_what_it_was_made_of(repo: str, one: str, other: str) -> None:
    made = [claim_path(repo, one), heartbeat_path(one), batch_path(one), events_prefix(one), event_path(one, other)]
    for path in made:
        require_safe(path)
    assert claim_key(claim_path(repo, one)) == (repo, one)
    assert stem(heartbeat_path(one)) == stem(batch_path(one)) == stem(event_path(other, one)) == one
    assert event_batch(event_path(one, other)) == one


@pytest.mark.parametrize(
    "path",
    [
        claim_path("o/r", "7"),
        heartbeat_path("a1"),
        batch_path("b1"),
        event_path("b1", "e1"),
        "attention/w/o/r/a.json",
        "claims/o/r/.json",  # by shape alone
    ],
)
def test_a_record_has_the_depth_of_its_family(path: str) -> None:
    above, _, name = path.rpartition("/")
    for archive in ("", "archive/"):
        assert is_record(archive + path)
        for other in (above, f"{above}.json", f"{above}/x/{name}", f"{path}/x", path.removesuffix(".json")):
            assert not is_record(archive + other)
    assert not is_record(f"archive/archive/{path}")


@pytest.mark.parametrize("path", ["", "archive", "archive.json", "archive/x.json", "x.json", "x/y.json", "claims.json"])
def test_outside_the_families_there_is_no_record(path: str) -> None:
    assert not is_record(path)


@given(repos, segments, segments)
def test_every_path_made_for_a_record_is_one(repo: str, one: str, other: str) -> None:
    for path in (claim_path(repo, one), heartbeat_path(one), batch_path(one), event_path(one, other)):
        assert is_record(path)
        assert is_record(f"archive/{path}")


def test_every_family_but_the_archive_has_a_depth() -> None:
    assert {*paths.RECORD_DEPTHS, "archive"} == set(paths.FAMILIES)


@given(repos, segments, repos, segments)
def test_two_work_items_never_share_a_claim(repo: str, target: str, repo2: str, target2: str) -> None:
    assert (claim_path(repo, target) == claim_path(repo2, target2)) == ((repo, target) == (repo2, target2))


def test_a_target_that_looks_like_a_file_keeps_its_name() -> None:
    assert claim_path("o/r", "a.json") == "claims/o/r/a.json.json"
    assert claim_key("claims/o/r/a.json.json") == ("o/r", "a.json")
    assert stem("batches/b.json.json") == "b.json"


@given(st.text(max_size=12))
def test_reading_any_path_says_something(path: str) -> None:
    assert isinstance(claim_key(path), tuple)
    assert isinstance(stem(path) + event_batch(path), str)


@pytest.mark.parametrize(
    ("path", "size", "fault"),
    [
        ("claims/o/r/1.json", paths.ACTIVE_RECORD_BYTES, None),
        ("claims/o/r/1.json", paths.ACTIVE_RECORD_BYTES + 1, "record is larger than 262144 bytes"),
        ("archive/claims/o/r/1.json", paths.ACTIVE_RECORD_BYTES + 1, None),
        ("archive/claims/o/r/1.json", paths.ARCHIVE_RECORD_BYTES + 1, "record is larger than 1048576 bytes"),
        ("heartbeats/" + "a" * 496 + ".json", 1, None),
        ("heartbeats/" + "a" * 497 + ".json", 1, "record path is longer than 512 bytes"),
        ("archive/heartbeats/" + "a" * 496 + ".json", 1, None),
        ("archive/heartbeats/" + "a" * 497 + ".json", 1, "record path is longer than 520 bytes"),
    ],
)
def test_a_shared_backend_keeps_paths_and_records_up_to_their_caps(path: str, size: int, fault: str | None) -> None:
    said = paths.over_cap(path, size)
    assert said == (fault and f"{fault}: {path}")
