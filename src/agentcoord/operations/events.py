"""Recording events: append-only, named by time and chance, never overwritten (spec: cli §6.1)."""

from msgspec import Struct

from agentcoord.errors import Conflict, CoordError, Defect, StoreError, Unreadable
from agentcoord.operations.context import Context
from agentcoord.protocol.documents import Document
from agentcoord.protocol.events import ID_BYTES, Said, build_event, event_id, require_event
from agentcoord.protocol.paths import batch_lane, event_path
from agentcoord.protocol.statuses import unknown_warning

_ATTEMPTS = 3


class Recorded(Struct, frozen=True):
    """An event that is now part of the trail, or will be: then it is `queued`."""

    record: Document
    queued: bool = False


async def record_event(context: Context, said: Said, extra: Document | None = None) -> Recorded:
    """Record an ordinary event. Nothing is read for it, so a token that may only write will do, unless something
    has its name already: what stands there just as it would be written is the work of this very command, which was
    begun in a daemon and is run again with the same instant and chance. So is, in such a second run, what this token
    may not read: chance gives no name of a stranger's twice.

    Where the context has an outbox, an event that the backend says neither yes nor no to is queued, and so is one whose
    batch has something in there: none overtakes another. Raises UsageError for an invalid event, StoreError when it is
    not certain to be stored.
    """
    require_event(said)
    if said.status is not None and not said.status.known:
        context.notices.append(unknown_warning(said.status))
    behind = context.outbox is not None and await context.outbox.holds(batch_lane(said.batch_id))
    for _ in range(_ATTEMPTS):
        now = context.now()
        name = event_id(now, context.random(ID_BYTES))
        record = build_event(said, name, context.identity, now, extra)
        path = event_path(said.batch_id, name)
        if behind:
            return await _queued(context, record, None)
        try:
            await context.store.write(path, record, version=None, note=f"Record event {said.batch_id} {name}")
        except Conflict:
            if not await _stands(context, path, record):
                continue
        except StoreError as error:
            if context.outbox is None:
                raise
            return await _queued(context, record, error)
        return Recorded(record=record)
    raise StoreError(f"event id collision while recording event for {said.batch_id}")


async def _queued(context: Context, record: Document, error: StoreError | None) -> Recorded:
    from agentcoord.operations.outbox import queue  # of no use to commands that cannot queue, and those are most
    from agentcoord.protocol.outbox import LateEvent

    await queue(context, LateEvent(record), error)
    return Recorded(record=record, queued=True)


async def _stands(context: Context, path: str, record: Document) -> bool:
    try:
        stored = await context.store.read(path)
    except Unreadable as error:
        return context.again and error.defect == Defect.FORBIDDEN
    except CoordError:  # then it is not known to be ours
        return False
    return stored is not None and stored.document == record


async def emit(context: Context, said: Said, extra: Document | None = None) -> None:
    """Record a lifecycle event beside a write that already happened: a failure only leaves a warning."""
    try:
        await record_event(context, said, extra)
    except CoordError as error:
        context.notices.append(f"warning: {said.type} event not recorded: {error}")
