"""The daemon as a service of the person's own session: a systemd user unit, or a launch agent.

All of it is done by the caller's process with the caller's rights, never by the daemon. The programs of the
service manager are looked for as the person's own shell would.
"""

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from xml.sax.saxutils import escape

from msgspec import Struct

from agentcoord import daemonlife
from agentcoord.cli.output import Output
from agentcoord.daemonlink import place_of
from agentcoord.errors import CoordError, StoreError
from agentcoord.files import cause_of, make_directories, printable, remove_durably, replace_durably, shell_line
from agentcoord.settings.environment import ENV_FILE, STATE_ROOT, STATUS_STATE_ROOT
from agentcoord.wire import RUNTIME_DIRECTORY

UNIT = "agentcoordd.service"
LABEL = "com.agent-coord.agentcoordd"

PROGRAM = "__AGENTCOORDD__"
"""What stands in a template in the place of the daemon's program."""
MARK = "agent-coord daemon: a "
"""What every file of ours begins with, so that another's is not taken for one."""

MANAGER_WAIT = 60.0
"""Seconds for one answer of a service manager."""

_PASSED_ON = (RUNTIME_DIRECTORY, ENV_FILE, STATE_ROOT, STATUS_STATE_ROOT, "XDG_CONFIG_HOME", "XDG_STATE_HOME")
"""Where things are, which a service does not get from a shell's profile. Never a token or an address."""
_LINGERING = "/var/lib/systemd/linger"

Env = Mapping[str, str]


class Service(Struct, frozen=True):
    """One kind of service manager: its program, where its file goes, and what it is told."""

    manager: str
    file: str
    template: str
    before: tuple[tuple[str, ...], ...]
    """Said once the file is there."""
    start: tuple[str, ...]
    leave: tuple[tuple[str, ...], ...]
    """Said before the file goes."""
    after: tuple[tuple[str, ...], ...]
    """Said once it is gone."""


def service_of(env: Env) -> Service:
    """Tell how a service is made on this system. Raises StoreError where no home is known."""
    home = env.get("HOME", "")
    if not home.startswith("/"):
        raise StoreError("HOME is not an absolute path, so there is no place for a service of yours; set it")
    if sys.platform == "darwin":
        file = os.path.join(home, "Library/LaunchAgents", f"{LABEL}.plist")
        domain = f"gui/{os.geteuid()}"
        return Service(
            manager="launchctl",
            file=file,
            template=f"launchd/{LABEL}.plist",
            before=(("enable", f"{domain}/{LABEL}"),),
            start=("bootstrap", domain, file),
            leave=(("bootout", f"{domain}/{LABEL}"),),
            after=(),
        )
    config = env.get("XDG_CONFIG_HOME", "")
    config = config if config.startswith("/") else os.path.join(home, ".config")
    return Service(
        manager="systemctl",
        file=os.path.join(config, "systemd/user", UNIT),
        template=f"systemd/{UNIT}",
        before=(("--user", "daemon-reload"), ("--user", "enable", UNIT)),
        start=("--user", "start", UNIT),
        leave=(("--user", "disable", "--now", UNIT),),
        after=(("--user", "daemon-reload"),),
    )


def installed(env: Env) -> str | None:
    """Give the file of the installed service; None where there is none of ours."""
    try:
        file = service_of(env).file
        with open(file, encoding="utf-8", errors="replace") as opened:
            return file if MARK in opened.read(4096) else None
    except (CoordError, OSError):
        return None


def installed_program(file: str) -> str | None:
    """Read which program an installed service starts; None where that cannot be read."""
    try:
        with open(file, "rb") as opened:
            data = opened.read(65536)
        if file.endswith(".plist"):
            import plistlib

            return plistlib.loads(data)["ProgramArguments"][0]
        line = next(line for line in data.decode().splitlines() if line.startswith("ExecStart="))
    except (OSError, ValueError, LookupError, TypeError, StopIteration):
        return None
    value = line.removeprefix("ExecStart=")
    if not value.startswith('"'):
        return value.split(" ")[0].replace("%%", "%")
    letters: list[str] = []
    rest = iter(value[1:])
    for letter in rest:
        if letter == '"':
            break
        letters.append(next(rest, "") if letter == "\\" else letter)
    return "".join(letters).replace("%%", "%")


