"""Which processes there are, and when one of them ends.

A process is known by its number and its start time together, since numbers come again. On Linux its end is told by a
pidfd, on macOS by a kqueue; where there is none to be had, its start time is looked at every second. A stopped process
is not a dead one, a process that nobody has waited for yet is.
"""

import os
import select
import subprocess
import sys
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from types import MappingProxyType
from typing import Protocol

import anyio
from msgspec import Struct

from agentcoord.protocol.agents import Process, role_of

_DEEPEST = 64  # ancestors; a chain of processes is rarely longer than ten
_POLL = 1.0
_PS_SECONDS = 5.0
_GONE = ("Z", "X", "x")


class Watched(Struct, frozen=True):
    """One process for good: `started` is opaque, and another one's even where the number is the same."""

    pid: int
    started: str


class Seen(Struct, frozen=True):
    """What the system says of a process at one instant."""

    parent: int
    state: str
    started: str
    name: str


class Processes(Protocol):
    """The processes of this machine."""

    def find(self, pid: int) -> Watched | None:
        """Identify a process that is there now; None for one that is not, or is over."""
        ...

    def lives(self, process: Watched) -> bool:
        """Tell whether it still is the same process, and not over."""
        ...

    def name(self, pid: int) -> str | None:
        """Name the program that a process runs; None when it is not there."""
        ...

    def ancestors(self, pid: int) -> Sequence[Process]:
        """See the processes above one, the nearest first, itself left out."""
        ...

    async def exited(self, process: Watched) -> None:
        """Wait until a process is over; return at once when it already is."""
        ...


class SystemProcesses:
    """The processes of this machine, by `/proc` where there is one, else by `/bin/ps`."""

    def __init__(self, *, poll: float = _POLL, told: bool = True) -> None:
        self._poll = poll
        self._told = told
        self._boot = _boot_id()

    def find(self, pid: int) -> Watched | None:
        """Identify a process that is there now; None for one that is not, or is over."""
        seen = self._see(pid)
        return None if seen is None or seen.state in _GONE else Watched(pid, seen.started)

    def lives(self, process: Watched) -> bool:
        """Tell whether it still is the same process, and not over. Stopped is not over."""
        return self.find(process.pid) == process

    def name(self, pid: int) -> str | None:
        """Name the program that a process runs; None when it is not there."""
        seen = self._see(pid)
        return None if seen is None else role_of(Process(pid, seen.name, _words(pid)))[1]

    def ancestors(self, pid: int) -> Sequence[Process]:
        """See the processes above one, the nearest first, itself left out."""
        above: list[Process] = []
        seen = self._see(pid)
        while seen is not None and seen.parent > 0 and len(above) < _DEEPEST:
            parent = seen.parent
            seen = self._see(parent)
            if seen is not None:
                above.append(Process(parent, seen.name, _words(parent)))
        return above

    async def exited(self, process: Watched) -> None:
        """Wait until a process is over; return at once when it already is."""
        with _telling(process.pid) if self._told else nullcontext() as descriptor:
            if descriptor is None:
                while self.lives(process):  # noqa: ASYNC110 - there is nothing that would tell
                    await anyio.sleep(self._poll)
            # Looked at after the descriptor was opened: it then is this process's, or the process is over.
            elif self.lives(process):
                await anyio.wait_readable(descriptor)

    def _see(self, pid: int) -> Seen | None:
        return _from_proc(pid, self._boot) if sys.platform == "linux" else _from_ps(pid)


if sys.platform == "darwin":  # not tried yet: nobody who works on this has one

    @contextmanager
    def _telling(pid: int) -> Generator[int | None]:
        """Hold open what becomes readable when a process ends; None where looking has to do."""
        try:
            queue = select.kqueue()
        except OSError:
            yield None
            return
        try:
            flags = select.KQ_EV_ADD | select.KQ_EV_ONESHOT
            wanted = select.kevent(pid, select.KQ_FILTER_PROC, flags, select.KQ_NOTE_EXIT)
            try:
                queue.control([wanted], 0)
            except OSError:  # over already, or somebody else's
                yield None
            else:
                yield queue.fileno()
        finally:
            queue.close()

else:

    @contextmanager
    def _telling(pid: int) -> Generator[int | None]:
        """Hold open what becomes readable when a process ends; None where looking has to do."""
        try:
            descriptor = os.pidfd_open(pid)
        except (OSError, AttributeError):  # over already, no descriptors left, or a system without them
            yield None
            return
        try:
            yield descriptor
        finally:
            os.close(descriptor)


def _from_proc(pid: int, boot: str) -> Seen | None:
    data = _contents(f"/proc/{pid}/stat")
    name, bracket, rest = data.decode("utf-8", "replace").partition("(")[2].rpartition(")")
    fields = rest.split()
    if not bracket or len(fields) < 20:
        return None
    state, threads = fields[0], fields[17]
    if state in _GONE and int(threads) > 1:  # only its first thread is over
        state = "S"
    return Seen(parent=int(fields[1]), state=state, started=f"{boot}/{fields[19]}", name=name)


def _words(pid: int) -> tuple[str, ...]:
    if sys.platform != "linux":
        return _ps_words(pid)
    data = _contents(f"/proc/{pid}/cmdline")
    return tuple(word.decode("utf-8", "replace") for word in data.rstrip(b"\0").split(b"\0")) if data else ()


def _contents(path: str) -> bytes:
    try:
        with open(path, "rb") as file:
            return file.read()
    except OSError:  # it ended, or is none of our business
        return b""


def _boot_id() -> str:
    """What tells one start of the machine from another: start times are counted from it."""
    return _contents("/proc/sys/kernel/random/boot_id").decode("ascii", "replace").strip()[:8]


_PS_ENV: Mapping[str, str] = MappingProxyType({"LC_ALL": "C", "TZ": "UTC"})


def _from_ps(pid: int) -> Seen | None:
    said = _ps(pid, "ppid=,state=,lstart=,comm=").split(None, 7)
    if len(said) < 8:
        return None
    return Seen(parent=int(said[0]), state=said[1][0], started=" ".join(said[2:7]), name=said[7].strip())


def _ps_words(pid: int) -> tuple[str, ...]:
    return tuple(_ps(pid, "args=").split())


def _ps(pid: int, columns: str) -> str:
    try:
        ran = subprocess.run(
            ["/bin/ps", "-o", columns, "-p", str(pid)],
            capture_output=True,
            check=False,
            env=dict(_PS_ENV),
            timeout=_PS_SECONDS,
        )
    except (OSError, subprocess.SubprocessError):
        return ""
    return ran.stdout.decode("utf-8", "replace").strip()
