"""One connection: bytes to frames, frames to methods, answers back, and every way a caller may misbehave.

It is a protocol of the event loop and no task, so that a thousand idle callers cost a thousand small objects.
Nothing here waits for a reader: what it does not take is kept up to a limit, and then the reader is dropped.
"""

import asyncio
import json
import logging
import select
import threading
from collections.abc import Callable
from time import monotonic
from typing import Any, cast

import anyio
import msgspec
from anyio.abc import TaskGroup
from msgspec import UNSET, Struct, UnsetType

from agentcoord.cli.output import one_line
from agentcoord.errors import CoordError
from agentcoord.stores.opening import settle
from agentcoord.wire import FRAME_BYTES
from agentcoordd.api.dispatch import Caller, Gone, Method, Refused, Registry, Tally
from agentcoordd.api.messages import (
    About,
    Answer,
    Cause,
    Content,
    Error,
    Failure,
    Fault,
    Id,
    Incoming,
    Notification,
)
from agentcoordd.listener import Peer

log = logging.getLogger(__name__)

MOST_REQUESTS = 16
"""Requests of one connection that may run at a time."""

READ_SECONDS = 10.0
"""How long a reader that has not made room may take to make some."""
FRAME_SECONDS = 30.0
"""How long one frame may take to arrive."""

_HIGH, _LOW = 1024 * 1024, 256 * 1024
_KEPT_BYTES = 64 * 1024 * 1024
"""What all unfinished frames may hold together."""
MOST_UNREAD = 128 * 1024 * 1024
"""Bytes of answers that may wait for all readers together; beyond, the one who is furthest behind is dropped."""
_NOTIFIED: dict[str, type[About | Content]] = {"go": About, "cancel": About, "content": Content}

_LEFT = select.POLLHUP | select.POLLERR | getattr(select, "POLLRDHUP", 0)
"""What tells of a caller that hung up, also while what it sent before is still unread."""

_decode = msgspec.json.Decoder(Incoming).decode
_encode = msgspec.json.Encoder().encode


class Hall:
    """What all connections share: the methods, the counts, and the group in which requests run."""

    def __init__(self, registry: Registry, tally: Tally, tasks: TaskGroup) -> None:
        self.registry, self.tally, self.tasks = registry, tally, tasks
        self.present: set[Connection] = set()
        self.kept = 0
        """Bytes of unfinished frames."""
        self._emptied: anyio.Event | None = None

    def sweep(self) -> None:
        """Drop who does not read, or does not finish a frame."""
        now = monotonic()
        for connection in list(self.present):
            connection.hurry(now)

    def make_room(self) -> bool:
        """Close the connection that has been idle for longest, and tell whether there was one."""
        idle = [connection for connection in self.present if connection.idle]
        if not idle:
            return False
        min(idle, key=lambda connection: connection.heard_at).drop("idle, and others want to connect")
        return True

    def bound_unread(self) -> None:
        """Drop whoever is furthest behind with reading for as long as all are too far behind together."""
        behind = {connection: connection.unread for connection in self.present}
        total = sum(behind.values())
        while total > MOST_UNREAD:
            worst = max(behind, key=behind.__getitem__)
            total -= behind.pop(worst)
            worst.drop("read too little of what it asked for")

    async def close(self) -> None:
        """End what still runs, close every connection once what was said to it is sent, and wait for that."""
        self._emptied = anyio.Event()
        for connection in list(self.present):
            connection.close()
        if self.present:
            await self._emptied.wait()

    def leave(self, connection: "Connection") -> None:
        """Count a connection no more."""
        self.present.discard(connection)
        self.tally.connections -= 1
        if self._emptied is not None and not self.present:
            self._emptied.set()


