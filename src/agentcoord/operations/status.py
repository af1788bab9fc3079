"""Looking at the state: everything, one work item, or one batch (spec: cli §8).

A section that could not be read in full says so in a note; a note is not an error. What would make
the answer wrong rather than incomplete is raised.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from msgspec import Struct, field

from agentcoord.errors import Defect, Rejected, StoreError, Unreadable, UsageError
from agentcoord.operations.context import Context, objects, read_object, readable, require_object
from agentcoord.operations.projection import (
    Beat,
    Beats,
    Manifest,
    RecordRow,
    Row,
    archive_row,
    claim_row,
    event_row,
    heartbeat_row,
    lane_states,
    manifest,
    read_batch,
    read_claim_row,
    read_event_row,
    read_heartbeat_row,
)
from agentcoord.protocol.batches import UNKNOWN, Lane, split_ref
from agentcoord.protocol.documents import Document, decode, is_document, text
from agentcoord.protocol.paths import (
    batch_path,
    claim_key,
    claim_path,
    events_prefix,
    heartbeat_path,
    is_segment,
    require_repo,
    require_segment,
    stem,
)
from agentcoord.protocol.workitems import spellings
from agentcoord.stores.base import Decode, Listing, Stored

NOT_IN_TARGET = "not checked in target scope"
NOT_IN_BATCH = "not checked in batch scope"


class StatusRequest(Struct, frozen=True):
    """Which part of the state to look at: all of it, unless a target or a batch is named."""

    repo: str | None = None
    target: str | None = None
    batch_id: str | None = None
    include_archived: bool = False


class Status(Struct):
    """What was seen, section by section. `archive` is None unless it was asked for."""

    scope: Document
    notes: dict[str, str] = field(default_factory=dict[str, str])
    claims: list[Row] = field(default_factory=list[Row])
    heartbeats: list[Row] = field(default_factory=list[Row])
    batches: list[Row] = field(default_factory=list[Row])
    events: list[Row] = field(default_factory=list[Row])
    archive: list[Row] | None = None

    @property
    def degraded(self) -> list[str]:
        """List what went unchecked, each note once."""
        return list(dict.fromkeys(self.notes.values()))

    def note(self, section: str, *texts: str) -> None:
        """Say that a section is not the whole truth."""
        said = [text for text in (self.notes.get(section), *texts) if text]
        if said:
            self.notes[section] = "; ".join(said)


def require_scope(request: StatusRequest) -> None:
    """Check which part of the state is meant. Raises UsageError."""
    if request.batch_id is not None and (request.repo is not None or request.target is not None):
        raise UsageError("--batch-id cannot be combined with --repo or --target")
    scoped = any(value is not None for value in (request.repo, request.target, request.batch_id))
    if request.include_archived and scoped:
        raise UsageError("--include-archived is only valid for unscoped status")
    item = (request.repo, request.target)
    if item != (None, None) and not all(item):
        raise UsageError(f"missing required --{'target' if request.repo else 'repo'}")


async def status(context: Context, request: StatusRequest) -> Status:
    """Look at the state in the scope asked for.

    Raises UsageError for a bad scope, StoreError when the backend or a record the answer rests on
    cannot be read.
    """
    require_scope(request)
    if request.batch_id is not None:
        require_segment(request.batch_id, "batch-id")
        return await _of_batch(context, request.batch_id)
    if request.repo is not None and request.target is not None:
        require_repo(request.repo, "target repo")
        require_segment(request.target, "target")
        return await _of_target(context, request.repo, request.target)
    return await _of_all(context, include_archived=request.include_archived)


# Everything ----------------------------------------------------------------------------------------


async def _of_all(context: Context, *, include_archived: bool) -> Status:
    seen = Status(scope={"kind": "all"})
    now = context.now()
    claims = _rows(await _listing(context, "claims", seen, decode=read_claim_row), "a claim")
    seen.claims = [claim_row(path, claim) for path, claim in claims]
    beats = Beats()
    broken: list[str] = []
    for entry in await _listing(context, "heartbeats", seen, decode=read_heartbeat_row):
        stored = entry if isinstance(entry, Stored) else readable(entry)
        beat = stored.document
        if isinstance(beat, Beat):
            seen.heartbeats.append(beat.row(stored.path, now))
        else:
            broken.append(stem(stored.path))
    beats.add(*seen.heartbeats)
    if broken:
        seen.note("heartbeats", f"heartbeat records unreadable: {', '.join(sorted(broken))}")
    beats.unreadable += broken
    batches = list(_batches(await _listing(context, "batches", seen, decode=read_batch)))
    _show_batches(seen, batches, beats, lane_states(batches, beats))
    await _show_events(context, "events", seen)
    if include_archived:
        envelopes = objects(await _listing(context, "archive", seen), "an archive")
        seen.archive = [archive_row(path, envelope) for path, envelope in envelopes]
    return seen


async def _listing(
    context: Context, prefix: str, seen: Status, section: str | None = None, *, decode: Decode = decode
) -> Iterable[Stored | Unreadable]:
    try:
        listing: Listing = await context.store.list(prefix, decode=decode)
    except Unreadable as error:
        if error.defect is not Defect.FORBIDDEN:
            raise
        seen.note(section or prefix, f"{prefix} not readable by scoped token")
        return ()
    except Rejected as error:
        if (section or prefix) != "events" or not error.unsupported:
            raise
        seen.note("events", "event state not supported by backend")
        return ()
    if listing.filtered:
        seen.note(section or prefix, f"{prefix} filtered by scoped token")
    return listing.entries


def _rows(entries: Iterable[Stored | Unreadable], kind: str) -> Iterator[tuple[str, Document | RecordRow]]:
    """Walk a listing that was read as rows. Raises StoreError at the first record that is no object."""
    for entry in entries:
        stored = entry if isinstance(entry, Stored) else readable(entry)
        row = stored.document
        yield stored.path, row if isinstance(row, RecordRow) else require_object(stored, kind)


def _batches(entries: Iterable[Stored | Unreadable]) -> Iterator[tuple[str, Manifest]]:
    for entry in entries:
        stored = readable(entry)
        batch = stored.document
        yield stored.path, batch if isinstance(batch, Manifest) else manifest(require_object(stored, "a batch"))


async def _show_events(context: Context, prefix: str, seen: Status) -> None:
    events = _rows(await _listing(context, prefix, seen, "events", decode=read_event_row), "an event")
    seen.events = [event_row(path, event) for path, event in events]
    seen.events.sort(key=lambda row: str(row["at"]))  # a listing comes sorted by path, and sorting keeps that order


def _show_batches(
    seen: Status, batches: Sequence[tuple[str, Manifest]], beats: Beats, states: Mapping[str, str]
) -> None:
    misnamed: list[str] = []
    for path, batch in batches:
        row = batch.row(path, beats, states)
        seen.batches.append(row)
        misnamed += [lane["name"] for lane in row["lanes"] if ":" in lane["name"]]
    if misnamed:
        seen.note("lanes", f"malformed lane names: {', '.join(misnamed)}")


# One work item -------------------------------------------------------------------------------------


async def _of_target(context: Context, repo: str, target: str) -> Status:
    seen = Status(scope={"kind": "target", "repo": repo, "target": target})
    seen.note("batches", NOT_IN_TARGET)
    seen.note("events", NOT_IN_TARGET)
    read, notes = await claims_on(context, repo, target)
    claims = _each_once(read)
    seen.note("claims", *notes)
    for path, document, _ in claims:
        seen.claims.append(claim_row(path, document))
    await _holders_of(context, claims, seen)
    return seen


Claim = tuple[str, Document, bool]
"""Path, record, and whether it stands under the spelling that was asked for."""


async def claims_on(context: Context, repo: str, target: str) -> tuple[list[Claim], list[str]]:
    """Read the claims on a work item under each of its spellings, with notes on those that cannot be read.

    Raises Unreadable for the one that was asked for, StoreError.
    """
    found: list[Claim] = []
    notes: list[str] = []
    for spelling in spellings(target):
        path, asked = claim_path(repo, spelling), spelling == target
        if not asked and not is_segment(spelling):
            continue
        try:
            read = await read_object(context.store, path, "a claim")
        except Unreadable as error:
            if asked:
                raise
            notes.append(f"{path} {error.defect.value}; a claim there would not be reported")
            continue
        if read is not None:
            found.append((path, read[0], asked))
    return found, notes


def _each_once(claims: Iterable[Claim]) -> list[Claim]:
    """Leave out what shows a lease that was shown before."""
    found: list[Claim] = []
    leases: set[tuple[Any, ...]] = set()
    for path, document, asked in claims:
        lease = _lease(path, document)
        if lease is None or lease not in leases:
            found.append((path, document, asked))
        if lease is not None:
            leases.add(lease)
    return found


def _lease(path: str, document: Document) -> tuple[Any, ...] | None:
    if document.get("target") is None or document.get("agent_id") is None:
        return None
    return (str(document.get("repo") or claim_key(path)[0]), str(document["target"]), str(document["agent_id"]))


async def _holders_of(context: Context, claims: Sequence[Claim], seen: Status) -> None:
    shown: dict[str, str | None] = {}
    notes: list[str] = []
    for path, document, asked in claims:
        holder = text(document, "agent_id")
        where = ""
        if len(claims) > 1:
            where = f" for {document.get('target') or claim_key(path)[1]}" + (f" ({holder})" if holder else "")
        if holder is None:
            notes.append(f"claim holder not set{where}")
            continue
        if holder not in shown:
            shown[holder] = await _holder_note(context, holder, seen, asked=asked)
        fault = shown[holder]
        if fault is not None:
            notes.append(f"holder heartbeat {fault}{where}")
    seen.note("heartbeats", *notes)


async def _holder_note(context: Context, holder: str, seen: Status, *, asked: bool) -> str | None:
    try:
        row = await _beat_of(context, holder)
    except StoreError as error:
        malformed = isinstance(error, Unreadable) and error.defect is Defect.MALFORMED
        if asked and not malformed:
            raise
        return "unreadable"
    if isinstance(row, str):
        return row
    seen.heartbeats.append(row)
    return None


async def _beat_of(context: Context, agent_id: str) -> Row | str:
    """Read one agent's heartbeat as a row, or say what is wrong with it."""
    if not is_segment(agent_id):
        return "not found"
    path = heartbeat_path(agent_id)
    stored = await context.store.read(path)
    if stored is None:
        return "not found"
    if not is_document(stored.document):
        return "unreadable"
    if stored.document.get("agent_id") not in (None, agent_id):
        return "mismatched"
    return heartbeat_row(path, stored.document, context.now())


