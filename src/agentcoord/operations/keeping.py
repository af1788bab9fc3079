"""Renewing what is kept for an agent, and saying that it is dead.

Everything is read again before anything is written, and each write names the version that was read: news that an
agent or another holder wrote in between is seen, never overwritten.
"""

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from msgspec import Struct

from agentcoord.errors import Conflict, StoreError, UsageError
from agentcoord.operations.context import Context, read_object
from agentcoord.operations.events import record_event
from agentcoord.protocol.claims import fence
from agentcoord.protocol.documents import Document, given, text
from agentcoord.protocol.events import Said
from agentcoord.protocol.heartbeats import Beat, build_heartbeat
from agentcoord.protocol.instants import parse
from agentcoord.protocol.keeping import (
    DEAD_TTL,
    Finished,
    Lane,
    Lost,
    claim_ttl,
    ended,
    is_due,
    is_ended,
    is_others,
    is_past,
    judge_beat,
    judge_claim,
    refreshed,
)
from agentcoord.protocol.paths import claim_path, heartbeat_path, require_repo, require_segment
from agentcoord.protocol.statuses import normalize
from agentcoord.stores.base import Stored

_ATTEMPTS = 4
_LONGEST_TTL = 365 * 24 * 60 * 60
_WORKING = normalize("in_progress")


class Renewed(Struct, frozen=True):
    """The lease goes on. `ttl` is the shortest of what is kept, in seconds; the rest is what was read."""

    ttl: int
    batch_id: str | None = None
    instance: str | None = None
    fence: str | None = None


Outcome = Renewed | Lost | Finished


def require_lane(lane: Lane) -> None:
    """Check what is to be kept. Raises UsageError for the first fault."""
    require_segment(lane.agent_id, "agent-id")
    if lane.ttl <= 0:
        raise UsageError("--ttl must be positive")
    if lane.ttl > _LONGEST_TTL:
        raise UsageError(f"--ttl of what is kept must be at most {_LONGEST_TTL} seconds")
    if not lane.kinds:
        raise UsageError("nothing to keep: neither heartbeat nor claim")
    if lane.repo is not None:
        require_repo(lane.repo, "target repo")
    if lane.target is not None:
        require_segment(lane.target, "target")
    if "claim" in lane.kinds and (lane.repo is None or lane.target is None):
        raise UsageError("a claim to keep needs --repo and --target")


async def renew(context: Context, lane: Lane) -> Outcome:
    """Renew an agent's heartbeat, and its claim when that is due, if both still are what is kept.

    Nothing at all is written once the lease is lost or finished. Raises StoreError when that cannot be
    learned, or too many others write at the same time.
    """
    lost_to: Conflict | None = None
    for _ in range(_ATTEMPTS):
        claim = await _read_claim(context, lane)
        if (over := _judged(lane, claim)) is not None:
            return over
        record = claim[0] if claim else None
        try:
            beaten = await _renew_beat(context, lane, record) if "heartbeat" in lane.kinds else None
            if isinstance(beaten, Lost | Finished):
                return beaten
            if claim is not None:
                await _extend(context, lane, *claim)
        except Conflict as error:
            lost_to = error
            continue
        return _renewed(lane, record, beaten)
    raise StoreError(f"renewal contention for {lane.agent_id}; {lost_to}") from lost_to


def _judged(lane: Lane, claim: tuple[Document, Stored] | None) -> Lost | Finished | None:
    if "claim" not in lane.kinds:
        return None
    return judge_claim(lane, claim[0] if claim else None)


def _renewed(lane: Lane, claim: Document | None, beat: Document | None) -> Renewed:
    said = claim or beat or {}
    return Renewed(
        ttl=lane.ttl if claim is None else min(lane.ttl, claim_ttl(claim, lane.ttl)),
        batch_id=text(said, "batch_id"),
        instance=text(said, "instance_id"),
        fence=fence(claim) if claim is not None else None,
    )


