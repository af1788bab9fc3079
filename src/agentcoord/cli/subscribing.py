"""Hearing from the daemon what has changed; and while there is none that tells, looking for one again and again."""

from functools import partial

from msgspec import Struct, field

from agentcoord.cli.render.words import listed
from agentcoord.cli.signalling import Job, Signals
from agentcoord.clock import boot
from agentcoord.daemonlink import Connection, Env, NoDaemon
from agentcoord.errors import CoordError
from agentcoord.protocol.documents import Document, is_document
from agentcoord.protocol.topics import ATTENTION_CHANGED, CHANGED, LEASES

ATTENTION_FAMILY = "attention"
STATUS_FAMILIES = frozenset({"claims", "heartbeats", "batches", "events"})

_ANSWER_SECONDS = 5.0
_AGAIN = 1.0
"""Seconds from one attempt to find a daemon to the next."""
_OFF = "AGENT_COORD_DAEMON is off"


class News(Struct):
    """What was told since it was last asked for. `anew`: something may have been missed, so all is to be read."""

    families: set[str] = field(default_factory=set[str])
    events: list[Document] = field(default_factory=list[Document])
    anew: bool = False


class Subscription:
    """The conversation in which the daemon tells. `backend` is how it names the one that matters; None: none does."""

    def __init__(self, env: Env, backend: str | None, signals: Signals) -> None:
        self._env, self._backend, self._signals = env, backend, signals
        self._connection: Connection | None = None
        self._job: Job[Connection] | None = None
        self._next = 0.0 if env.get("AGENT_COORD_DAEMON", "").strip() != "off" else float("inf")
        self.why = _OFF if self._next else "looking for the daemon"
        """Why nobody tells."""
        self.tried = self._next > 0.0
        """Whether it is known if there is a daemon."""

    @property
    def told(self) -> bool:
        """Whether there is a daemon that tells."""
        return self._connection is not None

    @property
    def descriptors(self) -> list[int]:
        """Where there is something to read once the daemon tells of something."""
        return [] if self._connection is None else [self._connection.fileno()]

    def sleep(self) -> float:
        """Give the seconds until there is something to do."""
        return float("inf") if self._connection or self._job else max(0.0, self._next - boot())

    def news(self) -> News:
        """Give what was told, and look for a daemon if there is none. Never waits."""
        news = News()
        if self._connection is not None:
            self._hear(self._connection, news)
        elif self._job is not None:
            if self._job.done:
                job, self._job = self._job, None
                self._take(job, news)
        elif boot() >= self._next:
            self._job = Job(partial(_subscribed, self._env), self._signals)
        return news

    def close(self) -> None:
        """Hear no more."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _take(self, job: Job[Connection], news: News) -> None:
        self._next, self.tried = boot() + _AGAIN, True
        try:
            self._connection = job.answer()
        except NoDaemon:
            self.why = "no daemon"
        except CoordError as error:
            self.why = str(error)
        else:
            news.anew = True

    def _hear(self, connection: Connection, news: News) -> None:
        try:
            said = connection.heard()
        except CoordError as error:
            self.close()
            self.why, self._next = str(error), boot()
            return
        for line in said:
            told = line.get("params")
            if line.get("method") == "gap":
                news.anew = True
            elif line.get("method") == "event" and is_document(told):
                self._note(told, news)

    def _note(self, event: Document, news: News) -> None:
        topic, data = event.get("topic"), event.get("data")
        if not is_document(data) or self._backend is None:
            return
        if str(data.get("backend")).rstrip("/") != self._backend.rstrip("/"):
            return
        if topic == CHANGED:
            news.families.update(str(family) for family in listed(data.get("families")))
        elif topic == ATTENTION_CHANGED:
            news.families.add(ATTENTION_FAMILY)
        else:  # what the daemon does with a lease it writes into claim and heartbeat
            news.families.update(STATUS_FAMILIES)
            news.events.append({"topic": topic, "data": data})


def _subscribed(env: Env) -> Connection:
    """Find the daemon and have it tell. Raises CoordError."""
    connection = Connection(env, _ANSWER_SECONDS)
    try:
        connection.ask("subscribe", {"topics": [CHANGED, ATTENTION_CHANGED, *LEASES]})
    except BaseException:
        connection.close()
        raise
    return connection
