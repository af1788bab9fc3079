"""The outbox of a daemon: on its real database, before backends that a test has fail, by a clock that it moves."""

import resource
import sqlite3
from collections.abc import AsyncGenerator, Callable, Iterable
from contextlib import asynccontextmanager
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, TypeVar

import anyio
import msgspec
import pytest

from agentcoord.errors import CoordError, Rejected, StoreError, Undecided, UsageError
from agentcoord.protocol import outbox as rules
from agentcoord.protocol.heartbeats import Beat
from agentcoord.protocol.identity import Identity
from agentcoord.protocol.outbox import Late, LateBeat, LateEvent
from agentcoord.protocol.statuses import normalize
from agentcoord.stores.base import Store, Version
from agentcoord.stores.memory import MemoryStore
from agentcoordd.backends import Backend, Deed, HttpBackend
from agentcoordd.database import SCHEMA, open_database
from agentcoordd.outbox import KeptEntry, KeptOutbox
from agentcoordd.services import outbox as service
from agentcoordd.services.outbox import Outbox
from tests.command import PATIENCE
from tests.daemon.stage import START, FakeTime, settled

URL, OTHER = "https://one.example", "https://two.example"

_T = TypeVar("_T")


class Remote(MemoryStore):
    """A server that notes in which order it was written to, and fails as it is told to."""

    def __init__(self) -> None:
        super().__init__()
        self.written: list[str] = []
        self.tried: list[str] = []
        self.fault: Callable[[str], Exception | None] = lambda path: None
        self.loses_answers = False

    async def write(self, path: str, document: object, *, version: Version | None, note: str) -> Version:
        self.tried.append(path)
        fault = self.fault(path)
        if fault is not None and not self.loses_answers:
            raise fault
        stored = await super().write(path, document, version=version, note=note)
        self.written.append(path)
        if fault is not None:
            raise fault
        return stored


class Fleet:
    """All servers."""

    def __init__(self) -> None:
        self.stores: dict[Backend, Remote] = {HttpBackend(url): Remote() for url in (URL, OTHER)}
        self.one, self.other = self.stores.values()

    def require(self, backend: Backend) -> None:
        assert backend in self.stores

    async def perform(self, backend: Backend, deed: Deed[_T], *, settle: bool = True) -> _T:
        await anyio.lowlevel.checkpoint()
        store: Store = self.stores[backend]
        return await deed(store)


class Play:
    """A daemon's outbox, for as long as its block lasts; the next one finds what it left."""

    def __init__(self, path: Path) -> None:
        self.path, self.fleet, self.time = path, Fleet(), FakeTime()
        self.urls: Iterable[str] = (URL, OTHER)

    @asynccontextmanager
    async def daemon(self) -> AsyncGenerator[Outbox]:
        async with open_database(str(self.path)) as database, anyio.create_task_group() as tasks:
            outbox = Outbox(self.fleet, database.outbox, self.urls, self.time, chance=lambda: 1.0)
            await tasks.start(outbox.run)
            yield outbox
            tasks.cancel_scope.cancel()

    async def until(self, holds: Callable[[], bool]) -> None:
        """Let time pass until something holds: the database has a thread of its own, so there is no other way."""
        with anyio.fail_after(PATIENCE):
            while not holds():
                await anyio.sleep(0.002)
                await self.time.jump(0.5)

    async def through(self, outbox: Outbox) -> None:
        """Let all of it arrive."""
        await self.until(lambda: outbox.used == (0, 0))


@pytest.fixture
def play(tmp_path: Path) -> Play:
    return Play(tmp_path / "daemon.db")


def event(number: int, batch: str = "b1", **more: Any) -> LateEvent:
    name = f"20260101T000000.{number:06}Z-0a1b2c3d"
    record = {"event_id": name, "batch_id": batch, "type": "note", "at": "2026-01-01T00:00:00Z"}
    return LateEvent(record | more)


