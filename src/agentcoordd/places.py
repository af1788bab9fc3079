"""Where the mirror of each backend belongs, and how services with a loop for each backend run and are shown."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Generic, Literal, Protocol, TypeVar

import anyio
from anyio.abc import TaskStatus
from msgspec import Struct

from agentcoord.settings.environment import implicit_root
from agentcoordd.backends import Backend, HttpBackend, LocalBackend

_View = TypeVar("_View")
_View_co = TypeVar("_View_co", covariant=True)


class Loop(Protocol[_View_co]):
    """The work on one backend that a service never ends."""

    async def keep(self) -> None:
        """Work until cancelled. No failure of the backend ends it."""
        ...

    def view(self) -> _View_co:
        """Show it as it stands."""
        ...


class Loops(Generic[_View]):
    """A service that has a loop for each backend."""

    def __init__(self, loops: Iterable[Loop[_View]]) -> None:
        self._loops: Sequence[Loop[_View]] = tuple(loops)

    async def run(self, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        """Keep all of them until cancelled."""
        async with anyio.create_task_group() as tasks:
            for loop in self._loops:
                tasks.start_soon(loop.keep)
            task_status.started()

    def list(self) -> list[_View]:
        """Show all of them, in the order they were given."""
        return [loop.view() for loop in self._loops]


class Place(Struct, frozen=True):
    """A backend, and the state root whose `log.tsv` remembers it."""

    backend: Backend
    root: str


MirrorState = Literal["current", "behind", "waiting", "failing", "absent"]


class MirrorView(Struct, frozen=True):
    """A mirror as it stands. Times are UTC.

    `behind`: there is more than it has. `waiting`: somebody else is syncing. `absent`: its state root is not there,
    and is not made. `added` counts lines since the daemon's start.
    """

    backend: str
    root: str
    state: MirrorState
    added: int
    synced_at: str | None
    error: str | None


WatchState = Literal["told", "polled", "absent", "hanging"]


class WatchView(Struct, frozen=True):
    """How changes on a state root come to be known.

    `told`: the system tells of them. `polled`: they are looked for, and `why` says why. `absent`: no record is there.
    `hanging`: its file system does not answer.
    """

    backend: str
    state: WatchState
    why: str | None


class RetentionView(Struct, frozen=True):
    """The rounds of retention on a backend. Times are UTC; `actions` counts those of all rounds since the start."""

    backend: str
    rounds: int
    actions: int
    last_round: str | None
    next_round: str
    error: str | None


class OutboxView(Struct, frozen=True):
    """The way of what waits for a server. `failures` in a row, and the last of them."""

    backend: str
    failures: int
    error: str | None


ReplicaState = Literal["current", "copying", "failing"]


class ReplicaView(Struct, frozen=True):
    """The copy of a backend as it stands. Times are UTC; `bytes` are those of its `records`, `most_bytes` what all
    copies together may take on the disk.

    `copying`: its records are gone through, all of them. `by`: how it is told of changes, None while that is not known.
    `as_of`: when it was last known to be equal to the backend, None if it never was. `filtered`: the token may not see
    all records.
    """

    backend: str
    state: ReplicaState
    by: Literal["feed", "polls"] | None
    records: int
    bytes: int
    most_bytes: int
    as_of: str | None
    age_seconds: float | None
    filtered: bool
    error: str | None


def places_of(
    env: Mapping[str, str], roots: Iterable[str], urls: Iterable[str], status_root: str | None
) -> list[Place]:
    """Find the places of what a daemon serves, local ones first, as `agent-coord log --sync` would choose them."""
    places = [Place(LocalBackend(root), root) for root in sorted(roots)]
    fleet = status_root or implicit_root(env)
    if fleet is not None and fleet.startswith("/"):
        places += [Place(HttpBackend(url), fleet) for url in sorted(urls)]
    return places
