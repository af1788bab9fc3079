"""Asking the daemon of this machine: one question at a time, each with an end.

Nothing is believed before the directory, the socket and the process behind it are known to be the
caller's own. "There is no daemon" and "this process may not ask it" are different errors, since a person
does different things about them.
"""

import errno
import os
import socket
import stat
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from types import TracebackType
from typing import Any, Self

import msgspec
from msgspec import Struct

from agentcoord.errors import Exit, StoreError
from agentcoord.files import cause_of
from agentcoord.protocol.documents import Document, is_document
from agentcoord.version import VERSION
from agentcoord.wire import ANSWER_BYTES, API, FRAME_BYTES, runtime_directory, socket_path

ANSWER_WAIT = 10.0
"""Seconds for one answer, all that leads to it included."""

STOPPED = "stopped"
"""The mark beside the socket: a person stopped the daemon, and only a person starts it again."""

_PAUSE = 0.005

Env = Mapping[str, str]


class NoDaemon(StoreError):
    """Nobody listens: there is no daemon, or none any more."""

    topic = "daemon.absent"


class Walled(StoreError):
    """This process may not reach the socket, as in a sandbox; whether there is a daemon is not known."""

    topic = "daemon.walled"


class Untrusted(StoreError):
    """What stands in the socket's place may be somebody else's, so nothing was asked."""

    topic = "daemon.untrusted"


class Silent(StoreError):
    """There is a daemon, and it does not answer in time, not to the end or not in words that can be read."""

    topic = "daemon.silent"


class Declined(StoreError):
    """The daemon answered that it will not; `code` is JSON-RPC's, `reason` its own words.

    `wrong` says that the question was at fault, and nothing was done.
    """

    topic = "daemon.declined"

    def __init__(self, message: str, *, code: int, reason: str = "", wrong: bool = False) -> None:
        self.code = code
        self.reason = reason
        self.wrong = wrong
        super().__init__(message)


class Daemon(Struct, frozen=True):
    """What the daemon says of itself."""

    version: str
    api: int
    pid: int
    started_at: str | None = None
    features: tuple[str, ...] = ()


class Ran(Struct, frozen=True):
    """What a command said, and how it ended."""

    stdout: str
    stderr: str
    exit: int


class Place(Struct, frozen=True):
    """Where the daemon of a user is met: the directory, and in it the socket and the mark of a stop."""

    socket: str

    @property
    def directory(self) -> str:
        """Name the directory of the socket."""
        return os.path.dirname(self.socket)

    @property
    def mark(self) -> str:
        """Name the mark of a stop."""
        return os.path.join(self.directory, STOPPED)

    @property
    def stopped(self) -> bool:
        """Whether a person stopped the daemon and has not started it since."""
        return os.path.lexists(self.mark)


def place_of(env: Env) -> Place:
    """Find out where the caller's daemon is met, from the caller's environment."""
    uid = os.geteuid()
    return Place(socket_path(runtime_directory(env, uid), uid))


def ask(
    env: Env, method: str, params: Mapping[str, object], *, start: bool = False, wait: float = ANSWER_WAIT
) -> Document:
    """Ask the daemon one thing and give its result; with `start`, start one first if there is none.

    Raises StoreError in one of the classes of this module; NoDaemon also where a person stopped it.
    """
    try:
        connection = Connection(env, wait)
    except NoDaemon:
        if not start:
            raise
        from agentcoord.daemonlife import start_daemon  # most questions find a daemon

        start_daemon(env)
        connection = Connection(env, wait)
    with connection:
        return connection.ask(method, params)


