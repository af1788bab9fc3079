"""Holding a lease for as long as somebody works under it: taking, renewing, looking, and what is left at the end."""

from datetime import datetime

from msgspec import Struct
from msgspec.structs import replace

from agentcoord.errors import Conflict, StoreError, UsageError
from agentcoord.operations.claims import Claimed, Refused, ReleaseRequest, beat_of, claim, release, state_of
from agentcoord.operations.context import Context, contention, read_object
from agentcoord.protocol.claims import Refuse, Wanted
from agentcoord.protocol.custody import (
    SHORTEST_TTL,
    Standing,
    beat_ttl,
    compare,
    is_due,
    is_finished,
    is_last,
    is_of,
    judge,
    last_beat,
    prolonged,
    protected_until,
)
from agentcoord.protocol.documents import Document, is_document
from agentcoord.protocol.heartbeats import Beat, build_heartbeat
from agentcoord.protocol.paths import claim_path, heartbeat_path, require_repo, require_segment
from agentcoord.protocol.statuses import normalize

_ATTEMPTS = 3
_WORKING = "in_progress"


class VerifyRequest(Struct, frozen=True):
    """An acquisition that a caller believes to be its own."""

    repo: str
    target: str
    fence: str


class Custody(Struct, frozen=True):
    """A lease that one instance of an agent keeps.

    `shared` tells that the agent was alive without this instance, and so goes on when this one is gone.
    """

    wanted: Wanted
    fence: str
    shared: bool = False

    @property
    def instance_id(self) -> str:
        """Name the instance that keeps the lease."""
        return str(self.wanted.metadata["instance_id"])


class Kept(Struct, frozen=True):
    """The lease is kept, and nobody else is let in before `until`; None: there is no telling."""

    until: datetime | None


class Lost(Struct, frozen=True):
    """The lease is no longer this instance's; how it stands now."""

    standing: Standing


async def verify(context: Context, request: VerifyRequest) -> Standing:
    """Tell whether a fence still names the acquisition that holds a work item. Only reads.

    Raises UsageError for an invalid request, StoreError when the backend cannot tell.
    """
    require_repo(request.repo, "target repo")
    require_segment(request.target, "target")
    stored = await _claim_of(context, request.repo, request.target)
    standing = compare(stored, request.fence)
    if not standing.held or standing.holder is None:
        return standing
    beat = await beat_of(context, standing.holder)
    now = context.now()
    return judge(standing, state_of(beat, now), now)


async def take(context: Context, wanted: Wanted) -> tuple[Custody, Kept] | Refused:
    """Acquire a lease, and the heartbeat that protects it, for the instance that `wanted` names.

    Raises UsageError for an invalid request, StoreError when it is not known who has the item.
    """
    require_segment(wanted.agent_id, "agent-id")
    if 0 < wanted.ttl < SHORTEST_TTL:
        raise UsageError(f"--ttl must be at least {SHORTEST_TTL} for a lease that is kept")
    result = await _claim(context, wanted)
    if isinstance(result, Refused):
        return result
    custody = Custody(wanted=wanted, fence=result.fence)
    try:
        custody = replace(custody, shared=await _is_shared(context, wanted))
        # The claim is read after the beat: until then, a dead heartbeat of the agent's last life let anybody in.
        await _refresh(context, custody, begins=not custody.shared)
        kept = await renew(context, custody)
    except StoreError:
        await give_back(context, custody)  # if that fails too, it is for the same reason
        raise
    if isinstance(kept, Kept):
        return custody, kept
    holder = kept.standing.holder or "another instance"
    refusal = Refuse(holder=holder, seen="unknown", expires_at=kept.standing.until)
    return Refused(repo=wanted.repo, target=wanted.target, refusal=refusal)


async def _claim(context: Context, wanted: Wanted) -> Claimed | Refused:
    for _ in range(_ATTEMPTS):
        try:
            return await claim(context, wanted)
        except StoreError as error:
            if not isinstance(error.__cause__, Conflict):
                raise
    return await claim(context, wanted)


async def _is_shared(context: Context, wanted: Wanted) -> bool:
    """Tell whether the agent is alive without us: what others wrote into its heartbeat is not for us to end."""
    beat = await beat_of(context, wanted.agent_id)
    if not is_document(beat) or is_last(beat) or state_of(beat, context.now()) not in ("live", "stale"):
        return False
    if beat.get("instance_id") == wanted.metadata.get("instance_id"):
        return False
    displaced = not wanted.exclusive and all(beat.get(name) == getattr(wanted, name) for name in ("repo", "target"))
    return not displaced


