"""Closing a lane for good: who may, what is written, and when two closeouts say the same.

The first closeout of a lane is authoritative. Its event has a name derived from the lane, so a
create-only write reserves it and a retry finds it (spec: cli §6.2, §6.3; records §8).
"""

import re
from collections.abc import Mapping, Sequence
from datetime import datetime
from hashlib import sha256
from typing import Any

from msgspec import Struct

from agentcoord.errors import UsageError
from agentcoord.protocol.batches import UNKNOWN, Lane, lanes_of
from agentcoord.protocol.documents import Document, given, is_document, stated, text
from agentcoord.protocol.events import LANE_CLOSED, require_lane
from agentcoord.protocol.identity import Identity
from agentcoord.protocol.instants import stamp
from agentcoord.protocol.paths import is_repo
from agentcoord.protocol.records import LANE_CLOSED_SCHEMA_VERSION, SYNTHETIC
from agentcoord.protocol.statuses import CLOSED
from agentcoord.protocol.workitems import folded

DEFAULT_WORKSPACE = "default"
_HTTP_URL = re.compile(
    r"[Hh][Tt][Tt][Pp][Ss]?://"
    r"(?:[^/?#@\s]*@)?"  # whoever is named before the host is not a host
    r"(?:\[[0-9A-Fa-f:.]+\]|[^/?#@:\s]+)(?::\d*)?"
    r"(?:[/?#]\S*)?"
)
_AUTHORITATIVE = ("terminal", "workspace", "closed_by", "pr_url", "pr_state", "evidence_url")


class Closing(Struct, frozen=True):
    """Who closed a lane, how, and with what evidence: what two closeouts are compared by."""

    terminal: object
    workspace: object
    agent_id: object
    machine: object
    pr_url: object
    pr_state: object
    evidence_url: object

    def agrees(self, other: "Closing", *, machine_counts: bool) -> bool:
        """Tell whether two closeouts say the same; the machine counts only within one claim."""
        mine, theirs = self, other
        same = all(
            getattr(mine, field) == getattr(theirs, field) for field in self.__struct_fields__ if field != "machine"
        )
        return same and (not machine_counts or mine.machine == theirs.machine)


def closing_of(record: Mapping[str, Any]) -> Closing:
    """Read a closeout from an event, claim or lane; without `closed_by`, from its agent and host."""
    closed_by = record.get("closed_by")
    closer: Mapping[str, Any] = (
        closed_by
        if is_document(closed_by)
        else {"agent_id": record.get("agent_id"), "machine": record.get("host") or UNKNOWN}
    )
    return Closing(
        terminal=record.get("terminal"),
        workspace=record.get("workspace") or DEFAULT_WORKSPACE,
        agent_id=closer.get("agent_id"),
        machine=closer.get("machine"),
        pr_url=record.get("pr_url"),
        pr_state=record.get("pr_state"),
        evidence_url=record.get("evidence_url"),
    )


def is_http_url(value: object) -> bool:
    """Tell whether a value is an http or https URL with a host and no white space."""
    return isinstance(value, str) and _HTTP_URL.fullmatch(value) is not None


def require_terminal(state: str | None) -> None:
    """Check a closing state. Raises UsageError."""
    if state not in CLOSED:
        raise UsageError(f"--terminal must be one of: {', '.join(CLOSED)}")


def require_payload(record: Mapping[str, Any]) -> None:
    """Check the facts a closeout would publish. Raises UsageError naming the option at fault."""
    require_lane(record.get("lane"))
    repo = record.get("repo")
    if repo is not None and not is_repo(repo):
        raise UsageError(f"invalid terminal closeout repo: {repo}")
    for field in ("workspace", "host", "branch", "pr_state"):
        value = record.get(field)
        if isinstance(value, str) and not value.strip():
            raise UsageError(f"--{field.replace('_', '-')} must not be empty for terminal closeout")
    for field in ("pr_url", "evidence_url"):
        value = record.get(field)
        if value is not None and not is_http_url(value):
            raise UsageError(f"--{field.replace('_', '-')} must be an HTTP(S) URL with a host")


def closing_event_id(lane: str) -> str:
    """Derive the one name a lane's closing event can have within its batch."""
    return f"{LANE_CLOSED}-{sha256(lane.encode()).hexdigest()[:16]}"


