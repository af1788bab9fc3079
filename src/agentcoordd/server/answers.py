"""What the server answers: a status, a JSON body, and how both go out over ASGI."""

from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from msgspec import Struct

from agentcoord.protocol.documents import encode

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]

JSON = b"application/json"


class Answer(Struct, frozen=True):
    """A whole answer. With `close` the connection ends after it: the rest of the request was not read.

    A large body is not copied into one piece: what follows `body` stands in `more`.
    """

    status: int
    body: bytes
    kind: bytes = JSON
    close: bool = False
    more: tuple[bytes, ...] = ()


class Refusal(Exception):
    """Ends a request with an error code, as every error is answered (spec: http §1)."""

    def __init__(self, status: int, code: str, *, close: bool = False) -> None:
        self.answer = Answer(status, b'{"error":"%s"}' % code.encode(), close=close)
        super().__init__(code)


def json_answer(value: object, status: int = 200) -> Answer:
    """Answer with a value as JSON."""
    return Answer(status, encode(value))


async def deliver(answer: Answer, send: Send) -> None:
    """Send an answer as a whole."""
    size = len(answer.body) + sum(map(len, answer.more))
    headers = [(b"content-type", answer.kind), (b"content-length", b"%d" % size)]
    if answer.close:
        headers.append((b"connection", b"close"))
    await send({"type": "http.response.start", "status": answer.status, "headers": headers})
    for place, part in enumerate((answer.body, *answer.more)):
        await send({"type": "http.response.body", "body": part, "more_body": place < len(answer.more)})
