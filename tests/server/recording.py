"""A store that keeps a history of what is asked through it, and of every outcome as far as it is known."""

from collections.abc import Generator, Sequence
from contextlib import contextmanager
from random import Random
from typing import NoReturn

from agentcoord.errors import Conflict, Rejected, StoreError
from agentcoord.protocol.documents import decode
from agentcoord.stores.base import Decode, Listing, Stored, Version
from agentcoord.stores.http import HttpStore
from agentcoord.stores.httpexchange import Unanswered
from tests.server.history import History

_WANDERING = 0.2
"""How often a client goes to another server although the one it has answers."""


class Recording:
    """One client's way to a fleet: a server that answers is asked again, and at times another, as a balancer has it.

    `last` is the version of the last write that was acknowledged.
    """

    def __init__(self, client: str, stores: Sequence[HttpStore], history: History, random: Random) -> None:
        self.client, self.last = client, 0
        self._stores, self._history, self._random = stores, history, random
        self._store = random.choice(stores)

    async def read(self, path: str) -> Stored | None:
        call = self._history.invoke(self.client, "read", path)
        if self._random.random() < _WANDERING:
            self._store = self._random.choice(self._stores)
        with self._outcome(call):
            found = await self._store.read(path)
        self._history.ok(call, version=None if found is None else int(found.version), document=found and found.document)
        return found

    async def write(self, path: str, document: object, *, version: Version | None, note: str) -> Version:
        expected = None if version is None else int(version)
        call = self._history.invoke(self.client, "write", path, expected=expected, document=document)
        with self._outcome(call):
            made = await self._store.write(path, document, version=version, note=note)
        self.last = int(made)
        self._history.ok(call, version=self.last)
        return made

    async def delete(self, path: str, *, version: Version, note: str) -> None:
        call = self._history.invoke(self.client, "delete", path, expected=int(version))
        with self._outcome(call):
            await self._store.delete(path, version=version, note=note)
        self._history.ok(call)

    async def check(self, *, writable: bool) -> None:
        await self._store.check(writable=writable)

    async def list(self, prefix: str, *, decode: Decode = decode, at_most: int | None = None) -> Listing:
        return await self._store.list(prefix, decode=decode, at_most=at_most)

    async def aclose(self) -> None:
        for store in self._stores:
            await store.aclose()

    @contextmanager
    def _outcome(self, call: int) -> Generator[None]:
        try:
            yield
        except StoreError as error:
            self._failed(call, error)

    def _failed(self, call: int, error: StoreError) -> NoReturn:
        why = f"{type(error).__name__}: {error}"
        # A conflict seen by reading back says whose record stands there now. Ours may have stood there in between.
        refused = isinstance(error, Conflict) and error.__cause__ is None
        never_sent = isinstance(error, Unanswered) and not error.sent
        if isinstance(error, Rejected) and error.status < 500:
            self._history.fail(call, why)
            raise AssertionError(f"nothing here asks for what a server does not take: {why}") from error
        if never_sent:
            self._store = self._random.choice(self._stores)
        if refused or never_sent:
            self._history.fail(call, why)
        else:
            self._history.unknown(call, why)
            self._store = self._random.choice(self._stores)
        raise error
