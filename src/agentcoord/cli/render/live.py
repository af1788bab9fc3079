"""The live view, frame by frame: what needs somebody, claims, lanes and the trail, each as high as there is room.

Only the rows that are seen are made. A table that is cut says how many rows are not shown.
"""

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from io import StringIO
from typing import Any, Literal

from msgspec import Struct, field
from rich.console import Console
from rich.text import Text

from agentcoord.cli.output import Terminal
from agentcoord.cli.render.ages import age, seconds_until, span
from agentcoord.cli.render.page import BOLD, DIM, GREEN, RED, YELLOW, Cell, cell, cleaned
from agentcoord.cli.render.words import is_one, is_over, item, joined, listed, mark, said
from agentcoord.cli.watched import Need, liveness_of, machine_of
from agentcoord.protocol.attention import PRIORITIES
from agentcoord.protocol.claims import RELEASED
from agentcoord.protocol.documents import Document
from agentcoord.protocol.events import SIGNALS

Table = Literal["needs", "claims", "lanes", "trail"]
TABLES: tuple[Table, ...] = ("needs", "claims", "lanes", "trail")
TITLES: Mapping[Table, str] = {"needs": "needs someone", "claims": "claims", "lanes": "lanes", "trail": "trail"}

NARROWEST = 20
"""Columns that are laid out for at least."""

_STYLES = {BOLD: "bold", DIM: "dim", RED: "red", GREEN: "green", YELLOW: "yellow", "": ""}
_GAP = 2
_WHAT, _REST = 1, 5
"""Among the columns of a table: mark, work item, who, machine, age, and all the rest."""
_FROM = (0, 0, 50, 92, 34, 64)
"""From how many columns of screen on each column of a table is shown."""
_SHARES = (5, 3, 5, 7, 8)
"""Which part of the screen each of them takes at most."""
_ROOMY = 34
"""From how many columns on there is room for margins."""
_KEYS = "q quit  r repo  b batch  m machine  Esc clear  Tab next table  ↑↓ PgUp PgDn scroll"
_SHORT_KEYS = "q quit  r b m filter  Esc clear  Tab ↑↓"


class View(Struct):
    """All that a frame shows. Rows are sorted and filtered; those of `needs` are Needs."""

    backend: str = ""
    source: str = ""
    trouble: str = ""
    """What went wrong, or could not be read; empty when nothing."""
    told: bool = False
    filters: Mapping[str, str] = {}
    editing: str | None = None
    rows: dict[Table, Sequence[Any]] = field(default_factory=dict[Table, Sequence[Any]])
    totals: dict[Table, int] = field(default_factory=dict[Table, int])
    """How many rows there are without the filters."""
    holders: Mapping[str, Document] = {}
    leases: Mapping[tuple[str, ...], Document] = {}
    """What the daemon keeps, by agent, repository and target as texts."""
    focus: Table = "claims"
    offsets: dict[Table, int] = field(default_factory=dict[Table, int])
    heights: dict[Table, int] = field(default_factory=dict[Table, int])
    """How many rows of each table the last frame showed."""
    read: bool = False
    """Whether anything was read yet."""


def console_for(terminal: Terminal, env: Mapping[str, str]) -> Console:
    """Make what turns styled text into what the terminal understands."""
    return Console(
        file=StringIO(),
        force_terminal=True,
        force_jupyter=False,
        color_system="auto" if terminal.colour else None,
        legacy_windows=False,
        markup=False,
        highlight=False,
        emoji=False,
        width=10_000,
        height=100,
        _environ=env,
    )


def frame(view: View, now: datetime, size: tuple[int, int], console: Console) -> list[str]:
    """Make the lines of a frame for so many columns and lines. Notes in the view how many rows are seen."""
    columns, height = max(size[0], NARROWEST), max(size[1], 1)
    lines = [*_heading(view, now, columns), *_tables(view, now, columns, max(0, height - 3))]
    lines = lines[: max(height - 1, 1)]
    if height > 1:
        lines += [Text()] * (height - 1 - len(lines))
        lines.append(_foot(view, columns))
    made = list[str]()
    for text in lines:
        text.truncate(size[0], overflow="ellipsis")
        with console.capture() as capture:
            console.print(text, no_wrap=True, overflow="ignore", crop=False, end="")
        made.append(capture.get())
    return made


# Around the tables ----------------------------------------------------------------------------------


