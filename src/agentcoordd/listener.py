"""The one socket of this user and machine: who may listen on it, who may connect, and when it is ours no more.

A lock decides who runs; what a file says never does. Everything beside the socket is looked at and changed only
under that lock, and nothing that is not the socket of a daemon is ever removed.
"""

import asyncio
import errno
import fcntl
import os
import socket
import stat
import struct
import sys
from collections.abc import Callable

import anyio
from msgspec import Struct

from agentcoord.errors import StoreError
from agentcoord.files import cause_of

BACKLOG = 1024
LOCK_NAME = "daemon.lock"
MARK_NAME = "stopped"

_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_LOCK = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_NO_DESCRIPTORS = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
_PAUSE = 0.1
"""Seconds until the next look when there is no descriptor for a caller."""


class Busy(StoreError):
    """Another daemon has the lock."""


class Peer(Struct, frozen=True):
    """Who is at the other end, as the system says."""

    pid: int
    uid: int


class Listener:
    """An open socket, and the lock that makes it ours."""

    def __init__(self, path: str, directory: int, lock: int, listening: socket.socket, *, given: bool) -> None:
        self.path = path
        self._directory, self._lock, self._listening, self._given = directory, lock, listening, given
        self._socket = _identity(os.lstat(path))

    def lost(self) -> str | None:
        """Say what is no longer ours: directory, lock or socket; None while all of it is."""
        folder = os.path.dirname(self.path)
        for path, own in (
            (folder, os.fstat(self._directory)),
            (f"{folder}/{LOCK_NAME}", os.fstat(self._lock)),
        ):
            if identity_at(path) != _identity(own):
                return path
        return None if identity_at(self.path) == self._socket else self.path

    def mark_stopped(self) -> None:
        """Leave the mark that keeps commands from starting the daemon again. Raises StoreError."""
        try:
            os.close(
                os.open(
                    MARK_NAME,
                    os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC,
                    0o600,
                    dir_fd=self._directory,
                )
            )
        except OSError as error:
            folder = os.path.dirname(self.path)
            raise StoreError(f"cannot leave the mark {folder}/{MARK_NAME}: {cause_of(error)}") from error

    async def accept(
        self, protocol: Callable[[Peer], asyncio.Protocol], admit: Callable[[], bool], fault: Callable[[str], None]
    ) -> None:
        """Connect callers until cancelled; those of other users, and those that are not admitted, are hung up on."""
        loop = asyncio.get_running_loop()
        while True:
            try:
                caller, _ = await loop.sock_accept(self._listening)
            except OSError as error:
                if error.errno in _NO_DESCRIPTORS:  # somebody else's turn will free one
                    fault(f"cannot accept a connection: {cause_of(error)}")
                    await anyio.sleep(_PAUSE)
                elif error.errno not in (errno.ECONNABORTED, errno.EINTR, errno.EAGAIN):
                    raise StoreError(f"cannot listen on {self.path} any longer: {cause_of(error)}") from error
                continue
            try:
                peer = peer_of(caller)
            except OSError:  # hung up already
                caller.close()
                continue
            if peer.uid != os.geteuid() or not admit():
                fault(f"pid {peer.pid} of user {peer.uid} was not connected")
                caller.close()
                continue
            caller.setblocking(False)
            await loop.connect_accepted_socket(lambda peer=peer: protocol(peer), caller)

    def close(self) -> None:
        """Stop listening, and remove the socket if it is still ours; the lock goes last."""
        self._listening.close()
        if not self._given and self.lost() is None:
            os.unlink(self.path)
        os.close(self._directory)
        os.close(self._lock)


def open_listener(path: str, uid: int, given: socket.socket | None = None) -> Listener:
    """Listen on a socket at `path`, or on the one that a supervisor has opened there.

    Raises Busy when a daemon runs already, StoreError for anything there that is not safe or not ours.
    """
    folder = os.path.dirname(path)
    directory = _open_directory(folder, uid)
    lock = None
    try:
        lock = _take_lock(f"{folder}/{LOCK_NAME}", uid)
        if given is None:
            _clear(path, uid)
            listening = _bind(path)
        else:
            listening = given
            _require_socket(path, uid)
        listening.setblocking(False)
        listener = Listener(path, directory, lock, listening, given=given is not None)
        _remove_mark(directory)
        if (lost := listener.lost()) is not None:
            raise StoreError(f"{lost} was replaced while the daemon started; start it again")
    except BaseException:
        os.close(directory)
        if lock is not None:
            os.close(lock)
        raise
    return listener


