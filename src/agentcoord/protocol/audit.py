"""Whether a batch's trail is complete: every lane acquired, and ended by somebody who could.

The short rule counts signals. This also walks each lane's history in order and admits only agents
that acquired the lane, so that a forged or broken history is never complete (spec: cli §9).
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from msgspec import Struct

from agentcoord.protocol.batches import Lane, lanes_of, spelled
from agentcoord.protocol.closeout import closing_of, is_http_url
from agentcoord.protocol.documents import Document, is_document
from agentcoord.protocol.events import ACQUIRED, LANE_CLOSED, LIFECYCLE, PHASE_CHANGED, RELEASED
from agentcoord.protocol.instants import exact, is_rfc3339
from agentcoord.protocol.paths import is_repo
from agentcoord.protocol.records import LANE_CLOSED_SCHEMA_VERSION, SCHEMA_VERSION
from agentcoord.protocol.statuses import CLOSED
from agentcoord.protocol.workitems import folded

Folding = Callable[[str], str]


def _literal(target: str) -> str:
    return target


class LaneAudit(Struct, frozen=True):
    """What one lane's trail shows and lacks."""

    name: str
    owner: str
    targets: tuple[str, ...]
    event_count: int
    missing: tuple[str, ...]
    malformed: bool

    @property
    def complete(self) -> bool:
        """Tell whether nothing is missing."""
        return not self.missing


class History(Struct, frozen=True):
    """One lane's lifecycle as its events tell it.

    `sound`: ordered and every ordinary event valid. `admitted`: the agents who could act on the lane.
    `closings`: its lane_closed events are valid and agree (None: there are none).
    `released`: an admitted agent released it.
    """

    sound: bool
    admitted: frozenset[str]
    closings: bool | None
    released: bool


def usable(value: object) -> bool:
    """Tell whether a value says something: text that is neither blank nor the word UNKNOWN."""
    return isinstance(value, str) and bool(value.strip()) and value.strip().upper() != "UNKNOWN"


def audit_batch(batch_id: str, batch: Mapping[str, Any], events: Iterable[object]) -> list[LaneAudit]:
    """Audit every lane of a registered batch against its events."""
    attribution = Attribution(batch, events, folded)
    return [_audit_lane(batch_id, lane, attribution) for lane in lanes_of(batch)]


def _audit_lane(batch_id: str, lane: Lane, attribution: "Attribution") -> LaneAudit:
    if lane.malformed:
        return LaneAudit(lane.name, lane.owner, (), 0, (ACQUIRED, "terminal"), malformed=True)
    own = attribution.events_of(lane)
    history = read_history(batch_id, lane, own, attribution)
    missing: list[str] = []
    if not any(event.get("type") == ACQUIRED for event in own):
        missing.append(ACQUIRED)
    if not (history.released if history.closings is None else history.closings):
        missing.append("terminal")
    if not history.sound:
        missing.append("lifecycle")
    return LaneAudit(lane.name, lane.owner, lane.targets, len(own), tuple(missing), malformed=False)


def admits(batch_id: str, batch: Mapping[str, Any], events: Iterable[object], lane: Lane, agent_id: str) -> bool:
    """Tell whether a lane's recorded history lets an agent that is not its owner close it.

    Targets are compared to the letter here: what is written must not rest on an alias.
    """
    attribution = Attribution(batch, events, _literal)
    history = read_history(batch_id, lane, attribution.events_of(lane), attribution)
    return history.sound and history.closings is not False and agent_id in history.admitted


