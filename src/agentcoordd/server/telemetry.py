"""What the server tells of itself: an access log without secrets, and figures for Prometheus."""

import os
import time
import traceback
from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.registry import Collector

from agentcoordd.server.answers import Answer, Scope
from agentcoordd.server.storage.base import StorageDown

_METHODS = frozenset({"GET", "PUT", "DELETE"})
_BUCKETS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 60.0)
_ABORTED = 499
"""What the log says when the caller left or the answer never began."""


class Seen:
    """One request from beginning to end: a context that tells what became of it."""

    __slots__ = ("_began", "_route", "_scope", "_telemetry", "fault", "status")

    def __init__(self, telemetry: "Telemetry", scope: Scope, route: str) -> None:
        self._telemetry, self._scope, self._route = telemetry, scope, route
        self._began = 0.0
        self.status = _ABORTED
        self.fault = ""

    def __enter__(self) -> "Seen":
        self._telemetry.open += 1
        self._began = time.perf_counter()
        return self

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        if isinstance(error, Exception):
            self._broke(error)
        self._telemetry.open -= 1
        took = time.perf_counter() - self._began
        self._telemetry.count(self._scope, self._route, self.status, took, self.fault)

    def failed(self, down: StorageDown) -> None:
        """Take note of why the storage gave no answer."""
        self.fault = f" {down}"

    def _broke(self, defect: Exception) -> None:
        # Kind and place of a defect of the server; its text may carry what a request said.
        frames = traceback.extract_tb(defect.__traceback__)
        place = f" at {os.path.basename(frames[-1].filename)}:{frames[-1].lineno}" if frames else ""
        self.status, self.fault = 500, f" {type(defect).__name__}{place}"


class Telemetry(Collector):
    """Counts requests and writes a line for each, if somebody reads them. Headers, and so tokens, go nowhere.

    Counting is plain arithmetic, as it happens with every request; it becomes metrics when asked for.
    """

    def __init__(self, log: Callable[[str], None] | None) -> None:
        self.open = 0
        self._log = log
        self._requests: Counter[tuple[str, str, int]] = Counter()
        self._buckets: dict[str, list[int]] = {}
        self._seconds: defaultdict[str, float] = defaultdict(float)
        self._registry = CollectorRegistry()
        self._registry.register(self)

    def request(self, scope: Scope, route: str) -> Seen:
        """Watch one request."""
        return Seen(self, scope, route)

    def count(self, scope: Scope, route: str, status: int, took: float, fault: str) -> None:
        """Take note of a request that is over, after so many seconds."""
        method: str = scope["method"]
        self._requests[route, method if method in _METHODS else "other", status] += 1
        buckets = self._buckets.get(route)
        if buckets is None:
            buckets = self._buckets[route] = [0] * (len(_BUCKETS) + 1)
        buckets[bisect_left(_BUCKETS, took)] += 1
        self._seconds[route] += took
        if self._log is not None:
            client = scope.get("client")
            path = scope["raw_path"].decode("latin-1")
            self._log(f"{client[0] if client else '-'} {method} {path} {status} {took * 1000:.1f} ms{fault}")

    def collect(self) -> "Iterator[CounterMetricFamily | GaugeMetricFamily | HistogramMetricFamily]":
        """Give the figures as metrics."""
        requests = CounterMetricFamily(
            "agent_coord_requests", "Requests answered", labels=("route", "method", "status")
        )
        for (route, method, status), number in self._requests.items():
            requests.add_metric((route, method, str(status)), number)
        yield requests
        seconds = HistogramMetricFamily("agent_coord_request_seconds", "Seconds to answer", labels=("route",))
        for route, buckets in self._buckets.items():
            total, below = 0, list[tuple[str, float]]()
            for bound, number in zip((*map(str, _BUCKETS), "+Inf"), buckets, strict=True):
                total += number
                below.append((bound, total))
            seconds.add_metric((route,), below, self._seconds[route])
        yield seconds
        yield GaugeMetricFamily("agent_coord_open_requests", "Requests being answered", value=self.open)

    def exposition(self) -> Answer:
        """Give all figures in the text format of Prometheus."""
        return Answer(200, generate_latest(self._registry), b"text/plain; version=0.0.4; charset=utf-8")
