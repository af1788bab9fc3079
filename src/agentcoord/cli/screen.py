"""The terminal while something lives on it: its other screen, no cursor, keys as they are pressed; and all of it back.

Whatever happens, leaving puts back what was there: the screen, the cursor, and how the terminal treats keys. Writing
never waits long for a terminal that takes nothing, such as one that was stopped with Ctrl-S, so that a signal still
ends the program.
"""

import codecs
import errno
import os
import re
import select
import signal
import termios
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

from agentcoord.errors import StoreError, UsageError
from agentcoord.files import cause_of

_ENTER = b"\x1b[?1049h\x1b[?25l\x1b[?7l\x1b[H\x1b[2J"
_LEAVE = b"\x1b[?7h\x1b[?25h\x1b[?1049l"
_KEYS = {
    "\x1b[A": "up", "\x1bOA": "up", "\x1b[B": "down", "\x1bOB": "down", "\x1b[5~": "page-up", "\x1b[6~": "page-down",
    "\x1b[H": "home", "\x1bOH": "home", "\x1b[1~": "home", "\x1b[7~": "home",
    "\x1b[F": "end", "\x1bOF": "end", "\x1b[4~": "end", "\x1b[8~": "end", "\x1b[Z": "back",
    "\t": "next", "\r": "enter", "\n": "enter", "\x7f": "erase", "\x08": "erase", "\x15": "erase-all", "\x04": "quit",
    "\x1b": "escape", "\x0c": "redraw",
}  # fmt: skip
_SEQUENCE = re.compile(r"\x1b(?:\[[0-9;?]*[@-~]|O[@-~])|[^\x1b]|\x1b(?=[^\[O])", re.DOTALL)
_WRITE_SECONDS = 1.0
"""How long a terminal may take nothing before a frame is dropped."""
_LONGEST_KEY = 32
ESCAPE_SECONDS = 0.05
"""After so long, what began like the sequence of a key is the Escape key itself."""


