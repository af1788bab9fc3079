"""Records that are broken in any way, live and archived: what reads many of them passes over one, says so, or stops.

The trail degrades where it can; its mirror and retention never act on what they could not read.
"""

from datetime import timedelta
from typing import Any

import pytest

from agentcoord.protocol.documents import Document
from agentcoord.protocol.instants import stamp
from tests.cli.line import Line
from tests.cli.test_broken_records import KINDS, break_, look, text
from tests.operations.stage import START

OLD = stamp(START - timedelta(days=8))
EVENT, CLAIM, BEAT, BATCH = "events/b1/e1.json", "claims/o/r/7.json", "heartbeats/a1.json", "batches/b1.json"
KEPT = "archive/events/b1/e0.json"
OTHERS = ("archive/claims/o/r/7.json", "archive/heartbeats/a1.json", "archive/batches/b1.json")

LAYOUT = ("a directory", "a symlink", "a symlink to nothing", "a FIFO")
TEXT = "not UTF-8"
CHARACTERS = (TEXT, "half a surrogate pair")
BROKEN = {**KINDS, "a list": text(b"[]"), "null": text(b"null\n")}
NO_OBJECT = ("a list", "null")

SHORT = "; this trail may be incomplete"
INVALID = "state unreadable: invalid UTF-8 in persisted log record at "


@pytest.fixture
def told(line: Line) -> Line:
    """A state with one event, and one archived, of an item that is claimed; all of it is due."""
    event: Document = {"event_id": "e2", "batch_id": "b1", "type": "note", "repo": "o/r", "target": "7", "at": OLD}
    line.lay("events/b1/e2.json", event)
    line.lay("events/b2/e2.json", event | {"batch_id": "b2", "synthetic": True})
    until = stamp(START + timedelta(days=20))
    envelope: Document = {"schema_version": 1, "record_family": "compacted_events", "archived_at": OLD}
    line.lay(
        "archive/events/b1/compact-1.json",
        envelope
        | {"source_paths": ["events/b1/e9.json"], "delete_after": until, "records": [event | {"event_id": "e9"}]},
    )
    line.lay("claims/o/r/8.json", {"status": "released", "updated_at": OLD})
    line.lay("heartbeats/a2.json", {"status": "done", "updated_at": OLD, "expires_at": OLD})
    line.lay("batches/b2.json", {"status": "completed", "completed_at": OLD})
    return line


def lay_broken(line: Line, path: str, kind: str) -> dict[str, object]:
    """Break a record, and give all that is there."""
    if kind in KINDS:
        break_(line, path, kind)
    else:
        place = line.root / path
        place.parent.mkdir(parents=True, exist_ok=True)
        BROKEN[kind](place)
    return look(line.root)


@pytest.mark.parametrize("kind", BROKEN)
def test_the_log_goes_on_without_a_live_event(told: Line, kind: str) -> None:
    before = lay_broken(told, EVENT, kind)
    output = told.local("log", "o/r#7", "--format", "tsv")
    ids = [row.split(b"\t")[10] for row in output.stdout.splitlines()]
    if kind in LAYOUT:
        assert (output.exit, ids) == (2, [])
        assert output.stderr[-1].startswith("state layout invalid: ")
        assert EVENT in output.stderr[-1]
    elif kind == TEXT:
        assert (output.exit, ids, output.stderr) == (2, [], [f"{INVALID}{EVENT}"])
    else:
        assert (output.exit, ids) == (0, [b"e2", b"e9"])
        [warning] = [said for said in output.stderr if said.startswith("warning: ")]
        record = f"warning: live event record is not an object at {EVENT}"
        start = record if kind in NO_OBJECT else "warning: events unreadable ("
        assert warning.startswith(start)
        assert warning.endswith(f"at {EVENT}{SHORT}")
    assert look(told.root) == before


@pytest.mark.parametrize("kind", BROKEN)
def test_the_log_goes_on_without_an_archived_event(told: Line, kind: str) -> None:
    before = lay_broken(told, KEPT, kind)
    output = told.local("log", "o/r#7", "--format", "tsv")
    ids = [row.split(b"\t")[10] for row in output.stdout.splitlines()]
    if kind == TEXT:
        assert (output.exit, ids, output.stderr) == (2, [], [f"{INVALID}{KEPT}"])
    else:
        assert (output.exit, ids[0]) == (0, b"e2"), "an archive never makes a trail fail"
        [warning] = [said for said in output.stderr if said.startswith("warning: ")]
        family = f"warning: unknown archived record family at {KEPT}"
        assert warning.startswith(family if kind in NO_OBJECT else "warning: archived events unreadable (")
        assert KEPT in warning
        assert warning.endswith(SHORT)
    assert look(told.root) == before


@pytest.mark.parametrize("kind", BROKEN)
def test_the_log_of_an_item_says_that_a_claim_on_it_may_be_missing(told: Line, kind: str) -> None:
    before = lay_broken(told, CLAIM, kind)
    output = told.local("log", "o/r#7")
    if kind == TEXT:
        assert (output.exit, output.stdout, output.stderr) == (2, b"", [f"{INVALID}{CLAIM}"])
    else:
        assert (output.exit, len(output.stdout.splitlines())) == (0, 2)
        [warning] = [said for said in output.stderr if said.startswith("warning: ")]
        if kind in NO_OBJECT:
            assert warning == f"warning: live claim record is not an object at {CLAIM}{SHORT}"
        else:
            assert warning.startswith("warning: claims unreadable (")
            assert warning.endswith("; a claim for this work item would not be reported")
    assert told.local("log").exit == 0, "of all items, no claim is asked for"
    assert look(told.root) == before