def lingers(env: Env) -> bool | None:
    """Tell whether services of this user run while nobody is logged in; None where that cannot be told."""
    if sys.platform != "linux" or not os.path.isdir(os.path.dirname(_LINGERING)):
        return None
    import pwd

    try:
        return os.path.exists(os.path.join(_LINGERING, pwd.getpwuid(os.geteuid()).pw_name))
    except KeyError:
        return None


# The file ------------------------------------------------------------------------------------------


def filled(service: Service, command: tuple[str, ...], env: Env) -> str:
    """Give the file of the service for a program and an environment. Raises StoreError for what it cannot hold."""
    template = _template(service.template)
    passed = {name: value for name in _PASSED_ON if (value := env.get(name))}
    for word in (*command, *passed.values()):
        if not word.isprintable():
            raise StoreError(f"a service's file cannot name {printable(ascii(word))}; nothing was written")
    if service.template.endswith(".plist"):
        words = "\n    ".join(f"<string>{escape(word)}</string>" for word in command)
        text = template.replace(f"<string>{PROGRAM}</string>\n    <string>run</string>", words)
        if passed:
            pairs = "".join(
                f"    <key>{name}</key>\n    <string>{escape(value)}</string>\n" for name, value in passed.items()
            )
            at = text.rindex("</dict>\n</plist>")
            text = f"{text[:at]}  <key>EnvironmentVariables</key>\n  <dict>\n{pairs}  </dict>\n{text[at:]}"
        return text
    if set(command[0]) & set("\\\"'"):
        raise StoreError(f"systemd starts no program of such a name: {command[0]}; install the package elsewhere")
    text = template.replace(f"{PROGRAM} run", " ".join(_quoted(word) for word in command))
    lines = "".join(f"Environment={_quoted(f'{name}={value}')}\n" for name, value in passed.items())
    return text.replace("ExecStart=", f"{lines}ExecStart=", 1)


def _quoted(word: str) -> str:
    """Spell a word as systemd reads it as this very word."""
    spelled = word.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%")
    return spelled if spelled == word and " " not in word and "'" not in word else f'"{spelled}"'


def _template(name: str) -> str:
    """Read a template: shipped inside the package, in a checkout beside it."""
    package = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    places = [
        os.path.join(package, "services", os.path.basename(name)),
        os.path.join(os.path.dirname(os.path.dirname(package)), name),
    ]
    for place in places:
        with suppress(FileNotFoundError), open(place, encoding="utf-8") as file:
            return file.read()
    raise StoreError(f"{os.path.basename(name)} is missing from this installation; install the package again")


# Doing it ------------------------------------------------------------------------------------------


def install(env: Env, output: Output, *, dry_run: bool) -> None:
    """Write the file, enable the service and start it in the place of a daemon that runs. Raises StoreError."""
    service = service_of(env)
    text = filled(service, daemonlife.program(), env)
    if dry_run:
        output.say(f"would write {service.file}:")
        output.page(text.rstrip("\n"))
        for words in (*service.before, service.start):
            output.say(f"would run: {_shown(service, words)}")
        return
    manager = _manager(service, env)
    _require_ours(service.file)
    before = _read(service.file)
    try:
        make_directories(os.path.dirname(service.file))
        replace_durably(service.file, text.encode(), mode=0o644)
    except OSError as error:
        raise StoreError(f"cannot write {service.file}: {cause_of(error)}") from error
    try:
        for words in service.before:
            _tell(manager, words, env)
    except StoreError as error:
        _put_back(service.file, before)
        raise StoreError(f"{error}; nothing was installed; agent-coord daemon start needs no service") from error
    output.say(f"installed {service.file}")
    daemonlife.stop_daemon(env, mark=False)  # one that was started by hand would keep the service from running
    with suppress(FileNotFoundError):
        os.unlink(place_of(env).mark)
    if service.manager == "launchctl":
        with suppress(StoreError):  # it is not loaded, as a rule
            _tell(manager, service.leave[0], env)
    _tell(manager, service.start, env)
    output.say("enabled and started: the daemon starts when you log in")
    if lingers(env) is False:
        output.say("it ends when you log out, and so do leases of agents that go on; to change that: ")
        output.say("  loginctl enable-linger")


