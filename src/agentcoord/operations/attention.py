"""Asking for a person's attention, settling it, and seeing what is asked (spec: cli §11)."""

from collections.abc import Callable

from msgspec import Struct

from agentcoord.errors import Conflict, Defect, StoreError, TooMany, Unreadable, UsageError
from agentcoord.operations.context import Context
from agentcoord.protocol.attention import (
    Key,
    decide_resolve,
    decide_upsert,
    require_generation,
    require_key,
    require_stored,
    urgency,
)
from agentcoord.protocol.documents import Document
from agentcoord.protocol.paths import attention_prefix
from agentcoord.protocol.records import ATTENTION_SCAN
from agentcoord.stores.base import Stored

MOST_LISTED = 100
"""Requests given in one answer, unless fewer are asked for."""

QUEUE_SCAN = 10_000
"""Requests that may be looked at to find the most urgent: nobody ever deletes one, so settled ones add up."""

_ROUNDS = 2


class ListRequest(Struct, frozen=True):
    """Whose requests to list, and how many at most."""

    workspace: str
    repository: str
    include_resolved: bool = False
    limit: int = MOST_LISTED


class QueueRequest(Struct, frozen=True):
    """Whose requests to show a person, None everybody's, and how many at most."""

    workspace: str | None = None
    repository: str | None = None
    include_resolved: bool = False
    limit: int = MOST_LISTED


class Asked(Struct, frozen=True):
    """A request as it now stands."""

    record: Document


class Listed(Struct, frozen=True):
    """Requests, the most urgent first; `truncated` tells that there are more than `limit`."""

    records: list[Document]
    limit: int
    truncated: bool


class Queue(Struct, frozen=True):
    """What needs a person, the most urgent first, settled requests last; `open` counts all that wait.

    `truncated` tells that there are more than `limit`; `missing` says what could not be read.
    """

    records: list[Document]
    open: int
    limit: int
    truncated: bool
    missing: list[str]


async def upsert_attention(context: Context, wanted: Document) -> Asked:
    """Ask for attention, or refresh or reopen what was asked. `wanted` is a checked open record.

    Raises StoreError when a newer source, a resolution or a later refresh stands against it, and when
    the stored record cannot be trusted.
    """
    key = Key(wanted["workspace"], wanted["repository"], wanted["id"])

    def decide(stored: Document | None) -> Document:
        return decide_upsert(wanted, stored)

    return await _change(context, key.path, decide, note=f"Upsert attention {key.id}")


async def resolve_attention(context: Context, key: Key, generation: int) -> Asked:
    """Settle a request on behalf of a source's generation; one that is settled already is left as it is.

    Raises UsageError for a malformed key or generation, StoreError when nothing is there, for an older
    generation, and when the stored record cannot be trusted.
    """
    _require(key)
    require_generation(generation)

    def decide(stored: Document | None) -> Document | None:
        if stored is None:
            raise _absent(key)
        return decide_resolve(stored, generation, context.now())

    return await _change(context, key.path, decide, note=f"Resolve attention {key.id}")


async def get_attention(context: Context, key: Key) -> Asked:
    """Read one request. Raises UsageError for a malformed key, StoreError when nothing sound is there."""
    _require(key)
    found = await _read(context, key.path)
    if found is None:
        raise _absent(key)
    return Asked(record=found[0])


async def list_attention(context: Context, request: ListRequest) -> Listed:
    """List the requests of a workspace and repository, open ones only unless resolved ones are asked for.

    All or nothing: raises StoreError when a scoped token hides some, when there are more than may be
    looked at, and at the first that cannot be trusted. Raises UsageError for a malformed request.
    """
    require_key({"workspace": request.workspace, "repository": request.repository})
    if not 1 <= request.limit <= MOST_LISTED:
        raise UsageError(f"--limit must be between 1 and {MOST_LISTED}")
    listing = await context.store.list(attention_prefix(request.workspace, request.repository), at_most=ATTENTION_SCAN)
    if listing.filtered:
        raise StoreError("attention list is filtered and incomplete for the scoped token")
    found = [_sound(entry) for entry in listing.entries]
    wanted = [record for record in found if request.include_resolved or record["status"] == "open"]
    wanted.sort(key=urgency)
    return Listed(records=wanted[: request.limit], limit=request.limit, truncated=len(wanted) > request.limit)


