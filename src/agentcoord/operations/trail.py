"""Reading the trail: live events, what the archive still has of them, and claims that left none (spec: cli §10).

Whatever cannot be read makes the trail incomplete and says so; only what would make the answer wrong
is raised. Nothing is written.
"""

from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import TypeVar

from msgspec import Struct, field

from agentcoord.errors import StoreError, UsageError
from agentcoord.operations.context import Context
from agentcoord.operations.skimming import Skimming
from agentcoord.operations.sources import ARCHIVE, Report, Source
from agentcoord.protocol.custody import ClaimRecord, ClaimRow, Held, current_claims, held, is_on, read_claim
from agentcoord.protocol.envelopes import (
    Envelope,
    Folded,
    Identity,
    Scope,
    Tally,
    fold,
    identities,
    incomplete,
    open_envelope,
    provenance,
    read_envelope_bytes,
    tally,
)
from agentcoord.protocol.instants import Exact
from agentcoord.protocol.paths import claim_key, require_repo, require_segment
from agentcoord.protocol.remembered import Hints
from agentcoord.protocol.trail import (
    EventRecord,
    Item,
    Narrowing,
    Row,
    by_instant,
    identity_of,
    parse_since,
    read_event,
    row_of,
)

EVENTS = "events"
CLAIMS = "claims"

_Made = TypeVar("_Made")
_ANY_TIME = datetime(2026, 1, 1, tzinfo=UTC)


class TrailRequest(Struct, frozen=True):
    """Which trail to read, as it was asked for. `work_item` is OWNER/REPO#TARGET."""

    work_item: str | None = None
    repo: str | None = None
    target: str | None = None
    since: str | None = None
    machine: str | None = None
    host: str | None = None
    type: str | None = None
    limit: int | None = None
    format: str | None = None
    sync: bool = False
    include_synthetic: bool = False

    @property
    def narrowed_by(self) -> dict[str, str]:
        """Map each option that leaves out rows of a trail to its value, as typed."""
        given = {"--since": self.since, "--machine": self.machine, "--host": self.host, "--type": self.type}
        named = {option: value for option, value in given.items() if value}
        return named if self.limit is None else named | {"--limit": str(self.limit)}

    @property
    def item(self) -> Item | None:
        """Give the work item; None for the whole feed."""
        if self.work_item:
            repo, _, target = self.work_item.rpartition("#")
            return Item(repo, target)
        return Item(self.repo or "", self.target or "") if self.repo is not None or self.target is not None else None


class Trail(Report, kw_only=True):
    """What was read. `in_scope` counts the rows before anything but the work item narrowed them."""

    request: TrailRequest
    rows: list[Row] = field(default_factory=list[Row])
    in_scope: int = 0
    matched: list[str] = field(default_factory=list[str])
    claims: list[ClaimRow] = field(default_factory=list[ClaimRow])


def require_query(request: TrailRequest, *, json: bool) -> None:
    """Check what was asked for. Raises UsageError for the first fault."""
    if request.work_item and (request.repo is not None or request.target is not None):
        raise UsageError("give the work item either positionally or with --repo/--target, not both")
    if (request.repo is None) != (request.target is None):
        raise UsageError("--repo and --target must be given together")
    if (item := request.item) is not None:
        if request.work_item and "#" not in request.work_item:
            raise UsageError(f"invalid work item repo: {request.work_item}")
        require_repo(item.repo, "work item repo")
        require_segment(item.target, "work item target")
    if request.format and request.format not in ("text", "tsv"):
        raise UsageError("--format must be text or tsv")
    if json and request.format:
        raise UsageError("--json and --format are mutually exclusive")
    if request.limit is not None and request.limit < 0:
        raise UsageError(f"--limit must not be negative, got {request.limit}")
    _require_since(request)
    if request.sync:
        narrowing = [*request.narrowed_by, *(["a work item"] if item is not None else [])]
        if narrowing:
            raise UsageError(f"--sync mirrors the complete trail and cannot be narrowed by {', '.join(narrowing)}")


def _require_since(request: TrailRequest) -> None:
    # Whether it can be read does not depend on the clock.
    if request.since and parse_since(request.since, _ANY_TIME) is None:
        raise UsageError(f'--since expects a duration like 3d or an ISO8601 timestamp, got "{request.since}"')


async def read_trail(context: Context, request: TrailRequest) -> Trail:
    """Read a trail that `require_query` let through. Raises StoreError when the backend or a record is in doubt."""
    trail = Trail(request=request)
    item = request.item
    scope = Scope(None if item is None else item.matcher(), request.include_synthetic)
    rows = await _rows(context, trail, scope, lambda row: row)
    rows.sort(key=by_instant)
    trail.in_scope = len(rows)
    now = context.now()
    since: Exact | None = parse_since(request.since, now) if request.since else None
    narrowing = Narrowing(since, request.machine, request.host, request.type)
    trail.rows = [row for row in rows if narrowing.takes(row)]
    if item is not None:
        matched = {row.target for row in trail.rows if row.target is not None}
        if not (request.since or request.machine or request.host or request.type or request.limit == 0):
            trail.claims = current_claims(await _claims_on(context, trail, item), rows, now)
        trail.matched = sorted(matched | {claim.target for claim in trail.claims})
    if request.limit is not None:
        trail.rows = trail.rows[-request.limit :] if request.limit else []
    context.notices.extend(trail.notices)
    return trail


