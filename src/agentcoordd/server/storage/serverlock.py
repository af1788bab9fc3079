"""The file beside an SQLite database that one server holds, and in which it is told that tokens have changed."""

import errno
import fcntl
import os
from collections.abc import Generator
from contextlib import contextmanager, suppress
from time import monotonic
from typing import Final

from agentcoordd.server.storage.base import Machine, StorageDown

_MARK = 16
"""Bytes of the mark: random, so that no two changes leave the same one behind."""

_SECONDS = 1.0
"""How long a token is remembered unless it is looked up again: a change may have come without its mark."""

_GLANCE = 0.001
"""Seconds between two looks at the mark: less than the command that makes it takes to end."""

_MACHINES = 10_000
"""How many machines are remembered at most."""


class RememberedMachines:
    """Whose tokens are, until somebody marks the file: asking the database at every request costs as much as a read."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor: Final = descriptor
        self._mark = b""
        self._until = self._look_at = 0.0
        self._machines: dict[str, Machine] = {}

    def get(self, token_hash: str) -> Machine | None:
        """Give who has a token, if that is known and nothing has changed since. Raises OSError."""
        now = monotonic()
        if now >= self._look_at:
            self._look_at = now + _GLANCE
            mark = os.pread(self._descriptor, _MARK, 0)  # a map would be fatal once the file is cut short
            if mark != self._mark or now >= self._until:
                self._machines, self._mark, self._until = {}, mark, now + _SECONDS
        return self._machines.get(token_hash)

    def put(self, token_hash: str, machine: Machine) -> None:
        """Remember what was read from the database after `get` knew nothing."""
        if len(self._machines) < _MACHINES:
            self._machines[token_hash] = machine


@contextmanager
def alone(path: str) -> Generator[RememberedMachines]:
    """Keep a second server from a database: it would not hear of this one's changes. Raises OSError, StorageDown."""
    descriptor = os.open(_lock_of(path), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno in (errno.EAGAIN, errno.EACCES):
                raise StorageDown(f"another server has this database: {path}") from error
            raise StorageDown(f"database cannot be locked: {path}: {error.strerror}") from error
        yield RememberedMachines(descriptor)
    finally:
        os.close(descriptor)


def mark_tokens_changed(path: str) -> None:
    """Make a running server forget whose tokens are, once the change is stored.

    Where the file cannot be marked, the server finds out by itself within a second: no reason to take the change back.
    """
    with suppress(OSError):
        descriptor = os.open(_lock_of(path), os.O_WRONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        try:
            os.pwrite(descriptor, os.urandom(_MARK), 0)
        finally:
            os.close(descriptor)


def _lock_of(path: str) -> str:
    return f"{os.path.realpath(path)}.server-lock"  # one file has one, whatever name it is called by
