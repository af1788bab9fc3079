"""Keeps the replica equal to the backends: by the feed of changes where a server has one, else by going through it.

Every backend has a loop of its own. What an answer says goes into the replica as a whole or not at all, together with
the place to go on from, so a daemon that is killed goes on where it was. No failure of a backend, and none of the
replica, ends the loop; it is said once, until all is well again.
"""

import logging
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from datetime import timedelta
from random import random

import anyio
import anyio.to_thread
from anyio.abc import TaskStatus

from agentcoord.errors import CoordError, Rejected, StoreError
from agentcoord.operations.context import Snapshot
from agentcoord.protocol.instants import stamp
from agentcoord.protocol.paths import FAMILIES
from agentcoord.protocol.replica import FEED_WAIT, poll_pause, retry_pause
from agentcoord.protocol.scopes import meet
from agentcoord.protocol.topics import CHANGED, data_of_change
from agentcoord.settings.selection import Secret
from agentcoord.stores.httpexchange import Overlong, Unanswered
from agentcoord.stores.httpwire import Change, Changes
from agentcoordd.backends import HttpBackend, shown
from agentcoordd.clock import Clock
from agentcoordd.copies import Held
from agentcoordd.lanes import Feed
from agentcoordd.passes import Pass, Portion, Remote
from agentcoordd.places import Loops, ReplicaState, ReplicaView
from agentcoordd.replica import Lost, Moment, Record, Replica, Unusable

_WHOLE_BYTES = 1024 * 1024
"""A server ends an answer early that is larger than a few of these."""
_LOOK = 5.0
"""Seconds after which the user file is looked at for another token, and the server asked what this one may see."""
_LASTING = 30.0
"""Seconds after which it is written down how current a quiet copy is."""
_BREATH = 0.2
"""Seconds in which changes gather, where one follows the other."""
_ANEW = 6 * 3600.0
"""Seconds after which all is gone through again, whatever the feed says."""
_PROBE = 3600.0
"""Seconds after which a server without a feed may have got one."""
_WANTED = 300.0
"""Seconds for which somebody who asked is taken to ask again."""
_FLAPPING = 60.0
"""Seconds in which a network that comes and goes is spoken of once."""
_LATE = 1.0
_SLICE = 1.0


Opening = Callable[[str, Secret | None], AbstractAsyncContextManager[Remote]]

log = logging.getLogger(__name__)


