"""Connections that cost nothing for long: whoever sends no request in time makes room for others."""

import asyncio
from typing import Any

from uvicorn.config import Config
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.server import ServerState

HEAD_SECONDS = 10.0
"""How long the head of a request may take to arrive."""


def patient(limit: int) -> type[HttpToolsProtocol]:
    """Give the protocol of a server that keeps at most so many connections open."""
    idle: dict[_Patient, None] = {}

    class Limited(_Patient):
        _idle, _limit = idle, limit

    return Limited


class _Patient(HttpToolsProtocol):
    """Closes a connection whose request does not arrive, and the longest idle one when there are too many."""

    _idle: dict["_Patient", None]
    _limit: int

    def __init__(
        self,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)
        self._head: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._expect_head()
        if len(self.connections) > self._limit:
            longest = next(iter(self._idle))
            del self._idle[longest]
            longest.transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self._cancel_head()
        self._idle.pop(self, None)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        # Something arrived, and it was not the end of a head: the time for it runs from its first byte.
        if self._head is None and self in self._idle:
            self._expect_head()

    def on_headers_complete(self) -> None:
        self._cancel_head()
        self._idle.pop(self, None)
        super().on_headers_complete()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if not self.transport.is_closing() and self.cycle.response_complete:
            self._idle[self] = None

    def _expect_head(self) -> None:
        self._idle.setdefault(self, None)
        self._head = self.loop.call_later(HEAD_SECONDS, self._give_up)

    def _cancel_head(self) -> None:
        if self._head is not None:
            self._head.cancel()
            self._head = None

    def _give_up(self) -> None:
        self._head = None
        if not self.transport.is_closing():
            self.transport.close()
