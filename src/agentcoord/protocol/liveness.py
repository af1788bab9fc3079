"""Whether an agent is still there, judged from its last heartbeat and the time (spec: records §6)."""

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any, Literal

from agentcoord.protocol.instants import parse

DEAD_AFTER_TTLS = 4
"""A heartbeat is dead once this many times its ttl has passed."""

_NOTHING = timedelta()
_ALWAYS = None, None

Liveness = Literal["live", "stale", "dead"]
Span = tuple[datetime | None, datetime | None]
"""Since when and until when (that instant left out) something is so; None stands for no end."""


def liveness(beat: Mapping[str, Any], now: datetime) -> Liveness | None:
    """Judge a heartbeat; None when its times are missing or unreadable."""
    return judge(beat.get("updated_at"), beat.get("expires_at"), now)


def judge(updated_at: object, expires_at: object, now: datetime) -> Liveness | None:
    """Judge by the two times of a heartbeat; None when one is missing or unreadable.

    Live until `expires_at`, stale until four ttls after `updated_at`, then dead. A ttl of zero or
    less is dead at once.
    """
    return judged(updated_at, expires_at, now)[0]


def steady(updated_at: object, expires_at: object, now: datetime) -> Span:
    """Tell between which instants two times are judged as they are at `now`."""
    return judged(updated_at, expires_at, now)[1]


def judged(updated_at: object, expires_at: object, now: datetime) -> tuple[Liveness | None, Span]:
    """Judge as `judge` does, and tell between which instants the verdict is the same."""
    updated, expires = parse(updated_at), parse(expires_at)
    if updated is None or expires is None:
        return None, _ALWAYS
    ttl = expires - updated
    if ttl <= _NOTHING:
        return "dead", _ALWAYS
    if now < expires:
        return "live", (None, expires)
    try:
        gone = updated + DEAD_AFTER_TTLS * ttl
    except OverflowError:  # nobody will be dead before the last year that can be spelled
        return "stale", (expires, None)
    return ("stale", (expires, gone)) if now < gone else ("dead", (gone, None))