def uninstall(env: Env, output: Output, *, dry_run: bool) -> None:
    """Stop and disable the service and remove its file. Raises StoreError."""
    service = service_of(env)
    if not os.path.lexists(service.file):
        output.say(f"nothing is installed: there is no {service.file}")
        return
    _require_ours(service.file)
    if dry_run:
        for words in service.leave:
            output.say(f"would run: {_shown(service, words)}")
        output.say(f"would remove {service.file}")
        for words in service.after:
            output.say(f"would run: {_shown(service, words)}")
        return
    manager = _manager(service, env)
    for words in service.leave:
        try:
            _tell(manager, words, env)
        except StoreError as error:  # what is not loaded cannot be unloaded; the file goes all the same
            output.stderr.append(f"warning: {error}")
    try:
        remove_durably(service.file)
    except OSError as error:
        raise StoreError(f"cannot remove {service.file}: {cause_of(error)}") from error
    for words in service.after:
        with suppress(StoreError):
            _tell(manager, words, env)
    output.say(f"removed {service.file}")


def launcher(env: Env) -> Callable[[], object] | None:
    """Give what starts the installed service; None where none is installed or its manager is not here."""
    if installed(env) is None:
        return None
    service = service_of(env)
    try:
        manager = _manager(service, env)
    except StoreError:
        return None
    words = service.start
    if service.manager == "launchctl":
        words = ("kickstart", f"gui/{os.geteuid()}/{LABEL}")
    return lambda: _tell(manager, words, env)


def journal(env: Env, lines: int, *, follow: bool) -> Iterator[bytes] | None:
    """Give the journal of the installed unit as it is read; None where there is no such unit or no journal."""
    reader = shutil.which("journalctl", path=env.get("PATH"))
    if sys.platform != "linux" or reader is None or installed(env) is None:
        return None
    command = [reader, "--user", "--unit", UNIT, "--lines", str(lines), "--no-pager"]
    return _read_from([*command, "--follow"] if follow else command, env)


def _read_from(command: list[str], env: Env) -> Iterator[bytes]:
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, env=dict(env))
    try:
        while process.stdout is not None and (part := os.read(process.stdout.fileno(), 65536)):
            yield part
    finally:
        process.terminate()
        process.communicate()


def _manager(service: Service, env: Env) -> str:
    found = shutil.which(service.manager, path=env.get("PATH"))
    if found is None:
        run = shell_line(*daemonlife.program()) or "agentcoordd run"
        raise StoreError(
            f"there is no {service.manager} on this machine, so nothing was changed; "
            f"have your own service manager run: {run}"
        )
    return os.path.abspath(found)


def _tell(manager: str, words: tuple[str, ...], env: Env) -> None:
    name = os.path.basename(manager)
    try:
        ran = subprocess.run(
            [manager, *words],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            check=False,
            env=dict(env),
            timeout=MANAGER_WAIT,
        )
    except subprocess.TimeoutExpired as error:
        raise StoreError(f"{name} {' '.join(words)} did not end within {MANAGER_WAIT:g} seconds") from error
    except OSError as error:
        raise StoreError(f"{manager} cannot be run: {cause_of(error)}") from error
    if ran.returncode:
        said = ran.stderr.decode("utf-8", "replace").strip().splitlines()
        raise StoreError(f"{name} {' '.join(words)} failed: {said[-1] if said else f'exit status {ran.returncode}'}")


def _shown(service: Service, words: tuple[str, ...]) -> str:
    return " ".join((service.manager, *words))


def _require_ours(file: str) -> None:
    try:
        if os.path.islink(file):
            raise StoreError(f"{file} is a link, which was not put there by this command; remove it first")
        text = _read(file)
    except OSError as error:
        raise StoreError(f"cannot read {file}: {cause_of(error)}") from error
    if text is not None and MARK.encode() not in text[:4096]:
        raise StoreError(f"{file} is not ours; move it away first")


def _read(file: str) -> bytes | None:
    try:
        with open(file, "rb") as opened:
            return opened.read()
    except FileNotFoundError:
        return None


def _put_back(file: str, before: bytes | None) -> None:
    with suppress(OSError):
        if before is None:
            os.unlink(file)
        else:
            replace_durably(file, before, mode=0o644)
