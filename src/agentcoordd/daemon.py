"""The daemon of one user on one machine: what it consists of, in which order that opens, and how it ends.

No rule and no loop of its own stands here, but those that keep the process honest: it ends when its socket is
its own no more, when it is told to, and when a service of it ends.
"""

import gc
import logging
import os
import signal
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from importlib import import_module
from pkgutil import iter_modules
from time import monotonic
from typing import TYPE_CHECKING, NoReturn

import anyio
import anyio.to_thread
from anyio.abc import TaskGroup
from msgspec import Struct

from agentcoord.cli import app
from agentcoord.cli.waiting import try_wakeups
from agentcoord.errors import CoordError, Exit, StoreError, UsageError
from agentcoord.files import cause_of
from agentcoord.protocol.retention import Policy
from agentcoord.protocol.topics import CHANGED
from agentcoord.settings.environment import API_TOKEN
from agentcoord.settings.selection import Selection
from agentcoord.stores.opening import open_feed
from agentcoord.version import VERSION
from agentcoord.wire import runtime_directory, socket_path
from agentcoordd.api import leases
from agentcoordd.api import outbox as outboxes
from agentcoordd.api.administration import MOST_CONNECTIONS, Administration
from agentcoordd.api.commands import Commands
from agentcoordd.api.connections import Connection, Hall
from agentcoordd.api.dispatch import Registry, Tally
from agentcoordd.api.records import Records
from agentcoordd.api.service import service_of
from agentcoordd.api.subscriptions import Feed
from agentcoordd.backends import Backends, HttpBackend, LocalBackend, OpenBackends
from agentcoordd.clock import SystemClock
from agentcoordd.configuration import Configuration, load_configuration, state_directory
from agentcoordd.database import open_database
from agentcoordd.descriptors import raise_limit
from agentcoordd.index import Index
from agentcoordd.lanes import Roster
from agentcoordd.listener import Listener, Peer, identity_at, open_listener
from agentcoordd.logs import begin_log
from agentcoordd.notification import Notification
from agentcoordd.places import places_of
from agentcoordd.processes import SystemProcesses
from agentcoordd.replica import Replica
from agentcoordd.roots import Roots
from agentcoordd.services.attention import Attention
from agentcoordd.services.keeper import Keeper
from agentcoordd.services.mirror import REMOTE_SECONDS, Mirrors
from agentcoordd.services.outbox import Outbox
from agentcoordd.services.retention import Rounds
from agentcoordd.services.spool import Pickup
from agentcoordd.services.watching import Watching
from agentcoordd.supervision import Notifier, given_socket

if TYPE_CHECKING:
    from agentcoordd.services.sync import Replicas

log = logging.getLogger(__name__)

CHECK_SECONDS = 1.0
"""How often the daemon looks whether it is still itself."""
DRAIN_SECONDS = 5.0
"""How long commands may take to end once the daemon does."""
FORGET_SECONDS = 10.0
"""How often it is looked which records are kept for nobody."""
SWITCH_SECONDS = 0.001
"""How long a thread may compute while the event loop has something to do."""
_DESCRIPTORS = 16_384
PARTING_SECONDS = 1.0
"""How long callers may take to read their last answers."""
THREADS_SECONDS = 1.0
"""How long work on files that nobody waits for any more may take to end."""

HELP = """\
Usage: agentcoordd run [--serve-any-root] [--log-file]

Run the daemon of this user on this machine, until SIGTERM, SIGINT or `agent-coord daemon stop`.

  --serve-any-root   Serve any state root, backend and environment of this user, not only the daemon's own
  --log-file         Log to daemon.log in the daemon's state directory, in place of stderr
"""


class Options(Struct, frozen=True):
    """How the daemon is to run."""

    serve_any_root: bool = False
    log_file: bool = False


def read_options(argv: Sequence[str]) -> Options:
    """Read the words after `run`. Raises UsageError."""
    known = {"--serve-any-root": "serve_any_root", "--log-file": "log_file"}
    for word in argv:
        if word not in known:
            raise UsageError(f"agentcoordd run does not know {word}; see agentcoordd run --help")
    return Options(**{known[word]: True for word in argv})


