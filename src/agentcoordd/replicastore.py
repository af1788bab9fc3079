"""Records of a backend as this machine's copy has them: read-only, at one moment, and answered as the backend would.

What the token may not see, and what the backend does not know, is refused in the backend's own words.
"""

import sqlite3
from collections.abc import Iterator, Sequence

from msgspec import Struct

from agentcoord.errors import Defect, Rejected, StoreError, Unreadable
from agentcoord.protocol.documents import decode
from agentcoord.protocol.paths import require_safe
from agentcoord.protocol.scopes import coverage, covers
from agentcoord.stores.base import Decode, Listing, Stored, Version
from agentcoord.stores.httpwire import failure_of_reading, too_many

_READ_ONLY = "the replica of a backend is never written to"


class Sight(Struct, frozen=True, omit_defaults=True):
    """How a family was listed: in part, or refused with a status and the backend's word for it."""

    filtered: bool = False
    status: int | None = None
    reason: str = ""


class ReplicaStore:
    """Reads one backend's records within a transaction that somebody else opened, and closes. It never suspends.

    `reads` are the scopes of the token, None where the server did not say. `sights` has what is to be said of families.
    """

    def __init__(
        self, connection: sqlite3.Connection, backend: int, reads: Sequence[str] | None, sights: dict[str, Sight]
    ) -> None:
        self._connection, self._backend = connection, backend
        self._reads, self._sights = reads, sights

    async def read(self, path: str) -> Stored | None:
        """Read one record; None when nothing is there. Raises Unreadable, StoreError."""
        require_safe(path)
        self._require_seen(path, f"read {path}")
        if self._reads is not None and not covers(self._reads, path):
            raise _forbidden(path, f"read {path}")
        query = "SELECT version, data FROM records WHERE backend = ? AND path = ?"
        found = self._connection.execute(query, (self._backend, path)).fetchone()
        return None if found is None else Stored(path, _decoded(path, found[1], decode), found[0])

    async def list(self, prefix: str, *, decode: Decode = decode, at_most: int | None = None) -> Listing:
        """List the records below a directory prefix. Raises TooMany, Unreadable, StoreError."""
        require_safe(prefix)
        sight = self._require_seen(prefix, f"list {prefix}")
        filtered = sight.filtered
        if self._reads is not None:
            visible = coverage(self._reads, prefix)
            if visible.forbidden:
                raise _forbidden(prefix, f"list {prefix}")
            filtered = not visible.whole
        span = (self._backend, f"{prefix}/", f"{prefix}0")  # "0" is the character after "/"
        if at_most is not None:
            query = "SELECT count(*) FROM records WHERE backend = ? AND path > ? AND path < ?"
            if self._connection.execute(query, span).fetchone()[0] > at_most:
                raise too_many(prefix, at_most)
        query = "SELECT path, version, data FROM records WHERE backend = ? AND path > ? AND path < ? ORDER BY path"
        return Listing(_walk(self._connection.execute(query, span), decode), filtered=filtered)

    async def write(self, path: str, document: object, *, version: Version | None, note: str) -> Version:
        """Refuse. Raises StoreError."""
        raise StoreError(_READ_ONLY)

    async def delete(self, path: str, *, version: Version, note: str) -> None:
        """Refuse. Raises StoreError."""
        raise StoreError(_READ_ONLY)

    async def check(self, *, writable: bool) -> None:
        """Answer: what was opened can be read. Raises StoreError for who wants to write."""
        if writable:
            raise StoreError(_READ_ONLY)

    def _require_seen(self, path: str, action: str) -> Sight:
        """Refuse what the backend refused. Raises Unreadable, StoreError."""
        sight = self._sights.get(path.partition("/")[0], Sight())
        if sight.status is not None:
            message = f"http backend {action} failed: {sight.status} {sight.reason}".rstrip()
            raise failure_of_reading(action, path, Rejected(message, status=sight.status, reason=sight.reason))
        return sight


def _walk(rows: Iterator[tuple[str, str, bytes]], decode: Decode) -> Iterator[Stored | Unreadable]:
    for path, version, data in rows:
        try:
            document = _decoded(path, data, decode)
        except Unreadable as defect:
            yield defect
        else:
            yield Stored(path, document, version)


def _decoded(path: str, data: bytes, decode: Decode) -> object:
    try:
        return decode(data)
    except ValueError as error:
        raise Unreadable(f"state unreadable: {error} at {path}", path=path, defect=Defect.MALFORMED) from error


def _forbidden(path: str, action: str) -> StoreError:
    return failure_of_reading(
        action, path, Rejected(f"http backend {action} failed: 403 forbidden", status=403, reason="forbidden")
    )
