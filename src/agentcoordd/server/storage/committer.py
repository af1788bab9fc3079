"""Group commit: writers of one moment share a transaction, and so its trip to the disk."""

from collections import deque
from collections.abc import Awaitable, Callable, Sequence

import anyio

from agentcoordd.server.storage.base import StorageDown, Verdict, Write

_LARGEST = 256
"""How many writes one transaction may carry: enough to share the disk, few enough to end soon."""

_WAITING = 16
"""How many groups may wait; who comes after them is told at once that the server is too busy."""

Commit = Callable[[Sequence[Write]], Awaitable[Sequence[Verdict]]]


class _Group:
    """Writes that will share a transaction, and what became of it."""

    __slots__ = ("done", "failure", "verdicts", "writes")

    def __init__(self) -> None:
        self.writes: list[Write] = []
        self.done = anyio.Event()
        self.verdicts: Sequence[Verdict] = ()
        self.failure: StorageDown | None = StorageDown("the write was interrupted")


class Committer:
    """Commits what has come together while the transaction before was under way."""

    def __init__(self, commit: Commit) -> None:
        self._commit = commit
        self._groups: deque[_Group] = deque()
        self._wake = anyio.Event()
        self._open = True

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
        place = len(group.writes)
        group.writes.append(write)
        await group.done.wait()
        if group.failure is not None:
            raise StorageDown(str(group.failure)) from group.failure
        return group.verdicts[place]

    async def run(self) -> None:
        """Commit one group after the other, until `close` and the last group."""
        while self._open or self._groups:
            if not self._groups:
                self._wake = anyio.Event()
                await self._wake.wait()
                continue
            group = self._groups.popleft()
            try:
                group.verdicts = await self._commit(group.writes)
                group.failure = None
            except StorageDown as error:
                group.failure = error
            finally:
                group.done.set()

    def close(self) -> None:
        """Take no more writes; `run` returns once those that wait are done."""
        self._open = False
        self._wake.set()