async def _read_claim(context: Context, lane: Lane) -> tuple[Document, Stored] | None:
    if "claim" not in lane.kinds or lane.repo is None or lane.target is None:
        return None
    return await read_object(context.store, claim_path(lane.repo, lane.target), "a claim")


async def _renew_beat(context: Context, lane: Lane, claim: Document | None) -> Document | Lost | Finished:
    path = heartbeat_path(lane.agent_id)
    found = await read_object(context.store, path, "a heartbeat")
    now = context.now()
    if found is None:
        record, version = _first_beat(context, lane, claim, lane.ttl, now), None
    else:
        before, version = found[0], found[1].version
        if (over := judge_beat(lane, before, claim, now)) is not None:
            return over
        record = refreshed(before, lane.ttl, now)
        if is_past(lane, before, claim, now):
            times = {name: record[name] for name in ("updated_at", "expires_at")}
            record = _first_beat(context, lane, claim, lane.ttl, now, before) | times
        if record == before:  # its time is ahead of this clock: there is nothing to move on
            return record
    await context.store.write(path, record, version=version, note=f"Heartbeat {lane.agent_id}")
    return record


def _first_beat(
    context: Context,
    lane: Lane,
    claim: Mapping[str, Any] | None,
    ttl: int,
    now: datetime,
    before: Document | None = None,
) -> Document:
    """Build the heartbeat of an agent that has not beaten since it claimed; another instance's gives nothing to it."""
    said = claim or {}
    beat = Beat(
        agent_id=lane.agent_id,
        ttl=ttl,
        status=_WORKING,
        repo=lane.repo,
        target=lane.target,
        batch_id=text(said, "batch_id"),
        branch=text(said, "branch"),
        metadata=given({"instance_id": lane.instance or text(said, "instance_id")}),
    )
    kept = None if before is not None and is_others(lane, before) else before
    return build_heartbeat(kept, beat, context.identity, now)


async def _extend(context: Context, lane: Lane, claim: Document, entry: Stored) -> None:
    now = context.now()
    if not is_due(claim, lane.ttl, now):
        return
    record = refreshed(claim, claim_ttl(claim, lane.ttl), now)
    if record != claim:
        note = f"Renew {lane.repo}#{lane.target}"
        await context.store.write(entry.path, record, version=entry.version, note=note)


async def mark_dead(context: Context, lane: Lane, *, known_until: datetime | None = None) -> bool:
    """Write the heartbeat of an agent whose process is gone, which any reader takes for dead within four seconds.

    Another instance's heartbeat is left alone, and so is one that is later than `known_until`: somebody who was not
    watched wrote it. Tells whether the agent is, or is about to be, dead to all. Raises StoreError.
    """
    path = heartbeat_path(lane.agent_id)
    for _ in range(_ATTEMPTS):
        found = await read_object(context.store, path, "a heartbeat")
        now = context.now()
        if found is None:
            claim = await _read_claim(context, lane)
            if _judged(lane, claim) is not None:
                return False
            record, version = _first_beat(context, lane, claim[0] if claim else None, DEAD_TTL, now), None
        else:
            before, version = found[0], found[1].version
            if not _may_bury(lane, before, known_until):
                return False
            if is_ended(before, now):
                return True
            record = ended(before, now)
        try:
            await context.store.write(path, record, version=version, note=f"Heartbeat {lane.agent_id} ends")
        except Conflict:
            continue
        return True
    raise StoreError(f"state changed while writing {path}")


def _may_bury(lane: Lane, beat: Document, known_until: datetime | None) -> bool:
    if is_others(lane, beat):
        return False
    beaten = parse(beat.get("updated_at"))
    return known_until is None or beaten is None or beaten <= known_until


async def tell(context: Context, lane: Lane, batch_id: str, type_: str, message: str) -> None:
    """Record in a batch's trail what became of a lease. Raises StoreError when it is not certain to be stored."""
    said = Said(
        batch_id=batch_id,
        type=type_,
        agent_id=lane.agent_id,
        repo=lane.repo,
        target=lane.target,
        message=message,
        metadata=given({"instance_id": lane.instance}),
    )
    await record_event(context, said)
