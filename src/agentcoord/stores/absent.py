"""The place of a backend that cannot even be asked from here, as in a sandbox without sockets."""

from agentcoord.errors import StoreError
from agentcoord.protocol.documents import decode
from agentcoord.stores.base import Decode, Listing, Stored, Version


class AbsentStore:
    """Answers everything with the one error that says why there is no answer."""

    def __init__(self, error: StoreError) -> None:
        self._error = error

    async def read(self, path: str) -> Stored | None:
        """Raise the error."""
        raise self._error

    async def write(self, path: str, document: object, *, version: Version | None, note: str) -> Version:
        """Raise the error."""
        raise self._error

    async def delete(self, path: str, *, version: Version, note: str) -> None:
        """Raise the error."""
        raise self._error

    async def check(self, *, writable: bool) -> None:
        """Raise the error."""
        raise self._error

    async def list(self, prefix: str, *, decode: Decode = decode, at_most: int | None = None) -> Listing:
        """Raise the error."""
        raise self._error
