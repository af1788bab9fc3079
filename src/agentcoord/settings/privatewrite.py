"""Writing a private file whole: others see the old text or the new one, and no update is lost.

A writer holds the file's lock from reading the old text to having replaced it. Until the rename, what
is new lies beside the file under a name of its own, for nobody else to read.
"""

import os
import stat
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from errno import EISDIR, ENXIO
from posixpath import basename, join

from agentcoord.errors import ConfigError
from agentcoord.files import is_temporary, replace_durably
from agentcoord.settings.securefile import (
    MAX_BYTES,
    Waiting,
    lock_name,
    lock_refusal,
    opened_parent,
    read_file,
    reason,
    require_private,
    split_private,
    wait_for_lock,
)

_MODE = stat.S_IRUSR | stat.S_IWUSR
_OPEN_LOCK = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC


def rewrite_private(
    path: str, change: Callable[[str | None], str], *, explicit: bool, uid: int, waiting: Waiting | None = None
) -> None:
    """Replace the text of a private file by what `change` makes of it; None is a file that is not there.

    `change` may be asked twice and its last answer counts; what it raises comes through, and nothing
    was written then. Missing directories are made, for `uid` alone. A writer waits for the others,
    at most WRITE_LOCK_SECONDS. Raises ConfigError for all that `read_private` refuses, except that
    the file may be missing, and when it cannot be written (spec: cli §13, config set).
    """
    try:
        _rewrite(path, change, explicit=explicit, uid=uid, waiting=waiting or Waiting())
    except (OSError, ValueError) as error:  # ValueError: a path no system call accepts
        raise ConfigError(f"cannot write user config {path}: {reason(error)}") from error


def _rewrite(path: str, change: Callable[[str | None], str], *, explicit: bool, uid: int, waiting: Waiting) -> None:
    directory, name = split_private(path)
    if not os.path.lexists(path):
        change(None)  # a change that is refused leaves no directory behind
    with (
        opened_parent(directory, conventional=not explicit, uid=uid, writing=True) as (real, parent),
        _exclusive_lock(real, parent, name, uid, waiting),
    ):
        _remove_leftovers(name, parent)
        data = change(_text(path, parent, uid)).encode()
        if len(data) > MAX_BYTES:  # nobody could read it again
            raise ConfigError(f"user config is larger than {MAX_BYTES} bytes: {path}")
        replace_durably(path, data, mode=_MODE, directory=parent)


def _remove_leftovers(name: str, parent: int) -> None:
    """Remove what killed writers of this file left: whoever holds the lock is the only one that writes it.

    Such a file holds a token, and nobody else would ever remove it.
    """
    for left in os.listdir(parent):
        if is_temporary(left, of=name):
            with suppress(OSError):
                os.unlink(left, dir_fd=parent)


def _text(path: str, parent: int, uid: int) -> str | None:
    try:
        return read_file(path, parent, uid)
    except FileNotFoundError:
        return None


@contextmanager
def _exclusive_lock(directory: str, parent: int, name: str, uid: int, waiting: Waiting) -> Generator[None, None, None]:
    """Keep everybody else out; the lock file stays, since removing it would make two locks of one name."""
    lock = join(directory, lock_name(directory, name))
    try:
        descriptor = os.open(basename(lock), _OPEN_LOCK, _MODE, dir_fd=parent)
    except OSError as error:
        if error.errno in (EISDIR, ENXIO):
            raise ConfigError(f"config lock must be a regular file: {lock}") from error
        raise lock_refusal(lock, error) from error
    try:
        found = os.fstat(descriptor)
        require_private(found, "config lock", lock, uid)
        if stat.S_IMODE(found.st_mode) != _MODE:
            os.fchmod(descriptor, _MODE)  # a umask may have taken some of it
        wait_for_lock(descriptor, lock, waiting, writing=True)
        yield
    finally:
        os.close(descriptor)  # closing releases the lock
