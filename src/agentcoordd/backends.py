"""The backends that leases are kept on, opened once each, and how work on them is done beside an event loop."""

from collections.abc import Callable, Coroutine, Mapping
from contextlib import AsyncExitStack
from types import TracebackType
from typing import Any, Protocol, Self, TypeVar

import anyio
import anyio.to_thread
from msgspec import Struct

from agentcoord.errors import Rejected, UsageError
from agentcoord.settings.selection import Secret, Selection, redact
from agentcoord.stores.base import Store
from agentcoord.stores.opening import open_root, open_store
from agentcoord.stores.opening import settle as settled

_T = TypeVar("_T")
_UNAUTHORIZED = 401
_THREADS = 4


class LocalBackend(Struct, frozen=True, tag_field="kind", tag="local"):
    """A state root, by its absolute path."""

    root: str


class HttpBackend(Struct, frozen=True, tag_field="kind", tag="http"):
    """A state server, by its URL."""

    url: str


Backend = LocalBackend | HttpBackend
Deed = Callable[[Store], Coroutine[Any, Any, _T]]


def shown(backend: Backend) -> str:
    """Name a backend for people; what a URL may hold of a password is not in it."""
    return backend.root if isinstance(backend, LocalBackend) else redact(backend.url)


class Backends(Protocol):
    """Does something with the store of a backend."""

    def require(self, backend: Backend) -> None:
        """Check that the backend is one of those served. Raises UsageError."""
        ...

    async def perform(self, backend: Backend, deed: Deed[_T], *, settle: bool = True) -> _T:
        """Do a deed with the open store. Raises CoordError as the deed does, or when it cannot be opened.

        Without `settle`, what it writes may be undone by a power failure.
        """
        ...


class OpenBackends:
    """Keeps stores open. Work on local files is done in a few threads of its own, the rest is awaited.

    `serves` says which backends may be used, `token_of` gives the token of a URL: it is asked again after the
    server has turned one down.
    """

    def __init__(
        self, env: Mapping[str, str], *, serves: Callable[[Backend], bool], token_of: Callable[[str], Secret | None]
    ) -> None:
        self._env = env
        self._serves = serves
        self._token_of = token_of
        self._open: dict[HttpBackend, tuple[AsyncExitStack, Store]] = {}
        self._threads = anyio.CapacityLimiter(_THREADS)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with anyio.CancelScope(shield=True):
            for backend in tuple(self._open):
                await self._close(backend)

    def require(self, backend: Backend) -> None:
        """Check that the backend is one of those served. Raises UsageError."""
        if isinstance(backend, LocalBackend) and (not backend.root.startswith("/") or "\0" in backend.root):
            raise UsageError(f"the state root must be an absolute path: {backend.root!r}")
        if not self._serves(backend):
            raise UsageError(f"the daemon does not serve {shown(backend)}")

    async def perform(self, backend: Backend, deed: Deed[_T], *, settle: bool = True) -> _T:
        """Do a deed with the open store. Raises CoordError as the deed does, or when it cannot be opened."""
        if isinstance(backend, LocalBackend):
            local = open_root(backend.root, settle=settle)
            return await anyio.to_thread.run_sync(lambda: settled(deed(local)), limiter=self._threads)
        store = await self._store(backend)
        try:
            return await deed(store)
        except Rejected as error:
            if error.status == _UNAUTHORIZED:  # the token may have been changed since it was read
                await self._close(backend)
            raise

    async def _store(self, backend: HttpBackend) -> Store:
        if (found := self._open.get(backend)) is not None:
            return found[1]
        token = self._token_of(backend.url)
        selection = Selection(kind="http", backend_source="cli", url=backend.url, token=token)
        stack = AsyncExitStack()
        store = await stack.enter_async_context(open_store(selection, "/", self._env))
        if (found := self._open.get(backend)) is not None:  # somebody was quicker
            await stack.aclose()
            return found[1]
        self._open[backend] = stack, store
        return store

    async def _close(self, backend: HttpBackend) -> None:
        found = self._open.pop(backend, None)
        if found is not None:
            await found[0].aclose()
