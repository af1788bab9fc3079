"""What the clients of a fleet asked and were told: an append-only list, and the promises it is checked against.

The check is a pure function of the history, of the database's own list of changes and of what the database holds at
the end. An outcome that nobody knows may have been either; all else has to fit to the letter.
"""

import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal, NamedTuple, cast

import msgspec
from msgspec import Struct

from agentcoord.protocol.instants import parse
from agentcoord.protocol.liveness import DEAD_AFTER_TTLS

Stage = Literal["invoke", "ok", "fail", "unknown"]


class Event(Struct, frozen=True, omit_defaults=True):
    """One line of a history. `wall` and `monotonic` are seconds; what was asked stands in the invocation.

    `call` joins an invocation with its outcome. `expected` is the version that a write was conditional on, None for
    none; `version` the one that was answered. A claim's outcome names its fence and whether it only renewed.
    """

    call: int
    client: str
    stage: Stage
    action: str
    path: str
    wall: float
    monotonic: float
    expected: int | None = None
    version: int | None = None
    document: Any = None
    fence: str | None = None
    renewed: bool | None = None
    why: str | None = None


class Change(NamedTuple):
    """A row of the database's own list: what it did, for whom, in order."""

    path: str
    version: int
    deleted: bool
    client: str


class Final(NamedTuple):
    """What the database holds at a path."""

    version: int
    document: Any


class Clock:
    """The time of day, read once and carried on by the monotonic clock.

    It is the real time, but does not step: a clock that is set while the test runs would move leases of clients that
    share it, and say nothing of the servers.
    """

    def __init__(self) -> None:
        self._began, self._at = time.time(), time.monotonic()

    def monotonic(self) -> float:
        return time.monotonic()

    def wall(self) -> float:
        return self._began + (time.monotonic() - self._at)

    def now(self) -> datetime:
        return datetime.fromtimestamp(self.wall(), UTC)


class History:
    """The list as it grows. An invocation is on it before anything is sent, an outcome once it is known."""

    def __init__(self, clock: Clock) -> None:
        self.events: list[Event] = []
        self._clock = clock
        self._asked: dict[int, Event] = {}

    def invoke(self, client: str, action: str, path: str, *, expected: int | None = None, document: Any = None) -> int:
        call = len(self.events)
        times = self._clock.wall(), self._clock.monotonic()
        self._asked[call] = Event(call, client, "invoke", action, path, *times, expected=expected, document=document)
        self.events.append(self._asked[call])
        return call

    def ok(self, call: int, **told: Any) -> None:
        self._outcome(call, "ok", told)

    def fail(self, call: int, why: str) -> None:
        self._outcome(call, "fail", {"why": why})

    def unknown(self, call: int, why: str) -> None:
        self._outcome(call, "unknown", {"why": why})

    def save(self, path: Path, notes: Mapping[str, Any]) -> None:
        """Keep it as JSON Lines, after a first line of notes."""
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"\n".join(msgspec.json.encode(line) for line in [notes, *self.events]) + b"\n")

    def _outcome(self, call: int, stage: Stage, told: Mapping[str, Any]) -> None:
        asked = self._asked.pop(call)
        times = self._clock.wall(), self._clock.monotonic()
        self.events.append(Event(call, asked.client, stage, asked.action, asked.path, *times, **told))


class Call(NamedTuple):
    """An invocation and what came of it; one that nothing came of is unknown, and never ended."""

    asked: Event
    told: Event | None

    @property
    def ok(self) -> Event | None:
        """The answer of a call that was granted."""
        return self.told if self.told is not None and self.told.stage == "ok" else None

    @property
    def unknown(self) -> bool:
        return self.told is None or self.told.stage == "unknown"


def calls(events: Iterable[Event]) -> list[Call]:
    """Join invocations with their outcomes, in the order of the invocations."""
    listed = list(events)
    told = {event.call: event for event in listed if event.stage != "invoke"}
    return [Call(event, told.get(event.call)) for event in listed if event.stage == "invoke"]


def check(events: Iterable[Event], changes: Sequence[Change], final: Mapping[str, Final]) -> list[str]:
    """Name every promise that is broken; no line for a history that may have happened."""
    made = calls(events)
    return [
        *_holders(made),
        *_writes(made, changes),
        *_fences(made),
        *_reads(made, changes),
        *_chains(changes, final),
        *_contents(made, changes, final),
    ]


# 1. No two agents hold one lease at any instant -----------------------------------------------------


class Hold(NamedTuple):
    """A time in which an agent may act on its lease; `end` is the first instant at which it may not."""

    start: float
    end: float
    client: str
    version: int


