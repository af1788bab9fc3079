"""A trail as text, as a table and as JSON, and what a sync came to (spec: cli §10.7, §10.8)."""

from collections.abc import Iterator, Sequence

from agentcoord.cli.output import Output, one_line
from agentcoord.cli.render.pieces import json_section
from agentcoord.cli.render.replica import facts_of_label, line_of_label, say_label
from agentcoord.files import printable
from agentcoord.operations.mirror import Synced
from agentcoord.operations.trail import Trail
from agentcoord.protocol.custody import ClaimRow
from agentcoord.protocol.documents import Document, encode_pretty, pretty
from agentcoord.protocol.mirror import line_of
from agentcoord.protocol.replica import Label
from agentcoord.protocol.trail import SHOWN, Row

_COLUMNS = SHOWN[:7]


def render_trail(trail: Trail, output: Output, *, json: bool, label: Label | None = None) -> None:
    """Show a trail in the form that was asked for."""
    if json:
        output.answer = _json(trail, label)
        return
    said = [*([] if trail.rows else [_nothing(trail)]), *map(_claim, trail.claims)]
    if trail.request.format == "tsv":
        output.answer = (f"{line_of(row)}\n".encode() for row in trail.rows)
        output.stderr += said if label is None else [*said, line_of_label(label)]
    else:
        output.answer = _text(trail.rows, said)
        say_label(label, output)


def _text(rows: Sequence[Row], said: Sequence[str]) -> Iterator[bytes]:
    widths = [max((len(getattr(row, column)) for row in rows), default=0) for column in _COLUMNS]
    for row in rows:
        cells = [getattr(row, column).ljust(width) for column, width in zip(_COLUMNS, widths, strict=True)]
        detail = f"[synthetic] {row.detail}" if row.synthetic else row.detail
        yield f"{'  '.join([*cells, detail]).rstrip()}\n".encode()
    for line in said:
        yield f"{one_line(line)}\n".encode()


def _nothing(trail: Trail) -> str:
    item, narrowed = trail.request.item, trail.request.narrowed_by
    asked = f"{item.repo}#{item.target}" if item is not None else "the current filters"
    if not trail.in_scope or not narrowed:
        return f"no events for {asked}"
    return f"no events shown for {asked} ({', '.join(f'{option} {value}' for option, value in narrowed.items())})"


def _claim(claim: ClaimRow) -> str:
    synthetic = " [synthetic]" if claim.synthetic else ""
    elapsed = f" lease elapsed {claim.expires_at}" if claim.lease_elapsed else ""
    return (
        f"claim {claim.status}{synthetic} {claim.machine} {claim.host} {claim.agent_id} {claim.target} "
        f"phase {claim.phase} updated {claim.updated_at}{elapsed}"
    )


def _json(trail: Trail, label: Label | None) -> Iterator[bytes]:
    yield pretty(_head(trail) | facts_of_label(label)).removesuffix(b"\n}")
    yield from json_section("events", trail.rows, facts_of_row)
    if tail := _tail(trail):
        yield b",\n" + pretty(tail).removeprefix(b"{\n").removesuffix(b"\n}")
    yield b"\n}\n"


def facts_of_trail(trail: Trail) -> Document:
    """Give a trail as one object, as `log --json` writes it piece by piece."""
    return _head(trail) | {"events": [facts_of_row(row) for row in trail.rows]} | _tail(trail)


def _head(trail: Trail) -> Document:
    head: Document = {}
    if (item := trail.request.item) is not None:
        head["work_item"] = {"repo": item.repo, "target": item.target, "matched_targets": trail.matched}
    head["trail"] = "incomplete" if trail.incomplete else "complete"
    head["events_suppressed"] = bool(trail.in_scope and not trail.rows)
    return head


def _tail(trail: Trail) -> Document:
    return {"claim": trail.claims[-1], "claims": trail.claims} if trail.claims else {}


def facts_of_row(row: Row) -> Document:
    """Give what programs are told of an event."""
    return {field: getattr(row, field) for field in SHOWN}


def render_sync(synced: Synced, output: Output, *, json: bool) -> None:
    """Say how many events the mirror did not have yet."""
    path = printable(synced.path)
    if json:
        output.add(encode_pretty({"synced": synced.added, "path": path}))
    else:
        output.say(f"synced {synced.added} new event{'' if synced.added == 1 else 's'} to {path}")