class Connection:
    """One conversation with the daemon, introduced and with an end: `wait` seconds from its beginning.

    One that talks in another way is not talked to, unless `any_api` will do, as to stop it.
    """

    def __init__(self, env: Env, wait: float = ANSWER_WAIT, *, any_api: bool = False) -> None:
        self._place = place_of(env)
        self._end = time.monotonic() + wait
        self._wait = wait
        self._buffer = bytearray()
        self._number = 0
        self._socket, self._pid = _connected(self._place, self._end)
        try:
            said = self.ask("hello", {"version": VERSION, "api": API})
            self.daemon = msgspec.convert(said, Daemon)
        except msgspec.ValidationError as error:
            self.close()
            raise Silent(f"what answers at {self._place.socket} is not the daemon: {error}") from error
        except BaseException:
            self.close()
            raise
        if self.daemon.api != API and not any_api:
            self.close()
            raise Silent(
                f"the daemon is of version {self.daemon.version} and talks in another way than this command, of "
                f"version {VERSION}; run: agent-coord daemon restart"
            )

    def ask(self, method: str, params: Mapping[str, object]) -> Document:
        """Ask and wait for the answer, passing over what the daemon says unasked."""
        self._number += 1
        self._send({"jsonrpc": "2.0", "id": self._number, "method": method, "params": params})
        while True:
            answer = self._line()
            if answer.get("id") == self._number and "method" not in answer:
                return _result(method, answer)

    def run(self, command: Mapping[str, object]) -> Ran:
        """Have a command line run; `command` is all that `cli.run` is told. Its files are not asked for here.

        Raises Declined for one that is left to its caller, Silent also for an answer larger than any is.
        """
        self._number += 1
        about, said, length = {"id": self._number}, {"stdout": list[str](), "stderr": list[str]()}, 0
        self._send({"jsonrpc": "2.0", "id": self._number, "method": "cli.run", "params": command})
        while True:
            line = self._line()
            told = line.get("params")
            if "method" not in line:
                if line.get("id") == self._number:
                    exit_ = _result("cli.run", line).get("exit")
                    return Ran("".join(said["stdout"]), "".join(said["stderr"]), _number(exit_))
            elif line["method"] == "accepted":
                self._send({"jsonrpc": "2.0", "method": "go", "params": about})
            elif line["method"] == "output" and is_document(told):
                data = str(told.get("data"))
                length += len(data)
                if length > ANSWER_BYTES:
                    raise Silent(f"the daemon's answer is larger than {ANSWER_BYTES >> 20} MiB")
                said.get(str(told.get("stream")), []).append(data)

    def fileno(self) -> int:
        """Give the descriptor to wait at for what is said unasked."""
        return self._socket.fileno()

    def heard(self) -> list[Document]:
        """Give what was said unasked since then, without waiting. Raises Silent when the daemon is gone."""
        said = list[Document]()
        try:
            self._socket.setblocking(False)
            part = self._socket.recv(1 << 20)
        except BlockingIOError:
            part = None
        except OSError as error:
            raise Silent(f"the daemon went away: {cause_of(error)}") from error
        if part == b"":
            raise Silent("the daemon went away")
        self._buffer += part or b""
        while b"\n" in self._buffer:
            said.append(self._line())
        if len(self._buffer) > FRAME_BYTES:
            raise Silent("the daemon sent a line without an end")
        return said

    def close(self) -> None:
        """End the conversation."""
        self._socket.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def _send(self, said: Mapping[str, object]) -> None:
        try:
            frame = msgspec.json.encode(said) + b"\n"
        except UnicodeEncodeError as error:
            why = "text that is not UTF-8, such as the path of a state root, cannot be told to the daemon"
            raise StoreError(f"{said['method']}: {why}") from error
        if len(frame) > FRAME_BYTES:
            raise StoreError(f"{said['method']}: the request is larger than the daemon takes")
        self._try(lambda: self._socket.sendall(frame))

    def _line(self) -> Document:
        while (end := self._buffer.find(b"\n")) < 0:
            if len(self._buffer) > FRAME_BYTES:
                raise Silent("the daemon sent a line without an end")
            part = self._try(lambda: self._socket.recv(65536))
            if not part:
                raise Silent("the daemon ended the conversation before it answered")
            self._buffer += part
        line = bytes(self._buffer[:end])
        del self._buffer[: end + 1]
        try:
            return msgspec.json.decode(line, type=Document)
        except msgspec.DecodeError as error:
            raise Silent(f"the daemon answered what cannot be read: {error}") from error

    def _try(self, step: Callable[[], Any]) -> Any:
        left = self._end - time.monotonic()
        try:
            if left <= 0:
                raise TimeoutError
            self._socket.settimeout(left)
            return step()
        except TimeoutError as error:
            hangs = "" if self._pid is None else f"; if it hangs, end it: kill -9 {self._pid}"
            raise Silent(f"the daemon did not answer within {self._wait:g} seconds{hangs}") from error
        except OSError as error:
            raise Silent(f"the daemon went away before it answered: {cause_of(error)}") from error


