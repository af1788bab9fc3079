"""Putting the command where a shell finds it, by files alone (spec: cli §15).

It runs in the process of whoever asks: what it writes are the caller's own files.
"""

import os
import re
import stat
import sys
from collections.abc import Mapping
from contextlib import suppress

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
    """Install a link to the command that runs as `program`, or a wrapper that also names a state root for reads.

    Raises StoreError for anything the system refuses.
    """
    try:
        return _bootstrap(request, env, cwd, program)
    except OSError as error:
        named = f": {error.filename}" if isinstance(error.filename, str) and error.filename else ""
        raise StoreError(f"bootstrap failed: {error.strerror or error}{named}") from error


def _bootstrap(request: BootstrapRequest, env: Mapping[str, str], cwd: str, program: str) -> Installed:
    # Whatever can be wrong with the invocation is found before anything is written.
    command = _command(program)
    home = env.get("HOME", "")
    directory = _place(request.install_dir, home, ".local/bin", cwd, "--install-dir")
    root = request.status_state_root
    if root is not None:
        root = _absolute(root, cwd, "--status-state-root")
    profile = None
    if not request.no_profile:
        default = ".zshrc" if env.get("SHELL", "").endswith("zsh") else ".bashrc"
        profile = _place(request.profile, home, default, cwd, "--profile")
    os.makedirs(directory, exist_ok=True)
    path = os.path.join(directory, NAME)
    _install(command, path, root)
    legacy = os.path.join(directory, _LEGACY)
    removed = _is_legacy(legacy, command)
    if removed:
        os.unlink(legacy)
    if profile is not None:
        _extend(profile, b"export PATH=" + escape(os.fsencode(directory)) + b':"$PATH"')
    return Installed(path=path, legacy=legacy if removed else None, profile=profile)


def _command(program: str) -> str:
    """Give the command's own file, past any link that an earlier run installed.

    `python -m agentcoord` runs a module that nothing can execute by its name: the command is then
    the script beside that Python.
    """
    beside = os.path.join(os.path.dirname(sys.executable), NAME) if sys.executable else program
    for candidate in (program, beside):
        path = os.path.realpath(candidate)
        # Some file systems call every file executable.
        if os.path.basename(path) != "__main__.py" and os.path.isfile(path) and os.access(path, os.X_OK):
            return path
    raise StoreError(
        f"bootstrap failed: {program} cannot be run by its name, and there is no executable {beside}; "
        f"install the package with pip, and run `agent-coord bootstrap`"
    )


def _place(given: str | None, home: str, default: str, cwd: str, option: str) -> str:
    if given is not None:
        return _absolute(given, cwd, option)
    if not home.startswith("/"):
        raise StoreError(f"bootstrap failed: HOME is not an absolute path; set it or pass {option}")
    return os.path.join(home, default)


def _absolute(given: str, cwd: str, option: str) -> str:
    if not given:
        raise StoreError(f"bootstrap failed: {option} must not be empty")
    path = os.path.join(cwd, given)
    if not os.path.isabs(path):
        raise StoreError(f"bootstrap failed: the working directory is gone; pass an absolute path to {option}")
    return os.path.normpath(path)


def _install(command: str, path: str, root: str | None) -> None:
    if _is_itself(path, command):
        if root is None:
            return  # the command is installed where it already is: a link to itself would destroy it
        raise StoreError(f"bootstrap failed: {path} is the command itself; pass another --install-dir")
    # Made beside what is there and moved over it: there is a working command at every moment.
    temporary = f"{path}.tmp-{os.getpid()}-{os.urandom(4).hex()}"
    try:
        if root is None:
            os.symlink(command, temporary)
        else:
            replace_durably(temporary, _wrapper(command, root), mode=0o755)
        os.rename(temporary, path)
    except OSError as error:
        raise OSError(error.errno, error.strerror, path) from error
    finally:
        with suppress(OSError):
            os.unlink(temporary)


def _is_itself(path: str, command: str) -> bool:
    """Tell whether `path` is the command's own file, by whatever directory; a link to it is not."""
    try:
        return os.path.samestat(os.lstat(path), os.stat(command))
    except FileNotFoundError:
        return False


def _wrapper(command: str, root: str) -> bytes:
    variable = b"AGENT_COORD_STATUS_STATE_ROOT=" + escape(os.fsencode(root))
    return b"#!/bin/sh\nexport " + variable + b"\nexec " + escape(os.fsencode(command)) + b' "$@"\n'


def _is_legacy(path: str, command: str) -> bool:
    """Tell a forerunner of ours from somebody else's file of that name."""
    ours = os.path.join(os.path.dirname(command), _LEGACY)
    if _entry(path) == ours:
        return False  # not a way to the forerunner but the forerunner itself
    try:
        mode = os.lstat(path).st_mode
        if stat.S_ISLNK(mode):
            # Where it leads at once: whether there is anything, or a link to go on from, says nothing of whose it is.
            return _entry(os.path.join(os.path.dirname(path), os.readlink(path))) == ours
        if not stat.S_ISREG(mode):
            return False
        with open(path, "rb") as file:
            head = file.read(4096)
    except OSError:
        return False
    return _is_sh(head) and _mentions(head, os.fsencode(ours))


def _entry(path: str) -> str:
    """Give the one name of a directory's entry, whatever the entry is."""
    directory, name = os.path.split(path)
    return os.path.join(os.path.realpath(directory), name)


def _is_sh(head: bytes) -> bool:
    first = head.split(b"\n", 1)[0]
    words = [os.path.basename(word) for word in first[2:].split()]
    return first.startswith(b"#!") and (words[:1] == [b"sh"] or words[:2] == [b"env", b"sh"])


def _mentions(text: bytes, path: bytes) -> bool:
    """Tell whether the path stands in a script, quoted or not, and not as a part of a longer one."""
    forms = b"|".join(re.escape(form) for form in (path, escape(path)))
    return re.search(rb"(?<![\w./\x80-\xff-])(?:" + forms + rb")(?![\w./\x80-\xff-])", text) is not None


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
    if re.search(rb"(?m)^[ \t\r\f\v]*" + re.escape(line) + rb"[ \t\r\f\v]*$", text):
        return
    # Appended rather than replaced: a profile is often a link into a repository of dotfiles.
    make_directories(os.path.dirname(os.path.realpath(profile)))
    with open(profile, "ab") as file:
        file.write((b"\n" if text and not text.endswith(b"\n") else b"") + b"\n" + _MARK + b"\n" + line + b"\n")
