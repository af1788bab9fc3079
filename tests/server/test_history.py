"""The fleet as a whole, under a nemesis: whatever breaks, no promise that somebody was given is broken.

AGENT_COORD_HISTORY_SECONDS says for how long, AGENT_COORD_HISTORY_SEED with which choices.

The first half is the checker's own: histories that cannot have happened in a sound fleet, each of which it has to
reject, and ones that may.
"""

import os
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import anyio
import msgspec
import pytest

from agentcoord.protocol.instants import stamp
from tests.command import PATIENCE
from tests.server.evidence import require_kept, seed, witnessed
from tests.server.fleet import Run, agent, fleet, haunt, name_of, tokens
from tests.server.history import Change, Clock, Event, Final, History, calls, check, figures, holds
from tests.server.postgres import Cluster

SECONDS = float(os.environ.get("AGENT_COORD_HISTORY_SECONDS", "8"))
SEED = seed()
CLIENTS, SERVERS = 32, 3
ITEMS = tuple(str(number) for number in range(16))

PATH = "claims/example/fleet/1.json"
BEAT = "heartbeats/{}.json"


class Told:
    """A history made by hand. Times are seconds after an instant; each call is written down with its outcome."""

    ZERO = 1_800_000_000.0

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.changes: list[Change] = []
        self.final: dict[str, Final] = {}

    def record(self, client: str, expires: float, status: str = "active") -> dict[str, Any]:
        return {"agent_id": client, "status": status, "expires_at": self.at(expires)}

    def at(self, seconds: float) -> str:
        return stamp(datetime.fromtimestamp(self.ZERO + seconds, UTC))

    def call(
        self, client: str, action: str, path: str, asked: float, told: float | None, stage: Any = "ok", **facts: Any
    ) -> None:
        """Add a call; `told` is None for one that nothing came of."""
        call = len(self.events)
        said = {name: facts.pop(name) for name in ("expected", "document") if name in facts}
        begun = self.ZERO + asked
        self.events.append(Event(call, client, "invoke", action, path, begun, begun, **said))
        if told is not None:
            ended = self.ZERO + told
            self.events.append(Event(call, client, stage, action, path, ended, ended, **facts))

    def write(
        self,
        client: str,
        version: int,
        document: Any,
        asked: float,
        told: float | None = None,
        *,
        stage: Any = "ok",
        path: str = PATH,
        stored: bool = True,
    ) -> None:
        """Add a write that makes a version, stored or not."""
        expected = version - 1 or None
        facts = {"version": version} if stage == "ok" else {}
        self.call(client, "write", path, asked, told, stage, expected=expected, document=document, **facts)
        if stored:
            self.changes.append(Change(path, version, deleted=False, client=client))
            self.final[path] = Final(version, document)

    def broken(self) -> list[str]:
        return check(self.events, self.changes, self.final)


@pytest.fixture
def told() -> Told:
    return Told()


def only(broken: Sequence[str], what: str) -> None:
    """Require one complaint, of one kind."""
    assert [line.split(":")[0] for line in broken] == [what], broken


def test_a_lease_that_changes_hands_in_good_order(told: Told) -> None:
    told.write("a", 1, told.record("a", 3), 0.1, 0.2)
    told.write("a", 2, told.record("a", 4), 1.1, 1.2)
    told.write("a", 3, told.record("a", 2, "released"), 2.1, 2.4)
    told.write("b", 4, told.record("b", 5), 2.3, 2.4)  # the release was stored before its answer came
    told.write("c", 5, told.record("c", 8), 5.0, 5.0)
    assert told.broken() == []
    assert [
        (hold.client, round(hold.start - told.ZERO, 3), round(hold.end - told.ZERO, 3))
        for hold in holds(calls(told.events))[PATH]
    ] == [("a", 0.2, 1.2), ("a", 1.2, 2.1), ("b", 2.4, 5.0), ("c", 5.0, 8.0)]


def test_two_holders(told: Told) -> None:
    told.write("a", 1, told.record("a", 3), 0.1, 0.2)
    told.write("b", 2, told.record("b", 5), 2.8, 2.9)
    only(told.broken(), "two holders")


