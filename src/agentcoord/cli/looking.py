"""Reading what is watched, one read of each kind at a time: through the daemon where it serves, else in this process.

Reads are jobs in threads, so that a backend that hangs holds up neither keys nor signals. Each is a command line of
ours, `status --json` or `attention --json`, run as any other: whose backend it is and whose token is used is decided
where it always is, and an answer may be larger than one line of the socket holds.
"""

import os
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Literal, cast

import msgspec
from msgspec import Struct

from agentcoord.cli.holding import Backend
from agentcoord.cli.output import Invocation
from agentcoord.cli.render.status import facts_of_status
from agentcoord.cli.signalling import Job
from agentcoord.cli.watched import objects
from agentcoord.clock import boot
from agentcoord.daemonlink import Connection, Declined, NoDaemon, Silent, Untrusted, Walled
from agentcoord.errors import Exit, StoreError
from agentcoord.operations.attention import QueueRequest, read_queue
from agentcoord.operations.context import Context
from agentcoord.operations.projection import RecordRow
from agentcoord.operations.status import StatusRequest, status
from agentcoord.protocol.documents import Document
from agentcoord.protocol.instants import stamp
from agentcoord.version import VERSION
from agentcoord.wire import API, ELSEWHERE, travels

Kind = Literal["status", "attention"]
KINDS: tuple[Kind, ...] = ("status", "attention")

MOST_ASKED = 1000
"""Requests for attention that are read at most."""
MOST_IDLE = 15.0
"""Seconds after which everything is read again at the latest, while a daemon tells of changes: what nobody changes
grows old, and not every backend has somebody who tells.
"""

_READ_SECONDS = 120.0
_PAUSE, _SHARE = 0.2, 2.0
"""A read is followed by a pause: of that many seconds, and of that many times its own duration, at least."""
_COPY_SECONDS = 5
"""How old the daemon's copy of a server may be to be read in its place. Who is told of a change finds it in there."""
_GONE = (NoDaemon, Walled, Untrusted, Silent)


class Answer(Struct, frozen=True):
    """What came of a read: the object that `--json` prints, and the leases that the daemon keeps, if it was asked."""

    said: Document
    leases: list[Document] | None = None


class Reading:
    """Reads of one kind: the one that runs, and when the next one is due. Times are of the clock that counts on."""

    def __init__(self, kind: Kind, backend: Backend, selectors: Sequence[str], interval: float) -> None:
        self.kind, self._backend, self._interval = kind, backend, interval
        self._argv = [kind, "--json", *selectors]
        if kind == "status" and backend.settings.selected.kind == "http":
            self._argv += ["--max-age", str(_COPY_SECONDS)]
        if kind == "attention":
            self._argv += ["--limit", str(MOST_ASKED)]
        self._job: Job[Answer] | None = None
        self._began = self._due = boot()
        self._earliest = 0.0
        self._idle = interval
        self.served: bool | None = None
        """Whether the daemon did the last read; None before there was one."""

    def hurry(self) -> None:
        """Read as soon as the last read has been over for a moment."""
        self._due = 0.0

    def sleep(self) -> float:
        """Give the seconds until there is something to do."""
        return float("inf") if self._job is not None else max(0.0, self._next - boot())

    @property
    def _next(self) -> float:
        return max(self._due, self._earliest)

    def begin(self, *, daemon: bool) -> None:
        """Begin a read if one is due, through the daemon if it is there."""
        if self._job is None and boot() >= self._next:
            self._began, self._due = boot(), float("inf")
            self._job = Job(partial(self._read, daemon=daemon), self._backend.signals)

    def end(self) -> Answer | None:
        """Give what came of a read that is over; None while there is none. Raises CoordError."""
        if self._job is None or not self._job.done:
            return None
        job, self._job = self._job, None
        now = boot()
        self._earliest = now + max(_PAUSE, _SHARE * (now - self._began))
        self._due = min(self._due, now + self._interval)
        return job.answer()

    def rest(self, *, told: bool, changed: bool) -> None:
        """Set when to read again if nobody tells of a change before: later and later while there is none."""
        self._idle = self._interval if changed or not told else min(max(MOST_IDLE, self._interval), 2 * self._idle)
        if self._due > 0.0:  # unless a change was told of meanwhile
            self._due = boot() + self._idle

    def _read(self, *, daemon: bool) -> Answer:
        """Read, in a thread. Raises CoordError."""
        command = command_line(self._argv, self._backend.invocation)
        if daemon and _can_be_told(command):
            try:
                answer = self._through_daemon(command)
            except Declined as error:
                if error.code != ELSEWHERE:
                    raise
            except _GONE:  # whoever waits for its news learns that it is gone
                pass
            else:
                self.served = True
                return answer
        self.served = False
        work = _status if self.kind == "status" else _attention
        return Answer(self._backend.perform(work))

    def _through_daemon(self, command: Mapping[str, object]) -> Answer:
        with Connection(self._backend.invocation.env, _READ_SECONDS) as daemon:
            ran = daemon.run(command)
            if not ran.stdout:
                raise StoreError((ran.stderr.splitlines() or [f"{self.kind} said nothing"])[-1])
            leases = None
            if self.kind == "status" and ran.exit == Exit.OK:
                leases = objects(daemon.ask("lease.list", {}).get("lanes"))
        try:
            return Answer(msgspec.json.decode(ran.stdout, type=Document), leases)
        except (msgspec.MsgspecError, UnicodeError) as error:
            raise StoreError(f"the daemon's answer to {self.kind} cannot be read: {error}") from error


def command_line(argv: Sequence[str], invocation: Invocation) -> Mapping[str, object]:
    """Describe a command line to the daemon, as this process would run it."""
    now = invocation.now()
    return {
        "api": API,
        "version": VERSION,
        "argv": argv,
        "cwd": invocation.cwd,
        "env": {name: value for name, value in invocation.env.items() if travels(name)},
        "program": invocation.program,
        "node": invocation.node,
        "now": stamp(now),
        "seed": os.urandom(32).hex(),
    }


def _can_be_told(command: Mapping[str, object]) -> bool:
    """Tell whether a line can carry a command; not one whose root has a name that is no text."""
    try:
        msgspec.json.encode(command)
    except UnicodeEncodeError:
        return False
    return True


async def _status(context: Context) -> Document:
    facts = facts_of_status(await status(context, StatusRequest()))
    return {name: _plain(value) for name, value in facts.items()}


def _plain(value: object) -> object:
    """Give rows as they are printed; what is no list of rows stays what it is."""
    if not isinstance(value, list):
        return value
    return [row.facts() if isinstance(row, RecordRow) else row for row in cast("list[object]", value)]


async def _attention(context: Context) -> Document:
    queue = await read_queue(context, QueueRequest(limit=MOST_ASKED))
    return {"records": queue.records, "truncated": queue.truncated, "complete": not queue.missing}
