"""When a lease is renewed, what a renewal writes, and what ends it, whoever keeps it: the daemon or `run`.

A renewal refreshes times and nothing else: status, phase and metadata stay as the agent wrote them, and so does what
the fence is made of. Ages are in seconds of a clock that counts through suspend and is never set; records carry the
wall clock in whole seconds, and their times only go forward. A chance is a number from 0 to 1.
"""

from collections.abc import Mapping
from datetime import datetime
from typing import Any, Literal

from msgspec import Struct

from agentcoord.protocol.claims import ACTIVE, fence
from agentcoord.protocol.documents import Document, text
from agentcoord.protocol.instants import later, parse, stamp, whole
from agentcoord.protocol.liveness import DEAD_AFTER_TTLS, liveness
from agentcoord.protocol.records import HEARTBEAT_TTL
from agentcoord.protocol.statuses import TERMINAL, normalize

PROCESS_EXITED = "process.exited"
LEASE_EXPIRING = "lease.expiring"
LEASE_EXPIRED = "lease.expired"
LEASE_LOST = "lease.lost"
LEASE_HELD = "lease.held"
LEASE_DROPPED = "lease.dropped"

SHORTEST_TTL = 3
"""Seconds: records carry whole ones, and a third of a shorter time is gone before it is written."""

DEAD_TTL = 1
"""Seconds of ttl in the last heartbeat of a dead agent: every reader counts it dead after four of them."""

_EXPIRING = 0.8
_JITTER = 0.1
_FIRST_RETRY, _LONGEST_RETRY, _SOONEST_RETRY = 5.0, 30.0, 0.1
_LOOK, _SHARED_LOOK = 15.0, 1.5

Kind = Literal["heartbeat", "claim"]
Age = Literal["kept", "expiring", "expired"]


class Lane(Struct, frozen=True, omit_defaults=True):
    """What is kept for one agent. `ttl` is its heartbeat's, in seconds; a claim keeps the ttl it was made with.

    `instance` and `fence`, where given, are those of the acquisition to keep: under any other, the lease is lost.
    With `shared`, others keep the agent alive as well: their heartbeat is prolonged, and does not end with the lane.
    """

    agent_id: str
    ttl: int = HEARTBEAT_TTL
    kinds: tuple[Kind, ...] = ("heartbeat",)
    repo: str | None = None
    target: str | None = None
    instance: str | None = None
    fence: str | None = None
    shared: bool = False


class Lost(Struct, frozen=True):
    """The lease is no longer the agent's, or no longer this instance's.

    `held` tells that the claim still is: only the heartbeat became another instance's.
    """

    why: str
    held: bool = False


class Finished(Struct, frozen=True):
    """The agent itself has ended it: given back, or, with the claim still `held`, reported as done."""

    why: str
    held: bool = False


def beat_ttl(ttl: int) -> int:
    """Choose the ttl of the heartbeat that goes with a lease of `ttl` seconds."""
    return min(ttl, HEARTBEAT_TTL)


def interval(ttl: float, chance: float) -> float:
    """Seconds until the next renewal: a third of the ttl, or up to a tenth sooner, so that lanes drift apart."""
    return ttl / 3 * (1 - _JITTER * chance)


def look_interval(chance: float, *, shared: bool) -> float:
    """Seconds until a lease is looked at though nothing is due: an item that changed hands is not worked on.

    Where others keep the heartbeat too, it has to go on, once they end it, before it is dead.
    """
    return _SHARED_LOOK if shared else _LOOK * (1 - _JITTER * chance)


def together(due: float, ttl: float) -> float:
    """The instant at which a renewal that is due is made: with others, since many at once cost less than one by one.

    That is up to a sixtieth of the ttl sooner, at most a second.
    """
    grid = min(ttl / 60, 1.0)
    return due // grid * grid


def retry(ttl: float, failures: int, left: float, chance: float) -> float:
    """Seconds until a renewal that failed that often in a row is tried again, longer each time.

    With `left` seconds of protection, there is always time for two more; when it is over, the ttl alone decides.
    """
    longest = min(ttl / 6, _LONGEST_RETRY)
    step = min(min(ttl / 30, _FIRST_RETRY) * 2.0 ** min(max(failures - 1, 0), 30), longest) * (1 - chance / 2)
    return step if left <= 0 else min(step, max(left / 3, _SOONEST_RETRY))


def patience(ttl: float) -> float:
    """Seconds that one try may take before it counts as failed."""
    return min(max(ttl / 4, 1.0), 30.0)


def age(since: float, ttl: float) -> Age:
    """Judge a lease by the seconds since it was last renewed."""
    if since < _EXPIRING * ttl:
        return "kept"
    return "expiring" if since < ttl else "expired"


def claim_ttl(claim: Mapping[str, Any], default: int) -> int:
    """Seconds that a claim was made for, by its own times."""
    updated, expires = parse(claim.get("updated_at")), parse(claim.get("expires_at"))
    if updated is None or expires is None or expires <= updated:
        return default
    return max(1, int((expires - updated).total_seconds()))


def is_due(claim: Mapping[str, Any], default: int, now: datetime) -> bool:
    """Tell whether less than half of a claim's ttl is left."""
    expires = parse(claim.get("expires_at"))
    return expires is None or (expires - now).total_seconds() < claim_ttl(claim, default) / 2