def beat(minutes: int, agent: str = "ana", **more: Any) -> LateBeat:
    said = Beat(agent_id=agent, ttl=900, status=normalize("in_progress"), **more)
    return LateBeat(said, Identity(), START + timedelta(minutes=minutes), f"{minutes:08x}")


def gone(path: str) -> CoordError:
    return Undecided(f"no answer for {path}")


def refusal(path: str) -> CoordError:
    return Rejected("403 forbidden", status=403, reason="forbidden")


async def test_what_waits_arrives_in_order_once_the_server_answers(play: Play) -> None:
    late: list[Late] = [event(1), event(2, "b2"), event(3), beat(1, branch="x"), event(4, "b2"), beat(2), event(5)]
    one = play.fleet.one
    async with play.daemon() as outbox:
        one.fault = gone
        for entry in late:
            await outbox.put(URL, entry)
        await play.until(lambda: len(one.tried) > 4)
        assert one.written == []
        assert [view.path for view in outbox.entries()] == [entry.path for entry in late]
        assert outbox.holds(URL, "batch b1")
        assert not outbox.holds(OTHER, "batch b1")
        one.fault = lambda path: None
        await play.through(outbox)
    for lane in {entry.lane for entry in late}:
        paths = [entry.path for entry in late if entry.lane == lane]
        assert [path for path in one.written if path in paths] == paths
    assert len(one.written) == len(late)
    assert play.fleet.other.tried == []


async def test_while_nobody_is_answered_nobody_has_to_ask(play: Play) -> None:
    """Each command that asked a server which hangs would wait for it as long as the first one did."""
    one = play.fleet.one
    async with play.daemon() as outbox:
        one.fault = gone
        await outbox.put(URL, event(1))
        assert not outbox.holds(URL, "batch b2")
        await play.until(lambda: len(one.tried) > 1)
        assert outbox.holds(URL, "batch b2"), "as everything does, once several attempts came to nothing"
        assert not outbox.holds(OTHER, "batch b2")
        one.fault = lambda path: None
        await play.through(outbox)
        assert not outbox.holds(URL, "batch b2")


async def test_what_waits_outlasts_the_daemon(play: Play) -> None:
    late = [event(number) for number in range(4)]
    play.fleet.one.fault = gone
    async with play.daemon() as outbox:
        for entry in late[:3]:
            await outbox.put(URL, entry)
        await play.until(lambda: outbox.entries()[0].attempts > 1)
    play.fleet.one.fault = lambda path: None
    async with play.daemon() as outbox:
        await outbox.put(URL, late[3])
        await play.through(outbox)
    assert play.fleet.one.written == [entry.path for entry in late]


async def test_an_answer_that_is_lost_doubles_nothing(play: Play) -> None:
    one = play.fleet.one
    one.loses_answers = True
    one.fault = lambda path: gone(path) if one.tried.count(path) == 1 else None
    async with play.daemon() as outbox:
        for entry in (event(1), beat(1, branch="x"), event(2)):
            await outbox.put(URL, entry)
        await play.through(outbox)
    assert sorted(one.written) == sorted({event(1).path, event(2).path, beat(1).path})


async def test_a_refused_record_is_set_aside_and_holds_up_nobody(play: Play, caplog: pytest.LogCaptureFixture) -> None:
    one, poison = play.fleet.one, event(1)
    one.fault = lambda path: refusal(path) if path == poison.path else None
    async with play.daemon() as outbox:
        for entry in (poison, event(2), event(3, "b2")):
            await outbox.put(URL, entry)
        await play.until(lambda: len(outbox.entries()) == 1)
        [view] = outbox.entries()
        assert (view.path, view.state, view.error, view.attempts) == (poison.path, "set_aside", "403 forbidden", 1)
        assert outbox.set_aside() == 1
        assert not outbox.holds(URL, poison.lane)
    assert sorted(one.written) == sorted([event(2).path, event(3, "b2").path])
    assert f"set aside {poison.path}" in caplog.text
    async with play.daemon() as outbox:
        await play.time.pass_by(300)
        assert [view.state for view in outbox.entries()] == ["set_aside"], "no restart tries it again"
        assert one.tried.count(poison.path) == 1
        one.fault = lambda path: None
        assert [view.path for view in await outbox.retry(None)] == [poison.path]
        await play.through(outbox)
    assert one.written[-1] == poison.path


