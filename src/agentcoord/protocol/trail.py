"""The trail of a work item: what its events say, in one row each, ordered as they happened (spec: cli §10.2, §10.3).

Any record can be shown: what a field does not say is `?`, and nothing is inferred. Texts come out
scrubbed, so that a row is one line of a terminal and of a table whatever was recorded.
"""

import re
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any

import msgspec
from msgspec import Struct

from agentcoord.protocol.documents import Document, canonical, decode, encode, is_document
from agentcoord.protocol.events import PHASE_CHANGED, RELEASED
from agentcoord.protocol.instants import Exact, exact
from agentcoord.protocol.workitems import identify

UNSAID = "?"
"""What a row shows of a field that says nothing."""

_HANDOFF = "handoff"  # what releases to somebody were called once
_BLANK = " \t\n\v\f\r\0"
_BREAKS = re.compile(r"[\t\r\n]+")
_CONTROLS = re.compile(r"[\x00-\x1f\x7f-\x9f\ud800-\udfff]")
_DURATION = re.compile(r"([0-9]+)([mhdw])")
_UNITS = {"m": 60, "h": 3600, "d": 86400, "w": 604800}
_FAMILIES = ("codex", "claude")
EPOCH = datetime.fromisoformat("1970-01-01T00:00:00+00:00")
_LONGEST = 15  # digits of a duration: no calendar goes back as far as these many minutes


class InvalidText(Struct, frozen=True):
    """A record that is JSON but for its text, which is not UTF-8: it is neither shown nor passed over."""


INVALID_TEXT = InvalidText()


class EventRecord(Struct, gc=False):
    """The fields of an event that a row is made of, of any type; None where the record has none."""

    event_id: Any = None
    batch_id: Any = None
    type: Any = None
    at: Any = None
    machine_id: Any = None
    closed_by: Any = None
    host: Any = None
    agent_id: Any = None
    repo: Any = None
    target: Any = None
    phase: Any = None
    new_phase: Any = None
    terminal: Any = None
    status: Any = None
    old_phase: Any = None
    previous_phase: Any = None
    message: Any = None
    handoff_to: Any = None
    handoff_note: Any = None
    from_route: Any = None
    to_route: Any = None
    severity: Any = None
    category: Any = None
    reason: Any = None
    kind: Any = None
    synthetic: Any = None
    synthetic_kind: Any = None
    content: Any = None
    """Not the record's own: all of it in canonical form, where its ids do not tell it from another; else None."""


class Row(Struct, frozen=True, gc=False):
    """One event as it is shown. `repo` and `target` are None where the record names none."""

    at: str
    machine: str
    host: str
    work_item: str
    type: str
    phase: str
    agent_id: str
    batch_id: str
    detail: str
    host_raw: str
    event_id: str
    synthetic: bool
    synthetic_kind: str
    instant: Exact | None
    repo: str | None
    target: str | None


SHOWN = Row.__struct_fields__[:13]
"""The fields of a row that are printed, in their order."""


class Item(Struct, frozen=True):
    """A work item as it was asked for."""

    repo: str
    target: str

    def matcher(self) -> Callable[[object, object], bool]:
        """Give what tells whether a record's repository and target belong to the item or one of its lanes."""
        repo, asked, known = self.repo.lower(), identify(self.target), dict[str, bool]()

        def matches(other: object, target: object) -> bool:
            if not isinstance(other, str) or other.strip(_BLANK).lower() != repo or target is None:
                return False
            spelled = shown(target)
            if spelled not in known:
                named = identify(spelled)
                known[spelled] = named == asked or (asked.lane is None and named.base == asked.base)
            return known[spelled]

        return matches


class Narrowing(Struct, frozen=True):
    """Which rows of a trail are wanted. `since` is an instant; None and empty texts narrow nothing."""

    since: Exact | None = None
    machine: str | None = None
    host: str | None = None
    type: str | None = None

    def takes(self, row: Row) -> bool:
        """Tell whether a row is wanted; one without an instant is outside every window."""
        if self.since is not None and (row.instant is None or row.instant < self.since):
            return False
        if self.machine and row.machine.lower() != self.machine.lower():
            return False
        if self.host and row.host != family(self.host):
            return False
        return not self.type or row.type.lower() == self.type.lower()


# Reading -------------------------------------------------------------------------------------------


def reading(kind: Any, complete: Callable[[Any, bytes], object]) -> Callable[[bytes], object]:
    """Give what reads a record's bytes: a `kind` that was completed, INVALID_TEXT, or a value that is no object."""
    straight = msgspec.json.Decoder(kind).decode

    def read(data: bytes) -> object:
        # Straight decoding passes over what is not shown without looking at its text.
        if not data.isascii() and not _is_utf8(data):
            return invalid_text(data)
        try:
            return complete(straight(data), data)
        except (msgspec.MsgspecError, RecursionError):
            return decode(data)  # the plain decoder knows what it is, or what is wrong

    return read


def _is_utf8(data: bytes) -> bool:
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True


def invalid_text(data: bytes) -> InvalidText:
    """Judge bytes that are not UTF-8. Raises ValueError if they would not be JSON with any text in them either."""
    decode(data.decode(errors="replace").encode())
    return INVALID_TEXT


