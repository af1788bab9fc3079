"""`gc` as a process: killed at random points, beside another one, and beside writers of the same state."""

import asyncio
import json
import random
import signal
import threading
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from agentcoord.errors import Conflict
from agentcoord.operations.claims import Claimed, claim
from agentcoord.operations.context import Context
from agentcoord.protocol.claims import Wanted
from agentcoord.protocol.documents import Document, encode_pretty
from agentcoord.protocol.instants import stamp
from agentcoord.stores.local import LocalStore
from tests.command import Coord
from tests.daemon.running import until
from tests.e2e.running import start
from tests.operations.stage import Chance

CLAIMS = 30
MANY = 300
"""Claims that keep a run busy for so long that it is killed more than once."""
LANES = ("a", "b", "c")
EVENTS = 12

KEPT = {f"{lane}-{number:02}" for lane in LANES for number in (0, 5, EVENTS)}
"""The first event of each lane, the one that changed the phase, and the closing."""


def lay(root: Path, path: str, document: Document) -> None:
    place = root / path
    place.parent.mkdir(parents=True, exist_ok=True)
    place.write_bytes(encode_pretty(document))


def lay_old(root: Path, *, claims: int = CLAIMS) -> None:
    """Lay released claims, and lanes that are closed, all of them long ago."""
    old = datetime.now(UTC) - timedelta(days=9)
    for number in range(claims):
        facts = {"schema_version": 1, "repo": "o/r", "target": str(number), "agent_id": "a", "status": "released"}
        lay(root, f"claims/o/r/{number}.json", facts | {"updated_at": stamp(old), "expires_at": stamp(old)})
    for lane in LANES:
        for number in range(EVENTS + 1):
            name = f"{lane}-{number:02}"
            event: Document = {"schema_version": 1, "event_id": name, "batch_id": lane, "type": "note", "lane": lane}
            event |= {"repo": "o/r", "target": "7", "at": stamp(old + timedelta(minutes=number))}
            event |= {"phase": "late" if number >= 5 else "early"}
            if number == EVENTS:
                event |= {"schema_version": 2, "type": "lane_closed", "terminal": "done", "workspace": "w"}
                event |= {"closed_by": {"agent_id": "a", "machine": "m"}}
            lay(root, f"events/{lane}/{name}.json", event)


def told(coord: Coord) -> list[str]:
    """Give the ids of the trail's events."""
    answer = coord("log", "--json")
    assert answer.exit == 0, answer.err
    trail = answer.json()
    assert trail["trail"] == "complete", answer.err
    return [event["event_id"] for event in trail["events"]]


def records(root: Path, family: str) -> dict[str, Any]:
    """Give the records of a family, each of which has to be whole."""
    return {
        str(place.relative_to(root)): json.loads(place.read_bytes())
        for place in (root / family).rglob("*.json")
        if not place.name.startswith(".")
    }


def changes(root: Path) -> int:
    """Count what a run has done so far."""
    hot = sum(1 for family in ("claims", "events") for _ in (root / family).rglob("*.json"))
    return sum(1 for _ in (root / "archive").rglob("*.json")) - hot


def assert_nothing_lost(coord: Coord, *, claims: int = CLAIMS) -> None:
    """Check that each claim is there, hot or archived, and each event that has to be, once."""
    hot, archived = records(coord.state, "claims"), records(coord.state, "archive")
    there = {*hot, *(path.removeprefix("archive/") for path in archived if "claims" in path)}
    assert {f"claims/o/r/{number}.json" for number in range(claims)} <= there
    ids = told(coord)
    assert len(set(ids)) == len(ids), "told twice"
    assert {*ids} >= KEPT


def assert_done(coord: Coord, *, claims: int = CLAIMS) -> None:
    assert coord("gc", "--execute").exit == 0
    assert_nothing_lost(coord, claims=claims)
    assert records(coord.state, "claims") == records(coord.state, "events") == {}
    assert coord("gc", "--dry-run").out.splitlines()[1:] == ["- no actions"]


@pytest.mark.parametrize("seed", range(2))
def test_killed_again_and_again_it_comes_to_its_end_and_loses_nothing(coord: Coord, seed: int) -> None:
    chance = random.Random(seed)
    lay_old(coord.state, claims=MANY)
    kills = 0
    for _ in range(4):
        process = start(coord, "gc", "--execute")
        wanted = changes(coord.state) + chance.randrange(1, 25)
        until(lambda process=process, wanted=wanted: changes(coord.state) >= wanted or process.poll() is not None)
        process.send_signal(signal.SIGKILL)
        process.communicate()
        kills += process.returncode == -signal.SIGKILL
        assert_nothing_lost(coord, claims=MANY)
    assert kills > 1, "it ended before it could be killed a second time"
    assert_done(coord, claims=MANY)


def test_several_at_once_lose_nothing_and_one_of_them_or_the_next_gets_through(coord: Coord) -> None:
    lay_old(coord.state)
    running = [start(coord, "gc", "--execute") for _ in range(3)]
    for process in running:
        out, err = process.communicate()
        assert process.returncode in (0, 2), err
        if process.returncode == 2:
            assert out == b""
            assert len(err.splitlines()) == 1, err
            assert b" changed at " in err or b"conflict at " in err or b"already exists" in err, err
    assert_nothing_lost(coord)
    assert_done(coord)


def test_beside_writers_it_takes_nothing_that_is_new(coord: Coord) -> None:
    """Items whose old claims are due are claimed anew, and events join lanes that are due, while it runs."""
    lay_old(coord.state)
    store, taken, written = LocalStore(str(coord.state)), list[str](), list[str]()
    context = Context(store=store, now=lambda: datetime.now(UTC), random=Chance())

    async def write() -> None:
        for number in random.Random(5).sample(range(CLAIMS), CLAIMS):
            try:
                made = await claim(context, Wanted(repo="o/r", target=str(number), agent_id="new", ttl=3600))
            except Conflict:
                continue
            assert isinstance(made, Claimed)
            taken.append(f"claims/o/r/{number}.json")
            lane = LANES[number % len(LANES)]
            event = {"event_id": f"new-{number}", "batch_id": lane, "lane": lane, "repo": "o/r", "target": "7"}
            now = {"schema_version": 1, "type": "note", "at": stamp(context.now())}
            await store.write(f"events/{lane}/new-{number}.json", event | now, version=None, note="")
            written.append(f"new-{number}")

    writer = threading.Thread(target=lambda: asyncio.run(write()))
    writer.start()
    while writer.is_alive():
        answer = coord("gc", "--execute")
        assert answer.exit in (0, 2), answer.err
    writer.join()
    for _ in range(2):
        assert coord("gc", "--execute").exit == 0
        assert {*taken} == records(coord.state, "claims").keys()
        assert all(record["agent_id"] == "new" for record in records(coord.state, "claims").values())
        assert_nothing_lost(coord)
        assert {*written} <= {*told(coord)}
    assert len(taken) > CLAIMS // 2
    assert len(written) == len(taken)
