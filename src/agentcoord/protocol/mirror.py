"""The mirror: rows as lines of a table that only grows, and stays in the order of what happened (spec: cli §10.8).

It may be the only copy left once retention has done its work, so no line that is there is ever
dropped or changed, not even one that is nobody's row.
"""

from collections.abc import Callable, Iterable, Sequence

from msgspec import Struct

from agentcoord.protocol.instants import Exact, exact
from agentcoord.protocol.trail import SHOWN, Row, instant_key

_Key = tuple[bool, Exact, str]
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


class Inserted(Struct, frozen=True):
    """What a mirror becomes, as it is stored, and how many lines are new; `data` is None when nothing changes."""

    data: bytes | None
    added: int


def insert(mirror: bytes, lines: Sequence[str]) -> Inserted:
    """Do as `merge` does to a mirror that a merge has made, looking only at the places where the lines belong."""
    places: list[tuple[int, bytes]] = []
    for line in sorted(dict.fromkeys(lines), key=_key):
        spelled = line.encode(errors="surrogateescape")
        first, end = _place(mirror, _key(line))
        if b"\n%s\n" % spelled not in b"\n" + mirror[first:end]:
            places.append((end, spelled))
    if not places:
        return Inserted(None, 0)
    pieces: list[bytes] = []
    done = 0
    for end, spelled in places:
        pieces += (mirror[done:end], spelled, b"\n")
        done = end
    return Inserted(b"".join([*pieces, mirror[done:]]), len(places))


def _place(mirror: bytes, key: _Key) -> tuple[int, int]:
    """Find where the lines of a key begin and end."""
    return _first(mirror, lambda found: found >= key), _first(mirror, lambda found: found > key)


def _first(mirror: bytes, is_behind: Callable[[_Key], bool]) -> int:
    """Find where the first line begins whose key is behind some point; the end of the mirror when there is none."""
    low, high = 0, len(mirror)  # both are beginnings of lines
    while low < high:
        middle = mirror.rfind(b"\n", low, (low + high) // 2) + 1 or low
        end = mirror.index(b"\n", middle) + 1
        if is_behind(_key(mirror[middle : end - 1].decode(errors="surrogateescape"))):
            high = middle
        else:
            low = end
    return low


def _key(line: str) -> _Key:
    fields = line.split("\t", _EVENT_ID + 1)
    return instant_key(exact(fields[0]), fields[_EVENT_ID] if len(fields) > _EVENT_ID else "")