def _with_content(event: EventRecord, data: bytes) -> EventRecord:
    event.content = None
    if identity_of(event) is None:
        event.content = canonical(decode(data))
    return event


def identity_of(event: EventRecord) -> tuple[str, str] | bytes | None:
    """Tell an event from others by its batch and id, or else by its content; None when that was not kept."""
    batch_id, event_id = event.batch_id, event.event_id
    if isinstance(batch_id, str) and isinstance(event_id, str) and batch_id and event_id:
        return batch_id, event_id
    return event.content


read_event = reading(EventRecord, _with_content)
"""Read a live event's bytes: an EventRecord, INVALID_TEXT, or a value that is no object. Raises ValueError."""


def event_of(record: Document) -> EventRecord:
    """Take an event out of an archive envelope."""
    event = msgspec.convert(record, EventRecord)
    event.content = None
    if identity_of(event) is None:
        event.content = canonical(record)
    return event


# Rows ----------------------------------------------------------------------------------------------


def scrubbed(text: str) -> str:
    """Make one line of a text that moves no cursor and fits any output."""
    if text.isprintable():
        return text.strip(_BLANK)
    replaced = text.encode(errors="surrogatepass").decode(errors="replace") if not _encodes(text) else text
    return _CONTROLS.sub("", _BREAKS.sub(" ", replaced)).strip(_BLANK)


def _encodes(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def shown(value: object) -> str:
    """Spell a recorded value of any type; empty for one that says nothing."""
    if value is None:
        return ""
    if isinstance(value, str):
        return value.strip(_BLANK) if value.isprintable() else scrubbed(value)
    return scrubbed(encode(value).decode())


def first_shown(*values: object) -> str:
    """Spell the first of several values that says something; empty when none does."""
    for value in values:
        if value is not None and (text := shown(value)):
            return text
    return ""


def family(host: str) -> str:
    """Name the family of a host: its many spellings are one application's."""
    name = host.strip(_BLANK).lower()
    return next((known for known in _FAMILIES if name.startswith(known)), name)


def closer(closed_by: object, field: str) -> object:
    """Give what a record says of who closed its lane; None when it says nothing."""
    return closed_by.get(field) if is_document(closed_by) else None


def row_of(event: EventRecord) -> Row:
    """Show an event."""
    repo, target, host = shown(event.repo), shown(event.target), shown(event.host)
    at = shown(event.at)
    type_ = shown(event.type)
    return Row(
        at=at or UNSAID,
        machine=first_shown(event.machine_id, closer(event.closed_by, "machine")) or UNSAID,
        host=family(host) or UNSAID,
        work_item=f"{repo or UNSAID}#{target or UNSAID}" if repo or target else "-",
        type=type_ or UNSAID,
        phase=first_shown(event.phase, event.new_phase, event.terminal, event.status) or UNSAID,
        agent_id=first_shown(event.agent_id, closer(event.closed_by, "agent_id")) or UNSAID,
        batch_id=shown(event.batch_id) or UNSAID,
        detail=_detail(event, type_),
        host_raw=host or UNSAID,
        event_id=shown(event.event_id) or UNSAID,
        synthetic=event.synthetic is True,
        synthetic_kind=shown(event.synthetic_kind) or UNSAID,
        instant=exact(at),
        repo=repo or None,
        target=target or None,
    )


def _detail(event: EventRecord, type_: str) -> str:
    message = shown(event.message)
    if type_ == PHASE_CHANGED:
        old, new = first_shown(event.old_phase, event.previous_phase), first_shown(event.phase, event.new_phase)
        return f"{old} -> {new}" if old and new else message
    if type_ in (RELEASED, _HANDOFF):
        note, to = first_shown(event.handoff_note, event.message), shown(event.handoff_to)
        return f"-> {to} {note}".rstrip() if to else note
    if type_ == "escalation_requested":
        return f"{shown(event.from_route) or UNSAID} -> {shown(event.to_route) or UNSAID}"
    said: Sequence[object] = {
        "error": (event.severity, event.category),
        "help_requested": (event.reason,),
        "human_intervention": (event.kind,),
    }.get(type_, ())
    return " ".join(text for value in (*said, event.message) if (text := shown(value)))


def by_instant(row: Row) -> tuple[bool, Exact, str]:
    """Order rows as they happened; what has no readable instant comes first."""
    return instant_key(row.instant, row.event_id)


def instant_key(instant: Exact | None, event_id: str) -> tuple[bool, Exact, str]:
    """Order by an instant and then by id; no instant comes before all."""
    return instant is not None, instant or (0, ""), event_id


def parse_since(value: str, now: datetime) -> Exact | None:
    """Read the start of a window: a duration before now, or an instant. None for anything else."""
    found = _DURATION.fullmatch(value)
    if found is None:
        return exact(value)
    count = found[1].lstrip("0")
    minutes = int(count or "0") if len(count) <= _LONGEST else 10**_LONGEST
    age = now - EPOCH
    seconds = age.days * 86400 + age.seconds - minutes * _UNITS[found[2]]
    return seconds, f"{age.microseconds:06d}".rstrip("0")
