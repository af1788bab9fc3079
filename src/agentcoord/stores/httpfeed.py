"""A state server as it is copied: listings page by page, the feed of changes, and how much of it we may see.

Nothing is written, and nothing is asked twice: who keeps a copy knows better when to ask again (spec: http §1, §6).
"""

import anyio

from agentcoord.settings.environment import Env
from agentcoord.settings.selection import Secret
from agentcoord.stores.httpaddress import base_of
from agentcoord.stores.httpexchange import Answer, Exchange, Patience, Unanswered
from agentcoord.stores.httpwire import (
    Changes,
    Page,
    TokenIdentity,
    error_code,
    failure,
    read_changes,
    read_identity,
    read_page,
)

LARGEST = 6 * 1024 * 1024
"""Bytes of one answer: a page that is larger is asked for again in smaller ones. A feed's answer is not that large."""

_PATIENCE = Patience(connect=2.0, read=6.0)
"""A network that comes back is not to be waited for much longer than it is gone."""
_LATE = 4.0
"""Seconds beyond those it was asked to wait, after which the feed counts as cut off."""


class HttpFeed:
    """Asks one server, over a connection of its own. Nothing connects before the first request; close it at the end."""

    def __init__(self, url: str, token: Secret, *, env: Env) -> None:
        self._base = base_of(url)
        self._token = token
        self._exchange = Exchange(self._base, token, env, patience=_PATIENCE, largest=LARGEST)

    async def whoami(self) -> TokenIdentity | None:
        """Ask what this token may see; None of a server that cannot say. Raises StoreError."""
        answer = await self._exchange.ask("GET", self._base.route("whoami"))
        if answer.status == 404 and error_code(answer.body) is not None:
            return None
        return read_identity(self._required(answer, "whoami"))

    async def page(self, prefix: str, cursor: str | None, limit: int) -> Page:
        """List at most `limit` records below a prefix, strictly after a path. Raises Overlong, StoreError."""
        answer = await self._exchange.ask("GET", self._base.listing(prefix, cursor, limit))
        return read_page(self._required(answer, f"list {prefix}"), prefix)

    async def changes(self, since: str | None, *, wait: int, limit: int) -> Changes | None:
        """Ask what changed after a cursor, for at most `wait` seconds while nothing does; None where there is no feed.

        Without a cursor it is the newest one, and no changes. Raises Overlong, Rejected with 410 for a cursor from
        which the feed cannot be followed, StoreError.
        """
        with anyio.move_on_after(wait + _LATE):
            answer = await self._exchange.ask("GET", self._base.changes(since, wait, limit))
            if answer.status in (404, 405) and error_code(answer.body) is not None:
                return None
            return read_changes(self._required(answer, "changes"))
        late = f"timed out: no answer within {wait + _LATE:g} s"
        raise Unanswered(f"http backend unreachable: {late} ({self._base.origin})", sent=True)

    async def aclose(self) -> None:
        """Close the connection, if there is one."""
        await self._exchange.aclose()

    def _required(self, answer: Answer, action: str) -> bytes:
        if answer.status == 200:
            return answer.body
        raise failure(action, answer.status, answer.body, self._token.reveal(), answer.retry_after)
