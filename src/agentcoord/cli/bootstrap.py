"""Installing the command and the PATH line, by files alone (spec: cli §15).

It runs in the process of whoever asks: what it writes are the caller's own files.
"""

import os
import stat
from collections.abc import Mapping

from msgspec import Struct

from agentcoord.cli.requests import BootstrapRequest
from agentcoord.errors import StoreError
from agentcoord.files import make_directories, replace_durably

NAME = "agent-coord"
_LEGACY = "agent_coord"
_MARK = b"# agent-coord bootstrap"
_SAFE = frozenset(b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-.,:+/@\n")


class Installed(Struct, frozen=True):
    """What was done: the installed command, the legacy one removed, the profile extended."""

    path: str
    legacy: str | None
    profile: str | None


def bootstrap(request: BootstrapRequest, env: Mapping[str, str], cwd: str, program: str) -> Installed:
    """Install a link to `program`, or a wrapper that also names a state root for reads.

    Raises StoreError for anything the system refuses.
    """
    try:
        return _bootstrap(request, env, cwd, program)
    except OSError as error:
        named = f": {error.filename}" if isinstance(error.filename, str) and error.filename else ""
        raise StoreError(f"bootstrap failed: {error.strerror or error}{named}") from error


def _bootstrap(request: BootstrapRequest, env: Mapping[str, str], cwd: str, program: str) -> Installed:
    home = env.get("HOME", "")
    directory = _place(request.install_dir, home, ".local/bin", cwd, "--install-dir")
    os.makedirs(directory, exist_ok=True)
    path = os.path.join(directory, NAME)
    if request.status_state_root is None:
        _link(program, path)
    else:
        root = os.path.join(cwd, request.status_state_root)
        _wrap(program, path, os.path.normpath(root))
    legacy = os.path.join(directory, _LEGACY)
    removed = _is_legacy(legacy, program)
    if removed:
        os.unlink(legacy)
    profile = None
    if not request.no_profile:
        default = ".zshrc" if env.get("SHELL", "").endswith("zsh") else ".bashrc"
        profile = _place(request.profile, home, default, cwd, "--profile")
        _extend(profile, b"export PATH=" + escape(os.fsencode(directory)) + b':"$PATH"')
    return Installed(path=path, legacy=legacy if removed else None, profile=profile)


def _place(given: str | None, home: str, default: str, cwd: str, option: str) -> str:
    if given is not None:
        if not given:
            raise StoreError(f"bootstrap failed: {option} must not be empty")
        return os.path.normpath(os.path.join(cwd, given))
    if not home.startswith("/"):
        raise StoreError(f"bootstrap failed: HOME is not an absolute path; set it or pass {option}")
    return os.path.join(home, default)


def _link(program: str, path: str) -> None:
    if os.path.abspath(path) == os.path.abspath(program):
        return  # the command is installed where it already is: a link to itself would destroy it
    temporary = f"{path}.tmp-{os.getpid()}"
    os.symlink(program, temporary)
    try:
        os.rename(temporary, path)
    except OSError:
        os.unlink(temporary)
        raise


def _wrap(program: str, path: str, root: str) -> None:
    if os.path.abspath(path) == os.path.abspath(program):
        raise OSError(f"the command itself is at {path}; pass another --install-dir")
    script = (
        b"#!/bin/sh\nexport AGENT_COORD_STATUS_STATE_ROOT="
        + escape(os.fsencode(root))
        + b"\nexec "
        + escape(os.fsencode(program))
        + b' "$@"\n'
    )
    if os.path.islink(path):
        os.unlink(path)
    replace_durably(path, script, mode=0o755)


def _is_legacy(path: str, program: str) -> bool:
    """Tell a forerunner of ours from somebody else's file of that name."""
    ours = os.path.join(os.path.dirname(program), _LEGACY)
    try:
        mode = os.lstat(path).st_mode
        if stat.S_ISLNK(mode):
            return os.path.realpath(path) == os.path.realpath(ours)
        if not stat.S_ISREG(mode):
            return False
        with open(path, "rb") as file:
            head = file.read(4096)
    except OSError:
        return False
    return head.startswith(b"#!") and b"sh" in head.split(b"\n", 1)[0] and os.fsencode(ours) in head


def escape(text: bytes) -> bytes:
    """Quote for a POSIX shell, one backslash for each unusual character, whatever the locale.

    Text that is UTF-8 is escaped by its characters, anything else by its bytes.
    """
    if not text:
        return b"''"
    try:
        units = [char.encode() for char in text.decode("utf-8")]
    except UnicodeDecodeError:
        units = [bytes([byte]) for byte in text]
    return b"".join(_quoted(unit) for unit in units)


def _quoted(unit: bytes) -> bytes:
    if unit == b"\n":
        return b"'\n'"
    return unit if len(unit) == 1 and unit[0] in _SAFE else b"\\" + unit


def _extend(profile: str, line: bytes) -> None:
    try:
        with open(profile, "rb") as file:
            text = file.read()
    except FileNotFoundError:
        text = b""
    if any(present.strip() == line for present in text.splitlines()):
        return
    make_directories(os.path.dirname(profile))
    # Appended rather than replaced: a profile is often a link into a repository of dotfiles.
    with open(profile, "ab") as file:
        file.write((b"\n" if text and not text.endswith(b"\n") else b"") + b"\n" + _MARK + b"\n" + line + b"\n")
