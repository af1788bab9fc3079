"""What the keeper is played on: a clock that is set, processes that end when told to, and backends that fail."""

import subprocess
import time
from collections.abc import AsyncGenerator, Callable, Generator, Sequence
from contextlib import asynccontextmanager, contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, TypeVar

import anyio
import anyio.lowlevel

from agentcoord.errors import StoreError, UsageError
from agentcoord.protocol.agents import Process
from agentcoord.protocol.keeping import Lane
from agentcoord.stores.local import LocalStore
from agentcoord.stores.memory import MemoryStore
from agentcoordd.backends import Backend, Deed, LocalBackend, OpenBackends
from agentcoordd.clock import Clock, SystemClock
from agentcoordd.database import Entry
from agentcoordd.processes import Processes, SystemProcesses, Watched
from agentcoordd.services.keeper import Hold, Keeper
from tests.command import PATIENCE
from tests.operations.stage import FakeClock, Stage

_T = TypeVar("_T")
START = datetime(2026, 1, 1, tzinfo=UTC)
MEMORY = LocalBackend("/memory")


async def settled() -> None:
    """Let every task go as far as it can: nothing here waits for anything but this loop."""
    for _ in range(40):
        await anyio.lowlevel.checkpoint()


class FakeTime:
    """Both clocks of a machine; they stand still until a test moves them."""

    def __init__(self) -> None:
        self.seconds = 1000.0
        self.wall = START
        self._waiting: list[tuple[float, anyio.CancelScope]] = []

    def boot(self) -> float:
        return self.seconds

    def now(self) -> datetime:
        return self.wall

    async def wait(self, event: anyio.Event, seconds: float) -> None:
        if event.is_set() or seconds <= 0:
            await anyio.lowlevel.checkpoint()
            return
        with anyio.CancelScope() as scope:
            waiting = self.seconds + seconds, scope
            self._waiting.append(waiting)
            try:
                await event.wait()
            finally:
                self._waiting.remove(waiting)

    async def jump(self, seconds: float, *, wall: float | None = None) -> None:
        """Move both clocks at once, as a suspend does, or the wall clock by something else."""
        await settled()
        self.seconds += seconds
        self.wall += timedelta(seconds=seconds if wall is None else wall)
        for due, scope in tuple(self._waiting):
            if due <= self.seconds:
                scope.cancel()
        await settled()

    async def pass_by(self, seconds: float, *, step: float = 1.0) -> None:
        """Let time pass as it does, a tick at a time."""
        for _ in range(round(seconds / step)):
            await self.jump(step)


class FollowingClock(FakeClock):
    """The wall clock of a machine, for those who work beside the keeper."""

    def __init__(self, time: FakeTime) -> None:
        self._time = time

    @property
    def instant(self) -> datetime:  # type: ignore[override]
        return self._time.wall

    def now(self) -> datetime:
        return self._time.wall


class FakeProcesses:
    """Processes that live until they are ended."""

    def __init__(self) -> None:
        self.running: dict[int, tuple[Watched, anyio.Event]] = {}
        self.above: list[Process] = []

    def start(self, pid: int, started: str = "1") -> Watched:
        watched = Watched(pid, started)
        self.running[pid] = watched, anyio.Event()
        return watched

    def end(self, pid: int) -> None:
        self.running.pop(pid)[1].set()

    def find(self, pid: int) -> Watched | None:
        found = self.running.get(pid)
        return found[0] if found else None

    def lives(self, process: Watched) -> bool:
        return self.find(process.pid) == process

    def name(self, pid: int) -> str | None:
        return "agent" if pid in self.running else None

    def ancestors(self, pid: int) -> Sequence[Process]:
        return self.above

    async def exited(self, process: Watched) -> None:
        if self.lives(process):
            await self.running[process.pid][1].wait()


class MemoryRoster:
    """A roster that is forgotten with the test."""

    def __init__(self, alive_at: datetime | None = None) -> None:
        self.entries: dict[str, Entry] = {}
        self.alive = alive_at
        self.full = False

    async def lanes(self) -> Sequence[Entry]:
        return list(self.entries.values())

    async def put(self, entry: Entry) -> None:
        self.entries[entry.id] = entry

    async def remove(self, lane: str) -> None:
        self.entries.pop(lane, None)

    async def mark_alive(self, now: datetime) -> None:
        if self.full:
            raise StoreError("no room")
        self.alive = now

    async def alive_at(self) -> datetime | None:
        return self.alive