def run(options: Options, env: Mapping[str, str]) -> int:
    """Run the daemon to its end, and give the exit status. Raises CoordError when it cannot begin."""
    uid = os.geteuid()
    configuration = load_configuration(env, uid)
    state = state_directory(env, uid)
    tally = Tally()
    try:
        begin_log(tally, f"{state}/daemon.log" if options.log_file else None)
    except OSError as error:
        raise StoreError(f"cannot log to {state}/daemon.log: {cause_of(error)}") from error
    given = given_socket(env)
    path = socket_path(runtime_directory(env, uid), uid) if given is None else str(given.getsockname())
    sys.setswitchinterval(SWITCH_SECONDS)
    raise_limit(_DESCRIPTORS)  # fewer will do: who cannot be watched is looked at now and then
    try:
        try_wakeups()
    except OSError as error:
        raise StoreError(f"the daemon cannot run here: no event loop: {cause_of(error)}") from error
    os.chdir("/")  # never at work inside somebody's repository
    listener = open_listener(path, uid, given)
    try:
        status = anyio.run(_serve, options, env, configuration, listener, tally, state)
    finally:
        listener.close()
    _leave(status)
    return status


def _leave(status: int) -> None:
    """End the process here and now if a thread hangs in a file system: Python itself would wait for it without end."""
    end = monotonic() + THREADS_SECONDS
    for thread in threading.enumerate():
        if thread is threading.current_thread() or thread.daemon:
            continue
        thread.join(max(0.0, end - monotonic()))
        if thread.is_alive():
            log.warning("a state root does not answer; what was to be read of it is left")
            logging.shutdown()
            os._exit(status)


def warm(*, remote: bool) -> None:
    """Load what commands load when they need it, those on a `remote` backend too: a request finds everything there."""
    for package in ("cli", "cli.render", "operations", "operations.doctor", "protocol", "settings", "stores"):
        module = import_module(f"agentcoord.{package}")
        for found in iter_modules(module.__path__, f"{module.__name__}."):
            if found.name.rpartition(".")[2] not in _ON_DEMAND:
                import_module(found.name)
    if remote:
        import_module("agentcoord.stores.http")
        import_module("agentcoord.stores.httpfeed")
        import_module("httpx")
    app.build_all()
    gc.collect()
    gc.freeze()


_ON_DEMAND = {
    *("http", "httpfeed", "httpexchange", "httpwire", "gh", "github", "contents", "waiting"),
    *("live", "looking", "screen", "subscribing", "viewing", "watched", "watching"),  # a live view is its caller's
}
"""What costs most to load, and nobody may ever need."""


async def _serve(
    options: Options, env: Mapping[str, str], configuration: Configuration, listener: Listener, tally: Tally, state: str
) -> int:
    daemon = _Daemon(options, env, configuration, listener, tally, state)
    await daemon.run()
    if daemon.fault is not None:
        raise daemon.fault
    return daemon.exit


