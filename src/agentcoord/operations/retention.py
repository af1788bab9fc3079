"""Keeping state small: archive what is settled, compact what is told, delete what has expired (spec: cli §12).

Everything is copied before it is removed, and removed only as the version that was copied. So a run may end
anywhere: what it left is either still hot or already archived, and the next run goes on from there.
"""

from collections.abc import Awaitable, Callable, Iterator, Sequence
from datetime import datetime
from typing import cast

from msgspec import Struct

from agentcoord.errors import Conflict, StoreError
from agentcoord.operations.context import Context, contention, readable, require_object
from agentcoord.protocol.archive import has_expired, keeps, require_caps
from agentcoord.protocol.documents import Document, canonical, decode, is_document
from agentcoord.protocol.paths import ARCHIVABLE
from agentcoord.protocol.retention import (
    GOING_ON,
    Action,
    Archive,
    Compact,
    Delete,
    Event,
    Garbled,
    Policy,
    decode_beat,
    decode_claim,
    decode_event,
    first_source,
    meet,
    plan_archiving,
    plan_compactions,
)
from agentcoord.stores.base import Decode, Listing, Stored

_KINDS = {"claims": "a claim", "heartbeats": "a heartbeat", "batches": "a batch"}


class RetentionRequest(Struct, frozen=True):
    """Which families to look through, by what policy, and whether to do what is found due."""

    execute: bool
    policy: Policy = Policy()
    prefixes: tuple[str, ...] = ARCHIVABLE


class Retention(Struct, frozen=True):
    """What is due, sorted by path; with `execute` asked for, what was done."""

    request: RetentionRequest
    actions: tuple[Action, ...]
    dropped: tuple[Document, ...] = ()
    """The events that neither the live trail nor the archive has any more once it is done; only if that was asked."""


class _Plan(Struct, frozen=True):
    actions: tuple[Action, ...]
    sources: dict[str, Stored]
    """What was read at each path that an action removes."""


async def retain(
    context: Context,
    request: RetentionRequest,
    *,
    first: Callable[[], Awaitable[object]] | None = None,
    telling: bool = False,
) -> Retention:
    """Plan, and on request carry out, one round of retention. Raises StoreError at the first thing that fails.

    Nothing is written before the whole plan stands and each of its envelopes is known to fit. Then comes `first`,
    which sees everything that the plan removes; what it raises ends the round with nothing removed. `telling`: it is
    found out which events are dropped for good.
    """
    plan = await _plan(context, request)
    for action in plan.actions:
        if not isinstance(action, Delete):
            require_caps(action.archive_path, action.envelope)
    if request.execute:
        if first is not None:
            await first()
        await _execute(context, plan)
    return Retention(request=request, actions=plan.actions, dropped=tuple(_dropped(plan)) if telling else ())


async def _plan(context: Context, request: RetentionRequest) -> _Plan:
    now = context.now()
    planned: dict[str, Archive | Compact] = {}
    sources: dict[str, Stored] = {}
    for family in request.prefixes:
        if family == "events":
            continue
        found = await _listing(context, family, _decoder(family, now))
        for stored in map(readable, found.entries):
            if stored.document is GOING_ON:
                continue
            archiving = plan_archiving(stored.path, require_object(stored, _KINDS[family]), request.policy, now)
            if archiving is not None:
                planned[archiving.archive_path] = archiving
                sources[stored.path] = stored
    if "events" in request.prefixes:
        found = await _listing(context, "events", decode_event)
        events = [_event(stored, sources) for stored in map(readable, found.entries)]
        compactions = plan_compactions(events, request.policy, now)
        if found.filtered:
            compactions = await _seen_whole(context, compactions)
        planned |= {compaction.archive_path: compaction for compaction in compactions}
    actions: list[Action] = []
    # All envelopes, one at a time: what expires does so whichever families are looked through, and the archive
    # is larger than what it is compared with.
    for stored, envelope in await _records(context, "archive", "an archive"):
        action = meet(stored.path, envelope, planned.pop(stored.path, None), now)
        if action is not None:
            actions.append(action)
            sources[stored.path] = stored
    actions += planned.values()
    return _Plan(tuple(sorted(actions, key=first_source)), sources)


async def _listing(context: Context, prefix: str, decode: Decode = decode) -> Listing:
    listing = await context.store.list(prefix, decode=decode)
    if listing.filtered and prefix != "archive":
        context.notices.append(f"notice: this token sees only a part of {prefix}; the rest was not looked at")
    return listing


