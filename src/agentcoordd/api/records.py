"""The methods on records: params become the words of a command, its operation is done, its JSON is the result.

No rule stands here. What differs from the command line is who asks: a caller names one of the daemon's own backends,
and the machine a write is attributed to is the daemon's, but never the session in which somebody started it.
"""

import json
import os
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine
from contextlib import ExitStack, asynccontextmanager
from datetime import UTC, datetime
from functools import partial
from typing import Any

import anyio
import msgspec
from msgspec import Raw, Struct
from msgspec.structs import replace

from agentcoord.cli import requests, usage
from agentcoord.cli.chance import stream
from agentcoord.cli.options import Words
from agentcoord.cli.output import one_line
from agentcoord.cli.render.attention import facts_of_list
from agentcoord.cli.render.audit import facts_of_audit
from agentcoord.cli.render.claims import facts_of_claim, facts_of_release
from agentcoord.cli.render.records import facts_of_closing
from agentcoord.cli.render.standing import facts_of_standing
from agentcoord.cli.render.status import facts_of_status
from agentcoord.cli.render.trail import facts_of_trail
from agentcoord.cli.replica import asks_for_age, recalled, require_replica
from agentcoord.errors import ConfigError, StoreError, UsageError
from agentcoord.files import discreet
from agentcoord.operations.attention import get_attention, list_attention, resolve_attention, upsert_attention
from agentcoord.operations.audit import audit
from agentcoord.operations.batches import BatchRequest, register_batch
from agentcoord.operations.claims import claim, release
from agentcoord.operations.closeout import record_closing
from agentcoord.operations.context import Context
from agentcoord.operations.events import record_event
from agentcoord.operations.heartbeats import heartbeat
from agentcoord.operations.standing import verify
from agentcoord.operations.status import StatusRequest, status
from agentcoord.operations.trail import read_trail, require_query
from agentcoord.protocol.attention import read_attention
from agentcoord.protocol.documents import Document
from agentcoord.protocol.identity import NOBODY, Identity
from agentcoord.protocol.instants import in_utc
from agentcoord.protocol.replica import Label
from agentcoord.settings.environment import STATE_ROOT, WHITESPACE
from agentcoord.settings.selection import Flags, Selection
from agentcoord.settings.value import load
from agentcoord.stores.base import Behalf, Store
from agentcoord.stores.opening import settle
from agentcoord.wire import FRAME_BYTES
from agentcoordd.api import deeds
from agentcoordd.api.commands import Commands, Wanted
from agentcoordd.api.deeds import Looks, StatusTarget, Told, Writes, words_of
from agentcoordd.api.dispatch import Caller, Method, Refused
from agentcoordd.api.messages import Fault
from agentcoordd.api.outbox import Queueing
from agentcoordd.api.sharing import Readings
from agentcoordd.backends import Backend, Backends, HttpBackend, LocalBackend, shown
from agentcoordd.index import Index, Key

RESULT_BYTES = FRAME_BYTES - 4096
"""The largest result: with its frame it is one line."""

MOST_AT_WORK = 24
"""Requests that may be at work on local roots at a time; the others wait their turn."""
MOST_AWAY = 16
"""As many as may be on their way to a server, which holds up nobody else if it hangs. Both leave room for commands."""
TURN_SECONDS = 10.0
"""How long they wait before they are turned away."""
ANSWER_SECONDS = 300.0
"""How long one is worked on: a state root that hangs must not keep the room of all others for good."""

_SESSION_SOURCE = "agent_coord_session_id"
"""How records call a session that was given by name."""


class _Deed(Struct, frozen=True):
    """One method: the command it stands for, what it does, whether it writes, and whether that may wait."""

    name: str
    command: str
    do: Callable[[Context, Words, Any], Awaitable[Told]]
    writes: bool = True
    may_wait: bool = False


_Steps = Callable[[Store], Coroutine[Any, Any, Raw]]


class _Begun(Struct, frozen=True):
    """What came of a deed on files, or is left to do where answers are waited for; `asked` are writes of attention."""

    backend: Backend
    asked: list[Document]
    done: Raw | _Steps


