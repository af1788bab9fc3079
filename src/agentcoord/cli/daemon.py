"""`daemon`: the life of the daemon, as the person at the keyboard asks for it."""

import os
from collections.abc import Iterator
from datetime import datetime
from typing import cast

from agentcoord.cli import services
from agentcoord.cli.app import request_of
from agentcoord.cli.leases import lanes_of, line_of
from agentcoord.cli.options import Words
from agentcoord.cli.output import Invocation, Output
from agentcoord.cli.requests import LogsRequest
from agentcoord.daemonlife import start_daemon, stop_daemon
from agentcoord.daemonlink import Daemon, Declined, NoDaemon, ask, place_of
from agentcoord.errors import StoreError
from agentcoord.files import cause_of
from agentcoord.protocol.documents import Document, encode_pretty, is_document
from agentcoord.protocol.instants import parse
from agentcoord.settings.environment import Env

NOT_RUNNING = 3
"""How `daemon status` ends when there is none: a definite answer, as service managers give it."""

_FIRST = ("version", "pid", "started_at", "uptime", "uptime_seconds")
_SHOWN = ("lanes", "leases", "socket")
"""What is shown anyway."""
_EVENT = ("at", "message")
_MOST_OF_LOG = 4 * 1024 * 1024


def perform(words: Words, invocation: Invocation, output: Output) -> None:
    """Do what one of the words asks for. Raises CoordError."""
    env, json = invocation.env, words.flag("json")
    match words.command.removeprefix("daemon "):
        case "start":
            _started(*_start(env), output, json=json)
        case "stop":
            _stopped(stop_daemon(env), output, json=json)
        case "restart":
            stop_daemon(env, mark=False)
            _started(*_start(env), output, json=json)
        case "status":
            status(invocation, output, json=json)
        case "logs":
            logs(request_of(words), env, output)
        case "install":
            services.install(env, output, dry_run=words.flag("dry_run"))
        case _:
            services.uninstall(env, output, dry_run=words.flag("dry_run"))


def _start(env: Env) -> tuple[Daemon, bool]:
    """Start it as what starts it at the next log-in would, if that is installed."""
    return start_daemon(env, asked=True, launch=services.launcher(env))


def _started(daemon: Daemon, new: bool, output: Output, *, json: bool) -> None:
    if json:
        output.add(encode_pretty({"running": True, "started": new, "pid": daemon.pid, "version": daemon.version}))
    else:
        output.say(f"{'started' if new else 'running already'}: agentcoordd {daemon.version}, process {daemon.pid}")


def _stopped(daemon: Daemon | None, output: Output, *, json: bool) -> None:
    if json:
        output.add(encode_pretty({"running": False, "stopped": daemon is not None}))
    elif daemon is None:
        output.say("no daemon was running; none is started until agent-coord daemon start")
    else:
        output.say(f"stopped process {daemon.pid}; no daemon is started until agent-coord daemon start")


# What it does ----------------------------------------------------------------------------------------


def status(invocation: Invocation, output: Output, *, json: bool) -> None:
    """Show what the daemon says of itself and what it keeps. Raises StoreError for one that does not answer."""
    place = place_of(invocation.env)
    try:
        said = ask(invocation.env, "daemon.status", {})
        lanes, unlisted = _lanes(invocation.env)
    except NoDaemon:
        output.exit = NOT_RUNNING
        if json:
            output.add(encode_pretty({"running": False, "socket": place.socket, "stopped": place.stopped}))
        else:
            output.say("agent-coord daemon")
            output.say(f"running: no{', it was stopped' if place.stopped else ''}")
            output.say(f"socket: {place.socket}")
        return
    if json:
        facts = {"running": True, "socket": place.socket, "daemon": said, "lanes": lanes}
        output.add(encode_pretty(facts))
        return
    output.say("agent-coord daemon")
    output.say("running: yes")
    output.say(f"socket: {place.socket}")
    for line in shown(said, invocation.now()):
        output.say(line)
    output.say("lanes")
    for line in map(line_of, lanes or ()):
        output.say(f"- {line}")
    if not lanes:
        output.say("- none" if unlisted is None else f"- unknown: {unlisted}")


def _lanes(env: Env) -> tuple[list[Document] | None, Declined | None]:
    """Ask for what is kept; a daemon that cannot list it has more to say of itself."""
    try:
        return lanes_of(env), None
    except Declined as error:
        return None, error


