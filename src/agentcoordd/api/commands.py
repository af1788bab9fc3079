"""`cli.run`: one command line, run here for a caller who keeps its own files, clock and chance.

Two phases: what the command would do is found out and `accepted`; it is done only when the caller says `go`. So a
caller who gave up waiting knows that nothing was done, and can do it itself. Whoever gives up after that runs the
command again; so before each change it is looked whether the caller is still there, since this process may have been
stopped in between.
"""

import codecs
import errno
import logging
import os
import threading
from base64 import b64decode
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import contextmanager
from typing import Any, Literal, TypeVar

import anyio
from anyio import CapacityLimiter, from_thread, to_thread

from agentcoord.cli.chance import stream
from agentcoord.cli.output import Invocation, Recall, Terminal
from agentcoord.cli.output import Output as Said
from agentcoord.cli.run import Chosen, Vast, run_for
from agentcoord.errors import Exit, StoreError
from agentcoord.files import printable
from agentcoord.protocol.documents import Document
from agentcoord.protocol.instants import in_utc
from agentcoord.settings.selection import Selection
from agentcoord.stores.base import Behalf
from agentcoord.stores.opening import Opening, open_root
from agentcoord.wire import API
from agentcoordd.api.dispatch import Caller, Method, Refused, Session, hearing
from agentcoordd.api.messages import About, Command, Content, Exited, Fault, Output, Plain, Read
from agentcoordd.api.outbox import Queueing, queueing_of
from agentcoordd.api.service import Service, backend_of
from agentcoordd.backends import Backend
from agentcoordd.services.outbox import Outbox

log = logging.getLogger(__name__)

MOST_RUNNING = 64
GO_SECONDS = 10.0
"""How long the caller may take to say `go`."""
WORKING_SECONDS = 1.5
"""The longest silence while a command runs: the caller believes in a daemon for ten seconds after each sign of life."""
READ_SECONDS = 600.0
"""How long the caller may take to read a file; a person may be typing it."""
INPUT_BYTES = 8 * 1024 * 1024
"""The largest file a command takes."""
PART_BYTES = 512 * 1024
"""One part of what a command says: even if every byte of it has to be escaped, it fits into a frame."""
PLAIN_BYTES = 256 * 1024
"""At least as much goes out at once of what is not escaped."""

_T = TypeVar("_T")


class Threads:
    """Threads in which commands work on files. Nothing stops one: it is counted until it ends by itself."""

    def __init__(self, most: int) -> None:
        self._limiter = CapacityLimiter(most)
        self._lock = threading.Lock()
        self.busy = 0

    async def __call__(self, function: Callable[[], _T], /) -> _T:
        """Run a function in a thread, and give what it returns or raises."""
        return await to_thread.run_sync(self._counted, function, abandon_on_cancel=True, limiter=self._limiter)

    def _counted(self, function: Callable[[], _T]) -> _T:
        with self._lock:
            self.busy += 1
        try:
            return function()
        finally:
            with self._lock:
                self.busy -= 1