class Connection(asyncio.Protocol):
    """One caller. The first frame may be any: `hello` is a courtesy and no key."""

    def __init__(self, peer: Peer, hall: Hall) -> None:
        self._peer, self._hall = peer, hall
        self._transport: asyncio.Transport | None = None
        self._open = threading.Lock()
        """Held while the descriptor must not be closed."""
        self._pending: list[bytes] = []
        self._pending_bytes = 0
        self._pending_since = 0.0
        self._full_since: float | None = None
        self._room = asyncio.Event()
        self._room.set()
        self._running: dict[Id, anyio.CancelScope] = {}
        self._listeners: dict[Id, Callable[[str, Any], None]] = {}
        self._followers: list[tuple[Callable[[], None], Callable[[], None]]] = []
        self._ending = False
        self.heard_at = monotonic()

    # What the event loop calls ---------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin."""
        self._transport = cast("asyncio.Transport", transport)
        self._transport.set_write_buffer_limits(_HIGH, _LOW)
        self._hall.present.add(self)
        self._hall.tally.connections += 1

    def connection_lost(self, exc: Exception | None) -> None:
        """End what the caller began: nobody is left to hear of it."""
        del exc
        with self._open:
            self._transport = None
        self._forget_pending()
        self._hall.leave(self)
        self._room.set()
        for scope in self._running.values():
            scope.cancel()
        for _, closed in self._followers:
            closed()
        self._followers.clear()

    def data_received(self, data: bytes) -> None:
        """Take what arrived, and each frame that is whole by it."""
        self.heard_at = monotonic()
        head, newline, rest = data.partition(b"\n")
        if not newline:
            self._keep(head)
            return
        if self._pending:
            head = b"".join([*self._pending, head])
            self._forget_pending()
        self._take(head)
        if rest:
            *lines, last = rest.split(b"\n")
            for line in lines:
                self._take(line)
            self._keep(last)

    def eof_received(self) -> bool:
        """Finish what is running, but for commands, whose caller waits for them; then close."""
        self._ending = True
        for request in list(self._listeners):
            if (scope := self._running.get(request)) is not None:
                scope.cancel()
        if self._followers:
            return False
        self._close_when_done()
        return True

    def pause_writing(self) -> None:
        """Answer nothing more until the caller reads, so ask it nothing more either."""
        self._full_since = monotonic()
        self._room.clear()
        if self._transport is not None:
            self._transport.pause_reading()

    def resume_writing(self) -> None:
        """Go on."""
        self._full_since = monotonic() if self._transport is None or self._transport.is_closing() else None
        self._room.set()
        if self._transport is not None and not self._transport.is_closing():
            self._transport.resume_reading()
        for drained, _ in list(self._followers):
            drained()

    # A session, for methods ------------------------------------------------------------------------

    @property
    def congested(self) -> bool:
        """Whether the caller is behind with reading."""
        return self._full_since is not None or self._transport is None

    def standing(self) -> bool:
        """Tell whether the caller is still there. The loop may not have looked yet, if this process was stopped."""
        with self._open:
            if self._transport is None or self._transport.is_closing():
                return False
            looking = select.poll()
            looking.register(self._transport.get_extra_info("socket").fileno(), _LEFT)
            return not looking.poll(0)

    def notify(self, method: str, params: Struct, following: bytes = b"") -> None:
        """Say something that nobody answers, and bytes after it."""
        self._say(Notification(method, params), following)

    async def drained(self) -> None:
        """Wait until the caller has read most of it. Raises Gone; one who does not read is dropped by `hurry`."""
        await self._room.wait()
        if self._transport is None or self._transport.is_closing():
            raise Gone

    def hear(self, request: Id, listener: Callable[[str, Any], None] | None) -> None:
        """Give what is said about a request to a listener, or to nobody any more."""
        if listener is None:
            self._listeners.pop(request, None)
        else:
            self._listeners[request] = listener

    def follow(self, drained: Callable[[], None], closed: Callable[[], None]) -> None:
        """Tell somebody of room, and of the end."""
        self._followers.append((drained, closed))

    # Limits ----------------------------------------------------------------------------------------

    @property
    def idle(self) -> bool:
        """Whether nobody would miss the connection: nothing runs, nothing is awaited."""
        return not self._running and not self._followers and not self._pending

    @property
    def unread(self) -> int:
        """Bytes that wait for the caller to read them."""
        return 0 if self._transport is None else self._transport.get_write_buffer_size()

    def hurry(self, now: float) -> None:
        """Drop a caller that has been too slow by now."""
        if self._full_since is not None and now - self._full_since > READ_SECONDS:
            self.drop(f"read nothing for {READ_SECONDS:.0f} s")
        elif self._pending and now - self._pending_since > FRAME_SECONDS:
            self.drop(f"did not finish a frame within {FRAME_SECONDS:.0f} s")

    def drop(self, why: str) -> None:
        """Hang up at once."""
        self._hall.tally.dropped += 1
        log.warning("connection of pid %d dropped: %s", self._peer.pid, why)
        if self._transport is not None:
            self._transport.abort()

    def close(self) -> None:
        """End what runs, and hang up once everything is sent, for which the reader has as long as ever."""
        for scope in self._running.values():
            scope.cancel()
        if self._transport is not None and not self._transport.is_closing():
            self._full_since = monotonic()
            self._transport.close()

    # Frames ----------------------------------------------------------------------------------------

    def _keep(self, part: bytes) -> None:
        """Keep the beginning of a frame, within limits."""
        if not part or self._transport is None or self._transport.is_closing():
            return
        if not self._pending:
            self._pending_since = self.heard_at
        self._pending.append(part)
        self._pending_bytes += len(part)
        self._hall.kept += len(part)
        if len(self._pending) > 1000:  # a caller that sends byte by byte
            self._pending = [b"".join(self._pending)]
        if self._pending_bytes >= FRAME_BYTES:
            self._reject(f"a frame holds at most {FRAME_BYTES} bytes")
        elif self._hall.kept > _KEPT_BYTES:
            self._reject("too many unfinished frames")

    def _forget_pending(self) -> None:
        self._hall.kept -= self._pending_bytes
        self._pending_bytes = 0
        self._pending.clear()

    def _take(self, line: bytes) -> None:
        if self._transport is None or self._transport.is_closing():
            return
        if len(line) >= FRAME_BYTES:
            self._reject(f"a frame holds at most {FRAME_BYTES} bytes")
            return
        if not line or line.isspace():
            return
        try:
            frame = _decode(line)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            self._misread(line, error)
            return
        if frame.id is UNSET or frame.id is None:
            self._heard(frame)
            return
        self._hall.tally.requests += 1
        try:
            self._begin(frame, frame.id)
        except Refused as refused:
            self._fail(frame.id, refused.code, str(refused))
        except CoordError as error:
            self._fail(frame.id, Fault.FAILED, one_line(str(error)), Cause(error.exit))

    def _misread(self, line: bytes, error: Exception) -> None:
        """Tell garbage, after which nothing can be believed, from JSON that is no request of ours."""
        try:
            value: object = json.loads(line)
        except (ValueError, RecursionError):
            self._reject("not JSON", error)
            return
        known = cast("dict[str, object]", value) if isinstance(value, dict) else {}
        request = known.get("id")
        if not isinstance(request, (int, str)) or isinstance(request, bool):
            self._reject("not a JSON-RPC 2.0 request", error, Fault.INVALID)
        elif "surrogate" in str(error):  # words that are no Unicode travel to nobody but the file system
            self._fail(request, Fault.ELSEWHERE, "text that is not UTF-8 is not taken over a socket")
        else:
            self._fail(request, Fault.INVALID, f"not a JSON-RPC 2.0 request: {error}")

    def _reject(self, why: str, error: Exception | None = None, code: Fault = Fault.GARBAGE) -> None:
        """Say what is wrong with a frame, and hang up: what follows it cannot be told apart."""
        self._hall.tally.dropped += 1
        self._forget_pending()
        log.warning("connection of pid %d closed: %s%s", self._peer.pid, why, "" if error is None else f": {error}")
        self._fail(None, code, why)
        self.close()

    def _heard(self, frame: Incoming) -> None:
        """Pass on what is said about a request; what nobody understands needs no answer."""
        kind = _NOTIFIED.get(frame.method)
        if kind is None:
            return
        try:
            params = msgspec.json.decode(frame.params, type=kind)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            self._reject(f"bad params of {frame.method}", error, Fault.BAD_PARAMS)
            return
        if frame.method == "cancel":
            if (scope := self._running.get(params.id)) is not None:
                scope.cancel()
        elif (listener := self._listeners.get(params.id)) is not None:
            listener(frame.method, params)

    # Requests --------------------------------------------------------------------------------------

    def _begin(self, frame: Incoming, request: Id) -> None:
        method, decoder = self._hall.registry.find(frame.method)
        try:
            params = decoder.decode(frame.params)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            if "surrogate" in str(error):
                raise Refused(Fault.ELSEWHERE, "text that is not UTF-8 is not taken over a socket") from error
            raise Refused(Fault.BAD_PARAMS, f"{method.name}: {error}") from error
        caller = Caller(self._peer.pid, self._peer.uid, self, request)
        if method.quick:
            self._answer_quickly(method, params, caller)
        elif method.at_once is not None and (known := method.at_once(params, caller)) is not None:
            self._say(Answer(request, known))
        elif request in self._running:
            raise Refused(Fault.INVALID, f"a request {request!r} is still running")
        elif len(self._running) >= MOST_REQUESTS:
            raise Refused(Fault.FAILED, f"{MOST_REQUESTS} requests of this connection are running")
        else:
            scope = self._running[request] = anyio.CancelScope()
            self._hall.tasks.start_soon(self._serve, method, params, caller, scope)

    def _answer_quickly(self, method: Method, params: Any, caller: Caller) -> None:
        self._say(Answer(caller.request, settle(cast("Any", method.call(params, caller)))))

    async def _serve(self, method: Method, params: Any, caller: Caller, scope: anyio.CancelScope) -> None:
        request = caller.request
        try:
            with scope:
                result = await method.call(params, caller)
                self._say(Answer(request, result))
            if scope.cancelled_caught:
                self._fail(request, Fault.CANCELLED, "cancelled")
        except Gone:
            pass
        except Refused as refused:
            self._fail(request, refused.code, str(refused))
        except CoordError as error:
            self._fail(request, Fault.FAILED, one_line(str(error)), Cause(error.exit))
        except Exception as error:  # a fault of ours costs its request, not the daemon
            log.exception("internal error in %s", method.name)
            self._fail(request, Fault.INTERNAL, f"internal error in {method.name}: {type(error).__name__}")
        finally:
            self._running.pop(request, None)
            self._close_when_done()

    def _close_when_done(self) -> None:
        if self._ending and not self._running:
            self.close()

    def _fail(self, request: Id | None, code: Fault, message: str, cause: Cause | UnsetType = UNSET) -> None:
        if code is Fault.ELSEWHERE:
            self._hall.tally.refused += 1
        self._say(Failure(request, Error(code, message, cause)))

    def _say(self, frame: Struct, following: bytes = b"") -> None:
        if self._transport is None or self._transport.is_closing():
            return
        try:
            data = _encode(frame)
        except UnicodeEncodeError:  # bytes of a name that are no text: escaped, they still are JSON
            data = json.dumps(msgspec.to_builtins(frame)).encode()
        self._transport.write(data + b"\n")
        if following:
            self._transport.write(following)
        if self._full_since is not None:  # others may be behind as well
            self._hall.bound_unread()
