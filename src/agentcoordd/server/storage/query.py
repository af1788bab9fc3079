"""SQL that both databases understand: what a token may see, and how a record is written into a listing."""

from collections.abc import Callable, Sequence
from typing import Any

from agentcoord.protocol.documents import encode
from agentcoord.protocol.scopes import Coverage
from agentcoordd.server.storage.base import Page


def stored_scopes(scopes: Sequence[str]) -> str:
    """Write scopes as the JSON text that `machines` has."""
    return encode(list(scopes)).decode()


Mark = Callable[[str], str]
"""Takes a value and gives the placeholder that stands for it."""


def below(prefix: str, coverage: Coverage, mark: Mark, column: str = "path") -> str:
    """Say which paths below a prefix ("": anywhere) a coverage admits.

    A path that begins with `P/` lies between `P/` and `P0`: zero is the character after the slash.
    """

    def between(scope: str) -> str:
        return f"({column} > {mark(scope + '/')} AND {column} < {mark(scope + '0')})"

    parts = [] if prefix == "" else [between(prefix)]
    if not coverage.whole:
        admitted = [
            f"{column} = {mark(part.scope)}" if part.exact else between(part.scope) for part in coverage.filters
        ]
        parts.append(f"({' OR '.join(admitted) or 'FALSE'})")
    return " AND ".join(parts) or "TRUE"


class Values(list[object]):
    """The values of a query in the order of its marks; `spelled` gives the mark of each by its number, from 1."""

    def __init__(self, spelled: Callable[[int], str], *first: object) -> None:
        super().__init__(first)
        self._spelled = spelled

    def mark(self, value: str) -> str:
        """Take a value and give its mark."""
        self.append(value)
        return self._spelled(len(self))


def page_query(
    entry: str, prefix: str, coverage: Coverage, values: Values, after: str | None, limit: int | None
) -> str:
    """Ask for the entries of a page; with a limit also for their paths, and for one more to know whether there is one.

    `entry` is the expression that makes the JSON object of a listing from a record.
    """
    where = below(prefix, coverage, values.mark)
    if after is not None:
        where = f"{where} AND path > {values.mark(after)}"
    if limit is None:
        return f"SELECT {entry} FROM state WHERE {where} ORDER BY path"  # noqa: S608 - values come as marks
    return f"SELECT {entry}, path FROM state WHERE {where} ORDER BY path LIMIT {limit + 1}"  # noqa: S608 - as above


_TOGETHER = 512
"""Entries that are joined at a time: pieces that fit the processor's cache, of which the first is on its way early."""


def page_of(rows: Sequence[Any], limit: int | None, join: Callable[[list[Any]], bytes]) -> Page:
    """Make a page of what `page_query` gave; `join` puts the commas between the entries."""
    more = limit is not None and len(rows) > limit
    if more:
        rows = rows[:limit]
    pieces = [join([row[0] for row in rows[first : first + _TOGETHER]]) for first in range(0, len(rows), _TOGETHER)]
    return Page(tuple(pieces), rows[-1][1] if more else None)
