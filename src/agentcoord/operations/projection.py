"""Rows: what a person or program is shown of each record (spec: cli §8.1).

The first keys of a row are always there; the others only when the record has them. Values are shown
as recorded, whatever their type.
"""

from collections.abc import Callable, Mapping, Sequence
from copy import copy
from datetime import datetime
from typing import Any, Protocol, cast

import msgspec

from agentcoord.protocol.batches import UNKNOWN, Lane, lanes_of
from agentcoord.protocol.dependencies import blocked_on, lane_key, lane_state
from agentcoord.protocol.documents import Document, decode, is_document, stated
from agentcoord.protocol.liveness import Span, judged
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

    path: Any = ""

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


class Beat(msgspec.Struct, gc=False):
    """A heartbeat as it was read, with the row last made of it: that is made anew when time judges it otherwise."""

    read: RecordRow
    made: tuple[RecordRow, Span] | None = None
    """The row and when it is the true one, put here as one value: others may be reading it."""

    def row(self, path: str, now: datetime) -> RecordRow:
        """Give the row at `now`, the same one for as long as nothing in it changes."""
        if (made := self.made) is not None:
            row, (since, until) = made
            if (until is None or now < until) and (since is None or since <= now):
                return row
        row, span = _heartbeat_row(path, copy(self.read), now)
        self.made = row, span
        return row


def _reading(kind: Any) -> Callable[[bytes], object]:
    """Give a decoder of records into rows; what is no object stays what it is.

    Each of these rows is whole once it has a path, and never changes after that: it may be kept, and shown to several.
    """
    straight = msgspec.json.Decoder(kind).decode

    def read(data: bytes) -> object:
        # Straight decoding passes over what is not shown without looking at its text.
        if data.isascii():
            try:
                row = straight(data)
            except (msgspec.MsgspecError, RecursionError):
                pass  # not what a row is made of: the plain decoder knows what it is, or what is wrong
            else:
                row.path = ""
                return row
        document = decode(data)
        return _of(kind, document) if is_document(document) else document

    return read


read_claim_row, _read_heartbeat, read_event_row = map(_reading, (_ClaimRow, _HeartbeatRow, _EventRow))


def read_heartbeat_row(data: bytes) -> object:
    """Read a heartbeat for `heartbeat_row`; what is no object stays what it is. Raises ValueError as `decode`."""
    read = _read_heartbeat(data)
    return Beat(read) if isinstance(read, RecordRow) else read


_ARCHIVE_DEFAULTS = {"record_family": "unknown", "reason": "unknown", "synthetic": False, "delete_after": UNKNOWN}


def _or(value: object, default: object) -> Any:
    return default if value is None else value


def _of(kind: Any, record: Document | RecordRow) -> Any:
    """Give the row that is to be made of a record; one that was read has no path yet, whatever its record says."""
    if not isinstance(record, dict):
        return record
    row = msgspec.convert(record, kind)
    row.path = ""
    return row


def claim_row(path: str, claim: Document | RecordRow) -> RecordRow:
    """Show a claim; repository and target fall back to its path."""
    row = _of(_ClaimRow, claim)
    if row.path:
        return row
    if row.repo is None or row.target is None:
        own = claim_key(path)
        row.repo, row.target = _or(row.repo, own[0]), _or(row.target, own[1])
    if row.status is None:
        row.status = "unknown"
    for field in ("agent_id", "branch", "expires_at"):
        if getattr(row, field) is None:
            setattr(row, field, UNKNOWN)
    row.path = path
    return row


def heartbeat_row(path: str, beat: Document | Beat, now: datetime) -> RecordRow:
    """Show a heartbeat with its liveness at `now`."""
    if isinstance(beat, Beat):
        return beat.row(path, now)
    return _heartbeat_row(path, _of(_HeartbeatRow, beat), now)[0]


