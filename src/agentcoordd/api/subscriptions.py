"""Telling subscribers what happens, without ever waiting for one of them.

Each has a bounded queue. What no longer fits is counted, and the subscriber learns how much it missed.
"""

from collections import deque
from collections.abc import Mapping
from typing import Any, cast

from agentcoordd.api.dispatch import Caller, Method, Refused, Session
from agentcoordd.api.messages import Event, Fault, Gap, Subscribe, Subscribed

MOST_QUEUED = 1024
MOST_SUBSCRIBERS = 64


class _Subscriber:
    """One connection that wants to be told."""

    def __init__(self, session: Session, topics: frozenset[str] | None) -> None:
        self.session, self.topics = session, topics
        self._queue: deque[Event] = deque()
        self._missed = 0

    def tell(self, event: Event) -> bool:
        """Send an event or queue it; tells whether there was room."""
        if self.topics is not None and event.topic not in self.topics:
            return True
        self.flush()
        if not self.session.congested:
            self.session.notify("event", event)
        elif self._missed or len(self._queue) >= MOST_QUEUED:
            self._missed += 1
            return False
        else:
            self._queue.append(event)
        return True

    def flush(self) -> None:
        """Send what was queued, as far as there is room, and then say what was missed after it."""
        while self._queue and not self.session.congested:
            self.session.notify("event", self._queue.popleft())
        if self._missed and not self._queue and not self.session.congested:
            self.session.notify("gap", Gap(self._missed))
            self._missed = 0


class Feed:
    """What happens, for everybody who asked to be told."""

    def __init__(self) -> None:
        self._subscribers: dict[Session, _Subscriber] = {}
        self._seq = 0
        self.missed = 0

    @property
    def subscribers(self) -> int:
        """How many are told."""
        return len(self._subscribers)

    def wants(self, topic: str) -> bool:
        """Tell whether anybody is told of a topic."""
        return any(each.topics is None or topic in each.topics for each in self._subscribers.values())

    def publish(self, topic: str, data: Mapping[str, Any]) -> None:
        """Tell all that asked for the topic. Never waits, never raises."""
        self._seq += 1
        event = Event(self._seq, topic, dict(data))
        for subscriber in list(self._subscribers.values()):
            if not subscriber.tell(event):
                self.missed += 1

    async def subscribe(self, params: Subscribe, caller: Caller) -> Subscribed:
        """Tell a caller from now on; a second time, of other topics. Raises Refused when there are too many."""
        session = caller.session
        if session is None:
            raise Refused(Fault.FAILED, "subscribe needs a connection")
        topics = None if params.topics is None else frozenset(cast("list[str]", params.topics))
        if (known := self._subscribers.get(session)) is not None:
            known.topics = topics
            return Subscribed()
        if len(self._subscribers) >= MOST_SUBSCRIBERS:
            raise Refused(Fault.FAILED, f"{MOST_SUBSCRIBERS} subscribers are there already")
        subscriber = self._subscribers[session] = _Subscriber(session, topics)

        def closed() -> None:
            self._subscribers.pop(session, None)

        session.follow(subscriber.flush, closed)
        return Subscribed()

    def methods(self) -> list[Method]:
        """The methods of this module."""
        return [Method("subscribe", Subscribe, Subscribed, self.subscribe, quick=True)]
