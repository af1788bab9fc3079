"""Retention: what has outlived its time, and what becomes of it (spec: cli §12.1).

Nothing here reads or removes anything. A record goes in with its path and `now`, and an action with its
finished envelope comes out, so that what is announced and what is done are one value.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar

import msgspec
from msgspec import Struct

from agentcoord.errors import StoreError
from agentcoord.protocol.archive import (
    archive_path,
    compaction_path,
    envelop_events,
    envelop_record,
    expiry,
    is_synthetic,
    keeps,
)
from agentcoord.protocol.audit import is_terminal_event
from agentcoord.protocol.batches import spelled
from agentcoord.protocol.claims import RELEASED
from agentcoord.protocol.documents import Document, canonical, decode, is_document, text
from agentcoord.protocol.events import LANE_CLOSED
from agentcoord.protocol.instants import parse, stamp
from agentcoord.protocol.liveness import DEAD_AFTER_TTLS, judge, liveness
from agentcoord.protocol.paths import event_batch, is_segment
from agentcoord.protocol.records import ARCHIVE_DAYS, HOT_DAYS, SYNTHETIC_HOT_DAYS
from agentcoord.protocol.statuses import CLOSED, TERMINAL

_TIMES = ("updated_at", "at", "released_at", "completed_at", "expires_at")
"""Where a record's retention time is looked for, in this order."""


class Policy(Struct, frozen=True):
    """How long records stay, in days: hot, in the archive, and hot when they are only simulation."""

    hot_days: int = HOT_DAYS
    archive_days: int = ARCHIVE_DAYS
    synthetic_hot_days: int = SYNTHETIC_HOT_DAYS


class Archive(Struct, frozen=True):
    """Copy a record into the archive, then remove it. `replaces`: over an envelope that has expired."""

    source_path: str
    archive_path: str
    reason: str
    eligible_at: str
    envelope: Document
    replaces: bool = False


class Compact(Struct, frozen=True):
    """Copy what matters of a group of events into one envelope, then remove them all.

    `source_paths` are sorted; `removal` has them in the order in which they have to go.
    """

    source_paths: tuple[str, ...]
    archive_path: str
    reason: str
    eligible_at: str
    envelope: Document
    removal: tuple[str, ...]


class Delete(Struct, frozen=True):
    """Remove an envelope that has expired."""

    source_path: str
    reason: str
    eligible_at: str


Action = Archive | Compact | Delete


class Garbled(Struct, frozen=True):
    """An event with text that is not Unicode; `document` has it with marks in place of what cannot be read."""

    document: Document


class Event(Struct, frozen=True):
    """An event as it was read."""

    path: str
    document: Document
    garbled: bool = False


def decode_event(data: bytes) -> object:
    """Parse an event, with one whose text is damaged as Garbled. Raises ValueError for what is no JSON at all.

    Such an event cannot be copied, but it can be told which group it belongs to: the others need not wait for it.
    """
    try:
        return decode(data)
    except ValueError:
        import json  # the lenient parser of the standard library has work only here

        try:
            lenient = json.loads(data.decode(errors="replace"))
            mended = decode(json.dumps(lenient, ensure_ascii=False).encode(errors="replace"))
        except (ValueError, RecursionError):
            mended = None
        if not is_document(mended):
            raise
        return Garbled(mended)


# One record ----------------------------------------------------------------------------------------


class GoingOn(Struct, frozen=True):
    """A record of work that goes on: not eligible, whatever else it says."""


GOING_ON = GoingOn()


class _ClaimGlance(Struct, gc=False):
    status: Any = None
    terminal: Any = None


class _BeatGlance(Struct, gc=False):
    status: Any = None
    updated_at: Any = None
    expires_at: Any = None


def decode_claim(data: bytes) -> object:
    """Parse a claim, with one that is not eligible as GOING_ON. Raises ValueError."""
    seen = _glance(_CLAIM_GLANCE, data)
    return decode(data) if seen is None or _is_closed(seen.status, seen.terminal) else GOING_ON


def decode_beat(data: bytes, now: datetime) -> object:
    """Parse a heartbeat, with one that is not eligible as GOING_ON. Raises ValueError."""
    seen = _glance(_BEAT_GLANCE, data)
    if seen is None or seen.status in TERMINAL or judge(seen.updated_at, seen.expires_at, now) == "dead":
        return decode(data)
    return GOING_ON


_CLAIM_GLANCE = msgspec.json.Decoder(_ClaimGlance)
_BEAT_GLANCE = msgspec.json.Decoder(_BeatGlance)
_Glance = TypeVar("_Glance")