class MemoryBackends:
    """One store in memory behind every backend; it fails, or hangs, while told to."""

    def __init__(self, store: MemoryStore) -> None:
        self.store = store
        self.down = False
        self.serves = True
        self.hangs: anyio.Event | None = None
        self.asked = 0
        self.at_once = 0
        self.most = 0

    def require(self, backend: Backend) -> None:
        if not self.serves:
            raise UsageError("not served")

    async def perform(self, backend: Backend, deed: Deed[_T], *, settle: bool = True) -> _T:
        self.asked += 1
        self.at_once += 1
        self.most = max(self.most, self.at_once)
        try:
            await anyio.lowlevel.checkpoint()
            if self.hangs is not None:
                await self.hangs.wait()
            if self.down:
                raise StoreError("the backend does not answer")
            return await deed(self.store)
        finally:
            self.at_once -= 1


class Heard:
    """A feed, and a notification command, that remember."""

    def __init__(self) -> None:
        self.events: list[tuple[str, dict[str, Any]]] = []
        self.posted: list[str] = []

    def publish(self, topic: str, data: dict[str, Any]) -> None:
        self.events.append((topic, data))

    def post(self, topic: str, data: dict[str, Any]) -> None:
        self.posted.append(topic)

    @property
    def topics(self) -> list[str]:
        return [topic for topic, _ in self.events]


class KeeperStage:
    """A keeper with all it needs, on records in memory."""

    def __init__(self) -> None:
        self.time = FakeTime()
        self.processes = FakeProcesses()
        self.roster = MemoryRoster()
        self.heard = Heard()
        self.store = MemoryStore()
        self.backends = MemoryBackends(self.store)
        self.keeper = self.again()

    def again(self, *, concurrency: int = 8, tick: float = 1.0) -> Keeper:
        """Another keeper of the same roster, as after a restart."""
        self.keeper = Keeper(
            self.backends,
            self.roster,
            self.heard,
            self.time,
            self.processes,
            notify=self.heard,
            chance=lambda: 0.5,
            concurrency=concurrency,
            tick=tick,
        )
        return self.keeper

    @asynccontextmanager
    async def running(self) -> AsyncGenerator[Keeper]:
        """Run the keeper, and kill it at the end."""
        async with anyio.create_task_group() as tasks:
            await tasks.start(self.keeper.run)
            await settled()
            yield self.keeper
            tasks.cancel_scope.cancel()

    def records(self) -> Stage:
        """The records, for those who claim and beat beside the keeper."""
        return Stage(self.store, FollowingClock(self.time))

    def state(self, agent_id: str = "a1") -> str:
        """Where the lane of an agent stands."""
        return next(view.state for view in self.keeper.list() if view.agent_id == agent_id)


def both(agent_id: str = "a1", ttl: int = 60, target: str = "7", **more: Any) -> Lane:
    """A lane that keeps a heartbeat and a claim."""
    return Lane(agent_id=agent_id, ttl=ttl, kinds=("heartbeat", "claim"), repo="o/r", target=target, **more)


def hold(lane: Lane, pid: int | None = None, backend: Backend = MEMORY) -> Hold:
    return Hold(lane=lane, backend=backend, pid=pid)


@asynccontextmanager
async def keeping(
    root: Path, roster: Any, heard: Heard, *, processes: Processes | None = None, clock: Clock | None = None
) -> AsyncGenerator[Keeper]:
    """Run a keeper on real files, processes and clocks."""
    backends = OpenBackends({}, serves=lambda _: True, token_of=lambda _: None)
    async with backends, anyio.create_task_group() as tasks:
        keeper = Keeper(
            backends, roster, heard, clock or SystemClock(), processes or SystemProcesses(poll=0.05), tick=0.1
        )
        await tasks.start(keeper.run)
        yield keeper
        tasks.cancel_scope.cancel()


def open_files(root: Path) -> LocalStore:
    """A state root for real."""
    root.mkdir(parents=True, exist_ok=True)
    return LocalStore(root)


async def until(true: Callable[[], bool], what: str) -> None:
    """Wait for something that is about to happen."""
    deadline = time.monotonic() + PATIENCE
    while not true():
        assert time.monotonic() < deadline, f"never: {what}"
        await anyio.sleep(0.01)


@contextmanager
def sleeping() -> Generator["subprocess.Popen[bytes]"]:
    """Run a process that does nothing, for a block."""
    with subprocess.Popen(["/bin/sleep", "600"]) as child:
        try:
            yield child
        finally:
            child.kill()
