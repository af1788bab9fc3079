"""A root that cannot be looked at for a while is mirrored as soon as it can be, however long that took."""

from collections.abc import Awaitable
from datetime import UTC, datetime
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import anyio
import anyio.to_thread
import pytest

from agentcoord.stores.local import LocalStore
from agentcoordd.backends import LocalBackend
from agentcoordd.places import Place
from agentcoordd.services.mirror import Mirrors
from agentcoordd.stamps import Tree
from tests.daemon.remembering import lay_event, remembered
from tests.daemon.running import until
from tests.daemon.test_stamps import age

pytestmark = pytest.mark.anyio


class HastyClock:
    """Every wait is over at once, and as much time has passed."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self.waits = 0

    def boot(self) -> float:
        return self.seconds

    def now(self) -> datetime:
        return datetime(2026, 3, 1, 12, tzinfo=UTC)

    async def wait(self, event: anyio.Event, seconds: float) -> None:
        self.seconds += seconds
        self.waits += 1
        await anyio.sleep(0.001)


class Closed(Tree):
    """Directories that may not be looked at until somebody opens them; to root none is closed."""

    closed = True

    def look(self, closed: dict[str, OSError] | None = None) -> list[str]:
        if self.closed:
            raise PermissionError(13, "Permission denied", "events")
        return super().look(closed)


class Here:
    """The one backend, worked on where the caller is; it notes when."""

    def __init__(self, clock: HastyClock) -> None:
        self.clock = clock
        self.began: list[float] = []

    async def perform_aside(self, backend: Any, deed: Any) -> Any:
        self.began.append(self.clock.seconds)
        done: Awaitable[Any] = deed(LocalStore(backend.root))
        return await done


async def test_looking_again_is_no_failure_that_a_sync_has_to_wait_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    monkeypatch.setattr("agentcoordd.services.mirror.Tree", Closed)
    lay_event(tmp_path, "e1")
    clock = HastyClock()
    here = Here(clock)
    mirrors = Mirrors(here, [Place(LocalBackend(str(tmp_path)), str(tmp_path))], clock)
    async with anyio.create_task_group() as tasks:
        await tasks.start(mirrors.run)
        await anyio.to_thread.run_sync(until, lambda: clock.waits >= 50)
        (shown,) = mirrors.list()
        assert (shown.state, shown.error) == ("failing", "cannot look at events: Permission denied")
        monkeypatch.setattr(Closed, "closed", False)
        opened = clock.seconds
        await anyio.to_thread.run_sync(until, lambda: mirrors.list()[0].synced_at is not None)
        assert here.began[0] - opened < 10
        assert remembered(tmp_path) == ["e1"]
        tasks.cancel_scope.cancel()
    assert caplog.text.count("is not mirrored: cannot look at events") == 1
    assert caplog.text.count("is mirrored again") == 1


async def test_news_beside_what_cannot_be_looked_at_are_not_forgotten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class ArchiveClosed(Tree):
        closed = True

        def look(self, closed: dict[str, OSError] | None = None) -> list[str]:
            if self.closed and "archive" in self._path:
                raise PermissionError(13, "Permission denied", "archive/events")
            return super().look(closed)

    monkeypatch.setattr("agentcoordd.services.mirror.Tree", ArchiveClosed)
    lay_event(tmp_path, "e1")
    age(tmp_path)  # one look takes note of it for good
    clock = HastyClock()
    mirrors = Mirrors(Here(clock), [Place(LocalBackend(str(tmp_path)), str(tmp_path))], clock)
    async with anyio.create_task_group() as tasks:
        await tasks.start(mirrors.run)
        await anyio.to_thread.run_sync(until, lambda: clock.waits >= 5)
        monkeypatch.setattr(ArchiveClosed, "closed", False)
        await anyio.to_thread.run_sync(until, lambda: mirrors.list()[0].synced_at is not None)
        tasks.cancel_scope.cancel()
    assert remembered(tmp_path) == ["e1"]


async def test_a_sync_is_followed_by_many_times_what_it_took_of_the_core(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("agentcoordd.services.mirror.time", SimpleNamespace(thread_time=count(0, 10).__next__))
    lay_event(tmp_path, "e1")
    clock = HastyClock()
    here = Here(clock)
    mirrors = Mirrors(here, [Place(LocalBackend(str(tmp_path)), str(tmp_path))], clock)
    async with anyio.create_task_group() as tasks:
        await tasks.start(mirrors.run)
        await anyio.to_thread.run_sync(until, lambda: mirrors.list()[0].synced_at is not None)
        lay_event(tmp_path, "e2")
        await anyio.to_thread.run_sync(until, lambda: len(here.began) >= 2)
        tasks.cancel_scope.cancel()
    assert here.began[1] - here.began[0] >= 20 * 10


async def test_a_look_that_hung_is_not_the_last_for_days(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = HastyClock()
    looked: list[float] = []

    class Slept(Tree):
        """The machine sleeps while directories are looked at."""

        def look(self, closed: dict[str, OSError] | None = None) -> list[str]:
            looked.append(clock.seconds)
            clock.seconds += 4 * 60 * 60
            return super().look(closed)

    monkeypatch.setattr("agentcoordd.services.mirror.Tree", Slept)
    mirrors = Mirrors(Here(clock), [Place(LocalBackend(str(tmp_path)), str(tmp_path))], clock)
    async with anyio.create_task_group() as tasks:
        await tasks.start(mirrors.run)
        await anyio.to_thread.run_sync(until, lambda: len(looked) >= 3)
        tasks.cancel_scope.cancel()
    assert looked[2] - looked[0] == 2 * 4 * 60 * 60 + 300