def _glance(decoder: msgspec.json.Decoder[_Glance], data: bytes) -> _Glance | None:
    """Look at a few fields, which costs half of making all; None where the others might not be sound."""
    if not data.isascii() or b"\\u" in data:
        return None
    try:
        return decoder.decode(data)
    except (msgspec.MsgspecError, RecursionError):
        return None


def _is_closed(status: object, terminal: object) -> bool:
    return status == RELEASED or terminal in CLOSED


def plan_archiving(path: str, record: Document, policy: Policy, now: datetime) -> Archive | None:
    """Decide whether a claim, heartbeat or batch is to be archived.

    Work that goes on is never eligible, however old it is or marked. Raises StoreError for a record that is
    eligible but does not say since when.
    """
    found = _eligibility(path, record, now)
    if found is None:
        return None
    reason, eligible_at = found
    if not _has_passed(record, eligible_at, policy, now):
        return None
    return Archive(
        source_path=path,
        archive_path=archive_path(path),
        reason=reason,
        eligible_at=stamp(eligible_at),
        envelope=envelop_record((path, record), reason=reason, now=now, days=policy.archive_days),
    )


def _eligibility(path: str, record: Document, now: datetime) -> tuple[str, datetime] | None:
    family = path.partition("/")[0]
    status = record.get("status")
    if family == "claims" and _is_closed(status, record.get("terminal")):
        return "terminal_claim", _require_time(path, record)
    if family == "batches" and status == "completed":
        return "completed_batch", _require_time(path, record, preferred="completed_at")
    if family == "heartbeats" and status in TERMINAL:
        return "terminal_heartbeat", _require_time(path, record)
    if family == "heartbeats" and liveness(record, now) == "dead":
        return "dead_heartbeat", _death(record)
    return None


def _death(beat: Mapping[str, Any]) -> datetime:
    earliest = datetime.min.replace(tzinfo=UTC)
    updated, expires = parse(beat.get("updated_at")) or earliest, parse(beat.get("expires_at")) or earliest
    try:
        return updated + DEAD_AFTER_TTLS * (expires - updated)
    except OverflowError:  # a negative ttl that leads before the calendar: it never lived
        return earliest


def _stated_time(record: Mapping[str, Any], preferred: str | None = None) -> object:
    for field in (preferred, *_TIMES):
        if field is not None and (value := record.get(field)) is not None:
            return value
    return None


def _require_time(path: str, record: Mapping[str, Any], preferred: str | None = None) -> datetime:
    """Read a record's retention time. Raises StoreError."""
    value = _stated_time(record, preferred)
    if value is None:
        raise StoreError(f"gc record is missing a retention timestamp at {path}")
    instant = parse(value)
    if instant is None:
        raise StoreError(f"gc record has invalid retention timestamp at {path}: {spelled(value)}")
    return instant


def _has_passed(record: Mapping[str, Any], instant: datetime, policy: Policy, now: datetime) -> bool:
    days = policy.synthetic_hot_days if is_synthetic(record) else policy.hot_days
    try:
        return instant <= now - timedelta(days=days)
    except OverflowError:  # a window longer than the calendar
        return False


# Events --------------------------------------------------------------------------------------------


class _Group(Struct):
    """Events that are compacted together, or not at all."""

    batch_id: str
    lane: object
    repo: object
    target: str | None
    events: list[Event]


def plan_compactions(events: Iterable[Event], policy: Policy, now: datetime) -> list[Compact]:
    """Decide which groups of events are to be compacted, ordered by their first path. Raises StoreError.

    A group goes as a whole: an event that is still in its window holds the others back.
    """
    plans = [plan for group in _grouped(events) if (plan := _plan_compaction(group, policy, now)) is not None]
    return sorted(plans, key=lambda plan: plan.source_paths)


def _grouped(events: Iterable[Event]) -> list[_Group]:
    """Group events by batch, repository, target and lane; one without a lane joins the only lane that was closed."""
    known = list(events)
    closed: defaultdict[object, dict[object, object]] = defaultdict(dict)
    for event in known:
        lane = event.document.get("lane")
        if lane is not None and _closes(event):
            closed[_item(event)][_keyed(lane)] = lane
    groups: dict[object, _Group] = {}
    for event in sorted(known, key=lambda event: event.path):
        item, lane = _item(event), event.document.get("lane")
        lanes = closed.get(item, {})
        if lane is None and len(lanes) == 1:
            (lane,) = lanes.values()
        key = (item, _keyed(lane))
        if key not in groups:
            batch_id, _, target = item
            groups[key] = _Group(batch_id, lane, event.document.get("repo"), target, [])
        groups[key].events.append(event)
    return list(groups.values())


