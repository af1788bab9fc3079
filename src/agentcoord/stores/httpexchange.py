"""One request, one answer: the connection to an HTTP backend, and what is known when no answer comes.

What an answer means is not known here. How far a request came is: whether any of it was sent, so whether
the backend may have acted on it (spec: http §8).
"""

import os
import socket
import ssl
import zlib
from collections.abc import Iterator, Mapping
from typing import Any, cast

import anyio
import httpx
from msgspec import Struct

from agentcoord.errors import ConfigError, CoordError, Undecided
from agentcoord.settings.environment import API_TOKEN, Env, setting
from agentcoord.settings.selection import Secret
from agentcoord.stores.httpaddress import HEADER_VALUE, Base, proxy_of
from agentcoord.stores.httpwire import one_line, pause_of
from agentcoord.version import VERSION

LARGEST_ANSWER = 64 * 1024 * 1024
"""Bytes of one answer, unpacked; a listing may take several."""

_LARGEST_REFUSAL = 64 * 1024
_LONGEST_FAULT = 200
_PIECE = 64 * 1024
_GZIP = 31  # what zlib calls gzip and nothing else, with the largest window
_CLOSING = 2.0


class Patience(Struct, frozen=True):
    """Seconds to wait for a backend: at each step, for one whole answer, and for all of a listing."""

    connect: float = 5.0
    read: float = 10.0
    write: float = 10.0
    answer: float = 60.0
    listing: float = 180.0


PATIENCE = Patience()


class Unanswered(Undecided):
    """No answer came, or only a part of one; `sent` tells whether the backend may have acted."""

    def __init__(self, message: str, *, sent: bool) -> None:
        self.sent = sent
        super().__init__(message)


class Overlong(Unanswered):
    """The answer is larger than is taken; one to a request for less may not be."""


class Answer(Struct, frozen=True):
    """A status and the whole body, or of a refusal the start of it, and how many seconds it asks for, if any."""

    status: int
    body: bytes
    retry_after: float | None = None


class _Course:
    """How far a request came, as its connection tells."""

    def __init__(self) -> None:
        self.reused = True
        self.sent = False
        self.answered = False

    async def __call__(self, event: str, facts: Mapping[str, Any]) -> None:
        if event.endswith("connect_tcp.started"):
            self.reused = False
        elif event == "http11.send_request_headers.started":
            self.sent = self.sent or facts["request"].method != b"CONNECT"  # that one goes to a proxy only
        elif event == "http11.receive_response_headers.complete":
            self.answered = True

    def closed_before_it(self, error: Exception) -> bool:
        """Tell whether a connection kept from an earlier request turned out to be gone when this one came."""
        if not self.reused or self.answered:
            return False
        # An end of the stream is reported by the library itself, an answer that is no HTTP by its parser.
        ended = isinstance(error, httpx.RemoteProtocolError) and not type(_root(error)).__module__.startswith("h11")
        return ended or isinstance(error, httpx.ReadError | httpx.WriteError)


class _Unpacking:
    """Unpacks a body as it comes, piece by piece: a few bytes may become thousands of times as many.

    The library's own would unpack all that came before anybody could count it, and as often as the answer asks.
    """

    def __init__(self, headers: httpx.Headers) -> None:
        named = (coding.strip().lower() for coding in headers.get_list("content-encoding", split_commas=True))
        codings = [coding for coding in named if coding not in ("", "identity")]
        if codings not in ([], ["gzip"]):
            raise _unreadable(f"packed as nobody asked for: {', '.join(codings)}")
        self._gzip = zlib.decompressobj(_GZIP) if codings else None
        self._begun = False

    def pieces(self, packed: bytes) -> Iterator[bytes]:
        """Give what the next bytes of a body stand for. Raises Unanswered."""
        if self._gzip is None:
            yield packed
            return
        while packed:
            if self._gzip.eof:
                raise _unreadable("packed wrongly: more follows its end")
            self._begun = True
            try:
                yield self._gzip.decompress(packed, _PIECE)
            except zlib.error as error:
                raise _unreadable(f"packed wrongly: {error}") from error
            packed = self._gzip.unconsumed_tail or self._gzip.unused_data

    def end(self) -> None:
        """Note that nothing more comes. Raises Unanswered when something is missing."""
        if self._gzip is not None and self._begun and not self._gzip.eof:
            raise _unreadable("packed wrongly: its end is missing")


