"""The mirror: rows as lines of a table that only grows, and stays in the order of what happened (spec: cli §10.8).

It may be the only copy left once retention has done its work, so no line that is there is ever
dropped or changed, not even one that is nobody's row.
"""

from collections.abc import Iterable

from msgspec import Struct

from agentcoord.protocol.instants import Exact, exact
from agentcoord.protocol.trail import SHOWN, Row, instant_key

_EVENT_ID = SHOWN.index("event_id")


class Merged(Struct, frozen=True):
    """What a mirror becomes, and how many lines are new; `text` is None when nothing changes."""

    text: str | None
    added: int


def line_of(row: Row) -> str:
    """Spell a row as one line of the table, without its end."""
    synthetic = "true" if row.synthetic else "false"
    return "\t".join([str(getattr(row, field)) for field in SHOWN[:-2]] + [synthetic, row.synthetic_kind])


def merge(mirror: str, lines: Iterable[str]) -> Merged:
    """Add the lines that a mirror does not have yet, and order all by instant and event id."""
    # Lines end at line feeds only: other separators may stand inside a row.
    held = dict.fromkeys(line for line in mirror.split("\n") if line)
    before = len(held)
    held.update(dict.fromkeys(lines))
    added = len(held) - before
    if not added:
        return Merged(None, 0)
    ordered = sorted(held, key=_key)  # equal ones stay as they stood
    return Merged("\n".join([*ordered, ""]), added)


def _key(line: str) -> tuple[bool, Exact, str]:
    fields = line.split("\t", _EVENT_ID + 1)
    return instant_key(exact(fields[0]), fields[_EVENT_ID] if len(fields) > _EVENT_ID else "")
