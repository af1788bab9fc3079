"""What a server survives: its own death under load, its database's, and a disk that is full."""

import os
import sqlite3
import subprocess
from collections.abc import AsyncGenerator, Generator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, closing
from functools import partial
from pathlib import Path
from random import Random

import anyio
import anyio.to_thread
import pytest

from agentcoord.errors import Conflict, Rejected, StoreError
from agentcoord.settings.selection import Secret
from agentcoord.stores.http import HttpStore
from tests.command import PATIENCE
from tests.server.calling import Caller, calling, grant
from tests.server.evidence import require_kept, seed, witnessed
from tests.server.fleet import HASTE, kill, name_of, tokens
from tests.server.history import Clock, History
from tests.server.postgres import Cluster
from tests.server.recording import Recording
from tests.server.running import Running, running, start

SEED = seed()
WRITERS = 32
KILLS = 10
SHARED = tuple(f"batches/shared-{number}.json" for number in range(4))

RECORD = "x" * 20_000
FULL = (503, "storage_unavailable")


class Progress:
    """What all writers together have come to; whoever waits for it is woken by it."""

    def __init__(self) -> None:
        self.acknowledged, self.unavailable = 0, 0
        self._step = anyio.Event()

    def note(self, *, acknowledged: int = 0, unavailable: int = 0) -> None:
        self.acknowledged += acknowledged
        self.unavailable += unavailable
        self._step.set()
        self._step = anyio.Event()

    async def acknowledgements(self, more: int) -> None:
        """Wait for so many more writes."""
        least = self.acknowledged + more
        while self.acknowledged < least:
            await self._step.wait()

    async def outage(self) -> None:
        """Wait for one more answer that says that the database is not there."""
        seen = self.unavailable
        while self.unavailable == seen:
            await self._step.wait()


class Writer:
    """Creates, updates and deletes records of its own, and updates some that all share, as fast as it is answered."""

    def __init__(self, store: Recording, random: Random, progress: Progress) -> None:
        self._store, self._random, self._progress = store, random, progress
        self._own = [f"batches/{store.client}-{number}.json" for number in range(2)]
        self._count = 0

    async def write(self, over: anyio.Event) -> None:
        """Go on until the end; what was begun is brought to its own end."""
        try:
            while not over.is_set():
                try:
                    await self._once()
                except Conflict:
                    pass
                except StoreError as error:
                    self._progress.note(unavailable=isinstance(error, Rejected) and error.status == 503)
                    with anyio.move_on_after(0.02):  # a server that is away is not asked without a pause
                        await over.wait()
        finally:
            await self._store.aclose()

    async def _once(self) -> None:
        path = self._random.choice([*self._own, self._random.choice(SHARED)])
        stored = await self._store.read(path)
        version = stored and stored.version
        for _ in range(self._random.randint(1, 4)):  # on what was just answered, so that most requests are writes
            self._count += 1
            document = {"by": self._store.client, "count": self._count}
            version = await self._store.write(path, document, version=version, note="")
            self._progress.note(acknowledged=1)
        if path in self._own and version and self._random.random() < 0.5:
            await self._store.delete(path, version=version, note="")
            self._progress.note(acknowledged=1)


@asynccontextmanager
async def load(server: Running, history: History, test: str) -> AsyncGenerator[Progress]:
    """Keep a server busy for a block."""
    given = await tokens(server.db, [name_of(number) for number in range(WRITERS)])
    progress, over = Progress(), anyio.Event()
    with witnessed(history, test, SEED), anyio.fail_after(3 * PATIENCE):
        async with anyio.create_task_group() as writers:
            for name, token in given.items():
                random = Random(f"{SEED}:{name}")
                store = HttpStore(server.url, Secret(token), patience=HASTE)
                writer = Writer(Recording(name, [store], history, random), random, progress)
                writers.start_soon(writer.write, over)
            try:
                yield progress
            finally:
                over.set()


async def test_a_server_killed_under_load_loses_nothing_and_claims_nothing(sqlite: str) -> None:
    random, history = Random(SEED), History(Clock())
    server = await anyio.to_thread.run_sync(partial(start, sqlite, "--no-access-log"))
    again = partial(start, sqlite, "--no-access-log", "--listen", f"127.0.0.1:{server.port}")
    try:
        async with load(server, history, "sqlite-killed") as progress:
            kills = 0
            while kills < KILLS or not was_under_way(history):
                kills += 1
                await progress.acknowledgements(random.randint(1, 100))
                await anyio.sleep(random.uniform(0.0, 0.05))  # away from the moment at which a group was answered
                await kill(server)
                server = await anyio.to_thread.run_sync(again)
            await progress.acknowledgements(WRITERS)
        await anyio.to_thread.run_sync(server.stop)
    finally:
        if server.process.returncode is None:
            server.kill()
    await require_kept(history, sqlite, "sqlite-killed", SEED)


def was_under_way(history: History) -> bool:
    """Tell whether any write has been caught half-way, without which there is nothing to see."""
    return any(event.stage == "unknown" and event.action in ("write", "delete") for event in history.events)


