"""Group commit: writers of one moment share a transaction, and so its trip to the disk."""

from collections.abc import Awaitable, Callable, Sequence

import anyio

from agentcoordd.server.storage.base import StorageDown, Verdict, Write

_LARGEST = 256
"""How many writes one transaction may carry: enough to share the disk, few enough to end soon."""

_WAITING = 4096
"""How many writes may wait; more are told at once that the server is too busy."""

Commit = Callable[[Sequence[Write]], Awaitable[Sequence[Verdict]]]


class _Waiter:
    """One write on its way to its verdict."""

    __slots__ = ("done", "outcome", "write")

    def __init__(self, write: Write) -> None:
        self.write = write
        self.done = anyio.Event()
        self.outcome: Verdict | StorageDown = StorageDown("the write was interrupted")


class Committer:
    """Commits what has come together while the transaction before was under way."""

    def __init__(self, commit: Commit) -> None:
        self._commit = commit
        self._waiting: list[_Waiter] = []
        self._wake = anyio.Event()
        self._open = True

    async def submit(self, write: Write) -> Verdict:
        """Hand in one write and wait for its verdict.

        Whoever stops waiting does not take the write back: it may be in the transaction already. Raises
        StorageDown when nothing is known to be stored.
        """
        if not self._open:
            raise StorageDown("the server is shutting down")
        if len(self._waiting) >= _WAITING:
            raise StorageDown("too many writes are waiting")
        waiter = _Waiter(write)
        self._waiting.append(waiter)
        self._wake.set()
        await waiter.done.wait()
        if isinstance(waiter.outcome, StorageDown):
            raise StorageDown(str(waiter.outcome)) from waiter.outcome
        return waiter.outcome

    async def run(self) -> None:
        """Commit one group after the other, until `close` and the last group."""
        while self._open or self._waiting:
            if not self._waiting:
                self._wake = anyio.Event()
                await self._wake.wait()
                continue
            group, self._waiting = self._waiting[:_LARGEST], self._waiting[_LARGEST:]
            try:
                verdicts = await self._commit([waiter.write for waiter in group])
                for waiter, verdict in zip(group, verdicts, strict=True):
                    waiter.outcome = verdict
            except StorageDown as error:
                for waiter in group:
                    waiter.outcome = error
            finally:
                for waiter in group:
                    waiter.done.set()

    def close(self) -> None:
        """Take no more writes; `run` returns once those that wait are done."""
        self._open = False
        self._wake.set()
