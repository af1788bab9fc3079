"""Archive envelopes as a trail reads them: what each still holds, what is wrong with it, and which copy counts.

Reading an envelope adds rows, or a warning, and never takes a live row away (spec: cli §10.5).
"""

from collections.abc import Callable, Collection, Iterable, Sequence
from hashlib import sha256
from typing import TypeGuard, cast

from msgspec import Struct, field

from agentcoord.protocol.archive import ARCHIVED_RECORD, COMPACTED_EVENTS, is_synthetic
from agentcoord.protocol.documents import Document, canonical, decode, is_document
from agentcoord.protocol.instants import Exact, exact, is_rfc3339
from agentcoord.protocol.trail import EventRecord, Row, event_of, identity_of, invalid_text, row_of, scrubbed

Identity = tuple[str, str] | bytes | None
Matches = Callable[[object, object], bool]

_DIGEST = 12
"""Bytes of a digest: with as many records as an archive may hold, no two that differ are taken for one."""


class Kept(Struct, frozen=True, gc=False):
    """One record that an envelope holds; of one that is only `remembered`, that is the digest, and there is no row."""

    event: EventRecord
    identity: Identity
    """What tells the record from others, and not from its copies."""
    document: Document | None = None
    remembered: bytes = b""

    @property
    def digest(self) -> bytes:
        """Tell the record from its copies that differ."""
        return self.remembered or sha256(canonical(self.document)).digest()[:_DIGEST]


class Envelope(Struct, frozen=True):
    """What could be read of an envelope. `defect` is the first thing wrong with what it holds."""

    path: str
    records: tuple[Kept, ...]
    sources: tuple[str, ...]
    defect: str | None
    archived_at: Exact | None
    expires: Exact | None
    delete_after: str
    synthetic: bool
    """Whether nothing in it is real work."""


class Scope(Struct, frozen=True):
    """Which records a trail is about: those of a work item, or all; simulation only on request."""

    matches: Matches | None = None
    include_synthetic: bool = False

    def takes(self, event: EventRecord) -> bool:
        """Tell whether an event belongs to the trail."""
        if event.synthetic is True and not self.include_synthetic:
            return False
        return self.matches is None or self.matches(event.repo, event.target)


class Folded(Struct):
    """What the archive adds to a trail, and what it says of itself."""

    rows: list[Row] = field(default_factory=list[Row])
    archived: int = 0
    """How many rows of the trail that is, with those of records that are only remembered."""
    hidden: list[tuple[str, EventRecord]] = field(default_factory=list[tuple[str, EventRecord]])
    """The records of the trail that add no row beside another copy, with the paths of their envelopes."""
    warnings: list[str] = field(default_factory=list[str])
    in_scope: list[Envelope] = field(default_factory=list[Envelope])


class Tally(Struct, frozen=True):
    """What a trail has from the archive, in numbers."""

    envelopes: int
    """How many have a part in it."""
    archived: int
    """Rows that are from there."""
    held: int
    """Rows that are live, and there as well."""
    dropped: int
    """Events that compaction left out."""
    unreadable: int
    until: str | None
    """When the first of the envelopes is to be deleted, as it says itself."""


def read_envelope_bytes(data: bytes) -> object:
    """Read an envelope's bytes: a JSON value, or INVALID_TEXT. Raises ValueError."""
    try:
        return decode(data)
    except ValueError:
        try:
            data.decode()
        except UnicodeDecodeError:
            return invalid_text(data)
        raise


def open_envelope(path: str, document: object) -> Envelope | None:
    """Look into an envelope; None for one of a family that nobody knows."""
    if not is_document(document):
        return None
    kind = document.get("record_family")
    if kind not in (COMPACTED_EVENTS, ARCHIVED_RECORD):
        return None
    body: object = document.get("records") if kind == COMPACTED_EVENTS else [document.get("data")]
    records = tuple(_kept(record) for record in _items(body) or () if is_document(record))
    listed: object = document.get("source_paths") if kind == COMPACTED_EVENTS else [document.get("source_path")]
    sources = [each for each in _items(listed) or () if is_said(each)]
    defect = (
        _defect(_items(body), _items(listed), sources) if kind == COMPACTED_EVENTS else _defect_of_one(records, sources)
    )
    archived_at, delete_after = document.get("archived_at"), document.get("delete_after")
    return Envelope(
        path=path,
        records=records,
        sources=tuple(sources),
        defect=defect,
        archived_at=exact(archived_at) if is_rfc3339(archived_at) else None,
        expires=exact(delete_after) if is_rfc3339(delete_after) else None,
        delete_after=scrubbed(str(delete_after)),
        synthetic=is_synthetic(document) or (bool(records) and all(kept.event.synthetic is True for kept in records)),
    )


def _kept(record: Document) -> Kept:
    event = event_of(record)
    return Kept(event, identity_of(event), record)


def is_said(value: object) -> TypeGuard[str]:
    """Tell whether a value is a text with something in it."""
    return isinstance(value, str) and bool(value.strip())


def _items(value: object) -> list[object] | None:
    return cast("list[object]", value) if isinstance(value, list) else None


