"""Gathering what the next agent needs to go on with a work item, from all records that speak of it. Only reads."""

from msgspec import Struct, field

from agentcoord.errors import Defect, Rejected, TooMany, Unreadable, UsageError
from agentcoord.operations.attention import QueueRequest, read_queue
from agentcoord.operations.context import Context, read_object
from agentcoord.operations.status import claims_on
from agentcoord.operations.trail import TrailRequest, read_trail
from agentcoord.protocol.attention import urgency
from agentcoord.protocol.claims import Handoff, handoff_of
from agentcoord.protocol.custody import is_on
from agentcoord.protocol.documents import Document, text
from agentcoord.protocol.events import RELEASED
from agentcoord.protocol.paths import event_path, heartbeat_path, is_segment, require_repo, require_segment
from agentcoord.protocol.resume import Found, Tenure, foremost, said_of, tenure
from agentcoord.protocol.trail import UNSAID, Item, Row
from agentcoord.protocol.workitems import identify

LAST = 10
"""Events shown, unless another number is asked for."""

_LOOKED_THROUGH = 10
"""Events whose records are read for what the item's claim and heartbeat do not say."""


class ResumeRequest(Struct, frozen=True):
    """The work item to go on with, and how many of its last events to show."""

    repo: str
    target: str
    limit: int = LAST


class Resume(Struct):
    """What there is to know of a work item. What no record says is None; `notes` say what could not be read."""

    repo: str
    target: str
    tenure: Tenure
    claim: Document | None = None
    path: str | None = None
    """Where the claim stands that `tenure` is about."""
    others: list[str] = field(default_factory=list[str])
    """Paths of claims on the same item under other spellings of its target."""
    branch: str | None = None
    phase: str | None = None
    pr_url: str | None = None
    batch_id: str | None = None
    handoff: Handoff | None = None
    events: list[Row] = field(default_factory=list[Row])
    earlier: int = 0
    """How many events there are before those."""
    attention: list[Document] = field(default_factory=list[Document])
    """What is still asked about the item, the most urgent first."""
    notes: list[str] = field(default_factory=list[str])


async def resume(context: Context, request: ResumeRequest) -> Resume:
    """Gather what is known of a work item, under any spelling of its target.

    Raises UsageError for an invalid request, StoreError when the backend, the item's own claim or a listing in doubt
    cannot be read; what only a part of the answer rests on costs a note.
    """
    require_repo(request.repo, "target repo")
    require_segment(request.target, "target")
    if request.limit < 0:
        raise UsageError(f"--limit must not be negative, got {request.limit}")
    read, notes = await claims_on(context, request.repo, request.target)
    claims = [Found(path, claim) for path, claim, _ in read]
    chosen = foremost(claims)
    claim = None if chosen is None else chosen.claim
    beat = None if claim is None else await _beat(context, text(claim, "agent_id"), notes)
    rows = await _rows(context, request, notes)
    found = Resume(
        repo=request.repo,
        target=request.target,
        tenure=tenure(claim, beat, context.now()),
        claim=claim,
        path=None if chosen is None else chosen.path,
        others=[each.path for each in claims if each is not chosen],
        events=rows[-request.limit :] if request.limit else [],
        earlier=max(len(rows) - request.limit, 0),
        notes=notes,
    )
    # A heartbeat may be about other work of the same agent, and then says nothing of this.
    about = beat if beat is not None and _is_about(beat, request) else None
    # Whoever claimed it last may not have said again what the one before said.
    before = await _beat_before(context, request, found.tenure.holder, rows, notes)
    last = _Last(context, rows, notes)
    newest_first = (about, claim, before) if found.tenure.standing == "held" else (claim, about, before)
    found.phase = said_of(newest_first, "phase") or await last.said("phase")
    found.batch_id = said_of((claim, about, before), "batch_id")
    found.branch = said_of((claim, about, before), "branch") or await last.said("branch")
    found.pr_url = said_of((claim, about, before), "pr_url") or await last.said("pr_url")
    found.handoff = await _handoff(claim, last)
    found.attention = await _attention(context, request, notes)
    return found