class _Daemon:
    """One run of the daemon."""

    def __init__(
        self,
        options: Options,
        env: Mapping[str, str],
        configuration: Configuration,
        listener: Listener,
        tally: Tally,
        state: str,
    ) -> None:
        self._state, self._state_identity = state, identity_at(state)
        self.exit: int = Exit.OK
        self.fault: CoordError | None = None
        """Why it could not begin: whoever started it reads that on stderr, wherever the log is."""
        self._begun, self._log_file = False, options.log_file
        self._listener, self._tally = listener, tally
        self._notifier = Notifier(env)
        self._ending = anyio.Event()
        self._accepting = anyio.CancelScope()
        self._feed = Feed()
        self._roots = Roots()
        service = service_of(dict(env), configuration.serve_roots, any_root=options.serve_any_root)
        self._commands = Commands(service, self._roots.open)
        self._registry, self._index = Registry(), Index()
        self._mirrors: Mirrors | None = None
        self._rounds: Rounds | None = None
        self._replicas: Replicas | None = None
        self._watching: Watching | None = None
        administration = Administration(
            socket=listener.path,
            registry=self._registry,
            tally=tally,
            commands=self._commands,
            feed=self._feed,
            index=self._index,
            roots=self._roots,
            stop=self._stop,
            mirrors=lambda: [] if self._mirrors is None else self._mirrors.list(),
            retention=lambda: [] if self._rounds is None else self._rounds.list(),
            replicas=lambda: [] if self._replicas is None else self._replicas.list(),
            watching=lambda: [] if self._watching is None else self._watching.list(),
        )
        self._registry.add(administration.methods())
        self._registry.add(self._commands.methods())
        self._registry.add(self._feed.methods())
        self._env, self._configuration = env, configuration

    async def run(self) -> None:
        """Serve until something ends it."""
        service = self._commands.service
        warm(remote=bool(service.urls))
        try:
            async with (
                open_database(f"{self._state}/daemon.db") as roster,
                OpenBackends(self._env, serves=service.serves, token_of=service.token_of) as backends,
                OpenBackends(self._env, serves=service.serves, token_of=service.token_of) as asked,  # by callers
                anyio.create_task_group() as services,
            ):
                keeper = self._keeper(backends, roster, services)
                outbox = Outbox(backends, roster.outbox, service.urls, SystemClock(), renewed=keeper.beaten)
                asked.answered = backends.answered = outbox.answered
                await self._queue(outbox, services)
                await services.start(keeper.run)
                self._registry.add(Records(self._commands, asked, self._index).methods())
                await self._remember(backends, services)
                await self._replicate(services)
                async with anyio.create_task_group() as requests:
                    hall = Hall(self._registry, self._tally, requests)
                    services.start_soon(self._heed_signals)
                    services.start_soon(self._stay_honest, hall)
                    services.start_soon(self._commands.tell)
                    services.start_soon(self._forget)
                    services.start_soon(self._accept, hall)
                    await self._ending.wait()
                    self._notifier.tell("STOPPING=1")
                    self._accepting.cancel()
                    with anyio.move_on_after(DRAIN_SECONDS):
                        await self._commands.end()
                    with anyio.move_on_after(PARTING_SECONDS):
                        await hall.close()
                    requests.cancel_scope.cancel()
                services.cancel_scope.cancel()
        except* Exception as errors:
            for error in _flat(errors):
                if not self._begun and isinstance(error, CoordError):
                    self.fault = error
                    if not self._log_file:
                        continue
                unexpected = None if isinstance(error, CoordError) else error
                log.error("the daemon ends: %s", error, exc_info=unexpected)  # noqa: TRY400 - most are no surprise
            self.exit = Exit.UNKNOWN
        if self._begun:
            log.info("ended pid=%d", os.getpid())

    def _keeper(self, backends: Backends, roster: Roster, services: TaskGroup) -> Keeper:
        """Make what keeps leases, and offer it to callers. Nothing is kept before it runs."""
        notification = None
        if self._configuration.notify is not None:
            told = {name: value for name, value in self._env.items() if name != API_TOKEN}
            notification = Notification(self._configuration.notify, env=told)
            services.start_soon(notification.run)
        keeper = Keeper(
            backends,
            roster,
            self._feed,
            SystemClock(),
            SystemProcesses(),
            notify=notification,
            concurrency=self._configuration.concurrency,
        )
        self._registry.add(leases.methods(keeper))
        return keeper

    async def _queue(self, outbox: Outbox, services: TaskGroup) -> None:
        """Start what sends what had to wait, and what takes it from those who could not even ask."""
        await services.start(outbox.run)
        self._commands.outbox = outbox
        self._registry.add(outboxes.methods(outbox))
        service, place = self._commands.service, os.path.dirname(self._listener.path)
        pickup = Pickup(place, outbox.put, SystemClock(), urls=service.urls, token_of=service.token_of)
        await services.start(pickup.run)

    async def _remember(self, backends: OpenBackends, services: TaskGroup) -> None:
        """Start what watches for changes, over attention, the mirrors and, if it was asked for, retention."""
        service, mirroring, gc = self._commands.service, self._configuration.mirror, self._configuration.gc
        self._watching = Watching(sorted(service.roots), self._feed, SystemClock())
        await services.start(self._watching.run)
        attention = Attention(sorted(service.roots), self._feed, SystemClock())
        self._commands.attended = attention.told
        await services.start(attention.run)
        places = places_of(self._env, service.roots, service.urls, service.status_root)
        local = [place for place in places if isinstance(place.backend, LocalBackend)]
        if mirroring.on:
            remote = mirroring.remote_seconds
            self._mirrors = Mirrors(
                backends,
                local if remote is None else places,
                SystemClock(),
                seconds=mirroring.seconds,
                remote_seconds=REMOTE_SECONDS if remote is None else remote,
            )
            await services.start(self._mirrors.run)
        if gc is not None:
            policy = Policy(gc.hot_days, gc.archive_days, gc.synthetic_hot_days)
            asked = places if gc.remote else local
            self._rounds = Rounds(backends, asked, SystemClock(), seconds=gc.seconds, policy=policy)
            await services.start(self._rounds.run)

    async def _replicate(self, services: TaskGroup) -> None:
        """Start what copies the backends that are servers, and have answers given from the copies."""
        service, wanted = self._commands.service, self._configuration.replica
        replica = Replica(f"{self._state}/replica.db", SystemClock(), most_bytes=wanted.megabytes << 20)
        if not (wanted.on and service.urls):
            try:
                replica.discard()
            except OSError as error:
                log.warning("the replica cannot be removed: %s: %s", replica.path, cause_of(error))
            if not wanted.on:
                self._commands.recall = _switched_off
            return
        from agentcoordd.services.sync import Replicas  # with the HTTP library, which others have no use for

        replicas = self._replicas = Replicas(
            replica,
            [HttpBackend(url) for url in sorted(service.urls)],
            lambda url, token: open_feed(url, token, self._env),
            service.token_of,
            self._feed,
            SystemClock(),
            watched=lambda: self._feed.wants(CHANGED),
        )
        self._commands.recall = lambda selection: replicas.snapshot(selection.url or "", selection.token)
        await services.start(replicas.run)

    async def _accept(self, hall: Hall) -> None:
        self._notifier.tell("READY=1", f"STATUS=listening on {self._listener.path}")
        self._begun = True
        log.info("listening on %s pid=%d version=%s", self._listener.path, os.getpid(), VERSION)

        def admit() -> bool:
            return len(hall.present) < MOST_CONNECTIONS or hall.make_room()

        def fault(said: str) -> None:
            self._tally.dropped += 1
            log.warning("%s", said)

        with self._accepting:
            await self._listener.accept(partial(_connect, hall), admit, fault)

    async def _stay_honest(self, hall: Hall) -> None:
        """Look again and again whether this is still the daemon, and its callers still callers."""
        interval = self._notifier.interval
        pause = CHECK_SECONDS if interval is None else min(CHECK_SECONDS, interval)
        while True:
            await anyio.sleep(pause)
            if interval is not None:
                self._notifier.tell("WATCHDOG=1")
            hall.sweep()
            lost = self._listener.lost()
            if lost is None and identity_at(self._state) != self._state_identity:
                lost = self._state
            if lost is not None:
                log.error("the daemon ends: %s is gone or replaced, so it is not this machine's daemon any more", lost)
                self.exit = Exit.UNKNOWN
                self._ending.set()
                return

    async def _forget(self) -> None:
        """Free the records that nobody asks for any more."""
        while True:
            await anyio.sleep(FORGET_SECONDS)
            await anyio.to_thread.run_sync(self._roots.sweep, abandon_on_cancel=True)

    async def _heed_signals(self) -> None:
        with anyio.open_signal_receiver(signal.SIGTERM, signal.SIGINT, signal.SIGHUP) as signals:
            async for number in signals:
                log.info("ending on %s", signal.Signals(number).name)
                self._ending.set()

    def _stop(self, mark: bool) -> None:
        if mark:
            self._listener.mark_stopped()
        log.info("told to stop")
        self._ending.set()


def _switched_off(selection: Selection) -> NoReturn:
    del selection
    raise StoreError("the daemon keeps no replica: replica.on is false in its settings")


def _flat(errors: BaseExceptionGroup[Exception]) -> Iterator[Exception]:
    for error in errors.exceptions:
        if isinstance(error, BaseExceptionGroup):
            yield from _flat(error)
        else:
            yield error


def _connect(hall: Hall, peer: Peer) -> Connection:
    return Connection(peer, hall)
