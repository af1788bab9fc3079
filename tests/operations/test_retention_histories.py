"""Retention over whole histories: what `log` tells afterwards is what it told before, less what may be dropped.

What may be dropped is said here a second time, as plainly as can be, for records that are all sound.
"""

from collections.abc import Callable, Generator, Iterable
from contextlib import contextmanager
from datetime import datetime, timedelta
from tempfile import TemporaryDirectory
from typing import NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentcoord.errors import Conflict, StoreError
from agentcoord.operations.context import Context
from agentcoord.operations.mirror import sync_mirror
from agentcoord.operations.retention import Retention, RetentionRequest, retain
from agentcoord.operations.trail import TrailRequest, read_trail
from agentcoord.protocol.documents import Document, is_document
from agentcoord.protocol.instants import stamp
from agentcoord.protocol.mirror import line_of
from agentcoord.protocol.paths import ARCHIVABLE, FAMILIES
from agentcoord.protocol.retention import Archive, Delete, Policy
from agentcoord.stores.base import Store, Stored
from agentcoord.stores.local import LocalStore
from agentcoord.stores.memory import MemoryStore
from tests.operations.stage import Chance, FakeClock, FaultyStore

pytestmark = pytest.mark.anyio

Records = dict[str, Document]
Stores = Callable[[str], Store]


class Play:
    """A state, a clock, and a mirror in a directory."""

    def __init__(self, store: Store, directory: str) -> None:
        self.store, self.directory = store, directory
        self.clock = FakeClock()
        self.told = 0

    def context(self, store: Store | None = None) -> Context:
        return Context(store=store or self.store, now=self.clock.now, random=Chance(), notices=[])

    async def lay(self, records: Iterable["Laid"]) -> None:
        """Lay records that are as old as they say by the clock; each has a name of its own."""
        for each in records:
            self.told += 1
            path, document = each.record(self.told, self.clock.now())
            await self.store.write(path, document, version=None, note="")

    async def records(self) -> Records:
        found: Records = {}
        for family in FAMILIES:
            for entry in (await self.store.list(family)).entries:
                assert isinstance(entry, Stored)
                assert is_document(entry.document)
                found[entry.path] = entry.document
        return found

    async def log(self) -> list[str]:
        trail = await read_trail(self.context(), TrailRequest(include_synthetic=True))
        assert trail.incomplete == []
        return [line_of(row) for row in trail.rows]

    async def gc(self, round: "Round", store: Store | None = None, *, execute: bool = True) -> Retention:
        return await retain(self.context(store), RetentionRequest(execute, round.policy, round.prefixes))

    async def sync(self) -> None:
        await sync_mirror(self.context(), TrailRequest(sync=True, include_synthetic=True), self.directory)

    def mirror(self) -> list[str]:
        try:
            with open(f"{self.directory}/log.tsv", encoding="utf-8", newline="\n") as file:
                return file.read().split("\n")[:-1]
        except FileNotFoundError:
            return []


class Laid(NamedTuple):
    """A record to be laid; `age` in hours."""

    family: str
    age: int
    batch: str
    target: str
    lane: str | None
    phase: str | None
    synthetic: bool
    state: str

    def record(self, number: int, now: datetime) -> tuple[str, Document]:
        at = stamp(now - timedelta(hours=self.age))
        marks: Document = {"synthetic": True} if self.synthetic else {}
        if self.family != "events":
            name = f"claims/o/r/{number}" if self.family == "claims" else f"{self.family}/x{number}"
            times = {"updated_at": at, "expires_at": stamp(now - timedelta(hours=self.age - 1))}
            return f"{name}.json", {"status": self.state, **times, **marks}
        event: Document = {"event_id": f"e{number:04}", "batch_id": self.batch, "repo": "o/r", "target": self.target}
        event |= {"type": "note", "at": at, **marks}
        event |= {"lane": self.lane} if self.lane else {}
        event |= {"phase": self.phase} if self.phase else {}
        if self.state in ("released", "completed"):  # the one is a valid closing, the other lacks its workspace
            event |= {"schema_version": 2, "type": "lane_closed", "terminal": "done"}
            event |= {"closed_by": {"agent_id": "a", "machine": "m"}}
            event |= {"workspace": "w"} if self.state == "released" else {}
        return f"events/{self.batch}/e{number:04}.json", event


class Round(NamedTuple):
    """Something is laid, time goes by, and retention runs."""

    laid: list[Laid]
    hours: int
    policy: Policy
    prefixes: tuple[str, ...]


