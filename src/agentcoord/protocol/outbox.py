"""What may wait for a backend that does not answer: in which order it is sent, how long apart, and what is given up.

Events are facts with a name of their own, so sending one twice makes no second one. Heartbeats are only ever newer or
older than the one that stands. Nothing else waits: a claim decided on yesterday's state would be a guess.
"""

import re
from bisect import insort
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

from msgspec import Struct
from msgspec.structs import replace

from agentcoord.errors import CoordError, Rejected, StoreError, Undecided, Unreadable, UsageError
from agentcoord.protocol.documents import INPUT_DEPTH, Document, depth, encode
from agentcoord.protocol.heartbeats import Beat
from agentcoord.protocol.identity import Identity
from agentcoord.protocol.instants import parse
from agentcoord.protocol.paths import agent_lane, batch_lane, event_path, heartbeat_path, is_segment, over_cap

MOST_ENTRIES = 10_000
"""Records that one outbox holds, those included that were set aside."""
MOST_BYTES = 32 * 1024 * 1024
"""Bytes that they hold together, each as JSON."""
LONGEST_PAUSE = 30.0
"""Seconds from one attempt to the next, unless the backend asks for more."""
LONGEST_ASKED = 3600.0
"""The longest that a backend can ask for."""
LEAST_PAUSE = 1.0
"""Seconds after an attempt before there is another one, whatever happens."""

_AHEAD = timedelta(hours=1)
_EVENT_ID = re.compile(r"\d{8}T\d{6}\.\d{6}Z-[0-9a-f]{8}", re.ASCII)
_CHANCE = re.compile(r"[0-9a-f]{8}", re.ASCII)

_UNAUTHORIZED, _CONFLICTS = 401, (409, 412)
_NOT_NOW = (408, 425, 429)
_TOO_LARGE = (413, 414, 431)


class Taken(StoreError):
    """Another record has the name of this one, which will never be free again."""


class LateEvent(Struct, frozen=True, tag_field="kind", tag="event"):
    """An event as it will stand, whenever it arrives."""

    record: Document

    @property
    def lane(self) -> str:
        """Name what it keeps its place in: the events of its batch."""
        return batch_lane(str(self.record.get("batch_id")))

    @property
    def path(self) -> str:
        """Name its record."""
        return event_path(str(self.record.get("batch_id")), str(self.record.get("event_id")))


class LateBeat(Struct, frozen=True, tag_field="kind", tag="heartbeat"):
    """What an agent said of itself at an instant. What its record will hold depends on the one that stands by then.

    `since` is when it said so first, and `chance` (8 hexadecimal digits) names the event of a phase change. `sent` is
    the record that may have been written already, and `event` then the phase change it made.
    """

    beat: Beat
    identity: Identity
    at: datetime
    chance: str
    sent: Document | None = None
    event: Document | None = None
    since: datetime | None = None

    @property
    def lane(self) -> str:
        """Name what it keeps its place in: the heartbeats of its agent."""
        return agent_lane(self.beat.agent_id)

    @property
    def path(self) -> str:
        """Name its record."""
        return heartbeat_path(self.beat.agent_id)


Late = LateEvent | LateBeat


def merged(older: Late, newer: Late) -> LateBeat | None:
    """Give a heartbeat that says all that two say of which the newer one adds but its time; None for any others.

    So an outage of days leaves one heartbeat for each thing an agent said, not for each time it said so.
    """
    if not (isinstance(newer, LateBeat) and isinstance(older, LateBeat)):
        return None
    same = (newer.beat, newer.identity) == (older.beat, older.identity)
    if not same or older.sent is not None or newer.sent is not None or newer.at < older.at:
        return None
    return replace(newer, since=older.since or older.at, chance=older.chance)


def require_shallow(late: Late) -> None:
    """Check that what is kept can be read again: it must not nest too deeply. Raises UsageError."""
    held = (late.record,) if isinstance(late, LateEvent) else (late.beat.metadata, late.sent, late.event)
    if any(depth(each) > INPUT_DEPTH for each in held):
        raise UsageError(f"it is nested deeper than {INPUT_DEPTH} levels")


