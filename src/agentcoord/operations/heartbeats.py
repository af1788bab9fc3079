"""Saying that an agent is still there (spec: cli §5)."""

from datetime import datetime

from msgspec import Struct

from agentcoord.errors import Conflict, StoreError, UsageError
from agentcoord.operations.context import Context
from agentcoord.operations.events import emit
from agentcoord.protocol.documents import Document, is_document
from agentcoord.protocol.events import ID_BYTES, build_event, event_id, said_of_phase
from agentcoord.protocol.heartbeats import Beat, build_heartbeat, phase_change
from agentcoord.protocol.paths import agent_lane, heartbeat_path, require_segment
from agentcoord.protocol.statuses import unknown_warning

_ATTEMPTS = 2


class Beaten(Struct, frozen=True):
    """The heartbeat as it now stands; `queued`: as it is to stand, seen from what is known here."""

    record: Document
    queued: bool = False


async def heartbeat(context: Context, beat: Beat) -> Beaten:
    """Upsert an agent's heartbeat, keeping what still belongs to its work.

    Where the context has an outbox, one that the backend says neither yes nor no to is queued, and so is one whose
    agent has something in there. Raises UsageError for an invalid beat, StoreError when it lost two races in a row.
    """
    require_segment(beat.agent_id, "agent-id")
    if beat.ttl <= 0:
        raise UsageError("--ttl must be positive")
    if not beat.status.known:
        context.notices.append(unknown_warning(beat.status))
    path = heartbeat_path(beat.agent_id)
    if context.outbox is not None and await context.outbox.holds(agent_lane(beat.agent_id)):
        return await _later(context, beat, context.now(), None)
    for _ in range(_ATTEMPTS):
        try:
            stored = await context.store.read(path)
        except StoreError as error:
            if context.outbox is None:
                raise
            return await _later(context, beat, context.now(), error)
        before = stored.document if stored is not None and is_document(stored.document) else None
        now = context.now()
        record = build_heartbeat(before, beat, context.identity, now)
        try:
            await context.store.write(
                path, record, version=stored.version if stored else None, note=f"Heartbeat {beat.agent_id}"
            )
        except Conflict:
            continue
        except StoreError as error:
            if context.outbox is None:
                raise
            return await _later(context, beat, now, error, before, sent=record)
        change = phase_change(before, beat)
        if change is not None and before is not None:
            await emit(context, *said_of_phase(change, beat, before))
        return Beaten(record=record)
    raise StoreError(f"state changed while writing {path}")


async def _later(
    context: Context,
    beat: Beat,
    now: datetime,
    error: StoreError | None,
    before: Document | None = None,
    *,
    sent: Document | None = None,
) -> Beaten:
    """Queue a beat that could not be written for `error`, but that may have been: as `sent`, over `before`."""
    from agentcoord.operations.outbox import queue  # of no use to commands that cannot queue, and those are most
    from agentcoord.protocol.outbox import LateBeat

    chance, event = context.random(ID_BYTES), None
    change = phase_change(before, beat)
    if change is not None and before is not None:
        said, extra = said_of_phase(change, beat, before)
        event = build_event(said, event_id(now, chance), context.identity, now, extra)
    await queue(context, LateBeat(beat, context.identity, now, chance.hex(), sent, event), error)
    return Beaten(record=sent or build_heartbeat(before, beat, context.identity, now), queued=True)
