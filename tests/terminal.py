"""A terminal for a process: what it prints there, and keys for it to read."""

import os
import pty
import select
import signal
import subprocess
import termios
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.command import PATIENCE


class Screen:
    """The other end of a terminal: everything printed on it so far, as bytes."""

    def __init__(self, master: int, process: subprocess.Popen[bytes]) -> None:
        self.master = master
        self._process = process
        self.seen = b""

    def type(self, keys: str) -> None:
        """Press keys."""
        os.write(self.master, keys.encode())

    @property
    def process(self) -> subprocess.Popen[bytes]:
        """The process that was started on the terminal."""
        return self._process

    def resize(self, columns: int, lines: int) -> None:
        """Make the terminal another size, as dragging a window does, and tell the process."""
        termios.tcsetwinsize(self.master, (lines, columns))
        self._process.send_signal(signal.SIGWINCH)

    def modes(self) -> list[Any]:
        """Tell how the terminal treats what is typed."""
        return termios.tcgetattr(self.master)

    def hang_up(self) -> None:
        """Close the terminal, as closing its window does."""
        os.close(self.master)
        self.master = os.open(os.devnull, os.O_RDWR)

    def until_it(self, holds: Callable[[], bool]) -> None:
        """Read what is printed until something holds."""
        deadline = time.monotonic() + PATIENCE
        while not holds():
            assert self._read(deadline), f"it never came true: {self.seen!r}"

    def until(self, text: str) -> None:
        """Wait for a text to be printed; a process that ends or is silent too long fails the test."""
        deadline = time.monotonic() + PATIENCE
        while text.encode() not in self.seen:
            assert self._read(deadline), f"{text!r} was not printed: {self.seen!r}"

    def finished(self) -> tuple[int, bytes]:
        """Wait for the process to end; give its exit status and what it printed, with plain line ends."""
        deadline = time.monotonic() + PATIENCE
        while self._read(deadline):
            pass
        return self._process.wait(PATIENCE), self.seen.replace(b"\r\n", b"\n")

    def _read(self, deadline: float) -> bool:
        ready, _, _ = select.select([self.master], [], [], max(0.0, deadline - time.monotonic()))
        try:
            data = os.read(self.master, 65536) if ready else b""
        except OSError:  # how Linux says that the last process has closed its end
            data = b""
        self.seen += data
        return bool(data)


@contextmanager
def on_terminal(
    argv: Sequence[str], *, env: Mapping[str, str], cwd: Path, columns: int = 80
) -> Generator[Screen, None, None]:
    """Run a process whose three streams are a terminal of that width."""
    master, slave = pty.openpty()
    screen = None
    try:
        termios.tcsetwinsize(slave, (50, columns))
        with subprocess.Popen(
            argv, stdin=slave, stdout=slave, stderr=slave, env=dict(env), cwd=cwd, start_new_session=True
        ) as process:
            os.close(slave)
            try:
                screen = Screen(master, process)
                yield screen
            finally:
                process.kill()
    finally:
        os.close(master if screen is None else screen.master)