def shown(said: Document, now: datetime) -> Iterator[str]:
    """Show whatever the daemon says of itself, also what this version does not know of: single facts, then lists."""
    said = {name: value for name, value in said.items() if name not in _SHOWN}
    begun = parse(said.get("started_at"))
    if begun is not None and not {"uptime", "uptime_seconds"} & said.keys():
        said["uptime"] = _duration((now - begun).total_seconds())
    order = [name for name in _FIRST if name in said]
    order += [name for name in said if name not in _FIRST]
    for name in order:
        if (fact := _fact(name, said[name])) is not None:
            yield f"{name.removesuffix('_seconds').removesuffix('_bytes')}: {fact}"
    for name in order:
        value = said[name]
        if _fact(name, value) is None:
            yield name
            yield from _listed(value)


def _fact(name: str, value: object) -> str | None:
    """Put a single fact in words; None for what is none."""
    if is_document(value):
        limits = [key for key in ("limit", "most") if key in value]
        if len(value) == 2 and limits:
            (used,) = (key for key in value if key != limits[0])
            if value[limits[0]] is None:
                return _word(name, value[used])
            return f"{_word(name, value[used])} of {_word(name, value[limits[0]])}"
        return None
    return None if isinstance(value, list) else _word(name, value)


def _word(name: str, value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int | float):
        if "uptime" in name:
            return _duration(value)
        if "bytes" in name or "memory" in name:
            return f"{value / (1 << 20):.1f} MiB"
    return "-" if value is None or value == "" else str(value)


def _listed(value: object) -> Iterator[str]:
    if is_document(value):
        for name, part in value.items():
            fact = _fact(name, part)
            yield f"- {name}: {fact if fact is not None else _line(part)}"
        if not value:
            yield "- none"
        return
    items = cast("list[object]", value)
    for item in items:
        yield f"- {_line(item)}"
    if not items:
        yield "- none"


def _line(value: object) -> str:
    if is_document(value):
        if tuple(value) == _EVENT:
            return f"{value['at']} {value['message']}"
        return ", ".join(f"{name} {_line(part)}" for name, part in value.items() if part is not None)
    if isinstance(value, list):
        return " ".join(_line(part) for part in cast("list[object]", value))
    return _word("", value)


def _duration(seconds: float) -> str:
    left = max(int(seconds), 0)
    days, left = divmod(left, 86400)
    hours, left = divmod(left, 3600)
    minutes, left = divmod(left, 60)
    parts = [(days, "d"), (hours, "h"), (minutes, "m"), (left, "s")]
    first = next((number for number, (amount, _) in enumerate(parts) if amount), 3)
    return " ".join(f"{amount}{unit}" for amount, unit in parts[first : first + 2])


# What it wrote down ----------------------------------------------------------------------------------


def log_file(env: Env) -> str:
    """Name the file the daemon writes its log into when no service manager takes it. Raises StoreError."""
    state = env.get("XDG_STATE_HOME", "")
    if not state.startswith("/"):
        home = env.get("HOME", "")
        if not home.startswith("/"):
            raise StoreError("there is no log to look for: neither XDG_STATE_HOME nor HOME is an absolute path")
        state = os.path.join(home, ".local/state")
    return os.path.join(state, "agentcoordd/daemon.log")


def logs(request: LogsRequest, env: Env, output: Output) -> None:
    """Show the log: the journal of the installed unit, else the file. Raises StoreError where there is neither."""
    if (journal := services.journal(env, request.lines, follow=request.follow)) is not None:
        output.answer = journal
        return
    path = log_file(env)
    try:
        last = _last(path, request.lines)
    except FileNotFoundError:
        raise StoreError(f"there is no log yet: {path}; agent-coord daemon start starts the daemon") from None
    except OSError as error:
        raise StoreError(f"the log cannot be read: {path}: {cause_of(error)}") from error
    output.answer = _followed(path, last) if request.follow else [last[0]]


def _last(path: str, lines: int) -> tuple[bytes, int, int]:
    """Read the last lines of a file; also gives which file it was, and how far it was read."""
    with open(path, "rb") as file:
        size = file.seek(0, os.SEEK_END)
        start = file.seek(max(size - _MOST_OF_LOG, 0))
        data = file.read(size - start)
        whole = data.split(b"\n") if start == 0 else data.split(b"\n")[1:]
        if whole[-1:] == [b""]:
            whole.pop()
        text = b"".join(line + b"\n" for line in whole[-lines:])
        return text, os.fstat(file.fileno()).st_ino, size


def _followed(path: str, last: tuple[bytes, int, int]) -> Iterator[bytes]:
    """Go on as the file grows, and with the next file once it is rotated, until whoever reads has enough."""
    import time

    text, inode, at = last
    yield text
    while True:
        time.sleep(0.2)
        try:
            with open(path, "rb") as file:
                found = os.fstat(file.fileno())
                if found.st_ino != inode or found.st_size < at:
                    inode, at = found.st_ino, 0
                file.seek(at)
                while part := file.read(65536):
                    at += len(part)
                    yield part
        except OSError:
            continue  # between one file and the next