class Screen:
    """The terminal behind stdout, from `with` to the end of it. Raises UsageError for none that can show this."""

    def __init__(self, env: Mapping[str, str]) -> None:
        if not os.isatty(1):
            raise UsageError("watch is a view on a terminal, and stdout is none; --json prints changes line by line")
        if env.get("TERM", "dumb") == "dumb":
            raise UsageError("watch needs a terminal whose cursor moves, and TERM says dumb; --json prints lines")
        self.descriptor = -1
        self._kept: list[Any] | None = None
        """How the terminal was before; None while it is given back."""
        self._taken = False
        self._typed, self._typed_at = "", 0.0
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._shown: list[str] = []
        self._stale = True

    def __enter__(self) -> "Screen":
        try:
            # An opening of our own: not to wait is then nobody else's fate on this terminal.
            flags = os.O_RDWR | os.O_NOCTTY | os.O_NONBLOCK | os.O_CLOEXEC
            self.descriptor = os.open(os.ttyname(1), flags)
        except OSError:
            self.descriptor = os.dup(1)
        try:
            self._take()
        except BaseException as error:
            self._give_back()
            os.close(self.descriptor)
            if isinstance(error, termios.error | OSError):
                raise StoreError(f"the terminal cannot be used: {cause_of(OSError(*error.args))}") from error
            raise
        return self

    def __exit__(self, *fault: object) -> None:
        self._give_back()
        os.close(self.descriptor)

    def size(self) -> tuple[int, int]:
        """Give columns and lines; what no terminal has stands for the usual ones."""
        try:
            found = os.get_terminal_size(self.descriptor)
        except OSError:
            return 80, 24
        return found.columns or 80, found.lines or 24

    def show(self, lines: Sequence[str]) -> None:
        """Show lines from the top, of which none is wider than the screen. What stands there already is not sent.

        In the background nothing is shown; it is looked each time whether the terminal is ours again.
        """
        if not self._taken:
            self.resume()
        if not self._taken:
            return
        if self._stale:
            self._shown, parts = [], ["\x1b[H\x1b[2J"]
        else:
            parts = list[str]()
        for number, line in enumerate(lines):
            if number >= len(self._shown) or self._shown[number] != line:
                parts.append(f"\x1b[{number + 1};1H{line}\x1b[0m\x1b[K")
        if len(lines) < len(self._shown):
            parts.append(f"\x1b[{len(lines) + 1};1H\x1b[J")
        # Half a frame would stay on the screen: then all of it is sent the next time.
        self._stale = bool(parts) and not self._write("".join(parts).encode("utf-8", "replace"))
        self._shown = list(lines)

    def redraw(self) -> None:
        """Send everything with the next frame: what is on the screen now is not ours."""
        self._stale = True

    def keys(self) -> Iterator[str]:
        """Give the keys that were pressed: a name for each that has one, else what it types; `quit` at the end."""
        if not self._taken:  # they are for the shell
            return
        ready, _, _ = select.select([self.descriptor], [], [], 0)
        try:
            data = os.read(self.descriptor, 4096) if ready else None
        except BlockingIOError:
            data = None
        except OSError:  # the terminal is gone
            data = b""
        if data == b"":
            yield "quit"
            return
        if data:
            self._typed += self._decoder.decode(data)
            self._typed_at = time.monotonic()
        while (found := _SEQUENCE.match(self._typed)) is not None:
            self._typed = self._typed[found.end() :]
            key = _KEYS.get(found.group(), found.group())
            if len(key) > 1 or key.isprintable():
                yield key
        if self._typed and (time.monotonic() - self._typed_at >= ESCAPE_SECONDS or len(self._typed) > _LONGEST_KEY):
            self._typed = ""
            yield "escape"

    @property
    def undecided(self) -> bool:
        """Whether something was typed that may be Escape, or the beginning of another key."""
        return bool(self._typed)

    @property
    def descriptors(self) -> list[int]:
        """Where there is something to read when a key is pressed."""
        return [self.descriptor] if self._taken else []

    def pause(self) -> None:
        """Stop as Ctrl-Z asks for, with the terminal given back meanwhile."""
        self._give_back()
        before = signal.signal(signal.SIGTSTP, signal.SIG_DFL)
        try:
            os.kill(os.getpid(), signal.SIGTSTP)
        finally:
            signal.signal(signal.SIGTSTP, before)
        self.resume()

    def resume(self) -> None:
        """Take the terminal anew, after somebody else may have changed it."""
        try:
            self._take()
        except (termios.error, OSError):  # it is gone, which reading from it tells
            self._taken = True

    def _take(self) -> None:
        """Take the terminal, unless we are in the background: there it is somebody else's, who would be disturbed,
        and the system would stop us, signals that ask for our end and all.
        """
        self._taken = False
        if not self._in_front():
            return
        now = termios.tcgetattr(self.descriptor)
        kept = [*now[:6], list(now[6])] if self._kept is None else self._kept
        now[0] &= ~(termios.ICRNL | termios.IXON)
        now[3] &= ~(termios.ICANON | termios.ECHO)
        now[6][termios.VMIN], now[6][termios.VTIME] = 1, 0
        try:
            termios.tcsetattr(self.descriptor, termios.TCSANOW, now)
        except termios.error as error:
            if error.args[0] == errno.EINTR:  # we were put into the background at this very moment
                return
            raise
        self._kept, self._taken = kept, True
        self._write(_ENTER)
        self._stale = True

    def _give_back(self) -> None:
        self._taken = False
        if self._kept is None:
            return
        self._write(_LEAVE)
        kept, self._kept = self._kept, None
        if self._in_front():  # else whoever is has set it as he wants it
            with suppress(termios.error):  # of a terminal that is gone
                termios.tcsetattr(self.descriptor, termios.TCSANOW, kept)

    def _in_front(self) -> bool:
        try:
            return os.tcgetpgrp(self.descriptor) == os.getpgrp()
        except OSError:  # it controls nobody's jobs, or none of ours
            return True

    def _write(self, data: bytes) -> bool:
        """Write all of it, and tell whether the terminal took it."""
        rest, end = memoryview(data), time.monotonic() + _WRITE_SECONDS
        while rest:
            try:
                _, ready, _ = select.select([], [self.descriptor], [], max(0.0, end - time.monotonic()))
                if not ready:
                    return False
                rest = rest[os.write(self.descriptor, rest[:1024]) :]
            except BlockingIOError:
                continue
            except OSError:  # the terminal is gone, which reading from it will tell
                return False
        return True
