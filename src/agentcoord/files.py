"""Durable file moves: when one of these returns, the new state survives a power cut.

A file is replaced by renaming a complete, synced copy over it, so a reader sees the old bytes or
the new ones and nothing in between. Writers that must not interleave take a lock first, an flock on a
sidecar that other programs can take too. Failures of the system stay `OSError`: what to tell a
person depends on whose file it is. Where `directory` is given, it is the open directory that `path`
lies in, and only the last part of `path` is looked up, in there.
"""

import errno
import fcntl
import os
import re
import stat
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from typing import BinaryIO

from agentcoord.errors import Busy

LOCK_WAIT = 10.0
"""Seconds to wait for another writer before giving up."""

DIRECTORY_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC

_TEMPORARY_STEM = 200  # characters, of at most 255 bytes in all
_FIRST_PAUSE = 0.001
_LONGEST_PAUSE = 0.02

_READ_WRITE = 0o666
_ALL = stat.S_IRWXU | stat.S_IRWXG | stat.S_IRWXO

_LOCK_FLAGS = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
_NEW_FLAGS = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_CONTENT_FLAGS = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
_CANNOT_SYNC = frozenset({errno.EINVAL, errno.ENOTSUP, errno.EOPNOTSUPP})


def take_lock(
    path: str, *, directory: int | None = None, wait: float = LOCK_WAIT, sleep: Callable[[float], object] = time.sleep
) -> int:
    """Take the exclusive lock of a file, waiting at most `wait` seconds for its present holder.

    Returns what `release_lock` needs. The lock is an flock on `<path>.lock`, which is created when
    missing and never removed: removing it would let two writers hold two locks of one name. Raises
    Busy when the wait is over, OSError when the lock file cannot be opened (ELOOP: it is a symlink).
    """
    lock = path + ".lock"
    fd = os.open(lock if directory is None else _name_of(lock), _LOCK_FLAGS, 0o600, dir_fd=directory)
    try:
        _acquire(fd, lock, wait, sleep)
    except BaseException:
        os.close(fd)
        raise
    return fd


def release_lock(lock: int) -> None:
    """Let the next writer in."""
    try:
        # Closing is not enough: a child forked meanwhile by another thread shares the lock.
        fcntl.flock(lock, fcntl.LOCK_UN)
    finally:
        os.close(lock)


def _acquire(fd: int, lock: str, wait: float, sleep: Callable[[float], object]) -> None:
    waited, pause = 0.0, _FIRST_PAUSE
    while True:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            # Pauses are added up rather than read off a clock, so the end comes with any `sleep`.
            if waited >= wait:
                raise Busy(
                    f"another process has held {lock} for more than {wait:g} seconds; nothing was written: "
                    f"run the command again, or end that process (`fuser {lock}` names it)"
                ) from None
            sleep(pause)
            waited += pause
            pause = min(pause * 2, _LONGEST_PAUSE)
        else:
            return


def replace_durably(
    path: str,
    data: bytes,
    *,
    mode: int | None = None,
    umask: int | None = None,
    directory: int | None = None,
    temporary: str | None = None,
    settle: bool = True,
) -> None:
    """Put `data` at `path`, whole or not at all; a reader never sees a part of it.

    `temporary` names the file it is written to first, beside `path`. Without `mode` the permissions of
    the file that is there are kept, and the umask decides for a new one: `umask`, if it is somebody else's.
    Raises OSError (the old file stays whole, no temporary file is left): ELOOP when `path` is a symlink. An
    error of the last step, syncing the directory, leaves the new file in place. Without `settle` that step is
    left out: after a power failure it may be the old file that is there, as whole as the new one.
    """
    if directory is None:
        with opened_directory(os.path.dirname(path)) as fd:
            replace_durably(path, data, mode=mode, umask=umask, directory=fd, temporary=temporary, settle=settle)
        return
    name = _name_of(path)
    if mode is None:
        mode = _mode_of(name, directory)
    if mode is None and umask is not None:
        mode = _READ_WRITE & ~umask
    # A name that only just fits leaves room for its beginning; what is random keeps it apart.
    temporary = temporary or f".{name[:_TEMPORARY_STEM]}.tmp-{os.getpid()}-{os.urandom(6).hex()}"
    try:
        fd = os.open(temporary, _NEW_FLAGS, _READ_WRITE if mode is None else mode, dir_fd=directory)
    except FileExistsError:
        raise  # somebody else's file: not ours to unlink
    except BaseException:  # an interrupt may come between the file's creation and its number
        _forget(temporary, directory)
        raise
    try:
        try:
            if mode is not None:
                os.fchmod(fd, mode)
            _write_all(fd, data)
            os.fsync(fd)
        finally:
            os.close(fd)  # may be where a network file system reports the failed write
        os.rename(temporary, name, src_dir_fd=directory, dst_dir_fd=directory)
    except BaseException:
        _forget(temporary, directory)
        raise
    if settle:
        sync_directory(directory)