@pytest.mark.parametrize("kind", BROKEN)
@pytest.mark.parametrize(("path", "prefix"), [(EVENT, "events"), (KEPT, "archive/events"), (CLAIM, "claims")])
@pytest.mark.parametrize("again", [False, True])
def test_nothing_is_mirrored_that_is_not_all_there(
    told: Line, kind: str, path: str, prefix: str, *, again: bool
) -> None:
    if again:
        assert told.local("log", "--sync").exit == 0
    before = lay_broken(told, path, kind)
    output = told.local("log", "--sync")
    assert (output.exit, output.stdout) == (2, b"")
    if kind == TEXT:
        assert output.stderr == [f"{INVALID}{path}"]
    elif kind in LAYOUT and prefix == "events":
        assert output.stderr[-1].startswith("state layout invalid: ")
    else:
        assert output.stderr[-1] == f"refusing to sync an incomplete trail: {prefix}"
    assert look(told.root) == before


@pytest.mark.parametrize("kind", BROKEN)
@pytest.mark.parametrize("path", [EVENT, CLAIM, BATCH, KEPT, OTHERS[0]])
def test_retention_does_nothing_at_all_beside_what_it_cannot_judge(told: Line, kind: str, path: str) -> None:
    before = lay_broken(told, path, kind)
    for mode in ("--dry-run", "--execute"):
        output = told.local("gc", mode)
        if path == EVENT and kind in CHARACTERS:
            assert (output.exit, output.stderr) == (0, []), "its group is passed over, and no other"
        else:
            assert (output.exit, output.stdout) == (2, b"")
            [said] = output.stderr
            assert path in said
            assert look(told.root) == before


@pytest.mark.parametrize("kind", BROKEN)
@pytest.mark.parametrize("path", [EVENT, BEAT, KEPT, OTHERS[1]])
def test_a_board_with_its_archive_names_what_is_broken(told: Line, kind: str, path: str) -> None:
    before = lay_broken(told, path, kind)
    output = told.local("status", "--include-archived", "--json")
    if path == BEAT and kind in NO_OBJECT:
        assert output.exit == 0
        assert b"heartbeat records unreadable: a1" in output.stdout
    else:
        assert (output.exit, output.stdout) == (2, b"")
        assert path in output.stderr[-1]
    without = told.local("status", "--json")
    assert without.exit == (0 if path.startswith("archive/") or output.exit == 0 else 2)
    assert look(told.root) == before


# Records of a later release ------------------------------------------------------------------------

ODD: Any = {"schema_version": 99, "novel": {"deep": [1]}, "type": ["what"], "at": {"when": 1}, "status": 7}


@pytest.mark.parametrize("path", [EVENT, CLAIM, BEAT, BATCH])
def test_what_a_later_release_writes_is_shown_mirrored_and_left(told: Line, path: str) -> None:
    told.lay(path, ODD | {"batch_id": "b1", "event_id": "e1"})
    before = (told.root / path).read_bytes()
    assert told.local("log", "--sync").exit == 0
    assert told.local("status", "--include-archived").exit == 0
    output = told.local("gc", "--execute")
    assert (output.exit, output.stderr) == (0, [])
    assert (told.root / path).read_bytes() == before


@pytest.mark.parametrize("path", [KEPT, *OTHERS])
def test_an_envelope_of_a_later_release_is_never_deleted(told: Line, path: str) -> None:
    told.lay(path, ODD | {"record_family": "archived_stream", "delete_after": OLD})
    for mode in ("--dry-run", "--execute"):
        output = told.local("gc", mode)
        assert (output.exit, output.stderr) == (2, [f"archive record has unknown family at {path}"])
    output = told.local("log")
    assert output.exit == 0
    unknown = f"warning: unknown archived record family at {path}{SHORT}"
    assert (unknown in output.stderr) == (path == KEPT)
    assert told.local("log", "--sync").exit == (2 if path == KEPT else 0)


@pytest.mark.parametrize("delete_after", [None, "", "soon", "2026-02-30T00:00:00Z", 7, ["2026-01-01T00:00:00Z"]])
def test_an_envelope_that_does_not_say_until_when_stops_retention(told: Line, delete_after: object) -> None:
    told.lay(KEPT, {"record_family": "archived_record", "data": {}, "delete_after": delete_after})
    output = told.local("gc", "--execute")
    assert (output.exit, output.stderr) == (2, [f"archive record has invalid delete_after at {KEPT}"])


@pytest.mark.parametrize(
    ("path", "record"),
    [
        (CLAIM, {"status": "released"}),
        (CLAIM, {"terminal": "done", "status": "active"}),
        (BEAT, {"status": "merged"}),
        (BATCH, {"status": "completed"}),
        ("events/b2/e1.json", {"batch_id": "b2", "synthetic": True, "repo": "o/r", "target": "7"}),
    ],
)
@pytest.mark.parametrize("time", [None, "yesterday", 7])
def test_what_is_due_but_does_not_say_since_when_stops_retention(
    told: Line, path: str, record: Document, time: object
) -> None:
    told.lay(path, record | ({} if time is None else {"updated_at": time}))
    before = look(told.root)
    for mode in ("--dry-run", "--execute"):
        output = told.local("gc", mode)
        said = (
            f"gc record is missing a retention timestamp at {path}"
            if time is None
            else f"gc record has invalid retention timestamp at {path}: {time}"
        )
        assert (output.exit, output.stdout, output.stderr) == (2, b"", [said])
    assert look(told.root) == before
