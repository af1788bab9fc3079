"""Work on a backend in its turn and within its time, whoever else wants something of it."""

import logging
import os
from collections.abc import Callable, Coroutine
from datetime import datetime
from typing import Any, TypeVar

import anyio

from agentcoord.errors import CoordError, StoreError
from agentcoord.operations.context import Context
from agentcoord.operations.keeping import Outcome, mark_dead, renew, tell
from agentcoord.stores.base import Store
from agentcoordd.backends import Backend, Backends, shown
from agentcoordd.clock import Clock
from agentcoordd.database import Entry

_T = TypeVar("_T")

log = logging.getLogger(__name__)


class Turns:
    """What is done for lanes at their backends, so many at a time for each; burials do not queue behind renewals.

    `limit` is how many seconds a backend may take, the waiting for a turn not counted.
    """

    def __init__(self, backends: Backends, clock: Clock, *, at_a_time: int) -> None:
        self._backends = backends
        self._clock = clock
        self._at_a_time = at_a_time
        self._gates: dict[tuple[Backend, bool], anyio.Semaphore] = {}

    async def renew(self, entry: Entry, limit: float) -> Outcome:
        """Renew a lane, if it still is what is kept. Raises StoreError.

        It does not settle: what a power failure undoes is a renewal of a process that it has ended as well.
        """
        return await self._do(entry, limit, lambda context: renew(context, entry.lane), settle=False)

    async def bury(self, entry: Entry, limit: float, known_until: datetime | None) -> bool:
        """Write that the agent of a lane is dead; the rest as for `mark_dead`. Raises StoreError."""
        return await self._do(
            entry, limit, lambda context: mark_dead(context, entry.lane, known_until=known_until), last=True
        )

    async def tell(self, entry: Entry, limit: float, batch_id: str, type_: str, message: str) -> None:
        """Record an event of a lane in a batch's trail. Raises StoreError."""
        await self._do(entry, limit, lambda context: tell(context, entry.lane, batch_id, type_, message))

    async def _do(
        self,
        entry: Entry,
        limit: float,
        deed: Callable[[Context], Coroutine[Any, Any, _T]],
        *,
        last: bool = False,
        settle: bool = True,
    ) -> _T:
        try:
            async with self._gate(entry.backend, last):
                with anyio.fail_after(limit):
                    return await self._backends.perform(
                        entry.backend, lambda store: deed(self._context(store)), settle=settle
                    )
        except TimeoutError:
            raise StoreError(f"no answer of {shown(entry.backend)} within {limit:.1f} s") from None
        except CoordError:
            raise
        except Exception as error:  # a fault with one lane must not end the others
            log.exception("internal error while keeping %s", entry.lane.agent_id)
            raise StoreError(f"internal error: {error!r}") from error

    def _gate(self, backend: Backend, last: bool) -> anyio.Semaphore:
        gate = self._gates.get((backend, last))
        if gate is None:
            gate = self._gates[backend, last] = anyio.Semaphore(self._at_a_time)
        return gate

    def _context(self, store: Store) -> Context:
        return Context(store=store, now=self._clock.now, random=os.urandom)
