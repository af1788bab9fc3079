"""A sync that skips what the mirror has: the mirror is the same to the byte as if all had been read."""

import os
import shutil
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from datetime import timedelta
from operator import methodcaller
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentcoord.errors import StoreError
from agentcoord.operations.context import Context
from agentcoord.operations.mirror import Synced, sync_mirror
from agentcoord.operations.mirrored import CACHE, FORMAT, NAME, TRUSTED
from agentcoord.operations.retention import RetentionRequest, retain
from agentcoord.operations.trail import TrailRequest
from agentcoord.protocol.documents import Document, decode, encode_pretty
from agentcoord.protocol.instants import stamp
from agentcoord.protocol.retention import Policy
from agentcoord.stores.base import Decode, Listing, Store
from agentcoord.stores.local import LocalStore
from tests.daemon.running import until
from tests.operations.stage import START, Chance, FakeClock
from tests.stores.counting import CountingStore

pytestmark = pytest.mark.anyio


class WatchedStore(LocalStore):
    """Remembers which records a listing was asked to read."""

    def __init__(self, root: str) -> None:
        super().__init__(root)
        self.read_names: list[str] = []

    def records(self, names: Sequence[str], *, decode: Decode = decode) -> Listing:
        self.read_names += names
        return super().records(names, decode=decode)


