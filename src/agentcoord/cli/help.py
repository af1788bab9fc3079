"""Help, made from the tables of commands and options."""

from agentcoord.cli.commands import BY_COMMAND, COMMANDS, GROUPS, Command
from agentcoord.cli.options import BACKEND, WITH_TAIL, Option
from agentcoord.cli.requests import DEFAULT_STATUS, LOG_LINES, WATCH_INTERVAL
from agentcoord.protocol.closeout import DEFAULT_WORKSPACE
from agentcoord.protocol.records import ARCHIVE_DAYS, CLAIM_TTL, HEARTBEAT_TTL, HOT_DAYS, SYNTHETIC_HOT_DAYS
from agentcoord.settings.selection import Role, role_of

_EXITS = "exit status: 0 done, 1 usage, 2 state unknown, 3 claim refused, 64 usage of doctor --stack-json"
_WITH_WORD = (*WITH_TAIL, "completion", "lease drop", "outbox drop")
"""Commands that do nothing without what follows them."""
_DEFAULTS: dict[tuple[str, str], object] = {
    ("claim", "ttl"): CLAIM_TTL,
    ("run", "ttl"): CLAIM_TTL,
    ("heartbeat", "ttl"): HEARTBEAT_TTL,
    ("lease hold", "ttl"): HEARTBEAT_TTL,
    ("heartbeat", "status"): DEFAULT_STATUS,
    ("run", "on-exit"): "release",
    ("release", "workspace"): DEFAULT_WORKSPACE,
    ("record-event", "workspace"): DEFAULT_WORKSPACE,
    ("attention", "workspace"): "all of them",
    ("gc", "hot-days"): HOT_DAYS,
    ("gc", "archive-days"): ARCHIVE_DAYS,
    ("gc", "synthetic-hot-days"): SYNTHETIC_HOT_DAYS,
    ("log", "format"): "text",
    ("daemon logs", "limit"): LOG_LINES,
    ("watch", "interval"): WATCH_INTERVAL,
}
"""What an option is when it is not given, where that is another thing for each command."""
_CALLED = {"config set": "config-set"}


def main_help() -> str:
    """Give the overview: every command, and the options they share."""
    rows = [(command.name, _summary(command)) for command in COMMANDS if not command.hidden]
    lines = ["Usage: agent-coord <command> [options]", "", "Commands:", *_table(rows), "", "Common options:"]
    lines += _table([(_spelled(option), option.text) for option in BACKEND] + [("-h, --help", "Show this help")])
    lines += ["", "agent-coord <command> --help explains one command.", _EXITS]
    return "\n".join(lines)


def command_help(name: str) -> str:
    """Give one command's purpose and options."""
    command = BY_COMMAND[name]
    words = GROUPS.get(name, ()) if name != "config" else ()
    title = f"Usage: agent-coord {_CALLED.get(name, name)} {'<word> ' if words else ''}[options]"
    if command.positional:
        title += f" {command.positional}" if name in _WITH_WORD else f" [{command.positional}]"
    lines = [title, "", _summary(command) + "."]
    if words:
        lines += ["", "Words:", *_table([(word, BY_COMMAND[f"{name} {word}"].summary) for word in words])]
    if command.required:
        lines += ["", "Required: " + ", ".join(f"--{option}" for option in command.required)]
    if command.options:
        lines += [
            "",
            "Options:",
            *_table([(_spelled(option), _explained(option, command)) for option in command.options]),
        ]
    lines += ["", "Common options:"]
    shared = [option for option in BACKEND if option not in command.options and _serves(option, command)]
    lines += _table([(_spelled(option), option.text) for option in shared] + [("-h, --help", "Show this help")])
    return "\n".join(lines)


def _serves(option: Option, command: Command) -> bool:
    """Tell whether an option that every command accepts means anything to this one."""
    independent = role_of(command.name) in (Role.INDEPENDENT, Role.SET)
    return not independent or (option.name == "json" and command.name == "version")


def _summary(command: Command) -> str:
    return command.summary if command.here else f"{command.summary} (not in this release)"


def _spelled(option: Option) -> str:
    return f"--{option.name} {option.metavar}".rstrip()


def _explained(option: Option, command: Command) -> str:
    text = f"{option.text}: {', '.join(option.choices)}" if option.choices else option.text
    default = _DEFAULTS.get((command.name, option.name))
    return text if default is None else f"{text} (default: {default})"


def _table(rows: list[tuple[str, str]]) -> list[str]:
    width = max(len(left) for left, _ in rows)
    return [f"  {left.ljust(width)}  {right}" for left, right in rows]