class Commands:
    """The commands that run, and what is served to whom."""

    def __init__(self, service: Service, roots: Opening = open_root) -> None:
        self.service, self.roots = service, roots
        self.attended: Callable[[Backend, Document], None] | None = None
        """Told of each request for attention that a command wrote, and on which backend."""
        self.outbox: Outbox | None = None
        """Where events and heartbeats wait that their server does not answer about."""
        self.recall: Recall | None = None
        """Opens what is known of a backend without asking it."""
        self.threads = Threads(MOST_RUNNING)
        self._at_work = 0
        self._running: set[_Run] = set()
        self._ending: anyio.Event | None = None

    @property
    def running(self) -> int:
        """How many commands are at work, those included that nobody waits for any more."""
        return max(self._at_work, self.threads.busy)

    async def run(self, command: Command, caller: Caller) -> Exited:
        """Run one command. Raises Refused for one that is left to its caller, Gone when nobody is left to hear."""
        if command.api != API:
            raise Refused(Fault.VERSION, f"the daemon speaks API {API}, not {command.api}")
        self.service.require_forwarded(command.argv, command.env)
        run = _Run(command, caller, self)
        with self.at_work(), hearing(caller, run.told), self._told(run):
            try:
                said = await run_for(run.invocation(), self.threads, run.agree)
            except Vast as error:
                raise Refused(Fault.FAILED, str(error)) from error
            if run.backend is not None:
                self.tell_attended(run.backend, said.asked)
                if self.outbox is not None and said.exit != Exit.UNKNOWN and not run.queued:
                    self.outbox.answered(run.backend)
            await run.say(said)
        return Exited(said.exit)

    def tell_attended(self, backend: Backend, asked: Iterable[Document]) -> None:
        """Pass on which requests for attention were written. On the event loop only."""
        if self.attended is not None:
            for record in asked:
                self.attended(backend, record)

    async def tell(self) -> None:
        """Give signs of life to those who wait for commands, until cancelled."""
        while True:
            await anyio.sleep(WORKING_SECONDS)
            for run in list(self._running):
                run.working()

    async def end(self) -> None:
        """Begin no more commands, and wait until those have ended that run."""
        self._ending = anyio.Event()
        if self._at_work:
            await self._ending.wait()

    def methods(self) -> list[Method]:
        """The methods of this module."""
        return [Method("cli.run", Command, Exited, self.run)]

    @contextmanager
    def at_work(self) -> Generator[None]:
        """Count one piece of work, for which the end of the daemon waits. Raises Refused where there is no room."""
        if self._ending is not None:
            raise Refused(Fault.FAILED, "the daemon is about to end")
        if self.running >= MOST_RUNNING:
            raise Refused(Fault.FAILED, f"{MOST_RUNNING} commands are running")
        self._at_work += 1
        try:
            yield
        finally:
            self._at_work -= 1
            if self._ending is not None and not self._at_work:
                self._ending.set()

    @contextmanager
    def _told(self, run: "_Run") -> Generator[None]:
        """Give signs of life to whoever waits for a command."""
        self._running.add(run)
        try:
            yield
        finally:
            run.wanted.over = True
            self._running.discard(run)


class Wanted:
    """Whether somebody waits for what is done; a thread may still be at work when nobody does any more."""

    def __init__(self, session: Session | None) -> None:
        self._session = session
        self.over = False

    def require(self) -> None:
        """Raise StoreError where a change would be made for nobody."""
        if self.over or (self._session is not None and not self._session.standing()):
            raise StoreError("nothing more was written: whoever called is gone, and may run the command again")


class _Run:
    """One command on its way."""

    def __init__(self, command: Command, caller: Caller, commands: Commands) -> None:
        if caller.session is None:
            raise Refused(Fault.FAILED, "cli.run needs a connection")
        self._command, self._service, self._roots = command, commands.service, commands.roots
        self._outbox, self._recall = commands.outbox, commands.recall
        self.queued = False
        self._session: Session = caller.session
        self._about = About(caller.request)
        self._go = anyio.Event()
        self._readings: dict[int, _Reading] = {}
        self.backend: Backend | None = None
        self.wanted = Wanted(self._session)

    def invocation(self) -> Invocation:
        """Describe the command as its caller would run it."""
        command, now = self._command, in_utc(self._command.now)
        return Invocation(
            argv=tuple(command.argv),
            env=command.env,
            cwd=command.cwd if command.cwd.startswith("/") else "",
            now=lambda: now,
            random=stream(bytes.fromhex(command.seed)),
            read_file=self._read,
            stdin=self._read_stdin,
            program=command.program,
            node=command.node,
            terminal=Terminal(
                person=command.terminal.person,
                columns=command.terminal.columns,
                colour=command.terminal.colour,
                notices=command.terminal.notices,
            ),
            behalf=Behalf(umask=command.umask, require_wanted=self.wanted.require),
            roots=self._roots,
            outbox=self._queueing,
            recall=self._recall,
        )

    def _queueing(self, selection: Selection) -> Queueing | None:
        return queueing_of(self._outbox, self._service, selection, self._wanted_to_wait)

    def _wanted_to_wait(self) -> None:
        self.wanted.require()
        self.queued = True

    async def agree(self, chosen: Chosen | None) -> None:
        """Accept the command, and wait for its caller to say that it is to be done. Raises Refused."""
        if chosen is not None:
            self._service.require_served(chosen, self._command.env, self._command.cwd)
            self.backend = backend_of(chosen.settings.selection, self._command.cwd)
        self._session.notify("accepted", self._about)
        try:
            with anyio.fail_after(GO_SECONDS):
                await self._go.wait()
        except TimeoutError:
            raise Refused(Fault.FAILED, f"no go within {GO_SECONDS:.0f} s; nothing was done") from None

    def told(self, method: str, params: Any) -> None:
        """Hear what the caller says about the command."""
        if method == "go":
            self._go.set()
        elif isinstance(params, Content) and (reading := self._readings.get(params.read)) is not None:
            reading.add(params)

    def working(self) -> None:
        """Say that the command still runs."""
        if self._go.is_set():
            self._session.notify("working", self._about)

    async def say(self, said: Said) -> None:
        """Send what the command says, as fast as the caller takes it. Raises Gone."""
        if said.stderr:
            lines = printable("".join(f"{line}\n" for line in said.stderr))
            await self._send("stderr", [lines.encode()])
        await self._send("stdout", list(said.answer))

    async def _send(self, name: Literal["stdout", "stderr"], chunks: Sequence[bytes]) -> None:
        if self._command.plain and sum(map(len, chunks)) > PART_BYTES:
            for piece in _together(chunks):
                self._session.notify("plain", Plain(self._about.id, name, len(piece)), piece)
                await self._session.drained()
            return
        for part in parts_of(chunks):
            self._session.notify("output", Output(self._about.id, name, part))
            await self._session.drained()

    async def _read_stdin(self) -> bytes:
        return await self._read("-")

    async def _read(self, path: str) -> bytes:
        """Have the caller read a file. Raises OSError.

        In a thread of its own a command waits as its caller would, standing still; in the loop it lets others run.
        """
        if threading.current_thread() is threading.main_thread():
            return await self._asked(path)
        return from_thread.run(self._asked, path)

    async def _asked(self, path: str) -> bytes:
        if "\0" in path:
            raise ValueError("embedded null byte")
        number = len(self._readings) + 1
        reading = self._readings[number] = _Reading()
        self._session.notify("read", Read(self._about.id, number, path, INPUT_BYTES))
        try:
            with anyio.fail_after(READ_SECONDS):
                await reading.done.wait()
        except TimeoutError:
            raise OSError(errno.ETIMEDOUT, os.strerror(errno.ETIMEDOUT)) from None
        return reading.content()