def test_two_holders_of_which_one_began_within_the_last_second(told: Told) -> None:
    told.write("a", 1, told.record("a", 3), 0.1, 0.2)
    told.write("b", 2, told.record("b", 5), 2.99, 2.999)
    only(told.broken(), "two holders")


def test_a_lease_ends_at_its_stamp_to_the_microsecond(told: Told) -> None:
    told.write("a", 1, told.record("a", 3), 0.1, 0.2)
    told.write("b", 2, told.record("b", 5), 3.0, 3.0)
    assert told.broken() == []


def test_two_holders_after_a_renewal(told: Told) -> None:
    told.write("a", 1, told.record("a", 3), 0.1, 0.2)
    told.write("a", 2, told.record("a", 6), 2.1, 2.2)
    told.write("b", 3, told.record("b", 8), 4.1, 4.2)
    only(told.broken(), "two holders")


def test_a_renewal_that_nobody_answered_may_have_cut_the_lease_short(told: Told) -> None:
    told.write("a", 1, told.record("a", 6), 0.1, 0.2)
    told.write("a", 2, told.record("a", 2), 1.1, 1.6, stage="unknown")
    told.write("b", 3, told.record("b", 8), 2.1, 2.2)
    assert told.broken() == []


def test_a_renewal_that_nobody_answered_prolongs_nothing(told: Told) -> None:
    told.write("a", 1, told.record("a", 3), 0.1, 0.2)
    told.write("a", 2, told.record("a", 9), 1.1, 1.6, stage="unknown", stored=False)
    told.write("b", 2, told.record("b", 8), 3.1, 3.2)
    assert told.broken() == []


def test_a_refused_renewal_cuts_nothing_short(told: Told) -> None:
    told.write("a", 1, told.record("a", 6), 0.1, 0.2)
    told.write("a", 2, told.record("a", 2), 1.1, 1.2, stage="fail", stored=False)
    told.write("b", 2, told.record("b", 8), 3.1, 3.2)
    only(told.broken(), "two holders")


def test_the_dead_hold_nothing(told: Told) -> None:
    beat = {"updated_at": told.at(0), "expires_at": told.at(1)}
    told.write("a", 1, beat, 0.1, 0.2, path=BEAT.format("a"))
    told.write("a", 1, told.record("a", 9), 0.3, 0.4)
    told.write("b", 2, told.record("b", 9), 4.1, 4.2)
    assert told.broken() == []


def test_the_living_are_not_robbed(told: Told) -> None:
    beat = {"updated_at": told.at(0), "expires_at": told.at(1)}
    told.write("a", 1, beat, 0.1, 0.2, path=BEAT.format("a"))
    told.write("a", 1, told.record("a", 9), 0.3, 0.4)
    told.write("b", 2, told.record("b", 9), 3.8, 3.9)
    only(told.broken(), "two holders")


def test_a_lost_write(told: Told) -> None:
    told.write("a", 1, told.record("a", 3), 0.1, 0.2)
    told.write("a", 2, told.record("a", 4), 1.1, 1.2, stored=False)
    only(told.broken(), "a yes that the database does not know")


def test_a_yes_for_the_write_of_another(told: Told) -> None:
    told.write("a", 1, {"n": 1}, 0.1, 0.2, path="batches/x.json", stored=False)
    told.write("b", 1, {"n": 1}, 0.1, 0.2, stage="unknown", path="batches/x.json")
    only(told.broken(), "a yes that the database does not know")


def test_one_version_won_by_two(told: Told) -> None:
    told.write("a", 1, {"n": 1}, 0.1, 0.2, path="batches/x.json")
    told.write("b", 1, {"n": 1}, 0.1, 0.2, path="batches/x.json", stored=False)
    assert {line.split(":")[0] for line in told.broken()} == {
        "a yes that the database does not know",
        "won more than once",
    }


def test_another_version_than_asked_for(told: Told) -> None:
    told.write("a", 1, {"n": 1}, 0.1, 0.2, path="batches/x.json")
    told.events[-1] = msgspec.structs.replace(told.events[-1], version=2)
    assert "another version than asked for" in told.broken()[0]


