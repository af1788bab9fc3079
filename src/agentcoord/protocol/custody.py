"""Whether a lease still stands, and how one is kept: what a renewal changes, when it is due, and when it is too late.

A lease that is kept belongs to one instance of its agent. A renewal moves times and nothing else: all that the
agent, or anybody, wrote in between stays as it was written.
"""

from collections.abc import Mapping
from datetime import datetime
from typing import Any, Literal

from msgspec import Struct

from agentcoord.protocol.claims import HolderState, fence, holder_of
from agentcoord.protocol.documents import Document
from agentcoord.protocol.instants import later, parse, stamp
from agentcoord.protocol.liveness import DEAD_AFTER_TTLS
from agentcoord.protocol.records import HEARTBEAT_TTL
from agentcoord.protocol.statuses import TERMINAL

Reason = Literal["held", "no_claim", "released", "another_acquisition", "expired"]

SHORTEST_TTL = 3
"""Seconds: records carry whole ones, and a third of a shorter time is gone before it is written."""

LAST_TTL = 1
"""The ttl of an agent's last heartbeat: dead four seconds on, whoever reads it."""

_LOOK = 15.0
"""Seconds after which a kept lease is looked at, though nothing is due: an item that changed hands is not worked on."""

SHARED_LOOK = 1.5
"""The same where others keep the agent's heartbeat too: when they end it, it has to go on before it is dead."""

_SOONEST = 0.2
"""Seconds before a failed renewal is tried again, at first."""

_LATEST = 30.0
"""Seconds between attempts, at most."""


class Standing(Struct, frozen=True):
    """Whether an acquisition still is what the record says, who has the item, and why it is not."""

    held: bool
    reason: Reason
    holder: str | None = None
    seen: HolderState | None = None
    """The holder's heartbeat, where it was asked for."""
    until: str | None = None
    """The end of the lease as the record says it."""


def compare(claim: Mapping[str, Any] | None, expected: str) -> Standing:
    """Compare the record with a fence: `held` as far as the claim alone can tell. A fence is no secret."""
    holder = holder_of(claim)
    if claim is None:
        return Standing(held=False, reason="no_claim")
    if holder is None:
        return Standing(held=False, reason="released")
    said = claim.get("expires_at")
    until = None if said is None else str(said)
    if fence(claim) == expected:
        return Standing(held=True, reason="held", holder=holder, until=until)
    return Standing(held=False, reason="another_acquisition", holder=holder, until=until)


def judge(standing: Standing, seen: HolderState, now: datetime) -> Standing:
    """Complete what the claim says by its holder's heartbeat: held only while everybody else is refused."""
    if not standing.held:
        return standing
    ends = parse(standing.until)
    over = ends is None or ends <= now
    free = seen == "dead" or (seen in ("missing", "invalid", "unknown") and over)
    return Standing(
        held=not free,
        reason="expired" if free else "held",
        holder=standing.holder,
        seen=seen,
        until=standing.until,
    )


def explain(standing: Standing, repo: str, target: str) -> str:
    """Say in one line how an acquisition stands."""
    item, holder = f"{repo}#{target}", standing.holder or "an unknown agent"
    match standing.reason:
        case "held":
            return f"{item} is held by {holder} under this fence; heartbeat {standing.seen}"
        case "no_claim":
            return f"FENCE_LOST: nobody holds {item}; there is no claim"
        case "released":
            return f"FENCE_LOST: nobody holds {item}; it was released"
        case "expired":
            return (
                f"FENCE_LOST: anybody may take {item} from {holder}; heartbeat {standing.seen}, "
                f"lease until {standing.until or 'UNKNOWN'}"
            )
        case "another_acquisition":
            return f"FENCE_LOST: {item} is held by {holder} under another fence"


# Keeping ------------------------------------------------------------------------------------------------


def is_of(claim: Mapping[str, Any] | None, agent_id: str, instance_id: str) -> bool:
    """Tell whether a lease is still that of one instance, whatever else was written into it since."""
    return claim is not None and holder_of(claim) == agent_id and claim.get("instance_id") == instance_id


def beat_ttl(ttl: int) -> int:
    """Choose the ttl of the heartbeat that goes with a lease of `ttl` seconds."""
    return min(ttl, HEARTBEAT_TTL)


def is_due(claim: Mapping[str, Any], ttl: int, now: datetime) -> bool:
    """Tell whether a lease has less than half of its seconds left, or no readable end."""
    ends = parse(claim.get("expires_at"))
    return ends is None or (ends - now).total_seconds() < ttl / 2


def prolonged(record: Mapping[str, Any], ttl: int, now: datetime) -> Document:
    """Give a record with its times moved on: never back, since clocks differ, and never to an earlier end."""
    updated, expires = parse(record.get("updated_at")), parse(record.get("expires_at"))
    begins = now if updated is None else max(now, updated)
    ends = later(now, ttl) if expires is None else max(later(now, ttl), expires)
    return dict(record) | {"updated_at": stamp(begins), "expires_at": stamp(ends)}


def last_beat(beat: Mapping[str, Any], now: datetime) -> Document:
    """Give an agent's heartbeat as it is left when the agent is gone: what it said last, dead in four seconds."""
    return dict(beat) | {"updated_at": stamp(now), "expires_at": stamp(later(now, LAST_TTL))}


def is_last(beat: Mapping[str, Any]) -> bool:
    """Tell whether a heartbeat is one that somebody left behind, or as short as such a one."""
    updated, expires = parse(beat.get("updated_at")), parse(beat.get("expires_at"))
    return updated is not None and expires is not None and (expires - updated).total_seconds() <= LAST_TTL


def is_finished(beat: Mapping[str, Any]) -> bool:
    """Tell whether an agent says that its work is over: its times are its own then."""
    return beat.get("status") in TERMINAL


def protected_until(claim: Mapping[str, Any], beat: Mapping[str, Any] | None) -> datetime | None:
    """Give the instant from which the record no longer keeps others off; None when there is no telling.

    That is the end of the lease, or the instant at which the heartbeat is dead if that comes first. A finished agent's
    heartbeat has no say.
    """
    ends = parse(claim.get("expires_at"))
    if ends is None or beat is None or is_finished(beat):
        return ends
    updated, expires = parse(beat.get("updated_at")), parse(beat.get("expires_at"))
    if updated is None or expires is None:
        return ends
    return min(ends, updated + DEAD_AFTER_TTLS * (expires - updated))


def pause(ttl: int, chance: float) -> float:
    """Choose how many seconds pass until the next renewal: about a third of the heartbeat's ttl.

    `chance` is at least 0 and below 1. It makes the pause up to a tenth shorter, so that what started together does not
    stay together.
    """
    return ttl / 3 * (1 - chance / 10)


def look_pause(chance: float) -> float:
    """Choose how many seconds pass until a lease is looked at again though nothing is due."""
    return _LOOK * (1 - chance / 10)


def retry(failures: int, left: float, chance: float) -> float:
    """Choose how many seconds pass after that many failed renewals in a row, with `left` seconds of protection.

    Longer each time, but always short enough for another attempt or two before it is too late.
    """
    wanted: float = min(_SOONEST * 2 ** min(failures, 10), _LATEST) * (1 - chance / 4)
    return max(min(wanted, left / 3), _SOONEST / 2)
