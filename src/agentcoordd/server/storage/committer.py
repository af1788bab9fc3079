"""Group commit: writers of one moment share a transaction, and so its trip to the disk."""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress

import anyio
import anyio.lowlevel

from agentcoordd.server.storage.base import StorageDown, Verdict, Write

_LARGEST = 256
"""How many writes one transaction may carry: enough to share the disk, few enough to end soon."""

_TURNS = 2

_WAITING = 16
"""How many groups may wait; who comes after them is told at once that the server is too busy."""

_TRIM_EVERY = 1000
"""Writes between two looks at whether old changes can be forgotten."""

Commit = Callable[[Sequence[Write]], Awaitable[Sequence[Verdict]]]


class _Group:
    """Writes that will share a transaction, and who waits for the verdict on each."""

    __slots__ = ("waiting", "writes")

    def __init__(self) -> None:
        self.writes: list[Write] = []
        self.waiting: list[asyncio.Future[Verdict]] = []

    def judge(self, verdicts: Sequence[Verdict]) -> None:
        """Tell everybody who still waits."""
        for waiting, verdict in zip(self.waiting, verdicts, strict=True):
            if not waiting.done():
                waiting.set_result(verdict)

    def fail(self, failure: StorageDown) -> None:
        """Tell everybody who has heard nothing that nothing is known."""
        for waiting in self.waiting:
            if not waiting.done():
                waiting.set_exception(StorageDown(str(failure)))


class Committer:
    """Commits what has come together while the transaction before was under way; and has old changes trimmed."""

    def __init__(self, commit: Commit, trim: Callable[[], Awaitable[None]], *, enough: int = _LARGEST) -> None:
        """Take what commits and what trims; a group of `enough` writes is worth a trip, whoever else is coming."""
        self._commit, self._trim, self._enough = commit, trim, enough
        self._groups: deque[_Group] = deque()
        self._wake = anyio.Event()
        self._open = True
        # Futures, and not an event for the group: asking which loop runs is a system call, and each wait would ask.
        self._loop = asyncio.get_running_loop()

    async def submit(self, write: Write) -> Verdict:
        """Hand in one write and wait for its verdict.

        Whoever stops waiting does not take the write back: it may be in the transaction already. Raises
        StorageDown when nothing is known to be stored.
        """
        if not self._open:
            raise StorageDown("the server is shutting down")
        if not self._groups or len(self._groups[-1].writes) >= _LARGEST:
            if len(self._groups) >= _WAITING:
                raise StorageDown("too many writes are waiting")
            self._groups.append(_Group())
            self._wake.set()
        group = self._groups[-1]
        waiting: asyncio.Future[Verdict] = self._loop.create_future()
        group.writes.append(write)
        group.waiting.append(waiting)
        return await waiting

    async def run(self) -> None:
        """Commit one group after the other, until `close` and the last group."""
        written = 0
        while self._open or self._groups:
            if not self._groups:
                self._wake = anyio.Event()
                await self._wake.wait()
                continue
            await self._gathered(self._groups[0])
            group = self._groups.popleft()
            try:
                group.judge(await self._commit(group.writes))
            except StorageDown as failure:
                group.fail(failure)
            finally:
                group.fail(StorageDown("the write was interrupted"))
            written += len(group.writes)
            if written >= _TRIM_EVERY:
                written = 0
                with suppress(StorageDown):  # the writes are stored; old changes wait for another time
                    await self._trim()

    async def _gathered(self, group: _Group) -> None:
        """Let those in who are just coming: as long as the loop brings more of them, the trip is not begun.

        A request needs two turns of the loop to get from its socket to here. Whoever is alone waits no longer.
        """
        quiet, size = 0, 0
        while quiet < _TURNS and len(group.writes) < self._enough:
            quiet, size = (quiet + 1 if len(group.writes) == size else 0), len(group.writes)
            await anyio.lowlevel.checkpoint()

    def close(self) -> None:
        """Take no more writes; `run` returns once those that wait are done."""
        self._open = False
        self._wake.set()