def _heartbeat_row(path: str, row: Any, now: datetime) -> tuple[RecordRow, Span]:
    row.path = path
    if row.agent_id is None:
        row.agent_id = stem(path)
    if row.status is None:
        row.status = "unknown"
    liveness, span = judged(row.updated_at, row.expires_at, now)
    row.liveness = liveness or "unknown"
    repo, target = row.repo, row.target
    if isinstance(repo, str) and isinstance(target, str):  # the usual, and told much quicker
        row.target = f"{repo}#{target}"
    else:
        row.target = "#".join(str(part) for part in (repo, target) if part is not None) or "-"
    if row.updated_at is None:
        row.updated_at = UNKNOWN
    row.repo = row.expires_at = None
    return row, span


def event_row(path: str, event: Document | RecordRow) -> RecordRow:
    """Show an event; its batch falls back to its path."""
    row = _of(_EventRow, event)
    if row.path:
        return row
    if row.batch_id is None:
        row.batch_id = event_batch(path)
    if row.type is None:
        row.type = "unknown"
    if row.at is None:
        row.at = UNKNOWN
    row.path = path
    return row


def archive_row(path: str, envelope: Document) -> Document:
    """Show an archive envelope by what it keeps and until when."""
    row: Document = {"path": path}
    for field in ARCHIVE_SHOWN:
        value = _or(envelope.get(field), _ARCHIVE_DEFAULTS.get(field))
        if value is not None:
            row[field] = value
    return row


_Seen = tuple[str, str, list[str]]
"""A lane's state, its owner's liveness, and what it waits for."""


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

    def add(self, *rows: Row) -> None:
        """Take heartbeats' rows, each under the agent it names."""
        self._rows.update({str(row["agent_id"]): row for row in rows})

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


class Manifest(msgspec.Struct, gc=False):
    """A batch as it was read, with its lanes, and the row last made of it beside what that rests on elsewhere."""

    document: Document
    lanes: list[Lane]
    made: tuple[list[_Seen], Document] | None = None

    def row(self, path: str, beats: Beats, states: Mapping[str, str]) -> Document:
        """Give the row, the same one for as long as its lanes are seen to be the same."""
        seen = [_seen(lane, beats, states) for lane in self.lanes]
        if (made := self.made) is not None and made[0] == seen:
            return made[1]
        batch = self.document
        lanes = list(map(_lane_row, self.lanes, seen))
        row: Document = {"path": path, "batch_id": _or(batch.get("batch_id"), stem(path)), "lanes": lanes}
        row |= stated(batch, BATCH_SHOWN)
        self.made = seen, row
        return row


def manifest(batch: Document) -> Manifest:
    """Read the lanes of a batch."""
    return Manifest(batch, lanes_of(batch))


def read_batch(data: bytes) -> object:
    """Read a batch for its row; what is no object stays what it is. Raises ValueError as `decode`."""
    document = decode(data)
    return manifest(document) if is_document(document) else document


def _state(lane: Lane, beats: Beats) -> str:
    return lane_state(lane.document.get("terminal"), beats.status_of(lane.owner), lane.document.get("status"))


def lane_states(batches: Sequence[tuple[str, Manifest]], beats: Beats) -> dict[str, str]:
    """Give the state of every lane that a dependency can name, by its key."""
    return {
        lane_key(str(batch.document.get("batch_id") or stem(path)), lane.name): _state(lane, beats)
        for path, batch in batches
        for lane in batch.lanes
        if ":" not in lane.name
    }


def _seen(lane: Lane, beats: Beats, states: Mapping[str, str]) -> _Seen:
    return _state(lane, beats), beats.liveness_of(lane.owner), blocked_on(lane.depends_on, states)


def _lane_row(lane: Lane, seen: _Seen) -> Document:
    row: Document = {
        "name": lane.name,
        "owner": lane.owner,
        "targets": list(lane.targets),
        "status": seen[0],
        "liveness": seen[1],
        "deps": list(lane.depends_on),
        "blocked_on": seen[2],
    }
    return row | stated(lane.document, LANE_SHOWN)