class Records:
    """Does what callers ask of the backends that are served, in the threads and within the number of commands."""

    def __init__(self, commands: Commands, backends: Backends, index: Index) -> None:
        self._commands, self._service = commands, commands.service
        self._backends, self._index = backends, index
        self._here, self._away = anyio.Semaphore(MOST_AT_WORK), anyio.Semaphore(MOST_AWAY)
        self._readings = Readings[Raw]()

    def methods(self) -> list[Method]:
        """The methods of this module. They raise Refused and CoordError with one line for the caller."""
        return [self._method(deed) for deed in _DEEDS]

    def _method(self, deed: _Deed) -> Method:
        params, results = deeds.PUBLISHED[deed.name]

        async def call(asked: Any, caller: Caller) -> Raw:
            return await self._answer(deed, asked, caller)

        async def look(asked: StatusTarget, caller: Caller) -> Raw:
            return await self._target(deed, asked, caller)

        if deed.name == "status.target":
            return Method(deed.name, params, results[0], look, at_once=self._at_once)
        return Method(deed.name, params, results[0], call)

    # Any of them -----------------------------------------------------------------------------------

    async def _answer(self, deed: _Deed, params: Looks, caller: Caller) -> Raw:
        self._require_served(params.backend)
        wanted = Wanted(caller.session)
        # Where no backend is named it may be a server.
        async with self._turn(self._here if isinstance(params.backend, LocalBackend) else self._away):
            try:
                begun = await self._commands.threads(partial(self._begin, deed, params, wanted))
                done = begun.done
                answer = done if isinstance(done, Raw) else await self._backends.perform(begun.backend, done)
            finally:
                wanted.over = True
            self._commands.tell_attended(begun.backend, begun.asked)
            return answer

    @asynccontextmanager
    async def _turn(self, turns: anyio.Semaphore) -> AsyncGenerator[None]:
        """Wait until there is room. Raises Refused when there is none for long, or the daemon ends.

        Work that takes too long is given up with StoreError: what came of it is unknown.
        """
        try:
            with anyio.fail_after(TURN_SECONDS):
                await turns.acquire()
        except TimeoutError:
            raise Refused(Fault.FAILED, f"too many requests are at work, for {TURN_SECONDS:.0f} s now") from None
        try:
            with self._commands.at_work(), anyio.fail_after(ANSWER_SECONDS):
                yield
        except TimeoutError:
            raise StoreError(f"given up: the backend did not answer within {ANSWER_SECONDS:g} s") from None
        finally:
            turns.release()

    def _begin(self, deed: _Deed, params: Looks, wanted: Wanted) -> _Begun:
        """Choose the backend, and do it at once where nothing is waited for. Works on files; raises Refused."""
        words = words_of(deed.command, params)
        usage.require_coherent(words)
        usage.require_options(words)
        backend, identity, said = self._chosen(deed, params)
        asked = list[Document]()

        async def steps(store: Store) -> Raw:
            return await answer(store, Label("backend", _now()))

        async def answer(store: Store, label: Label) -> Raw:
            context = _context(store, params, identity, asked, self._queueing(deed, backend, wanted))
            told = await deed.do(context, words, params)
            notices = [discreet(one_line(line)) for line in (*said, *context.notices)]
            return _encoded(replace(told, notices=notices, **(label.facts() if asks_for_age(words) else {})))

        if isinstance(backend, HttpBackend):
            selection = Selection(kind="http", backend_source="cli", url=backend.url)
            require_replica(words, selection, self._commands.recall)
            with ExitStack() as stack:
                snapshot = recalled(words, selection, self._commands.recall, stack)
                known = None if snapshot is None else settle(answer(snapshot.store, snapshot.label))
            return _Begun(backend, asked, steps if known is None else known)
        store = self._commands.roots(backend.root, behalf=Behalf(require_wanted=wanted.require))
        return _Begun(backend, asked, settle(steps(store)))

    def _queueing(self, deed: _Deed, backend: Backend, wanted: Wanted) -> Queueing | None:
        outbox = self._commands.outbox if deed.may_wait else None
        if outbox is None or not isinstance(backend, HttpBackend) or not outbox.takes(backend.url):
            return None
        return Queueing(outbox, self._service, backend.url, wanted.require)

    def _require_served(self, backend: Backend | None) -> None:
        """Compare names only. Raises Refused for a backend that is not the daemon's, UsageError for no backend."""
        if backend is None:
            return
        if not self._service.serves(backend):
            raise Refused(Fault.ELSEWHERE, f"the daemon does not serve {shown(backend)}")
        self._backends.require(backend)

    def _chosen(self, deed: _Deed, params: Looks) -> tuple[Backend, Identity, list[str]]:
        """Give the backend, the writer, and what there is to say of a choice that the caller did not make."""
        named = params.backend
        if named is not None and not deed.writes:
            return named, NOBODY, []
        flags, given = Flags(), list[str]()
        if isinstance(named, LocalBackend):
            flags, given = Flags(state_root=named.root), ["--state-root"]
        elif named is not None:
            flags, given = Flags(api_url=named.url), ["--api-url"]
        settings = load(self._service.own, command=deed.command, flags=flags, argv_selectors=given)
        identity = _identity(settings.identity, params) if isinstance(params, Writes) else NOBODY
        if named is not None:
            return named, identity, []
        return _own(settings.selected), identity, list(settings.selected.said)

    # The status of one work item -------------------------------------------------------------------

    def _at_once(self, params: StatusTarget, caller: Caller) -> Raw | None:
        """Give the answer that is kept, if it is there and true; only what is served was ever kept."""
        del caller
        backend = params.backend
        if not isinstance(backend, LocalBackend) or _asks_for_age(params):
            return None
        return self._index.find((backend.root, params.repo, params.target), _now())

    async def _target(self, deed: _Deed, params: StatusTarget, caller: Caller) -> Raw:
        backend = params.backend
        if not isinstance(backend, LocalBackend) or _asks_for_age(params):
            return await self._answer(deed, params, caller)
        self._require_served(backend)
        key = (backend.root, params.repo, params.target)
        return await self._readings.share(key, partial(self._read, key, params))

    async def _read(self, key: Key, params: StatusTarget) -> Raw:
        async with self._turn(self._here):
            if (kept := self._index.find(key, _now())) is not None:
                return kept
            now = _now()
            look = partial(self._index.answer, key[0], partial(_look, params, now), settle, now)
            answer, worth = await self._commands.threads(look)
            self._index.keep(key, worth)
            return answer


