"""JSON of many rows, made piece by piece: a large answer never exists as one text."""

from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

from agentcoord.protocol.documents import pretty

_Row = TypeVar("_Row")

_PIECE = 256
"""How many rows are made into text at a time."""


def json_section(name: str, rows: Sequence[_Row], facts: Callable[[_Row], object] | None = None) -> Iterator[bytes]:
    """Give one list of rows as it stands inside a pretty-printed object, its comma before it.

    `facts` gives what is printed of a row; without it, all of it is.
    """
    if not rows:
        yield b',\n  "%s": []' % name.encode()
        return
    # Inside an object of its own, a piece of the section comes out indented as it has to be.
    opening, closing = b'{\n  "rows": [\n', b"\n  ]\n}"
    before = b',\n  "%s": [\n' % name.encode()
    for start in range(0, len(rows), _PIECE):
        part = rows[start : start + _PIECE]
        piece = pretty({"rows": part if facts is None else list(map(facts, part))})
        yield before
        yield piece.removeprefix(opening).removesuffix(closing)
        before = b",\n"
    yield b"\n  ]"
