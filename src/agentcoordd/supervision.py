"""What systemd and launchd want to hear, and the sockets they open for us."""

import ctypes
import ctypes.util
import os
import socket
import sys
from collections.abc import Callable, Mapping

from agentcoord.errors import StoreError
from agentcoord.files import cause_of

LAUNCHD_SOCKET = "Listeners"
"""The name of the socket in the property list."""

_FIRST = 3
"""The descriptor at which systemd's begin."""


class Notifier:
    """Tells the service manager how the daemon is; a daemon without one tells nobody."""

    def __init__(self, env: Mapping[str, str]) -> None:
        self._address = env.get("NOTIFY_SOCKET", "")
        self._watchdog = _microseconds(env)

    @property
    def interval(self) -> float | None:
        """Seconds between two signs of life, half of what the manager waits for; None: it waits for none."""
        return None if self._watchdog is None else self._watchdog / 2_000_000

    def tell(self, *lines: str) -> None:
        """Send assignments such as READY=1. Never raises: who cannot be told will see."""
        address = self._address
        if not address.startswith(("/", "@")):
            return
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
                sender.setblocking(False)
                sender.sendto("\n".join(lines).encode(), "\0" + address[1:] if address[0] == "@" else address)
        except OSError:
            return


def given_socket(env: Mapping[str, str]) -> socket.socket | None:
    """Take the listening socket that systemd or launchd has opened; None when there is none.

    Raises StoreError for another number or kind of sockets than one Unix stream.
    """
    descriptors = _from_systemd(env)
    if not descriptors and sys.platform == "darwin":
        descriptors = launchd_sockets(_activate())
    if not descriptors:
        return None
    if len(descriptors) > 1:
        raise StoreError(f"one socket is needed, and the supervisor gives {len(descriptors)}; check its unit")
    os.set_inheritable(descriptors[0], False)
    try:
        given = socket.socket(fileno=descriptors[0])
        accepting = given.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)
    except OSError as error:
        raise StoreError(f"the supervisor's descriptor is no socket: {cause_of(error)}") from error
    if given.family != socket.AF_UNIX or given.type != socket.SOCK_STREAM or not accepting:
        raise StoreError("the supervisor's socket is no listening Unix stream; check its unit")
    return given


def launchd_sockets(activate: Callable[[str], list[int]] | None) -> list[int]:
    """Ask launchd for the descriptors it holds; `activate` raises OSError where launchd did not start us."""
    if activate is None:
        return []
    try:
        return activate(LAUNCHD_SOCKET)
    except OSError:
        return []


def _from_systemd(env: Mapping[str, str]) -> list[int]:
    count = env.get("LISTEN_FDS", "")
    if env.get("LISTEN_PID") != str(os.getpid()) or not count.isdecimal():
        return []
    return list(range(_FIRST, _FIRST + int(count)))


def _microseconds(env: Mapping[str, str]) -> int | None:
    wanted = env.get("WATCHDOG_USEC", "")
    meant = env.get("WATCHDOG_PID", str(os.getpid())) == str(os.getpid())
    return int(wanted) if meant and wanted.isdecimal() and int(wanted) > 0 else None


def _activate() -> Callable[[str], list[int]] | None:
    """Find launchd's function in the system library."""
    library = ctypes.CDLL(ctypes.util.find_library("System"))
    function = getattr(library, "launch_activate_socket", None)
    if function is None:
        return None

    def activate(name: str) -> list[int]:
        numbers, count = ctypes.POINTER(ctypes.c_int)(), ctypes.c_size_t()
        code: int = function(name.encode(), ctypes.byref(numbers), ctypes.byref(count))
        if code:
            raise OSError(code, os.strerror(code))
        found = [int(numbers[index]) for index in range(count.value)]
        library.free(numbers)
        return found

    return activate
