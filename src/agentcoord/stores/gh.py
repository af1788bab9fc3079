"""Running the `gh` program: every call has an end and a bounded answer, and no secret on its command line.

`gh` finds its own credentials in the environment it is given, which is the caller's and not ours.
"""

import os
import selectors
import signal
from collections.abc import Mapping
from contextlib import suppress
from functools import partial
from subprocess import DEVNULL, PIPE, Popen, TimeoutExpired
from time import monotonic
from typing import IO, Protocol

from msgspec import Struct

from agentcoord.errors import StoreError
from agentcoord.files import cause_of, printable

TIMEOUT = 30.0
"""Seconds until calls that were started together must have ended."""
LARGEST_ANSWER = 32 * 1024 * 1024
"""Bytes on either stream; the largest tree GitHub gives is 7 MB, and a record less."""

_SHOWN = 300  # characters of what gh said that go into an error line
_DISTURBING = ("AGENT_COORD_API_TOKEN", "CLICOLOR_FORCE", "DEBUG", "GH_DEBUG", "GH_FORCE_TTY")
"""Not passed on: a token that is none of gh's business, and what makes its output colourful or longer."""
_QUIET = {"GH_NO_UPDATE_NOTIFIER": "1", "GH_PROMPT_DISABLED": "1", "NO_COLOR": "1"}
_SECRETS = ("GH_TOKEN", "GITHUB_TOKEN", "GH_ENTERPRISE_TOKEN", "GITHUB_ENTERPRISE_TOKEN")


class Call(Struct, frozen=True):
    """One call of gh: its arguments, and what it reads from stdin."""

    argv: tuple[str, ...]
    body: bytes = b""


class Answer(Struct, frozen=True):
    """What one call left: its exit status, stdout as bytes and stderr as text.

    `fault` says why the answer is not whole, and then `exit` means nothing.
    """

    exit: int
    out: bytes
    err: str
    fault: str | None = None

    @property
    def ok(self) -> bool:
        """Whether gh ended by itself and was content."""
        return self.fault is None and self.exit == 0

    @property
    def said(self) -> str:
        """What to tell a person of a call that failed, on one line."""
        if self.fault is not None:
            return self.fault
        # Exit 0 counts as failed when stdout was not what it should be; what was on stderr is then no reason.
        told = "" if self.exit == 0 else " ".join((self.err.strip() or self.out.decode(errors="replace")).split())
        if not told:
            return "gh gave an answer that makes no sense" if self.exit == 0 else f"gh failed with exit {self.exit}"
        return told if len(told) <= _SHOWN else f"{told[:_SHOWN]}…"


class Asking(Protocol):
    """Whoever answers calls as gh would."""

    def ask(self, *calls: Call) -> list[Answer]:
        """Make calls side by side, and give their answers in order. Raises StoreError when none could start."""
        ...