def _asks_for_age(params: StatusTarget) -> bool:
    """Tell whether the answer says how old it is, and so is none that is kept."""
    return bool(params.offline) or params.max_age is not None


async def _look(params: StatusTarget, now: datetime, store: Store) -> Raw:
    context = Context(store=store, now=lambda: now, random=os.urandom)
    return _encoded(await _status(context, words_of("status", params), params))


def _own(selection: Selection) -> Backend:
    """Give the backend that the daemon's own settings select. Raises Refused, ConfigError."""
    if selection.kind == "http":
        return HttpBackend(selection.url or "")
    if selection.kind == "github":
        raise Refused(Fault.ELSEWHERE, "the GitHub backend starts programs, which its caller does itself")
    root = selection.root or ""
    if not root.startswith("/"):
        raise ConfigError(
            f"the daemon's own state root is relative: {root!r}; set {STATE_ROOT} to an absolute path or name a backend"
        )
    return LocalBackend(root)


def _identity(own: Identity, params: Writes) -> Identity:
    """Attribute to the caller's session only: that of the daemon's environment is of whoever started it."""
    who = params.identity
    session = _said(who.session_id)
    return Identity(
        machine_id=_said(who.machine_id) or own.machine_id,
        session_id=session,
        session_source=None if session is None else _said(who.session_source) or _SESSION_SOURCE,
    )


def _said(value: str | None) -> str | None:
    return None if value is None else value.strip(WHITESPACE) or None


def _context(
    store: Store, params: Looks, identity: Identity, asked: list[Document], outbox: Queueing | None
) -> Context:
    now, random, again = _now, os.urandom, False
    if isinstance(params, Writes):
        again = params.now is not None and params.seed is not None  # it may be, and then only its own work is met
        if params.now is not None:
            at = in_utc(params.now)
            now = lambda: at  # noqa: E731 - a clock that stands
        if params.seed is not None:
            random = stream(bytes.fromhex(params.seed))
    return Context(store=store, now=now, random=random, identity=identity, asked=asked, again=again, outbox=outbox)


def _now() -> datetime:
    return datetime.now(UTC)


def _encoded(told: Told) -> Raw:
    """Make the bytes of a result. Raises StoreError for more than one line holds."""
    try:
        data = msgspec.json.encode(told)
    except UnicodeEncodeError:  # bytes of a name that are no text: escaped, they still are JSON
        data = json.dumps(msgspec.to_builtins(told)).encode()
    if len(data) > RESULT_BYTES:
        raise StoreError(
            f"the answer holds {len(data)} bytes and a line at most {RESULT_BYTES}; ask for less, or by cli.run"
        )
    return Raw(data)


