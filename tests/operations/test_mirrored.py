"""A sync that skips what the mirror has: the mirror is the same to the byte as if all had been read."""

import os
import shutil
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from agentcoord.errors import StoreError
from agentcoord.operations.mirror import sync_mirror
from agentcoord.operations.mirrored import FORMAT, TRUSTED
from agentcoord.operations.trail import TrailRequest
from agentcoord.protocol.documents import decode, encode_pretty
from tests.daemon.running import until
from tests.operations.mirroring import Scene, event, settled
from tests.operations.stage import START

pytestmark = pytest.mark.anyio


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
    before = [written(place) for place in (scene.mirror, scene.cache, scene.cache.parent)]
    await scene.sync()
    assert [written(place) for place in (scene.mirror, scene.cache, scene.cache.parent)] == before


def written(place: Path) -> tuple[int, ...]:
    """Tell whether something was written, but not whether it was read: that is another time of access."""
    found = place.stat()
    return found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns


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
