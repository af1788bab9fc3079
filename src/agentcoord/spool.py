"""The spool: what a process that may not connect to the daemon leaves for it, to be queued.

It lies beside the daemon's socket, one directory that a sandbox can be given. Both ends believe nothing of it that
the system does not say: whose it is, that others cannot enter, that no name in it leads elsewhere. A file says for
which backend it is, and proves that whoever wrote it has the token, without holding it.
"""

import errno
import hmac
import os
import re
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from heapq import nsmallest
from typing import Literal

import msgspec
from msgspec import Struct

from agentcoord.errors import StoreError, UsageError
from agentcoord.files import (
    DIRECTORY_FLAGS,
    cause_of,
    is_temporary,
    make_directory,
    opened_file,
    remove_durably,
    replace_durably,
)
from agentcoord.protocol.outbox import Late
from agentcoord.settings.selection import Secret, Selection

NAME = "spool"
ASIDE = "aside"
"""Where the daemon puts files that it cannot take, below the spool."""
MOST_FILES = 1000
FILE_BYTES = 512 * 1024
MOST_ASIDE = 100

_FILE = re.compile(r"\d{20}-[0-9a-f]{16}\.json", re.ASCII)
_NO_FILE = (errno.ELOOP, errno.EINVAL, errno.ENXIO)
_CLOSED = (errno.EACCES, errno.EPERM)
_OTHERS = 0o077
_LEFT_SECONDS = 3600.0
_LONGEST = 50
"""Characters of a name that are kept where it needs another one: less than any file system takes."""


class Dropped(Struct, frozen=True, forbid_unknown_fields=True):
    """One file: what is to be sent to which backend. `salt` is random, in hex; `proof` of all that and the token."""

    spool: Literal[1]
    url: str
    salt: str
    proof: str
    late: Late

    def proves(self, token: Secret) -> bool:
        """Tell whether whoever wrote just this has this token."""
        return hmac.compare_digest(self.proof.encode(), _proof(token, self.salt, self.url, self.late).encode())


class Spool:
    """The spool beside a socket, for one backend and its token: where a record may wait for the daemon."""

    def __init__(self, place: str, url: str, token: Secret) -> None:
        self._place, self._url, self._token = place, url, token

    async def holds(self, lane: str) -> bool:
        """Answer no: what the daemon has queued cannot be seen from here."""
        return False

    async def put(self, late: Late) -> None:
        """Drop a record. Raises StoreError where that is not possible, or there are too many already."""
        salt = os.urandom(16).hex()
        dropped = Dropped(1, self._url, salt, _proof(self._token, salt, self._url, late), late)
        data = msgspec.json.encode(dropped)
        if len(data) > FILE_BYTES:
            raise StoreError(f"it is larger than the spool takes: {len(data)} of {FILE_BYTES} bytes")
        path = f"{self._place}/{NAME}"
        try:
            with opened_spool(self._place) as directory:
                if len(os.listdir(directory)) >= MOST_FILES:
                    raise StoreError(f"the spool {path} holds {MOST_FILES} files already: is the daemon running?")
                name = f"{time.time_ns():020}-{os.urandom(8).hex()}.json"
                replace_durably(name, data, mode=0o600, directory=directory)
        except OSError as error:
            raise StoreError(f"nothing can be dropped into the spool {path}: {cause_of(error)}") from error


def spool_at(place: str) -> Callable[[Selection], Spool | None]:
    """Give what finds the spool for a backend; None for what is no server, or is asked without a token."""

    def find(selection: Selection) -> Spool | None:
        if selection.kind != "http" or selection.url is None or selection.token is None:
            return None
        return Spool(place, selection.url, selection.token)

    return find


def _proof(token: Secret, salt: str, url: str, late: Late) -> str:
    said = f"{salt} {url} ".encode() + msgspec.json.encode(late)  # or else who sees one file could make another of it
    return hmac.new(token.reveal().encode(), said, "sha256").hexdigest()


