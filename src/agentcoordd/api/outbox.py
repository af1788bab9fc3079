"""The outbox seen from the socket: what it has, and what a person has done with it; and as a command may use it."""

from collections.abc import Callable, Sequence
from typing import Annotated

from anyio import to_thread
from msgspec import Meta, Struct

from agentcoord.errors import StoreError, UsageError
from agentcoord.protocol.outbox import Late
from agentcoord.settings.selection import Secret, Selection
from agentcoordd.api.dispatch import Caller, Method
from agentcoordd.api.service import Service
from agentcoordd.outbox import EntryView
from agentcoordd.services.outbox import Outbox

MOST_LISTED = 1000
"""Entries of one answer, which has to fit into a line."""

Number = Annotated[int, Meta(ge=1)]


class OutboxListParams(Struct, frozen=True, forbid_unknown_fields=True):
    """Nothing: all entries are listed, as far as a line has room for them."""


class OutboxListResult(Struct, frozen=True):
    """The entries, the oldest first, and how many there are altogether."""

    entries: Sequence[EntryView]
    total: int


class OutboxRetryParams(Struct, frozen=True, forbid_unknown_fields=True):
    """What to try again now: entries by their ids, or `all` that were set aside."""

    ids: list[Number] = []
    all: bool = False


class OutboxRetryResult(Struct, frozen=True):
    """What is tried again, as it now stands."""

    retried: Sequence[EntryView]


class OutboxDropParams(Struct, frozen=True, forbid_unknown_fields=True):
    """Entries that nobody is to be told any more."""

    ids: Annotated[list[Number], Meta(min_length=1)]


class OutboxDropResult(Struct, frozen=True):
    """What was forgotten."""

    dropped: Sequence[EntryView]


def methods(outbox: Outbox) -> list[Method]:
    """Give the methods that are about the outbox. They raise CoordError with one line for the caller."""

    async def listed(params: OutboxListParams, caller: Caller) -> OutboxListResult:
        entries = outbox.entries()
        return OutboxListResult(entries=entries[:MOST_LISTED], total=len(entries))

    async def retry(params: OutboxRetryParams, caller: Caller) -> OutboxRetryResult:
        if params.all == bool(params.ids):
            raise UsageError("outbox.retry takes either ids or all")
        return OutboxRetryResult(retried=(await outbox.retry(None if params.all else params.ids))[:MOST_LISTED])

    async def drop(params: OutboxDropParams, caller: Caller) -> OutboxDropResult:
        return OutboxDropResult(dropped=(await outbox.drop(params.ids))[:MOST_LISTED])

    return [
        Method("outbox.list", OutboxListParams, OutboxListResult, listed),
        Method("outbox.retry", OutboxRetryParams, OutboxRetryResult, retry),
        Method("outbox.drop", OutboxDropParams, OutboxDropResult, drop),
    ]


class Queueing:
    """The outbox, for one piece of work on a server with a token; `require_wanted` tells that somebody waits for it.

    Without `token` it is the daemon's own.
    """

    def __init__(
        self,
        outbox: Outbox,
        service: Service,
        url: str,
        require_wanted: Callable[[], None],
        *,
        token: Secret | None = None,
    ) -> None:
        self._outbox, self._service, self._url = outbox, service, url
        self._require_wanted, self._token = require_wanted, token

    async def holds(self, lane: str) -> bool:
        """Tell whether something of a lane waits. What another token sends has no place in it."""
        return self._outbox.holds(self._url, lane) and await self._is_own()

    async def put(self, late: Late) -> None:
        """Have a record wait. Raises StoreError."""
        if not await self._is_own():
            raise StoreError("the outbox sends with the daemon's own token, and this command has another one")
        self._require_wanted()
        await self._outbox.put(self._url, late)

    async def _is_own(self) -> bool:
        if self._token is None:
            return True
        return self._token == await to_thread.run_sync(self._service.token_of, self._url)


def queueing_of(
    outbox: Outbox | None, service: Service, selection: Selection, require_wanted: Callable[[], None]
) -> Queueing | None:
    """Find where what a command cannot write may wait; None where it may not: on files, and other servers."""
    url = selection.url or ""
    if outbox is None or selection.kind != "http" or not outbox.takes(url):
        return None
    return Queueing(outbox, service, url, require_wanted, token=selection.token)