def peer_of(caller: socket.socket) -> Peer:
    """Ask the system who is at the other end. Raises OSError."""
    if sys.platform == "linux":
        pid, uid, _ = struct.unpack("3i", caller.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
        return Peer(pid, uid)
    # macOS: LOCAL_PEERCRED gives a struct xucred, version and user first; LOCAL_PEERPID the process.
    credentials = caller.getsockopt(0, 1, 76)
    (uid,) = struct.unpack_from("I", credentials, 4)
    (pid,) = struct.unpack("i", caller.getsockopt(0, 2, 4))
    return Peer(pid, uid)


def _open_directory(folder: str, uid: int) -> int:
    try:
        os.makedirs(folder, mode=0o700, exist_ok=True)
        directory = os.open(folder, _DIRECTORY)
    except OSError as error:
        why = "it is a symlink or no directory" if error.errno in (errno.ELOOP, errno.ENOTDIR) else cause_of(error)
        raise StoreError(
            f"cannot use the runtime directory {folder}: {why}; AGENT_COORD_RUNTIME_DIR names another"
        ) from error
    found = os.fstat(directory)
    if found.st_uid != uid:
        os.close(directory)
        raise StoreError(
            f"the runtime directory {folder} belongs to user {found.st_uid}; AGENT_COORD_RUNTIME_DIR names another"
        )
    if found.st_mode & 0o077:
        os.close(directory)
        raise StoreError(f"the runtime directory {folder} is open to others; chmod 700 {folder}")
    return directory


def _take_lock(path: str, uid: int) -> int:
    """Take the lock, on the file that stands at the path when it is taken. Raises Busy, StoreError."""
    while True:
        try:
            lock = os.open(path, _LOCK, 0o600)
        except OSError as error:
            why = "it is a symlink" if error.errno == errno.ELOOP else cause_of(error)
            raise StoreError(f"cannot use the lock {path}: {why}") from error
        try:
            found = os.fstat(lock)
            if not stat.S_ISREG(found.st_mode) or found.st_uid != uid:
                raise StoreError(f"cannot use the lock {path}: it is not a file of user {uid}")
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if identity_at(path) == _identity(found):
                _note_pid(lock)
                return lock
        except BlockingIOError:
            os.close(lock)
            raise Busy(f"a daemon is running already: {path} is locked") from None
        except OSError as error:
            os.close(lock)
            raise StoreError(f"cannot take the lock {path}: {cause_of(error)}") from error
        except StoreError:
            os.close(lock)
            raise
        os.close(lock)


def _note_pid(lock: int) -> None:
    """Write who has the lock, for people; no program decides by it."""
    os.ftruncate(lock, 0)
    os.pwrite(lock, f"{os.getpid()}\n".encode(), 0)


def _clear(path: str, uid: int) -> None:
    """Remove the socket of a daemon that is gone: whoever has the lock knows that it is. Raises StoreError."""
    try:
        found = os.lstat(path)
    except FileNotFoundError:
        return
    except OSError as error:
        raise StoreError(f"cannot look at {path}: {cause_of(error)}") from error
    if not stat.S_ISSOCK(found.st_mode) or found.st_uid != uid:
        raise StoreError(f"{path} is in the way: it is no socket of user {uid}; move it away")
    os.unlink(path)


def _require_socket(path: str, uid: int) -> None:
    found = os.lstat(path)
    if not stat.S_ISSOCK(found.st_mode) or found.st_uid != uid:
        raise StoreError(f"{path}, which the supervisor has opened, is no socket of user {uid}")


def _bind(path: str) -> socket.socket:
    try:
        listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    except OSError as error:
        raise StoreError(f"cannot listen on {path}: no socket can be made: {cause_of(error)}") from error
    before = os.umask(0o177)  # from the first moment on; nothing else runs yet in this process
    try:
        listening.bind(path)
        listening.listen(BACKLOG)
    except OSError as error:
        listening.close()
        raise StoreError(f"cannot listen on {path}: {cause_of(error)}") from error
    finally:
        os.umask(before)
    return listening


def _remove_mark(directory: int) -> None:
    """Whoever starts the daemon wants it to run."""
    try:
        os.unlink(MARK_NAME, dir_fd=directory)
    except OSError:  # it is not there, or no mark of ours; commands that see it then only start nothing
        return


def _identity(found: os.stat_result) -> tuple[int, int]:
    return found.st_dev, found.st_ino


def identity_at(path: str) -> tuple[int, int] | None:
    """Tell what stands at a path from whatever may replace it; None when nothing does."""
    try:
        return _identity(os.lstat(path))
    except OSError:
        return None
