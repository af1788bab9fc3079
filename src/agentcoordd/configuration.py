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

MAX_BYTES = 1 << 20
_NAME = "agentcoordd"


class Configuration(Struct, frozen=True, forbid_unknown_fields=True):
    """The settings file. `notify` is the command line of a program, absolute; None: none is run."""

    notify: list[str] | None = None
    serve_roots: list[str] = []
    concurrency: int = 16


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
    return found


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
