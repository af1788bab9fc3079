"""`agent-coord watch`: the state as it changes, on a terminal or line by line, until somebody has seen enough.

One thread waits for all there is to wait for: keys, signals, what the daemon tells, and reads that are done. None of
these waits for another, so a backend that hangs holds up neither a key nor the end.
"""

import gc
import json
import os
import select
import signal
import stat
from collections.abc import Iterable, Mapping

import msgspec
from msgspec import Struct, field

from agentcoord.cli.app import request_of
from agentcoord.cli.holding import Backend
from agentcoord.cli.looking import KINDS, Kind, Reading
from agentcoord.cli.options import BACKEND, Words
from agentcoord.cli.output import Invocation, Output, one_line
from agentcoord.cli.requests import WatchRequest
from agentcoord.cli.signalling import ENDING, Signals
from agentcoord.cli.subscribing import ATTENTION_FAMILY, STATUS_FAMILIES, Subscription
from agentcoord.cli.telling import tell
from agentcoord.cli.watched import SECTIONS, Filter, Known, Rows, Section, changes
from agentcoord.errors import CoordError, StoreError
from agentcoord.files import cause_of, printable
from agentcoord.protocol.documents import Document
from agentcoord.protocol.instants import stamp
from agentcoord.protocol.paths import require_repo
from agentcoord.settings.selection import Selection, redact, shown_address
from agentcoord.settings.value import Settings
from agentcoord.stores.opening import absolute

SNAPSHOT_EVENTS = 200
"""The newest events that the first line holds; those that come later are told one by one."""

_HEEDED = (*ENDING, signal.SIGTSTP, signal.SIGCONT, signal.SIGWINCH)
_FAMILIES: Mapping[Kind, frozenset[str]] = {"status": STATUS_FAMILIES, "attention": frozenset({ATTENTION_FAMILY})}
_TICK = 1.0
_PIPE_BYTES = 512
"""What any system writes to a pipe that has room, without waiting."""


def watch(words: Words, settings: Settings, invocation: Invocation, output: Output) -> None:
    """Watch until a key, a signal or the end of whoever reads. Raises UsageError where nothing could be shown."""
    if not invocation.own:
        raise StoreError("watch stays for as long as somebody looks, and so works in the caller's own process only")
    request: WatchRequest = request_of(words)
    if request.repo is not None:
        require_repo(request.repo, "repo")
    wanted = Filter(repo=request.repo, batch=request.batch, machine=request.machine)
    selectors = [word for option in BACKEND if option.name != "json" for word in _spelled(words, option.field)]
    gc.enable()  # off for commands that live for a moment; this one may live for days
    if words.flag("json"):
        tell(output)
        with Signals(_HEEDED) as signals:
            output.exit = stream(Watch(request, settings, invocation, output, selectors, signals), wanted)
        return
    from agentcoord.cli.screen import Screen
    from agentcoord.cli.viewing import Viewer  # with rich, which only a person needs

    screen = Screen(invocation.env)
    tell(output)
    with Signals(_HEEDED) as signals, screen:
        watch = Watch(request, settings, invocation, output, selectors, signals)
        output.exit = Viewer(watch, wanted, screen, invocation).run()


def _spelled(words: Words, field: str) -> list[str]:
    value = words.values.get(field)
    name = f"--{field.replace('_', '-')}"
    return [] if value is None else [name] if value is True else [f"{name}={value}"]


class Happened(Struct):
    """What came of one step: whether anything known is another now, and what the daemon told of its leases."""

    changed: bool = False
    leases: list[Document] = field(default_factory=list[Document])


class Watch:
    """What is known of the backend, kept current: what was read, and when to read again."""

    def __init__(
        self,
        request: WatchRequest,
        settings: Settings,
        invocation: Invocation,
        output: Output,
        selectors: list[str],
        signals: Signals,
    ) -> None:
        self.signals, self.now = signals, invocation.now
        self.name, told_of = _named(settings.selected, invocation.cwd)
        self.known, self.leases = Known(), list[Document]()
        self._interval = request.interval
        self._asked = Backend(settings, invocation, output, signals)
        self._subscription = Subscription(invocation.env, told_of, signals)
        self._readings: dict[Kind, Reading] = {}
        for kind in KINDS:
            self._readings[kind] = Reading(kind, self._asked, selectors, request.interval)
        self._faults: dict[Kind, str] = {}
        self._read = set[Kind]()

    @property
    def told(self) -> bool:
        """Whether a daemon tells of the changes of this backend."""
        served = self._readings["status"].served
        return self._subscription.told and served is not False

    @property
    def source(self) -> str:
        """Say where news comes from, for a person."""
        if self.told:
            return "the daemon tells of changes"
        why = "the daemon does not serve this backend" if self._subscription.told else self._subscription.why
        return f"looking every {self._interval} s: {why}"

    @property
    def trouble(self) -> str:
        """Say what cannot be read; empty when all can."""
        missing = (note for notes in self.known.missing.values() for note in notes)
        return "; ".join(dict.fromkeys([*self._faults.values(), *missing]))

    @property
    def read(self) -> bool:
        """Whether everything was read once, or could not be."""
        return len(self._read) == len(KINDS)

    @property
    def descriptors(self) -> list[int]:
        """Where there is something to read when something is told."""
        return self._subscription.descriptors

    def sleep(self) -> float:
        """Give the seconds until there is something to do, if nothing happens."""
        return min(_TICK, self._subscription.sleep(), *(reading.sleep() for reading in self._readings.values()))

    def step(self) -> Happened:
        """Do what there is to do. Never waits, and raises nothing that the backend does."""
        happened = Happened()
        news = self._subscription.news()
        happened.leases = news.events
        for kind, reading in self._readings.items():
            if news.anew or not news.families.isdisjoint(_FAMILIES[kind]):
                reading.hurry()
            happened.changed |= self._end(kind, reading)
            if self._subscription.tried:
                reading.begin(daemon=self._subscription.told)
        return happened

    def close(self) -> None:
        """Hear no more. Reads that run are left behind."""
        self._subscription.close()

    def _end(self, kind: Kind, reading: Reading) -> bool:
        """Take what came of a read, and tell whether anything is another now."""
        before, fault = dict(self.known.rows), self._faults.get(kind)
        try:
            answer = reading.end()
        except CoordError as error:
            self._read.add(kind)
            self._faults[kind] = one_line(str(error))
            return self._faults[kind] != fault
        if answer is None:
            return False
        self._read.add(kind)
        self._faults.pop(kind, None)
        if kind == "status":
            self.known.take_status(answer.said)
            self.leases, leases = answer.leases or [], self.leases
        else:
            self.known.take_attention(answer.said)
            leases = self.leases
        changed = self.known.rows != before
        reading.rest(told=self.told, changed=changed)
        return changed or fault is not None or leases != self.leases