def resolve_lane(batch: Mapping[str, Any], batch_id: str, payload: Mapping[str, Any]) -> Lane:
    """Find the one lane a closeout means. Raises UsageError when it is none, several or ill-spelled."""
    if text(batch, "repo") is not None and batch["repo"] != payload.get("repo"):
        raise UsageError(f"terminal closeout repo does not match batch {batch_id}")
    target, named = str(payload.get("target")), text(payload, "lane")
    lanes = [lane for lane in lanes_of(batch) if not lane.malformed]
    if named is not None:
        found = [lane for lane in lanes if lane.name == named]
    else:
        found = [lane for lane in lanes if folded(target) in {folded(own) for own in lane.targets}]
    if len(found) != 1:
        raise UsageError(f"terminal closeout does not match exactly one lane in batch {batch_id}")
    lane = found[0]
    if target not in lane.targets:
        raise UsageError(
            f"terminal closeout target does not match exact registered spelling for lane {lane.name}; "
            f"registered: {', '.join(lane.targets)}"
        )
    return lane


def stranger(lane: Lane) -> UsageError:
    """Say that the closer neither owns the lane nor holds it by its recorded history."""
    return UsageError(f"terminal closeout agent does not match lane {lane.name}")


def contradiction(lane: Lane) -> UsageError:
    """Say that the lane was closed before, in another way."""
    return UsageError(f"conflicting terminal closeout for lane {lane.name}; first closeout is authoritative")


def closed_by(agent_id: str, host: object, identity: Identity) -> Document:
    """Name who closes: the agent, and the machine as the environment or else the host names it."""
    return {"agent_id": agent_id, "machine": identity.machine_id or host or UNKNOWN}


def build_closing_event(
    payload: Mapping[str, Any], lane: Lane, batch_id: str, identity: Identity, now: datetime
) -> Document:
    """Build the version-2 event that closes a lane, from the facts that may be published."""
    document: Document = {
        "schema_version": LANE_CLOSED_SCHEMA_VERSION,
        "event_id": closing_event_id(lane.name),
        "batch_id": batch_id,
        "type": LANE_CLOSED,
        "lane": lane.name,
    }
    document |= stated(payload, ("agent_id", "repo", "target", "branch", "host", "pr_url", "terminal"))
    document |= stated(payload, ("pr_state", "evidence_url"))
    document["workspace"] = payload.get("workspace") or DEFAULT_WORKSPACE
    document |= stated(payload, SYNTHETIC)
    document["closed_by"] = closed_by(str(payload["agent_id"]), payload.get("host"), identity)
    document["at"] = stamp(now)
    return document | identity.fields()


def apply_closing(released: Document, event: Mapping[str, Any]) -> Document:
    """Put the authoritative event's facts into a released claim, removing what the event lacks."""
    document = dict(released)
    for field in _AUTHORITATIVE:
        if event.get(field) is None:
            document.pop(field, None)
        else:
            document[field] = event[field]
    return document


def close_lane(batch: Mapping[str, Any], lane: Lane, event: Mapping[str, Any], now: datetime) -> Document | None:
    """Build the manifest with the lane closed; None when it says so already.

    The last lane to close completes the batch. Raises UsageError when it was closed another way.
    """
    entries: list[Any] = list(batch["lanes"])
    index = next(i for i, own in enumerate(lanes_of(batch)) if not own.malformed and own.name == lane.name)
    entry: Document = dict(entries[index])
    closing, closer = closing_of(event), event.get("closed_by")
    if entry.get("terminal"):
        if _closed_alike(entry, closing):
            return None
        raise contradiction(lane)
    entry |= {"status": event["terminal"], "terminal": event["terminal"]}
    stamps = {
        "closed_at": event.get("at"),
        "closed_by": closer
        if is_document(closer)
        else given({"agent_id": closing.agent_id, "machine": closing.machine}),
        "workspace": closing.workspace,
    }
    for field, value in stamps.items():
        if entry.get(field) is None and value is not None:
            entry[field] = value
    entry |= stated(event, ("pr_url", "pr_state", "evidence_url"))
    entries[index] = entry
    document = dict(batch) | {"lanes": entries}
    if all_closed(entries):
        document["status"] = "completed"
        document["completed_at"] = batch.get("completed_at") or stamp(now)
    document["updated_at"] = stamp(now)
    return document


def _closed_alike(entry: Document, closing: Closing) -> bool:
    # A manifest may name a lane's pull request from the start; a closeout silent about it is no contradiction.
    named = entry if closing.pr_url is not None else entry | {"pr_url": None}
    return closing_of(named).agrees(closing, machine_counts=False)


def all_closed(lanes: Sequence[object]) -> bool:
    """Tell whether every lane of a batch is closed for good."""
    return all(is_document(lane) and lane.get("terminal") in CLOSED for lane in lanes)