async def _records(context: Context, prefix: str, kind: str) -> Iterator[tuple[Stored, Document]]:
    found = await _listing(context, prefix)
    return ((stored, require_object(stored, kind)) for stored in map(readable, found.entries))


async def _seen_whole(context: Context, compactions: Sequence[Compact]) -> list[Compact]:
    """Leave out the lanes of batches that a token sees in part: what it does not see would lose its closing."""
    hidden: dict[str, bool] = {}
    for compaction in compactions:
        for above in {path.rpartition("/")[0] for path in compaction.source_paths} - hidden.keys():
            listing = await context.store.list(above, decode=_nothing)
            hidden[above] = listing.filtered
            if listing.filtered:
                context.notices.append(f"notice: this token sees only a part of {above}; its lanes were left")
    return [each for each in compactions if not any(hidden[path.rpartition("/")[0]] for path in each.source_paths)]


def _nothing(data: bytes) -> object:
    del data


def _decoder(family: str, now: datetime) -> Decode:
    if family == "claims":
        return decode_claim
    return (lambda data: decode_beat(data, now)) if family == "heartbeats" else decode


def _event(stored: Stored, sources: dict[str, Stored]) -> Event:
    sources[stored.path] = stored
    if isinstance(stored.document, Garbled):
        return Event(stored.path, stored.document.document, garbled=True)
    return Event(stored.path, require_object(stored, "an event"))


def _dropped(plan: _Plan) -> Iterator[Document]:
    """Walk the events of a plan of which no copy stays behind."""
    for action in plan.actions:
        if isinstance(action, Compact):
            kept = {canonical(record) for record in action.envelope["records"]}
            told = [plan.sources[path].document for path in action.source_paths]
            yield from (event for event in told if is_document(event) and canonical(event) not in kept)
        elif isinstance(action, Delete) and action.source_path.startswith("archive/events/"):
            envelope = plan.sources[action.source_path].document
            if is_document(envelope):
                records = cast("object", envelope.get("records"))
                listed = cast("list[object]", records) if isinstance(records, list) else []
                yield from filter(is_document, [*listed, cast("object", envelope.get("data"))])


# Doing it ------------------------------------------------------------------------------------------


async def _execute(context: Context, plan: _Plan) -> None:
    """Carry out a plan: single records, then events, then what has expired."""
    for action in plan.actions:
        if isinstance(action, Archive):
            await _archive(context, action, plan)
    for action in plan.actions:
        if isinstance(action, Compact):
            await _compact(context, action, plan)
    for action in plan.actions:
        if isinstance(action, Delete):
            await _expire(context, action.source_path, plan, "gc archive changed")


async def _archive(context: Context, action: Archive, plan: _Plan) -> None:
    if action.replaces:
        await _expire(context, action.archive_path, plan, "gc archive replacement changed")
    note = f"Archive {action.source_path}"
    await _keep(context, action, note, "archive destination conflict")
    await _remove(context, action.source_path, plan, note, "gc source changed")


async def _compact(context: Context, action: Compact, plan: _Plan) -> None:
    note = "Compact terminal events"
    await _keep(context, action, note, "event compaction destination conflict")
    for path in action.removal:
        await _remove(context, path, plan, note, "gc event changed")


async def _keep(context: Context, action: Archive | Compact, note: str, otherwise: str) -> None:
    """Make sure that the archive has the copy: now, or from a run that was cut off or goes on beside this one.

    A copy whose time is over, as of a run that was cut off long ago, is made anew before its sources go: any round may
    delete it.
    """
    path = action.archive_path
    try:
        await context.store.write(path, action.envelope, version=None, note=note)
    except Conflict:
        found = await context.store.read(path)
        if found is None or not keeps(found.document, action.envelope):
            raise StoreError(f"{otherwise} at {path}") from None
        if has_expired(path, found.document, context.now()):
            try:
                await context.store.write(path, action.envelope, version=found.version, note=note)
            except Conflict as conflict:
                raise contention(f"gc archive changed at {path}", conflict) from conflict


async def _expire(context: Context, path: str, plan: _Plan, otherwise: str) -> None:
    await _remove(context, path, plan, f"Delete expired archive {path}", otherwise)


async def _remove(context: Context, path: str, plan: _Plan, note: str, otherwise: str) -> None:
    try:
        await context.store.delete(path, version=plan.sources[path].version, note=note)
    except Conflict as conflict:
        raise contention(f"{otherwise} at {path}", conflict) from conflict