class Scene:
    """A state root on disk, its mirror, and the mirror of somebody who always reads everything."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.root = directory / "state"
        self.clock = FakeClock()
        self.store = WatchedStore(str(self.root))

    @property
    def mirror(self) -> Path:
        return self.root / "log.tsv"

    @property
    def cache(self) -> Path:
        return self.root / CACHE / NAME

    def lay(self, path: str, document: object) -> None:
        """Put a record, or any bytes, in the place of what is there, as writers do."""
        place = self.root / path
        place.parent.mkdir(parents=True, exist_ok=True)
        beside = place.with_name(f".{place.name}.new")
        beside.write_bytes(document if isinstance(document, bytes) else encode_pretty(document))
        beside.replace(place)

    def event(self, name: str, **more: object) -> None:
        self.lay(f"events/b1/{name}.json", event(name, **more))

    async def sync(self, *, include_synthetic: bool = False, afresh: bool = False) -> Synced:
        self.store.read_names.clear()
        request = TrailRequest(sync=True, include_synthetic=include_synthetic)
        return await sync_mirror(self.context(), request, str(self.root), afresh=afresh, few=0)

    def context(self, store: Store | None = None) -> Context:
        return Context(store=store or self.store, now=self.clock.now, random=Chance(), notices=[])

    def ids(self) -> list[str]:
        return [line.split("\t")[10] for line in self.mirror.read_text().splitlines()]


def event(name: str, **more: object) -> Document:
    return {
        "event_id": name,
        "batch_id": "b1",
        "type": "note",
        "at": stamp(START),
        "repo": "o/r",
        "target": "7",
        **more,
    }


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    return Scene(tmp_path)


async def test_only_what_is_new_is_read(scene: Scene) -> None:
    scene.event("e1")
    scene.lay("claims/o/r/7.json", {"status": "active"})
    await scene.sync()
    assert scene.store.read_names == ["events/b1/e1.json", "claims/o/r/7.json"]
    assert (await scene.sync()).added == 0
    assert scene.store.read_names == []
    scene.event("e2")
    scene.event("e0")
    assert (await scene.sync()).added == 2
    assert scene.store.read_names == ["events/b1/e0.json", "events/b1/e2.json"]
    assert scene.ids() == ["e0", "e1", "e2"]
    assert (await scene.sync(afresh=True)).added == 0
    assert len(scene.store.read_names) == 4


async def test_nothing_is_written_when_nothing_is_new(scene: Scene) -> None:
    scene.event("e1")
    until(lambda: settled(scene.root / "events") and settled(scene.root / "events/b1"))
    await scene.sync()
    before = [place.stat() for place in (scene.mirror, scene.cache, scene.cache.parent)]
    await scene.sync()
    assert [place.stat() for place in (scene.mirror, scene.cache, scene.cache.parent)] == before


async def test_a_record_that_was_replaced_is_read_again(scene: Scene) -> None:
    scene.event("e1", message="old")
    await scene.sync()
    scene.event("e1", message="new")
    assert (await scene.sync()).added == 1
    assert scene.ids() == ["e1", "e1"]


async def test_of_few_records_also_those_changed_where_they_stand_are_seen(scene: Scene) -> None:
    scene.event("e1", message="old")
    scene.event("e2")
    request, root, context = TrailRequest(sync=True), str(scene.root), scene.context()
    assert (await sync_mirror(context, request, root)).added == 2
    place = scene.root / "events/b1/e1.json"
    place.write_bytes(place.read_bytes().replace(b"old", b"new"))
    assert (await sync_mirror(context, request, root)).added == 1
    assert scene.ids() == ["e1", "e1", "e2"]
    assert (await sync_mirror(context, request, root)).added == 0
    place.write_bytes(b"{")
    with pytest.raises(StoreError, match="refusing to sync an incomplete trail: events"):
        await sync_mirror(context, request, root)


def settled(place: Path) -> bool:
    """Tell whether the next change of a directory gives it another time, however coarse the clock is."""
    return time.time_ns() - place.stat().st_ctime_ns > 100_000_000


async def test_a_file_that_was_given_name_and_inode_of_a_removed_one_is_read(scene: Scene) -> None:
    scene.event("e1", message="old")
    scene.event("e2")
    await scene.sync()
    until(lambda: settled(scene.root / "events/b1"))
    await scene.sync()
    place = scene.root / "events/b1/e1.json"
    before = place.stat()
    text = place.read_bytes().replace(b"old", b"new")
    for _ in range(100):  # a file system is free to give it another one
        place.unlink()
        place.write_bytes(text)
        os.utime(place, ns=(before.st_atime_ns, before.st_mtime_ns))
        if place.stat().st_ino == before.st_ino:
            break
    assert (await scene.sync()).added == 1
    assert scene.store.read_names == ["events/b1/e1.json"]


async def test_where_nothing_came_or_went_no_file_is_looked_at(scene: Scene) -> None:
    scene.event("e1", message="old")
    until(lambda: settled(scene.root / "events/b1"))
    await scene.sync()
    place = scene.root / "events/b1/e1.json"
    place.write_bytes(place.read_bytes().replace(b"old", b"new"))
    assert (await scene.sync()).added == 0
    scene.event("e2")
    assert (await scene.sync()).added == 2


@pytest.mark.parametrize("moved", [timedelta(seconds=TRUSTED), timedelta(seconds=-1)])
async def test_all_is_read_once_a_day_and_when_the_clock_was_set_back(scene: Scene, moved: timedelta) -> None:
    scene.event("e1", message="old")
    until(lambda: settled(scene.root / "events/b1"))
    await scene.sync()
    place = scene.root / "events/b1/e1.json"
    with place.open("r+b") as file:  # in its place: the name and the mark stay
        file.write(encode_pretty(event("e1", message="new")))
    scene.clock.instant += timedelta(seconds=TRUSTED - 1)
    assert (await scene.sync()).added == 0
    scene.clock.instant = START + moved
    assert (await scene.sync()).added == 1


def edited(scene: Scene) -> None:
    lines = scene.mirror.read_bytes().splitlines(keepends=True)
    scene.mirror.write_bytes(b"".join(lines[1:]))


def replaced(scene: Scene) -> None:
    """Sync as a program does that knows nothing of ours: another file takes the mirror's place."""
    beside = scene.root / "log.tsv.tmp-1-2"
    beside.write_bytes(b"2025-01-01T00:00:00Z" + b"\tnobody's" * 9 + b"\te0\n")
    beside.replace(scene.mirror)


def removed(scene: Scene) -> None:
    scene.mirror.unlink()


def forgotten(scene: Scene) -> None:
    shutil.rmtree(scene.cache.parent)


def cut_off(scene: Scene) -> None:
    scene.cache.write_bytes(scene.cache.read_bytes()[:-20])


def garbage(scene: Scene) -> None:
    scene.cache.write_bytes(os.urandom(2000))


def of_another_root(scene: Scene) -> None:
    known: Any = decode(scene.cache.read_bytes())
    known["root"] = "/elsewhere"
    known["events"]["events/b1/"]["e3.json"] = mark(scene.root / "events/b1/e3.json")
    scene.cache.write_bytes(encode_pretty(known))


def mark(place: Path) -> int:
    found = place.stat()
    return found.st_ino ^ found.st_ctime_ns


def of_another_release(scene: Scene) -> None:
    known: Any = decode(scene.cache.read_bytes())
    known["format"] = FORMAT + 1
    known["events"]["events/b1/"]["e3.json"] = mark(scene.root / "events/b1/e3.json")
    scene.cache.write_bytes(encode_pretty(known))


