"""The daemon's own files: where they lie, and the settings file that nobody else reads.

The user file refuses keys it does not know, so what only the daemon wants to know stands here.
"""

import os
import stat
from collections.abc import Mapping

import msgspec
from msgspec import Struct

from agentcoord.errors import ConfigError, StoreError
from agentcoord.files import cause_of
from agentcoord.protocol.records import ARCHIVE_DAYS, HOT_DAYS, SYNTHETIC_HOT_DAYS

MAX_BYTES = 1 << 20

_LONGEST = 366 * 24 * 60 * 60
"""Seconds: what is further away than the calendar reaches could not be shown."""
LEAST = {"mirror.seconds": 0.01, "mirror.remote_seconds": 1.0, "gc.seconds": 1.0}
"""Seconds of each interval at least: less is a slip, such as of the unit, and would be work without a pause."""
_NAME = "agentcoordd"


class Mirroring(Struct, frozen=True, forbid_unknown_fields=True):
    """Whether mirrors are kept, how many seconds apart syncs by change are, and how often a server is asked.

    `remote_seconds` None: a server is not.
    """

    on: bool = True
    seconds: float = 5.0
    remote_seconds: float | None = 900.0


class Replicating(Struct, frozen=True, forbid_unknown_fields=True):
    """Whether copies of servers are kept, and how many MiB their file may hold."""

    on: bool = True
    megabytes: int = 1024


class Schedule(Struct, frozen=True, forbid_unknown_fields=True):
    """Seconds from one round of retention to the next, and its windows in days; on servers only with `remote`."""

    seconds: float
    hot_days: int = HOT_DAYS
    archive_days: int = ARCHIVE_DAYS
    synthetic_hot_days: int = SYNTHETIC_HOT_DAYS
    remote: bool = False


class Configuration(Struct, frozen=True, forbid_unknown_fields=True):
    """The settings file. `notify` is the command line of a program, absolute; without it none is run.

    Without `gc` there are no rounds of retention.
    """

    notify: list[str] | None = None
    serve_roots: list[str] = []
    concurrency: int = 16
    mirror: Mirroring = Mirroring()
    gc: Schedule | None = None
    replica: Replicating = Replicating()


def load_configuration(env: Mapping[str, str], uid: int) -> Configuration:
    """Read the settings file; without one everything has its default. Raises ConfigError."""
    base = _base(env, "XDG_CONFIG_HOME", ".config")
    if base is None:
        return Configuration()
    path = f"{base}/{_NAME}/config.json"
    try:
        data = _private(path, uid)
    except FileNotFoundError:
        return Configuration()
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {cause_of(error)}") from error
    try:
        found = msgspec.json.decode(data, type=Configuration)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} is not the daemon's configuration: {error}") from error
    for root in found.serve_roots:
        if not root.startswith("/"):
            raise ConfigError(f"{path}: serve_roots holds {root!r}, which is not absolute")
    if found.notify is not None and not (found.notify and found.notify[0].startswith("/")):
        raise ConfigError(f"{path}: notify has to begin with the absolute path of a program")
    if found.concurrency < 1:
        raise ConfigError(f"{path}: concurrency is at least 1")
    if found.replica.megabytes < 1:
        raise ConfigError(f"{path}: replica.megabytes is at least 1")
    _require_times(found, path)
    return found


def _require_times(found: Configuration, path: str) -> None:
    """Check what is counted in seconds and days. Raises ConfigError."""
    times = {"mirror.seconds": found.mirror.seconds, "mirror.remote_seconds": found.mirror.remote_seconds}
    days: dict[str, int] = {}
    if (gc := found.gc) is not None:
        times["gc.seconds"] = gc.seconds
        days = {f"gc.{name}": getattr(gc, name) for name in ("hot_days", "archive_days", "synthetic_hot_days")}
    for name, seconds in times.items():
        if seconds is not None and not LEAST[name] <= seconds <= _LONGEST:
            raise ConfigError(f"{path}: {name} has to be from {LEAST[name]:g} to {_LONGEST} seconds")
    for name, number in days.items():
        if number < 0:
            raise ConfigError(f"{path}: {name} has to be zero days or more")


def state_directory(env: Mapping[str, str], uid: int) -> str:
    """Give the directory of database and log, made if it is missing. Raises StoreError."""
    base = _base(env, "XDG_STATE_HOME", ".local/state")
    if base is None:
        raise StoreError("the daemon has no place for its files; set XDG_STATE_HOME or HOME to an absolute path")
    path = f"{base}/{_NAME}"
    try:
        os.makedirs(path, mode=0o700, exist_ok=True)
        found = os.lstat(path)
    except OSError as error:
        raise StoreError(f"cannot use the daemon's directory {path}: {cause_of(error)}") from error
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != uid or found.st_mode & 0o077:
        raise StoreError(f"the daemon's directory {path} has to be a directory of user {uid}, closed to others: 0700")
    return path


def _base(env: Mapping[str, str], variable: str, below: str) -> str | None:
    if (named := env.get(variable, "")).startswith("/"):
        return named
    home = env.get("HOME", "")
    return f"{home}/{below}" if home.startswith("/") else None


def _private(path: str, uid: int) -> bytes:
    """Read a file that only its owner can have written. Raises OSError, ConfigError."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    with open(descriptor, "rb") as file:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode) or found.st_uid != uid or found.st_mode & 0o022:
            raise ConfigError(f"{path} has to be a file of user {uid} that nobody else can write")
        data = file.read(MAX_BYTES + 1)
    if len(data) > MAX_BYTES:
        raise ConfigError(f"{path} is larger than {MAX_BYTES} bytes")
    return data
