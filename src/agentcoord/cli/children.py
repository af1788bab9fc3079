"""The program that a command runs: in a process group of its own, with the terminal where there is one.

A group of its own, so that the program can be stopped with all that it started, and nothing else with it. On a
terminal it is put into the foreground, as a shell does: it reads the keys, and Ctrl-C and Ctrl-Z go to it.
"""

import ctypes
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from msgspec import Struct

if TYPE_CHECKING:
    from collections.abc import Generator

_SET_PARENT_DEATH_SIGNAL = 1
PAUSING = (signal.SIGTSTP, signal.SIGTTIN, signal.SIGTTOU)
"""Signals by which a terminal stops a program. What is stopped otherwise, as for a debugger, is not gone from it."""

NOT_FOUND, NOT_EXECUTABLE = 127, 126
"""What a shell exits with for a program that it cannot start."""


class Ended(Struct, frozen=True):
    """A program is gone. `status` is what a shell would call it; `signal` what ended it, 0 where it ended itself."""

    status: int
    signal: int = 0


class Paused(Struct, frozen=True):
    """A program was stopped by a signal, and may go on."""

    signal: int


class Child:
    """A running program. To be used from the main thread."""

    def __init__(self, command: Sequence[str], env: Mapping[str, str]) -> None:
        """Start a program. Raises OSError when it cannot be started."""
        self._terminal = next(filter(os.isatty, range(3)), None)
        self.has_terminal = os.isatty(0) and os.isatty(1) and self._is_ours()
        """Whether the program is put into the foreground whenever we are there.

        Not at once in a pipeline, whose other end may read keys, but as soon as the program asks for some.
        """
        # Its descriptors are the caller's, all of them. Whoever starts one has let every job's thread end before.
        self._process = subprocess.Popen(
            list(command),
            env=dict(env),
            close_fds=False,
            process_group=0,
            preexec_fn=_Preparation(self._terminal if self.has_terminal else None),  # noqa: PLW1509
        )
        self.pid = self._process.pid
        self.ended: Ended | None = None
        self._give_terminal()

    def look(self) -> Ended | Paused | None:
        """Tell what became of the program since it was last asked; None: it runs."""
        if self.ended is not None:
            return self.ended
        try:
            pid, status = os.waitpid(self.pid, os.WNOHANG | os.WUNTRACED)
        except ChildProcessError:  # who waits for all children here is not us: how it ended is not known
            pid, status = self.pid, 0
        if pid == 0:
            return None
        if os.WIFSTOPPED(status):
            return Paused(os.WSTOPSIG(status))
        if os.WIFSIGNALED(status):
            number = os.WTERMSIG(status)
            self.ended = Ended(128 + number, number)
        else:
            self.ended = Ended(os.waitstatus_to_exitcode(status))
        self._process.returncode = self.ended.status
        self._take_terminal()
        return self.ended

    def send(self, number: int, *, alone: bool = False) -> None:
        """Send a signal to the program, and unless `alone` to all that it started and that stayed in its group."""
        try:
            if not alone:
                os.killpg(self.pid, number)
            elif self.ended is None:
                os.kill(self.pid, number)
        except (ProcessLookupError, PermissionError):  # gone, or nobody in it that is ours to signal
            pass

    def leaves_something(self) -> bool:
        """Tell whether anything is left of the program's group."""
        try:
            os.killpg(self.pid, 0)
        except ProcessLookupError:
            return False
        except PermissionError:
            return True
        return True

    def stay_with(self, number: int) -> None:
        """Do what a terminal's user expects once the program was stopped by one of `PAUSING`, and let it go on then.

        We stop as well, so that the shell that waits for us gets its terminal back, and come back here when somebody
        lets us go on; at once where nobody could, since the system stops nothing then. But a program that was stopped
        for want of the terminal, which we have, just gets it.
        """
        if self._terminal is None:
            return
        asks = number != signal.SIGTSTP
        self.has_terminal = self.has_terminal or asks
        if not (asks and self._is_ours()):
            self._take_terminal()
            kept = signal.signal(number, signal.SIG_DFL)
            os.killpg(0, number)
            signal.signal(number, kept)
        self.go_on()

    def go_on(self) -> None:
        """Let the program go on, in the foreground if that is where we are."""
        if self._is_ours():
            self._give_terminal()
        self.send(signal.SIGCONT)

    def _is_ours(self) -> bool:
        return self._terminal is not None and _foreground(self._terminal) == os.getpgrp()

    def _give_terminal(self) -> None:
        if self._terminal is not None and self.has_terminal:
            _bring_forward(self._terminal, self.pid)

    def _take_terminal(self) -> None:
        if self._terminal is not None and _foreground(self._terminal) == self.pid:
            _bring_forward(self._terminal, os.getpgrp())


class _Preparation:
    """What is done in the new process before it becomes the program."""

    def __init__(self, terminal: int | None) -> None:
        self._terminal = terminal
        self._parent = os.getpid()
        # Looked up now: between fork and exec as little as possible is done.
        self._prctl: Callable[[int, int], int] | None = None
        if sys.platform == "linux":
            self._prctl = ctypes.CDLL(None).prctl

    def __call__(self) -> None:
        if self._prctl is not None:
            self._prctl(_SET_PARENT_DEATH_SIGNAL, signal.SIGTERM)
            if os.getppid() != self._parent:  # it is gone already, and nobody will be told
                os.kill(os.getpid(), signal.SIGKILL)
        if self._terminal is not None:
            _bring_forward(self._terminal, os.getpid())


def _foreground(descriptor: int) -> int | None:
    try:
        return os.tcgetpgrp(descriptor)
    except OSError:
        return None


def _bring_forward(terminal: int, group: int) -> None:
    with _blocked(signal.SIGTTOU):  # or who is not in the foreground is stopped for asking
        try:
            os.tcsetpgrp(terminal, group)
        except OSError:  # hung up, or the group is gone
            pass


@contextmanager
def _blocked(number: int) -> "Generator[None]":
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [number])
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
