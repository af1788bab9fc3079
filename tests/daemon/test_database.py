"""The roster survives its daemon; a file that cannot be trusted is refused, and stays."""

import os
import resource
import sqlite3
from pathlib import Path

import pytest
from msgspec.structs import replace

from agentcoord.errors import StoreError
from agentcoordd.backends import HttpBackend, LocalBackend
from agentcoordd.database import SCHEMA, Entry, open_database
from agentcoordd.processes import Watched
from tests.daemon.stage import START, both

ENTRY = Entry("l1", both(), LocalBackend("/state"), Watched(1, "x"), "claude", "nearest")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "own" / "daemon.db"


async def test_a_roster_is_read_back_by_the_next_daemon(path: Path) -> None:
    other = Entry("l2", both("a2"), HttpBackend("https://host/x"))
    async with open_database(str(path)) as database:
        assert await database.alive_at() is None
        await database.put(ENTRY)
        await database.put(other)
        await database.put(ENTRY)
        await database.mark_alive(START)
    async with open_database(str(path)) as database:
        assert list(await database.lanes()) == [ENTRY, other]
        assert await database.alive_at() == START
        await database.remove("l1")
        await database.remove("l1")
        assert list(await database.lanes()) == [other]


async def test_it_is_for_this_user_alone_and_has_a_log_ahead(path: Path) -> None:
    async with open_database(str(path)) as database:
        await database.put(ENTRY)
        assert path.stat().st_mode & 0o777 == 0o600
        assert path.parent.stat().st_mode & 0o777 == 0o700
        wal = path.with_name("daemon.db-wal")
        assert wal.stat().st_mode & 0o777 == 0o600
    path.chmod(0o644)
    async with open_database(str(path)):
        assert path.stat().st_mode & 0o777 == 0o600


async def refused(path: Path) -> str:
    before = path.read_bytes()
    with pytest.raises(StoreError) as caught:
        async with open_database(str(path)):
            pass
    assert path.read_bytes() == before
    said = str(caught.value)
    assert "\n" not in said
    assert str(path) in said
    return said


async def test_a_newer_one_is_refused(path: Path) -> None:
    async with open_database(str(path)):
        pass
    with sqlite3.connect(path) as connection:
        connection.execute(f"PRAGMA user_version = {SCHEMA + 1}")
    connection.close()
    assert "newer release" in await refused(path)


async def test_a_damaged_one_is_refused(path: Path) -> None:
    path.parent.mkdir()
    path.write_bytes(b"this is no database at all, whatever it may be" * 100)
    assert "not a database" in await refused(path)


async def test_one_that_is_damaged_within_is_refused(path: Path) -> None:
    async with open_database(str(path)) as database:
        for number in range(200):
            await database.put(Entry(f"l{number}", both(), LocalBackend("/state"), chosen="x" * 200))
    data = bytearray(path.read_bytes())
    data[4096 * 3 : 4096 * 6] = os.urandom(4096 * 3)
    path.write_bytes(data)
    assert "move it away" in await refused(path)


async def test_another_programs_database_is_refused(path: Path) -> None:
    path.parent.mkdir()
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE theirs (x)")
    connection.close()
    assert "not a database of the daemon" in await refused(path)


async def test_a_lane_that_cannot_be_read_is_named(path: Path) -> None:
    async with open_database(str(path)) as database:
        await database.put(ENTRY)
    with sqlite3.connect(path) as connection:
        connection.execute("UPDATE lanes SET entry = '{}'")
    connection.close()
    async with open_database(str(path)) as database:
        with pytest.raises(StoreError, match="damaged: .*: lane l1"):
            await database.lanes()


async def test_a_link_in_its_place_is_not_followed(path: Path, tmp_path: Path) -> None:
    path.parent.mkdir()
    path.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(StoreError, match="cannot be used"):
        async with open_database(str(path)):
            pass
    assert not (tmp_path / "elsewhere").exists()


async def test_a_disk_that_takes_no_more_is_no_reason_to_move_it_away(path: Path) -> None:
    """It is whole: whoever moved it away would lose the roster."""
    async with open_database(str(path)) as database:
        await database.put(ENTRY)
        limits = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (256 * 1024, limits[1]))
        try:
            with pytest.raises(StoreError, match="cannot be used now") as raised:
                await database.put(replace(ENTRY, id="l2", chosen="x" * 1024 * 1024))
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        assert "move it away" not in str(raised.value)
        await database.mark_alive(START)
    async with open_database(str(path)) as database:
        assert list(await database.lanes()) == [ENTRY]
