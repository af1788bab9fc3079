"""To whom a lease goes, judged by the stored claim and heartbeat, and the record that comes of it.

A verdict is only as fresh as the records it is based on; that the store still has them is for the
conditional write to find out (spec: cli §3, §4; records §5).
"""

from collections.abc import Mapping
from datetime import datetime
from hashlib import sha256
from typing import Any, Literal

from msgspec import Struct

from agentcoord.protocol.documents import Document, canonical, is_document, stated, text
from agentcoord.protocol.identity import Identity, attribute
from agentcoord.protocol.instants import later, parse, stamp, whole
from agentcoord.protocol.liveness import liveness
from agentcoord.protocol.records import CLAIM_RENEWED, HANDOFF, SCHEMA_VERSION

ACTIVE = "active"
RELEASED = "released"

HolderState = Literal["live", "stale", "dead", "missing", "invalid", "unknown"]
"""A heartbeat's liveness, or why there is none to go by."""

UNNAMED = "without a name"
"""Stands for the instance of a claim that names none."""

_LEAD = 3600
"""Seconds that acquisitions may lead their clock by, each coming after the one before it."""

_SKEW = 60
"""Seconds that another clock may be ahead and still be followed."""

_FENCED = ("status", "repo", "target", "agent_id", "claimed_at", "generation", "instance_id")


class Acquire(Struct, frozen=True):
    """The lease is free, or its holder takes it along to another batch or branch."""


class Renew(Struct, frozen=True):
    """It is the caller's own lease, for the same work as before.

    `routine` is True unless the generation or instance changes: only then does a renewal leave an event.
    """

    claimed_at: str
    routine: bool


class TakeOver(Struct, frozen=True):
    """The lease passes on: its holder's heartbeat is dead, or there is none to judge by and its time is up."""

    holder: str


class Refuse(Struct, frozen=True):
    """The lease stays with another agent. A definite answer like the others, so nothing is raised."""

    holder: str
    seen: HolderState
    expires_at: str | None
    instance: str | None = None
    """Which other instance of the same agent has it; None when the holder is another agent."""


Decision = Acquire | Renew | TakeOver | Refuse


class Wanted(Struct, frozen=True):
    """What a caller asks for. `ttl` is in seconds; `metadata` holds the options given.

    `exclusive` tells that another instance of the same agent is somebody else, as long as it lives.
    """

    repo: str
    target: str
    agent_id: str
    ttl: int
    batch_id: str | None = None
    branch: str | None = None
    metadata: Document = {}
    exclusive: bool = False


def holder_state(beat: object, now: datetime) -> HolderState:
    """Judge a holder by its stored heartbeat (None: there is none)."""
    if beat is None:
        return "missing"
    if not is_document(beat):
        return "invalid"
    return liveness(beat, now) or "unknown"


class Handoff(Struct, frozen=True):
    """What was said when a lease was given back to be taken up by somebody. None where nothing was said of it."""

    to: str | None
    note: str | None
    by: str | None
    at: str | None


def holder_of(claim: Mapping[str, Any] | None) -> str | None:
    """Name the agent of an active claim; None when nobody holds one, "" when it names nobody."""
    if claim is None or claim.get("status") != ACTIVE:
        return None
    holder = claim.get("agent_id")
    return "" if holder is None else str(holder)


def decide_claim(claim: Mapping[str, Any] | None, seen: HolderState, wanted: Wanted, now: datetime) -> Decision:
    """Decide on a claim from the stored record and the state of its holder.

    A live or stale holder is never robbed and a dead one always may be; without a usable heartbeat
    the lease itself decides, and a lease without a readable end does not protect anybody.
    """
    holder = holder_of(claim)
    if claim is None or holder is None:
        return Acquire()
    mine = holder == wanted.agent_id
    rival = str(claim.get("instance_id") or UNNAMED) if mine and is_rival(claim, wanted) else None
    if mine and rival is None:
        return _decide_own(claim, wanted)
    expires = parse(claim.get("expires_at"))
    protected = expires is not None and expires > now
    if seen == "dead" or (seen in ("missing", "invalid", "unknown") and not protected):
        return TakeOver(holder=holder)
    said = claim.get("expires_at")
    return Refuse(holder=holder, seen=seen, expires_at=None if said is None else str(said), instance=rival)


def is_rival(claim: Mapping[str, Any], wanted: Wanted) -> bool:
    """Tell whether a claim is another instance's to a caller who tells instances apart."""
    return wanted.exclusive and claim.get("instance_id") != wanted.metadata.get("instance_id")