async def read_queue(context: Context, request: QueueRequest) -> Queue:
    """Find what waits for a person, in every workspace and repository that is not left out.

    One request that cannot be trusted does not hide the others: it is among what is missing. Raises UsageError for a
    malformed request, StoreError when nothing can be listed or there are more than QUEUE_SCAN.
    """
    require_key({"workspace": request.workspace} if request.workspace is not None else {})
    require_key({"repository": request.repository} if request.repository is not None else {})
    if not 1 <= request.limit <= QUEUE_SCAN:
        raise UsageError(f"--limit must be between 1 and {QUEUE_SCAN}")
    try:
        listing = await context.store.list(_queue_prefix(request), at_most=QUEUE_SCAN)
    except TooMany as error:
        raise TooMany(f"{error}; ask for less with --workspace and --repo") from error
    found: list[Document] = []
    missing = ["this token sees only a part of attention"] if listing.filtered else []
    for entry in listing.entries:
        try:
            record = _sound(entry)
        except StoreError as error:
            missing.append(str(error))
        else:
            if request.repository in (None, record["repository"]):
                found.append(record)
    waiting = sum(record["status"] == "open" for record in found)
    wanted = [record for record in found if request.include_resolved or record["status"] == "open"]
    wanted.sort(key=lambda record: (record["status"] != "open", urgency(record)))
    return Queue(
        records=wanted[: request.limit],
        open=waiting,
        limit=request.limit,
        truncated=len(wanted) > request.limit,
        missing=missing,
    )


def _queue_prefix(request: QueueRequest) -> str:
    if request.workspace is None:
        return "attention"
    if request.repository is None:
        return f"attention/{request.workspace}"
    return attention_prefix(request.workspace, request.repository)


async def _change(
    context: Context, path: str, decide: Callable[[Document | None], Document | None], note: str
) -> Asked:
    """Store what is decided from what is there, looking once more after a lost race. Raises StoreError."""
    lost: Conflict | None = None
    for _ in range(_ROUNDS):
        found = await _read(context, path)
        record = decide(found[0] if found else None)
        if record is None:
            return Asked(record=found[0] if found else {})
        try:
            await context.store.write(path, record, version=found[1].version if found else None, note=note)
        except Conflict as error:
            lost = error
            continue
        context.asked.append(record)
        return Asked(record=record)
    raise StoreError(f"state changed while writing {path}") from lost


async def _read(context: Context, path: str) -> tuple[Document, Stored] | None:
    """Read a record that must be sound. Raises StoreError."""
    try:
        stored = await context.store.read(path)
    except Unreadable as error:
        raise _told(error) from error
    return None if stored is None else (require_stored(path, stored.document), stored)


def _sound(entry: Stored | Unreadable) -> Document:
    """Give the record of an entry. Raises StoreError when it is not to be trusted."""
    if isinstance(entry, Unreadable):
        raise _told(entry) from entry
    return require_stored(entry.path, entry.document)


def _told(error: Unreadable) -> StoreError:
    """Say of a record that is no JSON what the other commands of this family say of one that is no request."""
    if error.defect is not Defect.MALFORMED:
        return error
    reason = str(error).removeprefix("state unreadable: ").removesuffix(f" at {error.path}")
    return StoreError(f"malformed stored JSON at {error.path}: {reason}")


def _require(key: Key) -> None:
    require_key({"workspace": key.workspace, "id": key.id, "repository": key.repository})


def _absent(key: Key) -> StoreError:
    return StoreError(f"attention record not found: {key.id}")