def _heading(view: View, now: datetime, columns: int) -> list[Text]:
    """Say what is watched, and by whom changes are told."""
    first = Text("agent-coord watch", "bold") if columns >= 60 else Text("watch", "bold")
    first.append("  ").append(cleaned(view.backend))
    clock = now.strftime("%H:%M:%S") + "Z"
    if columns - first.cell_len - len(clock) >= _GAP:
        first.append(" " * (columns - first.cell_len - len(clock))).append(clock, "dim")
    second = Text()
    if view.trouble:
        second.append(f"! {cleaned(view.trouble)}", "yellow").append("  ")
    second.append("● " if view.told else "○ ", "green" if view.told else "yellow").append(cleaned(view.source), "dim")
    return [first, second]


def _foot(view: View, columns: int) -> Text:
    if view.editing is not None:
        typed = view.filters.get(view.editing, "")
        text = Text(f"{view.editing}: ", "bold").append(cleaned(typed)).append("▏")
        return text.append("  Enter keeps it, Esc clears it", "dim")
    if view.filters:
        shown = "  ".join(f"{name} {cleaned(value)}" for name, value in view.filters.items())
        return Text("only ", "yellow").append(shown, "bold").append("  Esc shows all", "dim")
    return Text(_KEYS if columns >= len(_KEYS) else _SHORT_KEYS, "dim")


# The tables -----------------------------------------------------------------------------------------


def _tables(view: View, now: datetime, columns: int, room: int) -> list[Text]:
    shown = TABLES if room >= 2 * len(TABLES) else (view.focus,)
    heights = _heights([len(view.rows.get(name, ())) for name in shown], shown.index(view.focus), room - len(shown))
    lines = list[Text]()
    view.heights = {}
    for name, height in zip(shown, heights, strict=True):
        lines += _table(view, name, height, now, columns)
    return lines