def _named(selection: Selection, cwd: str) -> tuple[str, str | None]:
    """Name a backend for people, and as the daemon names it; None for one that it never tells of."""
    if selection.kind == "local":
        root = printable(absolute(selection.root or "", cwd))
        return root, root
    if selection.kind == "http":
        url = selection.url or ""
        return shown_address(url), redact(url)
    return selection.repo or "", None


# Line by line ---------------------------------------------------------------------------------------


def stream(watch: Watch, wanted: Filter) -> int:
    """Write what is known, and then each change, as one object a line. Gives the exit status. Raises StoreError."""
    lines = _Lines(watch, wanted)
    kind = stat.S_IFMT(os.fstat(1).st_mode)
    pipe = [1] if kind == stat.S_IFIFO else list[int]()
    leaves = kind in (stat.S_IFIFO, stat.S_IFSOCK)
    try:
        while True:
            # Our end of a pipe that nobody reads any more can be "read"; in a socket there may be something for others.
            for number in watch.signals.wait(watch.sleep(), [*watch.descriptors, *pipe]):
                if number in ENDING:
                    return 128 + number
            if leaves and _is_left():
                return 0
            for line in lines.after(watch.step()):
                if (ended := _write(line, watch.signals)) is not None:
                    return ended
    finally:
        watch.close()


class _Lines:
    """The lines of a stream; what was said already is known."""

    def __init__(self, watch: Watch, wanted: Filter) -> None:
        self._watch, self._wanted = watch, wanted
        self._rows: dict[Section, Rows] | None = None
        self._told: bool | None = None
        self._trouble = ""

    def after(self, happened: Happened) -> Iterable[bytes]:
        """Give the lines that a step is worth."""
        watch = self._watch
        if not watch.read:
            return
        if self._rows is None:
            self._rows, self._told = self._taken(), watch.told
            yield self._line("snapshot", self._snapshot(self._rows))
        elif happened.changed:
            before, self._rows = self._rows, self._taken()
            for each in changes(before, self._rows):
                yield self._line("change", {"section": each.section, "change": each.change, "row": each.row})
        for each in happened.leases:
            yield self._line("lease", each)
        if watch.told != self._told:
            self._told = watch.told
            yield self._line("source", {"told": watch.told, "source": watch.source})
        if watch.trouble != self._trouble:
            self._trouble = watch.trouble
            yield self._line("trouble", {"message": self._trouble or None})

    def _taken(self) -> dict[Section, Rows]:
        rows, holders = self._watch.known.rows, self._watch.known.holders
        if not self._wanted.given:
            return dict(rows)
        return {
            section: {key: row for key, row in rows[section].items() if self._wanted.takes(section, row, holders)}
            for section in SECTIONS
        }

    def _snapshot(self, rows: Mapping[Section, Rows]) -> Document:
        listed = {section: list(rows[section].values()) for section in SECTIONS}
        listed["events"] = listed["events"][-SNAPSHOT_EVENTS:]
        watch = self._watch
        head = {"backend": watch.name, "told": watch.told, "source": watch.source, "filters": self._wanted.given}
        return head | listed

    def _line(self, kind: str, facts: Document) -> bytes:
        whole = {"kind": kind, "at": stamp(self._watch.now())} | facts
        try:
            return msgspec.json.encode(whole) + b"\n"
        except UnicodeEncodeError:  # bytes of a name that are no text: escaped, they still are JSON
            return json.dumps(whole).encode() + b"\n"


def _is_left() -> bool:
    """Tell whether nobody reads our pipe or socket any more."""
    looking = select.poll()
    looking.register(1, 0)
    return any(event & (select.POLLERR | select.POLLHUP) for _, event in looking.poll(0))


def _write(data: bytes, signals: Signals) -> int | None:
    """Write all of it; gives the exit status when nobody reads any more or a signal came first. Raises StoreError."""
    rest = memoryview(data)
    try:
        while rest:
            for number in signals.wait(float(_TICK), (), [1]):
                if number in ENDING:
                    return 128 + number
            try:
                # So much fits whenever anything does; more would wait, and no signal would end it.
                rest = rest[os.write(1, rest[:_PIPE_BYTES]) :]
            except BlockingIOError:
                continue
    except (BrokenPipeError, ConnectionResetError):
        return 0
    except OSError as error:
        raise StoreError(f"cannot write what is seen to stdout: {cause_of(error)}") from error
    return None