class _Reading:
    """A file that is on its way from the caller."""

    def __init__(self) -> None:
        self.done = anyio.Event()
        self._parts: list[bytes] = []
        self._length = 0
        self._errno: int | None = None

    def add(self, content: Content) -> None:
        """Take one part, or the reason why there is none."""
        if self.done.is_set():
            return
        try:
            part = b64decode(content.data, validate=True)
        except ValueError:
            content = Content(content.id, content.read, errno=errno.EIO)
            part = b""
        self._errno = content.errno
        self._length += len(part)
        if self._length > INPUT_BYTES:
            self._errno = errno.EFBIG
            self._parts.clear()
        else:
            self._parts.append(part)
        if self._errno is not None or not content.more:
            self.done.set()

    def content(self) -> bytes:
        """Give the whole file. Raises OSError."""
        if self._errno == errno.EFBIG:
            raise OSError(errno.EFBIG, f"larger than {INPUT_BYTES >> 20} MiB")
        if self._errno is not None:
            raise OSError(self._errno, os.strerror(self._errno))
        return b"".join(self._parts)


def _together(chunks: Iterable[bytes]) -> Generator[bytes]:
    """Put chunks together, so that none is much shorter than what goes to a reader at once."""
    waiting, length = list[bytes](), 0
    for chunk in chunks:
        waiting.append(chunk)
        length += len(chunk)
        if length >= PLAIN_BYTES:
            yield b"".join(waiting)
            waiting, length = [], 0
    if waiting:
        yield b"".join(waiting)


def parts_of(chunks: Iterable[bytes]) -> Generator[str]:
    """Divide bytes into texts of at most PART_BYTES each; bytes that are no text stand in them as surrogates."""
    decoder = codecs.getincrementaldecoder("utf-8")("surrogateescape")
    waiting: list[bytes] = []
    length = 0
    for chunk in chunks:
        view = memoryview(chunk)
        while length + len(view) >= PART_BYTES:
            room = PART_BYTES - length
            yield decoder.decode(b"".join([*waiting, view[:room]]))
            waiting, length, view = [], 0, view[room:]
        waiting.append(bytes(view))
        length += len(view)
    if last := decoder.decode(b"".join(waiting), final=True):
        yield last