def test_a_write_that_was_refused_and_is_there(told: Told) -> None:
    told.write("a", 1, {"n": 1}, 0.1, 0.2, stage="fail", path="batches/x.json")
    assert "in the database, and nobody may have written it" in told.broken()[0]


def test_an_unknown_outcome_may_be_either(told: Told) -> None:
    told.write("a", 1, {"n": 1}, 0.1, 0.2, stage="unknown", path="batches/x.json")
    told.write("a", 1, {"n": 1}, 0.1, None, stage="unknown", path="batches/y.json", stored=False)
    assert told.broken() == []


def test_versions_with_a_gap(told: Told) -> None:
    told.write("a", 1, {"n": 1}, 0.1, 0.2, path="batches/x.json")
    told.write("a", 3, {"n": 3}, 0.3, 0.4, path="batches/x.json")
    only(told.broken(), "versions with a gap")


def test_a_record_that_went_back(told: Told) -> None:
    told.write("a", 1, {"n": 1}, 0.1, 0.2, path="batches/x.json")
    told.write("a", 2, {"n": 2}, 0.3, 0.4, path="batches/x.json")
    told.final["batches/x.json"] = Final(1, {"n": 1})
    assert "not what the last change left" in told.broken()[0]


def test_a_record_that_vanished(told: Told) -> None:
    told.write("a", 1, {"n": 1}, 0.1, 0.2, path="batches/x.json")
    told.final.clear()
    only(told.broken(), "not what the last change left")


def test_content_that_nobody_sent(told: Told) -> None:
    told.write("a", 1, {"n": 1}, 0.1, 0.2, path="batches/x.json")
    told.final["batches/x.json"] = Final(1, {"n": 2})
    only(told.broken(), "not what was written")


def test_the_answered_content_stands_not_the_unanswered_one(told: Told) -> None:
    told.write("a", 1, {"n": 0}, 0.1, 0.2, stage="unknown", path="batches/x.json", stored=False)
    told.write("a", 1, {"n": 1}, 0.3, 0.4, path="batches/x.json")
    assert told.broken() == []
    told.final["batches/x.json"] = Final(1, {"n": 0})
    only(told.broken(), "not what was written")


def test_a_deleted_record_begins_anew(told: Told) -> None:
    for asked in (1, 2):
        told.write("a", 1, {"n": asked}, asked + 0.1, asked + 0.2, path="batches/x.json")
        told.call("a", "delete", "batches/x.json", asked + 0.3, asked + 0.4, expected=1)
        told.changes.append(Change("batches/x.json", 1, deleted=True, client="a"))
    told.final.clear()
    assert told.broken() == []
    told.final["batches/x.json"] = Final(1, {"n": 2})
    assert "not what the last change left" in told.broken()[0]


def test_an_unanswered_content_may_stand_where_a_deleted_one_was_answered(told: Told) -> None:
    told.write("a", 1, {"n": 1}, 0.1, 0.2, path="batches/x.json")
    told.call("a", "delete", "batches/x.json", 0.3, 0.4, expected=1)
    told.changes.append(Change("batches/x.json", 1, deleted=True, client="a"))
    told.write("a", 1, {"n": 2}, 0.5, 0.6, stage="unknown", path="batches/x.json")
    assert told.broken() == []
    told.final["batches/x.json"] = Final(1, {"n": 3})
    only(told.broken(), "not what was written")


def test_a_deletion_that_was_lost(told: Told) -> None:
    told.write("a", 1, {"n": 1}, 0.1, 0.2, path="batches/x.json")
    told.call("a", "delete", "batches/x.json", 0.3, 0.4, expected=1)
    only(told.broken(), "a yes that the database does not know")


def test_a_stale_read(told: Told) -> None:
    told.write("a", 1, {"n": 1}, 0.1, 0.2, path="batches/x.json")
    told.write("a", 2, {"n": 2}, 0.3, 0.4, path="batches/x.json")
    told.call("b", "read", "batches/x.json", 0.35, 0.9, version=1)
    assert told.broken() == []
    told.call("b", "read", "batches/x.json", 0.45, 0.9, version=1)
    only(told.broken(), "a stale read")


