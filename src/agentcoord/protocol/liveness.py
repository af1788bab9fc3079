"""Whether an agent is still there, judged from its last heartbeat and the time (spec: records §6)."""

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any, Literal

from agentcoord.protocol.instants import parse

DEAD_AFTER_TTLS = 4
"""A heartbeat is dead once this many times its ttl has passed."""

Liveness = Literal["live", "stale", "dead"]


def liveness(beat: Mapping[str, Any], now: datetime) -> Liveness | None:
    """Judge a heartbeat; None when its times are missing or unreadable."""
    return judge(beat.get("updated_at"), beat.get("expires_at"), now)


def judge(updated_at: object, expires_at: object, now: datetime) -> Liveness | None:
    """Judge by the two times of a heartbeat; None when one is missing or unreadable.

    Live until `expires_at`, stale until four ttls after `updated_at`, then dead. A ttl of zero or
    less is dead at once.
    """
    updated, expires = parse(updated_at), parse(expires_at)
    if updated is None or expires is None:
        return None
    ttl = expires - updated
    if ttl.total_seconds() <= 0:
        return "dead"
    if now < expires:
        return "live"
    return "stale" if now - updated < DEAD_AFTER_TTLS * ttl else "dead"


def steady(updated_at: object, expires_at: object, now: datetime) -> tuple[datetime | None, datetime | None]:
    """Tell since when and until when (that instant left out) two times are judged as they are at `now`.

    None stands for no end: nothing in that direction changes the verdict.
    """
    updated, expires = parse(updated_at), parse(expires_at)
    if updated is None or expires is None or (ttl := expires - updated) <= timedelta():
        return None, None
    turns = [expires]
    try:
        turns.append(updated + DEAD_AFTER_TTLS * ttl)
    except OverflowError:  # nobody will be dead before the last year that can be spelled
        pass
    return (
        max((turn for turn in turns if turn <= now), default=None),
        min((turn for turn in turns if turn > now), default=None),
    )
