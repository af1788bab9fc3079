"""A record that is broken in any way costs one clear line that names it, and is never overwritten."""

import json
import os
import shutil
from collections.abc import Callable
from copy import deepcopy
from pathlib import Path

import pytest

from tests.cli.line import Line

ITEM = ("--repo", "o/r", "--target", "7")
CLAIM, BEAT, BATCH, EVENT = "claims/o/r/7.json", "heartbeats/a1.json", "batches/b1.json", "events/b1/e1.json"
CLOSING = "events/b1/lane_closed-87eba76e7f316453.json"
MANIFEST = {"batch_id": "b1", "lanes": [{"name": "worker", "owner": "a1", "targets": ["7"]}]}


def text(data: bytes) -> Callable[[Path], object]:
    return lambda place: place.write_bytes(data)


KINDS: dict[str, Callable[[Path], object]] = {
    "a directory": lambda place: place.mkdir(),
    "a symlink": lambda place: place.symlink_to(place.parent / "elsewhere"),
    "a symlink to nothing": lambda place: place.symlink_to("/nowhere/at/all"),
    "a FIFO": os.mkfifo,
    "empty": text(b""),
    "blank": text(b"\n"),
    "truncated": text(b'{\n  "schema_version": 1,\n  "repo": "o/r'),
    "not UTF-8": text(b'{"schema_version": 1, "agent_id": "\xff"}'),
    "UTF-16": text('{"schema_version": 1}'.encode("utf-16")),
    "half a surrogate pair": text(b'{"agent_id": "\\ud800"}'),
    "nested deeply": text(b'{"a":' * 50_000 + b"1" + b"}" * 50_000),
    "10 MB": text(b'{"a": "' + b"x" * (10 * 1024 * 1024) + b'"}'),
    "followed by more": text(b'{"schema_version": 1}{"schema_version": 1}'),
}

CLAIMING = ("claim", "--agent-id", "a1", *ITEM, "--batch-id", "b1")
RELEASING = ("release", "--agent-id", "a1", *ITEM)
CLOSE = (*RELEASING, "--terminal", "done")
RECORDING = ("record-event", "--batch-id", "b1", "--type", "lane_closed", "--terminal", "done", "--agent-id", "a1")
CASES = [
    (CLAIM, CLAIMING),
    (CLAIM, ("claim", "--agent-id", "a2", *ITEM)),
    (CLAIM, RELEASING),
    (CLAIM, CLOSE),
    (CLAIM, ("status",)),
    (CLAIM, ("status", *ITEM)),
    (CLAIM, ("doctor", "--deep")),
    (BEAT, ("heartbeat", "--agent-id", "a1")),
    (BEAT, ("status",)),
    (BEAT, ("doctor", "--deep")),
    (BATCH, ("register-batch", "--file", "m.json")),
    (BATCH, CLOSE),
    (BATCH, (*RECORDING, *ITEM)),
    (BATCH, ("status",)),
    (BATCH, ("status", "--batch-id", "b1")),
    (BATCH, ("doctor", "--deep")),
    (EVENT, ("status",)),
    (EVENT, ("status", "--batch-id", "b1")),
    (EVENT, ("doctor", "--deep")),
    (CLOSING, (*RECORDING, *ITEM)),
]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Line:
    """What each case breaks in its own way, in a copy: to write it once for each took most of their time."""
    line = Line(tmp_path_factory.mktemp("whole"))
    line.file("m.json", MANIFEST)
    for argv in (("register-batch", "--file", "m.json"), CLAIMING, ("heartbeat", "--agent-id", "a1")):
        assert line.local(*argv).exit == 0
    return line


@pytest.fixture
def broken(line: Line, whole: Line) -> Line:
    shutil.copytree(whole.directory, line.directory, dirs_exist_ok=True)
    line.chance = deepcopy(whole.chance)
    return line


def break_(line: Line, path: str, kind: str) -> None:
    place = line.root / path
    if place.exists():
        place.unlink()
    place.parent.mkdir(parents=True, exist_ok=True)
    (place.parent / "elsewhere").write_bytes(b'{"schema_version": 1}')
    KINDS[kind](place)


