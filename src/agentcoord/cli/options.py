"""The options: one table of what there is, and the grammar by which arguments are read against it.

The grammar is that of GNU long options with unambiguous abbreviations. Every command accepts the
common options, also those it has no use for, since scripts pass them (spec: cli §1.3).
"""

import re
from collections.abc import Iterator, Sequence
from typing import Literal

from msgspec import Struct, field

from agentcoord.errors import StackUsageError, UsageError
from agentcoord.files import printable
from agentcoord.protocol import events
from agentcoord.protocol.statuses import CLOSED
from agentcoord.settings.envfile import POLICIES

Kind = Literal["text", "integer", "flag", "path", "several"]
Value = str | int | bool | list[str]


class Option(Struct, frozen=True):
    """One long option. `commands` empty: every command takes it.

    An option of ours that the reference lacks never makes one of its abbreviations ambiguous.
    """

    name: str
    kind: Kind
    text: str
    metavar: str = ""
    commands: tuple[str, ...] = ()
    choices: tuple[str, ...] = ()
    ours: bool = False

    @property
    def field(self) -> str:
        """Name the option as a record field and keyword."""
        return self.name.replace("-", "_")


_RECALLED = ("status", "log", "batch-audit", "attention-list")
"""Commands that can be answered from the daemon's replica."""


def _allowed(event: str, field: str) -> tuple[str, ...]:
    return events.SIGNALS[event].allowed[field]


