"""The state as programs read it: JSON, and the text of the reference line by line (spec: cli §8.5)."""

from collections.abc import Iterable, Iterator
from typing import cast

from agentcoord.cli.output import one_line
from agentcoord.cli.render.pieces import json_section
from agentcoord.cli.render.replica import facts_of_label
from agentcoord.operations.projection import Row
from agentcoord.operations.status import Status
from agentcoord.protocol.documents import Document, pretty
from agentcoord.protocol.replica import Label
from agentcoord.stores.base import Texts
from agentcoord.version import VERSION


def status_json(seen: Status, texts: Texts | None = None, label: Label | None = None) -> Iterator[bytes]:
    """Give the state as JSON, sections in their fixed order, piece by piece, from `texts` what is there already.

    The whole is what `encode_pretty` would give, but a state of ten thousands of records is never in
    memory as one text: the pages for it would cost as much as making it.
    """
    yield pretty(_head(seen, label)).removesuffix(b"\n}")
    for name, rows in _sections(seen).items():
        yield from json_section(name, rows, texts=texts)
    yield b"\n}\n"


def facts_of_status(seen: Status) -> Document:
    """Give the state as one object, as `status_json` writes it."""
    return _head(seen) | _sections(seen)


def _head(seen: Status, label: Label | None = None) -> Document:
    head: Document = {"version": VERSION, "scope": seen.scope, **facts_of_label(label)}
    return head | {"degraded": seen.degraded, "section_notes": seen.notes}


def _sections(seen: Status) -> dict[str, list[Row]]:
    sections = {"claims": seen.claims, "heartbeats": seen.heartbeats, "batches": seen.batches, "events": seen.events}
    return sections if seen.archive is None else sections | {"archive": seen.archive}


def status_text(seen: Status) -> bytes:
    """Give the state as text, one line a record."""
    lines: list[str] = []
    _section(lines, seen, "claims", map(_claim, seen.claims))
    _section(lines, seen, "heartbeats", map(_heartbeat, seen.heartbeats))
    _section(lines, seen, "batches", (line for row in seen.batches for line in _batch(row)))
    _section(lines, seen, "events", map(_event, seen.events))
    if seen.archive is not None:
        _section(lines, seen, "archive", map(_archive, seen.archive))
    if seen.degraded:
        lines += ["degraded", *(f"- {note}" for note in seen.degraded)]
    return "".join(f"{one_line(line)}\n" for line in lines).encode()


def _section(lines: list[str], seen: Status, name: str, rows: Iterable[str]) -> None:
    lines.append(name)
    before = len(lines)
    lines.extend(rows)
    if len(lines) == before:
        lines.append(f"- {seen.notes.get(name, 'none')}")


def _joined(values: object) -> str:
    items = cast("list[object]", values) if isinstance(values, list) else [] if values is None else [values]
    return ",".join(str(item) for item in items) or "-"


def _claim(row: Row) -> str:
    return (
        f"- {row['repo']}#{row['target']} {row['status']} {row['agent_id']} "
        f"branch {row['branch']} expires {row['expires_at']}"
    )


def _heartbeat(row: Row) -> str:
    return f"- {row['agent_id']} {row['status']} {row['liveness']} {row['target']} updated {row['updated_at']}"


def _batch(row: Row) -> Iterable[str]:
    yield f"- {row['batch_id']}"
    if not row["lanes"]:
        yield "  - lanes -"
    for lane in row["lanes"]:
        yield (
            f"  - lane {lane['name']} owner {lane['owner']} targets {_joined(lane['targets'])} "
            f"status {lane['status']} {lane['liveness']} deps {_joined(lane['deps'])} "
            f"blocked_on {_joined(lane['blocked_on'])}"
        )


def _event(row: Row) -> str:
    state = row.get("phase") or row.get("status") or "-"
    line = (
        f"- {row['batch_id']} {row.get('lane') or '-'} {row['type']} {state} "
        f"by {row.get('agent_id') or '-'} at {row['at']}"
    )
    return f"{line} {row['message']}" if row.get("message") else line


def _archive(row: Row) -> str:
    source = row.get("source_path") or _joined(row.get("source_paths"))
    return f"- {row['path']} {row['record_family']} source {source} delete_after {row['delete_after']}"
