"""The replica's file: private, bounded, a cache that may be lost at any time, and one moment for whoever reads it."""

import logging
import os
import sqlite3
import stat
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import closing
from pathlib import Path

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentcoord.errors import StoreError, TooMany, UsageError
from agentcoord.stores.base import Stored
from agentcoord.stores.opening import settle
from agentcoordd.copies import SCHEMA, Held
from agentcoordd.replica import MOST_SPARED, Lost, Moment, Record, Replica, Unusable
from tests.daemon.copied import START, URL, Copying, Ticking, furnished, records_of

OTHER = "https://other.example"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "replica.db"


@pytest.fixture
async def replica(path: Path) -> AsyncGenerator[Replica]:
    replica = Replica(str(path), Ticking())
    yield replica
    await replica.aclose()


def record(path: str, text: str = "{}", version: str = "1") -> Record:
    return path, version, text.encode()


async def fill(replica: Replica, *records: Record, url: str = URL) -> Held:
    """Have a copy that is current, of claims only."""
    held = await replica.begin(url)
    await replica.put_page(held, "claims", None, None, records)
    await replica.settle(held, cursor="c.1", reads=("",), sights={}, equal_at=Moment(START, 0.0))
    return held


def shown(replica: Replica, url: str = URL) -> dict[str, bytes]:
    with replica.snapshot(url) as snapshot:
        return records_of(snapshot)


A, B, C = (f"claims/o/r/{name}.json" for name in "abc")


async def test_the_file_is_for_this_user_alone(replica: Replica, path: Path) -> None:
    await fill(replica, record(A))
    files = sorted(path.parent.iterdir())
    assert path in files
    assert {stat.S_IMODE(file.stat().st_mode) for file in files} == {0o600}


async def test_a_page_replaces_its_range_and_nothing_else(replica: Replica) -> None:
    held = await fill(replica, record(A), record(B), record(C))
    assert not await replica.put_page(held, "claims", None, A, [record(A)])
    assert await replica.put_page(held, "claims", A, B, [])
    assert set(shown(replica)) == {A, C}
    assert await replica.put_page(held, "claims", B, None, [record(C, '{"n":1}')])
    assert shown(replica) == {A: b"{}", C: b'{"n":1}'}
    assert (held.records, held.bytes) == (2, 9)
    assert await replica.put_page(held, "claims", None, None, [])
    assert (held.records, held.bytes) == (0, 0)


async def test_two_backends_do_not_see_each_other_and_one_is_forgotten(replica: Replica) -> None:
    await fill(replica, record(A))
    await fill(replica, record(A, "[1]"), record(B, "[2]"), url=OTHER)
    assert (shown(replica), shown(replica, OTHER)) == ({A: b"{}"}, {A: b"[1]", B: b"[2]"})
    await replica.forget_others([OTHER])
    with pytest.raises(StoreError, match="no complete copy"):
        shown(replica)
    assert set(shown(replica, OTHER)) == {A, B}


async def test_a_snapshot_is_one_moment(replica: Replica) -> None:
    held = await fill(replica, record(A), record(B))
    with replica.snapshot(URL) as snapshot:
        await replica.put_changes(held, [record(C)], [A, B], "c.2", Moment(START, 0.0))
        assert set(records_of(snapshot)) == {A, B}
    assert set(shown(replica)) == {C}


async def test_what_a_store_says(replica: Replica) -> None:
    await fill(replica, record(A, "{broken", version="7"), record(B))
    with replica.snapshot(URL) as snapshot:
        store = snapshot.store
        with pytest.raises(StoreError, match=f"state unreadable: .* at {A}"):
            settle(store.read(A))
        listed = list(settle(store.list("claims")).entries)
        assert [type(entry).__name__ for entry in listed] == ["Unreadable", "Stored"]
        assert settle(store.read(C)) is None
        assert isinstance(settle(store.read(B)), Stored)
        with pytest.raises(TooMany):
            settle(store.list("claims", at_most=1))
        with pytest.raises(UsageError):
            settle(store.read("../x"))
        for refused in (
            store.write(C, {}, version=None, note=""),
            store.delete(B, version="1", note=""),
            store.check(writable=True),
        ):
            with pytest.raises(StoreError, match="never written to"):
                settle(refused)
        settle(store.check(writable=False))


NAMES = st.lists(st.sampled_from([f"claims/o/r/{name}.json" for name in "abcdefgh"]), unique=True, max_size=8)