class Attribution:
    """Which events of a batch belong to which lane (spec: cli §9.2)."""

    def __init__(self, batch: Mapping[str, Any], events: Iterable[object], folding: Folding) -> None:
        """Take the batch's events; those of another repository are not considered at all."""
        repo = batch.get("repo")
        self._events: list[Document] = [
            event for event in events if is_document(event) and (not repo or event.get("repo") == repo)
        ]
        self._fold = folding
        self._sets: dict[tuple[str, ...], frozenset[str]] = {}
        lanes = [lane for lane in lanes_of(batch) if not lane.malformed]
        self._owners = Counter(lane.owner for lane in lanes)
        self._targets = Counter(target for lane in lanes for target in self._folded(lane))
        # A batch of many lanes has many events: each is looked at once, not once for every lane.
        self._by_lane: dict[str, list[int]] = {}
        self._by_target: dict[str, list[int]] = {}
        self._by_agent: dict[str, list[int]] = {}
        for position, event in enumerate(self._events):
            keys = ((self._by_lane, event.get("lane")), (self._by_agent, event.get("agent_id")))
            for index, key in (*keys, (self._by_target, self.target_of(event))):
                if isinstance(key, str):
                    index.setdefault(key, []).append(position)

    def _folded(self, lane: Lane) -> frozenset[str]:
        known = self._sets.get(lane.targets)
        if known is None:
            known = frozenset(self._fold(target) for target in lane.targets if target.strip())
            self._sets[lane.targets] = known
        return known

    def target_of(self, event: Mapping[str, Any]) -> str | None:
        """Read an event's target, folded; None when it names none."""
        target = event.get("target")
        return self._fold(spelled(target)) if target is not None and target != "" else None

    def belongs(self, event: Mapping[str, Any], lane: Lane) -> bool:
        """Tell whether an event's target is one of a lane's."""
        target = self.target_of(event)
        return target is not None and target in self._folded(lane)

    def unique(self, event: Mapping[str, Any]) -> bool:
        """Tell whether an event's target is one of exactly one lane."""
        target = self.target_of(event)
        return target is not None and self._targets[target] == 1

    def events_of(self, lane: Lane) -> list[Document]:
        """List the events that are attributed to a lane, in the order they came."""
        found = set(self._by_lane.get(lane.name, ()))
        for target in self._folded(lane):
            if self._targets[target] == 1:
                found.update(self._by_target.get(target, ()))
        if self._owners[lane.owner] == 1:
            found.update(
                position
                for position in self._by_agent.get(lane.owner, ())
                if self.target_of(self._events[position]) is None or self.belongs(self._events[position], lane)
            )
        return [self._events[position] for position in sorted(found)]


def read_history(batch_id: str, lane: Lane, events: Sequence[Document], attribution: Attribution) -> History:
    """Walk a lane's lifecycle events in order, admitting agents as they acquire it."""
    relevant = [event for event in events if event.get("type") in LIFECYCLE]
    ordered = _in_order(relevant)
    if ordered is None:
        closed = any(event.get("type") == LANE_CLOSED for event in relevant)
        return History(sound=False, admitted=frozenset(), closings=False if closed else None, released=False)
    admitted = {lane.owner} if usable(lane.owner) else set[str]()
    sound, released = True, False
    closings: list[Document] = []
    closings_valid = True
    for event in ordered:
        if event["type"] == LANE_CLOSED:
            closings.append(event)
            closings_valid &= _closing_valid(event, batch_id, lane, attribution, admitted)
            continue
        if not (
            _ordinary_valid(event, batch_id, lane, attribution) and _step_valid(event, lane, attribution, admitted)
        ):
            sound = False
        elif event["type"] == ACQUIRED:
            admitted.add(event["agent_id"])
        elif event["type"] == RELEASED:
            released = True
    agreed: bool | None = None
    if closings:
        first = closing_of(closings[0])
        agreed = closings_valid and all(first.agrees(closing_of(event), machine_counts=False) for event in closings)
    return History(sound=sound, admitted=frozenset(admitted), closings=agreed, released=released)


def _in_order(events: Sequence[Document]) -> list[Document] | None:
    keyed: list[tuple[Any, str, Document]] = []
    for event in events:
        at, name = event.get("at"), event.get("event_id")
        if not usable(name) or not is_rfc3339(at):
            return None
        keyed.append((exact(at), str(name), event))
    if len({key[:2] for key in keyed}) != len(keyed):
        return None
    return [event for _, _, event in sorted(keyed, key=lambda key: key[:2])]


