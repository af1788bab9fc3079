"""Many who ask for one status share readings, and none is given what was read before it asked."""

import json
import threading
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from datetime import datetime
from pathlib import Path
from typing import Any

import anyio
import pytest
from msgspec import Raw

from agentcoord.errors import StoreError
from agentcoordd.api.commands import Commands
from agentcoordd.api.deeds import StatusTarget
from agentcoordd.api.dispatch import Caller, Method
from agentcoordd.api.records import Records
from agentcoordd.api.service import service_of
from agentcoordd.backends import LocalBackend, OpenBackends
from agentcoordd.index import Ask, Drive, Index, Kept
from tests.command import PATIENCE
from tests.daemon.running import until

CALLER = Caller(pid=1, uid=1)


class Slow(Index):
    """An index whose readings are over only when a test says so. Each has a place in the order of their ends."""

    def __init__(self) -> None:
        super().__init__()
        self.begun, self.seen = 0, threading.Semaphore(0)
        self.go = threading.Semaphore(0)

    def answer(self, root: str, ask: Ask, drive: Drive, now: datetime) -> tuple[Raw, Kept | None]:
        raw, _ = super().answer(root, ask, drive, now)
        self.begun += 1
        self.seen.release()
        assert self.go.acquire(timeout=PATIENCE)
        return raw, None


class Stage:
    def __init__(self, root: Path) -> None:
        self.root, self.index = root, Slow()
        commands = Commands(service_of({}, [str(root)], any_root=False))
        backends = OpenBackends({}, serves=lambda _: True, token_of=lambda _: None)
        self.commands = commands
        methods = {method.name: method for method in Records(commands, backends, self.index).methods()}
        self.method: Method = methods["status.target"]
        self.answers: list[str | Exception] = []

    def write(self, phase: str) -> None:
        place = self.root / "claims/o/r/7.json"
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(json.dumps({"agent_id": "ana", "status": "active", "phase": phase} if phase else []))

    async def ask(self, scope: anyio.CancelScope | None = None) -> None:
        with scope or anyio.CancelScope():
            try:
                raw: Any = await self.method.call(
                    StatusTarget(backend=LocalBackend(str(self.root)), repo="o/r", target="7"), CALLER
                )
                self.answers.append(json.loads(bytes(raw))["claims"][0]["phase"])
            except StoreError as error:
                self.answers.append(error)

    async def reading(self) -> None:
        """Wait until the next reading has read."""
        assert await anyio.to_thread.run_sync(lambda: self.index.seen.acquire(timeout=PATIENCE))

    async def until_waiting(self, number: int) -> None:
        """Let everybody come as far as they can by themselves."""
        for _ in range(number):
            await anyio.lowlevel.checkpoint()


@asynccontextmanager
async def staged(root: Path) -> AsyncGenerator[Stage]:
    stage = Stage(root)
    yield stage
    until(lambda: stage.commands.running == 0)  # also the threads that nobody waits for any more


async def test_who_asks_during_a_reading_is_told_of_the_next_one_and_all_of_them_share_it(tmp_path: Path) -> None:
    async with staged(tmp_path) as stage, anyio.create_task_group() as tasks:
        stage.write("old")
        tasks.start_soon(stage.ask)
        await stage.reading()
        stage.write("new")
        for _ in range(50):
            tasks.start_soon(stage.ask)
        await stage.until_waiting(10)
        stage.index.go.release(2)
        await stage.reading()
    assert sorted(map(str, stage.answers)) == ["new"] * 50 + ["old"]
    assert stage.index.begun == 2


async def test_who_reads_for_others_may_leave(tmp_path: Path) -> None:
    async with staged(tmp_path) as stage, anyio.create_task_group() as tasks:
        stage.write("old")
        first, second = anyio.CancelScope(), anyio.CancelScope()
        tasks.start_soon(stage.ask, first)
        await stage.reading()
        tasks.start_soon(stage.ask, second)  # it waits for the first, and the others for it
        await stage.until_waiting(5)
        for _ in range(5):
            tasks.start_soon(stage.ask)
        await stage.until_waiting(5)
        second.cancel()
        await stage.until_waiting(5)
        first.cancel()
        stage.write("new")
        await stage.reading()
        stage.index.go.release(2)
    assert stage.answers == ["new"] * 5
    assert stage.index.begun == 2


async def test_what_went_wrong_is_told_to_all(tmp_path: Path) -> None:
    async with staged(tmp_path) as stage, anyio.create_task_group() as tasks:
        stage.write("old")
        tasks.start_soon(stage.ask)
        await stage.reading()
        stage.write("")
        for _ in range(5):
            tasks.start_soon(stage.ask)
        await stage.until_waiting(5)
        stage.index.go.release(2)
    assert stage.answers.pop(0) == "old"
    assert [str(answer) for answer in stage.answers] == ["state record is not a claim object: claims/o/r/7.json"] * 5
    with pytest.raises(StoreError):
        raise next(answer for answer in stage.answers if isinstance(answer, Exception))
