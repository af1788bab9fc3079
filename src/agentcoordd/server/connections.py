"""Connections that cost nothing for long: whoever sends no request in time makes room for others."""

import asyncio
from http import HTTPStatus
from typing import Any, cast

from httptools import HttpRequestParser
from uvicorn.config import Config
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle
from uvicorn.server import ServerState

from agentcoordd.server.answers import Refusal
from agentcoordd.server.requests import carries_body

HEAD_SECONDS = 10.0
"""How long the head of a request may take to arrive."""

BODY_SECONDS = 30.0
"""How long a body may take to arrive after its head: long enough for a slow line, too short to be held open with."""

_HEAD_BYTES = 64 * 1024
"""How long a head may be, as far as it did not come in one piece: who never ends it must not fill the memory.

The same goes for whatever else the parser keeps to itself: fields behind a chunked body, and what chunks say of
themselves. The fields behind a body are dropped, and so is the connection when they never end.
"""

_PIPELINED = 16
"""How many requests may wait behind one that is being answered; who sends more is cut off."""

UNREAD_SECONDS = 60.0
"""How long a caller may take for the next part of an answer."""

_PART = 64 * 1024
"""How many bytes of an answer have to be taken in that time, as far as there are so many."""


def patient(
    limit: int,
    *,
    head_seconds: float = HEAD_SECONDS,
    body_seconds: float = BODY_SECONDS,
    unread_seconds: float = UNREAD_SECONDS,
) -> type[HttpToolsProtocol]:
    """Give the protocol of a server that keeps at most so many connections open."""
    idle: dict[_Patient, None] = {}

    class Limited(_Patient):
        _idle, _limit, _patience = idle, limit, head_seconds
        _body_patience, _unread_patience = body_seconds, unread_seconds

    return Limited


class _TooMuch(Exception):
    """Stops the parser in the middle of what has come: the rest of it is not even looked at."""


class _Patient(HttpToolsProtocol):
    """Closes a connection whose request does not arrive, and the longest idle one when there are too many."""

    _idle: dict["_Patient", None]
    _limit: int
    _patience: float
    _body_patience: float
    _unread_patience: float

    def __init__(
        self,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)
        self._head: asyncio.TimerHandle | None = None
        self._body: asyncio.TimerHandle | None = None
        self._in_head = self._in_body = False
        self._arrived = 0
        self._unread: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._expect_head()
        if len(self.connections) > self._limit:
            longest = next(iter(self._idle))
            del self._idle[longest]
            longest.transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self._cancel_head()
        self._cancel_body()
        self._cancel_unread()
        self._idle.pop(self, None)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        self._arrived += len(data)
        super().data_received(data)
        if self._arrived > _HEAD_BYTES and not self.transport.is_closing():
            if self._in_head:
                self._refuse(431, "head_too_large")
            else:
                self._close()
        if self._in_body:
            if self._body is None and not self.transport.is_closing():
                self._body = self.loop.call_later(self._body_patience, self._miss_body)
        elif self._head is None and self in self._idle:
            # Something arrived, and it was not the end of a head: the time for it runs from its first byte.
            self._expect_head()

    def on_message_begin(self) -> None:
        self._in_head, self._arrived = True, 0
        super().on_message_begin()

    def on_body(self, body: bytes) -> None:
        self._arrived = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._in_body, self._arrived = False, 0
        if self._body is not None:
            self._cancel_body()
        super().on_message_complete()

    def on_headers_complete(self) -> None:
        if len(self.pipeline) >= _PIPELINED:
            raise _TooMuch
        if sum([len(name) + len(value) for name, value in self.headers]) > _HEAD_BYTES:  # one that came in one piece
            self._refuse(431, "head_too_large")
            raise _TooMuch
        parser = cast("HttpRequestParser", self.parser)
        if parser.should_upgrade() and carries_body(dict(self.headers)):
            # The parser would take the body for the other protocol's, and nobody here would ever see it.
            self._refuse(501, "upgrade_unsupported")
            raise _TooMuch
        self._in_head, self._in_body, self._arrived = False, True, 0
        if self._head is not None:
            self._cancel_head()
        self._idle.pop(self, None)
        # What comes behind a body is no header of the request: it goes where nobody looks.
        self.scope["headers"] = self.headers.copy()
        super().on_headers_complete()
        if parser.should_upgrade():
            # What comes behind it is the other protocol's for the parser: it must not pass for asked and answered.
            self.cycle.keep_alive = False

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self.pipeline:  # enough has come for now
            self.flow.pause_reading()
        if self.transport.is_closing():
            self._expect_reading()
        elif self.cycle.response_complete:
            self._idle[self] = None
            if self._in_head:  # what came of the next request, while this one was answered, has had no time yet
                self._expect_head()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._expect_reading()

    def resume_writing(self) -> None:
        super().resume_writing()
        if not self.transport.is_closing():
            self._cancel_unread()

    def timeout_keep_alive_handler(self) -> None:
        self._close()

    def shutdown(self) -> None:
        super().shutdown()
        if self.transport.is_closing():
            self._expect_reading()

    def send_400_response(self, msg: str) -> None:
        self._refuse(400, "bad_request")

    def _refuse(self, status: int, code: str) -> None:
        """End a connection that does not speak HTTP. What it asked for before is not answered in its name."""
        cycle = cast("RequestResponseCycle | None", self.cycle)
        self._end(status, code, told=cycle is None or cycle.response_complete)

    def _miss_body(self) -> None:
        """End a connection whose request did not come whole."""
        if self.pipeline or self.flow.read_paused:  # its turn has not come, or it is up to us that nothing comes
            self._body = self.loop.call_later(self._body_patience, self._miss_body)
            return
        self._body = None
        self._end(408, "request_timeout", told=not self.cycle.response_started)
        self.cycle.disconnected = True  # nobody is to wait for the rest, nor to answer once more
        self.cycle.message_event.set()

    def _end(self, status: int, code: str, *, told: bool) -> None:
        if told and not self.transport.is_closing():
            answer = Refusal(status, code).answer
            head = f"HTTP/1.1 {status} {HTTPStatus(status).phrase}\r\n".encode()
            fields = b"content-type: %s\r\ncontent-length: %d\r\nconnection: close\r\n\r\n"
            self.transport.write(head + fields % (answer.kind, len(answer.body)) + answer.body)
        self._close()

    def _expect_head(self) -> None:
        self._idle.setdefault(self, None)
        self._head = self.loop.call_later(self._patience, self._give_up)

    def _cancel_head(self) -> None:
        if self._head is not None:
            self._head.cancel()
            self._head = None

    def _cancel_body(self) -> None:
        if self._body is not None:
            self._body.cancel()
            self._body = None

    def _give_up(self) -> None:
        self._head = None
        self._close()

    def _close(self) -> None:
        if not self.transport.is_closing():
            self.transport.close()
            self._expect_reading()

    def _expect_reading(self) -> None:
        """Give the caller time for what was written; a connection that closes ends with what is still unread."""
        if self._unread is None and self in self.connections:
            size = self.transport.get_write_buffer_size()
            self._unread = self.loop.call_later(self._unread_patience, self._read_enough, size)

    def _cancel_unread(self) -> None:
        if self._unread is not None:
            self._unread.cancel()
            self._unread = None

    def _read_enough(self, before: int) -> None:
        self._unread = None
        left, closing = self.transport.get_write_buffer_size(), self.transport.is_closing()
        if before - left < min(_PART, before) or (closing and not left):
            self.transport.abort()
        elif left:
            self._expect_reading()