def look(root: Path) -> dict[str, object]:
    """See everything as it is, links unfollowed; lock files aside."""
    return {
        str(place): os.readlink(place) if place.is_symlink() else place.read_bytes() if place.is_file() else None
        for place in sorted(root.rglob("*"))
        if place.suffix != ".lock"
    }


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("path", "argv"), CASES, ids=lambda value: value if isinstance(value, str) else value[0])
def test_a_broken_record_is_named_and_left_alone(broken: Line, kind: str, path: str, argv: tuple[str, ...]) -> None:
    break_(broken, path, kind)
    before = look(broken.root)
    output = broken.local(*argv)
    assert (output.exit, output.stdout) == (2, b"")
    [said] = output.stderr
    assert path in said
    assert len(said) < 300
    assert look(broken.root) == before


@pytest.mark.parametrize("kind", KINDS)
def test_a_holders_broken_heartbeat_never_lets_a_claim_through_early(broken: Line, kind: str) -> None:
    break_(broken, BEAT, kind)
    before = look(broken.root)
    output = broken.local("claim", "--agent-id", "a2", *ITEM)
    assert output.exit in (2, 3)
    if output.exit == 3:
        assert "; heartbeat invalid; fallback claim expires at " in output.stderr[-1]
    else:
        assert BEAT in output.stderr[-1]
    assert look(broken.root) == before


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("path", [BATCH, EVENT])
def test_an_audit_of_a_broken_trail_is_unknown(broken: Line, kind: str, path: str) -> None:
    break_(broken, path, kind)
    output = broken.local("batch-audit", "--batch-id", "b1", "--json")
    assert (output.exit, output.stderr) == (2, [])
    answer = json.loads(output.stdout)
    assert answer["verdict"] == "unknown"
    assert path in answer["reason"]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("path", [EVENT, f"archive/{EVENT}", "claims/o/r/pr:7.json"])
def test_a_trail_with_a_broken_record_says_so_or_fails(broken: Line, kind: str, path: str) -> None:
    break_(broken, path, kind)
    before = look(broken.root)
    output = broken.local("log", "o/r#7", "--json")
    misplaced = kind in ("a directory", "a symlink", "a symlink to nothing", "a FIFO")
    fatal = kind == "not UTF-8" or (path == EVENT and misplaced)
    assert output.exit == (2 if fatal else 0)
    assert any(path in line for line in output.stderr)
    assert output.stdout == b"" if fatal else json.loads(output.stdout)["trail"] == "incomplete"
    assert broken.local("log", "--sync").exit == 2
    assert look(broken.root) == before


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("path", [CLAIM, BEAT, BATCH, EVENT])
def test_the_component_report_names_a_broken_record(broken: Line, kind: str, path: str) -> None:
    break_(broken, path, kind)
    output = broken.local("doctor", "--stack-json", "--deep")
    assert (output.exit, output.stderr) == (2, [])
    [_, _, resources, _] = json.loads(output.stdout)["checks"]
    assert resources["status"] == "failed"
    assert path in resources["details"]["error"]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("spelling", ["issue:7", "pr:7"])
def test_an_alias_that_is_broken_does_not_hide_the_claim(broken: Line, kind: str, spelling: str) -> None:
    path = f"claims/o/r/{spelling}.json"
    break_(broken, path, kind)
    output = broken.local("status", *ITEM, "--json")
    assert (output.exit, output.stderr) == (0, [])
    answer = json.loads(output.stdout)
    assert [claim["agent_id"] for claim in answer["claims"]] == ["a1"]
    assert answer["section_notes"]["claims"].startswith(f"{path} ")
    assert answer["section_notes"]["claims"].endswith("; a claim there would not be reported")


@pytest.mark.parametrize("family", ["claims", "heartbeats", "batches", "events"])
@pytest.mark.parametrize("kind", ["a symlink to nothing", "a FIFO", "empty"])
@pytest.mark.parametrize(
    "argv",
    [
        CLAIMING,
        RELEASING,
        ("heartbeat", "--agent-id", "a1"),
        ("register-batch", "--file", "m.json"),
        ("record-event", "--batch-id", "b1", "--type", "note"),
        ("status",),
        ("status", *ITEM),
        ("status", "--batch-id", "b1"),
        ("doctor",),
        ("doctor", "--deep"),
    ],
    ids=" ".join,
)
def test_a_family_that_is_no_directory_is_never_written_through(
    broken: Line, family: str, kind: str, argv: tuple[str, ...]
) -> None:
    shutil.rmtree(broken.root / family)
    KINDS[kind](broken.root / family)
    output = broken.local(*argv)
    assert output.exit in (0, 1, 2)
    if output.exit == 2:
        assert output.stderr
        assert family in output.stderr[-1]
    assert not (broken.root / family).is_dir()