async def read_lines(
    context: Context, request: TrailRequest, spell: Callable[[Row], str], skimming: Skimming | None = None
) -> list[str]:
    """Read the whole trail as lines, in no order: all of it as rows would be many times as large.

    With `skimming`, only the lines of what that does not skip. Raises StoreError for a trail, or for claims,
    that could not be read in full; why is in the notices.
    """
    trail = Trail(request=request)
    lines = await _rows(context, trail, Scope(None, request.include_synthetic), spell, skimming)
    await _probe_claims(context, trail, skimming)
    context.notices.extend(trail.notices)
    if trail.incomplete:
        raise StoreError(f"refusing to sync an incomplete trail: {', '.join(trail.incomplete)}")
    return lines


async def _rows(
    context: Context, trail: Trail, scope: Scope, made: Callable[[Row], _Made], skimming: Skimming | None = None
) -> list[_Made]:
    """Give what is made of the rows of a scope, live ones first; what there is to say of them is noted."""
    live = Source(context, trail, EVENTS, "events", read_event)
    await live.open(None if skimming is None else skimming.events)
    # The archive is read first, since it is small beside what it is compared with; it is spoken of second.
    archive = Source(context, trail, ARCHIVE, "archived events", read_envelope_bytes, degrades=True)
    await archive.open(None if skimming is None else skimming.envelopes)
    beside = _Beside(list(_envelopes(archive)), scope, skimming)
    rows: list[_Made] = []
    for entry in live.entries():
        event = entry.document
        if not isinstance(event, EventRecord):
            live.warn(f"live event record is not an object at {entry.path}")
            continue
        beside.meet(entry.path, event)
        if scope.takes(event):
            rows.append(made(row_of(event)))
    folded, counted = beside.fold()
    for warning in folded.warnings:
        archive.say(warning)
    note = provenance(counted, len(rows) + (0 if skimming is None else skimming.count), syncing=trail.request.sync)
    live.settle()
    archive.settle()
    if note is not None:
        trail.notices.append(note)
    return [*rows, *map(made, folded.rows)]


class _Beside:
    """The archive beside the live events of a trail: which of them it holds as well, and what it adds.

    With `skimming`, the envelopes that were read are all it takes as long as nothing else is another one than it was.
    """

    def __init__(self, envelopes: list[Envelope], scope: Scope, skimming: Skimming | None) -> None:
        self._read, self._scope, self._skimming = envelopes, scope, skimming
        self._tally = None if skimming is None else skimming.tally
        if skimming is None:
            self._archived: set[Identity] | Hints = identities(envelopes)
        elif self._tally is not None:
            self._archived = skimming.hints
        else:
            self._archived = identities([*envelopes, *skimming.recalled()])
        self._met: list[tuple[Identity, bool]] = []
        self._known_by_path = True

    def meet(self, path: str, event: EventRecord) -> None:
        """Look at a live event that was read."""
        noted = self._skimming is None or self._skimming.note_event(path, event)
        if self._archived and (identity := identity_of(event)) in self._archived:
            self._met.append((identity, self._scope.takes(event)))
            self._known_by_path &= noted

    def fold(self) -> tuple[Folded, Tally]:
        """Give what the archive adds, and what there is to say of it."""
        if self._tally is not None and not self._met:
            return Folded(), self._tally
        skimming = self._skimming
        envelopes = [*self._read, *(() if skimming is None else skimming.recalled())]
        archived = identities(envelopes) if isinstance(self._archived, Hints) else self._archived
        seen, held = set[Identity](), 0
        for identity, shown in self._met:
            if identity in archived:
                seen.add(identity)
                held += shown
        if skimming is not None:
            for identity in archived:
                if (path := skimming.skips(identity)) is not None:
                    seen.add(identity)
                    held += skimming.shows(path)
        folded = fold(envelopes, seen, self._scope)
        counted = tally(folded, held)
        if skimming is not None:
            skimming.note_envelopes(self._read, folded.hidden, counted if self._known_by_path else None)
        return folded, counted


def _envelopes(archive: Source) -> Iterator[Envelope]:
    for entry in archive.entries():
        envelope = open_envelope(entry.path, entry.document)
        if envelope is None:
            archive.warn(f"unknown archived record family at {entry.path}")
        else:
            yield envelope


async def _claims_on(context: Context, trail: Trail, item: Item) -> list[Held]:
    claims = Source(
        context,
        trail,
        CLAIMS,
        "claims",
        read_claim,
        degrades=True,
        consequence="a claim for this work item would not be reported",
    )
    await claims.open()
    found: list[Held] = []
    for entry in claims.entries():
        claim = entry.document
        if not isinstance(claim, ClaimRecord):
            if is_on(item, *claim_key(entry.path)):
                claims.say(incomplete(f"live claim record is not an object at {entry.path}"))
            continue
        each = held(entry.path, claim)
        if is_on(item, each.repo, each.target) and (claim.synthetic is not True or trail.request.include_synthetic):
            found.append(each)
    claims.settle()
    return found


async def _probe_claims(context: Context, trail: Trail, skimming: Skimming | None) -> None:
    """Look whether claims can be read in full, as a mirror of everything that is known demands."""
    claims = Source(
        context, trail, CLAIMS, "claims", read_claim, degrades=True, consequence="claim data would not be reported"
    )
    await claims.open(None if skimming is None else skimming.claims)
    for entry in claims.entries():
        if not isinstance(entry.document, ClaimRecord):
            claims.say(incomplete(f"live claim record is not an object at {entry.path}"))
        elif skimming is not None:
            skimming.note_claim(entry.path)
    claims.settle()
