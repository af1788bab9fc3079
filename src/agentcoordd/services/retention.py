"""Does rounds of retention by a schedule, if its daemon was told to; each syncs the mirror before it drops anything."""

import logging
import os
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from random import random

import anyio
import anyio.to_thread

from agentcoord.errors import CoordError
from agentcoord.files import printable
from agentcoord.operations.context import Context
from agentcoord.operations.mirror import Synced, sync_mirror
from agentcoord.operations.retention import Retention, RetentionRequest, retain
from agentcoord.operations.trail import TrailRequest
from agentcoord.protocol.instants import stamp
from agentcoord.protocol.retention import Policy
from agentcoord.stores.base import Store
from agentcoordd.backends import Aside, LocalBackend, shown
from agentcoordd.clock import Clock
from agentcoordd.places import Loops, Place, RetentionView

FIRST = 60.0
"""Seconds from the daemon's start to the first round, if rounds are not closer to each other."""

_SHARE = 20
"""A round is followed by so many times its own duration without one, however often it was asked for."""
_LONGEST_REST = 86_400.0
"""Seconds of that at most: the machine may have slept in the middle of the round."""
_LOOK = 60.0
"""Seconds at most between two looks at the clock: the loop's timers stand still while the machine sleeps."""

log = logging.getLogger(__name__)


class Rounds(Loops[RetentionView]):
    """The schedule of one daemon: a round on each backend every `seconds`; one that is cut off is the next one's."""

    def __init__(
        self,
        backends: Aside,
        places: Sequence[Place],
        clock: Clock,
        *,
        seconds: float,
        policy: Policy,
        chance: Callable[[], float] = random,
    ) -> None:
        super().__init__(_Schedule(backends, place, clock, seconds, policy, chance) for place in places)


class _Schedule:
    """The rounds on one backend."""

    def __init__(
        self,
        backends: Aside,
        place: Place,
        clock: Clock,
        seconds: float,
        policy: Policy,
        chance: Callable[[], float],
    ) -> None:
        self._backends, self._place, self._clock, self._chance = backends, place, clock, chance
        self._seconds, self._request = seconds, RetentionRequest(execute=True, policy=policy)
        self._due = clock.boot() + min(FIRST, seconds)
        self._rounds = self._actions = 0
        self._last: datetime | None = None
        self._error: str | None = None

    def view(self) -> RetentionView:
        """Show it as it stands."""
        return RetentionView(
            backend=shown(self._place.backend),
            rounds=self._rounds,
            actions=self._actions,
            last_round=None if self._last is None else stamp(self._last),
            next_round=stamp(self._clock.now() + timedelta(seconds=self._due - self._clock.boot())),
            error=self._error,
        )

    async def keep(self) -> None:
        """Wait for the time of each round, and do it."""
        never = anyio.Event()
        while True:
            await self._clock.wait(never, min(self._due - self._clock.boot(), _LOOK))
            if (began := self._clock.boot()) >= self._due:
                await self._round()
                ended = self._clock.boot()
                # Daemons that were started together do not stay together.
                pause = self._seconds * (0.95 + self._chance() / 10)
                self._due = ended + max(pause, min(_SHARE * (ended - began), _LONGEST_REST))

    async def _round(self) -> None:
        name, root = shown(self._place.backend), self._place.root
        notices: list[str] = []

        async def deed(store: Store) -> Retention:
            context = Context(store=store, now=self._clock.now, random=os.urandom, notices=notices)

            async def sync() -> Synced:
                return await sync_mirror(context, TrailRequest(sync=True), root, afresh=True)

            return await retain(context, self._request, first=sync)

        if not await anyio.to_thread.run_sync(os.path.isdir, root, abandon_on_cancel=True):
            if not isinstance(self._place.backend, LocalBackend):  # else there is nothing to keep small
                self._failed(f"there is no state root to keep its mirror in: {printable(root)}")
            return
        try:
            result = await self._backends.perform_aside(self._place.backend, deed)
        except CoordError as error:
            warnings = [notice for notice in notices if notice.startswith("warning: ")]
            self._failed("; ".join([str(error), *warnings[:1]]))
        except Exception as error:  # a fault with one backend must not end the daemon
            log.exception("internal error during retention on %s", name)
            self._failed(f"internal error: {error!r}")
        else:
            self._rounds += 1
            self._actions += len(result.actions)
            self._last, self._error = self._clock.now(), None
            log.info("retention on %s: %d actions", name, len(result.actions))

    def _failed(self, why: str) -> None:
        why = printable(why)
        level = logging.DEBUG if why == self._error else logging.WARNING  # told once, until it goes well again
        log.log(level, "no retention on %s: %s", shown(self._place.backend), why)
        self._error = why
