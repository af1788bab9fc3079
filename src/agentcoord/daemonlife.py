"""Starting and stopping the daemon of this machine: at most one, whoever asks and however many at once."""

import os
import select
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from typing import IO

from agentcoord.daemonlink import (
    Connection,
    Daemon,
    Env,
    NoDaemon,
    Place,
    Silent,
    absent,
    place_of,
    require_own,
    walled,
)
from agentcoord.errors import StoreError
from agentcoord.files import cause_of, release_lock, take_lock

START_WAIT = 20.0
"""Seconds until a daemon that was started has to answer."""
STOP_WAIT = 30.0
"""Seconds that a daemon has to end what it does."""

_LATE = 1.0
"""Seconds to go on looking once the process that was started has ended: another may have come first."""
_SHORTEST_PAUSE, _LONGEST_PAUSE = 0.005, 0.05
_NOT_FOR_THE_DAEMON = frozenset(
    {
        "AGENT_COORD_FENCE",
        "AGENT_COORD_SESSION_ID",
        "CODEX_THREAD_ID",
        "INVOCATION_ID",
        "JOURNAL_STREAM",
        "LISTEN_FDNAMES",
        "LISTEN_FDS",
        "LISTEN_PID",
        "NOTIFY_SOCKET",
        "WATCHDOG_PID",
        "WATCHDOG_USEC",
    }
)
"""What is about the caller alone: its session, its claim, and the service it may be a part of."""


def program() -> tuple[str, ...]:
    """Give the command that is the daemon, by the absolute path of this very installation."""
    python = sys.executable
    if not os.path.isabs(python):
        raise StoreError("where this Python is cannot be told, so the daemon cannot be started; run: agentcoordd run")
    beside = os.path.join(os.path.dirname(python), "agentcoordd")
    if os.access(beside, os.X_OK):
        return beside, "run"
    return python, "-P", "-m", "agentcoordd", "run"  # -P: a module of the working directory is not the daemon


def start_daemon(
    env: Env, *, asked: bool = False, wait: float = START_WAIT, launch: Callable[[], object] | None = None
) -> tuple[Daemon, bool]:
    """Give the daemon that runs and whether it was started here: by however many at once, one is.

    `asked` by a person, the mark of a stop is removed; else it is respected: NoDaemon. `launch` starts it
    in another way, such as by a service manager. Raises as `ask`.
    """
    place = place_of(env)
    end = time.monotonic() + wait
    _make(place)
    if place.stopped and not asked:
        raise absent(place)
    lock = _alone(place, wait)
    try:
        if asked:
            with suppress(FileNotFoundError):
                os.unlink(place.mark)
        elif place.stopped:
            raise absent(place)
        try:
            with Connection(env, max(end - time.monotonic(), 0.001)) as connection:
                return connection.daemon, False
        except NoDaemon:
            return _launched(env, end, launch), True
    finally:
        release_lock(lock)


def _make(place: Place) -> None:
    try:
        os.makedirs(place.directory, mode=0o700, exist_ok=True)
    except PermissionError as error:
        raise walled(place, error) from error
    except OSError as error:
        raise StoreError(
            f"the daemon has no place to listen: {place.directory}: {cause_of(error)}; set AGENT_COORD_RUNTIME_DIR"
        ) from error
    with suppress(NoDaemon):  # that there is no socket yet is why it is started
        require_own(place)


def _alone(place: Place, wait: float) -> int:
    """Be the one who starts it. The lock goes with its holder, so nobody waits for one that died."""
    try:
        return take_lock(os.path.join(place.directory, "start"), wait=wait)
    except PermissionError as error:
        raise walled(place, error) from error
    except OSError as error:
        raise StoreError(f"the daemon cannot be started from {place.directory}: {cause_of(error)}") from error


def _launched(env: Env, end: float, launch: Callable[[], object] | None) -> Daemon:
    import tempfile

    with tempfile.TemporaryFile() as said:
        ended = _started(env, said) if launch is None else _done(launch)
        return _ready(env, ended, said, end)