def _heights(wanted: Sequence[int], focus: int, room: int) -> list[int]:
    """Divide lines among tables: half of them for the one in focus, and the rest evenly, as far as they are wanted."""
    heights = [0] * len(wanted)
    heights[focus] = min(wanted[focus], max(room, 0) // 2)
    left = max(room, 0) - heights[focus]
    while left > 0 and (short := [index for index, height in enumerate(heights) if height < wanted[index]]):
        share = max(left // len(short), 1)
        for index in short[:left]:
            more = min(share, wanted[index] - heights[index])
            heights[index] += more
            left -= more
    return heights


def _table(view: View, name: Table, height: int, now: datetime, columns: int) -> list[Text]:
    rows = view.rows.get(name, ())
    total = view.totals.get(name, len(rows))
    title = Text("▸ " if view.focus == name else "  ", "bold").append(TITLES[name], "bold")
    title.append(f"  {len(rows)}" if len(rows) == total else f"  {len(rows)} of {total}", "dim")
    if not view.read:
        title.append("  reading…", "dim")
    body = height if height >= len(rows) else max(height - 1, 0)
    view.heights[name] = body
    offset = view.offsets[name] = max(0, min(view.offsets.get(name, 0), len(rows) - body))
    seen = [_ROWS[name](row, view, now) for row in rows[offset : offset + body]]
    lines = [title, *_laid_out(seen, columns)]
    if height and body < len(rows):
        above, below = offset, len(rows) - offset - body
        parts = [f"{number} {where}" for number, where in ((above, "above"), (below, "more")) if number]
        lines.append(Text(f"  … {', '.join(parts)}", "dim"))
    return lines


def _laid_out(rows: Sequence[Sequence[Cell]], columns: int) -> list[Text]:
    """Lay out cells, of which the last column takes all that follow; columns that find no room are left out."""
    made = [[Text(part.text, _STYLES[part.style]) for part in row] for row in rows]
    indent, gap = (2, _GAP) if columns >= _ROOMY else (0, 1)
    widths = {
        index: min(max((row[index].cell_len for row in made), default=0), max(columns // _SHARES[index], 4))
        for index in range(_REST)
        if columns >= _FROM[index]
    }
    if columns < _FROM[_REST]:  # what it is about may have what is left
        others = sum(wide + gap for index, wide in widths.items() if index != _WHAT and wide)
        longest = max((row[_WHAT].cell_len for row in made), default=0)
        widths[_WHAT] = min(longest, columns - indent - others)
    lines = list[Text]()
    for row in made:
        line = Text(" " * indent)
        for index in (each for each in widths if widths[each]):
            row[index].truncate(widths[index], overflow="ellipsis", pad=True)
            line.append_text(row[index]).append(" " * gap)
        if columns >= _FROM[_REST]:
            for part in (each for each in row[_REST:] if each.plain):
                line.append_text(part).append("  ")
        line.rstrip()
        lines.append(line)
    return lines


# A row of each table --------------------------------------------------------------------------------


def _need(need: Need, view: View, now: datetime) -> list[Cell]:
    row = need.row
    if need.why == "attention":
        priority = row.get("priority_class")
        style = {PRIORITIES[0]: RED, PRIORITIES[1]: YELLOW}.get(str(priority), "")
        asked = Cell(f"{cleaned(row.get('repository'))}#{cleaned(row.get('target'))}", BOLD)
        question = cell(row.get("question"), BOLD)
        machine = cell(machine_of("attention", row, view.holders), DIM)
        return [cell(priority, style), asked, cell(row.get("id")), machine, _aged(row.get("created_at"), now), question]
    if need.why == "blocked":
        cells = _lane(row, view, now)
        return [Cell("blocked", YELLOW), *cells[1:]]
    return _claim(row, view, now)


def _claim(row: Document, view: View, now: datetime) -> list[Cell]:
    free = row.get("status") == RELEASED
    beat = view.holders.get(str(row.get("agent_id")), {})
    ahead = seconds_until(row.get("expires_at"), now)
    if free or ahead is None:
        lease = Cell("released" if free else "", DIM)
    else:
        lease = Cell(f"{span(ahead)} left" if ahead > 0 else f"expired {age(row.get('expires_at'), now)}")
        lease = lease if ahead > 0 else Cell(lease.text, YELLOW)
    return [
        mark(liveness_of(row.get("agent_id"), view.holders), over=free),
        item(row, DIM if free else BOLD),
        cell(row.get("agent_id"), DIM if free else ""),
        cell(machine_of("claims", row, view.holders) or "", DIM),
        _aged(beat.get("updated_at"), now),
        lease,
        _kept(view, row.get("agent_id"), row.get("repo"), row.get("target")),
        said(row, "handoff_to", "handed to ", style=""),
        said(row, "terminal", "closed: ", style=""),
        said(row, "phase", style=""),
        said(row, "branch"),
        said(row, "batch_id", "batch "),
    ]


def _lane(row: Document, view: View, now: datetime) -> list[Cell]:
    over, owner = is_over(row), row.get("owner")
    beat = view.holders.get(str(owner), {})
    blocked, targets = joined(row.get("blocked_on")), listed(row.get("targets"))
    repo, target = row.get("repo"), targets[0] if len(targets) == 1 else None
    return [
        mark(row.get("liveness"), over=over),
        Cell(f"{cleaned(row.get('batch_id'))}/{cleaned(row.get('name'))}", DIM if over else BOLD),
        cell(owner, DIM if over else ""),
        cell(machine_of("lanes", row, view.holders) or "", DIM),
        _aged(row.get("closed_at") if over else beat.get("updated_at"), now),
        cell(row.get("status"), DIM if over else ""),
        Cell(f"blocked on {blocked}", YELLOW) if blocked and not over else Cell(""),
        _kept(view, owner, repo, target),
        Cell(f"targets {joined(targets)}" if targets else "", DIM),
        said(row, "phase", style=""),
        said(row, "branch"),
        said(row, "pr_url"),
        said(row, "evidence_url"),
    ]


def _event(row: Document, view: View, now: datetime) -> list[Cell]:
    place = "/".join(cleaned(row[key]) for key in ("batch_id", "lane") if row.get(key) is not None)
    return [
        cell(row.get("type"), YELLOW if is_one(row.get("type"), SIGNALS) else ""),
        Cell(place) if place else item(row),
        cell(row.get("agent_id") or ""),
        cell(row.get("machine_id") or "", DIM),
        _aged(row.get("at"), now),
        said(row, "phase", style=""),
        said(row, "status", style=""),
        *(said(row, key, style=YELLOW) for key in ("severity", "category", "reason", "kind")),
        said(row, "terminal", "closed: ", style=""),
        said(row, "message", style=""),
        item(row, DIM) if place else Cell(""),
    ]


def _aged(value: object, now: datetime) -> Cell:
    """Say how long ago something was, without the words around it."""
    ahead = seconds_until(value, now)
    return Cell("") if ahead is None else Cell(span(ahead) if ahead <= 0 else f"in {span(ahead)}", DIM)


def _kept(view: View, agent: object, repo: object, target: object) -> Cell:
    """Say by which evidence the daemon of this machine keeps something, if it does."""
    named = str(agent)
    lease = view.leases.get((named, str(repo), str(target))) or view.leases.get((named, "None", "None"))
    if lease is None:
        return Cell("")
    state, pid = lease.get("state"), lease.get("pid")
    process = "" if pid is None else f" by process {cleaned(pid)} {cleaned(lease.get('program') or '')}".rstrip()
    return Cell(f"{cleaned(state)}{process}", GREEN if state == "kept" else YELLOW)


_ROWS: Mapping[Table, Callable[..., list[Cell]]] = {"needs": _need, "claims": _claim, "lanes": _lane, "trail": _event}
