"""What the next agent needs, in one block: a fact a line, each behind its name; or the same for a program."""

from collections.abc import Sequence
from datetime import datetime
from itertools import chain

from msgspec.structs import asdict

from agentcoord.cli.output import Output, Terminal
from agentcoord.cli.render.ages import age, seconds_until, span
from agentcoord.cli.render.page import BOLD, DIM, GREEN, RED, YELLOW, Cell, Page, cell
from agentcoord.cli.render.trail import facts_of_row
from agentcoord.cli.resuming import Resumable
from agentcoord.operations.resume import Resume
from agentcoord.protocol.documents import Document, encode_pretty, stated, text
from agentcoord.protocol.records import CLAIM_SHOWN
from agentcoord.protocol.trail import UNSAID, Row

_STYLES = {"live": GREEN, "stale": YELLOW, "dead": RED}
_CLAIM = tuple(
    dict.fromkeys(
        ("repo", "target", "status", "agent_id", "branch", "claimed_at", "updated_at", "expires_at", *CLAIM_SHOWN)
    )
)
_SHORT = 12
"""Digits of a commit that a person is shown."""
_Line = tuple[str, Sequence[Cell]]


def render_resume(result: Resumable, output: Output, now: datetime, terminal: Terminal, *, json: bool) -> None:
    """Show it; what could not be read goes to stderr too, whatever stdout carries."""
    output.stderr += [f"warning: {note}" for note in result.found.notes]
    if json:
        output.add(encode_pretty(facts_of_resume(result)))
    else:
        output.add(_block(result, now, terminal))


def facts_of_resume(result: Resumable) -> Document:
    """Give what programs are told. A key is always there; its value is null where nothing is known."""
    found, checkout = result.found, result.checkout
    return {
        "repo": found.repo,
        "target": found.target,
        **asdict(found.tenure),
        "claim": None if found.claim is None else stated(found.claim, _CLAIM),
        "claim_path": found.path,
        "other_claims": found.others,
        "lane": result.lane,
        "branch": found.branch,
        "head": None if checkout is None else checkout.head,
        "worktree": None if checkout is None else checkout.worktree,
        "phase": found.phase,
        "pr_url": found.pr_url,
        "batch_id": found.batch_id,
        "handoff": None if found.handoff is None else asdict(found.handoff),
        "events": [facts_of_row(row) for row in found.events],
        "earlier_events": found.earlier,
        "attention": found.attention,
        "complete": not found.notes,
        "notes": found.notes,
    }


def _block(result: Resumable, now: datetime, terminal: Terminal) -> bytes:
    found = result.found
    page = Page(terminal)
    page.text([cell(f"{found.repo}#{found.target}", BOLD), *_state(found, now)])
    lines = [
        *_evidence(result, now),
        *_place(result, now),
        *_said("phase", found.phase),
        *_said("pr", found.pr_url),
        *_said("batch", found.batch_id),
        *_handoff(found, now),
        *chain.from_iterable(_asked(record, now) for record in found.attention),
        *(("also", [cell(path, YELLOW, after=" is a claim on the same item")]) for path in found.others),
    ]
    rows = [[Cell(name, DIM), Cell("") if not cells else cells[0], *cells[1:]] for name, cells in lines]
    starts = page.columns(rows, 1, indent=2) if rows else []
    for cells in rows:
        page.row(starts, cells)
    _trail(page, found, now)
    return page.bytes()


def _state(found: Resume, now: datetime) -> list[Cell]:
    tenure = found.tenure
    holder = tenure.holder or "nobody named"
    match tenure.standing:
        case "unclaimed":
            return [Cell("nobody has claimed it", DIM)]
        case "held":
            word = tenure.liveness or "never heard"
            cells = [cell(holder, BOLD, before="held by "), Cell(word, _STYLES.get(word, YELLOW))]
            ahead = seconds_until(tenure.since, now)
            return [*cells, *([] if ahead is None else [Cell(f"for {span(ahead)}", DIM)])]
        case "closed":
            return [cell(text(found.claim or {}, "terminal"), BOLD, before="closed as ", after=f" by {holder}")]
        case "released":
            return [cell(holder, before="given back by "), cell(age(tenure.since, now) or "", DIM)]
        case _:
            return [cell((found.claim or {}).get("status"), YELLOW, before="claim with status ")]


