"""Directories of requests that cannot be looked at for a while: what is elsewhere is told all the same, and once."""

import os
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import pytest

from agentcoordd.clock import SystemClock
from agentcoordd.services.attention import Attention
from tests.daemon.remembering import lay
from tests.daemon.running import until
from tests.protocol.test_attention import OPEN

pytestmark = pytest.mark.anyio


async def seen(holds: Callable[[], bool]) -> None:
    await anyio.to_thread.run_sync(until, holds)


class Told:
    """A feed that is read by a test."""

    def __init__(self) -> None:
        self.news: list[tuple[str, str]] = []

    def publish(self, topic: str, data: dict[str, Any]) -> None:
        self.news.append((data["repository"], data["id"]))

    async def until(self, *news: tuple[str, str]) -> None:
        await seen(lambda: len(self.news) >= len(news))
        assert sorted(self.news) == sorted(news)


@contextmanager
def closed(place: Path) -> Generator[None]:
    """Close a directory; to root none is closed, so the system's answer is given for it and all that is below."""
    scandir: Any = os.scandir
    lstat: Any = os.lstat

    def scan(path: str) -> Any:
        if Path(path).is_relative_to(place):
            raise PermissionError(13, "Permission denied", path)
        return scandir(path)

    def look(path: str) -> Any:
        if place in Path(path).parents:
            raise PermissionError(13, "Permission denied", path)
        return lstat(path)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "scandir", scan)
        patch.setattr(os, "lstat", look)
        yield


def ask(root: Path, repository: str, id_: str) -> None:
    workspace = "v" if repository == "o/r" else "w"
    record = OPEN | {"id": id_, "repository": repository, "workspace": workspace}
    lay(root, f"attention/{workspace}/{repository}/{id_}.json", record)


@pytest.mark.parametrize("place", ["v", "v/o/r"])
@pytest.mark.parametrize("from_the_start", [True, False])
async def test_one_closed_directory_hides_nothing_else_and_doubles_nothing(
    tmp_path: Path, from_the_start: bool, place: str, caplog: pytest.LogCaptureFixture
) -> None:
    for repository in ("o/a", "o/r", "o/z"):
        ask(tmp_path, repository, "old")
    feed = Told()
    attention = Attention([str(tmp_path)], feed, SystemClock())  # pyright: ignore[reportArgumentType]
    async with anyio.create_task_group() as tasks:
        if not from_the_start:
            await tasks.start(attention.run)
        with closed(tmp_path / "attention" / place):
            if from_the_start:
                await tasks.start(attention.run)
            for repository in ("o/a", "o/r", "o/z"):
                ask(tmp_path, repository, "new")
            await feed.until(("o/a", "new"), ("o/z", "new"))
            await seen(lambda: f"attention/{place} is not watched" in caplog.text)
        ask(tmp_path, "o/a", "newer")
        news = [("o/a", "new"), ("o/z", "new"), ("o/a", "newer")]
        if not from_the_start:
            news.append(("o/r", "new"))
        await feed.until(*news)
        ask(tmp_path, "o/r", "last")
        await feed.until(*news, ("o/r", "last"))
        tasks.cancel_scope.cancel()
    assert caplog.text.count("is not watched") == 1