def refreshed(record: Mapping[str, Any], ttl: int, now: datetime) -> Document:
    """Build the record with its times moved on, both only forward: a clock that was set back shortens nothing."""
    document = dict(record)
    updated, expires = parse(record.get("updated_at")), parse(record.get("expires_at"))
    since = whole(now)
    if updated is not None and updated > since:
        since = updated
    else:
        document["updated_at"] = stamp(since)
    until = whole(later(since, ttl + (since.microsecond > 0)))  # another program's fraction of a second, rounded up
    if expires is None or expires < until:
        document["expires_at"] = stamp(until)
    return document


def ended(record: Mapping[str, Any], now: datetime) -> Document:
    """Build the heartbeat of an agent that is no more: one second of ttl, so it is dead within four.

    A heartbeat of a later time than now keeps it and gets no ttl, which is dead at once.
    """
    document, since = dict(record), whole(now)
    updated = parse(record.get("updated_at"))
    if updated is not None and updated > since:
        return document | {"expires_at": record["updated_at"]}
    return document | {"updated_at": stamp(since), "expires_at": stamp(later(since, DEAD_TTL))}


def was_ended(beat: Mapping[str, Any]) -> bool:
    """Tell whether a heartbeat is one that somebody left behind, or as short as such a one."""
    updated, expires = parse(beat.get("updated_at")), parse(beat.get("expires_at"))
    return updated is not None and expires is not None and expires <= later(updated, DEAD_TTL)


def is_ended(beat: Mapping[str, Any], now: datetime) -> bool:
    """Tell whether every reader takes the agent for dead, or will within four seconds."""
    updated = parse(beat.get("updated_at"))
    return (updated is not None and updated <= now and was_ended(beat)) or liveness(beat, now) == "dead"


def protected_until(claim: Mapping[str, Any] | None, beat: Mapping[str, Any] | None) -> datetime | None:
    """Give the instant from which the records may no longer keep others off; None when there is no telling.

    That is the end of the claim, or the instant at which the heartbeat is dead if that comes first.
    """
    said = beat or {}
    updated, expires = parse(said.get("updated_at")), parse(said.get("expires_at"))
    ends = [parse((claim or {}).get("expires_at"))]
    if updated is not None and expires is not None:
        ends.append(later(updated, int(DEAD_AFTER_TTLS * (expires - updated).total_seconds())))
    return min((end for end in ends if end is not None), default=None)


def judge_claim(lane: Lane, claim: Mapping[str, Any] | None) -> Lost | Finished | None:
    """Decide whether the lease still is what is kept; None when it is."""
    item = f"{lane.repo}#{lane.target}"
    if claim is None:
        return Lost(f"the claim on {item} is gone")
    holder = str(claim.get("agent_id") or "nobody")
    if claim.get("status") != ACTIVE:
        if holder == lane.agent_id:
            return Finished(f"the claim on {item} was released")
        return Lost(f"the claim on {item} was {holder}'s last, and released")
    if holder != lane.agent_id:
        return Lost(f"{item} is now held by {holder}")
    if lane.instance is not None and text(claim, "instance_id") != lane.instance:
        return Lost(f"{item} is now held by another instance of {holder}")
    if lane.fence is not None and fence(claim) != lane.fence:
        return Lost(f"{item} was acquired anew by {holder}")
    return None


def judge_beat(
    lane: Lane, beat: Mapping[str, Any], claim: Mapping[str, Any] | None, now: datetime
) -> Lost | Finished | None:
    """Decide by the heartbeat whether the agent is still at it; None when it is, or the heartbeat is past.

    A terminal status ends what it was said of, and not a lease on other work.
    """
    if is_past(lane, beat, claim, now):
        return None
    held = claim is not None
    if is_others(lane, beat) and not lane.shared:
        return Lost(f"the heartbeat of {lane.agent_id} is another instance's", held=held)
    status = text(beat, "status")
    if status is not None and is_terminal(status) and _same_work(lane, beat):
        return Finished(f"{lane.agent_id} reported {status}", held=held)
    return None


def is_past(lane: Lane, beat: Mapping[str, Any], claim: Mapping[str, Any] | None, now: datetime) -> bool:
    """Tell whether a heartbeat is from before this lease: then it says nothing about it, and another one is due.

    That is a terminal one from before the claim, one of nobody in particular that was ended, and another instance's
    that has ended or, unless it is shared, is no later than what this one last wrote into the claim.
    """
    beaten, said = parse(beat.get("updated_at")), claim or {}
    if is_others(lane, beat):
        written = parse(said.get("updated_at"))
        earlier = written is not None and beaten is not None and beaten <= written
        return is_ended(beat, now) or (earlier and not lane.shared)
    if lane.instance is not None and text(beat, "instance_id") is None and was_ended(beat):
        return True
    claimed = parse(said.get("claimed_at"))
    earlier = claimed is not None and beaten is not None and beaten < claimed
    return earlier and _same_work(lane, beat) and is_terminal(text(beat, "status") or "")


def is_others(lane: Lane, beat: Mapping[str, Any]) -> bool:
    """Tell whether a heartbeat is of another instance than the one that is kept."""
    return lane.instance is not None and text(beat, "instance_id") not in (None, lane.instance)


def is_terminal(status: str) -> bool:
    """Tell whether a status, in any spelling, says that its agent is finished."""
    return normalize(status).value in TERMINAL


def _same_work(lane: Lane, beat: Mapping[str, Any]) -> bool:
    return lane.target is None or all(
        text(beat, name) in (None, mine) for name, mine in (("repo", lane.repo), ("target", lane.target))
    )
