"""Rows: what a person or program is shown of each record (spec: cli §8.1).

The first keys of a row are always there; the others only when the record has them. Values are shown
as recorded, whatever their type.
"""

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any, Protocol, cast

import msgspec

from agentcoord.protocol.batches import UNKNOWN, Lane, lanes_of
from agentcoord.protocol.dependencies import blocked_on, lane_key, lane_state
from agentcoord.protocol.documents import Document, decode, is_document, stated
from agentcoord.protocol.liveness import judge
from agentcoord.protocol.paths import claim_key, event_batch, stem
from agentcoord.protocol.records import (
    ARCHIVE_SHOWN,
    BATCH_SHOWN,
    CLAIM_SHOWN,
    EVENT_SHOWN,
    HEARTBEAT_SHOWN,
    LANE_SHOWN,
)


class Row(Protocol):
    """What a renderer needs of a row: its values by name, absent ones with a default."""

    def __getitem__(self, key: str, /) -> Any: ...

    def get(self, key: str, default: Any = None, /) -> Any:
        """Give a shown value, or the default."""
        ...


class RecordRow(msgspec.Struct, omit_defaults=True, gc=False):
    """A row that is read straight from a record's bytes: only the fields that are shown are ever made.

    Full status shows tens of thousands of them. A value of None is an absent field, in the record and
    in the JSON of the row.
    """

    path: str = ""

    def __getitem__(self, key: str, /) -> Any:
        """Give a shown value. Raises KeyError for one that the record does not have."""
        if (value := getattr(self, key, None)) is None:
            raise KeyError(key)
        return value

    def get(self, key: str, default: Any = None, /) -> Any:
        """Give a shown value, or the default."""
        return default if (value := getattr(self, key, None)) is None else value

    def facts(self) -> dict[str, Any]:
        """Give the row as it is printed."""
        return cast("dict[str, Any]", msgspec.to_builtins(self))


def _row(name: str, *fields: str) -> Any:
    distinct = dict.fromkeys(fields)
    return msgspec.defstruct(
        name, [(field, Any, None) for field in distinct], bases=(RecordRow,), omit_defaults=True, gc=False
    )


_ClaimRow = _row("ClaimRow", "repo", "target", "status", "agent_id", "branch", "expires_at", *CLAIM_SHOWN)
_HeartbeatRow = _row(
    "HeartbeatRow",
    *("agent_id", "status", "liveness", "target", "updated_at", *HEARTBEAT_SHOWN),
    *("repo", "expires_at"),  # read for what is made of them, not shown
)
_EventRow = _row("EventRow", "batch_id", "type", "at", *EVENT_SHOWN)


def _reading(kind: Any) -> Callable[[bytes], object]:
    """Give a decoder of records into rows; what is no object stays what it is."""
    straight = msgspec.json.Decoder(kind).decode

    def read(data: bytes) -> object:
        # Straight decoding passes over what is not shown without looking at its text.
        if data.isascii():
            try:
                return straight(data)
            except (msgspec.MsgspecError, RecursionError):
                pass  # not what a row is made of: the plain decoder knows what it is, or what is wrong
        document = decode(data)
        return msgspec.convert(document, kind) if is_document(document) else document

    return read


read_claim_row, read_heartbeat_row, read_event_row = map(_reading, (_ClaimRow, _HeartbeatRow, _EventRow))


_ARCHIVE_DEFAULTS = {"record_family": "unknown", "reason": "unknown", "synthetic": False, "delete_after": UNKNOWN}


def _or(value: object, default: object) -> Any:
    return default if value is None else value


def _of(kind: Any, record: Document | RecordRow) -> Any:
    return msgspec.convert(record, kind) if isinstance(record, dict) else record


def claim_row(path: str, claim: Document | RecordRow) -> RecordRow:
    """Show a claim; repository and target fall back to its path."""
    row = _of(_ClaimRow, claim)
    row.path = path
    if row.repo is None or row.target is None:
        own = claim_key(path)
        row.repo, row.target = _or(row.repo, own[0]), _or(row.target, own[1])
    if row.status is None:
        row.status = "unknown"
    for field in ("agent_id", "branch", "expires_at"):
        if getattr(row, field) is None:
            setattr(row, field, UNKNOWN)
    return row


def heartbeat_row(path: str, beat: Document | RecordRow, now: datetime) -> RecordRow:
    """Show a heartbeat with its liveness at `now`."""
    row = _of(_HeartbeatRow, beat)
    row.path = path
    if row.agent_id is None:
        row.agent_id = stem(path)
    if row.status is None:
        row.status = "unknown"
    row.liveness = judge(row.updated_at, row.expires_at, now) or "unknown"
    row.target = "#".join(str(part) for part in (row.repo, row.target) if part is not None) or "-"
    if row.updated_at is None:
        row.updated_at = UNKNOWN
    row.repo = row.expires_at = None
    return row


def event_row(path: str, event: Document | RecordRow) -> RecordRow:
    """Show an event; its batch falls back to its path."""
    row = _of(_EventRow, event)
    row.path = path
    if row.batch_id is None:
        row.batch_id = event_batch(path)
    if row.type is None:
        row.type = "unknown"
    if row.at is None:
        row.at = UNKNOWN
    return row


def archive_row(path: str, envelope: Document) -> Document:
    """Show an archive envelope by what it keeps and until when."""
    row: Document = {"path": path}
    for field in ARCHIVE_SHOWN:
        value = _or(envelope.get(field), _ARCHIVE_DEFAULTS.get(field))
        if value is not None:
            row[field] = value
    return row


class Beats:
    """The heartbeats that lanes are judged by, and whose could not be had."""

    def __init__(self) -> None:
        """Start with none."""
        self._rows: dict[str, Row] = {}
        self.unreadable: list[str] = []
        self.mismatched: list[str] = []
        self.missing: list[str] = []

    def knows(self, agent_id: str) -> bool:
        """Tell whether an agent was looked at."""
        return any(agent_id in those for those in (self._rows, self.unreadable, self.mismatched, self.missing))

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
        row = None if agent_id == UNKNOWN else self._rows.get(agent_id)
        return None if row is None or row["status"] == "unknown" else row["status"]

    def liveness_of(self, agent_id: str) -> str:
        """Say whether a lane's owner is there, or why nobody can tell."""
        row = None if agent_id == UNKNOWN else self._rows.get(agent_id)
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


def batch_row(path: str, batch: Document, beats: Beats, states: Mapping[str, str]) -> Document:
    """Show a batch with its lanes, and what each of them waits for."""
    lanes = [_lane_row(lane, beats, states) for lane in lanes_of(batch)]
    row: Document = {"path": path, "batch_id": _or(batch.get("batch_id"), stem(path)), "lanes": lanes}
    return row | stated(batch, BATCH_SHOWN)


def _lane_row(lane: Lane, beats: Beats, states: Mapping[str, str]) -> Document:
    row: Document = {
        "name": lane.name,
        "owner": lane.owner,
        "targets": list(lane.targets),
        "status": _state(lane, beats),
        "liveness": beats.liveness_of(lane.owner),
        "deps": list(lane.depends_on),
        "blocked_on": blocked_on(lane.depends_on, states),
    }
    return row | stated(lane.document, LANE_SHOWN)