def require_late(late: Late, now: datetime) -> None:
    """Check what comes from a file that anybody of this user may have written. Raises UsageError."""
    require_shallow(late)
    if isinstance(late, LateEvent):
        _require_event(late.record, now)
        return
    beat = late.beat
    if not is_segment(beat.agent_id) or beat.ttl <= 0 or _CHANCE.fullmatch(late.chance) is None:
        raise UsageError("no heartbeat that this program would have made")
    for at in (late.at, late.since or late.at):
        _require_past(at, now)
    if late.event is not None:
        _require_event(late.event, now)


def _require_event(record: Document, now: datetime) -> None:
    name, at = record.get("event_id"), parse(record.get("at"))
    if not isinstance(name, str) or _EVENT_ID.fullmatch(name) is None or at is None:
        raise UsageError("no event that this program would have made")
    if not (is_segment(record.get("batch_id")) and is_segment(record.get("type"))):
        raise UsageError("an event without a batch or a type")
    if (fault := over_cap(LateEvent(record).path, len(encode(record)))) is not None:
        raise UsageError(fault)
    _require_past(at, now)


def _require_past(at: datetime, now: datetime) -> None:
    try:
        at.astimezone(UTC)
    except OverflowError:
        raise UsageError("it is of no year that there is") from None
    if at.tzinfo is None or at > now + _AHEAD:
        raise UsageError("it is of the future: nothing after it would count")


# What an outcome means -------------------------------------------------------------------------------


def may_wait(error: StoreError) -> bool:
    """Tell whether a command that ended so may be queued: no yes and no no came of its backend (spec: http §8)."""
    if isinstance(error, Rejected):
        return error.status in _NOT_NOW or not 400 <= error.status < 500
    return isinstance(error, Undecided)


def is_refusal(error: CoordError) -> bool:
    """Tell whether a backend will not take this record, however often it is asked; anything else is tried again.

    A token that is turned down says nothing about the record, and a page without the backend's own word is not its.
    """
    if isinstance(error, Rejected):
        status = error.status
        if status in _NOT_NOW or status in _CONFLICTS or status == _UNAUTHORIZED or not 400 <= status < 500:
            return False
        return error.worded or status in _TOO_LARGE
    return isinstance(error, UsageError | Unreadable | Taken)


def pause_after(failures: int, error: CoordError, chance: float) -> float:
    """Give the seconds until the next attempt after so many failures in a row; `chance` is from 0 to 1.

    Twice as long each time, and never quite the same, so that a fleet does not come back all at once.
    """
    pause = min(LEAST_PAUSE * 2.0 ** min(failures, 16), LONGEST_PAUSE) * (0.5 + chance / 2)
    asked = error.retry_after if isinstance(error, Rejected) else None
    return max(pause, LEAST_PAUSE, min(asked or 0.0, LONGEST_ASKED))


def is_throttled(error: CoordError) -> bool:
    """Tell whether a backend that answers others asked just this one to come back later."""
    return isinstance(error, Rejected) and error.status == 429 and error.retry_after is not None


class Order:
    """What waits for one backend. Of each lane only the first may be sent, and the lanes take turns."""

    def __init__(self) -> None:
        self._lanes: dict[str, list[int]] = {}

    def __bool__(self) -> bool:
        return bool(self._lanes)

    def add(self, lane: str, number: int) -> None:
        """Put an entry in its place: that of its number, which grows with time."""
        insort(self._lanes.setdefault(lane, []), number)

    def remove(self, lane: str, number: int) -> None:
        """Take an entry out; one that is not there is no error."""
        waiting = self._lanes.get(lane, [])
        if number in waiting:
            waiting.remove(number)
        if not waiting:
            self._lanes.pop(lane, None)

    def holds(self, lane: str) -> bool:
        """Tell whether something of a lane waits, which later things have to stay behind."""
        return lane in self._lanes

    def last(self, lane: str) -> int | None:
        """Give the last entry of a lane."""
        return self._lanes[lane][-1] if lane in self._lanes else None

    def heads(self) -> list[int]:
        """Give the first entry of each lane."""
        return [waiting[0] for waiting in self._lanes.values()]

    def take(self, ready: Callable[[int], bool]) -> int | None:
        """Give the first entry of the lane whose turn it is among those that are ready; it stays in its place."""
        for lane, waiting in self._lanes.items():
            if ready(waiting[0]):
                self._lanes[lane] = self._lanes.pop(lane)  # to the end of the queue
                return waiting[0]
        return None