async def test_another_content_under_the_name_is_set_aside(play: Play) -> None:
    async with play.daemon() as outbox:
        await outbox.put(URL, event(1))
        await play.through(outbox)
        await outbox.put(URL, event(1, message="another"))
        await play.until(lambda: outbox.set_aside() == 1)
        assert "another event stands at" in (outbox.entries()[0].error or "")


async def test_a_person_drops_what_nobody_wants_any_more(play: Play) -> None:
    play.fleet.one.fault = gone
    async with play.daemon() as outbox:
        for number in range(3):
            await outbox.put(URL, event(number))
        ids = [view.id for view in outbox.entries()]
        with pytest.raises(UsageError, match="the outbox has no entry 99"):
            await outbox.drop([ids[0], 99])
        assert len(outbox.entries()) == 3
        assert [view.path for view in await outbox.drop([ids[0], ids[2]])] == [event(0).path, event(2).path]
        play.fleet.one.fault = lambda path: None
        await play.through(outbox)
    assert play.fleet.one.written == [event(1).path]


async def test_an_outbox_that_is_full_takes_no_more(play: Play, monkeypatch: pytest.MonkeyPatch) -> None:
    play.fleet.one.fault = refusal
    monkeypatch.setattr(service, "MOST_ENTRIES", 2)
    async with play.daemon() as outbox:
        await outbox.put(URL, event(1))
        await outbox.put(URL, event(2))
        with pytest.raises(StoreError, match=r"the outbox is full: it holds 2 of 2 records"):
            await outbox.put(URL, event(3))
        await play.until(lambda: outbox.set_aside() == 2)
        with pytest.raises(StoreError, match="the outbox is full"):
            await outbox.put(URL, event(3))
        await outbox.drop([outbox.entries()[0].id])
        await outbox.put(URL, event(3))
        monkeypatch.setattr(service, "MOST_ENTRIES", 100)
        monkeypatch.setattr(service, "MOST_BYTES", outbox.used[1] + 100)
        with pytest.raises(StoreError, match="the outbox is full"):
            await outbox.put(URL, event(4))


async def test_a_disk_that_is_full_loses_nothing(play: Play) -> None:
    play.fleet.one.fault = gone
    async with play.daemon() as outbox:
        await outbox.put(URL, event(1))
        limits = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (256 * 1024, limits[1]))
        try:
            with pytest.raises(StoreError, match="daemon database cannot be used now"):
                await outbox.put(URL, event(2, message="x" * 1024 * 1024))
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        assert [view.path for view in outbox.entries()] == [event(1).path]
        await outbox.put(URL, event(3))
        play.fleet.one.fault = lambda path: None
        await play.through(outbox)
    assert play.fleet.one.written == [event(1).path, event(3).path]


async def test_a_disk_that_cannot_forget_holds_up_nobody(play: Play, monkeypatch: pytest.MonkeyPatch) -> None:
    one, late, full = play.fleet.one, [event(1), event(2), beat(1)], [True]
    remove = KeptOutbox.remove

    async def removed(kept: KeptOutbox, *numbers: int) -> None:
        if full[0]:
            raise StoreError("the disk is full")
        await remove(kept, *numbers)

    monkeypatch.setattr(KeptOutbox, "remove", removed)
    async with play.daemon() as outbox:
        for entry in late:
            await outbox.put(URL, entry)
        await play.until(lambda: len(one.written) == 3)
        await play.time.pass_by(300)
        assert sorted(one.tried) == sorted(entry.path for entry in late), "each of them once"
        full[0] = False
        await play.through(outbox)


