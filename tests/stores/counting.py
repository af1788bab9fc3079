"""A store that remembers what was asked of it, around any other."""

from agentcoord.protocol.documents import decode
from agentcoord.stores.base import Decode, Listing, Store, Stored, Version


class CountingStore:
    """Passes every call on, and keeps its path."""

    def __init__(self, inner: Store) -> None:
        self.inner = inner
        self.reads: list[str] = []
        self.writes: list[str] = []
        self.deletes: list[str] = []
        self.lists: list[str] = []

    async def read(self, path: str) -> Stored | None:
        self.reads.append(path)
        return await self.inner.read(path)

    async def write(self, path: str, document: object, *, version: Version | None, note: str) -> Version:
        self.writes.append(path)
        return await self.inner.write(path, document, version=version, note=note)

    async def delete(self, path: str, *, version: Version, note: str) -> None:
        self.deletes.append(path)
        await self.inner.delete(path, version=version, note=note)

    async def check(self, *, writable: bool) -> None:
        await self.inner.check(writable=writable)

    async def list(self, prefix: str, *, decode: Decode = decode, at_most: int | None = None) -> Listing:
        self.lists.append(prefix)
        return await self.inner.list(prefix, decode=decode, at_most=at_most)
