"""The requests that wait for a person: a table as wide as the screen, the most urgent in its first row."""

from collections import Counter
from datetime import datetime

from agentcoord.cli.output import Output, Terminal
from agentcoord.cli.render.ages import age
from agentcoord.cli.render.page import BOLD, DIM, RED, YELLOW, Cell, Page, cell
from agentcoord.errors import Exit
from agentcoord.operations.attention import Queue
from agentcoord.protocol.attention import PRIORITIES
from agentcoord.protocol.documents import Document, encode_pretty

_STYLES = {"urgent-risk": RED, "unblocks-work": YELLOW}
_DEFAULT_WORKSPACE = "default"
_MOST_NAMED = 10
"""What could not be read is named so many times; of more, the number is enough."""


def render_queue(queue: Queue, output: Output, now: datetime, terminal: Terminal, *, json: bool) -> None:
    """Show the queue; exit 2 says that some of it could not be read, and so is not in it."""
    for fault in queue.missing[:_MOST_NAMED]:
        output.stderr.append(f"warning: {fault}; the queue is incomplete")
    if (more := len(queue.missing) - _MOST_NAMED) > 0:
        output.stderr.append(f"warning: {more} more cannot be read; agent-coord doctor --explain names them")
    if queue.missing:
        output.exit = Exit.UNKNOWN
    if json:
        shown = {
            "records": queue.records,
            "open": queue.open,
            "limit": queue.limit,
            "truncated": queue.truncated,
            "complete": not queue.missing,
        }
        output.add(encode_pretty(shown))
    else:
        output.add(_page(queue, now, terminal))


def _page(queue: Queue, now: datetime, terminal: Terminal) -> bytes:
    page = Page(terminal)
    page.text(_heading(queue), gap=1)
    rows = [_row(record, now) for record in queue.records]
    if rows:
        page.blank()
        starts = page.columns(rows, 3)
        for cells in rows:
            page.row(starts, cells)
    if queue.truncated:
        page.text([Cell(f"… there are more than these {queue.limit}: --limit shows them, --repo fewer", DIM)])
    return page.bytes()


def _heading(queue: Queue) -> list[Cell]:
    if not queue.open:
        return [Cell("nothing that can be read is waiting" if queue.missing else "nothing is waiting", BOLD)]
    counts = Counter(record["priority_class"] for record in queue.records if record["status"] == "open")
    heading = [Cell(f"{queue.open} waiting", BOLD)]
    if not queue.truncated:
        heading += [Cell(f"{counts[name]} {name}", _STYLES.get(name, "")) for name in PRIORITIES if counts[name]]
    return heading


def _row(record: Document, now: datetime) -> list[Cell]:
    settled = record["status"] != "open"
    name, source = record["priority_class"], record["source"]
    workspace = record["workspace"]
    return [
        Cell("resolved", DIM) if settled else cell(name, _STYLES.get(name, "")),
        cell(age(record["resolved_at" if settled else "created_at"], now), DIM),
        cell(f"{record['repository']}#{record['target']}", DIM if settled else ""),
        cell(record["question"], DIM if settled else BOLD),
        cell(" | ".join(record["choices"]), DIM if settled else "", before="answers: "),
        cell(record["id"], DIM, before="id "),
        Cell("") if workspace == _DEFAULT_WORKSPACE else cell(workspace, DIM, before="workspace "),
        cell(f"{source['provider']} on {source['host_id']}", DIM, before="asked by "),
    ]