def _evidence(result: Resumable, now: datetime) -> list[_Line]:
    tenure, lane = result.found.tenure, result.lane
    if tenure.standing == "unclaimed":
        return []
    lines: list[_Line] = []
    if tenure.heard_at is not None:
        ttl = "" if tenure.ttl is None else f", expected every {span(tenure.ttl)}"
        lines.append(("heartbeat", [Cell(f"{age(tenure.heard_at, now) or 'at an unreadable time'}{ttl}")]))
    elif tenure.standing == "held":
        lines.append(("heartbeat", [Cell("none", YELLOW)]))
    if tenure.standing == "held":
        until = age(tenure.expires_at, now)
        said = "without a readable end" if until is None else f"{'ended' if tenure.lease_elapsed else 'ends'} {until}"
        lines.append(("lease", [Cell(said, RED if tenure.lease_elapsed else "")]))
    if lane is not None:
        pid = lane.get("pid")
        watched = "no process is watched" if pid is None else f"process {pid}"
        lines.append(("kept here", [cell(watched), cell(lane.get("state"), before="lane ", after="")]))
    where = [
        cell(value, DIM if name else "", before=name)
        for name, value in (("", tenure.machine), ("session ", tenure.session), ("instance ", tenure.instance))
        if value is not None
    ]
    if where and tenure.machine is None:
        where.insert(0, Cell("unnamed", DIM))
    return [*lines, ("machine", where)] if where else lines


def _place(result: Resumable, now: datetime) -> list[_Line]:
    found, checkout = result.found, result.checkout
    if found.branch is None:
        return []
    lines: list[_Line] = [("branch", [cell(found.branch)])]
    if checkout is None:
        return lines
    said = [Cell(checkout.head[:_SHORT]), cell(checkout.subject), cell(age(checkout.committed_at, now) or "", DIM)]
    if not checkout.ref.startswith("refs/heads/"):
        said.append(cell(checkout.ref.removeprefix("refs/remotes/"), DIM, before="as fetched of "))
    lines.append(("head", said))
    lines.append(("worktree", [cell(checkout.worktree) if checkout.worktree else Cell("not checked out here", DIM)]))
    return lines


def _said(name: str, value: str | None) -> list[_Line]:
    return [] if value is None else [(name, [cell(value)])]


def _handoff(found: Resume, now: datetime) -> list[_Line]:
    handoff = found.handoff
    if handoff is None:
        return []
    cells = [cell(handoff.note)] if handoff.note is not None else []
    if handoff.to is not None:
        cells.append(cell(handoff.to, before="to "))
    if handoff.by is not None:
        cells.append(cell(handoff.by, DIM, before="from "))
    if (when := age(handoff.at, now)) is not None:
        cells.append(Cell(when, DIM))
    return [("handoff", cells)]


def _asked(record: Document, now: datetime) -> list[_Line]:
    lines: list[_Line] = [
        (
            "asked",
            [
                cell(record["question"], YELLOW),
                cell(record["id"], DIM, before="id "),
                Cell(age(record["created_at"], now) or "", DIM),
            ],
        )
    ]
    if safe := text(record, "safe_resume"):
        lines.append(("resume by", [cell(safe)]))
    return lines


def _trail(page: Page, found: Resume, now: datetime) -> None:
    if not found.events:
        return
    page.blank()
    if found.earlier:
        page.text([Cell(f"… {found.earlier} earlier: agent-coord log shows them", DIM)], indent=2)
    rows = [_event(row, now) for row in found.events]
    starts = page.columns(rows, 3, indent=2)
    for cells in rows:
        page.row(starts, cells)


def _event(row: Row, now: datetime) -> list[Cell]:
    return [
        cell(age(row.at, now) or row.at, DIM),
        cell(row.type),
        cell(row.agent_id),
        cell(row.detail) if row.detail else cell("" if row.phase == UNSAID else row.phase, DIM),
    ]