def _defect(records: list[object] | None, listed: list[object] | None, sources: Sequence[str]) -> str | None:
    if records is None:
        return "malformed archived record body"
    if listed is None or len(sources) != len(listed):
        return "malformed archived source paths"
    if len(set(sources)) != len(sources):
        return "duplicate archived source paths"
    if sources and not records:
        return f"no retained records for {counted(len(sources), 'source path')}"
    if len(records) > len(sources):
        return f"{counted(len(records), 'retained record')} exceed {counted(len(sources), 'source path')}"
    unreadable = sum(not is_document(record) for record in records)
    return counted(unreadable, "unreadable archived record") if unreadable else None


def _defect_of_one(records: Sequence[Kept], sources: Sequence[str]) -> str | None:
    if not records:
        return counted(1, "unreadable archived record")
    return None if sources else "malformed archived source path"


def counted(number: int, noun: str) -> str:
    """Count things in words."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def newest_first(envelopes: Iterable[Envelope]) -> list[Envelope]:
    """Order envelopes so that the copy which counts comes first; one that does not say its age comes last."""
    return sorted(
        envelopes, key=lambda each: (each.archived_at is not None, each.archived_at or (0, ""), each.path), reverse=True
    )


def identities(envelopes: Iterable[Envelope]) -> set[Identity]:
    """Collect what the envelopes hold, to be told apart from what is live."""
    return {kept.identity for envelope in envelopes for kept in envelope.records}


def fold(envelopes: Iterable[Envelope], live: Collection[Identity], scope: Scope) -> Folded:
    """Find the archived rows of a trail: of each record the live copy counts, then the newest one."""
    ordered, folded = newest_first(envelopes), Folded()
    wanted = {kept.identity for each in ordered for kept in each.records if scope.takes(kept.event)}
    counts: dict[Identity, tuple[Envelope, Kept]] = {}
    ambiguous: dict[str, None] = {}
    for envelope in ordered:
        unseen = envelope.synthetic and not scope.include_synthetic
        taken = any(scope.takes(kept.event) for kept in envelope.records)
        if taken or (scope.matches is None and not unseen):
            folded.in_scope.append(envelope)
        defect = envelope.defect
        if defect is None and envelope.archived_at is None and not unseen:
            # Its age matters only where one of its copies may be taken for a newer or an older one.
            relevant = any(kept.identity in wanted for kept in envelope.records)
            defect = "unreadable archive recency" if relevant else None
        if defect is None and envelope.expires is None:
            defect = "unreadable archive expiry"
        if defect is not None:
            folded.warnings.append(incomplete(f"{defect} at {envelope.path}"))
        for kept in envelope.records:
            taken = scope.takes(kept.event)
            if kept.identity not in live:
                first = counts.setdefault(kept.identity, (envelope, kept))
                if first[1] is kept:
                    folded.archived += taken
                    if taken and not kept.remembered:
                        folded.rows.append(row_of(kept.event))
                    continue
                if _is_ambiguous(first, (envelope, kept), scope):
                    paths = " and ".join(sorted((first[0].path, envelope.path)))
                    ambiguous[incomplete(f"ambiguous archive recency between {paths}")] = None
            if taken and not kept.remembered:
                folded.hidden.append((envelope.path, kept.event))
    folded.warnings += ambiguous
    return folded


def _is_ambiguous(first: tuple[Envelope, Kept], second: tuple[Envelope, Kept], scope: Scope) -> bool:
    (one, kept), (other, copy) = first, second
    return (
        one.path != other.path
        and one.archived_at is not None
        and one.archived_at == other.archived_at
        and scope.takes(kept.event)
        and scope.takes(copy.event)
        and kept.digest != copy.digest
    )


def incomplete(what: str) -> str:
    """Warn that a trail may not be the whole one."""
    return f"warning: {what}; this trail may be incomplete"


def tally(folded: Folded, held: int) -> Tally:
    """Count what a trail has from the archive; `held` of its live rows are there as well."""
    readable = [envelope for envelope in folded.in_scope if envelope.defect is None]
    sources = {source for envelope in readable for source in envelope.sources}
    dated = [(envelope.expires, envelope.delete_after) for envelope in folded.in_scope if envelope.expires is not None]
    return Tally(
        envelopes=len(folded.in_scope),
        archived=folded.archived,
        held=held,
        dropped=max(0, len(sources) - len(identities(readable))),
        unreadable=len(folded.in_scope) - len(readable),
        until=min(dated)[1] if dated else None,
    )


def provenance(tally: Tally, live: int, *, syncing: bool) -> str | None:
    """Say how much of a trail rests on the archive, and until when; None when nothing does.

    `live` rows of the trail are not from the archive.
    """
    if not tally.envelopes:
        return None
    archived, held, dropped, unread = tally.archived, tally.held, tally.dropped, tally.unreadable
    total = archived + live
    if archived:
        clauses = [f"note: {archived} of {total} events read from the archive"]
        if held:
            clauses.append(f"{held} more held there too")
    elif held:
        clauses = [f"note: {held} of {total} events are also held in the archive"]
    else:
        clauses = ["note: the archive holds a compacted record for this trail"]
    if dropped:
        clauses.append(f"{counted(dropped, 'source event')} {'was' if dropped == 1 else 'were'} dropped by compaction")
    if unread:
        clauses.append(f"compaction loss unknown for {counted(unread, 'unreadable envelope')}")
    if tally.until is not None:
        clauses.append(f"archive deleted after {tally.until}")
    if not syncing:
        clauses.append("mirror it with log --sync")
    return "; ".join(clauses)