class Exchange:
    """Asks one backend, over one connection that is kept; nothing connects before the first request.

    `env` is the environment of whoever asks: it names proxies and certificates. Close it at the end.
    """

    def __init__(self, base: Base, token: Secret, env: Env, *, patience: Patience, largest: int) -> None:
        if not HEADER_VALUE.fullmatch(token.reveal()):
            raise ConfigError(f"{API_TOKEN} has a space or a character in it that no request can carry")
        self._base = base
        self._token = token
        self._env = env
        self._patience = patience
        self._largest = largest
        self._client: httpx.AsyncClient | None = None

    async def aclose(self) -> None:
        """Close the connection, if there is one."""
        if self._client is not None:
            with anyio.move_on_after(_CLOSING, shield=True):
                await self._client.aclose()

    async def ask(
        self, method: str, url: str, *, headers: Mapping[str, str] | None = None, content: bytes | None = None
    ) -> Answer:
        """Send a request and give its answer, whatever it says. Raises StoreError when there is none."""
        client = self._opened()
        course = _Course()
        extensions = {"trace": course}
        try:
            request = client.build_request(method, url, headers=headers, content=content, extensions=extensions)
        except (httpx.InvalidURL, UnicodeError) as error:  # a name that is none, or a path that is far too long
            raise self._unanswered(str(error), course) from error
        again = method == "GET"
        while True:
            try:
                with anyio.move_on_after(self._patience.answer):
                    return await self._answer(client, request)
                raise self._unanswered(f"timed out: no complete answer within {self._patience.answer:g} s", course)
            except (httpx.HTTPError, OSError) as error:
                if not (again and course.closed_before_it(error)):
                    raise self._unanswered(self._reason(error), course) from error
                again = False

    async def _answer(self, client: httpx.AsyncClient, request: httpx.Request) -> Answer:
        response = await client.send(request, stream=True)
        try:
            refused = not response.is_success
            body = await _body(response, _LARGEST_REFUSAL if refused else self._largest)
            if not refused and len(body) > self._largest:
                raise Overlong(f"http backend answered with more than {self._largest} bytes", sent=True)
            pause = pause_of(response.headers.get("retry-after"), response.headers.get("date"))
            return Answer(response.status_code, bytes(body), pause)
        finally:
            await response.aclose()

    def _opened(self) -> httpx.AsyncClient:
        if self._client is None:
            self._client = self._connecting(proxy_of(self._base, self._env))
        return self._client

    def _connecting(self, proxy: str | None) -> httpx.AsyncClient:
        patience = self._patience
        try:
            # Its own look at the environment would be at another process's than the caller's, and at .netrc.
            return httpx.AsyncClient(
                headers={
                    "Accept": "application/json",
                    "Accept-Encoding": "gzip",
                    "Authorization": f"Bearer {self._token.reveal()}",
                    "User-Agent": f"agent-coord/{VERSION}",
                },
                verify=self._trust(),
                proxy=proxy,
                trust_env=False,
                follow_redirects=False,
                timeout=httpx.Timeout(
                    connect=patience.connect, read=patience.read, write=patience.write, pool=patience.answer
                ),
                limits=httpx.Limits(max_keepalive_connections=1),
            )
        except (httpx.InvalidURL, ValueError):  # without a cause, which would show the proxy's password
            raise ConfigError("the proxy that the environment names is not a URL") from None

    def _trust(self) -> ssl.SSLContext:
        """Give what certificates are checked against: what the environment names, else the usual authorities."""
        if self._base.scheme == "http":
            return ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)  # trusts nobody and is not asked: the others take time
        file, directory = setting(self._env, "SSL_CERT_FILE"), setting(self._env, "SSL_CERT_DIR")
        if file is None and directory is None:
            return httpx.create_ssl_context(trust_env=False)
        try:
            return ssl.create_default_context(cafile=file, capath=directory)
        except (OSError, ValueError) as error:
            named = "SSL_CERT_DIR" if file is None else "SSL_CERT_FILE"
            raise ConfigError(f"{named} names no certificates that can be read: {file or directory}") from error

    def _unanswered(self, why: str, course: _Course) -> Unanswered:
        return Unanswered(one_line(f"http backend unreachable: {why} ({self._base.origin})"), sent=course.sent)

    def _reason(self, error: Exception) -> str:
        patience = self._patience
        match error:
            case httpx.ConnectTimeout():
                return f"timed out: no connection within {patience.connect:g} s"
            case httpx.ReadTimeout():
                return f"timed out: no answer within {patience.read:g} s"
            case httpx.WriteTimeout():
                return f"timed out: not taken within {patience.write:g} s"
            case httpx.PoolTimeout():
                return "timed out: too many requests at a time"
            case _:
                return _cause(error)


async def _body(response: httpx.Response, most: int) -> bytearray:
    """Read and unpack a body; of one that is longer than `most`, little more than that. Raises Unanswered."""
    body = bytearray()
    unpacking = _Unpacking(response.headers)
    async for packed in response.aiter_raw():
        for piece in unpacking.pieces(packed):
            body += piece
            if len(body) > most:
                return body
    unpacking.end()
    return body


def _unreadable(how: str) -> Unanswered:
    return Unanswered(one_line(f"http backend answered with a body {how}")[:_LONGEST_FAULT], sent=True)


def _root(error: BaseException) -> BaseException:
    """Give the deepest cause; of several, as when a name has several addresses, the last."""
    root = error
    while (inner := _inner(root)) is not None:
        root = inner
    return root


def _inner(error: BaseException) -> BaseException | None:
    if isinstance(error, BaseExceptionGroup):
        return cast("BaseExceptionGroup[BaseException]", error).exceptions[-1]
    inner = error.__cause__ or error.__context__  # the context too: the connection pool takes the cause away
    # Beyond one of our own is what the caller was about when he asked.
    return None if isinstance(inner, CoordError) else inner


def _cause(error: Exception) -> str:
    """Say what went wrong in the words of whoever noticed it first."""
    root = _root(error)
    match root:
        case ssl.SSLCertVerificationError():
            return f"certificate verify failed: {root.verify_message}"
        case OSError(errno=int(number), strerror=str(said)) if number:
            known = not isinstance(root, ssl.SSLError | socket.gaierror)
            return os.strerror(number) if known else said
        case _:
            return str(error) or str(root) or type(root).__name__