@contextmanager
def opened_spool(place: str) -> Generator[int]:
    """Hold the spool open that lies in a runtime directory. Raises OSError, StoreError for one that may not be ours."""
    above = os.open(place, DIRECTORY_FLAGS | os.O_NOFOLLOW)
    try:
        _require_own(above, place)
        directory = os.open(NAME, DIRECTORY_FLAGS | os.O_NOFOLLOW, dir_fd=above)
    finally:
        os.close(above)
    try:
        _require_own(directory, f"{place}/{NAME}")
        yield directory
    finally:
        os.close(directory)


def _require_own(directory: int, path: str) -> None:
    found = os.fstat(directory)
    if found.st_uid != os.geteuid() or found.st_mode & _OTHERS:
        raise StoreError(f"others can use {path}, so nothing is dropped or taken there: it must be yours, of mode 0700")


# The daemon's end ------------------------------------------------------------------------------------


def make_spool(place: str) -> None:
    """Make the spool in a runtime directory, if there is none, for this user alone. Raises OSError, StoreError."""
    make_directory(f"{place}/{NAME}", umask=_OTHERS)
    with opened_spool(place) as directory:
        make_directory(ASIDE, directory=directory, umask=_OTHERS)


def leave(place: str) -> None:
    """Remove the spool if nothing is in it: without a daemon nobody is to believe in one."""
    with suppress(OSError, StoreError), opened_spool(place) as directory:
        os.rmdir(ASIDE, dir_fd=directory)
        os.rmdir(f"{place}/{NAME}")


def names_in(directory: int) -> list[str]:
    """Give the first files of a spool, in the order they were dropped. Raises OSError."""
    return nsmallest(MOST_FILES, (name for name in os.listdir(directory) if name != ASIDE and not is_temporary(name)))


def read_dropped(directory: int, name: str) -> Dropped:
    """Read one file of a spool. Raises UsageError saying why it is none that was dropped there, OSError."""
    if _FILE.fullmatch(name) is None:
        raise UsageError("its name is none that a command gives")
    try:
        with opened_file(name, directory=directory) as file:
            found = os.fstat(file.fileno())
            if found.st_uid != os.geteuid() or found.st_mode & _OTHERS or found.st_nlink != 1:
                raise UsageError("it is not this user's alone: it must have mode 0600, and one name")
            data = file.read(FILE_BYTES + 1)
    except OSError as error:
        if error.errno in _NO_FILE:
            raise UsageError("it is no file, or a name for another one") from error
        if error.errno in _CLOSED:
            raise UsageError("it cannot be read: it must have mode 0600") from error
        raise
    if len(data) > FILE_BYTES:
        raise UsageError(f"it is larger than {FILE_BYTES} bytes")
    try:
        return msgspec.json.decode(data, type=Dropped)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise UsageError(f"it is not what a command drops: {error}") from error


def remove(directory: int, name: str) -> None:
    """Remove a file of a spool for good. Raises OSError."""
    with suppress(FileNotFoundError):
        remove_durably(name, directory=directory)


def put_aside(directory: int, name: str) -> None:
    """Move a file of a spool, whatever it is, to where nobody reads it; the oldest there make room. Raises OSError."""
    make_directory(ASIDE, directory=directory, umask=_OTHERS)
    aside = os.open(ASIDE, DIRECTORY_FLAGS | os.O_NOFOLLOW, dir_fd=directory)
    try:
        # Under another name where that one is taken: a directory gives way to no file.
        free = f"{name[:_LONGEST]}.{os.urandom(8).hex()}" if name in os.listdir(aside) else name
        os.rename(name, free, src_dir_fd=directory, dst_dir_fd=aside)
        kept = sorted(os.listdir(aside))
        for old in kept[: max(0, len(kept) - MOST_ASIDE)]:
            with suppress(OSError):  # a directory, which takes no room that counts
                os.unlink(old, dir_fd=aside)
    finally:
        os.close(aside)


def sweep(directory: int, now: Callable[[], float] = time.time) -> None:
    """Remove what killed commands left half written. Raises OSError."""
    for name in os.listdir(directory):
        if is_temporary(name) and _age(directory, name, now) > _LEFT_SECONDS:
            remove(directory, name)


def _age(directory: int, name: str, now: Callable[[], float]) -> float:
    try:
        return now() - os.stat(name, dir_fd=directory, follow_symlinks=False).st_mtime
    except FileNotFoundError:
        return 0.0
