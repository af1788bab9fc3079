"""Closing a lane: reserve its one closing event, settle the claim, complete the batch (spec: cli §6.3)."""

from collections.abc import Mapping
from typing import Any

from msgspec import Struct

from agentcoord.errors import Conflict, StoreError, UsageError
from agentcoord.operations.context import Context, read_object, readable
from agentcoord.protocol.audit import admits
from agentcoord.protocol.batches import UNKNOWN, Lane
from agentcoord.protocol.claims import RELEASED
from agentcoord.protocol.closeout import (
    apply_closing,
    build_closing_event,
    close_lane,
    closing_event_id,
    closing_of,
    contradiction,
    require_payload,
    require_terminal,
    resolve_lane,
    stranger,
)
from agentcoord.protocol.documents import Document, is_document
from agentcoord.protocol.paths import (
    batch_path,
    claim_path,
    event_path,
    events_prefix,
    require_segment,
)

_ROUNDS = 3

StoredClaim = tuple[Document, str, Document]
"""A claim as stored, its version, and the released record that should replace it."""


class Closed(Struct, frozen=True):
    """What closing a lane changed. Nothing at all, when it was closed this way before."""

    event: Document
    event_created: bool
    batch_changed: bool
    claim_changed: bool = False
    claim: Document | None = None

    @property
    def changed(self) -> bool:
        """Tell whether anything was written."""
        return self.event_created or self.batch_changed or self.claim_changed


async def record_closing(context: Context, batch_id: str, payload: Document) -> Closed:
    """Close a lane without releasing a claim, for hosts that keep the two apart.

    Raises UsageError for an invalid or conflicting closeout, StoreError when the state is uncertain.
    """
    require_segment(batch_id, "batch-id")
    require_terminal(payload.get("terminal"))
    require_payload(payload)
    return await close(context, batch_id, payload, claim=None)


async def close(context: Context, batch_id: str, payload: Document, *, claim: StoredClaim | None) -> Closed:
    """Close the one lane that a checked payload means, in an order that a retry can take up anywhere."""
    require_segment(batch_id, "batch-id")
    found = await read_object(context.store, batch_path(batch_id), "a batch")
    if found is None:
        raise UsageError(f"batch {batch_id} not found for terminal closeout")
    batch = found[0]
    lane = resolve_lane(batch, batch_id, payload)
    await _require_authority(context, batch_id, batch, lane, payload)
    event, created = await _reserve(context, batch_id, lane, payload)
    claim_changed, record = False, None
    if claim is not None:
        claim_changed, record = await _settle_claim(context, payload, claim, event)
    batch_changed = await _complete_batch(context, batch_id, lane, event)
    return Closed(
        event=event, event_created=created, batch_changed=batch_changed, claim_changed=claim_changed, claim=record
    )


async def _require_authority(
    context: Context, batch_id: str, batch: Mapping[str, Any], lane: Lane, payload: Document
) -> None:
    """Let the lane's owner close it, and the agent that holds its claim by a history that admits it.

    A closeout that began before and was cut off is not judged again: its event was admitted then and is
    authoritative. Whatever came into the trail since, and whoever has the claim or the lane by now, it
    has to be possible to finish writing it.
    """
    agent_id = str(payload["agent_id"])
    if lane.owner == agent_id != UNKNOWN:
        return
    begun = await context.store.read(event_path(batch_id, closing_event_id(lane.name)))
    if begun is not None and _repeats(begun.document, payload):
        return
    if not await _is_claimant(context, batch_id, payload):
        raise stranger(lane)
    listing = await context.store.list(events_prefix(batch_id))
    events = [readable(entry).document for entry in listing.entries]
    if listing.filtered:
        raise StoreError(f"event trail for {batch_id} is filtered by a scoped token")
    if not admits(batch_id, batch, events, lane, agent_id):
        raise stranger(lane)


def _repeats(event: object, payload: Document) -> bool:
    return is_document(event) and closing_of(event).agrees(closing_of(payload), machine_counts=False)


async def _is_claimant(context: Context, batch_id: str, payload: Document) -> bool:
    found = await read_object(context.store, claim_path(payload["repo"], payload["target"]), "a claim")
    expected = {"repo": payload["repo"], "target": payload["target"], "batch_id": batch_id}
    expected["agent_id"] = payload["agent_id"]
    return found is not None and all(found[0].get(field) == value for field, value in expected.items())


async def _reserve(context: Context, batch_id: str, lane: Lane, payload: Document) -> tuple[Document, bool]:
    event = build_closing_event(payload, lane, batch_id, context.identity, context.now())
    path = event_path(batch_id, event["event_id"])
    try:
        await context.store.write(path, event, version=None, note=f"Close lane {batch_id} {lane.name}")
    except Conflict:
        found = await read_object(context.store, path, "an event")
        if found is None:
            raise StoreError(f"terminal closeout reservation disappeared at {path}") from None
        if not closing_of(found[0]).agrees(closing_of(event), machine_counts=False):
            raise contradiction(lane) from None
        return found[0], False
    return event, True


async def _settle_claim(
    context: Context, payload: Document, claim: StoredClaim, event: Document
) -> tuple[bool, Document]:
    stored, version, released = claim
    if _settled(stored, event):
        return False, stored
    record = apply_closing(released, event)
    item = f"{payload['repo']}#{payload['target']}"
    path = claim_path(payload["repo"], payload["target"])
    try:
        await context.store.write(path, record, version=version, note=f"Release {item}")
    except Conflict:
        found = await read_object(context.store, path, "a claim")
        if found is not None and _settled(found[0], event):
            return False, found[0]
        raise
    return True, record


def _settled(claim: Document, event: Document) -> bool:
    return claim.get("status") == RELEASED and closing_of(claim).agrees(closing_of(event), machine_counts=True)


async def _complete_batch(context: Context, batch_id: str, lane: Lane, event: Document) -> bool:
    path = batch_path(batch_id)
    for _ in range(_ROUNDS):
        found = await read_object(context.store, path, "a batch")
        if found is None:
            raise UsageError(f"batch {batch_id} not found for terminal closeout")
        batch, entry = found
        resolve_lane(batch, batch_id, event)
        record = close_lane(batch, lane, event, context.now())
        if record is None:
            return False
        try:
            await context.store.write(path, record, version=entry.version, note=f"Close lane in batch {batch_id}")
        except Conflict:
            continue
        return True
    raise StoreError(f"batch {batch_id} changed repeatedly during terminal closeout")