class Change:
    """One change of a file, under its lock; the file is looked at and replaced where it was found."""

    def __init__(self, name: str, directory: int, umask: int | None) -> None:
        self._name, self._directory, self._umask = name, directory, umask

    def stamp(self) -> list[int]:
        """Give what is another list once the file was replaced or written to; empty when there is none. Raises OSError.

        That is its device, inode, size in bytes, and times of change and of status change in nanoseconds.
        """
        try:
            found = os.stat(self._name, dir_fd=self._directory, follow_symlinks=False)
        except FileNotFoundError:
            return []
        return [found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns]

    def content(self) -> bytes:
        """Give what is there, b"" of nothing. Raises OSError, ELOOP for a symlink and EINVAL for what is no file."""
        try:
            with opened_file(self._name, directory=self._directory) as file:
                return file.read()
        except FileNotFoundError:
            return b""

    def replace(self, data: bytes) -> None:
        """Put `data` there for good. Raises OSError."""
        temporary = f"{self._name}.tmp-{os.getpid()}-{os.urandom(8).hex()}"
        replace_durably(self._name, data, umask=self._umask, directory=self._directory, temporary=temporary)


@contextmanager
def opened_file(path: str, *, directory: int | None = None) -> Generator[BinaryIO]:
    """Open a file to be read, and close it again. No symlink is followed, and no pipe or device is waited for.

    Raises OSError, ELOOP for a symlink and EINVAL for what is no file.
    """
    fd = os.open(path, _CONTENT_FLAGS, dir_fd=directory)
    try:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL), path)
        with open(fd, "rb", closefd=False) as file:  # `open` closes no descriptor that it turns down
            yield file
    finally:
        os.close(fd)


@contextmanager
def changing(path: str, *, wait: float = LOCK_WAIT, umask: int | None = None) -> Generator[Change]:
    """Hold the lock of a file that may be changed. Directories above it are made; `umask` as for `make_directory`.

    Raises OSError, Busy when another process holds the lock for more than `wait` seconds.
    """
    above, name = os.path.split(path)
    make_directories(above, umask=umask)
    with opened_directory(above) as directory:
        lock = take_lock(path, directory=directory, wait=wait)
        try:
            yield Change(name, directory, umask)
        finally:
            release_lock(lock)


def is_temporary(name: str, *, of: str | None = None) -> bool:
    """Tell a file that `replace_durably` writes on its way to another name, to the name `of` if that is given."""
    found = re.fullmatch(r"\.(.+)\.tmp-[0-9]+-[0-9a-f]+", name, re.DOTALL)
    return found is not None and (of is None or found.group(1) == of[:_TEMPORARY_STEM])


def _mode_of(name: str, directory: int) -> int | None:
    try:
        mode = os.stat(name, dir_fd=directory, follow_symlinks=False).st_mode
    except FileNotFoundError:
        return None
    if stat.S_ISLNK(mode):
        raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), name)
    return stat.S_IMODE(mode)


def _write_all(fd: int, data: bytes) -> None:
    written = os.write(fd, data)
    while written < len(data):
        written += os.write(fd, memoryview(data)[written:])


def _forget(temporary: str, directory: int) -> None:
    with suppress(OSError):
        os.unlink(temporary, dir_fd=directory)


def remove_durably(path: str, *, directory: int | None = None) -> None:
    """Remove a file for good. Raises OSError, FileNotFoundError when it is not there."""
    if directory is None:
        with opened_directory(os.path.dirname(path)) as fd:
            remove_durably(path, directory=fd)
        return
    os.unlink(_name_of(path), dir_fd=directory)
    sync_directory(directory)