def claimed(told: Told, client: str, version: int, fence: str, *, renewed: bool = False) -> None:
    told.write(client, version, told.record(client, version + 0.9), version + 0.1, version + 0.2)
    told.call(client, "claim", PATH, version, version + 0.3, fence=fence, renewed=renewed, version=version)


def released(told: Told, client: str, version: int) -> None:
    told.write(client, version, told.record(client, version, "released"), version + 0.1, version + 0.2)


def test_fences_in_good_order(told: Told) -> None:
    claimed(told, "a", 1, "f1")
    claimed(told, "a", 2, "f1", renewed=True)
    claimed(told, "b", 3, "f2")
    claimed(told, "a", 4, "f3")
    released(told, "a", 5)
    claimed(told, "a", 6, "f4")
    assert told.broken() == []


def test_the_fence_of_an_acquisition_that_nobody_answered_comes_with_its_renewal(told: Told) -> None:
    told.write("a", 1, told.record("a", 2), 0.1, None)
    claimed(told, "a", 2, "f1", renewed=True)
    assert told.broken() == []


def test_a_fence_that_repeats(told: Told) -> None:
    claimed(told, "a", 1, "f1")
    released(told, "a", 2)
    claimed(told, "a", 3, "f1")
    assert {line.split(":")[0] for line in told.broken()} == {
        "one fence for two acquisitions",
        "a fence that came back",
    }


def test_a_fence_that_two_have(told: Told) -> None:
    claimed(told, "a", 1, "f1")
    claimed(told, "b", 2, "f1", renewed=True)
    only(told.broken(), "one fence for two")


def test_a_fence_that_outlives_a_takeover(told: Told) -> None:
    claimed(told, "a", 1, "f1")
    claimed(told, "b", 2, "f2")
    claimed(told, "a", 3, "f1", renewed=True)
    assert "a fence that came back" in told.broken()[0]


def test_a_renewal_with_another_fence(told: Told) -> None:
    claimed(told, "a", 1, "f1")
    claimed(told, "a", 2, "f2", renewed=True)
    only(told.broken(), "a renewal with another fence")


def test_a_broken_history_is_kept(told: Told, tmp_path: Path) -> None:
    history = History(Clock())
    history.ok(history.invoke("a", "write", PATH, document={"n": 1}), version=1)
    history.unknown(history.invoke("a", "read", PATH), "no answer")
    history.save(tmp_path / "below/kept.jsonl", {"seed": 7})
    first, *lines = (tmp_path / "below/kept.jsonl").read_bytes().splitlines()
    assert msgspec.json.decode(first) == {"seed": 7}
    assert [msgspec.json.decode(line, type=Event) for line in lines] == history.events
    assert [event.stage for event in history.events] == ["invoke", "ok", "invoke", "unknown"]


async def test_no_promise_is_broken_whatever_breaks(cluster: Cluster, capsys: pytest.CaptureFixture[str]) -> None:
    db = await anyio.to_thread.run_sync(cluster.database)
    clock = Clock()
    run = Run(SEED, clock, History(clock))
    async with fleet(db, SERVERS) as replicas:
        given = await tokens(db, [name_of(number) for number in range(CLIENTS)])
        run.until = clock.monotonic() + SECONDS
        with witnessed(run.history, "fleet", SEED), anyio.fail_after(SECONDS + PATIENCE):
            async with anyio.create_task_group() as tasks:
                for number, token in enumerate(given.values()):
                    tasks.start_soon(agent(run, number, token, ITEMS, replicas).live)
                for number, replica in enumerate(replicas):
                    tasks.start_soon(haunt, run, replica, f"nemesis-{number}")
    counted = dict(sorted((run.tally + figures(run.history.events)).items()))
    if "AGENT_COORD_HISTORY_SECONDS" in os.environ:
        with capsys.disabled():
            # A long run is made for its figures. The stdout of a worker is nowhere to be seen.
            print(f"\nfleet: seed {SEED}, {SECONDS:g} s, {counted}", file=sys.stderr)  # noqa: T201
    await require_kept(run.history, db, "fleet", SEED)
