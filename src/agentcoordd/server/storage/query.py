"""SQL that both databases understand: what a token may see, and how a record is written into a listing."""

from collections.abc import Callable, Sequence

from agentcoord.protocol.documents import encode
from agentcoord.protocol.scopes import Coverage

ENTRY = (
    """'{"path":"' || path || '","data":' || data || ',"version":' || version """
    """|| CASE WHEN updated_by IS NULL THEN '}' ELSE ',"updated_by":"' || updated_by || '"}' END"""
)
"""A record as the JSON object that a listing carries. Paths and machines have no character that JSON would escape."""


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
