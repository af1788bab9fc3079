"""What the server tells of itself: an access log without secrets, and figures for Prometheus."""

import time
from collections.abc import Callable, Generator
from contextlib import contextmanager

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from agentcoordd.server.answers import Answer, Scope
from agentcoordd.server.storage.base import StorageDown

_METHODS = frozenset({"GET", "PUT", "DELETE"})
_BUCKETS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 60)
_ABORTED = 499
"""What the log says when the caller left or the answer never began."""


class Seen:
    """What became of one request."""

    __slots__ = ("fault", "status")

    def __init__(self) -> None:
        self.status = _ABORTED
        self.fault = ""

    def failed(self, down: StorageDown) -> None:
        """Take note of why the storage gave no answer."""
        self.fault = f" {down}"


class Telemetry:
    """Counts requests and writes a line for each, if somebody reads them. Headers, and so tokens, go nowhere."""

    def __init__(self, log: Callable[[str], None] | None) -> None:
        self._log = log
        self._registry = CollectorRegistry()
        self._requests = Counter(
            "agent_coord_requests", "Requests answered", ("route", "method", "status"), registry=self._registry
        )
        self._seconds = Histogram(
            "agent_coord_request_seconds", "Seconds to answer", ("route",), registry=self._registry, buckets=_BUCKETS
        )
        self._open = Gauge("agent_coord_open_requests", "Requests being answered", registry=self._registry)

    @contextmanager
    def request(self, scope: Scope, route: str) -> Generator[Seen]:
        """Watch one request from beginning to end."""
        seen, began = Seen(), time.perf_counter()
        self._open.inc()
        try:
            yield seen
        finally:
            self._open.dec()
            took = time.perf_counter() - began
            method = scope["method"] if scope["method"] in _METHODS else "other"
            self._requests.labels(route, method, str(seen.status)).inc()
            self._seconds.labels(route).observe(took)
            if self._log is not None:
                path = scope["raw_path"].decode("latin-1")
                self._log(f"{_client(scope)} {scope['method']} {path} {seen.status} {took * 1000:.1f} ms{seen.fault}")

    def exposition(self) -> Answer:
        """Give all figures in the text format of Prometheus."""
        return Answer(200, generate_latest(self._registry), b"text/plain; version=0.0.4; charset=utf-8")


def _client(scope: Scope) -> str:
    client = scope.get("client")
    return client[0] if client else "-"
