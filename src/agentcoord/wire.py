"""The socket of the daemon: where it lies, what goes over it, one JSON object a line, and the client's end of it.

Both ends import this, and one of them within a command that should take no longer than the interpreter: so
nothing here imports more than modules written in C and what every interpreter has loaded already.
"""

import _json
import _socket
import os
import stat
import sys
import time

TYPE_CHECKING = False  # what `typing` says of itself: importing it would cost as much as the command
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

API = 1
"""The version of what is said; programs of different versions understand each other if this is the same."""

FRAME_BYTES = 4 * 1024 * 1024
"""The most that one line may hold, its end included."""
ANSWER_BYTES = 64 * 1024 * 1024
"""The most that one command may answer for somebody else, who keeps all of it until it is whole."""

ELSEWHERE = -32001
"""Error code: not a command for this daemon; whoever asked does it alone."""
VERSION_MISMATCH = -32002
"""Error code: the daemon speaks another API."""
UNSUPPORTED = -32601
"""Error code: the daemon knows no such method."""

RUNTIME_DIRECTORY = "AGENT_COORD_RUNTIME_DIR"
SOCKET_NAME = "daemon.sock"
_RECEIVE_BYTES = 256 * 1024
_GLANCE_SECONDS = 0.2  # a signal that comes just before a wait begins does not end it, and is seen only after it
_LONGEST_WAIT = 3600.0
_LONGEST_PATH = 103  # bytes; macOS has room for one less than 104


def runtime_directory(env: "Mapping[str, str]", uid: int) -> str:
    """Give the one directory in which a user's daemon and its callers meet. Nothing is created."""
    named = env.get(RUNTIME_DIRECTORY, "")
    if named.startswith("/"):
        return named
    session = f"/run/user/{uid}"
    try:
        found = os.lstat(session)
    except OSError:
        return _temporary(uid)
    if stat.S_ISDIR(found.st_mode) and found.st_uid == uid:
        return f"{session}/agent-coord"
    return _temporary(uid)


def socket_path(directory: str, uid: int) -> str:
    """Give the path of the socket: in that directory, or where the system could not take so long a path, in a
    short one that stands for it.
    """
    path = f"{directory}/{SOCKET_NAME}"
    name = os.fsencode(path)
    if len(name) <= _LONGEST_PATH:
        return path
    from binascii import crc32

    return f"{_temporary(uid)}-{crc32(os.fsencode(directory)):08x}/{SOCKET_NAME}"


def _temporary(uid: int) -> str:
    # A directory that is not ours is refused when it is used, by both ends.
    return f"/tmp/agent-coord-{uid}"  # noqa: S108


_TRAVELS = frozenset("CODEX_THREAD_ID HOME SSL_CERT_DIR SSL_CERT_FILE TMPDIR".split())  # noqa: SIM905
_FAMILIES = ("AGENT_COORD_", "XDG_")
_PROXY = ("_proxy", "_PROXY")


def travels(name: str) -> bool:
    """Tell whether a variable of the environment is a command's business, and so goes along with it."""
    return name in _TRAVELS or name.startswith(_FAMILIES) or name.endswith(_PROXY)


def encode(frame: "Mapping[str, object]") -> bytes:
    """Give the line that carries an object. Raises ValueError for text that is not Unicode."""
    return f"{_encoded(frame)}\n".encode()


def notification(method: str, params: "Mapping[str, object]") -> bytes:
    """Spell what is said without being answered."""
    return encode({"jsonrpc": "2.0", "method": method, "params": params})


def _encoded(value: object) -> str:
    if isinstance(value, str):
        return _json.encode_basestring(value)
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, int):
        return str(value)
    known: Any = value
    if isinstance(value, list | tuple):
        return f"[{','.join([_encoded(item) for item in known])}]"
    return f"{{{','.join([f'{_json.encode_basestring(name)}:{_encoded(item)}' for name, item in known.items()])}}}"


class _Reading:
    """How a line is read, as the scanner behind `json` wants to be told."""

    strict = True
    object_hook = None
    object_pairs_hook = None
    array_hook = None
    parse_float = float
    parse_int = int
    parse_constant = float


_reading: "Any" = _Reading
_scan = _json.make_scanner(_reading)


def decode(line: bytes) -> "dict[str, Any]":
    """Give the object that a line carries. Raises ValueError for anything else."""
    text = line.decode().strip()
    try:
        value, end = _scan(text, 0)
    except (StopIteration, RecursionError) as error:
        raise ValueError("not JSON") from error
    if end != len(text) or text[0] != "{":
        raise ValueError("not one JSON object")
    return value


class Line:
    """One connection, on which lines come and go; each wait ends with a moment that is set before it."""

    def __init__(self, until: float) -> None:
        """Make one that leads nowhere yet; the first steps have until then, by the monotonic clock."""
        self._connection = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM)
        self._until = until
        self._pending = bytearray()

    def allow(self, seconds: float) -> None:
        """Give the next steps that long, all together."""
        self._until = time.monotonic() + seconds

    def connect(self, path: str) -> None:
        """Connect to a socket. Raises OSError, of which TimeoutError is one."""
        while True:
            try:
                self._hurry()
                self._connection.connect(path)
            except BlockingIOError:  # too many are at the door
                time.sleep(0.01)
            else:
                return

    def peer(self) -> int:
        """Give the uid of whoever is at the other end. Raises OSError."""
        if sys.platform == "darwin":  # struct xucred: version, uid, …
            told = self._connection.getsockopt(0, 1, 76)
        else:  # struct ucred: pid, uid, gid
            told = self._connection.getsockopt(_socket.SOL_SOCKET, _socket.SO_PEERCRED, 12)
        return int.from_bytes(told[4:8], sys.byteorder)

    def send(self, line: bytes) -> None:
        """Send a line. Raises OSError, of which TimeoutError is one."""
        self._hurry()
        self._connection.sendall(line)

    def receive(self) -> "dict[str, Any]":
        """Give what the next line says. Raises OSError, ValueError for what is no line of the protocol, EOFError."""
        while (end := self._pending.find(b"\n")) < 0:
            if len(self._pending) >= FRAME_BYTES:
                raise ValueError("too long")
            self._hurry(_GLANCE_SECONDS)
            try:
                part = self._connection.recv(_RECEIVE_BYTES)
            except TimeoutError:
                continue
            if not part:
                raise EOFError
            self._pending += part
        if end >= FRAME_BYTES:
            raise ValueError("too long")
        line = bytes(self._pending[:end])
        del self._pending[: end + 1]
        return decode(line)

    def take(self, length: int) -> bytearray:
        """Give that many bytes that follow a line. Raises OSError, EOFError."""
        taken = bytearray(length)
        room = memoryview(taken)
        begun = min(length, len(self._pending))
        room[:begun] = self._pending[:begun]
        del self._pending[:begun]
        while begun < length:
            self._hurry(_GLANCE_SECONDS)
            try:
                count = self._connection.recv_into(room[begun:])
            except TimeoutError:
                continue
            if not count:
                raise EOFError
            begun += count
        return taken

    def close(self) -> None:
        """End the connection, which ends what the daemon does for it."""
        self._connection.close()

    def _hurry(self, most: float = _LONGEST_WAIT) -> None:
        left = self._until - time.monotonic()
        if left <= 0:
            raise TimeoutError
        self._connection.settimeout(min(left, most))