@pytest.mark.parametrize("suffix", ["", "-wal"])
async def test_a_database_that_is_removed_under_the_daemon_takes_nothing_more(play: Play, suffix: str) -> None:
    """What is written into a file without a name ends with the daemon, whatever its caller was told."""
    file, away = Path(f"{play.path}{suffix}"), play.path.with_name("away")
    play.fleet.one.fault = gone
    async with play.daemon() as outbox:
        await outbox.put(URL, event(1))
        file.rename(away)
        for _ in range(2):
            with pytest.raises(StoreError, match=f"was removed or replaced under the daemon: {play.path};"):
                await outbox.put(URL, event(2))
            file.touch()
        away.rename(file)
        await outbox.put(URL, event(3))
        play.fleet.one.fault = lambda path: None
        await play.through(outbox)
    assert play.fleet.one.written == [event(1).path, event(3).path]


async def test_what_could_not_be_read_again_is_not_kept(play: Play) -> None:
    """Somebody else's heartbeat nests deeper than any parser follows: what would be made of it is set aside."""
    deep: object = "x"
    for _ in range(500):
        deep = [deep]
    stands = beat(0).beat.agent_id
    record = {"agent_id": stands, "phase": "one", "batch_id": "b1", "pr_url": deep}
    await play.fleet.one.write(beat(0).path, record, version=None, note="")
    async with play.daemon() as outbox:
        with pytest.raises(UsageError, match="nested deeper than 100 levels"):
            await outbox.put(URL, event(1, x=deep))
        await outbox.put(URL, beat(1, metadata={"phase": "two"}))
        await play.until(lambda: outbox.set_aside() == 1)
        assert outbox.entries()[0].error == "it is nested deeper than 100 levels"
    async with play.daemon() as outbox:
        assert len(outbox.entries()) == 1


async def test_a_long_outage_fills_nothing_with_the_same_heartbeat(play: Play) -> None:
    play.fleet.one.fault = gone
    async with play.daemon() as outbox:
        for minute in range(60):
            await outbox.put(URL, beat(minute))
        assert len(outbox.entries()) <= 2, "one may be on its way"
        await outbox.put(URL, beat(61, branch="x"))
        await outbox.put(URL, beat(62))
        assert len(outbox.entries()) <= 4
        used = outbox.used
    async with play.daemon() as outbox:
        assert outbox.used == used, "what is counted is what is kept"
        play.fleet.one.fault = lambda path: None
        await play.through(outbox)
    stored = await play.fleet.one.read(beat(0).path)
    assert stored is not None
    assert stored.document == {
        "branch": "x",
        "schema_version": 1,
        "agent_id": "ana",
        "status": "in_progress",
        "updated_at": "2026-01-01T01:02:00Z",
        "expires_at": "2026-01-01T01:17:00Z",
    }


async def test_a_phase_change_leaves_its_event(play: Play) -> None:
    play.fleet.one.fault = gone
    async with play.daemon() as outbox:
        await outbox.put(URL, beat(1, batch_id="b1", metadata={"phase": "coding"}))
        for minute in (2, 3, 4):
            await outbox.put(URL, beat(minute, metadata={"phase": "testing"}))
        play.fleet.one.fault = lambda path: None
        await play.through(outbox)
    written = play.fleet.one.written
    assert written[:2] == ["heartbeats/ana.json"] * 2
    assert written[2] == "events/b1/20260101T000200.000000Z-00000002.json", "of when it was said first"
    assert len(written) == 3


# When ------------------------------------------------------------------------------------------------


