"""The change feed: everything that changed after a cursor, in order, waited for if need be.

A cursor names the feed and a change in it. It is opaque to callers, who get one with every answer.
"""

from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager

import anyio
from msgspec import Struct

from agentcoord.protocol.scopes import coverage
from agentcoordd.server.answers import Answer, Receive, Refusal, Scope, Send
from agentcoordd.server.groups import open_tasks
from agentcoordd.server.requests import bounded, listed_prefix, query_of, require_get
from agentcoordd.server.storage.base import Change, Machine, Storage, StorageDown

LONGEST_WAIT = 60
"""Seconds that a request may wait for a change."""

_LIMIT = 1000
SILENCE = 15.0
"""Seconds after which a stream without news says that it is still there."""

_LARGEST_SEQ = 2**63 - 1


class Caller(Struct, frozen=True):
    """Who follows the feed. `again` looks the token up anew, and raises Refusal once it was revoked."""

    again: Callable[[], Awaitable[Machine]]
    receive: Receive
    send: Send
    closing: anyio.Event
    """Set when the server is about to close: nobody waits for news any longer."""
    silence: float = SILENCE


class _Asked(Struct, frozen=True):
    prefix: str
    since: str | None
    wait: int
    limit: int
    streamed: bool


class _Found(Struct, frozen=True):
    changes: Sequence[Change]
    after: int
    filtered: bool


async def follow(storage: Storage, scope: Scope, headers: Mapping[bytes, bytes], caller: Caller) -> Answer | None:
    """Answer with the changes after a cursor, at once or as soon as there are some, or stream them from now on.

    Returns None when a stream was sent. Raises Refusal.
    """
    require_get(scope)
    asked = _asked(scope, headers)
    feed = await storage.feed()
    since = feed.head if asked.since is None else _position(asked.since, feed.name)
    following = _Following(storage, caller, asked, feed.name)
    found = await following.look(since)
    if asked.streamed:
        await _stream(following, found)
        return None
    if asked.wait and not found.changes:
        with anyio.move_on_after(asked.wait):
            async with _while_wanted(caller):
                while not found.changes:
                    await storage.changed(found.after, seconds=float(asked.wait))
                    found = await following.look(found.after)
    spelled = ",".join(map(_spelled, found.changes))
    filtered = ',"filtered":true' if found.filtered else ""
    return Answer(200, f'{{"changes":[{spelled}],"cursor":"{following.cursor(found.after)}"{filtered}}}'.encode())


def _asked(scope: Scope, headers: Mapping[bytes, bytes]) -> _Asked:
    query = query_of(scope)
    prefix = listed_prefix(query) if "prefix" in query else ""
    wait = bounded(query.get("wait", "0"), LONGEST_WAIT)
    if wait is None:
        raise Refusal(400, "invalid_wait")
    limit = bounded(query.get("limit", str(_LIMIT)), _LIMIT)
    if not limit:
        raise Refusal(400, "invalid_limit")
    # Whoever reconnects to a stream says in this header how far it had come.
    last = headers.get(b"last-event-id", b"").decode("latin-1")
    streamed = b"text/event-stream" in headers.get(b"accept", b"")
    return _Asked(prefix, last or query.get("since"), wait, limit, streamed)


def _position(cursor: str, name: str) -> int:
    feed, dot, text = cursor.rpartition(".")
    seq = bounded(text, _LARGEST_SEQ)
    if not dot or seq is None:
        raise Refusal(400, "invalid_cursor")
    if feed != name:
        raise Refusal(410, "cursor_expired")
    return seq


def _spelled(change: Change) -> str:
    facts = f'{{"path":"{change.path}","version":{change.version},"at":"{change.at}","updated_by":"{change.updated_by}"'
    if change.deleted:
        return facts + ',"deleted":true}'
    return facts + ("}" if change.data is None else f',"data":{change.data}}}')


class _Following(Struct, frozen=True):
    """One caller's way along the feed."""

    storage: Storage
    caller: Caller
    asked: _Asked
    name: str

    def cursor(self, seq: int) -> str:
        """Name a place in the feed."""
        return f"{self.name}.{seq}"

    async def look(self, since: int) -> _Found:
        """Look what came after a number, with the scopes that the token has at this moment. Raises Refusal."""
        visible = coverage((await self.caller.again()).reads, self.asked.prefix)
        if visible.forbidden:
            raise Refusal(403, "forbidden")
        changes, after = await self.storage.changes(since, self.asked.prefix, visible, limit=self.asked.limit)
        # Asked afterwards: what was forgotten while the changes were read may be missing from them.
        feed = await self.storage.feed()
        if feed.name != self.name or not feed.forgotten <= since <= feed.head:
            raise Refusal(410, "cursor_expired")
        return _Found(changes, after, filtered=not visible.whole)


async def _stream(following: _Following, found: _Found) -> None:
    """Send changes as server-sent events until the caller leaves, the token ends or the server closes."""
    send = following.caller.send
    headers = [(b"content-type", b"text/event-stream"), (b"cache-control", b"no-store"), (b"connection", b"close")]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    # At once, so that whoever connects has a cursor to come back with.
    await send(_part(_event("cursor", following.cursor(found.after), "{}") if not found.changes else b""))
    async with _while_wanted(following.caller):
        said, silence = anyio.current_time(), following.caller.silence
        while True:
            if found.changes:
                await send(_part(b"".join(_change(following, change) for change in found.changes)))
                said = anyio.current_time()
            try:
                if not found.changes:
                    with anyio.move_on_after(said + silence - anyio.current_time()):
                        await following.storage.changed(found.after, seconds=LONGEST_WAIT)
                found = await following.look(found.after)
            except (Refusal, StorageDown) as error:
                body = (error if isinstance(error, Refusal) else Refusal(503, "storage_unavailable")).answer.body
                await send(_part(_event("error", following.cursor(found.after), body.decode())))
                break
            if not found.changes and anyio.current_time() >= said + silence:
                # With the cursor: what others see may have moved on far, and whoever returns must not be too late.
                await send(_part(b": still here\nid: %s\n\n" % following.cursor(found.after).encode()))
                said = anyio.current_time()
    await send({"type": "http.response.body", "body": b""})


def _change(following: _Following, change: Change) -> bytes:
    return _event("change", following.cursor(change.seq), _spelled(change))


def _event(kind: str, cursor: str, data: str) -> bytes:
    return f"event: {kind}\nid: {cursor}\ndata: {data}\n\n".encode()


def _part(body: bytes) -> dict[str, object]:
    return {"type": "http.response.body", "body": body, "more_body": True}


@asynccontextmanager
async def _while_wanted(caller: Caller) -> AsyncGenerator[None]:
    """End the block once its caller is gone or the server closes."""
    async with open_tasks() as tasks:

        async def gone() -> None:
            while (await caller.receive())["type"] != "http.disconnect":
                pass
            tasks.cancel_scope.cancel()

        async def closed() -> None:
            await caller.closing.wait()
            tasks.cancel_scope.cancel()

        tasks.start_soon(gone)
        tasks.start_soon(closed)
        yield
        tasks.cancel_scope.cancel()