class Replicas(Loops[ReplicaView]):
    """The copies of one daemon. `watched` tells whether somebody wants to know of changes as they happen."""

    def __init__(
        self,
        replica: Replica,
        backends: Sequence[HttpBackend],
        opening: Opening,
        token_of: Callable[[str], Secret | None],
        feed: Feed,
        clock: Clock,
        *,
        watched: Callable[[], bool] = lambda: False,
        chance: Callable[[], float] = random,
    ) -> None:
        self._replica, self._token_of = replica, token_of
        self._copies = {
            backend.url: _Copy(replica, backend, opening, token_of, feed, clock, watched, chance)
            for backend in backends
        }
        super().__init__(self._copies.values())

    async def run(self, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        """Keep all of them until cancelled, and drop what there is of others."""
        try:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(self._forget_others)
                await tasks.start(super().run)
                task_status.started()
        finally:
            await self._replica.aclose()

    async def _forget_others(self) -> None:
        try:
            await self._replica.forget_others(self._copies)
        except StoreError as error:
            log.debug("nothing was forgotten: %s", error)  # whoever writes next says it aloud

    def snapshot(self, url: str, token: Secret | None = None) -> AbstractContextManager[Snapshot]:
        """Open what is known of a backend, in any thread; `token` is the caller's, None for the daemon's own.

        Raises StoreError for one that is not copied, for another token, and when nothing is known.
        """
        copy = self._copies.get(url)
        if copy is None:
            raise StoreError("the daemon keeps no replica of this backend: it is none of its own")
        if token is not None and token != self._token_of(url):
            raise StoreError("the replica shows what the daemon's own token may see, and yours is another one")
        copy.want()
        return self._replica.snapshot(url)


class _TokenChanged(Exception):
    """The user file names another token than the one in use."""


class _Copy:
    """The copy of one backend. Durations are of the clock that counts through suspend."""

    def __init__(
        self,
        replica: Replica,
        backend: HttpBackend,
        opening: Opening,
        token_of: Callable[[str], Secret | None],
        feed: Feed,
        clock: Clock,
        watched: Callable[[], bool],
        chance: Callable[[], float],
    ) -> None:
        self._replica, self._backend, self._opening, self._token_of = replica, backend, opening, token_of
        self._feed, self._clock, self._watched, self._chance = feed, clock, watched, chance
        self._state: ReplicaState = "copying"
        self._error: str | None = None
        self._failures = 0
        self._aloud = False
        """Whether it was said that something is wrong, when."""
        self._warned: float | None = None
        self._portion = Portion()
        self._fed: bool | None = None
        """Whether the server has a feed; None while that is not known."""
        self._token: Secret | None = None
        self._anew = False
        self._going: Pass | None = None
        """The way through the listings that is not at its end, were it cut off."""
        self._held: Held | None = None
        self._equal: Moment | None = None
        self._looked = self._lasted = self._listed = self._probed = clock.boot()
        self._wanted: float | None = None
        self._requests = self._quiet = 0

    def view(self) -> ReplicaView:
        """Show it as it stands."""
        held, as_of, age = self._held, None, None
        if held is not None and held.as_of is not None:
            as_of, age = held.as_of, (self._clock.now() - held.as_of).total_seconds()
            if self._equal is not None:
                age = self._clock.boot() - self._equal.boot
        return ReplicaView(
            backend=shown(self._backend),
            state=self._state,
            by=None if self._fed is None else "feed" if self._fed else "polls",
            records=0 if held is None else held.records,
            bytes=0 if held is None else held.bytes,
            most_bytes=self._replica.most_bytes,
            as_of=None if as_of is None else stamp(as_of),
            age_seconds=None if age is None else round(max(age, 0.0), 1),
            filtered=held is not None and held.filtered,
            error=self._error,
        )

    def want(self) -> None:
        """Note that somebody asks for what is known. For any thread."""
        self._wanted = self._clock.boot()

    async def keep(self) -> None:
        """Copy until cancelled."""
        while True:
            try:
                self._token = await self._own_token()
                async with self._opening(self._backend.url, self._token) as remote:
                    await self._work(remote)
            except _TokenChanged:
                log.info("another token for %s: its replica is made anew", shown(self._backend))
                self._anew, self._going = True, None
            except Lost:
                self._held = self._equal = self._going = None
            except CoordError as error:
                await self._failed(error)
            except Exception as error:  # a fault with one backend must not end the daemon
                log.exception("internal error while copying %s", shown(self._backend))
                await self._failed(StoreError(f"internal error: {error!r}"))

    async def _work(self, remote: Remote) -> None:
        """Copy over one connection. Raises whatever ends it."""
        held = self._held = await self._replica.begin(self._backend.url)
        self._requests = 0
        reads = await self._reads(remote)
        # A server that cannot say what a token may see cannot say either that it still is the same.
        if self._anew or held.cursor is None or reads is None or held.reads != reads:
            await self._go_through(remote, held, reads)
        while True:
            if self._fed is False:
                reads = await self._poll(remote, held, reads)
            else:
                reads = await self._follow(remote, held, reads)

    # By the feed ------------------------------------------------------------------------------------

    async def _follow(self, remote: Remote, held: Held, reads: tuple[str, ...] | None) -> tuple[str, ...] | None:
        """Take over what the feed has, until the listings have to be gone through again; gives the scopes by then."""
        wait = 0
        while True:
            sent = self._moment()
            try:
                found = await remote.changes(held.cursor, wait=wait, limit=self._portion.records)
            except Overlong:
                self._portion.shrink()
                continue
            except Rejected as error:
                if error.status != 410 and error.reason != "invalid_cursor":
                    raise
                log.info("the feed of %s has to be taken up anew: its replica is made anew", shown(self._backend))
                await self._go_through(remote, held, reads)
                return reads
            if found is None:
                self._fed = None  # it had one before
                await self._go_through(remote, held, reads)
                return reads
            took = self._clock.boot() - sent.boot
            whole = len(found.changes) < self._portion.records and sum(map(_size, found.changes)) < _WHOLE_BYTES
            if found.changes:
                await self._take(held, found, sent if whole else None)
            else:
                held.cursor = found.cursor
                # The server looked for as long as it was asked to, and saw nothing come.
                await self._refreshed(held, _later(sent, wait) if took >= wait else sent)
            self._well(current=whole)
            late = bool(found.changes) and took > _LATE  # it tells too little of when it was given
            wait = FEED_WAIT if whole and not late else 0
            if whole and (found.changes or took < wait):  # not every server waits for as long as it was asked to
                await self._rest(_BREATH)
            if self._clock.boot() - self._looked >= _LOOK:
                await self._require_same_token()
                now = await self._reads(remote)
                if now != reads or self._clock.boot() - self._listed >= _ANEW:
                    await self._go_through(remote, held, now)
                    return now

    async def _take(self, held: Held, found: Changes, equal_at: Moment | None) -> None:
        """Take over some changes at once."""
        if found.cursor == held.cursor:
            raise StoreError("http backend changes returned malformed response: changes without a new cursor")
        newest: dict[str, Change] = {}
        for change in found.changes:
            if change.path.partition("/")[0] in FAMILIES:  # a newer server may have more
                newest[change.path] = change
        deleted = [change.path for change in newest.values() if change.deleted]
        # One without data was overtaken: what it was overtaken by follows.
        changed = [_record(change) for change in newest.values() if not change.deleted and bytes(change.data)]
        await self._replica.put_changes(held, changed, deleted, found.cursor, equal_at)
        if equal_at is not None:
            self._equal, self._lasted = equal_at, self._clock.boot()
        self._portion.grow()
        self._publish({path.partition("/")[0] for path in newest})

    async def _refreshed(self, held: Held, seen: Moment) -> None:
        lasting = self._equal is None or self._clock.boot() - self._lasted >= _LASTING
        await self._replica.equal(held, seen, lasting=lasting)
        if lasting:
            self._lasted = self._clock.boot()
        self._equal = seen

    # By the listings --------------------------------------------------------------------------------

    async def _poll(self, remote: Remote, held: Held, reads: tuple[str, ...] | None) -> tuple[str, ...] | None:
        """Wait until it is time, and go through all of it; gives the scopes by then."""
        began, chance = self._clock.boot(), self._chance()
        while True:
            wanted = self._is_wanted()
            pause = poll_pause(self._quiet, self._requests, wanted=wanted, chance=chance)
            left = began + pause - self._clock.boot()
            if left <= 0:
                break
            await self._rest(min(left, _SLICE))
            if self._clock.boot() - self._looked >= _LOOK:
                self._looked = self._clock.boot()
                await self._require_same_token()
                self._replica.require_there(held)
        self._requests = 0
        now = await self._reads(remote)
        if self._clock.boot() - self._probed >= _PROBE:
            self._fed = None
        await self._go_through(remote, held, now)
        return now

    async def _go_through(self, remote: Remote, held: Held, reads: tuple[str, ...] | None) -> None:
        """Have what the listings say, page by page. What the replica held is answerable until it is replaced."""
        if self._error is None and (self._fed is not False or self._equal is None):
            self._state = "copying"
        both = reads if reads is None or held.reads is None else meet(held.reads, reads)
        if held.as_of is not None and (held.cursor is not None or held.reads != both):
            await self._replica.unsettle(held, reads=both, sights=held.sights)
        going = self._going
        if going is None or not going.goes_on(remote, held, reads):
            going = self._going = await self._set_out(remote, held, reads)
        told = set(going.news)
        for family in FAMILIES:
            try:
                await going.copy(family)
            finally:  # what came before it was cut off has come
                self._publish(going.news - told)
                told |= going.news
        self._going = None
        self._requests += going.requests
        # What has changed since is there as well, or told by the feed.
        await self._replica.settle(held, cursor=going.cursor, reads=reads, sights=going.sights, equal_at=going.began)
        self._equal = going.began
        self._anew, self._listed = False, self._clock.boot()
        self._quiet = 0 if going.news else self._quiet + 1
        self._well(current=not self._fed)

    async def _set_out(self, remote: Remote, held: Held, reads: tuple[str, ...] | None) -> Pass:
        """Begin to go through the listings. Raises StoreError."""
        began = self._moment()
        cursor = None
        if self._fed is not False:
            # Before the listings: what changes while they are gone through is told afterwards.
            head = await remote.changes(None, wait=0, limit=1)
            self._requests += 1
            self._probed = self._clock.boot()
            self._fed, cursor = head is not None, None if head is None else head.cursor
        return Pass(remote, self._replica, held, reads, self._portion, began=began, cursor=cursor)

    # What both need ---------------------------------------------------------------------------------

    async def _reads(self, remote: Remote) -> tuple[str, ...] | None:
        self._looked = self._clock.boot()
        self._requests += 1
        identity = await remote.whoami()
        return None if identity is None else identity.read_prefixes

    async def _own_token(self) -> Secret | None:
        return await anyio.to_thread.run_sync(self._token_of, self._backend.url, abandon_on_cancel=True)

    async def _require_same_token(self) -> None:
        """Raise _TokenChanged when the one in use is no longer the daemon's own."""
        if await self._own_token() != self._token:
            raise _TokenChanged

    def _is_wanted(self) -> bool:
        asked = self._wanted is not None and self._clock.boot() - self._wanted < _WANTED
        return asked or self._watched()

    async def _rest(self, seconds: float) -> None:
        await self._clock.wait(anyio.Event(), seconds)

    def _moment(self) -> Moment:
        return Moment(self._clock.now(), self._clock.boot())

    def _publish(self, families: set[str]) -> None:
        if families:
            self._feed.publish(CHANGED, data_of_change(shown(self._backend), families, self._clock.now()))

    def _well(self, *, current: bool) -> None:
        if self._error is not None:
            log.log(logging.INFO if self._aloud else logging.DEBUG, "%s is copied again", shown(self._backend))
        self._failures, self._error = 0, None
        if current:
            self._state = "current"
        elif self._state == "failing":
            self._state = "copying"

    async def _failed(self, error: CoordError) -> None:
        """Say it once, and rest; a new token ends the rest of who was turned down."""
        said, now = str(error), self._clock.boot()
        told = self._error is not None
        if not told:
            self._aloud = self._warned is None or now - self._warned >= _FLAPPING
            self._warned = now if self._aloud else self._warned
        level = logging.WARNING if self._aloud and not told else logging.DEBUG
        log.log(level, "%s is not copied: %s", shown(self._backend), said)
        self._state, self._error = "failing", said
        self._failures += 1
        turned_down = isinstance(error, Rejected) and error.status < 500
        # A server behind a feed is asked all the time anyway; a replica that fails will not be better in a moment.
        counted = turned_down or isinstance(error, Unusable) or not (self._fed or isinstance(error, Unanswered))
        if not self._fed:
            self._fed = None  # what spoke for the server may have been something else
        pause = retry_pause(
            self._failures,
            counted=counted,
            wanted=error.retry_after if isinstance(error, Rejected) else None,
            chance=self._chance(),
        )
        until = self._clock.boot() + pause
        while (left := until - self._clock.boot()) > 0:
            await self._rest(min(left, 2 * _SLICE))
            if turned_down and await self._own_token() != self._token:
                self._anew, self._going = True, None
                return


def _later(moment: Moment, seconds: float) -> Moment:
    return Moment(moment.wall + timedelta(seconds=seconds), moment.boot + seconds)


def _size(change: Change) -> int:
    return len(bytes(change.data))


def _record(change: Change) -> Record:
    return change.path, str(change.version), bytes(change.data)
