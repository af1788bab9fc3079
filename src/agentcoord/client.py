"""The thin client: hands a command to the daemon, if one answers, and copies what it says.

A daemon that is missing, hangs, breaks off or belongs to somebody else never makes a command worse than no
daemon: the command then runs in its own process. Two steps see to that. Until the client says `go` the daemon
has done nothing; after it, a second run gets the same instant, the same chance and the same inputs, so that it
finds what the first one wrote to be its own. Nothing reaches stdout before the whole answer is here.

This is the hot path: it imports no more than `wire` does, and the rest only where something is wrong.
"""

import os
import stat
import time

from agentcoord.process import program, read_file, read_stdin, say, terminal, umask, working_directory, write
from agentcoord.version import VERSION
from agentcoord.wire import (
    ANSWER_BYTES,
    API,
    ELSEWHERE,
    FRAME_BYTES,
    UNSUPPORTED,
    VERSION_MISMATCH,
    Line,
    encode,
    notification,
    runtime_directory,
    socket_path,
    travels,
)

TYPE_CHECKING = False  # what `typing` says of itself: importing it would cost as much as the command
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

DAEMON = "AGENT_COORD_DAEMON"
"""The variable of the process that says whether commands go to the daemon: auto, off or require."""

HERE = frozenset(
    "-h --help help version bootstrap config completion __complete demo doctor run daemon lease outbox watch".split()  # noqa: SIM905
)
"""Commands that run in the caller's process whatever the daemon offers."""

ACCEPT_SECONDS = 2.0
"""How long a daemon may take to say that it takes a command."""
SILENCE_SECONDS = 10.0
"""How long it may then say nothing; while it works, it says so every two seconds."""
CANCEL_SECONDS = 1.0
"""How long an interrupted command is waited for, so that it is over when the prompt is back."""

_ID = 1
_PART_BYTES = 3 * 512 * 1024  # of an input: two thirds of what a frame has room for once it is base64
_USAGE, _UNKNOWN = 1, 2


class Broken:
    """A command whose daemon was lost on the way: what a run in this process needs to come to the same records.

    `now` is in ISO format, `inputs` what was read for it already, by path, stdin as `-`: it cannot be read twice.
    """

    __slots__ = ("inputs", "now", "seed")

    def __init__(self, now: str, seed: bytes) -> None:
        self.now = now
        self.seed = seed
        self.inputs: dict[str, bytes] = {}


class Walled:
    """A daemon may be there, and this process may not ask it; `place` is the directory that its socket is in."""

    __slots__ = ("place",)

    def __init__(self, place: str) -> None:
        self.place = place


class _NoDaemon(Exception):
    """Nothing was done. `loud` says that a person should know why, `walled` that the system allows no question."""

    def __init__(self, why: str, *, loud: bool = True, walled: Walled | None = None) -> None:
        super().__init__(why)
        self.loud = loud
        self.walled = walled


class _Elsewhere(Exception):
    """Nothing was done, and that is as it should be: this command is not the daemon's."""


class _Lost(Exception):
    """The command was begun, and what came of it is unknown."""

    def __init__(self, why: str, broken: Broken) -> None:
        super().__init__(why)
        self.broken = broken


class _Fault(Exception):
    """The conversation cannot go on."""


def forwarded(argv: list[str]) -> int | Broken | Walled | None:
    """Have the daemon run a command, and give its exit status once all is written.

    None says that the command is to run here, as if nothing had been tried. So does a Broken, and how; and a Walled,
    and where something may be left for the daemon.
    """
    if not argv or argv[0] in HERE or any(map(_keeps, argv)):
        return None
    wish = os.environ.get(DAEMON, "").strip() or "auto"
    if wish == "off":
        return None
    required = wish == "require"
    if not required and wish != "auto":
        return _refuse(f"{DAEMON} must be auto, off or require", _USAGE)
    try:
        return _Command(argv).run(_connected(os.environ, os.getuid()))
    except _Elsewhere:
        return None
    except _NoDaemon as error:
        if required:
            hint = "" if error.loud else "; agent-coord daemon start starts one"
            return _refuse(f"{error} ({DAEMON}=require){hint}", _UNKNOWN)
        if error.loud:
            _refuse(f"notice: {error}; the command runs without it", 0)
        return error.walled
    except _Lost as error:
        if required:
            return _refuse(f"{error}; what the command did is unknown ({DAEMON}=require)", _UNKNOWN)
        _refuse(f"notice: {error}; the command is brought to its end without it", 0)
        return error.broken


