"""Group commit: every writer gets the verdict of its own write, whatever becomes of the group."""

from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager

import anyio
import pytest

from agentcoordd.server.storage.base import StorageDown, Verdict, Write
from agentcoordd.server.storage.committer import Committer
from tests.command import PATIENCE


class Groups:
    """What is committed, one group after the other, each as soon as it is let go."""

    def __init__(self) -> None:
        self.begun: list[list[str]] = []
        self.fails: set[int] = set()
        self.trimmed: list[int] = []
        self.trim_fails = False
        self._gate = anyio.Event()

    def open(self) -> None:
        """Let all groups go from now on."""
        self._gate.set()

    async def commit(self, writes: Sequence[Write]) -> Sequence[Verdict]:
        number = len(self.begun)
        self.begun.append([write.path for write in writes])
        await self._gate.wait()
        if number in self.fails:
            raise StorageDown(f"group {number} failed")
        return [write.version + 1 if write.version else None for write in writes]

    async def trim(self) -> None:
        self.trimmed.append(len(self.begun))
        if self.trim_fails:
            raise StorageDown("trimming failed")


@asynccontextmanager
async def _committing(groups: Groups) -> AsyncGenerator[Committer]:
    committer = Committer(groups.commit, groups.trim)
    with anyio.fail_after(PATIENCE):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(committer.run)
            yield committer
            committer.close()


def _write(number: int) -> Write:
    return Write("update", f"p{number}", "m", "1", number)


class Outcomes:
    """Writers that stand beside each other, and what each was told."""

    def __init__(self, committer: Committer) -> None:
        self._committer = committer
        self.told: dict[int, Verdict | str] = {}

    async def submit(self, number: int) -> None:
        try:
            self.told[number] = await self._committer.submit(_write(number))
        except StorageDown as down:
            self.told[number] = str(down)


async def test_each_writer_is_told_its_own_verdict() -> None:
    groups = Groups()
    async with _committing(groups) as committer:
        outcomes = Outcomes(committer)
        async with anyio.create_task_group() as writers:
            for number in range(300):
                writers.start_soon(outcomes.submit, number)
            await anyio.wait_all_tasks_blocked()
            assert outcomes.told == {}
            groups.open()
    assert outcomes.told == {0: None, **{number: number + 1 for number in range(1, 300)}}
    assert [path for group in groups.begun for path in group] == [f"p{number}" for number in range(300)]


async def test_what_comes_during_a_commit_shares_the_next_and_no_group_is_too_large() -> None:
    groups = Groups()
    async with _committing(groups) as committer:
        outcomes = Outcomes(committer)
        async with anyio.create_task_group() as writers:
            writers.start_soon(outcomes.submit, 1)
            await anyio.wait_all_tasks_blocked()
            for number in range(2, 402):
                writers.start_soon(outcomes.submit, number)
            await anyio.wait_all_tasks_blocked()
            groups.open()
    assert [len(group) for group in groups.begun] == [1, 256, 144]


async def test_a_group_that_fails_fails_its_members_and_nobody_else() -> None:
    groups = Groups()
    groups.fails = {1}
    async with _committing(groups) as committer:
        outcomes = Outcomes(committer)
        async with anyio.create_task_group() as writers:
            writers.start_soon(outcomes.submit, 1)
            await anyio.wait_all_tasks_blocked()
            for number in range(2, 300):
                writers.start_soon(outcomes.submit, number)
            await anyio.wait_all_tasks_blocked()
            groups.open()
    assert groups.begun[1] == [f"p{number}" for number in range(2, 258)]
    assert outcomes.told == {
        1: 2,
        **dict.fromkeys(range(2, 258), "group 1 failed"),
        **{number: number + 1 for number in range(258, 300)},
    }


async def test_who_stops_waiting_takes_nothing_back_and_spoils_nothing() -> None:
    groups = Groups()
    async with _committing(groups) as committer:
        outcomes = Outcomes(committer)
        async with anyio.create_task_group() as writers, anyio.create_task_group() as leaving:
            writers.start_soon(outcomes.submit, 1)
            leaving.start_soon(outcomes.submit, 2)
            await anyio.wait_all_tasks_blocked()
            leaving.start_soon(outcomes.submit, 3)
            writers.start_soon(outcomes.submit, 4)
            await anyio.wait_all_tasks_blocked()
            leaving.cancel_scope.cancel()
            groups.open()
    assert outcomes.told == {1: 2, 4: 5}
    assert groups.begun == [["p1", "p2"], ["p3", "p4"]]


async def test_closing_finishes_what_waits_and_takes_no_more() -> None:
    groups = Groups()
    async with _committing(groups) as committer:
        outcomes = Outcomes(committer)
        async with anyio.create_task_group() as writers:
            for number in (1, 2):
                writers.start_soon(outcomes.submit, number)
                await anyio.wait_all_tasks_blocked()
            committer.close()
            with pytest.raises(StorageDown, match="the server is shutting down"):
                await committer.submit(_write(3))
            groups.open()
    assert outcomes.told == {1: 2, 2: 3}


async def test_an_interrupted_commit_is_neither_yes_nor_no() -> None:
    groups = Groups()
    committer = Committer(groups.commit, groups.trim)
    outcomes = Outcomes(committer)
    async with anyio.create_task_group() as writers, anyio.create_task_group() as running:
        running.start_soon(committer.run)
        writers.start_soon(outcomes.submit, 1)
        await anyio.wait_all_tasks_blocked()
        running.cancel_scope.cancel()
    assert outcomes.told == {1: "the write was interrupted"}


async def test_too_many_writers_are_told_at_once() -> None:
    groups = Groups()
    async with _committing(groups) as committer:
        outcomes = Outcomes(committer)
        async with anyio.create_task_group() as writers:
            writers.start_soon(outcomes.submit, 1)
            await anyio.wait_all_tasks_blocked()
            for number in range(2, 2 + 4096):
                writers.start_soon(outcomes.submit, number)
            await anyio.wait_all_tasks_blocked()
            with pytest.raises(StorageDown, match="too many writes are waiting"):
                await committer.submit(_write(5000))
            groups.open()
    assert len(outcomes.told) == 4097
    assert all(isinstance(told, int) for told in outcomes.told.values())


@pytest.mark.parametrize("fails", [False, True])
async def test_old_changes_are_trimmed_now_and_then_and_nobody_hears_when_that_fails(fails: bool) -> None:
    groups = Groups()
    groups.trim_fails = fails
    groups.open()
    async with _committing(groups) as committer:
        outcomes = Outcomes(committer)
        async with anyio.create_task_group() as writers:
            for number in range(1, 2101):
                writers.start_soon(outcomes.submit, number)
    assert outcomes.told == {number: number + 1 for number in range(1, 2101)}
    assert len(groups.trimmed) == 2