@pytest.mark.parametrize(
    "meddle", [edited, replaced, removed, forgotten, cut_off, garbage, of_another_root, of_another_release]
)
async def test_whatever_was_done_to_the_mirror_or_to_what_is_known_of_it(scene: Scene, meddle: Any) -> None:
    scene.event("e1")
    scene.event("e2")
    await scene.sync()
    scene.event("e3")
    meddle(scene)
    await scene.sync()
    assert scene.ids() == [*(["e0"] if meddle is replaced else []), "e1", "e2", "e3"]
    assert len(scene.store.read_names) >= 3
    await scene.sync()
    assert scene.store.read_names == [], "known again"


async def test_a_run_that_ended_between_the_mirror_and_what_is_known_of_it(scene: Scene) -> None:
    scene.event("e1")
    await scene.sync()
    before = scene.cache.read_bytes()
    scene.event("e2")
    await scene.sync()
    scene.cache.write_bytes(before)
    scene.event("e3")
    assert (await scene.sync()).added == 1
    assert scene.ids() == ["e1", "e2", "e3"]


@pytest.mark.parametrize("kind", ["a file", "a link", "a directory inside"])
async def test_where_nothing_can_be_remembered_the_mirror_is_kept_all_the_same(scene: Scene, kind: str) -> None:
    scene.root.mkdir()
    elsewhere = scene.directory / "elsewhere"
    elsewhere.mkdir()
    if kind == "a file":
        scene.cache.parent.write_bytes(b"mine")
    elif kind == "a link":
        scene.cache.parent.symlink_to(elsewhere)
    else:
        scene.cache.mkdir(parents=True)
    for number in range(3):
        scene.event(f"e{number}")
        assert (await scene.sync()).added == 1
    assert os.listdir(elsewhere) == []


async def test_what_is_broken_stops_every_sync_until_it_is_mended(scene: Scene) -> None:
    scene.event("e1")
    await scene.sync()
    for path in ("events/b1/e2.json", "claims/o/r/7.json", "archive/events/b1/x.json"):
        scene.lay(path, b"{")
        for _ in range(2):
            with pytest.raises(StoreError, match="refusing to sync an incomplete trail"):
                await scene.sync()
        (scene.root / path).unlink()
        await scene.sync()
    scene.lay("events/b1/e2.json", b'{"message": "\xff"}')
    with pytest.raises(StoreError, match=r"invalid UTF-8 in persisted log record at events/b1/e2\.json"):
        await scene.sync()


async def test_simulation_that_was_left_out_is_read_when_it_is_asked_for(scene: Scene) -> None:
    scene.event("e1")
    scene.event("s1", synthetic=True)
    assert (await scene.sync(include_synthetic=True)).added == 2
    scene.event("s2", synthetic=True)
    assert (await scene.sync()).added == 0
    await scene.sync()
    assert scene.store.read_names == []
    assert (await scene.sync(include_synthetic=True)).added == 1
    assert scene.ids() == ["e1", "s1", "s2"]


@pytest.mark.parametrize("simulated", [False, True])
async def test_what_the_archive_holds_of_what_was_skipped_is_told(tmp_path: Path, *, simulated: bool) -> None:
    play = Play(tmp_path)
    play.event("e1")
    play.event("e2")
    play.event("s1", synthetic=True)
    await play.compare(simulated=simulated)
    copies = [event("e1", message="another"), event("s1", synthetic=True), event("e9")]
    envelope = {"record_family": "compacted_events", "archived_at": stamp(START), "delete_after": stamp(START)}
    paths = [f"events/b1/{name}.json" for name in ("e1", "s1", "e9", "lost")]
    play.lay("archive/events/b1/compact-1.json", envelope | {"source_paths": paths, "records": copies})
    await play.compare(simulated=simulated)
    play.store.read_names.clear()
    context = play.context()
    await sync_mirror(context, TrailRequest(sync=True, include_synthetic=simulated), str(play.root), few=0)
    assert play.store.read_names == ["archive/events/b1/compact-1.json"]
    told = "1 of 4 events read from the archive; 2 more" if simulated else "1 of 3 events read from the archive; 1 more"
    assert context.notices == [
        f"note: {told} held there too; 1 source event was dropped by compaction; archive deleted after {stamp(START)}"
    ]


