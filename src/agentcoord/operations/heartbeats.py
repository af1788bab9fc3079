"""Saying that an agent is still there (spec: cli §5)."""

from msgspec import Struct

from agentcoord.errors import Conflict, StoreError, UsageError
from agentcoord.operations.context import Context
from agentcoord.operations.events import emit
from agentcoord.protocol.documents import Document, is_document
from agentcoord.protocol.events import said_of_phase
from agentcoord.protocol.heartbeats import Beat, build_heartbeat, phase_change
from agentcoord.protocol.paths import heartbeat_path, require_segment
from agentcoord.protocol.statuses import unknown_warning

_ATTEMPTS = 2


class Beaten(Struct, frozen=True):
    """The heartbeat as it now stands."""

    record: Document


async def heartbeat(context: Context, beat: Beat) -> Beaten:
    """Upsert an agent's heartbeat, keeping what still belongs to its work.

    Raises UsageError for an invalid beat, StoreError when it lost two races in a row.
    """
    require_segment(beat.agent_id, "agent-id")
    if beat.ttl <= 0:
        raise UsageError("--ttl must be positive")
    if not beat.status.known:
        context.notices.append(unknown_warning(beat.status))
    path = heartbeat_path(beat.agent_id)
    for _ in range(_ATTEMPTS):
        stored = await context.store.read(path)
        before = stored.document if stored is not None and is_document(stored.document) else None
        record = build_heartbeat(before, beat, context.identity, context.now())
        try:
            await context.store.write(
                path, record, version=stored.version if stored else None, note=f"Heartbeat {beat.agent_id}"
            )
        except Conflict:
            continue
        change = phase_change(before, beat)
        if change is not None and before is not None:
            await emit(context, *said_of_phase(change, beat, before))
        return Beaten(record=record)
    raise StoreError(f"state changed while writing {path}")
