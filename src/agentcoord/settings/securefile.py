"""Reading a private file so that nobody else can have decided what is in it.

The directories above are checked link by link, the last one is kept open, and the file is opened
once, below that descriptor and without following links: what was checked is what is read. Whatever
is found there instead, the answer is a ConfigError and never another exception. Writing such a file
(`privatewrite`) goes the same way through the same checks.
"""

import fcntl
import os
import stat
import time
from codecs import getincrementaldecoder
from collections import deque
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from errno import ELOOP, ENXIO, EOPNOTSUPP
from hashlib import sha256
from posixpath import basename, dirname, join, split

from msgspec import Struct

from agentcoord.errors import ConfigError
from agentcoord.files import shell_line, sync_directory

MAX_BYTES = 1 << 20
MISSING = "user_file.missing"
LOCK_SECONDS = 2.0
WRITE_LOCK_SECONDS = 30.0  # a writer may come after hundreds of others
LOCK_POLL_SECONDS = 0.05

_MAX_LINKS = 40  # what the kernel follows before it gives up
_OTHERS_MAY_WRITE = stat.S_IWGRP | stat.S_IWOTH
_OTHERS = stat.S_IRWXG | stat.S_IRWXO
_OPEN_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
_OPEN_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_PIN_DIRECTORY = getattr(os, "O_PATH", os.O_RDONLY) | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


class Waiting(Struct, frozen=True):
    """How time passes while somebody else holds the lock, in seconds."""

    clock: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep


class _Directory(Struct, frozen=True):
    """A directory after all links, as it was when it was checked."""

    path: str
    found: os.stat_result


def read_private(
    path: str, *, explicit: bool, uid: int, missing_ok: bool = False, lock: bool = True, waiting: Waiting | None = None
) -> str | None:
    """Give the text of a private file, or None when there is none.

    A conventional file (not `explicit`) may be missing, and its own directory is closed to others
    first if that is all it lacks; a directory somebody named is only checked. A writer is waited for
    at most LOCK_SECONDS. Raises ConfigError for everything else that is not a plain private file of
    `uid` with at most MAX_BYTES of UTF-8, in directories only root or `uid` can change (spec: cli §2.3).
    """
    try:
        return _read(path, explicit=explicit, uid=uid, lock=lock, waiting=waiting or Waiting())
    except FileNotFoundError as error:
        if explicit and not missing_ok:
            raise ConfigError(f"configured user env file does not exist: {path}", finding=MISSING) from error
        return None
    except (OSError, ValueError) as error:  # ValueError: a path no system call accepts
        raise ConfigError(
            f"cannot read user config {path}: {reason(error)}", finding="user_file.unreadable", mend=opening(path, uid)
        ) from error


def opening(path: str, uid: int) -> str | None:
    """Give the command that opens a closed file of `uid`, or its own directory, to its owner; None for other faults."""
    for place, needed, mode in ((dirname(path), stat.S_IXUSR, "700"), (path, stat.S_IRUSR, "600")):
        try:
            found = os.lstat(place)
        except (OSError, ValueError):
            return None
        right_kind = stat.S_ISDIR if place != path else stat.S_ISREG
        if found.st_uid != uid or not right_kind(found.st_mode):
            continue
        if not found.st_mode & needed:
            return shell_line("chmod", mode, place)
    return None