def make_directory(path: str, *, directory: int | None = None, umask: int | None = None) -> None:
    """Create one directory for good, unless it is there. Raises OSError, FileExistsError for another kind of file.

    `umask` is that of somebody else, for whom it is made; None: this process's own counts.
    """
    if directory is None:
        with opened_directory(os.path.dirname(path)) as fd:
            make_directory(path, directory=fd, umask=umask)
        return
    name = _name_of(path)
    try:
        os.mkdir(name, _ALL if umask is None else _ALL & ~umask, dir_fd=directory)
    except FileExistsError:
        if not stat.S_ISDIR(os.stat(name, dir_fd=directory).st_mode):
            raise
    else:
        if umask is not None:
            _open_up(name, directory, umask)
        sync_directory(directory)


def _open_up(name: str, directory: int, umask: int) -> None:
    """Give a directory that was just made what this process's own umask took, if anything."""
    fd = os.open(name, DIRECTORY_FLAGS | os.O_NOFOLLOW, dir_fd=directory)
    try:
        found = stat.S_IMODE(os.fstat(fd).st_mode)
        wanted = found & ~_ALL | _ALL & ~umask  # such as the group's bit, which it has from the one above, stays
        if found != wanted:
            os.fchmod(fd, wanted)
    finally:
        os.close(fd)


def make_directories(path: str, *, umask: int | None = None) -> None:
    """Create a directory for good, and what is missing above it; `umask` as above. Raises OSError."""
    path = path.rstrip("/") or "/"
    if os.path.isdir(path):
        return
    try:
        make_directory(path, umask=umask)
    except FileNotFoundError:
        above = os.path.dirname(path)
        if not above:  # a relative path whose working directory is gone
            raise
        make_directories(above, umask=umask)
        make_directory(path, umask=umask)


@contextmanager
def opened_directory(path: str) -> Generator[int]:
    """Hold a directory open; an empty path is the working directory. Raises OSError."""
    fd = os.open(path or ".", DIRECTORY_FLAGS)
    try:
        yield fd
    finally:
        os.close(fd)


def sync_directory(directory: int) -> None:
    """Make the names in an open directory durable, where its file system can. Raises OSError."""
    try:
        os.fsync(directory)
    except OSError as error:
        if error.errno not in _CANNOT_SYNC:
            raise


def _name_of(path: str) -> str:
    return path.rpartition("/")[2]


def cause_of(error: OSError) -> str:
    """Say in words why the system refused, to end a line that names the file."""
    said = os.strerror(error.errno) if error.errno else str(error)
    return said[:1].lower() + said[1:]


def free_name(path: str, ending: str) -> str:
    """Find a name that nothing has yet: `path` with an ending, and a number if that one is taken."""
    name, number = path + ending, 1
    while os.path.lexists(name):
        number += 1
        name = f"{path}{ending}.{number}"
    return name


def shell_line(*words: str) -> str | None:
    """Spell a command for a shell to read as these very words; None when a printed line cannot carry one of them.

    A command that was changed on its way to the screen would do its work on another file.
    """
    if not all(word.isprintable() and "\ufffd" not in word for word in words):
        return None
    from shlex import join  # only here: it is asked for when something is wrong already

    line = join(words)
    return line if discreet(line) == line else None


def printable(text: str) -> str:
    """Spell a path or an argument so that any output can carry it: U+FFFD stands for bytes that are not UTF-8."""
    return text if text.isascii() else text.encode(errors="surrogateescape").decode(errors="replace")


def discreet(text: str) -> str:
    """Hide the userinfo of a URL that stands in a text, whatever kind of URL it is (spec: cli §2.9).

    All up to the last `@` of a word goes; and past white space too where a password has begun, which may hold
    any character. A port is no password. Hiding too much is the safe mistake.
    """
    if "://" not in text or "@" not in text:
        return text
    import re

    return re.sub(r"(?<=://)(?:[^\s/?#@]*:(?!\d*(?:[/?#\s]|$))[^@]*@(?:\S*@)?|\S*@)", "***@", text)