def _told(kind: type[Told], facts: Document) -> Told:
    return msgspec.convert(facts, kind)


# What each does --------------------------------------------------------------------------------------


async def _acquire(context: Context, words: Words, params: Any) -> Told:
    wanted = requests.claim(words)
    if params.exclusive:
        if not wanted.metadata.get("instance_id"):
            raise UsageError("exclusive needs an instance_id")
        wanted = replace(wanted, exclusive=True)
    facts = facts_of_claim(await claim(context, wanted))
    return _told(deeds.NotAcquired if "refused" in facts else deeds.Acquired, facts)


async def _release(context: Context, words: Words, params: Any) -> Told:
    return _told(deeds.Released, facts_of_release(await release(context, requests.release(words))))


async def _verify(context: Context, words: Words, params: Any) -> Told:
    request = requests.verify(words)
    return _told(deeds.Verified, facts_of_standing(await verify(context, request), request))


async def _beat(context: Context, words: Words, params: Any) -> Told:
    beaten = await heartbeat(context, requests.heartbeat(words))
    return _written(beaten.record, queued=beaten.queued)


async def _record(context: Context, words: Words, params: Any) -> Told:
    request = requests.record_event(words)
    if isinstance(request, requests.ClosingRequest):
        return _told(deeds.Written, facts_of_closing(await record_closing(context, request.batch_id, request.payload)))
    recorded = await record_event(context, request)
    return _written(recorded.record, queued=recorded.queued)


def _written(record: Document, *, queued: bool) -> Told:
    return deeds.Queued(record=record, queued=True) if queued else deeds.Written(record=record)


async def _register(context: Context, words: Words, params: Any) -> Told:
    asked = requests.register_batch(words)
    prompt: str | None = params.launch_prompt
    request = BatchRequest(
        manifest=bytes(params.manifest),
        batch_id=asked.batch_id,
        launch_prompt=None if prompt is None else prompt.encode(),
        synthetic=asked.synthetic,
    )
    return deeds.Written(record=(await register_batch(context, request)).record)


async def _audit(context: Context, words: Words, params: Any) -> Told:
    return _told(deeds.Audit, facts_of_audit(await audit(context, requests.batch_audit(words).batch_id)))


async def _status(context: Context, words: Words, params: Any) -> Told:
    request: StatusRequest = requests.status(words)
    return _told(deeds.Seen, facts_of_status(await status(context, request)))


async def _log(context: Context, words: Words, params: Any) -> Told:
    request = requests.log(words)
    require_query(request, json=True)
    return _told(deeds.Log, facts_of_trail(await read_trail(context, request)))


async def _upsert(context: Context, words: Words, params: Any) -> Told:
    return deeds.Written(record=(await upsert_attention(context, read_attention(bytes(params.record)))).record)


async def _resolve(context: Context, words: Words, params: Any) -> Told:
    request = requests.attention_resolve(words)
    return deeds.Written(record=(await resolve_attention(context, request.key, request.generation)).record)


async def _get(context: Context, words: Words, params: Any) -> Told:
    return deeds.Written(record=(await get_attention(context, requests.attention_get(words))).record)


async def _list(context: Context, words: Words, params: Any) -> Told:
    return _told(deeds.Listed, facts_of_list(await list_attention(context, requests.attention_list(words))))


_DEEDS = (
    _Deed("claim.acquire", "claim", _acquire),
    _Deed("claim.release", "release", _release),
    _Deed("claim.verify", "verify", _verify, writes=False),
    _Deed("heartbeat.beat", "heartbeat", _beat, may_wait=True),
    _Deed("event.record", "record-event", _record, may_wait=True),
    _Deed("batch.register", "register-batch", _register),
    _Deed("batch.audit", "batch-audit", _audit, writes=False),
    _Deed("status.target", "status", _status, writes=False),
    _Deed("status.batch", "status", _status, writes=False),
    _Deed("status.all", "status", _status, writes=False),
    _Deed("trail.log", "log", _log, writes=False),
    _Deed("attention.upsert", "attention-upsert", _upsert),
    _Deed("attention.resolve", "attention-resolve", _resolve),
    _Deed("attention.get", "attention-get", _get, writes=False),
    _Deed("attention.list", "attention-list", _list, writes=False),
)
