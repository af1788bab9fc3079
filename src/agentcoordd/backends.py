"""The backends that leases are kept on, opened once each, and how work on them is done beside an event loop."""

import threading
from collections.abc import Callable, Coroutine, Mapping
from contextlib import AsyncExitStack
from types import TracebackType
from typing import Any, Protocol, Self, TypeVar

import anyio
import anyio.from_thread
import anyio.lowlevel
import anyio.to_thread
from anyio import CapacityLimiter
from msgspec import Struct

from agentcoord.errors import Defect, Rejected, StoreError, Unreadable, UsageError
from agentcoord.files import printable
from agentcoord.settings.selection import Secret, Selection, redact
from agentcoord.stores.base import Behalf, Store
from agentcoord.stores.opening import open_root, open_store
from agentcoord.stores.opening import settle as settled

_T = TypeVar("_T")
_UNAUTHORIZED, _FORBIDDEN = 401, 403
_THREADS = 4
_HEED = 0.2
"""Seconds after which long work notices that nobody waits for it any more."""


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
    return printable(backend.root) if isinstance(backend, LocalBackend) else redact(backend.url)


def _to_be_served(backend: Backend) -> str:
    """Say what makes a daemon serve a backend."""
    if isinstance(backend, LocalBackend):
        change = "name it in serve_roots of agentcoordd/config.json in ~/.config or XDG_CONFIG_HOME"
    else:
        change = "save its address with agent-coord config set --api-url"
    return f"{change}, then run agent-coord daemon restart"


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


class Aside(Protocol):
    """Does long work with the store of a backend, beside everything else."""

    async def perform_aside(self, backend: Backend, deed: Deed[_T]) -> _T:
        """Do a deed that may take minutes. Raises CoordError as the deed does, or when the store cannot be opened."""
        ...


class OpenBackends:
    """Keeps stores open. Work on local files is done in a few threads for each root, the rest is awaited.

    A file system that hangs holds up its own root's threads and nobody else: who gave up waiting for one is free, and
    what that thread does when it can go on is to change nothing.

    `serves` says which backends may be used, `token_of` gives the token of a URL: it is asked again after the
    server has turned one down. `answered` is told whenever a server has answered.
    """

    def __init__(
        self,
        env: Mapping[str, str],
        *,
        serves: Callable[[Backend], bool],
        token_of: Callable[[str], Secret | None],
        answered: Callable[[Backend], None] | None = None,
    ) -> None:
        self.answered = answered
        self._env = env
        self._serves = serves
        self._token_of = token_of
        self._open: dict[HttpBackend, tuple[AsyncExitStack, Store, Secret | None]] = {}
        self._threads: dict[tuple[str, bool], _Threads] = {}
        """The threads of each root that is worked on, and those for its long work."""
        self._aside = anyio.CapacityLimiter(_THREADS)

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
            raise UsageError(f"the daemon does not serve {shown(backend)}: {_to_be_served(backend)}")

    async def perform(self, backend: Backend, deed: Deed[_T], *, settle: bool = True) -> _T:
        """Do a deed with the open store. Raises CoordError as the deed does, or when it cannot be opened."""
        if isinstance(backend, LocalBackend):
            return await self._perform_locally(backend.root, deed, settle=settle, aside=False)
        store = await self._store(backend)
        try:
            done = await deed(store)
            if self.answered is not None:
                self.answered(backend)
            return done
        except (Rejected, Unreadable) as error:
            status = error.status if isinstance(error, Rejected) else None
            if status == _UNAUTHORIZED:  # the token may have been changed since it was read
                await self._close(backend)
            elif (status == _FORBIDDEN or _is_forbidden(error)) and self._has_another_token(backend):
                await self._close(backend)  # one that may do less is valid still, so nothing else would tell
                raise StoreError(f"{error}; the token was changed, and is read anew") from error
            raise

    def _has_another_token(self, backend: HttpBackend) -> bool:
        known = self._open.get(backend)
        return known is not None and known[2] != self._token_of(backend.url)

    async def perform_aside(self, backend: Backend, deed: Deed[_T]) -> _T:
        """Do a deed that may take minutes, in a thread that nobody else waits for; a server gets a connection for it.

        Cancelled, it ends as soon as it waits for the server; on local files it is left behind at once, and changes no
        record after that. Raises CoordError as the deed does, or when the store cannot be opened.
        """
        if isinstance(backend, LocalBackend):
            return await self._perform_locally(backend.root, deed, settle=True, aside=True)
        token = self._token_of(backend.url)
        selection = Selection(kind="http", backend_source="cli", url=backend.url, token=token)
        try:
            return await anyio.to_thread.run_sync(_apart, deed, selection, self._env, limiter=self._aside)
        except StoreError:
            await anyio.lowlevel.checkpoint_if_cancelled()
            raise

    async def _perform_locally(self, root: str, deed: Deed[_T], *, settle: bool, aside: bool) -> _T:
        key = root, aside
        threads = self._threads.setdefault(key, _Threads(root))
        try:
            return await threads.perform(deed, settle=settle)
        finally:
            if not threads.in_use:  # callers may name any number of roots
                self._threads.pop(key, None)

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
        self._open[backend] = stack, store, token
        return store

    async def _close(self, backend: HttpBackend) -> None:
        found = self._open.pop(backend, None)
        if found is not None:
            await found[0].aclose()


