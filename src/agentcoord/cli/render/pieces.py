"""JSON of many rows, made piece by piece: a large answer never exists as one text."""

from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

from agentcoord.protocol.documents import pretty
from agentcoord.stores.base import Texts

_Row = TypeVar("_Row")

_PIECE = 256
"""How many rows are made into text at a time."""
_OPENING, _CLOSING = b'{\n  "rows": [\n', b"\n  ]\n}"


def json_section(
    name: str, rows: Sequence[_Row], facts: Callable[[_Row], object] | None = None, *, texts: Texts | None = None
) -> Iterator[bytes]:
    """Give one list of rows as it stands inside a pretty-printed object, its comma before it.

    `facts` gives what is printed of a row; without it, all of it is. `texts` keeps what was made, and must not with it.
    """
    if texts is not None:
        texts.end(name, len(rows))
    if not rows:
        yield b',\n  "%s": []' % name.encode()
        return
    before = b',\n  "%s": [\n' % name.encode()
    for start in range(0, len(rows), _PIECE):
        part = rows[start : start + _PIECE]
        yield before
        if texts is None:
            yield _piece(part if facts is None else list(map(facts, part)))
        else:
            yield texts.text(name, start, part, _piece)
        before = b",\n"
    yield b"\n  ]"


def _piece(rows: Sequence[object]) -> bytes:
    # Inside an object of its own, a piece of the section comes out indented as it has to be.
    return pretty({"rows": rows}).removeprefix(_OPENING).removesuffix(_CLOSING)