def holds(made: Sequence[Call]) -> dict[str, list[Hold]]:
    """Tell who held what, and when, by path.

    A lease is held from the acknowledgement of the write that made or renewed it, and no longer than any record says
    that may be the stored one: the acknowledged record, or a renewal whose answer is still out. It ends as well when
    its holder sets out to release it, and when the heartbeat that stood before the write is dead: whoever decides on
    the record after that has read this heartbeat or a later one. (A later one may come too late for a decision that
    is under way, so it prolongs nothing before the next renewal.)

    The end is exclusive. Stamps carry whole seconds, rounded down: a lease of `…:07Z` ends at 7.000000, where its
    holder has to have stopped and a taker, who asks whether the end is later than now, may begin. So a holder's last
    and a taker's first instant never are the same, and both sides need no margin.
    """
    beats: dict[str, list[Call]] = defaultdict(list)
    claims: dict[tuple[str, str], list[Call]] = defaultdict(list)
    for call in _written(made):
        if call.asked.path.startswith("heartbeats/"):
            beats[call.asked.client].append(call)
        elif call.asked.path.startswith("claims/") and call.asked.action == "write":
            claims[call.asked.client, call.asked.path].append(call)
    found: dict[str, list[Hold]] = defaultdict(list)
    for (client, path), writes in claims.items():
        for place, write in enumerate(writes):
            answer = write.ok
            if answer is None or answer.version is None or write.asked.document["status"] != "active":
                continue
            ends = [_expiry(write), _death(beats[client], write.asked.wall)]
            ends += _ends_after(writes[place + 1 :])
            if min(ends) > answer.wall:
                found[path].append(Hold(answer.wall, min(ends), client, answer.version))
    return found


def _written(made: Iterable[Call]) -> Iterator[Call]:
    """Walk the writes that are in the database or may be."""
    for call in made:
        if call.asked.action in ("write", "delete") and (call.ok is not None or call.unknown):
            yield call


def _expiry(write: Call) -> float:
    expires = parse(write.asked.document["expires_at"])
    assert expires is not None, write
    return expires.timestamp()


def _ends_after(later: Iterable[Call]) -> Iterator[float]:
    """What cuts a lease short, of the writes that follow, up to the next that is acknowledged."""
    for write in later:
        if write.asked.document["status"] != "active":
            yield write.asked.wall
            return
        yield max(_expiry(write), write.asked.wall)
        if write.ok is not None:
            yield write.ok.wall  # from here on that one is what the lease rests on
            return


def _death(beats: Iterable[Call], asked: float) -> float:
    """When the heartbeat is dead that stood when a write was asked for; never, if there was none."""
    death = float("inf")
    for beat in beats:
        if beat.asked.wall >= asked:
            break
        updated, expires = parse(beat.asked.document["updated_at"]), parse(beat.asked.document["expires_at"])
        assert updated is not None, beat
        assert expires is not None, beat
        dead = (updated + DEAD_AFTER_TTLS * (expires - updated)).timestamp()
        stands = beat.ok is not None and beat.ok.wall <= asked
        death = dead if stands else min(death, dead)
    return death


def _holders(made: Sequence[Call]) -> Iterator[str]:
    for path, times in holds(made).items():
        longest: Hold | None = None
        for hold in sorted(times):
            if longest is not None and hold.start < longest.end and hold.client != longest.client:
                yield f"two holders: {path}: {longest} and {hold}"
            if longest is None or hold.end > longest.end:
                longest = hold


# 2. Every acknowledged write is in the database, and nothing else is but what may be there ----------


def _made_by(call: Call) -> Change:
    """Name the change that a write makes if it is made."""
    expected = call.asked.expected
    deleted = call.asked.action == "delete"
    version = cast("int", expected) if deleted else 1 if expected is None else expected + 1
    return Change(call.asked.path, version, deleted, call.asked.client)


def _writes(made: Sequence[Call], changes: Sequence[Change]) -> Iterator[str]:
    present = Counter(changes)
    won, open_ = Counter[Change](), Counter[Change]()
    for call in _written(made):
        change = _made_by(call)
        if call.ok is None:
            open_[change] += 1
            continue
        won[change] += 1
        if not change.deleted and call.ok.version != change.version:
            yield f"another version than asked for: {change}: {call.ok.version}"
    for change, count in won.items():
        if count > present[change]:
            yield f"a yes that the database does not know: {change}: {count} times, there {present[change]} times"
    for change, count in present.items():
        if count > won[change] + open_[change]:
            yield f"in the database, and nobody may have written it: {change}"
    never_deleted = {change.path for change in changes} - {change.path for change in changes if change.deleted}
    winners: dict[tuple[str, int], set[str]] = defaultdict(set)
    for path, version, _, client in won:
        if path in never_deleted:
            winners[path, version].add(client)
    for (path, version), clients in winners.items():
        count = sum(won[Change(path, version, deleted=False, client=client)] for client in clients)
        if count > 1:
            yield f"won more than once: {path} version {version}: by {sorted(clients)}"


