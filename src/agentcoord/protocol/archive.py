"""The archive: where a record is kept once it left, in what envelope, and until when (spec: cli §12.2, §12.3).

An envelope is not rewritten before it has expired. Its place follows from what it keeps, so that an interrupted move
finds on its second try the copy that the first one made.
"""

from collections.abc import Mapping, Sequence
from datetime import datetime
from hashlib import sha256
from typing import Any, TypeGuard, cast

from agentcoord.errors import StoreError
from agentcoord.protocol.documents import Document, canonical, encode, is_document
from agentcoord.protocol.instants import is_rfc3339, later, parse, stamp
from agentcoord.protocol.paths import ARCHIVE_PATH_BYTES, ARCHIVE_RECORD_BYTES, over_cap
from agentcoord.protocol.records import ARCHIVE_SCHEMA_VERSION

ARCHIVED_RECORD = "archived_record"
COMPACTED_EVENTS = "compacted_events"

_DAY = 24 * 60 * 60
_DIGITS = 16
"""Hexadecimal digits of a digest that become part of a name."""

Source = tuple[str, Document]
"""A record with the path it was read at."""


def archive_path(source_path: str) -> str:
    """Name the place of one archived record."""
    return f"archive/{source_path}"


def compaction_path(batch_id: str, *, lane: object, repo: object, target: str | None, sources: Sequence[Source]) -> str:
    """Name the place of compacted events: the same for the same events, another once one of them changed.

    `sources` are sorted by path. `lane` is that of the group, `repo` is as recorded.
    """
    identity = _digest({"lane": lane, "repo": repo, "target": target})
    generation = _digest([{"path": path, "data": data} for path, data in sources])
    return f"archive/events/{batch_id}/compact-{identity}-{generation}.json"


def _digest(value: object) -> str:
    return sha256(canonical(value)).hexdigest()[:_DIGITS]


def is_synthetic(record: Mapping[str, Any]) -> bool:
    """Tell whether a record is marked as simulation; only `true` itself is a mark."""
    return record.get("synthetic") is True


def envelop_record(source: Source, *, reason: str, now: datetime, days: int) -> Document:
    """Wrap one record, to be kept for some days."""
    path, data = source
    head: Document = {"source_path": path, "reason": reason, "synthetic": is_synthetic(data)}
    return _marked(ARCHIVED_RECORD, head, now, days) | {"data": data}


def envelop_events(
    sources: Sequence[Source], records: Sequence[Document], *, reason: str, now: datetime, days: int
) -> Document:
    """Wrap what is retained of a group of events, beside the paths of all that it stands for."""
    synthetic = all(is_synthetic(data) for _, data in sources)
    head: Document = {"source_paths": [path for path, _ in sources], "reason": reason, "synthetic": synthetic}
    return _marked(COMPACTED_EVENTS, head, now, days) | {"records": list(records)}


def _marked(family: str, head: Document, now: datetime, days: int) -> Document:
    until = {"archived_at": stamp(now), "delete_after": stamp(later(now, days * _DAY))}
    return {"schema_version": ARCHIVE_SCHEMA_VERSION, "record_family": family} | head | until


def require_caps(path: str, envelope: Document) -> None:
    """Refuse an envelope that a shared backend would not keep. Raises StoreError.

    Asked on every store, so that one plan is good for all of them (spec: records §1).
    """
    if len(encode(envelope)) > ARCHIVE_RECORD_BYTES:
        raise StoreError(f"gc archive envelope exceeds {ARCHIVE_RECORD_BYTES} bytes at {path}")
    if over_cap(path, 0) is not None:
        raise StoreError(f"gc archive path exceeds {ARCHIVE_PATH_BYTES} bytes: {path}")


def expiry(path: str, envelope: Mapping[str, Any]) -> datetime:
    """Read when an envelope may be deleted. Raises StoreError for one that cannot be judged."""
    if envelope.get("record_family") not in (ARCHIVED_RECORD, COMPACTED_EVENTS):
        raise StoreError(f"archive record has unknown family at {path}")
    stated = envelope.get("delete_after")
    # As strictly as the trail reads it: what that cannot tell the age of is not deleted for its age.
    delete_after = parse(stated) if is_rfc3339(stated) else None
    if delete_after is None:
        raise StoreError(f"archive record has invalid delete_after at {path}")
    return delete_after


def has_expired(path: str, envelope: Mapping[str, Any], now: datetime) -> bool:
    """Tell whether an envelope may be deleted now. Raises StoreError for one that cannot be judged."""
    return expiry(path, envelope) <= now


def keeps(found: object, wanted: Document) -> TypeGuard[Document]:
    """Tell whether an envelope that is there already keeps all that the wanted one is to keep."""
    if not is_document(found):
        return False
    if wanted["record_family"] == ARCHIVED_RECORD:
        # By their digestible form: to Python, 1 and true are equal.
        same = canonical(found.get("data")) == canonical(wanted["data"])
        return same and found.get("source_path") == wanted["source_path"]
    return all(_among(found.get(field), wanted[field]) for field in ("source_paths", "records"))


def _among(found: object, wanted: Sequence[object]) -> bool:
    if not isinstance(found, list):
        return False
    there = {canonical(item) for item in cast("list[object]", found)}
    return all(canonical(item) in there for item in wanted)
