"""`hello`, `daemon.status` and `daemon.stop`: answered at once, whatever else is going on."""

import os
import resource
import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

from agentcoord.files import printable
from agentcoord.protocol.outbox import MOST_BYTES, MOST_ENTRIES
from agentcoord.version import VERSION
from agentcoord.wire import API
from agentcoordd.api import messages
from agentcoordd.api.commands import MOST_RUNNING, Commands
from agentcoordd.api.dispatch import Caller, Method, Registry, Tally
from agentcoordd.api.messages import Hello, Nothing, Status, Stop, Stopping, Use, Welcome
from agentcoordd.api.subscriptions import MOST_SUBSCRIBERS, Feed
from agentcoordd.index import Index
from agentcoordd.places import MirrorView, ReplicaView, RetentionView, WatchView
from agentcoordd.roots import Roots

MOST_CONNECTIONS = 256


class Administration:
    """What the daemon says of itself. `stop` is told whether to leave the mark; it raises StoreError."""

    def __init__(
        self,
        *,
        socket: str,
        registry: Registry,
        tally: Tally,
        commands: Commands,
        feed: Feed,
        index: Index,
        roots: Roots,
        stop: Callable[[bool], None],
        mirrors: Callable[[], list[MirrorView]] = list,
        retention: Callable[[], list[RetentionView]] = list,
        replicas: Callable[[], list[ReplicaView]] = list,
        watching: Callable[[], list[WatchView]] = list,
    ) -> None:
        self._mirrors, self._retention, self._replicas, self._watching = mirrors, retention, replicas, watching
        self._socket, self._registry, self._tally = socket, registry, tally
        self._commands, self._feed, self._index, self._roots, self._stop = commands, feed, index, roots, stop
        self._began = time.monotonic()
        self._started_at = _instant(time.time())

    async def hello(self, params: Hello, caller: Caller) -> Welcome:
        """Say who answers. A caller of another API is told the same, and decides."""
        del params, caller
        return Welcome(VERSION, API, os.getpid(), self._started_at, self._registry.names)

    async def status(self, params: Nothing, caller: Caller) -> Status:
        """Say how the daemon is."""
        del params, caller
        soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        service = self._commands.service
        return Status(
            version=VERSION,
            api=API,
            pid=os.getpid(),
            socket=self._socket,
            started_at=self._started_at,
            uptime=round(time.monotonic() - self._began, 3),
            memory=resident_bytes(),
            descriptors=Use(open_descriptors(), None if soft == resource.RLIM_INFINITY else soft),
            connections=Use(self._tally.connections, MOST_CONNECTIONS),
            commands=Use(self._commands.running, MOST_RUNNING),
            subscribers=Use(self._feed.subscribers, MOST_SUBSCRIBERS),
            answers=Use(len(self._index), self._index.most),
            answers_memory=Use(self._index.bytes, self._index.most_bytes),
            records=Use(self._roots.records, None),
            records_memory=Use(self._roots.bytes, self._roots.most_bytes),
            requests=self._tally.requests,
            refused=self._tally.refused,
            dropped=self._tally.dropped,
            missed=self._feed.missed,
            any_root=service.any_root,
            roots=sorted(map(printable, service.roots)),
            backends=service.shown_backends(),
            errors=[messages.Trouble(_instant(trouble.at), trouble.message) for trouble in self._tally.errors],
            mirrors=self._mirrors(),
            retention=self._retention(),
            **self._outbox_facts(),
            replicas=self._replicas(),
            watching=self._watching(),
        )

    def _outbox_facts(self) -> dict[str, Any]:
        outbox = self._commands.outbox
        if outbox is None:
            return {}
        records, size = outbox.used
        return {
            "outbox": Use(records, MOST_ENTRIES),
            "outbox_size_bytes": Use(size, MOST_BYTES),
            "outbox_set_aside": outbox.set_aside(),
            "outbox_ways": outbox.list(),
        }

    async def stop(self, params: Stop, caller: Caller) -> Stopping:
        """End the daemon. Raises StoreError when the mark cannot be left; then it runs on."""
        del caller
        self._stop(params.mark)
        return Stopping(os.getpid())

    def methods(self) -> list[Method]:
        """The methods of this module."""
        return [
            Method("hello", Hello, Welcome, self.hello, quick=True),
            Method("daemon.status", Nothing, Status, self.status, quick=True),
            Method("daemon.stop", Stop, Stopping, self.stop, quick=True),
        ]


def resident_bytes() -> int:
    """Measure this process's memory; where the system tells only the most there ever was, that."""
    try:
        with open("/proc/self/statm", "rb") as file:
            return int(file.read().split()[1]) * resource.getpagesize()
    except OSError:
        most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return most if sys.platform == "darwin" else most * 1024


def open_descriptors() -> int:
    """Count this process's descriptors."""
    return len(os.listdir("/dev/fd")) - 1  # but for the one that is reading the list


def _instant(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