BACKEND = (
    Option("api-url", "text", "Use the HTTP backend at this address", "URL"),
    Option("state-root", "path", "Use local files below this directory", "PATH"),
    Option("backend", "text", "Use the legacy GitHub backend in this repository", "OWNER/REPO"),
    Option("ref", "text", "Branch of the GitHub backend (default: state)", "REF"),
    Option("ignore-user-config", "flag", "Do not read the user file; needs exactly one backend option"),
    Option("json", "flag", "Print JSON on stdout; notices stay on stderr"),
)
METADATA = (
    Option("thread-handle", "text", "Thread the work is discussed in", "HANDLE"),
    Option("chat-handle", "text", "Chat the agent runs in", "HANDLE"),
    Option("host", "text", "Host application, such as codex or claude", "NAME"),
    Option("pr-url", "text", "Pull request of the work", "URL"),
    Option("dashboard-url", "text", "Where a person can watch", "URL"),
    Option("operator", "text", "Person responsible", "NAME"),
    Option("phase", "text", "What the agent is doing", "PHASE"),
    Option("generation", "integer", "Attempt number of this work", "N"),
    Option("instance-id", "text", "Which instance of the agent this is", "ID"),
)
SYNTHETIC = (
    Option("synthetic", "flag", "Mark as simulation, not real work"),
    Option("synthetic-kind", "text", "Kind of simulation", "KIND", choices=("simulation", "smoke")),
)
SIGNALS = (
    Option("reason", "text", "help_requested: why", "REASON", choices=_allowed("help_requested", "reason")),
    Option("from-route", "text", "escalation_requested: present route", "ROUTE"),
    Option("to-route", "text", "escalation_requested: wanted route", "ROUTE"),
    Option("evidence", "text", "escalation_requested: what shows the need", "TEXT"),
    Option("severity", "text", "error: how bad", "LEVEL", choices=_allowed("error", "severity")),
    Option("category", "text", "error: what kind", "TEXT"),
    Option(
        "kind",
        "text",
        "human_intervention: what was done",
        "KIND",
        choices=_allowed("human_intervention", "kind"),
    ),
)
TERMINAL = (
    Option("terminal", "text", "Close the lane for good", "STATE", choices=CLOSED),
    Option("pr-state", "text", "Final state of the pull request", "STATE"),
    Option("evidence-url", "text", "Where the evidence can be seen again", "URL"),
    Option("workspace", "text", "Workspace of the record", "WORKSPACE"),
)
OPTIONS: tuple[Option, ...] = (
    *BACKEND,
    Option("agent-id", "text", "The agent this is about", "ID"),
    Option("repo", "text", "Repository of the work item", "OWNER/REPO"),
    Option("target", "text", "Issue or pull request, optionally with a lane", "TARGET"),
    Option("batch-id", "text", "Batch the work belongs to", "ID"),
    Option("branch", "text", "Branch the work is on", "BRANCH"),
    *METADATA,
    Option("ttl", "integer", "Seconds until it runs out", "SECONDS"),
    Option("status", "text", "What state the work is in", "STATUS"),
    *TERMINAL,
    *SYNTHETIC,
    Option("type", "text", "Type of the event", "TYPE"),
    Option("lane", "text", "Lane of the batch", "NAME"),
    Option("message", "text", "What happened, in words", "TEXT"),
    *SIGNALS,
    Option("file", "path", "File with the batch manifest", "PATH"),
    Option("launch-prompt", "path", "File with the exact launch prompt, - for stdin", "PATH"),
    Option("install-dir", "path", "Where to install (default: ~/.local/bin)", "PATH"),
    Option("status-state-root", "path", "State root that reads use when nothing is selected", "PATH"),
    Option("profile", "path", "Shell profile to extend", "PATH"),
    Option("no-profile", "flag", "Leave the shell profile alone"),
    Option("handoff-to", "text", "Agent that is to take over", "ID", commands=("release",)),
    Option("handoff-note", "text", "What the next holder must know", "TEXT", commands=("release",)),
    Option("stack-json", "flag", "Print the component report for stack aggregators", commands=("doctor",)),
    Option("deep", "flag", "Read and parse every record"),
    Option("explain", "flag", "Show where settings come from, all that is wrong and what mends it", ours=True),
    Option(
        "doctor-prefix",
        "text",
        "Look at this part only, with --stack-json or HTTP; else just repeat it",
        "PREFIX",
        commands=("doctor",),
    ),
    Option("dry-run", "flag", "Say what would be done", commands=("gc", "daemon install", "daemon uninstall")),
    Option("execute", "flag", "Do it", commands=("gc",)),
    Option("sync-first", "flag", "With --execute: merge the trail into the mirror before", commands=("gc",), ours=True),
    Option("hot-days", "integer", "Days before records are archived", "DAYS", commands=("gc",)),
    Option("archive-days", "integer", "Days before archives are deleted", "DAYS", commands=("gc",)),
    Option("synthetic-hot-days", "integer", "Days for simulation records", "DAYS", commands=("gc",)),
    Option("prefix", "several", "Family to look at; may be repeated", "FAMILY", commands=("gc",)),
    Option("include-archived", "flag", "List archive envelopes as well", commands=("status",)),
    Option("plain", "flag", "Print the text that scripts read, also on a terminal", commands=("status",), ours=True),
    Option(
        "keep",
        "flag",
        "Have the daemon keep it alive for as long as the agent's process lives",
        commands=("claim", "heartbeat"),
        ours=True,
    ),
    Option(
        "watch-pid",
        "integer",
        "Keep it while this process lives (default: the agent among the caller's ancestors)",
        "PID",
        commands=("claim", "heartbeat", "lease hold"),
        ours=True,
    ),
    Option(
        "supersede",
        "flag",
        "Take the item from another instance of the agent",
        commands=("claim", "run"),
        ours=True,
    ),
    Option("follow", "flag", "Go on with what is written from now on", commands=("daemon logs",), ours=True),
    Option("offline", "flag", "Ask no backend: answer from the daemon's replica", commands=_RECALLED, ours=True),
    Option("max-age", "integer", "Answer from the replica if it is no older", "SECONDS", commands=_RECALLED, ours=True),
    Option("since", "text", "Only events since then, such as 3d or a timestamp", "WHEN", commands=("log",)),
    Option("machine", "text", "Only what was written on this machine", "ID", commands=("log", "watch")),
    Option("interval", "integer", "Seconds from one look to the next", "N", commands=("watch",), ours=True),
    Option(
        "limit",
        "integer",
        "At most this many",
        "N",
        commands=("log", "resume", "attention", "attention-list", "daemon logs"),
    ),
    Option("format", "text", "text or tsv", "FORMAT", commands=("log",), choices=("text", "tsv")),
    Option("sync", "flag", "Merge the whole trail into the mirror", commands=("log",)),
    Option("include-synthetic", "flag", "Include simulation records", commands=("log",)),
    Option("attention-id", "text", "The attention record", "ID", commands=("attention-get", "attention-resolve")),
    Option("record-json", "path", "File with the record, - for stdin", "PATH", commands=("attention-upsert",)),
    Option("source-generation", "integer", "Generation of the source", "N", commands=("attention-resolve",)),
    Option("include-resolved", "flag", "Include resolved records", commands=("attention-list",)),
    Option("all", "flag", "All of them, such as resolved requests", commands=("attention", "outbox retry"), ours=True),
    Option("fence", "text", "The fence that claim or run gave out", "FENCE", commands=("verify",), ours=True),
    Option(
        "on-exit",
        "text",
        "What becomes of the lease when the command ends",
        "WHAT",
        commands=("run",),
        choices=("release", "done", "keep"),
        ours=True,
    ),
    Option(
        "grace",
        "integer",
        "Seconds from TERM to KILL when the lease is lost (default: 10)",
        "SECONDS",
        commands=("run",),
        ours=True,
    ),
    Option("token-stdin", "flag", "Read the token from stdin", commands=("config set",)),
    Option("machine-id", "text", "Name of this machine", "ID", commands=("config set",)),
    Option(
        "policy",
        "text",
        "required, optional or disabled",
        "POLICY",
        commands=("config set",),
        choices=POLICIES,
    ),
)
BY_NAME = {option.name: option for option in OPTIONS}
_CLOSED_CHOICES = ("policy", "on-exit")
"""Options whose values the grammar itself checks; the others are checked where they are used."""
WITH_TAIL = ("run",)
"""Commands that end in another program's command line."""
SELECTORS = ("--state-root", "--api-url", "--backend")

