"""Takes what was dropped into the spool to the outbox, in the order it was dropped.

Whoever drops something there may be allowed less than the daemon is, and could not ask it. So nothing but events and
heartbeats is taken, for a server of the daemon's own, of somebody who has the daemon's own token for it; a file that
is anything else is put aside, and never opened where a name leads elsewhere.
"""

import logging
from collections.abc import Awaitable, Callable, Container
from datetime import datetime
from typing import Protocol

import anyio
from anyio import to_thread
from anyio.abc import TaskStatus

from agentcoord import spool
from agentcoord.errors import CoordError, StoreError, UsageError
from agentcoord.files import cause_of, printable
from agentcoord.protocol.outbox import Late, require_late
from agentcoord.settings.selection import Secret
from agentcoord.spool import Dropped
from agentcoordd.clock import Clock

LOOK_SECONDS = 1.0
"""How often the daemon looks whether something was dropped."""

log = logging.getLogger(__name__)


class _Wrong(Exception):
    """A file that is to be put aside, and why."""


class Put(Protocol):
    """Has a record wait for a server."""

    async def __call__(self, url: str, late: Late, *, origin: str | None, refused: str | None) -> None:
        """Keep it; from one `origin` once. `refused` sets it aside for that reason. Raises StoreError."""
        ...


class Pickup:
    """The spool in the runtime directory `place`, while it is looked after."""

    def __init__(
        self,
        place: str,
        put: Put,
        clock: Clock,
        *,
        urls: Container[str],
        token_of: Callable[[str], Secret | None],
    ) -> None:
        self._place, self._put, self._clock = place, put, clock
        self._urls, self._token_of = urls, token_of
        self._said = ""

    async def run(self, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        """Look now and then, until cancelled. No fault of the spool ends it."""
        await self._try(self._begin)
        task_status.started()
        never = anyio.Event()
        try:
            while True:
                await self._try(self._take)
                await self._clock.wait(never, LOOK_SECONDS)
        finally:
            spool.leave(self._place)

    async def _try(self, step: Callable[[], Awaitable[None]]) -> None:
        said = ""
        try:
            await step()
        except OSError as error:
            said = f"the spool {self._place}/{spool.NAME} cannot be used: {cause_of(error)}"
        except CoordError as error:
            said = f"what was dropped into the spool {self._place}/{spool.NAME} stays there: {error}"
        if said and said != self._said:  # told once, until it goes well again
            log.warning("%s", printable(said))
        self._said = said

    async def _begin(self) -> None:
        await to_thread.run_sync(_made, self._place)

    async def _take(self) -> None:
        stuck: OSError | None = None
        for name in await to_thread.run_sync(_names, self._place):
            try:
                await self._take_one(name)
                continue
            except (OSError, CoordError):
                raise
            except _Wrong as wrong:
                why = str(wrong)
            except Exception as error:  # a fault with one file must not end the daemon
                log.exception("internal error while taking what was dropped")
                why = f"internal error: {error!r}"
            try:
                await to_thread.run_sync(_put_aside, self._place, name, why)
            except OSError as error:  # nothing is to be sent of it, so whatever is behind it goes on
                stuck = stuck or error
        if stuck is not None:
            raise stuck

    async def _take_one(self, name: str) -> None:
        """Have a file's record wait. Raises _Wrong for a file to be put aside, OSError, StoreError."""
        dropped = await to_thread.run_sync(_read, self._place, name, self._clock.now())
        if dropped is None:
            return
        if dropped.url not in self._urls:
            raise _Wrong("it is for a backend that the daemon does not serve")
        token = await to_thread.run_sync(self._token_of, dropped.url)
        if token is None:
            raise StoreError("the daemon has no token for its backend")
        refused = None if dropped.proves(token) else "whoever dropped it has another token than the daemon"
        await self._put(dropped.url, dropped.late, origin=name, refused=refused)
        await to_thread.run_sync(_remove, self._place, name)


def _made(place: str) -> None:
    spool.make_spool(place)
    with spool.opened_spool(place) as directory:
        spool.sweep(directory)


def _names(place: str) -> list[str]:
    try:
        with spool.opened_spool(place) as directory:
            return spool.names_in(directory)
    except FileNotFoundError:  # somebody cleaned up
        spool.make_spool(place)
        return []


def _read(place: str, name: str, now: datetime) -> Dropped | None:
    """Read a file that was dropped; None for one that is gone. Raises _Wrong, OSError, StoreError."""
    with spool.opened_spool(place) as directory:
        try:
            dropped = spool.read_dropped(directory, name)
            require_late(dropped.late, now)
        except FileNotFoundError:
            return None
        except UsageError as error:
            raise _Wrong(str(error)) from error
        return dropped


def _put_aside(place: str, name: str, why: str) -> None:
    with spool.opened_spool(place) as directory:
        spool.put_aside(directory, name)
    log.warning("put aside %s/%s/%s: %s", place, spool.NAME, ascii(name)[1:-1], why)


def _remove(place: str, name: str) -> None:
    with spool.opened_spool(place) as directory:
        spool.remove(directory, name)