# One batch -----------------------------------------------------------------------------------------


async def _of_batch(context: Context, batch_id: str) -> Status:
    seen = Status(scope={"kind": "batch", "batch_id": batch_id})
    seen.note("claims", NOT_IN_BATCH)
    path = batch_path(batch_id)
    found = await read_object(context.store, path, "a batch")
    if found is None:
        seen.note("batches", "batch not found")
    else:
        await _show_batch(context, path, found[0], batch_id, seen)
    await _show_events(context, events_prefix(batch_id), seen)
    return seen


async def _show_batch(context: Context, path: str, batch: Document, batch_id: str, seen: Status) -> None:
    beats, plan = Beats(), manifest(batch)
    lanes = plan.lanes
    for owner in dict.fromkeys(lane.owner for lane in lanes):
        await _look_at_owner(context, owner, beats)
    known: list[tuple[str, Manifest]] = [(path, plan)]
    refs = await _resolve(context, lanes, batch_id, known, beats)
    seen.heartbeats.extend(beats.rows())
    # A lane that no dependency can name is listed as such; its owner is not missed on top of that.
    named = [lane.owner for lane in lanes if ":" not in lane.name] + refs.owners
    for fault, owners in (
        ("unreadable", beats.unreadable),
        ("mismatched", beats.mismatched),
        ("not found", beats.missing),
    ):
        if missed := [owner for owner in owners if owner in named]:
            seen.note("heartbeats", f"lane-owner heartbeats {fault}: {', '.join(missed)}")
    _show_batches(seen, known[:1], beats, lane_states(known, beats))
    if refs.malformed:
        seen.note("dependencies", f"malformed dependency refs: {', '.join(refs.malformed)}")
    if refs.unresolved:
        seen.note("unresolved_dependencies", f"unresolved dependency refs: {', '.join(refs.unresolved)}")