def _keeps(word: str) -> bool:
    """Tell `--keep`, abbreviated or not: what is kept is bound to this process and its ancestors."""
    return word.startswith("--k") and "--keep".startswith(word)


def _refuse(line: str, status: int) -> int:
    shown = line if line.isprintable() else ascii(line)[1:-1]
    write(2, f"{shown}\n".encode("utf-8", "replace"))
    return status


# The way there --------------------------------------------------------------------------------------


def _connected(env: "Mapping[str, str]", uid: int) -> "Line":
    """Connect to the daemon of this user, and to no other. Raises _NoDaemon."""
    directory = runtime_directory(env, uid)
    path = socket_path(directory, uid)
    place = os.path.dirname(path)
    try:
        _require_own(place, stat.S_IFDIR, "directory", uid)
        _require_own(path, stat.S_IFSOCK, "socket", uid)
        line = Line(time.monotonic() + ACCEPT_SECONDS)
        line.connect(path)
        peer = line.peer()
    except (FileNotFoundError, NotADirectoryError, ConnectionRefusedError):
        raise _NoDaemon(f"no daemon answers at {path}", loud=False) from None
    except PermissionError as error:
        # Not the same as no daemon: one may well be running, out of a sandbox's reach.
        raise _NoDaemon(
            f"the daemon's socket {path} may not be used here: {error.strerror}; "
            f"if this is a sandbox, allow the directory {os.path.realpath(place)} in its settings",
            walled=Walled(place),
        ) from None
    except TimeoutError:
        raise _NoDaemon(_late(ACCEPT_SECONDS)) from None
    except OSError as error:
        raise _NoDaemon(f"the daemon's socket {path} cannot be used: {error.strerror or error}") from None
    if peer != uid:
        raise _NoDaemon(f"the socket {path} is answered by another user (uid {peer})")
    return line


def _require_own(path: str, kind: int, name: str, uid: int) -> None:
    """Refuse what somebody else could have put there or could use. Raises OSError, _NoDaemon."""
    found = os.lstat(path)
    if stat.S_IFMT(found.st_mode) != kind:
        raise _NoDaemon(f"the daemon cannot be reached: {path} is no {name}")
    if found.st_uid != uid:
        raise _NoDaemon(f"the daemon's {name} {path} belongs to another user (uid {found.st_uid})")
    if found.st_mode & 0o077:
        mode = 0o700 if kind == stat.S_IFDIR else 0o600
        raise _NoDaemon(f"the daemon's {name} {path} is open to others: it must have mode {mode:04o}")


def _late(seconds: float) -> str:
    return f"the daemon did not answer within {seconds:g} s"


# The conversation -----------------------------------------------------------------------------------