class Remembered(KeptOutbox):
    """Keeps entries in memory, so that nothing waits but for the clock that the test moves."""

    def __init__(self) -> None:
        self.texts: dict[int, str] = {}

    async def entries(self) -> list[KeptEntry]:
        return []

    async def late(self, number: int) -> Late | None:
        return msgspec.json.decode(self.texts[number], type=Late)

    async def add(
        self, url: str, text: str, queued_at: datetime, *, origin: str | None = None, refused: str | None = None
    ) -> int | None:
        self.texts[len(self.texts) + 1] = text
        return len(self.texts)

    async def replace(self, number: int, text: str) -> None:
        self.texts[number] = text

    async def mark(self, number: int, attempts: int, error: str | None, *, aside: bool) -> None:
        pass

    async def remove(self, *numbers: int) -> None:
        pass


@asynccontextmanager
async def remembering(play: Play) -> AsyncGenerator[Outbox]:
    async with anyio.create_task_group() as tasks:
        outbox = Outbox(play.fleet, Remembered(), play.urls, play.time, chance=lambda: 1.0)
        await tasks.start(outbox.run)
        yield outbox
        tasks.cancel_scope.cancel()


async def test_attempts_become_rare_and_end_with_any_answer(play: Play) -> None:
    one = play.fleet.one
    one.fault = gone
    async with remembering(play) as outbox:
        await outbox.put(URL, event(1))
        await play.time.pass_by(61)
        assert len(one.tried) == 7, "after 0, 1, 3, 7, 15, 31 and 61 seconds"
        await play.time.pass_by(300)
        assert len(one.tried) == 17, "twice a minute"
        await play.time.pass_by(2)
        one.fault = lambda path: None
        outbox.answered(HttpBackend(OTHER))
        await play.time.pass_by(1)
        assert len(one.tried) == 17
        outbox.answered(HttpBackend(URL))
        await settled()
        assert one.written == [event(1).path]


async def test_a_server_is_left_alone_for_as_long_as_it_asks(play: Play) -> None:
    one = play.fleet.one
    one.fault = lambda path: Rejected("429", status=429, reason="quota", retry_after=120.0)
    async with remembering(play) as outbox:
        await outbox.put(URL, event(1))
        await settled()
        one.fault = lambda path: None
        for _ in range(119):
            outbox.answered(HttpBackend(URL))  # whoever else is answered has not used up this one's quota
            await outbox.put(URL, beat(1))
            await play.time.pass_by(1)
        assert len(one.tried) == 1
        await play.time.pass_by(1)
        assert sorted(one.written) == [event(1).path, beat(1).path]


async def test_a_server_that_is_back_before_it_said_so_is_asked(play: Play) -> None:
    one = play.fleet.one
    one.fault = lambda path: Rejected("503", status=503, reason="maintenance", retry_after=3000.0)
    async with remembering(play) as outbox:
        await outbox.put(URL, event(1))
        await play.time.pass_by(600, step=60)
        assert len(one.tried) == 1
        one.fault = lambda path: None
        outbox.answered(HttpBackend(URL))
        await settled()
        assert one.written == [event(1).path]


async def test_a_record_that_fails_by_itself_waits_by_itself(play: Play) -> None:
    one, broken = play.fleet.one, event(0, "broken")
    one.fault = lambda path: gone(path) if path == broken.path else None
    async with remembering(play) as outbox:
        await outbox.put(URL, broken)
        await play.time.pass_by(10)
        for number in range(50):
            await outbox.put(URL, event(number))
        await play.time.pass_by(10)
        assert one.written == [event(number).path for number in range(50)]
        assert len(one.tried) - 50 <= 10
        assert [view.state for view in outbox.entries()] == ["waiting"]


async def test_answers_to_others_are_no_reason_to_hammer(play: Play) -> None:
    one = play.fleet.one
    one.fault = gone
    async with remembering(play) as outbox:
        await outbox.put(URL, event(1))
        for _ in range(300):
            outbox.answered(HttpBackend(URL))
            await play.time.pass_by(1)
        assert len(one.tried) < 20