async def _look_at_owner(context: Context, owner: str, beats: Beats) -> None:
    if beats.knows(owner):
        return
    try:
        row = "not found" if owner == UNKNOWN else await _beat_of(context, owner)
    except Unreadable as error:
        if error.defect is not Defect.MALFORMED:
            raise
        row = "unreadable"
    if isinstance(row, str):
        beats.miss(owner, row)
    else:
        beats.add(row)


class _Refs(Struct):
    """What became of a batch's dependency refs, and who owns the lanes they name."""

    malformed: list[str] = field(default_factory=list[str])
    unresolved: list[str] = field(default_factory=list[str])
    owners: list[str] = field(default_factory=list[str])


async def _resolve(
    context: Context, lanes: Sequence[Lane], batch_id: str, known: list[tuple[str, Manifest]], beats: Beats
) -> _Refs:
    """Read what the lanes depend on into `known` and `beats`."""
    refs = _Refs()
    read: dict[str, list[Lane] | None] = {batch_id: list(lanes)}
    for ref in dict.fromkeys(ref for lane in lanes for ref in lane.depends_on):
        parts = split_ref(ref)
        if parts is None:
            refs.malformed.append(ref)
            continue
        other, name = parts
        if other not in read:
            found = await read_object(context.store, batch_path(other), "a batch")
            there = manifest(found[0]) if found else None
            read[other] = there.lanes if there else None
            if there:
                known.append((batch_path(other), there))
        there = read[other]
        if there is None:
            refs.unresolved.append(ref)
            continue
        owners = [lane.owner for lane in there if lane.name == name]
        if not owners:
            refs.malformed.append(ref)
        for owner in owners:
            await _look_at_owner(context, owner, beats)
        refs.owners += owners
    return refs
