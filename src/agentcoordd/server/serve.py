"""Running the server: from a database and an address to a process that answers, and ends when told to."""

import asyncio
import gc
import logging
import signal
import socket
import ssl
from collections.abc import Callable, Generator
from contextlib import contextmanager
from functools import partial

import anyio
import uvicorn
from anyio.abc import TaskStatus
from msgspec import Struct
from starlette.middleware.errors import ServerErrorMiddleware
from starlette.requests import Request
from starlette.responses import Response
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from agentcoord.errors import StoreError
from agentcoordd.descriptors import raise_limit
from agentcoordd.server.changes import SILENCE
from agentcoordd.server.connections import BODY_SECONDS, HEAD_SECONDS, UNREAD_SECONDS, patient
from agentcoordd.server.groups import open_tasks
from agentcoordd.server.state import StateApi
from agentcoordd.server.storage.base import Storage
from agentcoordd.server.storage.opening import open_storage
from agentcoordd.server.telemetry import Telemetry

_KEEP_ALIVE = 75
"""Seconds that an idle connection stays open, once it has carried a request."""

_DRAIN = 20
"""Seconds that requests may take to end once the server closes."""

_RESERVED = 128
"""Descriptors kept back from connections, for the database and whatever else."""

_LEAST = 64
"""Connections below which a server is of no use: it would close what has only just come."""

_CONNECTIONS = 20_000


class Serving(Struct, frozen=True):
    """How one server is to run. `keep` is how many changes the feed remembers at least."""

    db: str
    host: str = "127.0.0.1"
    port: int = 8787
    keep: int = 100_000
    access_log: bool = True
    certificate: str | None = None
    key: str | None = None
    head_seconds: float = HEAD_SECONDS
    body_seconds: float = BODY_SECONDS
    unread_seconds: float = UNREAD_SECONDS
    silence: float = SILENCE
    connections: int = _CONNECTIONS


class _Server(uvicorn.Server):
    """Says when it has begun; and tells those who wait for news that it closes, before it waits for them."""

    def __init__(
        self,
        config: uvicorn.Config,
        protocol: type[HttpToolsProtocol],
        closing: anyio.Event,
        started: Callable[[], None],
    ) -> None:
        super().__init__(config)
        self._protocol, self._closing, self._begun = protocol, closing, started
        self.handshake_seconds = HEAD_SECONDS

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        # Not that of uvicorn, which gives a handshake a minute: until it is done, no limit counts the connection.
        config = self.config
        self.servers = [
            await asyncio.get_running_loop().create_server(
                partial(self._protocol, config, self.server_state, {}),
                sock=listener,
                ssl=config.ssl,
                backlog=config.backlog,
                ssl_handshake_timeout=self.handshake_seconds if config.ssl else None,
            )
            for listener in sockets or []
        ]
        self.started = True
        self._begun()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._closing.set()
        await super().shutdown(sockets)

    @contextmanager
    def capture_signals(self) -> Generator[None]:
        yield  # the process has its own, and ends with a status of its own


def application(
    storage: Storage, telemetry: Telemetry, closing: anyio.Event, silence: float = SILENCE
) -> ServerErrorMiddleware:
    """Compose the ASGI application: no router, which would judge a path before the caller is known."""
    api = StateApi(storage, telemetry, closing, silence)
    return ServerErrorMiddleware(api, handler=_internal)  # pyright: ignore[reportArgumentType]


async def _internal(_: Request, error: Exception) -> Response:
    return Response(b'{"error":"internal"}', 500, media_type="application/json")


async def serve(serving: Serving, say: Callable[[str], None], ready: Callable[[int], None] = lambda _: None) -> None:
    """Serve until SIGTERM or SIGINT; then finish what was begun.

    `ready` is told the port once requests are accepted. Raises StorageDown, StoreError, UsageError.
    """
    limit = min(_raised_limit() - _RESERVED, serving.connections)
    listener = _listening(serving)
    closing = anyio.Event()
    async with open_storage(serving.db, keep=serving.keep) as storage:
        telemetry = Telemetry(say if serving.access_log else None)
        protocol = patient(
            limit,
            head_seconds=serving.head_seconds,
            body_seconds=serving.body_seconds,
            unread_seconds=serving.unread_seconds,
        )
        config = uvicorn.Config(
            application(storage, telemetry, closing, serving.silence),
            http=protocol,
            ws="none",
            lifespan="off",
            access_log=False,
            log_config=None,
            server_header=False,
            proxy_headers=False,
            timeout_keep_alive=_KEEP_ALIVE,
            timeout_graceful_shutdown=_DRAIN,
            ssl_certfile=serving.certificate,
            ssl_keyfile=serving.key,
        )
        _load(config, serving)
        port: int = listener.getsockname()[1]
        scheme = "https" if serving.certificate else "http"

        def started() -> None:
            say(f"listening on {scheme}://{_shown(serving.host)}:{port}")
            ready(port)

        server = _Server(config, protocol, closing, started)
        server.handshake_seconds = serving.head_seconds
        # What a library leaves behind, as after a connection that hung, is one line and no traceback.
        asyncio.get_running_loop().set_exception_handler(
            lambda _, left: say(f"{left['message']} {type(left.get('exception')).__name__}")
        )
        gc.freeze()  # what is loaded stays: a large listing makes the collector look at all of it again and again
        async with open_tasks() as tasks:
            await tasks.start(_exit_on_signal, server)  # before anybody hears that the server is there to be ended
            await server.serve(sockets=[listener])
            tasks.cancel_scope.cancel()


def _load(config: uvicorn.Config, serving: Serving) -> None:
    logging.getLogger("uvicorn.error").setLevel(logging.CRITICAL + 1)
    try:
        config.load()
    except (OSError, ssl.SSLError) as error:
        raise StoreError(
            f"--tls-cert {serving.certificate} and --tls-key {serving.key} cannot be used: {error}"
        ) from error


async def _exit_on_signal(server: uvicorn.Server, *, task_status: TaskStatus[None]) -> None:
    with anyio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
        task_status.started()
        async for _ in signals:
            if server.should_exit:
                server.force_exit = True
            server.should_exit = True


def _listening(serving: Serving) -> socket.socket:
    """Bind the address first: whoever has it already is the first thing to say."""
    family = socket.AF_INET6 if ":" in serving.host else socket.AF_INET
    listener = None
    try:
        listener = socket.socket(family, socket.SOCK_STREAM)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((serving.host, serving.port))
    except (OSError, OverflowError, UnicodeError) as error:  # the last: what cannot be a host's name
        if listener is not None:
            listener.close()
        why = error.strerror if isinstance(error, OSError) else str(error)
        raise StoreError(
            f"cannot listen on {_shown(serving.host)}:{serving.port}: {why}; choose another --listen"
        ) from error
    return listener


def _shown(host: str) -> str:
    return f"[{host}]" if ":" in host else host


def _raised_limit() -> int:
    """Take as many descriptors as the system lets this process have. Raises StoreError when they are too few."""
    allowed = raise_limit(_CONNECTIONS + _RESERVED)
    if allowed < _RESERVED + _LEAST:
        raise StoreError(
            f"a limit of {allowed} open files is too low: at least {_RESERVED + _LEAST} are needed; "
            "raise it with ulimit -Hn, or with LimitNOFILE= in the unit"
        )
    return allowed
