"""Taking, renewing and giving back a lease (spec: cli §3, §4)."""

from datetime import datetime

from msgspec import Struct

from agentcoord.errors import Conflict, Defect, Unreadable, UsageError
from agentcoord.operations.closeout import Closed, close
from agentcoord.operations.context import Context, contention, read_object
from agentcoord.operations.events import emit
from agentcoord.protocol.batches import UNKNOWN
from agentcoord.protocol.claims import (
    Decision,
    HolderState,
    Refuse,
    Renew,
    TakeOver,
    Wanted,
    build_claim,
    build_release,
    decide_claim,
    fence,
    handoff_of,
    holder_of,
    holder_state,
    is_rival,
)
from agentcoord.protocol.closeout import DEFAULT_WORKSPACE, closed_by, require_payload, require_terminal
from agentcoord.protocol.documents import Document, text
from agentcoord.protocol.events import ACQUIRED, RELEASED, said_of_claim
from agentcoord.protocol.instants import parse, whole
from agentcoord.protocol.paths import claim_path, heartbeat_path, is_segment, require_repo, require_segment


class Claimed(Struct, frozen=True):
    """The lease is the caller's. `fence` names this acquisition, which `renewed` tells it still is."""

    record: Document
    fence: str
    renewed: bool
    taken_over_from: str | None
    handed_over: bool = False
    """Whether the last holder left it with a word for the next one."""


class Refused(Struct, frozen=True):
    """The lease is somebody else's: an answer, not an error."""

    repo: str
    target: str
    refusal: Refuse


class ReleaseRequest(Struct, frozen=True):
    """What a holder gives back, and to whom or how it ends."""

    agent_id: str
    repo: str
    target: str
    branch: str | None = None
    metadata: Document = {}
    handoff_to: str | None = None
    handoff_note: str | None = None
    terminal: str | None = None
    lane: str | None = None
    facts: Document = {}
    """Terminal facts given: pr_state, evidence_url, workspace."""


class Released(Struct, frozen=True):
    """The lease is given back; `closed` tells of the lane when it was for good."""

    record: Document
    closed: Closed | None = None


async def claim(context: Context, wanted: Wanted) -> Claimed | Refused:
    """Acquire, renew or take over the lease on one work item by a single conditional write.

    Raises UsageError for an invalid request; StoreError on contention or when the holder's state
    cannot be learned.
    """
    if wanted.ttl <= 0:
        raise UsageError("--ttl must be positive")
    require_repo(wanted.repo, "target repo")
    require_segment(wanted.target, "target")
    path = claim_path(wanted.repo, wanted.target)
    found = await read_object(context.store, path, "a claim")
    stored = found[0] if found else None
    holder = holder_of(stored)
    trusted = holder == wanted.agent_id and not (stored is not None and is_rival(stored, wanted))
    beat = None if holder is None or trusted else await beat_of(context, holder)
    now = context.now()  # once all is read: one decision rests on one instant
    seen: HolderState = state_of(beat, now)
    decision: Decision = decide_claim(stored, seen, wanted, now)
    if isinstance(decision, Refuse):
        return Refused(repo=wanted.repo, target=wanted.target, refusal=decision)
    record = build_claim(stored, decision, wanted, context.identity, now)
    item = f"{wanted.repo}#{wanted.target}"
    try:
        await context.store.write(path, record, version=found[1].version if found else None, note=f"Claim {item}")
    except Conflict as error:
        raise contention(f"claim write contention for {item}", error) from error
    anew = context.again and found is not None and record == stored and _acquired_at(record, now)
    routine = isinstance(decision, Renew) and decision.routine and not anew
    if not routine and text(record, "batch_id"):
        await emit(context, *said_of_claim(record, ACQUIRED))
    return Claimed(
        record=record,
        fence=fence(record),
        renewed=routine and stored is not None and fence(stored) == fence(record),
        taken_over_from=decision.holder if isinstance(decision, TakeOver) else None,
        handed_over=stored is not None and holder is None and handoff_of(stored) is not None,
    )


def _acquired_at(record: Document, now: datetime) -> bool:
    """Tell an acquisition at this instant, whose event may have been lost with the daemon, from a renewal at it."""
    claimed = parse(record.get("claimed_at"))
    return claimed is not None and claimed >= whole(now)


_INVALID = object()
"""Stands for a heartbeat that is there and cannot be parsed."""


def state_of(beat: object, now: datetime) -> HolderState:
    """Judge what `beat_of` found."""
    return "invalid" if beat is _INVALID else holder_state(beat, now)


async def beat_of(context: Context, holder: str) -> object:
    """Read a holder's heartbeat for `state_of`; None when there is none. Raises StoreError when nobody can tell."""
    if not is_segment(holder):
        return None
    try:
        beat = await context.store.read(heartbeat_path(holder))
    except Unreadable as error:
        if error.defect is Defect.MALFORMED:
            return _INVALID
        raise
    return None if beat is None else _INVALID if beat.document is None else beat.document


async def release(context: Context, request: ReleaseRequest) -> Released:
    """Give a lease back: plainly, as a handoff, or for good with its lane.

    Raises UsageError when the caller does not hold the claim or the request is invalid, StoreError
    when the write lost a race.
    """
    if request.terminal is not None:
        _require_terminal_request(request)
    require_repo(request.repo, "target repo")
    require_segment(request.target, "target")
    path = claim_path(request.repo, request.target)
    item = f"{request.repo}#{request.target}"
    found = await read_object(context.store, path, "a claim")
    if found is None:
        raise UsageError(f"no claim exists for {item}")
    stored, entry = found
    if stored.get("agent_id") != request.agent_id:
        raise UsageError(f"claim belongs to {stored.get('agent_id') or UNKNOWN}; {request.agent_id} cannot release it")
    record = build_release(
        stored,
        by=request.agent_id,
        branch=request.branch,
        metadata=request.metadata,
        handoff_to=request.handoff_to,
        handoff_note=request.handoff_note,
        identity=context.identity,
        now=context.now(),
    )
    if request.terminal is not None:
        return await _release_for_good(context, request, stored, entry.version, record)
    await context.store.write(path, record, version=entry.version, note=f"Release {item}")
    if text(record, "batch_id"):
        await emit(context, *said_of_claim(record, RELEASED))
    return Released(record=record)


def _require_terminal_request(request: ReleaseRequest) -> None:
    require_terminal(request.terminal)
    if request.handoff_to is not None or request.handoff_note is not None:
        raise UsageError("--terminal cannot be combined with --handoff-to or --handoff-note")
    require_payload(
        {"repo": request.repo, "branch": request.branch} | request.metadata | request.facts,
    )


async def _release_for_good(
    context: Context, request: ReleaseRequest, stored: Document, version: str, record: Document
) -> Released:
    batch_id = text(stored, "batch_id")
    if batch_id is None:
        raise UsageError("terminal release requires a claim with batch_id")
    workspace = record.get("workspace") or DEFAULT_WORKSPACE
    record |= {"terminal": request.terminal, "workspace": workspace} | request.facts
    record["closed_by"] = closed_by(request.agent_id, record.get("host"), context.identity)
    payload = record | {"repo": request.repo, "target": request.target}
    # Only the caller names a lane: a field of that name that somebody put into the claim decides nothing.
    payload.pop("lane", None)
    if request.lane is not None:
        payload["lane"] = request.lane
    require_payload(payload)
    closed = await close(context, batch_id, payload, claim=(stored, version, record))
    return Released(record=closed.claim or record, closed=closed)