def _result(method: str, answer: Document) -> Document:
    """Give the result in an answer. Raises Declined for an error, Silent for neither."""
    fault, result = answer.get("error"), answer.get("result")
    if is_document(fault):
        reason, data = str(fault.get("message")), fault.get("data")
        wrong = is_document(data) and data.get("exit") == Exit.USAGE
        said = f"the daemon refused {method}: {reason}"
        raise Declined(said, code=_number(fault.get("code")), reason=reason, wrong=wrong)
    if not is_document(result):
        raise Silent(f"the daemon answered {method} with what is no answer")
    return result


def _number(value: object) -> int:
    return value if isinstance(value, int) else 0


# Getting there -------------------------------------------------------------------------------------


def require_own(place: Place) -> None:
    """Check that the directory and what stands in the socket's place are the caller's own. Raises as `ask`."""
    uid = os.geteuid()
    for path, is_kind, what in (
        (place.directory, stat.S_ISDIR, "a directory"),
        (place.socket, stat.S_ISSOCK, "a socket"),
    ):
        try:
            found = os.lstat(path)
        except FileNotFoundError as error:
            raise absent(place) from error
        except PermissionError as error:
            raise walled(place, error) from error
        except OSError as error:
            raise Untrusted(f"{path} cannot be looked at: {cause_of(error)}") from error
        if not is_kind(found.st_mode):
            raise Untrusted(f"{path} is not {what}, so there is no daemon to trust: remove it")
        if found.st_uid != uid:
            raise Untrusted(f"{path} belongs to another user, so nothing is asked there: set AGENT_COORD_RUNTIME_DIR")
        if what == "a directory" and found.st_mode & 0o077:
            raise Untrusted(f"others can enter {path}, so what is in it cannot be trusted: chmod 700 {path}")


def _connected(place: Place, end: float) -> tuple[socket.socket, int | None]:
    """Connect; also gives the process at the other end, where the system tells."""
    require_own(place)
    try:
        connecting = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    except PermissionError as error:
        raise walled(place, error) from error
    except OSError as error:
        raise Silent(f"no socket can be made: {cause_of(error)}") from error
    try:
        _connect(connecting, place, end)
        pid, uid = _behind(connecting)
        if uid not in (None, os.geteuid()):
            raise Untrusted(f"user {uid} answers at {place.socket}, so nothing is asked there")
    except BaseException:
        connecting.close()
        raise
    return connecting, pid


def _connect(connecting: socket.socket, place: Place, end: float) -> None:
    while True:
        connecting.settimeout(max(end - time.monotonic(), 0.001))
        try:
            connecting.connect(place.socket)
        except (FileNotFoundError, ConnectionRefusedError, ConnectionResetError) as error:
            raise absent(place) from error
        except PermissionError as error:
            raise walled(place, error) from error
        except OSError as error:
            # A full queue before a daemon that is about to look at it; a system says so in one of these ways.
            if error.errno != errno.EAGAIN or time.monotonic() >= end:
                raise Silent(f"the daemon at {place.socket} takes nobody: {cause_of(error)}") from error
            time.sleep(_PAUSE)
        else:
            return


def _behind(connected: socket.socket) -> tuple[int | None, int | None]:
    """Ask the system which process is at the other end and whose; None where it cannot tell."""
    import struct

    if sys.platform == "linux":
        credentials = connected.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
        pid, uid, _ = struct.unpack("3i", credentials)
        return pid or None, uid
    with suppress(OSError, struct.error):  # macOS: SOL_LOCAL and LOCAL_PEERCRED, which Python has no names for
        return None, struct.unpack_from("=Ii", connected.getsockopt(0, 1, 76))[1]
    return None, None


def absent(place: Place) -> NoDaemon:
    """Say that nobody listens, and what to do about it."""
    if place.stopped:
        return NoDaemon("the daemon was stopped; agent-coord daemon start starts it again")
    return NoDaemon(f"no daemon listens at {place.socket}; agent-coord daemon start starts one")


def walled(place: Place, error: OSError) -> Walled:
    """Say what refused, and which setting allows it."""
    return Walled(
        f"this process may not connect to the daemon ({cause_of(error)}), as in a sandbox: "
        f"allow Unix sockets in the directory {os.path.realpath(place.directory)} in its settings"
    )
