"""Events: facts that stay. How they are named, and what each type must say (spec: cli §6.1, records §8)."""

from collections.abc import Mapping
from datetime import datetime
from types import MappingProxyType
from typing import Any

from msgspec import Struct

from agentcoord.errors import UsageError
from agentcoord.protocol.documents import Document, given, stated
from agentcoord.protocol.heartbeats import Beat, PhaseChange
from agentcoord.protocol.identity import Identity
from agentcoord.protocol.instants import event_stamp, stamp
from agentcoord.protocol.paths import require_segment
from agentcoord.protocol.records import HANDOFF, METADATA, SCHEMA_VERSION, SYNTHETIC, TYPED_SIGNALS
from agentcoord.protocol.statuses import Status

ACQUIRED = "claim.acquired"
RELEASED = "claim.released"
PHASE_CHANGED = "phase.changed"
LANE_CLOSED = "lane_closed"
LIFECYCLE = (ACQUIRED, RELEASED, PHASE_CHANGED, LANE_CLOSED)

ID_BYTES = 4
"""Random bytes in an event id."""


class _Signal(Struct, frozen=True):
    required: tuple[str, ...]
    allowed: Mapping[str, tuple[str, ...]] = MappingProxyType({})


SIGNALS: Mapping[str, _Signal] = MappingProxyType(
    {
        "help_requested": _Signal(
            ("reason",), MappingProxyType({"reason": ("blocked-user-input", "question", "permission")})
        ),
        "escalation_requested": _Signal(("from_route", "to_route", "evidence")),
        "error": _Signal(("severity", "category", "message"), MappingProxyType({"severity": ("P0", "P1", "P2", "P3")})),
        "human_intervention": _Signal(
            ("kind",), MappingProxyType({"kind": ("takeover", "supersede", "manual-fix", "drain")})
        ),
    }
)


class Said(Struct, frozen=True):
    """What a caller records. `signals` and `metadata` hold the options given, by field name."""

    batch_id: str
    type: str
    lane: str | None = None
    agent_id: str | None = None
    repo: str | None = None
    target: str | None = None
    branch: str | None = None
    message: str | None = None
    status: Status | None = None
    signals: Document = {}
    metadata: Document = {}


def option(field: str) -> str:
    """Spell a field as the option that gives it."""
    return "--" + field.replace("_", "-")


def require_event(said: Said) -> None:
    """Check what a caller wants recorded. Raises UsageError for the first fault."""
    require_segment(said.batch_id, "batch-id")
    require_segment(said.type, "event type")
    _require_signal(said)
    require_lane(said.lane)


def require_lane(lane: object) -> None:
    """Check the lane that an event names, if it names one. Raises UsageError."""
    if lane == "":
        raise UsageError("--lane must not be empty")
    if isinstance(lane, str) and ":" in lane:
        raise UsageError(f"event lane {lane} cannot contain ':'")


def _require_signal(said: Said) -> None:
    signal = SIGNALS.get(said.type)
    if signal is None:
        return
    for field in TYPED_SIGNALS:
        if said.signals.get(field) is not None and field not in signal.required:
            raise UsageError(f"{option(field)} is not valid for --type {said.type}")
    for field in signal.required:
        value = said.message if field == "message" else said.signals.get(field)
        allowed = signal.allowed.get(field)
        # Blank text says nothing; a blank choice is a choice that is not offered.
        if not value or (allowed is None and not str(value).strip()):
            raise UsageError(f"missing required {option(field)}")
        if allowed is not None and value not in allowed:
            raise UsageError(f"{option(field)} must be one of: {', '.join(allowed)}")


def event_id(now: datetime, random: bytes) -> str:
    """Name an ordinary event: sortable by time, unique by chance."""
    return f"{event_stamp(now)}-{random.hex()}"


def build_event(said: Said, name: str, identity: Identity, now: datetime, extra: Document | None = None) -> Document:
    """Build an ordinary event record. It carries only what the environment says of its writer."""
    status = said.status
    document = {"schema_version": SCHEMA_VERSION, "event_id": name, "batch_id": said.batch_id, "type": said.type}
    document |= given(
        {
            "lane": said.lane,
            "agent_id": said.agent_id,
            "repo": said.repo,
            "target": said.target,
            "branch": said.branch,
            "status": status.value if status else None,
            "status_raw": status.raw if status else None,
            "message": said.message,
        }
    )
    document |= said.metadata
    document |= said.signals
    document |= extra or {}
    document["at"] = stamp(now)
    return document | identity.fields()


def said_of_claim(claim: Mapping[str, Any], type_: str) -> tuple[Said, Document]:
    """Say what a claim's lifecycle event carries: the written record's own facts."""
    released = type_ == RELEASED
    said = Said(
        batch_id=str(claim["batch_id"]),
        type=type_,
        agent_id=claim.get("agent_id"),
        repo=claim.get("repo"),
        target=claim.get("target"),
        branch=claim.get("branch"),
        message=claim.get("handoff_note") if released else None,
        status=Status(value=str(claim.get("status")), raw=None, known=True) if released else None,
        metadata=stated(claim, (*METADATA, *SYNTHETIC)),
    )
    return said, stated(claim, HANDOFF) if released else {}


def said_of_phase(change: PhaseChange, beat: Beat, stored: Mapping[str, Any]) -> tuple[Said, Document]:
    """Say what a phase change carries: the beat's own facts, else those of the beat before."""
    facts = stated(stored, ("agent_id", "repo", "target", "branch")) | given(
        {"agent_id": beat.agent_id, "repo": beat.repo, "target": beat.target, "branch": beat.branch}
    )
    said = Said(
        batch_id=change.batch_id,
        type=PHASE_CHANGED,
        agent_id=facts.get("agent_id"),
        repo=facts.get("repo"),
        target=facts.get("target"),
        branch=facts.get("branch"),
        message=f"phase {change.previous} -> {change.phase}",
        metadata=stated(stored, (*METADATA, *SYNTHETIC)) | beat.metadata,
    )
    return said, {"previous_phase": change.previous}