async def _beat(context: Context, agent_id: str | None, notes: list[str]) -> Document | None:
    if agent_id is None or not is_segment(agent_id):
        return None
    try:
        read = await read_object(context.store, heartbeat_path(agent_id), "a heartbeat")
    except Unreadable as error:
        notes.append(f"the heartbeat of {agent_id} cannot be read: {error.defect.value}")
        return None
    if read is None or read[0].get("agent_id") not in (None, agent_id):
        return None
    return read[0]


async def _beat_before(
    context: Context, request: ResumeRequest, holder: str | None, rows: list[Row], notes: list[str]
) -> Document | None:
    """Read the heartbeat of the last other agent that the trail names, if it is still about the item."""
    agents = (row.agent_id for row in reversed(rows) if row.agent_id not in (holder, UNSAID))
    beat = await _beat(context, next(agents, None), notes)
    return beat if beat is not None and _is_about(beat, request) else None


def _is_about(beat: Document, request: ResumeRequest) -> bool:
    repo, target = text(beat, "repo"), text(beat, "target")
    if repo is None or target is None:
        return False
    return is_on(Item(request.repo, request.target), repo, target)


async def _rows(context: Context, request: ResumeRequest, notes: list[str]) -> list[Row]:
    """Read the item's trail; what is said of its gaps joins the notes."""
    before = len(context.notices)
    trail = await read_trail(context, TrailRequest(repo=request.repo, target=request.target, include_synthetic=True))
    said = context.notices[before:]
    del context.notices[before:]
    notes += [notice.removeprefix("warning: ") for notice in said if notice.startswith("warning: ")]
    if trail.incomplete and len(notes) == 0:
        notes.append(f"not read in full: {', '.join(trail.incomplete)}")
    return trail.rows


class _Last:
    """The last events of an item as they were recorded, read when somebody asks for what their lines do not show."""

    def __init__(self, context: Context, rows: list[Row], notes: list[str]) -> None:
        self._context, self._rows, self._notes = context, rows, notes
        self._read: dict[str, Document | None] = {}

    @property
    def release(self) -> Row | None:
        """The line of the last release."""
        return next((row for row in reversed(self._rows) if row.type == RELEASED), None)

    async def said(self, field: str) -> str | None:
        """Find what the latest of them that says it says of a field."""
        for row in reversed(self._rows[-_LOOKED_THROUGH:]):
            record = await self.record(row)
            if record is not None and (found := text(record, field)) is not None:
                return found
        return None

    async def record(self, row: Row) -> Document | None:
        """Read a line's record; None of one that is archived, cannot be read, or has ids that name no path."""
        if not (is_segment(row.batch_id) and is_segment(row.event_id)):
            return None
        path = event_path(row.batch_id, row.event_id)
        if path not in self._read:
            try:
                read = await read_object(self._context.store, path, "an event")
            except Unreadable as error:
                self._notes.append(f"{path} cannot be read: {error.defect.value}")
                read = None
            self._read[path] = None if read is None else read[0]
        return self._read[path]


async def _handoff(claim: Document | None, last: _Last) -> Handoff | None:
    """Find what was said when the item was last given back: the claim tells it until somebody else takes the item."""
    if claim is not None and (said := handoff_of(claim)) is not None:
        return said
    released = last.release
    if released is None or not released.detail:
        return None
    record = await last.record(released)
    if record is not None and (said := handoff_of(record)) is not None:
        return said
    return Handoff(to=None, note=released.detail, by=_or_none(released.agent_id), at=released.at)


def _or_none(shown: str) -> str | None:
    return None if shown == UNSAID else shown


async def _attention(context: Context, request: ResumeRequest, notes: list[str]) -> list[Document]:
    try:
        queue = await read_queue(context, QueueRequest(repository=request.repo, limit=1_000))
    except Unreadable as error:
        if error.defect is not Defect.FORBIDDEN:
            raise
        notes.append("attention not readable by scoped token")
        return []
    except Rejected as error:
        if not error.unsupported:
            raise
        notes.append("attention not supported by backend")
        return []
    except TooMany as error:
        notes.append(str(error))
        return []
    notes += queue.missing
    item = identify(request.target)
    found = [record for record in queue.records if _targets(record) == item]
    return sorted(found, key=urgency)


def _targets(record: Document) -> object:
    return identify(str(record["target"]))
