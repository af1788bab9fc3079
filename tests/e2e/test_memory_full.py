"""No room for what memory writes: the mirror, what is known of it, and the archive. All that was there stays whole.

The room of one process ends at a size of file; to what writes, that is a disk which is full in the middle.
"""

import json
import re
import resource
import shutil
from functools import partial
from pathlib import Path

from agentcoord.protocol.documents import Document
from tests.command import Coord
from tests.e2e.running import finish, start

LANE: Document = {"schema_version": 1, "repo": "o/r", "target": "7", "lane": "qa", "at": "2024-01-01T00:00:00Z"}
CLOSED: Document = {
    **LANE,
    "schema_version": 2,
    "type": "lane_closed",
    "terminal": "done",
    "workspace": "default",
    "closed_by": {"agent_id": "a1", "machine": "m1"},
}
ROOM = 4096


def lay(root: Path, name: str, record: Document) -> None:
    place = root / f"events/b1/{name}.json"
    place.parent.mkdir(parents=True, exist_ok=True)
    place.write_text(json.dumps({"type": "note", "batch_id": "b1", "event_id": name} | record))


def confined(coord: Coord, *argv: str) -> tuple[int, str]:
    """Run a command whose files may not grow beyond ROOM bytes; give its exit status and what it said on stderr."""
    limit = partial(resource.setrlimit, resource.RLIMIT_FSIZE, (ROOM, ROOM))
    # Python itself would leave a part of what it compiles, and then not run any more.
    process = start(coord, *argv, env={"PYTHONDONTWRITEBYTECODE": "1"}, preexec_fn=limit)
    answer = finish(process)
    return answer.exit, answer.err


def files(root: Path) -> dict[str, bytes]:
    """Give all files but locks, which are made for what is then not written."""
    found = (path for path in root.rglob("*") if path.is_file() and path.suffix != ".lock")
    return {str(path.relative_to(root)): path.read_bytes() for path in found}


def test_a_mirror_that_has_no_room_stays_as_it_was(coord: Coord) -> None:
    lay(coord.state, "e0", LANE)
    assert coord("log", "--sync").exit == 0
    for number in range(1, 100):
        lay(coord.state, f"e{number}", LANE)
    before = files(coord.state)
    said = f"log mirror unwritable: {coord.state}/log.tsv: file too large\n"
    assert confined(coord, "log", "--sync") == (2, said)
    assert confined(coord, "gc", "--execute", "--sync-first") == (2, said)
    assert files(coord.state) == before
    assert coord("log", "--sync").out == f"synced 99 new events to {coord.state}/log.tsv\n"


def test_what_is_known_of_a_mirror_may_have_no_room_and_costs_it_nothing(coord: Coord) -> None:
    lay(coord.state, "e0", LANE)
    for number in range(1, 200):
        lay(coord.state, f"e{number}", LANE | {"synthetic": True})  # no lines, but names to be known
    assert confined(coord, "log", "--sync") == (0, "")
    assert list((coord.state / ".cache").iterdir()) == []
    mirror = (coord.state / "log.tsv").read_bytes()
    assert mirror.count(b"\n") == 1
    assert coord("log", "--sync").exit == 0
    assert (coord.state / ".cache/log.tsv.json").stat().st_size > ROOM
    lay(coord.state, "new", LANE)
    assert confined(coord, "log", "--sync") == (0, "")
    assert coord("log", "--sync").out == f"synced 0 new events to {coord.state}/log.tsv\n"
    shutil.rmtree(coord.state / ".cache")
    assert (coord.state / "log.tsv").read_bytes().startswith(mirror)


def test_an_archive_that_has_no_room_costs_no_event(coord: Coord) -> None:
    for number in range(100):
        lay(coord.state, f"e{number}", LANE | {"phase": f"p{number}"})
    lay(coord.state, "z", CLOSED)
    before = files(coord.state)
    status, said = confined(coord, "gc", "--execute")
    assert status == 2
    assert re.fullmatch(r"state record is not writable: archive/events/b1/compact-\S+\.json: file too large\n", said)
    assert files(coord.state) == before
    assert coord("gc", "--execute").exit == 0
    (envelope,) = files(coord.state).values()
    assert len(json.loads(envelope)["records"]) == 101