_INTEGER = re.compile(
    r"[-+]?(?:0(?:[0-7]+(?:_[0-7]+)*|b[01]+(?:_[01]+)*|x[\da-f]+(?:_[\da-f]+)*)?|\d+(?:_\d+)*)",
    re.IGNORECASE | re.ASCII,
)


class Words(Struct):
    """Arguments as read: option values by field name, positionals, and selecting options as they came.

    `tail` is what follows `--` where that is another program's command line, and so none of our business.
    """

    command: str
    values: dict[str, Value] = field(default_factory=dict[str, Value])
    positionals: list[str] = field(default_factory=list[str])
    selectors: list[str] = field(default_factory=list[str])
    help: bool = False
    tail: list[str] = field(default_factory=list[str])

    def text(self, name: str) -> str | None:
        """Give a text option as it was given, None when it was not."""
        value = self.values.get(name)
        return value if isinstance(value, str) else None

    def number(self, name: str) -> int | None:
        """Give an integer option."""
        value = self.values.get(name)
        return value if isinstance(value, int) and not isinstance(value, bool) else None

    def several(self, name: str) -> list[str]:
        """Give all values of an option that may be repeated."""
        value = self.values.get(name)
        return value if isinstance(value, list) else []

    def flag(self, name: str) -> bool:
        """Tell whether a flag was given."""
        return self.values.get(name) is True


def options_of(command: str) -> list[Option]:
    """List the options a command accepts."""
    return [option for option in OPTIONS if not option.commands or command in option.commands]


def read_words(command: str, arguments: Sequence[str]) -> Words:
    """Read arguments by the grammar, up to a request for help.

    Bytes that are not UTF-8 arrive as surrogates and are let through in paths only. Raises
    UsageError for the first fault; StackUsageError once `--stack-json` is among the arguments.
    """
    try:
        end = _end_of_options(command, arguments) if command in WITH_TAIL else len(arguments)
        _require_utf8(command, arguments[:end])
        words = _read(command, arguments[:end])
        words.tail = list(arguments[end + 1 :])
        return words
    except UsageError as error:
        if command == "doctor" and asks_for_stack(arguments):
            raise StackUsageError(str(error)) from None
        raise


def _end_of_options(command: str, arguments: Sequence[str]) -> int:
    """Find the first `--` that is not the value of an option; the number of arguments when there is none."""
    value = False
    for place, word in enumerate(arguments):
        if word == "--" and not value:
            return place
        value = not value and "=" not in word and _takes_value(command, word)
    return len(arguments)


def asks_for_stack(arguments: Sequence[str]) -> bool:
    """Tell whether `--stack-json` stands among the arguments, abbreviated or not, whatever else is wrong."""
    stack, value = "--stack-json", False
    for word in arguments:
        if value:
            value = False
        elif word == "--":
            return False
        else:
            name, equals, _ = word.partition("=")
            if len(name) > len("--sta") and stack.startswith(name):
                return True
            value = not equals and _takes_value("doctor", name)
    return False


