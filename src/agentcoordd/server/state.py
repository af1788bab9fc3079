"""The routes of the state API, in the order in which each request is checked (spec: http §1)."""

from hashlib import sha256
from time import monotonic

import anyio
from msgspec import structs

from agentcoord.protocol.scopes import coverage, covers, may_delete
from agentcoordd.server import changes
from agentcoordd.server.answers import Answer, Receive, Refusal, Scope, Send, deliver, json_answer
from agentcoordd.server.requests import (
    Body,
    carries_body,
    data_of,
    deleted_version,
    headers_of,
    listed_prefix,
    paging_of,
    query_of,
    record_path,
    require_get,
    token_of,
    written_version,
)
from agentcoordd.server.storage.base import Machine, Storage, StorageDown, Write
from agentcoordd.server.telemetry import Telemetry

_STATE = b"/v1/state"
_HEALTH_SECONDS = 2.0
_PROMPT = 0.001
"""Seconds within which a body is no reason to ask once more whose the token is."""


class StateApi:
    """Answers requests from a storage. One instance serves all connections of a process."""

    def __init__(
        self, storage: Storage, telemetry: Telemetry, closing: anyio.Event, silence: float = changes.SILENCE
    ) -> None:
        self._storage, self._telemetry, self._closing, self._silence = storage, telemetry, closing, silence

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request; the application of the ASGI server."""
        raw: bytes = scope["raw_path"]
        route = route_of(raw)
        with self._telemetry.request(scope, route) as seen:
            answer: Answer | None = None
            headers = headers_of(scope)
            body = Body(receive) if carries_body(headers) else None
            try:
                answer = await self._answer(route, raw, scope, headers, body or receive, send)
            except Refusal as refusal:
                answer = refusal.answer
                if body is not None and not body.whole and not answer.close:
                    # Who waits for leave to send has sent nothing, and is not to be told to.
                    if b"expect" not in headers:
                        await body.arrive()
                    answer = answer if body.whole else structs.replace(answer, close=True)
            except StorageDown as down:
                seen.failed(down)
                answer = Refusal(503, "storage_unavailable").answer
            except anyio.get_cancelled_exc_class():  # the server ends, and has waited long enough
                seen.status = 503
                await deliver(Refusal(503, "storage_unavailable", close=True).answer, send)
                raise
            seen.status = 200 if answer is None else answer.status  # without an answer, a stream was sent
            if answer is not None:
                await deliver(answer, send)

    async def _answer(
        self, route: str, raw: bytes, scope: Scope, headers: dict[bytes, bytes], receive: Receive, send: Send
    ) -> Answer | None:
        if route == "health":
            return await self._health()
        machine = await self._authenticated(headers)
        match route:
            case "record":
                return await self._record(raw, machine, scope["method"], headers, receive)
            case "list":
                return await self._listing(machine, scope)
            case "changes":
                caller = changes.Caller(
                    lambda: self._authenticated(headers), receive, send, self._closing, self._silence
                )
                return await changes.follow(self._storage, scope, headers, caller)
            case "whoami":
                require_get(scope)
                return json_answer(
                    {
                        "machine": machine.name,
                        "read_prefixes": machine.reads,
                        "write_prefixes": machine.writes,
                    }
                )
            case "metrics":
                require_get(scope)
                return self._telemetry.exposition()
            case _:
                raise Refusal(404, "route_not_found")

    async def _health(self) -> Answer:
        with anyio.move_on_after(_HEALTH_SECONDS) as patience:
            await self._storage.check()
        if patience.cancelled_caught:
            raise StorageDown("the database did not answer in time")
        return json_answer({"status": "ok"})

    async def _authenticated(self, headers: dict[bytes, bytes]) -> Machine:
        token = token_of(headers)
        machine = await self._storage.machine(sha256(token.encode("latin-1")).hexdigest())
        if machine is None:
            raise Refusal(401, "unknown_token")
        return machine

    async def _listing(self, machine: Machine, scope: Scope) -> Answer:
        query = query_of(scope)
        prefix = listed_prefix(query)
        require_get(scope)
        visible = coverage(machine.reads, prefix)
        if visible.forbidden:
            raise Refusal(403, "forbidden")
        paging = paging_of(query, prefix)
        page = await self._storage.page(prefix, visible, after=paging.cursor, limit=paging.limit)
        filtered = b"" if visible.whole else b',"filtered":true'
        cursor = b"" if page.cursor is None else f',"next_cursor":"{page.cursor}"'.encode()
        pieces = [b"," + piece if place else piece for place, piece in enumerate(page.entries)]
        return Answer(200, b'{"entries":[', more=(*pieces, b"]%b%b}" % (filtered, cursor)))

    async def _record(
        self, raw: bytes, machine: Machine, method: str, headers: dict[bytes, bytes], receive: Receive
    ) -> Answer:
        path = record_path(raw[len(_STATE) + 1 :])
        match method:
            case "GET":
                if not covers(machine.reads, path):
                    raise Refusal(403, "forbidden")
                return await self._read(path)
            case "PUT":
                if not covers(machine.writes, path):
                    raise Refusal(403, "forbidden")
                began = monotonic()
                data = await data_of(path, headers, receive)
                if monotonic() - began > _PROMPT:  # while the body came, the token may have ended or lost its scopes
                    machine = await self._authenticated(headers)
                    if not covers(machine.writes, path):
                        raise Refusal(403, "forbidden")
                return await self._put(path, machine, data, written_version(headers))
            case "DELETE":
                _require_deletable(path, machine)
                version = deleted_version(headers)
                verdict = await self._storage.write(Write("delete", path, machine.name, version=version))
                if verdict is None:
                    raise Refusal(409, "version_conflict")
                return json_answer({"path": path, "deleted": True, "updated_by": machine.name})
            case _:
                raise Refusal(405, "method_not_allowed")

    async def _read(self, path: str) -> Answer:
        row = await self._storage.read(path)
        if row is None:
            raise Refusal(404, "not_found")
        by = "" if row.updated_by is None else f',"updated_by":"{row.updated_by}"'
        return Answer(200, f'{{"path":"{path}","data":{row.data},"version":{row.version}{by}}}'.encode())

    async def _put(self, path: str, machine: Machine, data: str, version: int | None) -> Answer:
        if version is None:
            verdict = await self._storage.write(Write("create", path, machine.name, data))
        else:
            verdict = await self._storage.write(Write("update", path, machine.name, data, version))
        if verdict is None:
            raise Refusal(409, "already_exists" if version is None else "version_conflict")
        written = {"path": path, "version": verdict, "updated_by": machine.name}
        return json_answer(written, 201 if version is None else 200)


def route_of(raw: bytes) -> str:
    """Name the route of a path as it came, undecoded: a record's own path is decoded later, once."""
    if raw.startswith(_STATE + b"/"):
        return "record"
    return {
        b"/v1/health": "health",
        b"/v1/whoami": "whoami",
        _STATE: "list",
        b"/v1/changes": "changes",
        b"/metrics": "metrics",
    }.get(raw, "unknown")


def _require_deletable(path: str, machine: Machine) -> None:
    if path.startswith("attention/"):
        raise Refusal(405, "method_not_allowed") if covers(machine.writes, path) else Refusal(403, "forbidden")
    if not may_delete(machine.writes, path):
        raise Refusal(403, "forbidden")