def _ordinary_valid(event: Document, batch_id: str, lane: Lane, attribution: Attribution) -> bool:
    return (
        _is_version(event, SCHEMA_VERSION)
        and all(usable(event.get(field)) for field in ("event_id", "batch_id", "agent_id", "at"))
        and all(usable(event[field]) for field in ("lane", "repo", "target") if event.get(field) is not None)
        and event["batch_id"] == batch_id
        and event.get("lane") in (None, lane.name)
        and (event.get("target") is None or attribution.belongs(event, lane))
    )


def _step_valid(event: Document, lane: Lane, attribution: Attribution, admitted: set[str]) -> bool:
    agent, status = event["agent_id"], event.get("status")
    if event["type"] == ACQUIRED:
        if status not in (None, "active"):
            return False
        if agent == lane.owner:
            return True
        placed = event.get("lane") == lane.name or attribution.unique(event)
        return usable(lane.owner) and attribution.belongs(event, lane) and placed
    if event["type"] == RELEASED:
        return status in (None, "released") and agent in admitted
    return (status is None or usable(status)) and _phases_valid(event) and agent in admitted


def _phases_valid(event: Document) -> bool:
    phase = event.get("phase")
    if event["type"] != PHASE_CHANGED or not usable(phase):
        return False
    forms: list[bool] = []
    if event.get("previous_phase") is not None:
        forms.append(usable(event["previous_phase"]) and event["previous_phase"] != phase)
    old, new = event.get("old_phase"), event.get("new_phase")
    if old is not None or new is not None:
        forms.append(usable(old) and usable(new) and old != new and new == phase)
    return bool(forms) and all(forms)


def _closing_valid(event: Document, batch_id: str, lane: Lane, attribution: Attribution, admitted: set[str]) -> bool:
    closer = event.get("closed_by")
    return (
        is_terminal_event(event)
        and all(usable(event.get(field)) for field in ("event_id", "repo", "target", "terminal", "workspace", "at"))
        and all(usable(event[field]) for field in _OPTIONAL_FACTS if event.get(field) is not None)
        and is_document(closer)
        and all(usable(part) for part in closer.values())
        and event.get("batch_id") in (None, batch_id)
        and event.get("lane") in (None, lane.name)
        and attribution.belongs(event, lane)
        and closer["agent_id"] in admitted
        and event.get("agent_id") in (None, closer["agent_id"])
    )


_OPTIONAL_FACTS = ("batch_id", "lane", "agent_id", "branch", "host", "pr_url", "pr_state", "evidence_url")


def _is_version(event: Mapping[str, Any], version: int) -> bool:
    stated = event.get("schema_version")
    return isinstance(stated, int | float) and not isinstance(stated, bool) and stated == version  # JSON has 2.0 be 2


def is_terminal_event(event: Mapping[str, Any]) -> bool:
    """Tell whether an event is a valid version-2 closing event by itself (spec: cli §12.1)."""
    closer = event.get("closed_by")
    return (
        _is_version(event, LANE_CLOSED_SCHEMA_VERSION)
        and event.get("type") == LANE_CLOSED
        and event.get("terminal") in CLOSED
        and all(isinstance(event.get(field), str) and event[field] for field in ("event_id", "target", "workspace"))
        and is_repo_pair(event.get("repo"))
        and is_document(closer)
        and set(closer) == {"agent_id", "machine"}
        and all(isinstance(part, str) and part for part in closer.values())
        and is_rfc3339(event.get("at"))
        and all(
            isinstance(event[field], str) and event[field]
            for field in ("batch_id", "lane", "branch", "pr_state")
            if field in event
        )
        and all(is_http_url(event[field]) for field in ("pr_url", "evidence_url") if field in event)
    )


def is_repo_pair(value: object) -> bool:
    """Tell whether a value is two non-empty parts around one slash, as the published contract asks."""
    return is_repo(value) or (isinstance(value, str) and value.count("/") == 1 and all(value.split("/")))
