"""gc and the mirror: what it drops for good is synced first on request, and a person is told what was not."""

import json
import os

import pytest

from agentcoord.cli.output import Output, Terminal
from tests.cli.line import Line, said
from tests.cli.test_retention import ACQUIRED, CLOSED, lay_lane

WATCHED = Terminal(notices=True)


def lay_renewals(line: Line, *, synthetic: bool = False) -> None:
    """Lay a lane of which compaction keeps two events and drops another."""
    more = {"synthetic": True} if synthetic else {}
    for number in range(3):
        record = ACQUIRED | {"event_id": f"e{number}", "at": f"2026-01-01T00:0{number}:00Z"}
        line.lay(f"events/b1/e{number}.json", record | more)
    line.lay("events/b1/e9.json", CLOSED | {"event_id": "e9"} | more)
    line.clock.advance(hours=24 * 8)


def watched(line: Line, *argv: str) -> Output:
    return line(*argv, "--state-root", str(line.root), terminal=WATCHED)


def events_held(line: Line) -> list[str]:
    """Give the ids of the events in the mirror."""
    return [row.split("\t")[10] for row in (line.root / "log.tsv").read_text().splitlines()]


def test_a_person_is_told_what_the_mirror_lacks(line: Line) -> None:
    lay_renewals(line)
    path = line.root / "log.tsv"
    (notice,) = watched(line, "gc", "--dry-run").stderr
    assert notice == (
        f"notice: 2 events that would be dropped are not in the mirror {path}, which is not there: "
        "run agent-coord log --sync first, or agent-coord gc --execute --sync-first"
    )
    path.write_text("something else\n")
    (notice,) = watched(line, "gc", "--execute").stderr
    assert notice == (
        f"notice: 2 events that were dropped are not in the mirror {path}: "
        "next time, agent-coord gc --execute --sync-first; what the archive still has, agent-coord log --sync saves"
    )


def test_what_expires_in_the_archive_is_dropped_too(line: Line) -> None:
    lay_lane(line)
    assert watched(line, "gc", "--execute").stderr == [], "compaction kept both"
    line.clock.advance(hours=24 * 31)
    (notice,) = watched(line, "gc", "--execute").stderr
    assert notice.startswith("notice: 2 events that were dropped are not in the mirror")


@pytest.mark.parametrize("case", ["mirrored", "nobody reads it", "nothing is dropped", "simulation"])
def test_nothing_is_said(line: Line, case: str) -> None:
    if case == "nothing is dropped":
        lay_lane(line)
    else:
        lay_renewals(line, synthetic=case == "simulation")
    if case == "mirrored":
        assert line.local("log", "--sync").exit == 0
    output = line.local("gc", "--execute") if case == "nobody reads it" else watched(line, "gc", "--execute")
    assert (output.exit, output.stderr) == (0, [])
    assert b"compact" in output.stdout


@pytest.mark.parametrize("kind", ["directory", "pipe", "symlink", "endless"])
def test_a_round_that_went_well_does_not_fail_for_want_of_a_mirror(line: Line, kind: str) -> None:
    lay_renewals(line)
    path = line.root / "log.tsv"
    if kind == "directory":
        path.mkdir()
    elif kind == "pipe":
        os.mkfifo(path)
    elif kind == "endless":
        path.touch()
        os.truncate(path, 300 << 30)
    else:
        path.symlink_to("/dev/zero")
    output = watched(line, "gc", "--execute")
    assert output.exit == 0
    (notice,) = output.stderr
    why = "is larger than 2 GiB: " if kind == "endless" else "cannot be read ("
    assert f"not in the mirror {path}, which {why}" in notice


def test_the_trail_is_synced_before_it_is_shortened(line: Line) -> None:
    lay_renewals(line)
    output = watched(line, "gc", "--execute", "--sync-first")
    assert (output.exit, output.stderr) == (0, [])
    lines = output.stdout.decode().splitlines()
    assert lines[0] == f"synced 4 new events to {line.root}/log.tsv"
    assert lines[1].startswith("gc execute ")
    assert lines[2].startswith("- compact ")
    assert events_held(line) == ["e0", "e1", "e2", "e9"]
    assert list((line.root / "events").rglob("*.json")) == []


def test_json_has_the_sync_only_when_there_was_one(line: Line) -> None:
    lay_renewals(line)
    planned = json.loads(line.local("gc", "--dry-run", "--json").stdout)
    assert list(planned) == ["mode", "policy", "prefixes", "actions"]
    done = json.loads(line.local("gc", "--execute", "--sync-first", "--json").stdout)
    assert list(done) == ["mode", "policy", "prefixes", "actions", "synced", "mirror"]
    assert (done["synced"], done["mirror"]) == (4, f"{line.root}/log.tsv")
    assert done["actions"] == planned["actions"]


@pytest.mark.parametrize("fault", ["short trail", "broken mirror"])
def test_nothing_is_dropped_when_the_sync_refuses(line: Line, fault: str) -> None:
    lay_renewals(line)
    if fault == "short trail":
        line.lay("claims/o/r/9.json", b"{")
        argv = ("gc", "--execute", "--sync-first", "--prefix", "events")
        expected = "refusing to sync an incomplete trail: claims"
    else:
        (line.root / "log.tsv").mkdir()
        argv = ("gc", "--execute", "--sync-first")
        expected = f"log mirror unwritable: {line.root}/log.tsv: it is not a regular file"
    before = {path: content for path, content in line.tree().items() if not path.endswith(".lock")}
    output = line.local(*argv)
    assert (output.exit, output.stdout, output.stderr[-1]) == (2, b"", expected)
    assert {path: content for path, content in line.tree().items() if not path.endswith(".lock")} == before


@pytest.mark.parametrize(
    ("argv", "fault"),
    [
        (
            ("gc", "--dry-run", "--sync-first", "--state-root", "s"),
            "--sync-first requires --execute: a dry run writes nothing, to the mirror neither",
        ),
        (("gc", "--sync-first", "--state-root", "s"), "gc requires exactly one of --dry-run or --execute"),
        (("log", "--sync-first"), "invalid option: --sync-first"),
        (
            ("gc", "--execute", "--sync-first", "--ignore-user-config", "--api-url", "http://127.0.0.1:1"),
            "--sync-first with --ignore-user-config requires --state-root as its explicit backend selector",
        ),
    ],
)
def test_what_it_cannot_be_called_with(line: Line, argv: tuple[str, ...], fault: str) -> None:
    assert said(line(*argv)) == (1, b"", [fault])
    assert line.tree() == {}