laid = st.builds(
    Laid,
    family=st.sampled_from(["events"] * 6 + ["claims", "heartbeats", "batches"]),
    age=st.integers(0, 100),
    batch=st.sampled_from(["b1", "b1", "b2"]),
    target=st.sampled_from(["7", "7", "8"]),
    lane=st.sampled_from(["qa", "qa", "docs", None, None]),
    phase=st.sampled_from(["x", "y", None]),
    synthetic=st.sampled_from([False, False, True]),
    state=st.sampled_from(["active", "active", "released", "completed", "done"]),
)
policies = st.builds(
    Policy,
    hot_days=st.integers(0, 3),
    archive_days=st.integers(0, 5),
    synthetic_hot_days=st.integers(0, 2),
)
families = st.just(ARCHIVABLE) | st.lists(st.sampled_from(ARCHIVABLE), min_size=1, unique=True).map(tuple)
rounds = st.builds(Round, st.lists(laid, max_size=12), st.sampled_from([0, 1, 30, 100]), policies, families)


# The rule, said again ------------------------------------------------------------------------------


def hours(records: Document, now: datetime) -> float:
    return (now - datetime.fromisoformat(records["at" if "at" in records else "updated_at"])).total_seconds() / 3600


def due(record: Document, policy: Policy, now: datetime) -> bool:
    days = policy.synthetic_hot_days if record.get("synthetic") else policy.hot_days
    return hours(record, now) >= 24 * days


def closes(event: Document) -> bool:
    return event["type"] == "lane_closed" and "workspace" in event


def gone(records: Records, round: Round, now: datetime) -> tuple[set[str], set[str]]:
    """Give the paths of events that are compacted, and of those among them that no envelope keeps."""
    events = {path: event for path, event in records.items() if path.startswith("events/")}
    lanes: dict[tuple[str, str], set[str | None]] = {}
    for event in events.values():
        if closes(event) and "lane" in event:
            lanes.setdefault((event["batch_id"], event["target"]), set()).add(event["lane"])
    groups: dict[object, list[str]] = {}
    for path, event in events.items():
        item = (event["batch_id"], event["target"])
        closed = lanes.get(item, set())
        lane = event.get("lane", next(iter(closed)) if len(closed) == 1 else None)
        groups.setdefault((item, lane), []).append(path)
    compacted, dropped = set[str](), set[str]()
    for paths in groups.values() if "events" in round.prefixes else ():
        group = [events[path] for path in paths]
        if not all(due(event, round.policy, now) for event in group):
            continue
        if not any(map(closes, group)) and not all(event.get("synthetic") for event in group):
            continue
        compacted.update(paths)
        ordered = sorted(paths, key=lambda path: (events[path]["at"], closes(events[path]), path))
        phases = [events[path].get("phase") for path in ordered]
        for number in range(1, len(ordered) - 1):
            before = next((phase for phase in reversed(phases[:number]) if phase), None)
            turns = phases[number] is not None and phases[number] != before
            if not turns and not closes(events[ordered[number]]):
                dropped.add(ordered[number])
    return compacted, dropped


def told(records: Records) -> set[str]:
    """Give the paths of the events that are known, hot or in an envelope."""
    found = {path for path in records if path.startswith("events/")}
    for path, envelope in records.items():
        if path.startswith("archive/events/"):
            found |= {f"events/{event['batch_id']}/{event['event_id']}.json" for event in envelope["records"]}
    return found


def settled(path: str, record: Document, now: datetime) -> bool:
    family, status = path.partition("/")[0], record["status"]
    if family == "heartbeats":
        return status == "done" or hours(record, now) >= 4  # their ttl is an hour
    return status == {"claims": "released", "batches": "completed"}[family]


def moved(records: Records, round: Round, now: datetime) -> set[str]:
    """Give the paths of the other records that are archived."""
    return {
        path
        for path, record in records.items()
        if path.partition("/")[0] in {*round.prefixes} - {"events"} and settled(path, record, now)
        if hours(record, now) - (4 if path.startswith("heartbeats") and record["status"] != "done" else 0)
        >= 24 * (round.policy.synthetic_hot_days if record.get("synthetic") else round.policy.hot_days)
    }


def ids(rows: Iterable[str]) -> list[str]:
    return [row.split("\t")[10] for row in rows]


# Holding it against what is done -------------------------------------------------------------------


def in_memory(directory: str) -> Store:
    del directory
    return MemoryStore()


def on_disk(directory: str) -> Store:
    return LocalStore(directory, settle=False)


@contextmanager
def played(made: Stores) -> Generator[Play]:
    with TemporaryDirectory() as directory:
        yield Play(made(directory), directory)