# What is kept ------------------------------------------------------------------------------------------


async def test_a_database_of_before_gains_an_outbox(play: Play) -> None:
    play.path.parent.mkdir(exist_ok=True)
    with sqlite3.connect(play.path) as connection:
        connection.executescript(
            "CREATE TABLE lanes (lane TEXT PRIMARY KEY, entry TEXT NOT NULL) STRICT, WITHOUT ROWID;"
            "CREATE TABLE facts (name TEXT PRIMARY KEY, value TEXT NOT NULL) STRICT, WITHOUT ROWID;"
            "INSERT INTO facts VALUES ('alive_at', '2026-01-01T00:00:00Z');"
            "PRAGMA application_id = 1634165604; PRAGMA user_version = 1;"
        )
    connection.close()
    async with open_database(str(play.path)) as database:
        assert await database.alive_at() == START
    async with play.daemon() as outbox:
        await outbox.put(URL, event(1))
        await play.through(outbox)
    with sqlite3.connect(play.path) as connection:
        assert connection.execute("PRAGMA user_version").fetchone() == (SCHEMA,)
    connection.close()


async def test_every_change_waits_for_the_disk(play: Play) -> None:
    async with open_database(str(play.path)) as database:
        kept: Any = database.outbox
        rows = await kept._connection.execute_fetchall("PRAGMA synchronous")  # noqa: SLF001 - only it can be asked
    assert [tuple(row) for row in rows] == [(2,)], "FULL"


async def test_an_entry_that_cannot_be_read_is_named(play: Play) -> None:
    play.fleet.one.fault = gone
    async with play.daemon() as outbox:
        await outbox.put(URL, event(1))
    with sqlite3.connect(play.path) as connection:
        connection.execute("UPDATE outbox SET late = '{}'")
    connection.close()
    async with open_database(str(play.path)) as database:
        with pytest.raises(StoreError, match="damaged: .*: outbox entry 1"):
            await database.outbox.entries()


async def test_what_waits_for_a_server_that_is_served_no_more_is_shown_and_can_be_dropped(play: Play) -> None:
    play.fleet.one.fault = gone
    async with play.daemon() as outbox:
        await outbox.put(URL, event(1))
    play.urls = (OTHER,)
    async with play.daemon() as outbox:
        [view] = outbox.entries()
        assert view.error == "the daemon does not serve this backend any more"
        assert not outbox.takes(URL)
        await outbox.retry([view.id])
        await outbox.drop([view.id])
        assert outbox.used == (0, 0)


async def test_something_of_one_origin_is_taken_once(play: Play) -> None:
    play.fleet.one.fault = gone
    async with play.daemon() as outbox:
        for _ in range(2):
            await outbox.put(URL, event(1), origin="file")
            await outbox.put(URL, event(2), origin="other", refused="not for us")
        assert [view.state for view in outbox.entries()] == ["waiting", "set_aside"]


async def test_the_bounds_are_those_that_are_documented() -> None:
    text = (Path(__file__).parents[2] / "docs/outbox.md").read_text()
    assert f"{rules.MOST_ENTRIES:,} records" in text
    assert f"{rules.MOST_BYTES >> 20} MiB" in text


async def test_a_fault_of_ours_ends_no_daemon(play: Play, caplog: pytest.LogCaptureFixture) -> None:
    one = play.fleet.one
    one.fault = lambda path: ZeroDivisionError("ours") if path == event(1).path else None
    async with play.daemon() as outbox:
        await outbox.put(URL, event(1))
        await outbox.put(URL, event(2, "b2"))
        await play.until(lambda: len(outbox.entries()) == 1 and outbox.entries()[0].attempts > 1)
        assert "internal error" in (outbox.entries()[0].error or "")
    assert one.written == [event(2, "b2").path]
    assert "internal error while sending" in caplog.text