def _require_utf8(command: str, arguments: Sequence[str]) -> None:
    """Refuse arguments that are not text before anything else is said of them; a path may be any bytes."""
    before = ""
    for word in arguments:
        name, equals, _ = word.partition("=")
        spelled = name if equals else before
        if not _is_utf8(word) and not (_is_utf8(spelled) and _names_path(command, spelled)):
            _utf8(word)
        before = word


def _meant(command: str, word: str) -> Option | None:
    if not word.startswith("--") or len(word) == len("--") or not _is_utf8(word):
        return None
    try:
        return find_option(word[2:], options_of(command))
    except UsageError:
        return None


def _names_path(command: str, word: str) -> bool:
    option = _meant(command, word)
    return option is not None and option.kind == "path"


def _takes_value(command: str, word: str) -> bool:
    option = _meant(command, word)
    return option is not None and option.kind != "flag"


def _read(command: str, arguments: Sequence[str]) -> Words:
    words = Words(command=command)
    known = options_of(command)
    rest = iter(arguments)
    for word in rest:
        if word == "--":
            words.positionals += [_utf8(left) for left in rest]
        elif word in ("-h", "--help"):
            words.help = True
            return words
        elif word.startswith("--"):
            name, equals, value = word[2:].partition("=")
            option = find_option(name if _is_utf8(name) else _utf8(name), known)
            if option is None:
                words.help = True
                return words
            _take(words, option, value if equals else None, rest)
        elif word.startswith("-") and word != "-":
            raise UsageError(f"invalid option: {_utf8(word)}")
        else:
            words.positionals.append(_utf8(word))
    return words


def find_option(name: str, known: Sequence[Option]) -> Option | None:
    """Find the option a name or abbreviation means; None for one of `--help`. Raises UsageError."""
    exact = [option for option in known if option.name == name]
    if exact:
        return exact[0]
    for pool in ([option for option in known if not option.ours], list(known)):
        matches = [option for option in pool if option.name.startswith(name)]
        helps = bool(name) and "help".startswith(name)
        if len(matches) + helps > 1:
            raise UsageError(f"ambiguous option: --{name}")
        if matches:
            return matches[0]
        if helps:
            return None
    raise UsageError(f"invalid option: --{name}")


def _take(words: Words, option: Option, attached: str | None, rest: Iterator[str]) -> None:
    flag = f"--{option.name}"
    if flag in SELECTORS:
        words.selectors.append(flag)
    if option.kind == "flag":
        if attached is not None:
            raise UsageError(f"needless argument: {flag}={_utf8(attached)}")
        words.values[option.field] = True
        return
    value = attached if attached is not None else next(rest, None)
    if value is None:
        raise UsageError(f"missing argument: {flag}")
    if option.kind != "path":
        value = _utf8(value)
    if option.kind == "integer":
        words.values[option.field] = _integer(value, flag)
    elif option.kind == "several":
        several = words.values.setdefault(option.field, [])
        if isinstance(several, list):
            several.append(value)
    else:
        if option.name in _CLOSED_CHOICES and value not in option.choices:
            raise UsageError(f"invalid argument: {flag} {value}" + _wanted(option))
        words.values[option.field] = value


def _wanted(option: Option) -> str:
    """Say what would do; the others' wording is the reference's."""
    return f"; it is one of {', '.join(option.choices)}" if option.ours else ""


def _integer(value: str, flag: str) -> int:
    """Read an integer as the reference does: decimal, octal with a leading zero, 0x and 0b."""
    fault = UsageError(f"invalid argument: {flag} {value}")
    if _INTEGER.fullmatch(value) is None:
        raise fault
    digits = value.lstrip("+-")
    try:
        octal = digits[0] == "0" and digits[1:2].isdigit()
        number = int(digits, 8 if octal else 0)
        str(number)  # more digits than Python writes could be read here, in hexadecimal, and never be stored
    except ValueError:
        raise fault from None
    return -number if value.startswith("-") else number


def _is_utf8(value: str) -> bool:
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def require_utf8(arguments: Sequence[str]) -> None:
    """Refuse arguments that are not text. Raises UsageError."""
    for word in arguments:
        _utf8(word)


def _utf8(value: str) -> str:
    if _is_utf8(value):
        return value
    raise UsageError(f"command-line argument must be valid UTF-8: {printable(value)}")
