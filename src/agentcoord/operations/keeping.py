"""Keeping a lease: taking it, renewing and looking at it, giving it back, and saying that its agent is dead.

Everything is read again before anything is written, and each write names the version that was read: news that an
agent or another holder wrote in between is seen, never overwritten.
"""

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from agentcoord.errors import Conflict, StoreError, UsageError
from agentcoord.operations.claims import Refused, ReleaseRequest, beat_of, claim, release, state_of
from agentcoord.operations.context import Context, contention, read_object
from agentcoord.operations.events import record_event
from agentcoord.protocol.claims import Wanted, fence
from agentcoord.protocol.documents import Document, given, is_document, stated, text
from agentcoord.protocol.events import Said
from agentcoord.protocol.heartbeats import Beat, build_heartbeat
from agentcoord.protocol.instants import parse, whole
from agentcoord.protocol.keeping import (
    DEAD_TTL,
    SHORTEST_TTL,
    Finished,
    Lane,
    Lost,
    beat_ttl,
    claim_ttl,
    ended,
    is_due,
    is_ended,
    is_others,
    is_past,
    is_terminal,
    judge_beat,
    judge_claim,
    protected_until,
    refreshed,
    was_ended,
)
from agentcoord.protocol.paths import claim_path, heartbeat_path, require_repo, require_segment
from agentcoord.protocol.records import METADATA, SYNTHETIC
from agentcoord.protocol.statuses import normalize
from agentcoord.stores.base import Stored

_ATTEMPTS = 4
_LONGEST_TTL = 365 * 24 * 60 * 60
_WORKING = normalize("in_progress")


class Renewed(Struct, frozen=True):
    """The lease goes on, and nobody else is let in before `until` (UTC; None: there is no telling).

    `ttl` is the shortest of what is kept, in seconds, `beaten` when its heartbeat is from; the rest is what was read.
    """

    ttl: int
    until: datetime | None = None
    beaten: datetime | None = None
    batch_id: str | None = None
    instance: str | None = None
    fence: str | None = None


Outcome = Renewed | Lost | Finished


def require_lane(lane: Lane) -> None:
    """Check what is to be kept. Raises UsageError for the first fault."""
    require_segment(lane.agent_id, "agent-id")
    if lane.ttl <= 0:
        raise UsageError("--ttl must be positive")
    if lane.ttl < SHORTEST_TTL:
        raise UsageError(f"--ttl must be at least {SHORTEST_TTL} for a lease that is kept")
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


async def take(context: Context, wanted: Wanted) -> tuple[Lane, Renewed] | Refused:
    """Acquire a lease, and the heartbeat that protects it, for the instance that `wanted` names.

    Raises UsageError for an invalid request, StoreError when it is not known who has the item.
    """
    lane = Lane(
        agent_id=wanted.agent_id,
        ttl=beat_ttl(wanted.ttl),
        kinds=("heartbeat", "claim"),
        repo=wanted.repo,
        target=wanted.target,
        instance=str(wanted.metadata["instance_id"]),
    )
    require_lane(lane)
    fault: StoreError | None = None
    for _ in range(_ATTEMPTS):
        try:
            result = await claim(context, wanted)
        except StoreError as error:
            if not isinstance(error.__cause__, Conflict):
                raise
            fault = error
            continue
        if isinstance(result, Refused):
            return result
        try:
            lane = replace(lane, shared=await _is_shared(context, wanted))
            if not lane.shared:
                await _renew_beat(context, lane, result.record, begins=True)
            # The claim is read after the beat: until then, a dead heartbeat of the agent's last life let anybody in.
            outcome = await renew(context, lane)
        except Conflict as error:
            fault = error
            continue
        except StoreError:
            await give_back(context, lane)  # if that fails too, it is for the same reason
            raise
        if isinstance(outcome, Renewed):
            return lane, outcome
    await give_back(context, lane)
    raise contention(f"claim of {wanted.repo}#{wanted.target}", fault or StoreError("it changed at every attempt"))


async def _is_shared(context: Context, wanted: Wanted) -> bool:
    """Tell whether the agent is alive without us: what others wrote into its heartbeat is not for us to end."""
    beat = await beat_of(context, wanted.agent_id)
    if not is_document(beat) or was_ended(beat) or is_terminal(text(beat, "status") or ""):
        return False
    if state_of(beat, context.now()) not in ("live", "stale"):
        return False
    if beat.get("instance_id") == wanted.metadata.get("instance_id"):
        return False
    displaced = not wanted.exclusive and all(beat.get(name) == getattr(wanted, name) for name in ("repo", "target"))
    return not displaced


async def renew(context: Context, lane: Lane) -> Outcome:
    """Renew an agent's heartbeat, and its claim when that is due, if both still are what is kept.

    Nothing at all is written once the lease is lost or finished. Raises StoreError when that cannot be
    learned, or too many others write at the same time.
    """
    lost_to: Conflict | None = None
    for _ in range(_ATTEMPTS):
        found = await _read_claim(context, lane)
        if (over := _judged(lane, found)) is not None:
            return over
        record, beaten = found[0] if found else None, None
        try:
            if "heartbeat" in lane.kinds:
                beaten = await _renew_beat(context, lane, record)
                if isinstance(beaten, Lost | Finished):
                    return beaten
            if found is not None:
                record = await _extend(context, lane, *found)
        except Conflict as error:
            lost_to = error
            continue
        return _renewed(lane, record, beaten)
    raise StoreError(f"renewal contention for {lane.agent_id}; {lost_to}") from lost_to


