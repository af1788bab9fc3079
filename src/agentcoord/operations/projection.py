"""Rows: what a person or program is shown of each record (spec: cli §8.1).

The first keys of a row are always there; the others only when the record has them. Values are shown
as recorded, whatever their type.
"""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from agentcoord.protocol.batches import UNKNOWN, Lane, lanes_of
from agentcoord.protocol.dependencies import blocked_on, lane_key, lane_state
from agentcoord.protocol.documents import Document, stated
from agentcoord.protocol.liveness import liveness
from agentcoord.protocol.paths import claim_key, event_batch, stem
from agentcoord.protocol.records import (
    ARCHIVE_SHOWN,
    BATCH_SHOWN,
    CLAIM_SHOWN,
    EVENT_SHOWN,
    HEARTBEAT_SHOWN,
    LANE_SHOWN,
)

Row = dict[str, Any]

_SHAPES = 512
"""How many different sets of fields a family's records are remembered by."""


class _Shown:
    """The optional fields of a row, in their order.

    Thousands of records carry the same few sets of fields, so which of them to show is looked up by
    the set instead of being asked field by field: that was most of the cost of a full status.
    """

    def __init__(self, fields: Sequence[str]) -> None:
        self._fields = fields
        self._shapes: dict[tuple[str, ...], tuple[str, ...]] = {}

    def add(self, row: Row, document: Document) -> Row:
        shape = tuple(document)
        shown = self._shapes.get(shape)
        if shown is None:
            shown = tuple(field for field in self._fields if field in document)
            if len(self._shapes) < _SHAPES:
                self._shapes[shape] = shown
        for field in shown:
            value = document[field]
            if value is not None:
                row[field] = value
        return row


_CLAIM, _HEARTBEAT, _EVENT = _Shown(CLAIM_SHOWN), _Shown(HEARTBEAT_SHOWN), _Shown(EVENT_SHOWN)
_BATCH, _LANE = _Shown(BATCH_SHOWN), _Shown(LANE_SHOWN)


def _or(value: object, default: str) -> Any:
    return default if value is None else value


def claim_row(path: str, claim: Document) -> Row:
    """Show a claim; repository and target fall back to its path."""
    repo, target = claim.get("repo"), claim.get("target")
    if repo is None or target is None:
        own = claim_key(path)
        repo, target = _or(repo, own[0]), _or(target, own[1])
    row: Row = {
        "path": path,
        "repo": repo,
        "target": target,
        "status": _or(claim.get("status"), "unknown"),
        "agent_id": _or(claim.get("agent_id"), UNKNOWN),
        "branch": _or(claim.get("branch"), UNKNOWN),
        "expires_at": _or(claim.get("expires_at"), UNKNOWN),
    }
    return _CLAIM.add(row, claim)


def heartbeat_row(path: str, beat: Document, now: datetime) -> Row:
    """Show a heartbeat with its liveness at `now`."""
    agent_id, status, updated_at = beat.get("agent_id"), beat.get("status"), beat.get("updated_at")
    repo, target = beat.get("repo"), beat.get("target")
    row: Row = {
        "path": path,
        "agent_id": stem(path) if agent_id is None else agent_id,
        "status": "unknown" if status is None else status,
        "liveness": liveness(beat, now) or "unknown",
        "target": "#".join(str(part) for part in (repo, target) if part is not None) or "-",
        "updated_at": UNKNOWN if updated_at is None else updated_at,
    }
    return _HEARTBEAT.add(row, beat)


def event_row(path: str, event: Document) -> Row:
    """Show an event; its batch falls back to its path."""
    batch_id, type_, at = event.get("batch_id"), event.get("type"), event.get("at")
    row: Row = {
        "path": path,
        "batch_id": event_batch(path) if batch_id is None else batch_id,
        "type": "unknown" if type_ is None else type_,
        "at": UNKNOWN if at is None else at,
    }
    return _EVENT.add(row, event)


def archive_row(path: str, envelope: Document) -> Row:
    """Show an archive envelope by what it keeps and until when."""
    defaults: Row = {"record_family": "unknown", "reason": "unknown", "synthetic": False, "delete_after": UNKNOWN}
    return {"path": path} | stated(defaults | stated(envelope, envelope), ARCHIVE_SHOWN)


class Beats:
    """The heartbeats that lanes are judged by, and whose could not be had."""

    def __init__(self) -> None:
        """Start with none."""
        self._rows: dict[str, Row] = {}
        self.unreadable: list[str] = []
        self.mismatched: list[str] = []
        self.missing: list[str] = []

    @property
    def seen(self) -> set[str]:
        """Name the agents that were looked at."""
        return {*self._rows, *self.unreadable, *self.mismatched, *self.missing}

    def add(self, row: Row) -> None:
        """Take a heartbeat's row, under the agent it names."""
        self._rows[str(row["agent_id"])] = row

    def miss(self, agent_id: str, fault: str) -> None:
        """Take note that an agent's heartbeat is unreadable, mismatched or not found."""
        faults = {"unreadable": self.unreadable, "mismatched": self.mismatched}
        faults.get(fault, self.missing).append(agent_id)

    def rows(self) -> list[Row]:
        """Give the rows taken so far, in the order they came."""
        return list(self._rows.values())

    def status_of(self, agent_id: str) -> object:
        """Give the status an agent last reported, if its heartbeat was had."""
        row = self._rows.get(agent_id)
        return None if row is None or row["status"] == "unknown" else row["status"]

    def liveness_of(self, agent_id: str) -> str:
        """Say whether a lane's owner is there, or why nobody can tell."""
        row = self._rows.get(agent_id)
        if row is not None:
            return str(row["liveness"])
        if agent_id in self.unreadable:
            return "unreadable"
        return "mismatched" if agent_id in self.mismatched else "no-heartbeat"


def _state(lane: Lane, beats: Beats) -> str:
    return lane_state(lane.document.get("terminal"), beats.status_of(lane.owner), lane.document.get("status"))


def lane_states(batches: Sequence[tuple[str, Document]], beats: Beats) -> dict[str, str]:
    """Give the state of every lane that a dependency can name, by its key."""
    return {
        lane_key(str(batch.get("batch_id") or stem(path)), lane.name): _state(lane, beats)
        for path, batch in batches
        for lane in lanes_of(batch)
        if ":" not in lane.name
    }


def batch_row(path: str, batch: Document, beats: Beats, states: Mapping[str, str]) -> Row:
    """Show a batch with its lanes, and what each of them waits for."""
    lanes = [_lane_row(lane, beats, states) for lane in lanes_of(batch)]
    return _BATCH.add({"path": path, "batch_id": _or(batch.get("batch_id"), stem(path)), "lanes": lanes}, batch)


def _lane_row(lane: Lane, beats: Beats, states: Mapping[str, str]) -> Row:
    row: Row = {
        "name": lane.name,
        "owner": lane.owner,
        "targets": list(lane.targets),
        "status": _state(lane, beats),
        "liveness": beats.liveness_of(lane.owner),
        "deps": list(lane.depends_on),
        "blocked_on": blocked_on(lane.depends_on, states),
    }
    return _LANE.add(row, lane.document)
