"""Where the mirror of each backend belongs, and how the services that keep it are shown."""

from collections.abc import Iterable, Mapping
from typing import Literal

from msgspec import Struct

from agentcoord.settings.environment import implicit_root
from agentcoordd.backends import Backend, HttpBackend, LocalBackend


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


class RetentionView(Struct, frozen=True):
    """The rounds of retention on a backend. Times are UTC; `actions` counts those of all rounds since the start."""

    backend: str
    rounds: int
    actions: int
    last_round: str | None
    next_round: str
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