def _done(launch: Callable[[], object]) -> Callable[[float], bool]:
    launch()

    def ended(pause: float) -> bool:
        time.sleep(pause)  # there is no process of ours to wait for
        return False

    return ended


def _started(env: Env, said: IO[bytes]) -> Callable[[float], bool]:
    """Start the process; what is given waits for its end, at most so many seconds, and tells whether it came."""
    import subprocess

    command = program()
    try:
        process = subprocess.Popen(
            [*command, "--log-file"],  # who started it is soon gone, and nobody reads its stderr
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=said,
            cwd="/",  # no directory is kept from being removed or unmounted
            env={name: value for name, value in env.items() if name not in _NOT_FOR_THE_DAEMON},
            start_new_session=True,
        )
    except OSError as error:
        raise StoreError(f"the daemon cannot be started: {command[0]}: {cause_of(error)}") from error
    _STARTED.append(process)

    def ended(pause: float) -> bool:
        try:
            process.wait(pause)
        except subprocess.TimeoutExpired:
            return False
        return True

    return ended


_STARTED: list[object] = []
"""Daemons outlive the command that started them; forgotten, Python would complain that they were not waited for."""


def _ready(env: Env, ended: Callable[[float], bool], said: IO[bytes], end: float) -> Daemon:
    pause, over = _SHORTEST_PAUSE, False
    while True:
        try:
            with Connection(env, max(end - time.monotonic(), 0.001)) as connection:
                return connection.daemon
        except NoDaemon as error:
            if time.monotonic() >= end:
                said.seek(0)
                words = said.read(65536).decode("utf-8", "replace").strip().splitlines()
                why = words[-1] if words else "it ended without a word" if over else "it is not ready in time"
                raise StoreError(f"the daemon did not start: {why}") from error
        except Silent:  # hung up on, perhaps since it ends: it listens before it has looked at all that it needs
            if over or not ended(_LATE):
                raise
            over, end = True, min(end, time.monotonic() + _LATE)
        if over:
            time.sleep(pause)
        elif ended(pause):
            over, end = True, min(end, time.monotonic() + _LATE)
        pause = min(pause * 2, _LONGEST_PAUSE)


def stop_daemon(env: Env, *, mark: bool = True, wait: float = STOP_WAIT) -> Daemon | None:
    """End the daemon and wait until its process is gone; None if none ran. With `mark`, nobody starts it unasked.

    Raises as `ask`, Silent also for one that does not end in time.
    """
    place = place_of(env)
    if mark:
        _make(place)
        try:
            os.close(os.open(place.mark, os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600))
        except OSError as error:
            raise StoreError(f"the stop cannot be marked: {place.mark}: {cause_of(error)}") from error
    end = time.monotonic() + wait
    try:
        with Connection(env, wait, any_api=True) as connection:
            daemon = connection.daemon
            gone = _watched(daemon.pid)
            with suppress(Silent):  # it may be gone before its answer is
                connection.ask("daemon.stop", {"mark": mark})
    except NoDaemon:
        return None
    if not gone(end):
        raise Silent(f"the daemon has not ended within {wait:g} seconds; if it hangs, run: kill -9 {daemon.pid}")
    return daemon


def _watched(pid: int) -> Callable[[float], bool]:
    """Watch a process from now on; what is given waits for its end until an instant, and tells whether it came."""
    try:
        descriptor = os.pidfd_open(pid) if sys.platform == "linux" else -1
    except ProcessLookupError:
        return lambda end: True
    except OSError:  # a kernel or a sandbox without them
        descriptor = -1

    def gone(end: float) -> bool:
        if descriptor >= 0:
            poll = select.poll()
            poll.register(descriptor, select.POLLIN)
            try:
                return bool(poll.poll(max(end - time.monotonic(), 0) * 1000))
            finally:
                os.close(descriptor)
        while time.monotonic() < end:
            try:
                os.kill(pid, 0)
            except ProcessLookupError:
                return True
            time.sleep(_LONGEST_PAUSE)
        return False

    return gone
