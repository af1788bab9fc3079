"""The state as a person reads it: what needs attention first, ages instead of timestamps, fitted to the screen.

Nothing is decided here: who is live was judged where the rows were made. A row may hold any JSON.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from datetime import datetime
from typing import cast

from msgspec import Struct

from agentcoord.cli.output import Terminal
from agentcoord.cli.render.ages import age, seconds_until, span
from agentcoord.cli.render.page import BOLD, DIM, RED, YELLOW, Cell, Page, cell, cleaned
from agentcoord.cli.render.words import (
    DOUBTFUL,
    LOST,
    MARKS,
    NEVER_HEARD,
    OVER,
    OVER_STATUSES,
    WELL,
    count_of,
    is_one,
    is_over,
    item,
    joined,
    lanes_of,
    latest,
    listed,
    mark,
    named,
    ranked,
    said,
    simulated,
    when,
)
from agentcoord.operations.projection import Row
from agentcoord.operations.status import NOT_IN_BATCH, NOT_IN_TARGET, Status
from agentcoord.protocol.claims import RELEASED
from agentcoord.protocol.events import SIGNALS

EVENTS_SHOWN = 20
"""The newest events a board shows; the others are in `--plain` and `--json`."""

_BROKEN = "heartbeat records unreadable: "
"""How the note on all heartbeats begins that names those nobody can read."""


class _Entry(Struct, gc=False):
    """A row ready to be laid out; `order` sorts within its section."""

    order: tuple[int, float]
    cells: list[Cell]


def board(seen: Status, now: datetime, terminal: Terminal) -> bytes:
    """Lay out what was seen at `now` for this terminal, as UTF-8 with no line wider than it (20 columns at least)."""
    page = Page(terminal)
    kind = seen.scope.get("kind")
    if kind == "all" and not any((seen.claims, seen.heartbeats, seen.batches, seen.events, seen.archive, seen.notes)):
        page.text(_offer("Nothing is coordinated here yet. To begin:", "OWNER/REPO", "TARGET"))
        return page.bytes()
    liveness = _holders(seen)
    claims = _sorted(_claim(row, liveness(row.get("agent_id")), now) for row in seen.claims)
    page.text(_summary(seen, liveness), gap=1)
    if kind == "target" and not claims and "claims" not in seen.notes:
        repo, target = (cleaned(seen.scope.get(key)) for key in ("repo", "target"))
        page.text(_offer("Nobody has claimed it. To take it:", repo, target))
    _section(page, "claims", claims, fixed=4)
    _section(page, "heartbeats", _sorted(_heartbeat(row, now) for row in seen.heartbeats), fixed=4)
    _batches(page, seen.batches, now)
    _events(page, seen.events, now)
    _section(page, "archive", _sorted(_archived(row, now) for row in seen.archive or ()), fixed=3)
    _degraded(page, seen)
    return page.bytes()


def _offer(said: str, repo: str, target: str) -> list[Cell]:
    return [Cell(said), Cell(f"agent-coord claim --agent-id ID --repo {repo} --target {target}", BOLD)]


def _sorted(entries: Iterable[_Entry]) -> list[list[Cell]]:
    return [entry.cells for entry in sorted(entries, key=lambda entry: entry.order)]


def _title(page: Page, name: str, count: int) -> None:
    page.blank()
    page.text([Cell(name, BOLD), Cell(str(count), DIM)])


def _section(page: Page, name: str, rows: Sequence[Sequence[Cell]], *, fixed: int) -> None:
    if rows:
        _title(page, name, len(rows))
        starts = page.columns(rows, fixed)
        for cells in rows:
            page.row(starts, cells)


def _holders(seen: Status) -> Callable[[object], str]:
    """Tell of any agent whether it is there. That it was never heard of is said only when nothing was hidden."""
    rows = {named(row.get("agent_id")): named(row.get("liveness")) for row in seen.heartbeats}
    missing = NEVER_HEARD
    for note in seen.notes.get("heartbeats", "").split("; "):
        if note.startswith(_BROKEN):
            rows |= dict.fromkeys(note.removeprefix(_BROKEN).split(", "), "unreadable")
        elif note and not note.startswith("holder heartbeat not found"):
            missing = "unknown"
    return lambda agent: rows.get(named(agent), missing)


# The sections -------------------------------------------------------------------------------------------


def _summary(seen: Status, liveness: Callable[[object], str]) -> list[Cell]:
    """Count what there is, the worrying in colour; sections outside the scope are not counted."""
    kind, held = seen.scope.get("kind"), [row for row in seen.claims if row.get("status") != RELEASED]
    groups: list[list[Cell]] = []
    if kind == "target":
        groups.append([Cell(f"{cleaned(seen.scope.get('repo'))}#{cleaned(seen.scope.get('target'))}", BOLD)])
    elif kind == "batch":
        groups.append([cell(seen.scope.get("batch_id"), BOLD, before="batch ")])
    if kind != "batch":
        of = Counter(liveness(row.get("agent_id")) for row in held)
        marked = [Cell(f"{of[word]} with a {word} holder", MARKS[word][1]) for word in ("dead", "stale") if of[word]]
        unheard = [Cell(f"{of[NEVER_HEARD]} with a holder {NEVER_HEARD}", YELLOW)] if of[NEVER_HEARD] else []
        groups.append([Cell(count_of(len(held), "claim") + " held"), *marked, *unheard])
    heard = Counter(named(row.get("liveness")) for row in seen.heartbeats)
    marked = [Cell(f"{heard[word]} {word}", style) for word, (_, style) in MARKS.items() if heard[word]]
    groups.append([Cell(count_of(len(seen.heartbeats), "agent")), *marked])
    if kind != "target":
        lanes = [lane for row in seen.batches for lane in lanes_of(row)]
        blocked = sum(1 for lane in lanes if listed(lane.get("blocked_on")) and not is_over(lane))
        counted = [Cell(count_of(len(seen.batches), "batch", "batches")), Cell(count_of(len(lanes), "lane"))]
        groups.append(counted + ([Cell(f"{blocked} blocked", YELLOW)] if blocked else []))
        groups.append([Cell(count_of(len(seen.events), "event"))])
    if seen.archive:
        groups.append([Cell(f"{len(seen.archive)} archived")])
    if incomplete := sum(1 for note in seen.notes.values() if not _is_scope(note)):
        groups.append([Cell(f"{incomplete} degraded", YELLOW)])
    *others, last = (_with_commas(group) for group in groups)
    return [part for group in others for part in (*group, Cell("·", DIM))] + last


def _with_commas(cells: Sequence[Cell]) -> list[Cell]:
    return [*(Cell(f"{part.text},", part.style) for part in cells[:-1]), cells[-1]]


def _claim(row: Row, liveness: str, now: datetime) -> _Entry:
    status, expires = row.get("status"), row.get("expires_at")
    ahead = seconds_until(expires, now)
    free = status == RELEASED
    rank = OVER if free else ranked(liveness)
    if free:
        lease = Cell(f"released {age(expires, now)}" if ahead is not None and ahead <= 0 else "released", DIM)
    elif ahead is None:
        lease = cell(expires, before="expires ")
    elif ahead > 0:
        lease = Cell(f"{span(ahead)} left")
    else:
        lease = Cell(f"expired {age(expires, now)}", YELLOW if rank == WELL else RED)
        if liveness == NEVER_HEARD:  # nobody is heard of, and the lease is over: whoever asks next gets it
            rank = LOST
    cells = [
        mark(liveness, over=free),
        item(row, DIM if free else BOLD),
        cell(row.get("agent_id"), DIM if free else ""),
        lease,
        Cell("") if free or status == "active" else said(row, "status", style=YELLOW),
        said(row, "terminal", "closed: ", style=""),
        said(row, "handoff_to", "handed to ", style=""),
        said(row, "handoff_note"),
        *(() if free else (said(row, "phase", style=""), said(row, "branch"))),
        said(row, "batch_id", "batch "),
        said(row, "pr_url"),
        simulated(row),
    ]
    return _Entry((rank, float("inf") if ahead is None else -ahead), cells)


def _heartbeat(row: Row, now: datetime) -> _Entry:
    status, liveness = row.get("status"), row.get("liveness")
    over = is_one(status, OVER_STATUSES)
    cells = [
        mark(liveness, over=over and liveness != "live"),
        cell(row.get("agent_id"), DIM if over else BOLD),
        cell(status, DIM if over else ""),
        when(row.get("updated_at"), now, style=""),
        said(row, "target", style=""),
        said(row, "phase", style=""),
        said(row, "batch_id", "batch "),
        said(row, "machine_id", "on "),
        simulated(row),
    ]
    return _Entry((OVER if over else ranked(liveness), latest(row.get("updated_at"), now)), cells)


def _lane(lane: Row, now: datetime) -> _Entry:
    over = is_over(lane)
    blocked, after = joined(lane.get("blocked_on")), joined(lane.get("deps"))
    targets, closer = listed(lane.get("targets")), lane.get("closed_by")
    by = cast("Row", closer if isinstance(closer, dict) else {})
    cells = [
        mark(lane.get("liveness"), over=over),
        cell(lane.get("name"), DIM if over else ""),
        cell(lane.get("owner"), DIM if over else ""),
        cell(lane.get("status"), DIM if over else ""),
        Cell(f"blocked on {blocked}", YELLOW) if blocked and not over else Cell(""),
        Cell("" if lane.get("closed_at") is None else when(lane["closed_at"], now, before="closed ").text, DIM),
        Cell("") if by.get("agent_id") == lane.get("owner") else said(by, "agent_id", "by "),
        Cell(f"{'target' if len(targets) == 1 else 'targets'} {joined(targets)}" if targets else "", DIM),
        Cell(f"after {after}", DIM) if after and not blocked else Cell(""),
        said(lane, "phase", style=""),
        said(lane, "branch"),
        said(lane, "pr_url"),
        said(lane, "pr_state", "pull request "),
        said(lane, "evidence_url"),
    ]
    return _Entry((OVER if over else LOST if blocked else ranked(lane.get("liveness")), 0.0), cells)


def _batches(page: Page, rows: Sequence[Row], now: datetime) -> None:
    if not rows:
        return
    _title(page, "batches", len(rows))
    shown: list[tuple[tuple[int, float], list[Cell], list[list[Cell]]]] = []
    for row in rows:
        lanes = sorted((_lane(lane, now) for lane in lanes_of(row)), key=lambda entry: entry.order)
        at = row.get("updated_at") or row.get("registered_at")
        rank = lanes[0].order[0] if lanes else DOUBTFUL
        heading = [
            cell(row.get("batch_id"), DIM if rank == OVER else BOLD),
            said(row, "status", style=""),
            Cell("no lanes", YELLOW) if not lanes else Cell(""),
            when(at, now) if at else Cell(""),
            said(row, "repo"),
            said(row, "objective"),
            simulated(row),
        ]
        shown.append(((rank, latest(at, now)), heading, [lane.cells for lane in lanes]))
    starts = page.columns((cells for _, _, lanes in shown for cells in lanes), 4, indent=2)
    for _, heading, lanes in sorted(shown, key=lambda batch: batch[0]):
        page.text(heading, indent=2)
        for cells in lanes:
            page.row(starts, cells)


def _events(page: Page, rows: Sequence[Row], now: datetime) -> None:
    if not rows:
        return
    _title(page, "events", len(rows))
    if (earlier := len(rows) - EVENTS_SHOWN) > 0:
        page.text(
            [Cell(f"… {count_of(earlier, 'earlier event')}: status --plain and status --json list them all", DIM)]
        )
    shown = [_event(row, now) for row in rows[-EVENTS_SHOWN:]]
    starts = page.columns(shown, 4)
    for cells in shown:
        page.row(starts, cells)


def _event(row: Row, now: datetime) -> list[Cell]:
    place = "/".join(cleaned(value) for key in ("batch_id", "lane") if (value := row.get(key)) is not None)
    change = said(row, "phase", style="")
    if change.text and row.get("previous_phase") is not None:
        change = Cell(f"{cleaned(row['previous_phase'])} → {change.text}")
    return [
        when(row.get("at"), now),
        cell(row.get("type"), YELLOW if is_one(row.get("type"), SIGNALS) else ""),
        Cell(place),
        cell(row.get("agent_id")),
        change,
        said(row, "status", style=""),
        *(said(row, key, style=YELLOW) for key in ("severity", "category", "reason", "kind")),
        said(row, "terminal", "closed: ", style=""),
        item(row, DIM),
        said(row, "message", style=""),
        simulated(row),
    ]


def _archived(row: Row, now: datetime) -> _Entry:
    cells = [
        cell(row.get("record_family")),
        when(row.get("archived_at"), now, before="archived "),
        when(row.get("delete_after"), now, before="expires ", style=""),
        Cell(cleaned(row.get("source_path")) if row.get("source_path") else joined(row.get("source_paths"))),
        said(row, "reason"),
        simulated(row),
    ]
    return _Entry((0, latest(row.get("archived_at"), now)), cells)


def _is_scope(note: str) -> bool:
    return note in (NOT_IN_TARGET, NOT_IN_BATCH)


def _degraded(page: Page, seen: Status) -> None:
    """Say what went unchecked; what lies outside the scope asked for is no fault, and is said more quietly."""
    if not seen.notes:
        return
    page.blank()
    page.text([Cell("degraded", BOLD)])
    for section, note in sorted(seen.notes.items(), key=lambda item: _is_scope(item[1])):
        style, sign = (DIM, "·") if _is_scope(note) else (YELLOW, "!")
        page.text([Cell(f"{sign} {cleaned(section)}: {cleaned(note)}", style)], indent=2)