def peek(path: str) -> str | None:
    """Give the start of a text file for a guess about it, at most MAX_BYTES; None when it cannot be read.

    Links are followed and nobody's ownership is checked, so nothing may be decided from it but a
    warning or a refusal (spec: cli §2.8).
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
        try:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                return None
            data = _read_up_to(descriptor, MAX_BYTES + 1)
        finally:
            os.close(descriptor)
        return getincrementaldecoder("utf-8")().decode(data[:MAX_BYTES], final=len(data) <= MAX_BYTES)
    except (OSError, ValueError):
        return None


def lock_name(directory: str, name: str) -> str:
    """Name the lock file that guards one file of one real directory (spec: cli §2.3)."""
    return f".agent-coord-config-{sha256(os.fsencode(join(directory, name))).hexdigest()[:16]}.lock"


def read_file(path: str, parent: int, uid: int) -> str:
    """Give the text of the file that lies at the end of `path`, in the open directory `parent`.

    Raises ConfigError for what is no private text file, OSError.
    """
    try:
        return _read_file(path, basename(path), parent, uid).decode()
    except UnicodeDecodeError as error:
        raise ConfigError(f"user config contains invalid UTF-8: {path}", finding="user_file.encoding") from error


def split_private(path: str) -> tuple[str, str]:
    """Split a path into directory and name. Raises ConfigError when no file can have that name."""
    directory, name = split(path)
    if name in ("", ".", ".."):
        raise ConfigError(f"user config must be a regular file: {path}", finding="user_file.kind")
    return directory, name


@contextmanager
def opened_parent(
    directory: str, *, conventional: bool, uid: int, writing: bool = False
) -> Generator[tuple[str, int], None, None]:
    """Hold the checked directory of a private file open, together with its path after all links.

    For `writing`, what is missing of it is made first. Raises ConfigError, OSError.
    """
    real = _trusted(directory, conventional=conventional, uid=uid, look=_look_or_make if writing else os.lstat)
    if conventional:
        _close_leaf_to_others(directory, real, uid, writing=writing)
    descriptor = os.open(real.path, _OPEN_DIRECTORY if writing else _PIN_DIRECTORY)
    try:
        _require_same(real, os.fstat(descriptor))
        yield real.path, descriptor
    finally:
        os.close(descriptor)


def require_private(found: os.stat_result, what: str, path: str, uid: int) -> None:
    """Check that an opened file belongs to `uid` and to nobody else. Raises ConfigError."""
    if not stat.S_ISREG(found.st_mode):
        raise ConfigError(f"{what} must be a regular file: {path}", finding="user_file.kind")
    if found.st_uid != uid:
        raise ConfigError(f"{what} is not owned by the current user: {path}", finding="user_file.owner")
    if found.st_mode & _OTHERS:
        raise ConfigError(
            f"{what} permissions are insecure (expected 0600): {path}",
            finding="user_file.mode",
            mend=shell_line("chmod", "600", path),
        )


def lock_refusal(lock: str, error: OSError) -> ConfigError:
    """Say why a lock file cannot be opened."""
    if error.errno == ELOOP:
        return ConfigError(f"config lock must not be a symlink: {lock}", finding="user_file.lock")
    return ConfigError(f"cannot open config lock {lock}: {reason(error)}", finding="user_file.lock")


def wait_for_lock(descriptor: int, lock: str, waiting: Waiting, *, writing: bool = False) -> None:
    """Take a lock, exclusively for `writing`. Raises ConfigError when its holder outlasts us."""
    seconds = WRITE_LOCK_SECONDS if writing else LOCK_SECONDS
    operation = fcntl.LOCK_EX if writing else fcntl.LOCK_SH
    give_up = waiting.clock() + seconds
    while True:
        try:
            fcntl.flock(descriptor, operation | fcntl.LOCK_NB)
        except BlockingIOError:
            if (left := give_up - waiting.clock()) <= 0:
                kind = "write" if writing else "read"
                raise ConfigError(
                    f"timed out acquiring config {kind} lock after {seconds:g} seconds: {lock}",
                    finding="user_file.locked",
                ) from None
            waiting.sleep(min(LOCK_POLL_SECONDS, left))
        else:
            return


def reason(error: OSError | ValueError) -> str:
    """Say why the system refused."""
    if isinstance(error, OSError) and error.errno is not None:
        return os.strerror(error.errno)
    return str(error)


def _read(path: str, *, explicit: bool, uid: int, lock: bool, waiting: Waiting) -> str:
    with suppress(NotADirectoryError):  # the walk will say which component it was
        os.lstat(path)  # nothing there: the directories above do not matter yet
    directory, name = split_private(path)
    with (
        opened_parent(directory, conventional=not explicit, uid=uid) as (real, parent),
        _shared_lock(real, parent, name, uid, waiting if lock else None),
    ):
        return read_file(path, parent, uid)


def _trusted(
    directory: str, *, conventional: bool, uid: int, look: Callable[[str], os.stat_result] = os.lstat
) -> _Directory:
    """Walk to a directory by hand, checking each step before and after every link."""
    here = _Directory("/", os.lstat("/"))
    _require_trusted(here, uid)
    ahead = deque(directory.split("/"))
    links = 0
    while ahead:
        step = ahead.popleft()
        if step in ("", "."):
            continue
        if step == "..":  # no link is left in `here`, so its parent is what its name says
            here = _Directory(dirname(here.path), os.lstat(dirname(here.path)))
            continue
        path = join(here.path, step)
        found = look(path)
        if stat.S_ISLNK(found.st_mode):
            if found.st_uid not in (0, uid):
                raise ConfigError(
                    f"config parent must not contain a user-controlled symlink: {path}",
                    finding="user_file.parent_symlink",
                )
            if (links := links + 1) > _MAX_LINKS:
                raise OSError(ELOOP, os.strerror(ELOOP), path)
            target = os.readlink(path)
            if target.startswith("/"):
                here = _Directory("/", os.lstat("/"))
            ahead.extendleft(reversed(target.split("/")))
            continue
        here = _Directory(path, found)
        # The leaf of a conventional path has rules of its own, and they name it as such.
        if not conventional or any(step not in ("", ".") for step in ahead):
            _require_trusted(here, uid)
        elif not stat.S_ISDIR(found.st_mode):
            raise ConfigError(f"config parent component is not a directory: {path}", finding="user_file.parent_kind")
    return here


def _look_or_make(path: str) -> os.stat_result:
    """Look at one step, after making it a directory of ours alone if nothing is there.

    What lies above was checked before, so nobody else can put anything in its place.
    """
    try:
        return os.lstat(path)
    except FileNotFoundError:
        above = os.open(dirname(path), _OPEN_DIRECTORY)
    try:
        _make(basename(path), above)
        return os.stat(basename(path), dir_fd=above, follow_symlinks=False)
    finally:
        os.close(above)


def _make(name: str, above: int) -> None:
    try:
        os.mkdir(name, stat.S_IRWXU, dir_fd=above)
    except FileExistsError:  # another writer was faster
        return
    made = os.open(name, _OPEN_DIRECTORY, dir_fd=above)
    try:
        os.fchmod(made, stat.S_IRWXU)  # a umask may have taken some of it
    finally:
        os.close(made)
    sync_directory(above)


def _require_trusted(directory: _Directory, uid: int) -> None:
    if not stat.S_ISDIR(directory.found.st_mode):
        raise ConfigError(
            f"config parent component is not a directory: {directory.path}", finding="user_file.parent_kind"
        )
    if directory.found.st_uid not in (0, uid):
        raise ConfigError(
            f"config parent component has an unsafe owner: {directory.path}",
            finding="user_file.parent_owner",
        )
    if directory.found.st_mode & _OTHERS_MAY_WRITE:
        # What others share, like /tmp or the directory of a group, is not to be closed: the file is in the wrong place.
        shared = directory.found.st_mode & (stat.S_ISVTX | stat.S_ISGID) or directory.found.st_uid != uid
        raise ConfigError(
            f"config parent permissions are unsafe: {directory.path}",
            finding="user_file.parent_mode",
            mend=None if shared else shell_line("chmod", "go-w", directory.path),
        )


def _close_leaf_to_others(named: str, leaf: _Directory, uid: int, *, writing: bool) -> None:
    """Bring the conventional directory to 0700 if others could at most look into it."""
    ours = basename(leaf.path) == basename(named)
    unsafe = ConfigError(
        f"config parent leaf permissions are unsafe (expected 0700): {leaf.path}",
        finding="user_file.parent_mode",
        mend=shell_line("chmod", "700", leaf.path) if ours else None,
    )
    if leaf.found.st_uid != uid:
        raise ConfigError(
            f"config parent leaf is not owned by the current user: {leaf.path}",
            finding="user_file.parent_owner",
        )
    if not leaf.found.st_mode & _OTHERS:
        if writing and leaf.found.st_mode & stat.S_IRWXU != stat.S_IRWXU:
            raise unsafe
        return
    # A link of our name may point anywhere; only a directory of our name is ours to close.
    if leaf.found.st_mode & _OTHERS_MAY_WRITE or not ours:
        raise unsafe
    descriptor = os.open(leaf.path, _OPEN_DIRECTORY)
    try:
        _require_same(leaf, os.fstat(descriptor))
        try:
            os.fchmod(descriptor, stat.S_IRWXU)
        except OSError as error:
            raise unsafe from error
        after = os.fstat(descriptor)
        if after.st_uid != uid or after.st_mode & _OTHERS:
            raise unsafe
    finally:
        os.close(descriptor)


def _require_same(checked: _Directory, opened: os.stat_result) -> None:
    if (checked.found.st_dev, checked.found.st_ino) != (opened.st_dev, opened.st_ino):
        raise ConfigError(f"config parent changed while it was checked: {checked.path}")


@contextmanager
def _shared_lock(
    directory: str, parent: int, name: str, uid: int, waiting: Waiting | None
) -> Generator[None, None, None]:
    """Hold the lock a writer takes exclusively; where no writer ever was, there is none to hold."""
    if waiting is None:
        yield
        return
    lock = join(directory, lock_name(directory, name))
    try:
        descriptor = os.open(basename(lock), _OPEN_FILE, dir_fd=parent)
    except FileNotFoundError:
        yield
        return
    except OSError as error:
        raise lock_refusal(lock, error) from error
    try:
        require_private(os.fstat(descriptor), "config lock", lock, uid)
        wait_for_lock(descriptor, lock, waiting)
        yield
    finally:
        os.close(descriptor)  # closing releases the lock


def _read_file(path: str, name: str, parent: int, uid: int) -> bytes:
    try:
        descriptor = os.open(name, _OPEN_FILE, dir_fd=parent)
    except OSError as error:
        if error.errno == ELOOP:
            raise ConfigError(
                f"user config must be a regular file, not a symlink: {path}", finding="user_file.symlink"
            ) from error
        if error.errno in (ENXIO, EOPNOTSUPP):  # a socket cannot be opened at all
            raise ConfigError(f"user config must be a regular file: {path}", finding="user_file.kind") from error
        raise
    try:
        require_private(os.fstat(descriptor), "user config", path, uid)
        data = _read_up_to(descriptor, MAX_BYTES + 1)
    finally:
        os.close(descriptor)
    if len(data) > MAX_BYTES:
        raise ConfigError(f"user config is larger than {MAX_BYTES} bytes: {path}", finding="user_file.size")
    return data


def _read_up_to(descriptor: int, limit: int) -> bytes:
    data = bytearray()
    while len(data) < limit and (chunk := os.read(descriptor, limit - len(data))):
        data += chunk
    return bytes(data)
