"""A terminal for a process: what it prints there, and keys for it to read."""

import os
import pty
import select
import subprocess
import termios
import time
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from tests.command import PATIENCE


class Screen:
    """The other end of a terminal: everything printed on it so far, as bytes."""

    def __init__(self, master: int, process: subprocess.Popen[bytes]) -> None:
        self._master = master
        self._process = process
        self.seen = b""

    def type(self, keys: str) -> None:
        """Press keys."""
        os.write(self._master, keys.encode())

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
        ready, _, _ = select.select([self._master], [], [], max(0.0, deadline - time.monotonic()))
        try:
            data = os.read(self._master, 65536) if ready else b""
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
    try:
        termios.tcsetwinsize(slave, (50, columns))
        with subprocess.Popen(
            argv, stdin=slave, stdout=slave, stderr=slave, env=dict(env), cwd=cwd, start_new_session=True
        ) as process:
            os.close(slave)
            try:
                yield Screen(master, process)
            finally:
                process.kill()
    finally:
        os.close(master)
