"""Records in memory, for tests and simulation: the promise of a store without a disk.

Documents are kept encoded, so nothing a caller does to one it wrote or read reaches the store.
"""

from collections.abc import Iterator, Sequence
from hashlib import sha256

from agentcoord.errors import Conflict, Defect, Unreadable
from agentcoord.protocol.documents import decode, encode_pretty
from agentcoord.protocol.paths import is_listed, require_safe
from agentcoord.stores.base import Decode, Listing, Stored, Version, require_few


class MemoryStore:
    """Keeps the bytes of each record; a record's version is their SHA-256. It never suspends."""

    def __init__(self) -> None:
        self._records: dict[str, bytes] = {}

    def plant(self, path: str, data: bytes) -> None:
        """Put any bytes at a path, as a careless program beside us might."""
        self._records[path] = data

    async def read(self, path: str) -> Stored | None:
        """Read one record; None when nothing is there. Raises Unreadable."""
        require_safe(path)
        data = self._records.get(path)
        return None if data is None else _stored(path, data)

    async def write(self, path: str, document: object, *, version: Version | None, note: str) -> Version:
        """Store a record if its path still holds `version`; None: if it holds none. Raises Conflict."""
        require_safe(path)
        self._require_version(path, version)
        data = encode_pretty(document)
        self._records[path] = data
        return sha256(data).hexdigest()

    async def delete(self, path: str, *, version: Version, note: str) -> None:
        """Remove exactly what was read. Raises Conflict if it changed or is gone."""
        require_safe(path)
        self._require_version(path, version)
        del self._records[path]

    def _require_version(self, path: str, version: Version | None) -> None:
        data = self._records.get(path)
        if version is None:
            if data is not None:
                raise Conflict(path, exists=True)
        elif data is None or sha256(data).hexdigest() != version:
            raise Conflict(path)

    async def check(self, *, writable: bool) -> None:
        """Answer: memory is always there."""

    async def list(self, prefix: str, *, decode: Decode = decode, at_most: int | None = None) -> Listing:
        """List the records below a directory prefix; as in a directory tree, dot names are passed over."""
        require_safe(prefix)
        names = sorted(path for path in self._records if path.startswith(prefix + "/") and is_listed(prefix, path))
        require_few(prefix, len(names), at_most)
        return Listing(self._walk(names, decode))

    def _walk(self, names: Sequence[str], decode: Decode) -> Iterator[Stored | Unreadable]:
        for path in names:
            data = self._records.get(path)
            if data is None:
                continue
            try:
                entry = _stored(path, data, decode)
            except Unreadable as defect:
                yield defect
            else:
                yield entry


def _stored(path: str, data: bytes, decode: Decode = decode) -> Stored:
    try:
        return Stored(path, decode(data), data)
    except ValueError as error:
        raise Unreadable(f"state unreadable: {error} at {path}", path=path, defect=Defect.MALFORMED) from error
