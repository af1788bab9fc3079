"""A lane while it is kept: where it stands, how that is shown, and who is told and remembers."""

from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta
from typing import Any, Literal, Protocol

import anyio
from msgspec import Struct

from agentcoord.protocol.instants import stamp
from agentcoord.protocol.keeping import Age
from agentcoordd.backends import Backend
from agentcoordd.clock import Clock
from agentcoordd.database import Entry

State = Literal["kept", "expiring", "lost", "finished", "dead"]
RUNNING: tuple[State, ...] = ("kept", "expiring")

UNTOLD = 8
"""Entries for a batch's trail that wait for a backend which does not answer; the oldest make room."""


class Feed(Protocol):
    """Where events go."""

    def publish(self, topic: str, data: dict[str, Any]) -> None:
        """Hand an event to whoever subscribed, without waiting for anybody."""
        ...


class Notify(Protocol):
    """Tells a person, in its own time."""

    def post(self, topic: str, data: dict[str, Any]) -> None:
        """Have an event told in its turn."""
        ...


class Roster(Protocol):
    """What is kept, remembered beyond a restart. Each change is there to stay when its method returns."""

    async def lanes(self) -> Sequence[Entry]:
        """Read all of it."""
        ...

    async def put(self, entry: Entry) -> None:
        """Add a lane, or replace it."""
        ...

    async def remove(self, lane: str) -> None:
        """Forget a lane."""
        ...

    async def mark_alive(self, now: datetime) -> None:
        """Note that lanes were being kept at this instant."""
        ...

    async def alive_at(self) -> datetime | None:
        """Tell when lanes were last known to be kept."""
        ...


class LaneView(Struct, frozen=True):
    """A lane as it is listed. Times are UTC; `chosen` says why that process is watched, or that none is."""

    lane: str
    agent_id: str
    repo: str | None
    target: str | None
    state: State
    pid: int | None
    program: str | None
    chosen: str
    ttl: int
    last_renewal: str | None
    next_renewal: str | None
    error: str | None


class Kept:
    """One lane of the keeper. Ages are of the clock that counts through suspend."""

    def __init__(self, entry: Entry, clock: Clock) -> None:
        self.entry = entry
        self.state: State = "kept"
        self.age: Age = "kept"  # as it was last told to anybody
        self.ttl = entry.lane.ttl
        self.renewed = self.due = clock.boot()
        self.renewed_at: datetime | None = None
        self.failures = 0
        self.error: str | None = None
        self.batch_id = entry.batch_id
        self.gone = False
        self.beaten: datetime | None = None  # the heartbeat of the last renewal, which may be ahead of the clock
        self.known_until: datetime | None = None  # of a process that ended: what it can have written
        self.untold: list[tuple[str, str]] = []
        self.wake = anyio.Event()
        self.over = anyio.Event()
        self.scope = anyio.CancelScope()
        self.attempt: anyio.CancelScope | None = None

    @property
    def running(self) -> bool:
        """Whether the lane is still to be renewed."""
        return self.state in RUNNING

    def hurry(self, now: float) -> None:
        """Have the lane renewed as soon as its turn comes."""
        self.due = now
        self.wake.set()

    def left_by_process(self, now: datetime) -> None:
        """Note that the watched process is over: a renewal under way is given up, none follows.

        Whoever beats after that is another one, as an agent that was started anew while the backend was away.
        """
        self.gone = True
        self.known_until = now if self.beaten is None else max(now, self.beaten)
        self.wake.set()
        if self.attempt is not None:
            self.attempt.cancel()

    def later(self, type_: str, message: str) -> None:
        """Keep an entry for the batch's trail until the backend takes it."""
        self.untold = [*self.untold, (type_, message)][-UNTOLD:]

    def view(self, clock: Clock) -> LaneView:
        """Show the lane as it stands."""
        entry = self.entry
        following = clock.now() + timedelta(seconds=self.due - clock.boot()) if self.running else None
        return LaneView(
            lane=entry.id,
            agent_id=entry.lane.agent_id,
            repo=entry.lane.repo,
            target=entry.lane.target,
            state=self.state,
            pid=entry.process.pid if entry.process else None,
            program=entry.program,
            chosen=entry.chosen,
            ttl=self.ttl,
            last_renewal=stamp(self.renewed_at) if self.renewed_at else None,
            next_renewal=stamp(following) if following else None,
            error=self.error,
        )


def beaten_among(lanes: Iterable[Kept], backend: Backend, agent_id: str) -> datetime | None:
    """Find of when the newest heartbeat is that was renewed for an agent on a backend."""
    own = (kept for kept in lanes if (kept.entry.backend, kept.entry.lane.agent_id) == (backend, agent_id))
    return max((kept.beaten for kept in own if kept.beaten is not None), default=None)