async def test_postgresql_dies_and_returns_and_the_server_with_it(cluster_of_its_own: Cluster) -> None:
    history = History(Clock())
    db = await anyio.to_thread.run_sync(cluster_of_its_own.database)
    with running(db, "--no-access-log") as server:
        async with load(server, history, "postgresql-restarted") as progress:
            for _ in range(2):
                await progress.acknowledgements(100)
                await anyio.to_thread.run_sync(cluster_of_its_own.stop)  # as `pg_ctl restart -m immediate` does
                await progress.outage()
                await anyio.to_thread.run_sync(cluster_of_its_own.start)
            await progress.acknowledgements(100)
        assert server.process.poll() is None
    await require_kept(history, db, "postgresql-restarted", SEED)


@pytest.fixture
def disk(tmp_path: Path) -> Generator[Path]:
    """A file system of eight megabytes."""
    if os.getuid() != 0:
        pytest.skip("only root can mount a small file system to fill")
    place = tmp_path / "disk"
    place.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=8m", "tmpfs", place], capture_output=True, text=True, check=False
    )
    if mounted.returncode != 0:
        pytest.skip(f"no small file system to fill can be mounted here: {mounted.stderr.strip()}")
    try:
        yield place
    finally:
        subprocess.run(["umount", place], check=True)


def fill(disk: Path, caller: Caller, first: int) -> int:
    """Write records until there is no room; give the number of the one that was refused."""
    with (disk / "filler").open("wb", buffering=0) as filler:
        while True:
            try:
                filler.write(b"\0" * 65_536)
            except OSError:
                break
    os.truncate(disk / "filler", (disk / "filler").stat().st_size - 400_000)
    for number in range(first, first + 1000):
        reply = caller.put(path_of(number), {"n": number, "filler": RECORD}, if_none_match="*")
        if reply.status != 201:
            assert reply.refusal == FULL
            return number
    raise AssertionError("the disk did not fill up")


def path_of(number: int) -> str:
    return f"batches/b{number}.json"


def numbers(caller: Caller) -> Sequence[int]:
    """List what is stored, each with what was written."""
    entries = caller.list("batches").json()["entries"]
    for entry in entries:
        assert entry["path"] == path_of(entry["data"]["n"])
        assert entry["data"]["filler"] == RECORD
    return sorted(entry["data"]["n"] for entry in entries)


def test_a_full_disk_stops_writes_alone_and_only_while_it_is_full(disk: Path) -> None:
    db = f"sqlite:///{disk}/state.db"
    refused = set[int]()
    with running(db) as server, calling(server, grant(db, "m", reads=[""], writes=[""])) as caller:
        caller.create(path_of(0), {"n": 0, "filler": RECORD})
        first = 1
        for _ in range(3):
            full = fill(disk, caller, first)
            refused.add(full)
            for _ in range(5):
                reply = caller.put(path_of(0), {"n": 0, "filler": RECORD + "x" * 100_000}, if_match="1")
                assert reply.refusal == FULL
                assert caller.get(path_of(0)).json()["version"] == 1
            stored = [number for number in range(full) if number not in refused]
            assert numbers(caller) == stored
            assert caller.ask("GET", "/v1/health").status == 200
            (disk / "filler").unlink()
            first = full + 1
            caller.create(path_of(first), {"n": first, "filler": RECORD})
            first += 1
        assert caller.delete(path_of(0), if_match="1").status == 200
    with running(db) as server, calling(server, grant(db, "n", reads=[""], writes=[""])) as caller:
        assert numbers(caller) == [number for number in range(1, first) if number not in refused]


@pytest.mark.parametrize("size", [10, 300_000], ids=["a small record", "a large one"])
def test_while_another_process_writes_to_the_file_the_others_are_answered(sqlite: str, size: int) -> None:
    token = grant(sqlite, "m", reads=[""], writes=[""])
    path = "archive/claims/o/r/7.json"
    with (
        running(sqlite) as server,
        calling(server, token) as caller,
        calling(server, token) as other,
        ThreadPoolExecutor(1) as beside,
        closing(sqlite3.connect(sqlite.removeprefix("sqlite:///"), isolation_level=None)) as connection,
    ):
        connection.execute("BEGIN IMMEDIATE")
        writing = beside.submit(caller.put, path, "x" * size, if_none_match="*")
        while other.open_requests() < 2:
            pass  # the write is there, and waits
        assert other.get(path).refusal == (404, "not_found")
        assert not writing.done()
        connection.execute("COMMIT")
        assert writing.result(PATIENCE).status == 201
        assert other.get(path).json()["data"] == "x" * size


@pytest.mark.parametrize("how", ["removed", "replaced"])
def test_a_file_that_is_taken_away_is_not_written_to_any_more(sqlite: str, tmp_path: Path, how: str) -> None:
    token = grant(sqlite, "m", reads=[""], writes=[""])
    with running(sqlite) as server, calling(server, token) as caller:
        caller.create("events/b/a.json")
        (tmp_path / "state.db").rename(tmp_path / "away.db")
        if how == "replaced":
            (tmp_path / "state.db").touch(0o600)
        assert caller.put("events/b/b.json", 1, if_none_match="*").refusal == FULL
        assert caller.ask("GET", "/v1/health").refusal == FULL
        (tmp_path / "state.db").unlink(missing_ok=True)
        (tmp_path / "away.db").rename(tmp_path / "state.db")
        caller.create("events/b/b.json")
        assert caller.ask("GET", "/v1/health").status == 200
