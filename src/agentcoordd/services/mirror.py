"""Keeps the mirror of each backend current, so that retention never drops what nobody has copied.

Every mirror has a loop of its own. A state root is looked at by the stamps of its directories, and read only when
there is something new; a server is asked in intervals. It is the sync of `agent-coord log --sync`, under the same lock:
while somebody else has it, this waits for its next turn. A state root that is not there is left not there.
"""

import logging
import os
import time
from collections.abc import Callable, Sequence
from datetime import datetime
from random import random

import anyio
import anyio.to_thread

from agentcoord.errors import Busy, CoordError
from agentcoord.files import printable
from agentcoord.operations.context import Context
from agentcoord.operations.mirror import MIRROR, Synced, sync_mirror
from agentcoord.operations.trail import TrailRequest
from agentcoord.protocol.instants import stamp
from agentcoord.stores.base import Store
from agentcoordd.backends import Aside, LocalBackend, shown
from agentcoordd.clock import Clock
from agentcoordd.places import Loops, MirrorState, MirrorView, Place
from agentcoordd.stamps import Tree, rest_after

SECONDS = 5.0
"""How long after one sync by change the next one comes, at the earliest."""
REMOTE_SECONDS = 900.0
"""How often a server is asked for its whole trail."""

_LOOK, _LOOK_AT_PLACE = 1.0, 30.0
_SHARE = 20
"""A sync is followed by so many times its own duration without one: at most a twentieth of a core is spent."""
_RETRY, _LONGEST_RETRY = 5.0, 900.0
_SOURCES = (("events", 1), ("archive/events", 1))

log = logging.getLogger(__name__)


class Mirrors(Loops[MirrorView]):
    """The mirrors of one daemon. `seconds` and `remote_seconds` as SECONDS and REMOTE_SECONDS."""

    def __init__(
        self,
        backends: Aside,
        places: Sequence[Place],
        clock: Clock,
        *,
        seconds: float = SECONDS,
        remote_seconds: float = REMOTE_SECONDS,
        chance: Callable[[], float] = random,
    ) -> None:
        super().__init__(_Mirror(backends, place, clock, seconds, remote_seconds, chance) for place in places)


class _Mirror:
    """One mirror while it is kept. Durations are of the clock that counts through suspend."""

    def __init__(
        self,
        backends: Aside,
        place: Place,
        clock: Clock,
        seconds: float,
        remote_seconds: float,
        chance: Callable[[], float],
    ) -> None:
        self._backends, self._place, self._clock, self._chance = backends, place, clock, chance
        self._local = isinstance(place.backend, LocalBackend)
        self._path = f"{place.root}/{MIRROR}"
        self._seconds = seconds if self._local else remote_seconds
        self._trees = [Tree(f"{place.root}/{below}", depth) for below, depth in _SOURCES]
        self._state: MirrorState = "behind"
        self._behind, self._failures, self._added = not self._local, 0, 0
        self._there = False
        self._due = clock.boot()
        self._synced_at: datetime | None = None
        self._error: str | None = None

    def view(self) -> MirrorView:
        """Show it as it stands."""
        return MirrorView(
            backend=shown(self._place.backend),
            root=printable(self._place.root),
            state=self._state,
            added=self._added,
            synced_at=None if self._synced_at is None else stamp(self._synced_at),
            error=self._error,
        )

    async def keep(self) -> None:
        """Look for changes, and sync when it is time."""
        never = anyio.Event()
        while True:
            began = self._clock.boot()
            changed = await self._has_changed()
            looked = self._clock.boot() - began
            if changed and self._clock.boot() >= self._due:
                await self._sync()
            pause = min(self._seconds, _LOOK if self._local else _LOOK_AT_PLACE)
            await self._clock.wait(never, max(pause, rest_after(looked)))

    async def _has_changed(self) -> bool:
        """Tell whether there may be more than the mirror has; where there can be no mirror, there is nothing to do."""
        try:
            found = await anyio.to_thread.run_sync(self._look, abandon_on_cancel=True)
        except OSError as error:
            self._behind = True  # what was not seen may have changed
            self._note(f"cannot look at {printable(str(error.filename))}: {error.strerror}")
            return False
        if found is None:
            self._state = "absent"
            return False
        if not self._local:
            self._behind = self._behind or self._clock.boot() >= self._due
        elif found:
            self._behind = True
        if not self._behind:
            self._state = "current"
        elif self._state in ("current", "absent"):
            self._state = "behind"
        return self._behind

    def _look(self) -> bool | None:
        if not os.path.isdir(self._place.root):
            return None
        if not self._local:
            return False
        changed = sum(len(tree.look()) for tree in self._trees)  # each of them, also after one has
        return changed > 0 or (self._there and not self._exists())  # somebody removed it

    def _exists(self) -> bool:
        return os.path.lexists(self._path)

    async def _sync(self) -> None:
        notices: list[str] = []
        spent = 0.0

        async def sync(store: Store) -> Synced:
            nonlocal spent
            began = time.thread_time()  # of the core; a busy disk makes nobody else wait
            context = Context(store=store, now=self._clock.now, random=os.urandom, notices=notices)
            synced = await sync_mirror(context, TrailRequest(sync=True), self._place.root, wait=0)
            self._there = self._exists()
            spent = time.thread_time() - began
            return synced

        try:
            synced = await self._backends.perform_aside(self._place.backend, sync)
        except Busy:
            self._state = "waiting"
            self._due = self._clock.boot() + self._seconds
        except CoordError as error:
            warnings = [notice for notice in notices if notice.startswith("warning: ")]
            self._failed("; ".join([str(error), *warnings[:1]]))
        except Exception as error:  # a fault with one mirror must not end the daemon
            log.exception("internal error while mirroring %s", shown(self._place.backend))
            self._failed(f"internal error: {error!r}")
        else:
            self._went_on(synced, spent)

    def _went_on(self, synced: Synced, spent: float) -> None:
        if self._error is not None:
            log.info("%s is mirrored again", shown(self._place.backend))
        self._state, self._behind, self._failures, self._error = "current", False, 0, None
        self._added += synced.added
        self._synced_at = self._clock.now()
        self._due = self._clock.boot() + max(self._seconds, _SHARE * spent)

    def _failed(self, why: str) -> None:
        self._note(why)
        self._failures += 1
        pause = min(_RETRY * 2.0 ** min(self._failures - 1, 10), _LONGEST_RETRY)
        self._due = self._clock.boot() + pause * (0.5 + self._chance() / 2)

    def _note(self, why: str) -> None:
        why = printable(why)
        level = logging.DEBUG if self._state == "failing" else logging.WARNING  # told once, until it goes well again
        log.log(level, "%s is not mirrored: %s", shown(self._place.backend), why)
        self._state, self._error = "failing", why