# 3. A fence names one acquisition -------------------------------------------------------------------


def _fences(made: Sequence[Call]) -> Iterator[str]:
    owner: dict[str, tuple[str, str]] = {}
    acquired = set[str]()
    steps: dict[str, list[tuple[int, str | None, bool]]] = defaultdict(list)
    for call in made:
        told, asked = call.ok, call.asked
        if told is None:
            continue
        if asked.action == "claim":
            fence, version = cast("str", told.fence), cast("int", told.version)
            if owner.setdefault(fence, (asked.client, asked.path)) != (asked.client, asked.path):
                yield f"one fence for two: {fence}: {owner[fence]} and {(asked.client, asked.path)}"
            if not told.renewed:
                if fence in acquired:
                    yield f"one fence for two acquisitions: {fence}: {asked.client} {asked.path}"
                acquired.add(fence)
            steps[asked.path].append((version, fence, told.renewed is True))
        elif asked.action == "write" and asked.path.startswith("claims/") and asked.document["status"] != "active":
            steps[asked.path].append((cast("int", told.version), None, False))
    for path, known in steps.items():
        yield from _ended_fences(path, sorted(known, key=lambda step: step[0]))


def _ended_fences(path: str, steps: Sequence[tuple[int, str | None, bool]]) -> Iterator[str]:
    ended = set[str]()
    for (earlier, before, _), (later, after, renewed) in pairwise(steps):
        if before is not None and before != after:
            ended.add(before)
        if after in ended:
            yield f"a fence that came back: {path} version {later}: {after}"
        if renewed and later == earlier + 1 and before != after:
            yield f"a renewal with another fence: {path} version {later}: {before}, then {after}"


# Reads, and what is left at the end -----------------------------------------------------------------


def _reads(made: Sequence[Call], changes: Sequence[Change]) -> Iterator[str]:
    """Whatever server is asked, it shows no less than what any of them had acknowledged or shown before."""
    deleted = {change.path for change in changes if change.deleted}  # versions begin anew there
    known: dict[str, int] = defaultdict(int)
    floors: dict[int, int] = {}
    events = [event for call in made for event in (call.asked, call.told) if event is not None]
    for event in sorted(events, key=lambda event: event.monotonic):
        if event.action not in ("read", "write") or event.path in deleted:
            continue
        if event.stage == "invoke":
            floors[event.call] = known[event.path]
        elif event.stage == "ok":
            seen = event.version or 0
            if event.action == "read" and seen < floors[event.call]:
                yield f"a stale read: {event.path}: version {seen} after {floors[event.call]} was known"
            known[event.path] = max(known[event.path], seen)


def _chains(changes: Sequence[Change], final: Mapping[str, Final]) -> Iterator[str]:
    """A path's versions follow one another without a gap, and it ends as the last of them left it."""
    stands: dict[str, int] = {}
    for change in changes:
        before = stands.get(change.path, 0)
        if change.version != (before if change.deleted else before + 1):
            yield f"versions with a gap: {change.path}: {change.version} after {before}"
        stands[change.path] = 0 if change.deleted else change.version
    for path in sorted({*stands, *final}):
        held = final[path].version if path in final else 0
        if held != stands.get(path, 0):
            yield f"not what the last change left: {path}: version {held}, not {stands.get(path, 0)}"


def _contents(made: Sequence[Call], changes: Sequence[Change], final: Mapping[str, Final]) -> Iterator[str]:
    """What is stored at the end is what somebody sent who was told yes, or may have been.

    A path that was deleted has the same versions again, so that a change of the same name may be there more often than
    somebody was told yes.
    """
    present, last = Counter(changes), {change.path: change for change in changes}
    won: dict[Change, list[Any]] = defaultdict(list)
    open_: dict[Change, list[Any]] = defaultdict(list)
    for call in _written(made):
        (open_ if call.ok is None else won)[_made_by(call)].append(call.asked.document)
    for path, held in final.items():
        if (change := last.get(path)) is None:
            continue
        sent = won[change] if present[change] <= len(won[change]) else [*won[change], *open_[change]]
        if held.document not in sent:
            yield f"not what was written: {path} version {held.version}"


def figures(events: Sequence[Event]) -> Counter[str]:
    """Count what happened: calls by action and outcome."""
    return Counter(f"{event.action} {event.stage}" for event in events if event.stage != "invoke")
