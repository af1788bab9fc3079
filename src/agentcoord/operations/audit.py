"""Auditing a batch's trail before it is closed out (spec: cli §9). Read-only."""

from typing import Literal

from msgspec import Struct

from agentcoord.errors import CoordError
from agentcoord.operations.context import Context, readable
from agentcoord.protocol.audit import LaneAudit, audit_batch
from agentcoord.protocol.documents import is_document
from agentcoord.protocol.paths import batch_path, events_prefix, require_segment

Verdict = Literal["complete", "incomplete", "unknown"]


class Audited(Struct, frozen=True):
    """The verdict on a batch; `reason` says why it is unknown."""

    batch_id: str
    verdict: Verdict
    lanes: tuple[LaneAudit, ...] = ()
    reason: str | None = None


async def audit(context: Context, batch_id: str) -> Audited:
    """Audit one batch. Never raises for state: what cannot be read is a verdict of unknown."""
    try:
        require_segment(batch_id, "batch-id")
        stored = await context.store.read(batch_path(batch_id))
        if stored is None:
            return _unknown(batch_id, f"batch {batch_id} is not registered")
        batch = stored.document
        if not is_document(batch):
            return _unknown(batch_id, f"batch {batch_id} state is not an object")
        if not isinstance(batch.get("lanes"), list) or not batch["lanes"]:
            return _unknown(batch_id, f"batch {batch_id} registers no lanes")
        listing = await context.store.list(events_prefix(batch_id))
        events = [readable(entry).document for entry in listing.entries]
    except CoordError as error:
        return _unknown(batch_id, f"coordination state unreadable: {error}")
    if listing.filtered:
        return _unknown(batch_id, f"event trail for {batch_id} is filtered by a scoped token")
    lanes = tuple(audit_batch(batch_id, batch, events))
    verdict: Verdict = "complete" if all(lane.complete for lane in lanes) else "incomplete"
    return Audited(batch_id=batch_id, verdict=verdict, lanes=lanes)


def _unknown(batch_id: str, reason: str) -> Audited:
    return Audited(batch_id=batch_id, verdict="unknown", reason=reason)