names = st.sampled_from(["e1", "e2", "e3", "e4", "lane_closed-1"])
facts = st.fixed_dictionaries(
    {},
    optional={
        "at": st.sampled_from([*(stamp(START + timedelta(days=days)) for days in (-3, -2, -1, 1)), "once"]),
        "message": st.sampled_from(["", "é\u2028", "a\tb"]),
        "synthetic": st.booleans(),
        "event_id": st.sampled_from(["e1", "b/e1", ""]),
        "lane": st.just("qa"),
        "phase": st.sampled_from("xy"),
    },
)
closing: Document = {"schema_version": 2, "type": "lane_closed", "terminal": "done", "workspace": "default"}
closing |= {"lane": "qa", "closed_by": {"agent_id": "a", "machine": "m"}}
batches = st.sampled_from(["b1", "b2"])


class Play(Scene):
    """What may happen to a state and its mirror, each as a method."""

    def lay_event(self, batch: str, name: str, more: Document) -> None:
        self.lay(f"events/{batch}/{name}.json", event(name) | {"batch_id": batch} | more)

    def close(self, batch: str, name: str, more: Document) -> None:
        self.lay_event(batch, name, closing | more)

    def remove(self, batch: str, name: str) -> None:
        (self.root / f"events/{batch}/{name}.json").unlink(missing_ok=True)

    async def trip_over(self, path: str, data: bytes, *, simulated: bool) -> None:
        """Sync while a record is broken."""
        place = self.root / path
        before = place.read_bytes() if place.exists() else None
        self.lay(path, data)
        await self.compare(simulated=simulated)
        place.unlink() if before is None else self.lay(path, before)

    async def gc(self, hot: int, archive: int) -> None:
        policy = Policy(hot_days=hot, archive_days=archive, synthetic_hot_days=hot)
        with suppress(StoreError):  # something is broken, which is this test's own doing
            await retain(self.context(), RetentionRequest(execute=True, policy=policy))

    def wait(self, seconds: int) -> None:
        self.clock.instant += timedelta(seconds=seconds)

    def drop_line(self, number: int) -> None:
        for mirror in (self.mirror, self.plain / "log.tsv"):
            if mirror.exists():
                lines = mirror.read_bytes().splitlines(keepends=True)
                mirror.write_bytes(b"".join(lines[:number] + lines[number + 1 :]))

    @property
    def plain(self) -> Path:
        return self.directory / "plain"

    async def compare(self, *, simulated: bool, few: int = 0) -> None:
        """Sync with and without skipping, and compare all that is said and left."""
        skimmed = await self.outcome(self.store, self.root, simulated=simulated, few=few)
        assert skimmed == await self.outcome(CountingStore(self.store), self.plain, simulated=simulated)

    async def outcome(self, store: Store, root: Path, *, simulated: bool, few: int = 0) -> tuple[object, ...]:
        context = self.context(store)
        said: object
        try:
            request = TrailRequest(sync=True, include_synthetic=simulated)
            said = (await sync_mirror(context, request, str(root), few=few)).added
        except StoreError as error:
            said = str(error)
        mirror = root / "log.tsv"
        return said, context.notices, mirror.read_bytes() if mirror.exists() else None


Step = Callable[[Play], Awaitable[None] | None]


def step(name: str, *given: st.SearchStrategy[Any], **named: st.SearchStrategy[Any]) -> st.SearchStrategy[Step]:
    return st.builds(methodcaller, st.just(name), *given, **named)


syncs = step("compare", simulated=st.booleans(), few=st.sampled_from([0, 0, 0, 2]))
lays = step("lay_event", batches, names, facts) | step("close", batches, names, facts)
changes = st.one_of(
    lays,
    lays,
    lays,
    step("remove", batches, names),
    step("gc", st.integers(0, 2), st.integers(0, 40)),
    *[step("gc", st.just(0), st.just(40))] * 3,
    step("wait", st.sampled_from([3600, 90_000, 3_000_000, -5])),
    step("drop_line", st.integers(0, 5)),
    step(
        "trip_over",
        st.sampled_from(["events/b1/e1.json", "events/b2/e9.json", "claims/o/r/7.json", "archive/events/b1/e1.json"]),
        st.sampled_from([b"{", b"[]", b'"\xff"']),
        simulated=st.booleans(),
    ),
)
rounds = st.lists(st.tuples(st.lists(changes, max_size=4), syncs), min_size=3, max_size=8)


@settings(max_examples=100)
@given(rounds)
async def test_it_is_as_if_everything_had_been_read(rounds: list[tuple[list[Step], Step]]) -> None:
    with TemporaryDirectory() as directory:
        play = Play(Path(directory))
        for changes, sync in rounds:
            for each in (*changes, sync):
                if (going := each(play)) is not None:
                    await going