async def look(context: Context, lane: Lane) -> Outcome | None:
    """Look whether the lease still is what is kept; None: it is, and nothing changed.

    A heartbeat that somebody else kept and has ended is begun anew. Raises StoreError when nobody can tell.
    """
    claim = await _read_claim(context, lane)
    if (over := _judged(lane, claim)) is not None:
        return over
    if lane.shared:
        beat = await read_object(context.store, heartbeat_path(lane.agent_id), "a heartbeat")
        if beat is None or is_past(lane, beat[0], claim[0] if claim else None, context.now()):
            return await renew(context, lane)
    return None


async def give_back(
    context: Context, kept: Lane, *, terminal: str | None = None, lane: str | None = None
) -> Lost | Finished | None:
    """Release a lease that still is what is kept, or close its `lane`; else leave it alone, and tell why.

    Raises CoordError when it is not given back.
    """
    request = ReleaseRequest(
        agent_id=kept.agent_id, repo=kept.repo or "", target=kept.target or "", terminal=terminal, lane=lane
    )
    for _ in range(_ATTEMPTS):
        if (over := _judged(kept, await _read_claim(context, kept))) is not None:
            return over
        try:
            await release(context, request)
        except Conflict:
            continue
        return None
    raise contention(f"release of {kept.repo}#{kept.target}", StoreError("it changed at every attempt"))


def _judged(lane: Lane, claim: tuple[Document, Stored] | None) -> Lost | Finished | None:
    if "claim" not in lane.kinds:
        return None
    return judge_claim(lane, claim[0] if claim else None)


def _renewed(lane: Lane, claim: Document | None, beat: Document | None) -> Renewed:
    said = claim or beat or {}
    return Renewed(
        ttl=lane.ttl if claim is None else min(lane.ttl, claim_ttl(claim, lane.ttl)),
        until=protected_until(claim, beat),
        beaten=parse((beat or {}).get("updated_at")),
        batch_id=text(said, "batch_id"),
        instance=text(said, "instance_id"),
        fence=fence(claim) if claim is not None else None,
    )


async def _read_claim(context: Context, lane: Lane) -> tuple[Document, Stored] | None:
    if "claim" not in lane.kinds or lane.repo is None or lane.target is None:
        return None
    return await read_object(context.store, claim_path(lane.repo, lane.target), "a claim")


async def _renew_beat(
    context: Context, lane: Lane, claim: Document | None, *, begins: bool = False
) -> Document | Lost | Finished:
    path = heartbeat_path(lane.agent_id)
    found = await read_object(context.store, path, "a heartbeat")
    before, now = found[0] if found else None, context.now()
    if before is None or begins:
        record = _first_beat(context, lane, claim, lane.ttl, now, before)
    elif (over := judge_beat(lane, before, claim, now)) is not None:
        return over
    elif is_past(lane, before, claim, now):
        record = _first_beat(context, lane, claim, lane.ttl, now, before)
    else:
        record = refreshed(before, lane.ttl, now)
        if record == before:  # of this second, or ahead of this clock: there is nothing to move on
            return record
    await context.store.write(
        path, record, version=found[1].version if found else None, note=f"Heartbeat {lane.agent_id}"
    )
    return record


def _first_beat(
    context: Context,
    lane: Lane,
    claim: Mapping[str, Any] | None,
    ttl: int,
    now: datetime,
    before: Document | None = None,
) -> Document:
    """Build the first heartbeat of a lease: it says what the claim says, and is no earlier than the one `before`.

    One of another instance gives nothing else to it.
    """
    said = claim or {}
    beaten = parse((before or {}).get("updated_at"))
    beat = Beat(
        agent_id=lane.agent_id,
        ttl=ttl,
        status=_WORKING,
        repo=lane.repo,
        target=lane.target,
        batch_id=text(said, "batch_id"),
        branch=text(said, "branch"),
        metadata=stated(said, (*METADATA, *SYNTHETIC)) | given({"instance_id": lane.instance}),
    )
    kept = claim if before is None or is_others(lane, before) else before
    return build_heartbeat(kept, beat, context.identity, now if beaten is None else max(whole(now), beaten))


async def _extend(context: Context, lane: Lane, claim: Document, entry: Stored) -> Document:
    now = context.now()
    if not is_due(claim, lane.ttl, now):
        return claim
    record = refreshed(claim, claim_ttl(claim, lane.ttl), now)
    if record != claim:
        note = f"Renew {lane.repo}#{lane.target}"
        await context.store.write(entry.path, record, version=entry.version, note=note)
    return record


async def mark_dead(context: Context, lane: Lane, *, known_until: datetime | None = None) -> bool:
    """Write the heartbeat of an agent whose process is gone, which any reader takes for dead within four seconds.

    Left alone are another instance's heartbeat, one of nobody in particular that is shared, and one that is later than
    `known_until`: somebody who was not watched wrote it. Tells whether the agent is, or is about to be, dead to all.
    Raises StoreError.
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
    if is_others(lane, beat) or (lane.shared and text(beat, "instance_id") is None):
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