def applied(records: Records, plan: Retention) -> Records:
    """Do what a plan says to records in a dictionary."""
    after = dict(records)
    for action in sorted(plan.actions, key=lambda action: isinstance(action, Delete)):
        if isinstance(action, Delete):
            del after[action.source_path]
            continue
        if getattr(action, "replaces", False) or action.archive_path not in after:
            after[action.archive_path] = action.envelope
        for path in (action.source_path,) if isinstance(action, Archive) else action.source_paths:
            del after[path]
    return after


histories = st.lists(rounds, min_size=1, max_size=4)


@settings(max_examples=80)
@given(histories)
async def test_the_log_loses_only_what_may_be_dropped(rounds: list[Round]) -> None:
    await _play(in_memory, rounds)


@settings(max_examples=6)
@given(histories)
async def test_files_lose_only_what_may_be_dropped(rounds: list[Round]) -> None:
    await _play(on_disk, rounds)


async def _play(made: Stores, rounds: list[Round]) -> None:
    with played(made) as play:
        ever = set[str]()
        for round in rounds:
            await play.lay(round.laid)
            play.clock.advance(hours=round.hours)
            now, before, rows = play.clock.now(), await play.records(), await play.log()
            await play.sync()
            ever.update(rows)
            plan = await play.gc(round, execute=False)
            assert await play.records() == before, "only announced"
            assert (await play.gc(round)).actions == plan.actions
            after = await play.records()
            assert after == applied(before, plan)
            compacted, dropped = gone(before, round, now)
            assert compacted | moved(before, round, now) == {
                path for path in before if path not in after and not path.startswith("archive/")
            }
            expired = {
                path for path in before if path.startswith("archive/") and before[path]["delete_after"] <= stamp(now)
            }
            assert expired == {path for path in before if path.startswith("archive/") and path not in after}
            kept = told({path: record for path, record in before.items() if path not in expired}) - dropped
            assert told(after) == kept
            names = {path.rpartition("/")[2].removesuffix(".json") for path in kept}
            assert await play.log() == [row for row in rows if ids([row])[0] in names]
            await play.sync()
            assert set(play.mirror()) == ever
            assert sorted(ids(play.mirror())) == sorted({*ids(ever)}), "each once"
            again = await play.gc(round, execute=False)
            assert again.actions == () or round.policy.archive_days == 0


groups = st.lists(laid, min_size=4, max_size=14)
errors = st.sampled_from([StoreError, Conflict])


@settings(max_examples=50)
@given(groups, policies, st.booleans(), errors)
async def test_wherever_a_run_ends_the_next_one_comes_to_the_same(
    laid: list[Laid], policy: Policy, landed: bool, error: Callable[[str], StoreError]
) -> None:
    await _kill_everywhere(in_memory, laid, policy, landed=landed, error=error)


@settings(max_examples=3)
@given(groups, policies, st.booleans(), errors)
async def test_wherever_a_run_on_files_ends_the_next_one_comes_to_the_same(
    laid: list[Laid], policy: Policy, landed: bool, error: Callable[[str], StoreError]
) -> None:
    await _kill_everywhere(on_disk, laid, policy, landed=landed, error=error)


async def _kill_everywhere(
    made: Stores, laid: list[Laid], policy: Policy, *, landed: bool, error: Callable[[str], StoreError]
) -> None:
    """End a run at each of its changes in turn; with `landed` the change is made and its answer lost."""
    # An archive that keeps nothing has nothing to be found in.
    round = Round(laid, 100, Policy(policy.hot_days, 9, policy.synthetic_hot_days), ARCHIVABLE)
    number, changes = 0, 1
    while number < changes:
        number += 1
        with played(made) as play:
            await play.lay(laid)
            play.clock.advance(hours=round.hours)
            before, rows = await play.records(), await play.log()
            compacted, dropped = gone(before, round, play.clock.now())
            failing = FaultyStore(play.store, at=number, error=error, landed=landed, deletes=True)
            try:
                await play.gc(round, failing)
            except StoreError:
                changes = max(changes, number + 1)
            between = await play.log()
            assert len(set(ids(between))) == len(between), "told twice"
            assert told(before) - dropped <= told(await play.records()), f"lost at change {number}"
            assert set(between) <= set(rows)
            await play.gc(round)
            finished, after = await play.log(), await play.records()
            assert len(set(ids(finished))) == len(finished), "told twice"
            assert {row for row in rows if named(row) not in dropped} <= set(finished) <= set(rows)
            assert not compacted & after.keys(), "some is left"
            assert not moved(before, round, play.clock.now()) & after.keys(), "some is left"
            assert (await play.gc(round, execute=False)).actions == ()


def named(row: str) -> str:
    fields = row.split("\t")
    return f"events/{fields[7]}/{fields[10]}.json"