def _closes(event: Event) -> bool:
    # The type first: nearly all are of another.
    return event.document.get("type") == LANE_CLOSED and is_terminal_event(event.document)


def _item(event: Event) -> tuple[str, object, str | None]:
    stated, target = event.document.get("batch_id"), event.document.get("target")
    batch_id = "" if stated is None else spelled(stated)
    # What could not stand in a path says nothing about where the envelope belongs.
    batch_id = batch_id if is_segment(batch_id) else event_batch(event.path)
    return batch_id, _keyed(event.document.get("repo")), None if target is None else spelled(target)


def _keyed(value: object) -> object:
    """Give something to compare any JSON value by, with a number and its text told apart."""
    return value if value is None or isinstance(value, str) else canonical(value)


class _Timed(Struct, frozen=True):
    event: Event
    at: datetime
    terminal: bool


def _plan_compaction(group: _Group, policy: Policy, now: datetime) -> Compact | None:
    if any(event.garbled for event in group.events):
        return None
    closed = any(_closes(event) for event in group.events)
    if not closed and not all(is_synthetic(event.document) for event in group.events):
        return None
    if any(_is_recent(event.document, policy, now) for event in group.events):
        return None  # before anything is said of the others: a group that stays need not be sound
    history = sorted(
        (_Timed(event, _require_time(event.path, event.document), _closes(event)) for event in group.events),
        key=lambda timed: (timed.at, timed.terminal, timed.event.path),
    )
    decisive = max(timed.at for timed in history if timed.terminal or not closed)
    reason = "terminal_target_events" if closed else "synthetic_orphan_events"
    sources = [(event.path, event.document) for event in group.events]
    return Compact(
        source_paths=tuple(path for path, _ in sources),
        archive_path=compaction_path(
            group.batch_id, lane=group.lane, repo=group.repo, target=group.target, sources=sources
        ),
        reason=reason,
        eligible_at=stamp(decisive),
        envelope=envelop_events(sources, _retained(history), reason=reason, now=now, days=policy.archive_days),
        removal=_removal(history),
    )


def _is_recent(record: Mapping[str, Any], policy: Policy, now: datetime) -> bool:
    instant = parse(_stated_time(record))
    return instant is not None and not _has_passed(record, instant, policy, now)


def _retained(history: Sequence[_Timed]) -> list[Document]:
    """Pick what an envelope keeps: both ends, every valid closing, and the events that changed the phase."""
    kept: list[Document] = []
    last = len(history) - 1
    previous: str | None = None
    for number, timed in enumerate(history):
        phase = text(timed.event.document, "phase")
        changed = phase is not None and phase != previous
        previous = phase or previous
        if changed or timed.terminal or number in (0, last) or last < 2:
            kept.append(timed.event.document)
    return kept


def _removal(history: Sequence[_Timed]) -> tuple[str, ...]:
    """Order the removal so that what is left after a kill is still a group that a next run finds eligible.

    It is the closing that makes a lane's events eligible, and that lends its lane to events without one: it goes last.
    """
    return tuple(timed.event.path for timed in sorted(history, key=lambda timed: timed.terminal))


# The archive ---------------------------------------------------------------------------------------


def meet(path: str, envelope: Document, planned: Archive | Compact | None, now: datetime) -> Action | None:
    """Decide what becomes of an envelope that is there, and of the plan to put one in its place.

    None: neither is touched. Raises StoreError for an envelope that cannot be judged.
    """
    delete_after = expiry(path, envelope)
    expired = delete_after <= now
    if planned is None:
        return Delete(path, "archive_expired", stamp(delete_after)) if expired else None
    if isinstance(planned, Compact) or keeps(envelope, planned.envelope):
        return planned
    return _replacing(planned) if expired else None


def _replacing(planned: Archive) -> Archive:
    reason = "expired_archive_replacement"
    return Archive(
        source_path=planned.source_path,
        archive_path=planned.archive_path,
        reason=reason,
        eligible_at=planned.eligible_at,
        envelope=planned.envelope | {"reason": reason},
        replaces=True,
    )


def first_source(action: Action) -> str:
    """Give the path that an action is sorted by wherever actions are shown."""
    return action.source_paths[0] if isinstance(action, Compact) else action.source_path
