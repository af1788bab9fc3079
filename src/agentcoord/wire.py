"""The socket of the daemon: where it lies, and what goes over it, one JSON object a line.

Both ends import this, and one of them within a command that should take no longer than the interpreter: so
nothing here imports more than modules written in C and what every interpreter has loaded already.
"""

import _json
import os
import stat

TYPE_CHECKING = False  # what `typing` says of itself: importing it would cost as much as the command
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

API = 1
"""The version of what is said; programs of different versions understand each other if this is the same."""

FRAME_BYTES = 4 * 1024 * 1024
"""The most that one line may hold, its end included."""

ELSEWHERE = -32001
"""Error code: not a command for this daemon; whoever asked does it alone."""
VERSION_MISMATCH = -32002
"""Error code: the daemon speaks another API."""
UNSUPPORTED = -32601
"""Error code: the daemon knows no such method."""

RUNTIME_DIRECTORY = "AGENT_COORD_RUNTIME_DIR"
SOCKET_NAME = "daemon.sock"
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