class _Command:
    """One command, told to the daemon and followed to its end. Raises _Elsewhere for one that cannot be told."""

    def __init__(self, argv: list[str]) -> None:
        seconds, rest = divmod(time.time_ns(), 1_000_000_000)
        # The fields by hand: strftime would write a year before 1000 without its zeros.
        year, month, day, hour, minute, second = time.gmtime(seconds)[:6]
        now = f"{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{rest // 1000:06}Z"
        self._broken = Broken(now, os.urandom(32))
        person, columns, colour, notices = terminal(os.environ)
        self._begun = False
        self._answer: list[bytes | bytearray] = []
        self._stderr: list[bytes | bytearray] = []
        self._size = 0
        try:
            self._request = encode(
                {
                    "jsonrpc": "2.0",
                    "id": _ID,
                    "method": "cli.run",
                    "params": {
                        "api": API,
                        "version": VERSION,
                        "argv": argv,
                        "cwd": working_directory(),
                        "env": {name: value for name, value in os.environ.items() if travels(name)},
                        "terminal": {"person": person, "columns": columns, "colour": colour, "notices": notices},
                        "program": program(),
                        "node": os.uname().nodename,
                        "now": now,
                        "seed": self._broken.seed.hex(),
                        "umask": umask(),
                        "plain": True,
                    },
                }
            )
        except ValueError:  # bytes that are not UTF-8: JSON cannot carry them
            raise _Elsewhere from None
        if len(self._request) > FRAME_BYTES:
            raise _Elsewhere

    def run(self, line: Line) -> int:
        """Follow the conversation to its end, and say what the daemon said.

        Raises _Elsewhere and _NoDaemon while the command is not begun, _Lost after that.
        """
        try:
            self._begin(line)
            status = self._follow(line)
        except SystemExit:  # of a signal
            if self._begun:
                self._cancel(line)
            raise
        except _Fault as error:
            why = str(error)
        except TimeoutError:
            why = _late(SILENCE_SECONDS if self._begun else ACCEPT_SECONDS)
        except (EOFError, OSError):
            why = "the daemon broke off the connection"
        except (ValueError, TypeError, KeyError, AttributeError):
            why = "the daemon's answer is not of the protocol"
        else:
            return say(b"".join(self._stderr), self._answer, status)
        line.close()  # whatever still runs there is to end
        if self._begun:
            raise _Lost(why, self._broken)
        raise _NoDaemon(why)

    def _begin(self, line: Line) -> None:
        line.send(self._request)
        while not self._accepted(line.receive()):
            pass
        self._begun = True
        line.allow(SILENCE_SECONDS)
        line.send(notification("go", {"id": _ID}))

    def _follow(self, line: Line) -> int:
        while True:
            said = line.receive()
            line.allow(SILENCE_SECONDS)
            status = self._heard(said, line)
            if status is not None:
                return status

    def _accepted(self, said: "dict[str, Any]") -> bool:
        if "error" in said:
            error = said["error"]
            code, message = error["code"], error["message"]
            if code == ELSEWHERE:
                raise _Elsewhere
            if code in (VERSION_MISMATCH, UNSUPPORTED):
                raise _Fault(f"the daemon is of a version that does not go with this one ({VERSION}); restart it")
            raise _Fault(f"the daemon refused the command: {message}")
        if "method" not in said:
            raise ValueError("an answer before the command was begun")
        return said["method"] == "accepted" and said["params"]["id"] == _ID

    def _heard(self, said: "dict[str, Any]", line: Line) -> int | None:
        """Take one line of a running command; gives the exit status when it was the last."""
        if "error" in said:
            raise _Fault(f"the daemon failed: {said['error']['message']}")
        if "result" in said:
            status = said["result"]["exit"]
            if said["id"] != _ID or type(status) is not int or not 0 <= status <= 255:
                raise ValueError("no exit status")
            return status
        method, told = said["method"], said["params"]
        if told.get("id") != _ID:
            return None
        if method == "output":
            data = told["data"].encode("utf-8", "surrogateescape")
            self._make_room(len(data))
            self._stream(told).append(data)
        elif method == "plain":
            self._make_room(told["length"])
            self._stream(told).append(line.take(told["length"]))
        elif method == "read":
            self._give(told, line)
        return None  # any other only tells that the command is being worked on

    def _stream(self, told: "dict[str, Any]") -> "list[bytes | bytearray]":
        return {"stdout": self._answer, "stderr": self._stderr}[told["stream"]]

    def _make_room(self, more: int) -> None:
        self._size += more
        if self._size > ANSWER_BYTES:
            raise _Fault(f"the answer is larger than {ANSWER_BYTES >> 20} MiB")

    def _give(self, told: "dict[str, Any]", line: Line) -> None:
        """Send what the command wants to read, read with this process's own rights."""
        path, number = told["path"], told["read"]
        try:
            data = read_stdin(told["most"]) if path == "-" else read_file(path, told["most"])
        except OSError as error:
            from errno import EIO

            line.allow(SILENCE_SECONDS)
            line.send(notification("content", {"id": _ID, "read": number, "errno": error.errno or EIO}))
            return
        from binascii import b2a_base64

        self._broken.inputs[path] = data
        for start in range(0, len(data) or 1, _PART_BYTES):
            part = b2a_base64(data[start : start + _PART_BYTES], newline=False).decode()
            line.allow(SILENCE_SECONDS)
            more = start + _PART_BYTES < len(data)
            line.send(notification("content", {"id": _ID, "read": number, "data": part, "more": more}))

    def _cancel(self, line: Line) -> None:
        """Have the daemon end the command, and wait a moment for that."""
        line.allow(CANCEL_SECONDS)
        try:
            line.send(notification("cancel", {"id": _ID}))
            while "method" in line.receive():
                pass
        except (OSError, EOFError, ValueError):
            pass  # gone, and the command with it