class Gh:
    """The program `gh` on the PATH of one environment.

    `timeout` is in seconds, for all calls of one `ask`; `limit` in bytes, for each stream of a call.
    """

    def __init__(self, env: Mapping[str, str], *, timeout: float = TIMEOUT, limit: int = LARGEST_ANSWER) -> None:
        self._path = env.get("PATH", "")
        self._env = {name: value for name, value in env.items() if name not in _DISTURBING} | _QUIET
        self._secrets = [value for name in _SECRETS if (value := env.get(name))]
        self._timeout = timeout
        self._limit = limit

    def ask(self, *calls: Call) -> list[Answer]:
        """Make calls side by side, and give their answers in order.

        A call that is not done in time, or says too much, is ended. Raises StoreError when gh is not
        there or cannot be started.
        """
        program = self._found()
        running: list[_Running] = []
        try:
            with selectors.DefaultSelector() as selector:
                running.extend(
                    _Running(self._started(program, call), call.body, selector, self._limit) for call in calls
                )
                self._attend(selector)
                for one in running:
                    one.give_up(f"gh did not answer within {self._timeout:g} seconds")
            return [self._answer(one) for one in running]
        finally:  # also when a signal ends this process: no gh outlives the command that wanted it
            for one in running:
                one.end()

    def _found(self) -> str:
        # A relative entry would mean whatever directory this process happens to be in: it is passed over.
        for directory in self._path.split(":"):
            program = f"{directory}/gh"
            if directory.startswith("/") and os.path.isfile(program) and os.access(program, os.X_OK):
                return program
        raise StoreError(
            "the legacy GitHub backend needs the GitHub command line, but there is no gh on the PATH; "
            "install it from https://cli.github.com and run gh auth login"
        )

    def _started(self, program: str, call: Call) -> Popen[bytes]:
        try:
            return Popen(
                [program, *call.argv],
                stdin=PIPE if call.body else DEVNULL,
                stdout=PIPE,
                stderr=PIPE,
                cwd="/",  # in a checkout, gh would take its owner and remote into account
                env=self._env,
                start_new_session=True,  # it asks nobody anything, and can be ended with all it has started
            )
        except OSError as error:
            raise StoreError(f"gh cannot be run: {printable(program)}: {cause_of(error)}") from error

    def _attend(self, selector: selectors.BaseSelector) -> None:
        """Read and write until all is said, or time is up."""
        deadline = monotonic() + self._timeout
        while selector.get_map():
            left = deadline - monotonic()
            if left <= 0:
                break
            for key, _ in selector.select(left):
                key.data()

    def _answer(self, one: "_Running") -> Answer:
        fault = one.fault
        status = -1
        if fault is None:
            try:
                # Both streams are at their end, so it is about to exit.
                status = one.process.wait(timeout=self._timeout)
            except TimeoutExpired:
                fault = f"gh did not end within {self._timeout:g} seconds"
        err = one.err.decode("utf-8", "replace")
        for secret in self._secrets:
            err = err.replace(secret, "***")
        if fault is None and status < 0:
            fault = f"gh was ended by signal {-status}"
        return Answer(status, bytes(one.out), err, fault)


class _Running:
    """One gh at work, and what it has said so far."""

    def __init__(self, process: Popen[bytes], body: bytes, selector: selectors.BaseSelector, limit: int) -> None:
        self.process = process
        self.out = bytearray()
        self.err = bytearray()
        self.fault: str | None = None
        self._rest = memoryview(body)
        self._selector = selector
        self._limit = limit
        self._pipes = [pipe for pipe in (process.stdin, process.stdout, process.stderr) if pipe is not None]
        if process.stdin is not None:
            os.set_blocking(process.stdin.fileno(), False)
            selector.register(process.stdin, selectors.EVENT_WRITE, partial(self._feed, process.stdin))
        for pipe, into in ((process.stdout, self.out), (process.stderr, self.err)):
            if pipe is not None:
                selector.register(pipe, selectors.EVENT_READ, partial(self._take, pipe, into))

    def _feed(self, stdin: IO[bytes]) -> None:
        if self.fault is not None:
            return
        try:
            self._rest = self._rest[os.write(stdin.fileno(), self._rest) :]
        except BlockingIOError:
            return
        except BrokenPipeError:  # it wants no more; what it thinks of that is in its answer
            self._rest = self._rest[:0]
        if not self._rest:
            self._selector.unregister(stdin)
            stdin.close()

    def _take(self, pipe: IO[bytes], into: bytearray) -> None:
        if self.fault is not None:  # said too much on the other stream, within the same round
            return
        data = os.read(pipe.fileno(), 1 << 16)
        into += data
        if not data:
            self._selector.unregister(pipe)
        elif len(into) > self._limit:
            self.give_up(f"gh answered more than {self._limit} bytes")

    def give_up(self, fault: str) -> None:
        """Listen no longer, for the reason given."""
        for pipe in self._pipes:
            if not pipe.closed and pipe in self._selector.get_map():
                self._selector.unregister(pipe)
                self.fault = fault

    def end(self) -> None:
        """Leave nothing of it: no process, no descriptor."""
        if self.process.returncode is None:  # not waited for yet, so its number is nobody else's
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(self.process.pid, signal.SIGKILL)
        for pipe in self._pipes:
            with suppress(OSError):  # a body that was not taken is not flushed into a pipe without an end
                pipe.close()
        self.process.wait()  # it is dead already, or has just been killed