def _decide_own(claim: Mapping[str, Any], wanted: Wanted) -> Acquire | Renew:
    for field, value in (("batch_id", wanted.batch_id), ("branch", wanted.branch)):
        if value is not None and claim.get(field) is not None and claim[field] != value:
            return Acquire()
    changed = any(
        field in wanted.metadata and wanted.metadata[field] != claim.get(field)
        for field in ("generation", "instance_id")
    )
    return Renew(claimed_at=text(claim, "claimed_at") or "", routine=not changed)


def build_claim(
    stored: Mapping[str, Any] | None,
    decision: Acquire | Renew | TakeOver,
    wanted: Wanted,
    identity: Identity,
    now: datetime,
) -> Document:
    """Build the record that a granted claim writes. A renewal keeps what identifies the lease."""
    kept = stated(stored, CLAIM_RENEWED) if stored is not None and isinstance(decision, Renew) else {}
    document = dict(kept)
    document |= {
        "schema_version": SCHEMA_VERSION,
        "repo": wanted.repo,
        "target": wanted.target,
        "agent_id": wanted.agent_id,
    }
    for field, value in (("batch_id", wanted.batch_id), ("branch", wanted.branch)):
        if value is not None:
            document[field] = value
    since = decision.claimed_at if isinstance(decision, Renew) else ""
    document |= {
        "status": ACTIVE,
        "claimed_at": since or stamp(acquired_at(stored, now)),
        "updated_at": stamp(now),
        "expires_at": stamp(later(now, wanted.ttl)),
    }
    document |= wanted.metadata
    attribute(document, kept, identity)
    return document


def acquired_at(stored: Mapping[str, Any] | None, now: datetime) -> datetime:
    """Choose the instant an acquisition is known by: now, but later than the acquisition before it.

    Records carry whole seconds, and clocks are set back. A work item that changes hands twice within a
    second would give its first holder the fence of before, so each acquisition comes a second after the
    one that the record shows. A record that was written more than a minute ahead is not followed: such a
    time is somebody's error, and would be handed on for ever.
    """
    if stored is None:
        return now
    last, written = parse(stored.get("claimed_at")), parse(stored.get("updated_at"))
    this = whole(now)
    if last is None or not this <= last < later(this, _LEAD) or (written or last) > later(this, _SKEW):
        return now
    return later(whole(last), 1)


def fence(claim: Mapping[str, Any]) -> str:
    """Name one acquisition by an opaque token, the same for as long as it is only renewed.

    Once the item is released, or acquired anew, by another agent or instance or the same, there is
    another. An instance or generation that comes back to a lease which never ended has the fence it had:
    the record says the same again.
    """
    facts = [claim.get(name) for name in _FENCED]
    return sha256(canonical(facts)).hexdigest()[:32]


def build_release(
    stored: Mapping[str, Any],
    *,
    by: str,
    branch: str | None,
    metadata: Document,
    handoff_to: str | None,
    handoff_note: str | None,
    identity: Identity,
    now: datetime,
) -> Document:
    """Build the released record: the stored one, ended now, with the handoff if one was given."""
    document = dict(stored)
    ended = stamp(now)
    document |= {"status": RELEASED, "released_by": by, "released_at": ended, "updated_at": ended, "expires_at": ended}
    document |= metadata
    attribute(document, stored, identity)
    if branch is not None:
        document["branch"] = branch
    for field in HANDOFF:
        document.pop(field, None)
    if handoff_to is not None or handoff_note is not None:
        document["release_mode"] = "handoff"
        if handoff_to is not None:
            document["handoff_to"] = handoff_to
        if handoff_note is not None:
            document["handoff_note"] = handoff_note
    return document


def handoff_of(record: Mapping[str, Any]) -> Handoff | None:
    """Read the handoff of a released claim, or of the event that tells of it; None when it was given back plainly."""
    to, note = (text(record, field) for field in HANDOFF[1:])
    if to is None and note is None:
        return None
    by = text(record, "released_by") or text(record, "agent_id")
    return Handoff(to=to, note=note, by=by, at=text(record, "released_at") or text(record, "at"))


def refusal(refused: Refuse, repo: str, target: str) -> str:
    """Say who holds the lease and what keeps it theirs; other programs read this line."""
    line = f"CLAIM_REFUSED: active claim for {repo}#{target} held by {refused.holder}; heartbeat {refused.seen}"
    if refused.instance is not None:
        line += f"; by another instance of it ({refused.instance}), which --supersede would displace"
    if refused.seen in ("live", "stale"):
        return line
    return f"{line}; fallback claim expires at {refused.expires_at or 'UNKNOWN'}"
