"""Connections that cost nothing for long: whoever sends no request in time makes room for others."""

import asyncio
from http import HTTPStatus
from typing import Any, cast

from uvicorn.config import Config
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle
from uvicorn.server import ServerState

from agentcoordd.server.answers import Refusal

HEAD_SECONDS = 10.0
"""How long the head of a request may take to arrive."""

_HEAD_BYTES = 64 * 1024
"""How long a head may be, as far as it did not come in one piece: who never ends it must not fill the memory."""


def patient(limit: int, *, head_seconds: float = HEAD_SECONDS) -> type[HttpToolsProtocol]:
    """Give the protocol of a server that keeps at most so many connections open."""
    idle: dict[_Patient, None] = {}

    class Limited(_Patient):
        _idle, _limit, _patience = idle, limit, head_seconds

    return Limited


class _Patient(HttpToolsProtocol):
    """Closes a connection whose request does not arrive, and the longest idle one when there are too many."""

    _idle: dict["_Patient", None]
    _limit: int
    _patience: float

    def __init__(
        self,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)
        self._head: asyncio.TimerHandle | None = None
        self._in_head = False
        self._arrived = 0

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
        if self._in_head:
            self._arrived += len(data)
        super().data_received(data)
        if self._in_head and self._arrived > _HEAD_BYTES and not self.transport.is_closing():
            self._refuse(431, "head_too_large")
        # Something arrived, and it was not the end of a head: the time for it runs from its first byte.
        if self._head is None and self in self._idle:
            self._expect_head()

    def on_message_begin(self) -> None:
        self._in_head, self._arrived = True, 0
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        self._in_head = False
        self._cancel_head()
        self._idle.pop(self, None)
        super().on_headers_complete()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if not self.transport.is_closing() and self.cycle.response_complete:
            self._idle[self] = None
            if self._in_head:  # what came of the next request, while this one was answered, has had no time yet
                self._expect_head()

    def send_400_response(self, msg: str) -> None:
        self._refuse(400, "bad_request")

    def _refuse(self, status: int, code: str) -> None:
        """End a connection that does not speak HTTP. What it asked for before is not answered in its name."""
        cycle = cast("RequestResponseCycle | None", self.cycle)
        if cycle is None or cycle.response_complete:
            answer = Refusal(status, code).answer
            head = f"HTTP/1.1 {status} {HTTPStatus(status).phrase}\r\n".encode()
            fields = b"content-type: %s\r\ncontent-length: %d\r\nconnection: close\r\n\r\n"
            self.transport.write(head + fields % (answer.kind, len(answer.body)) + answer.body)
        self.transport.close()

    def _expect_head(self) -> None:
        self._idle.setdefault(self, None)
        self._head = self.loop.call_later(self._patience, self._give_up)

    def _cancel_head(self) -> None:
        if self._head is not None:
            self._head.cancel()
            self._head = None

    def _give_up(self) -> None:
        self._head = None
        if not self.transport.is_closing():
            self.transport.close()