def _is_forbidden(error: StoreError) -> bool:
    return isinstance(error, Unreadable) and error.defect is Defect.FORBIDDEN


def _apart(deed: Deed[_T], selection: Selection, env: Mapping[str, str]) -> _T:
    """Do a deed in a loop of this thread, for as long as the thread is waited for in the loop that it is beside."""
    return anyio.run(lambda: _heeded(deed, selection, env))


async def _heeded(deed: Deed[_T], selection: Selection, env: Mapping[str, str]) -> _T:
    done: list[_T] = []
    fault: Exception | None = None
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(_heed, tasks.cancel_scope)
        try:
            async with open_store(selection, "/", env) as store:
                done.append(await deed(store))
        except Exception as error:  # handed on as it is, and not in the group of what the tasks raised
            fault = error
        tasks.cancel_scope.cancel()
    if fault is not None:
        raise fault
    if not done:
        raise StoreError("given up: the daemon ends")
    return done[0]


async def _heed(work: anyio.CancelScope) -> None:
    while True:
        try:
            anyio.from_thread.check_cancelled()
        except anyio.get_cancelled_exc_class():
            work.cancel()
            return
        await anyio.sleep(_HEED)


class _Threads:
    """The threads that work on one root."""

    def __init__(self, root: str) -> None:
        self._root = root
        self._limiter = CapacityLimiter(_THREADS)
        self._lock = threading.Lock()
        self._waiting = self._stuck = 0

    @property
    def in_use(self) -> bool:
        """Whether somebody waits for a thread, or one hangs."""
        return self._waiting > 0 or self._stuck > 0

    async def perform(self, deed: Deed[_T], *, settle: bool) -> _T:
        """Do a deed in a thread. Raises StoreError as it does, and when all threads hang already."""
        if self._stuck >= _THREADS:
            raise StoreError(f"state root does not answer: {self._root}")
        work = _Work(self)
        store = open_root(self._root, settle=settle, behalf=Behalf(require_wanted=work.require_wanted))
        self._waiting += 1
        try:
            return await anyio.to_thread.run_sync(work.do, deed, store, abandon_on_cancel=True, limiter=self._limiter)
        except BaseException:
            work.abandon()
            raise
        finally:
            self._waiting -= 1

    def count(self, more: int) -> None:
        """Count threads that nobody waits for."""
        with self._lock:
            self._stuck += more


class _Work:
    """One deed in a thread, which whoever wanted it may give up waiting for."""

    def __init__(self, threads: _Threads) -> None:
        self._threads = threads
        self._lock = threading.Lock()
        self._at_work = self._abandoned = False

    def require_wanted(self) -> None:
        if self._abandoned:
            raise StoreError("nothing more was written: it took too long")

    def do(self, deed: Deed[_T], store: Store) -> _T:
        with self._lock:
            self.require_wanted()
            self._at_work = True
        try:
            return settled(deed(store))
        finally:
            with self._lock:
                self._at_work = False
                if self._abandoned:
                    self._threads.count(-1)

    def abandon(self) -> None:
        with self._lock:
            self._abandoned = True
            if self._at_work:
                self._threads.count(+1)
