"""Going through the listings of a server, all of them, page by page, so that a copy holds what they say.

What a page leaves out of its range is taken for deleted; so nothing is left out because it may not be seen any more
before that was noted.
"""

from typing import Protocol

from agentcoord.errors import Rejected, StoreError
from agentcoord.protocol.replica import require_page
from agentcoord.protocol.scopes import coverage
from agentcoord.stores.httpexchange import Overlong
from agentcoord.stores.httpwire import Changes, Page, TokenIdentity
from agentcoordd.copies import Held
from agentcoordd.replica import Moment, Record, Replica
from agentcoordd.replicastore import Sight

PAGE = 500
"""Records asked for at a time, few enough to hold up nobody while they are read; fewer after one that was too large."""


class Remote(Protocol):
    """A server as it is copied; see `stores.httpfeed`."""

    async def whoami(self) -> TokenIdentity | None:
        """Ask what the token may see."""
        ...

    async def page(self, prefix: str, cursor: str | None, limit: int) -> Page:
        """List some records."""
        ...

    async def changes(self, since: str | None, *, wait: int, limit: int) -> Changes | None:
        """Ask what changed."""
        ...


class Portion:
    """How many records are asked for at a time."""

    def __init__(self) -> None:
        self.records = PAGE

    def grow(self) -> None:
        """Note that an answer was not too large."""
        self.records = min(self.records * 2, PAGE)

    def shrink(self) -> None:
        """Note that one was. Raises StoreError when there is nothing smaller."""
        if self.records == 1:
            raise StoreError("http backend answered with one record that is larger than any can be")
        self.records = max(self.records // 8, 1)


class Pass:
    """One way through all listings, for a token that sees `reads`; None where the server does not say.

    `began` is when, and `cursor` the place in the feed at that time, None without a feed. `sights` has what is to be
    said of the families that were copied, `news` which have changed, `requests` how often the server was asked.
    """

    def __init__(
        self,
        remote: Remote,
        replica: Replica,
        held: Held,
        reads: tuple[str, ...] | None,
        portion: Portion,
        *,
        began: Moment,
        cursor: str | None,
    ) -> None:
        self._remote, self._replica, self._held, self._reads = remote, replica, held, reads
        self._portion = portion
        self._upto: dict[str, str] = {}
        self._copied: set[str] = set()
        self.began, self.cursor = began, cursor
        self.sights: dict[str, Sight] = {}
        self.news: set[str] = set()
        self.requests = 0

    def goes_on(self, remote: Remote, held: Held, reads: tuple[str, ...] | None) -> bool:
        """Go on over another connection where the last one was cut off, if that is as good as beginning again.

        It is where the feed tells what has changed meanwhile in what was copied before, for the same eyes.
        """
        if self.cursor is None or reads is None or reads != self._reads or held.made != self._held.made:
            return False
        self._remote, self._held = remote, held
        self.requests = 0
        return True

    async def copy(self, family: str) -> None:
        """Have what one listing says. Raises StoreError."""
        after = self._upto.get(family)
        while family not in self._copied:
            self.requests += 1
            try:
                page = await self._remote.page(family, after, self._portion.records)
                sight = Sight(filtered=bool(page.filtered))
            except Overlong:
                self._portion.shrink()
                continue
            except Rejected as error:
                if after is not None or not (error.unsupported or (error.status, error.reason) == (403, "forbidden")):
                    raise
                page, sight = Page([]), Sight(status=error.status, reason=error.reason)
            upto = page.next_cursor or None
            require_page(family, after, [entry.path for entry in page.entries], upto)
            await self._note(family, sight)
            records: list[Record] = [(entry.path, str(entry.version), bytes(entry.data)) for entry in page.entries]
            if await self._replica.put_page(self._held, family, after, upto, records):
                self.news.add(family)
            self._portion.grow()
            if upto is None:
                self._copied.add(family)
            else:
                after = self._upto[family] = upto

    async def _note(self, family: str, sight: Sight) -> None:
        """Note how a family is seen, before what is hidden of it is taken for deleted. Raises StoreError."""
        if sight != Sight():
            self.sights[family] = sight
        if not sight.filtered and sight.status != 403:
            return
        if self._reads is not None:
            if coverage(self._reads, family).whole:
                raise StoreError("what the token may see has changed while it was copied")
        elif self._held.as_of is not None and self._held.sights.get(family) != sight:
            await self._replica.unsettle(self._held, reads=None, sights=self._held.sights | {family: sight})
