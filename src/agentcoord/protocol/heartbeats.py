"""What a heartbeat record says, and what one beat keeps of the beat before (spec: cli §5, records §6)."""

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from msgspec import Struct

from agentcoord.protocol.documents import Document, stated, text
from agentcoord.protocol.identity import Identity, attribute
from agentcoord.protocol.instants import later, stamp
from agentcoord.protocol.records import HEARTBEAT_KEPT, SCHEMA_VERSION
from agentcoord.protocol.statuses import Status

_WORK = ("repo", "target", "batch_id", "branch")


class Beat(Struct, frozen=True):
    """What an agent says of itself. `ttl` is in seconds; `metadata` holds the options given."""

    agent_id: str
    ttl: int
    status: Status
    repo: str | None = None
    target: str | None = None
    batch_id: str | None = None
    branch: str | None = None
    metadata: Document = {}


class PhaseChange(Struct, frozen=True):
    """An agent went from one phase to another within the same work."""

    batch_id: str
    previous: str
    phase: str


def build_heartbeat(stored: Mapping[str, Any] | None, beat: Beat, identity: Identity, now: datetime) -> Document:
    """Build the record of one beat; what belongs to other work than before is dropped."""
    kept = _kept(stored or {}, beat)
    document = dict(kept)
    document |= {"schema_version": SCHEMA_VERSION, "agent_id": beat.agent_id}
    for field in _WORK:
        if (value := getattr(beat, field)) is not None:
            document[field] = value
    document |= {"status": beat.status.value, "updated_at": stamp(now), "expires_at": stamp(later(now, beat.ttl))}
    if beat.status.raw is not None:
        document["status_raw"] = beat.status.raw
    document |= beat.metadata
    attribute(document, kept, identity)
    return document


def _kept(stored: Mapping[str, Any], beat: Beat) -> Document:
    changed = {field for field in _WORK if (value := getattr(beat, field)) is not None and stored.get(field) != value}
    if beat.repo is not None and beat.target is None and stored.get("target") is not None:
        changed.add("target")
    if not changed:
        return stated(stored, HEARTBEAT_KEPT)
    if "repo" in changed:
        return {}
    return stated(stored, [field for field in ("repo", "target") if field not in changed])


def phase_change(stored: Mapping[str, Any] | None, beat: Beat) -> PhaseChange | None:
    """Tell whether a beat moves its agent to another phase of the same work, where a batch is known."""
    phase = beat.metadata.get("phase")
    previous = text(stored or {}, "phase")
    if stored is None or not phase or previous is None or previous == phase:
        return None
    for field in ("batch_id", "repo", "target"):
        if (value := getattr(beat, field)) is not None and stored.get(field) != value:
            return None
    batch_id = beat.batch_id or text(stored, "batch_id")
    return PhaseChange(batch_id=batch_id, previous=previous, phase=phase) if batch_id else None