@given(before=NAMES, now=NAMES, size=st.integers(1, 4))
def test_pages_of_any_size_make_the_copy_what_is_listed(
    before: Sequence[str], now: Sequence[str], size: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    async def copied() -> None:
        replica = Replica(str(tmp_path_factory.mktemp("replica") / "replica.db"), Ticking())
        try:
            held = await fill(replica, *(record(path) for path in before))
            listed = sorted(now)
            after: str | None = None
            for start in range(0, max(len(listed), 1), size):
                part = listed[start : start + size]
                upto = part[-1] if start + size < len(listed) else None
                await replica.put_page(held, "claims", after, upto, [record(path, "[]") for path in part])
                after = upto
            assert shown(replica) == dict.fromkeys(listed, b"[]")
            assert held.records == len(listed)
        finally:
            await replica.aclose()

    anyio.run(copied)


# A cache that is lost -------------------------------------------------------------------------------


def _remove(path: Path) -> None:
    for file in path.parent.glob("replica.db*"):
        file.unlink()


def _replace(path: Path) -> None:
    path.rename(path.with_name("away"))
    path.write_bytes(b"")


def _garble(path: Path) -> None:
    with path.open("r+b") as file:
        file.write(b"garbage " * 512)


def _age(path: Path) -> None:
    with closing(sqlite3.connect(path)) as connection:
        connection.execute(f"PRAGMA user_version = {SCHEMA + 1}")
        connection.commit()


def _foreign(path: Path) -> None:
    path.unlink()
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE somebody (elses)")


def _cut(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


@pytest.mark.parametrize("harm", [_remove, _replace])
async def test_a_file_that_is_lost_while_it_is_open_is_made_anew(
    replica: Replica, path: Path, harm: Callable[[Path], None], caplog: pytest.LogCaptureFixture
) -> None:
    held = await fill(replica, record(A))
    harm(path)
    with pytest.raises(Lost):
        replica.require_there(held)
    with pytest.raises(StoreError):  # never an empty state that looks like a current one
        shown(replica)
    with pytest.raises(Lost):
        await replica.put_page(held, "claims", None, None, [record(B)])
    held = await replica.begin(URL)
    assert (held.records, held.cursor, held.as_of) == (0, None, None)
    with pytest.raises(StoreError):
        shown(replica)
    await fill(replica, record(B))
    assert set(shown(replica)) == {B}
    assert [entry.message for entry in caplog.records if entry.levelno >= logging.WARNING] == [
        f"the replica {path} is made anew: its file was removed or replaced"
    ]


@pytest.mark.parametrize("harm", [_garble, _age, _foreign, _cut])
async def test_a_file_that_is_no_good_at_the_start_is_made_anew(
    path: Path, harm: Callable[[Path], None], caplog: pytest.LogCaptureFixture
) -> None:
    first = Replica(str(path), Ticking())
    await fill(first, *(record(f"claims/o/r/{number}.json", '"' + "x" * 500 + '"') for number in range(100)))
    await first.aclose()
    harm(path)
    second = Replica(str(path), Ticking())
    try:
        held = await second.begin(URL)
        assert held.records == 0
        await fill(second, record(B))
        assert set(shown(second)) == {B}
    finally:
        await second.aclose()
    assert sum("is made anew" in entry.message for entry in caplog.records) == 1


def _garble_all(path: Path) -> None:
    for file in (path, path.with_name("replica.db-wal")):
        with file.open("r+b") as opened:
            size = opened.seek(0, os.SEEK_END)
            opened.seek(0)
            opened.write(b"\xa5" * size)


@pytest.mark.parametrize("harm", [_garble_all, _remove, _replace])
async def test_the_copying_finds_out_and_has_everything_again(
    path: Path, harm: Callable[[Path], None], caplog: pytest.LogCaptureFixture
) -> None:
    backend = furnished(Ticking(), [f"events/b1/f{number}.json" for number in range(200)])
    copying = Copying(backend, path)
    harmed: list[bool] = []

    def over() -> bool:
        if not harmed and copying.equal():
            harmed.append(True)
            harm(path)
            if harm is _garble_all:  # without a write it is not touched
                backend.put("claims/o/r/1.json")
        return bool(harmed) and copying.equal()

    await copying.run(over)
    warnings = [entry.message for entry in caplog.records if entry.levelno >= logging.WARNING]
    assert sum("is made anew" in said for said in warnings) == 1
    assert len(warnings) <= 2


async def test_a_full_disk_is_done_without_and_said_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    backend = furnished(Ticking())
    copying = Copying(backend, tmp_path / "replica.db", Small)
    await copying.run(copying.equal)
    for number in range(200):
        backend.put(f"events/big/e{number}.json", "x" * 4000)
    await copying.run(lambda: copying.state == "failing" and copying.clock.passed > 1000)
    copying.require_honest()
    assert "claims/o/r/1.json" in copying.content()  # what there is stays answerable
    warnings = [entry.message for entry in caplog.records if entry.levelno >= logging.WARNING]
    assert len(warnings) == 1
    assert "database or disk is full" in warnings[0]
    assert sum(file.stat().st_size for file in tmp_path.iterdir()) < 3 * SMALL
    for number in range(200):
        backend.delete(f"events/big/e{number}.json")
    await copying.run(copying.equal)


async def test_the_last_of_a_disk_is_left_to_what_is_no_cache(
    path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    backend = furnished(Ticking())
    copying = Copying(backend, path)
    await copying.run(copying.equal)
    disk = os.statvfs(path.parent)

    def has_free(free: int) -> None:
        found = os.statvfs_result((1, 1, 16 * MOST_SPARED, free, free, *disk[5:10]))

        def look(_: str) -> os.statvfs_result:
            return found

        monkeypatch.setattr("agentcoordd.replica.os.statvfs", look)

    has_free(MOST_SPARED + 4000)
    backend.put("events/b1/large.json", "x" * 3000)  # there is room for it, but not twice
    await copying.run(lambda: copying.state == "failing" and copying.clock.passed > 1000)
    copying.require_honest()
    assert "claims/o/r/1.json" in copying.content()
    warnings = [entry.message for entry in caplog.records if entry.levelno >= logging.WARNING]
    assert len(warnings) == 1
    assert "disk is full but for what outbox and roster may need" in warnings[0]
    backend.delete("events/b1/large.json")  # takes no room
    backend.delete("claims/o/r/1.json")
    await copying.run(copying.equal)
    has_free(2 * MOST_SPARED)
    backend.put("events/b1/large.json", "x" * 3000)
    await copying.run(copying.equal)


SMALL = 256 * 1024


class Small(Replica):
    def __init__(self, path: str, clock: Ticking) -> None:
        super().__init__(path, clock, most_bytes=SMALL)


async def test_what_is_no_file_of_ours_is_left_alone(path: Path) -> None:
    elsewhere = path.with_name("elsewhere")
    elsewhere.write_text("precious")
    path.symlink_to(elsewhere)
    replica = Replica(str(path), Ticking())
    with pytest.raises(Unusable):
        await replica.begin(URL)
    assert elsewhere.read_text() == "precious"
    await replica.aclose()


async def test_what_is_left_beside_a_removed_file_is_not_read_into_the_next(path: Path) -> None:
    first = Replica(str(path), Ticking())
    await fill(first, record(A))
    log = path.with_name("replica.db-wal").read_bytes()
    await first.aclose()
    path.unlink()
    path.with_name("replica.db-wal").write_bytes(log)
    second = Replica(str(path), Ticking())
    try:
        assert (await second.begin(URL)).records == 0
    finally:
        await second.aclose()


async def test_the_log_of_writes_stays_short(replica: Replica, path: Path) -> None:
    held = await fill(replica)
    for number in range(300):
        records = [record(f"claims/o/r/{number}-{each}.json", '"' + "x" * 900 + '"') for each in range(20)]
        await replica.put_changes(held, records, [], f"c.{number}", None)
    await replica.settle(held, cursor="c", reads=("",), sights={}, equal_at=Moment(START, 0.0))
    assert path.with_name("replica.db-wal").stat().st_size == 0


# Ages -----------------------------------------------------------------------------------------------


async def test_an_age_is_told_by_a_clock_that_nobody_sets(path: Path) -> None:
    clock = Ticking()
    replica = Replica(str(path), clock)
    held = await fill(replica, record(A))
    clock.passed = 100.0
    with replica.snapshot(URL) as snapshot:
        assert (snapshot.label.age, snapshot.label.as_of) == (100.0, START)
    await replica.equal(held, Moment(clock.now(), clock.boot()), lasting=False)
    clock.passed = 107.0
    with replica.snapshot(URL) as snapshot:
        assert snapshot.label.age == 7.0
    await replica.aclose()
    restarted = Replica(str(path), clock)  # it knows what was written down
    with restarted.snapshot(URL) as snapshot:
        assert snapshot.label.age == 107.0
    clock.passed = -3600.0
    with pytest.raises(StoreError, match="set back"), restarted.snapshot(URL):
        pass
    assert (await restarted.begin(URL)).as_of is None
    await restarted.aclose()
