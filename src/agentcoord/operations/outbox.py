"""Having a record wait for its backend, and sending it when that answers: once, and never over something newer."""

from collections.abc import Awaitable, Callable
from datetime import datetime

from msgspec.structs import replace

from agentcoord.errors import Conflict, Defect, StoreError, Unreadable
from agentcoord.operations.context import Context
from agentcoord.protocol.documents import canonical, is_document, stated
from agentcoord.protocol.events import build_event, event_id, said_of_phase
from agentcoord.protocol.heartbeats import build_heartbeat, phase_change
from agentcoord.protocol.instants import parse, whole
from agentcoord.protocol.outbox import Late, LateBeat, LateEvent, Taken, may_wait
from agentcoord.stores.base import Store

Note = Callable[[LateBeat], Awaitable[None]]

_ATTEMPTS = 3


async def queue(context: Context, late: Late, error: StoreError | None) -> None:
    """Have a record wait that could not be written for `error`; None: since others wait before it.

    Raises the error itself where it may not wait, StoreError where it cannot.
    """
    outbox = context.outbox
    if outbox is None or (error is not None and not may_wait(error)):
        raise error or StoreError(f"{late.path} cannot wait here")
    try:
        await outbox.put(late)
    except StoreError as fault:
        if error is None:
            raise
        raise StoreError(f"{error}; not queued: {fault}") from error
    why = str(error) if error is not None else "others wait before it"
    context.notices.append(f"notice: queued {late.path}: {why}; agent-coord outbox list shows what waits")


async def deliver(store: Store, late: Late, note: Note, renewed: datetime | None = None) -> LateEvent | None:
    """Send what waited. Gives the event that has to follow it, if any.

    What arrived with an attempt whose answer was lost is found to be there. `note` keeps what is about to be written,
    where it could not be told later that it was. `renewed` is of when the heartbeat is that a keeper renewed last: that
    one is newer in its times alone, and says nothing new. Raises CoordError, Taken for an event whose name has another
    content.
    """
    if isinstance(late, LateEvent):
        await _deliver_event(store, late)
        return None
    for _ in range(_ATTEMPTS - 1):
        try:
            return await _deliver_beat(store, late, note, renewed)
        except Conflict:
            continue
    return await _deliver_beat(store, late, note, renewed)


async def _deliver_event(store: Store, late: LateEvent) -> None:
    path = late.path
    try:
        await store.write(path, late.record, version=None, note=f"Record event {path}")
    except Conflict as error:
        try:
            stored = await store.read(path)
        except Unreadable as hidden:
            if hidden.defect == Defect.FORBIDDEN:  # a token that may only write: chance gives no name twice
                return
            raise
        if stored is None:  # just now removed, or not yet to be seen
            raise
        if canonical(stored.document) != canonical(late.record):
            raise Taken(f"another event stands at {path}") from error


async def _deliver_beat(store: Store, late: LateBeat, note: Note, renewed: datetime | None) -> LateEvent | None:
    stored = await store.read(late.path)
    before = stored.document if stored is not None and is_document(stored.document) else None
    beat, sent = late.beat, None if late.event is None else LateEvent(late.event)
    if before is not None and before == late.sent:
        return sent
    beaten = None if before is None else parse(before.get("updated_at"))
    outrun = beaten is not None and beaten > whole(late.at)
    if outrun and beaten != renewed:
        return sent  # what is newer stands; that the phase was another one then is a fact all the same
    record = build_heartbeat(before, beat, late.identity, late.at)
    if outrun and before is not None:
        record |= stated(before, ("updated_at", "expires_at"))
    if record == before:
        return sent
    event, change = None, phase_change(before, beat)
    if change is not None and before is not None:
        said, extra = said_of_phase(change, beat, before)
        since = late.since or late.at
        name = event_id(since, bytes.fromhex(late.chance))
        event = LateEvent(build_event(said, name, late.identity, since, extra))
        await note(replace(late, sent=record, event=event.record))
    version = None if stored is None else stored.version
    await store.write(late.path, record, version=version, note=f"Heartbeat {beat.agent_id}")
    return event