async def renew(context: Context, custody: Custody) -> Kept | Lost:
    """Refresh the agent's heartbeat, and the lease when under half of it is left; what others wrote stays.

    Raises StoreError when it is not known how the lease stands; what was refreshed until then stays so.
    """
    wanted = custody.wanted
    path = claim_path(wanted.repo, wanted.target)
    for _ in range(_ATTEMPTS):
        found = await read_object(context.store, path, "a claim")
        stored = found[0] if found else None
        if found is None or stored is None or not _is_ours(stored, custody):
            return Lost(compare(stored, custody.fence))
        beat = await _refresh(context, custody)
        now = context.now()
        if is_due(stored, wanted.ttl, now):
            record = prolonged(stored, wanted.ttl, now)
            note = f"Claim {wanted.repo}#{wanted.target}"
            try:
                await context.store.write(path, record, version=found[1].version, note=note)
            except Conflict:
                continue
            stored = record
        return Kept(protected_until(stored, beat))
    raise StoreError(f"claim write contention for {wanted.repo}#{wanted.target}")


async def look(context: Context, custody: Custody) -> Kept | Lost | None:
    """Look whether the lease is still this instance's; None: it is, and nothing changed.

    A heartbeat that somebody else kept and has ended is begun anew. Raises StoreError when nobody can tell.
    """
    wanted = custody.wanted
    stored = await _claim_of(context, wanted.repo, wanted.target)
    if stored is None or not _is_ours(stored, custody):
        return Lost(compare(stored, custody.fence))
    if custody.shared:
        beat = await context.store.read(heartbeat_path(wanted.agent_id))
        if beat is None or not is_document(beat.document) or is_last(beat.document):
            return await renew(context, custody)
    return None


async def _claim_of(context: Context, repo: str, target: str) -> Document | None:
    found = await read_object(context.store, claim_path(repo, target), "a claim")
    return found[0] if found else None


def _is_ours(claim: Document, custody: Custody) -> bool:
    return is_of(claim, custody.wanted.agent_id, custody.instance_id)


async def _refresh(context: Context, custody: Custody, *, begins: bool = False) -> Document:
    """Move the times of the agent's heartbeat on, or begin one. Gives it as it is now."""
    wanted, path = custody.wanted, heartbeat_path(custody.wanted.agent_id)
    for _ in range(_ATTEMPTS):
        stored = await context.store.read(path)
        before = stored.document if stored is not None and is_document(stored.document) else None
        ttl, now = beat_ttl(wanted.ttl), context.now()
        if before is not None and not begins and not is_last(before):
            if is_finished(before):
                return before
            record = prolonged(before, ttl, now)
        else:
            record = build_heartbeat(before, _first_beat(wanted, ttl), context.identity, now)
        version = stored.version if stored else None
        try:
            await context.store.write(path, record, version=version, note=f"Heartbeat {wanted.agent_id}")
        except Conflict:
            continue
        return record
    raise StoreError(f"state changed while writing {path}")


def _is_ours_to_end(beat: Document, custody: Custody) -> bool:
    """Tell whether a heartbeat is this instance's, or that of a command under it which named no instance."""
    instance = beat.get("instance_id")
    return instance == custody.instance_id or (instance is None and not custody.shared)


def _first_beat(wanted: Wanted, ttl: int) -> Beat:
    return Beat(
        agent_id=wanted.agent_id,
        ttl=ttl,
        status=normalize(_WORKING),
        repo=wanted.repo,
        target=wanted.target,
        batch_id=wanted.batch_id,
        branch=wanted.branch,
        metadata=wanted.metadata,
    )


async def give_back(
    context: Context, custody: Custody, *, terminal: str | None = None, lane: str | None = None
) -> Lost | None:
    """Release a lease that is still ours, or close its lane; one that is not ours any more is left alone.

    Raises CoordError when it is not given back.
    """
    wanted = custody.wanted
    request = ReleaseRequest(
        agent_id=wanted.agent_id, repo=wanted.repo, target=wanted.target, terminal=terminal, lane=lane
    )
    for _ in range(_ATTEMPTS):
        stored = await _claim_of(context, wanted.repo, wanted.target)
        if stored is None or not _is_ours(stored, custody):
            return Lost(compare(stored, custody.fence))
        try:
            await release(context, request)
        except Conflict:
            continue
        return None
    raise contention(f"release of {wanted.repo}#{wanted.target}", StoreError("it changed at every attempt"))


async def mark_dead(context: Context, custody: Custody) -> None:
    """Leave a heartbeat that is dead in four seconds, unless it is another instance's. Raises StoreError."""
    path = heartbeat_path(custody.wanted.agent_id)
    for _ in range(_ATTEMPTS):
        stored = await context.store.read(path)
        if stored is None or not is_document(stored.document) or not _is_ours_to_end(stored.document, custody):
            return
        record = last_beat(stored.document, context.now())
        try:
            await context.store.write(
                path, record, version=stored.version, note=f"Heartbeat {custody.wanted.agent_id} ends"
            )
        except Conflict:
            continue
        return
    raise StoreError(f"state changed while writing {path}")
