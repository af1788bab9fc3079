"""The commands: what each is for, which options it has a use for, and which of them it cannot do without."""

from msgspec import Struct

from agentcoord.cli.options import BY_NAME, METADATA, SIGNALS, SYNTHETIC, TERMINAL, Option

_METADATA = tuple(option.name for option in (*METADATA, *SYNTHETIC))
_ITEM = ("agent-id", "repo", "target")
_AGE = ("offline", "max-age")


class Command(Struct, frozen=True):
    """One command. `required` is checked in its order, after a backend was selected (spec: cli §1.3)."""

    name: str
    summary: str
    takes: tuple[str, ...] = ()
    required: tuple[str, ...] = ()
    positional: str = ""
    hidden: bool = False
    here: bool = True
    """False: the command is part of the contract, but not of this release."""

    @property
    def options(self) -> tuple[Option, ...]:
        """Give the options the command has a use for."""
        return tuple(BY_NAME[name] for name in self.takes)


COMMANDS = (
    Command(
        "claim",
        "Take a work item for an agent, or go on holding it",
        (*_ITEM, "batch-id", "branch", "ttl", *_METADATA, "keep", "watch-pid", "supersede"),
        _ITEM,
    ),
    Command(
        "release",
        "Give a lease back, hand it over, or close its lane for good",
        (
            *_ITEM,
            "branch",
            "handoff-to",
            "handoff-note",
            *(option.name for option in TERMINAL),
            "lane",
            *_METADATA,
        ),
        _ITEM,
    ),
    Command(
        "run",
        "Run a command under a lease, which is kept while it runs",
        (*_ITEM, "batch-id", "branch", "ttl", "on-exit", "lane", "supersede", "grace", *_METADATA),
        ("repo", "target"),
        positional="-- COMMAND...",
    ),
    Command(
        "verify",
        "Tell whether a fence still holds its work item",
        ("repo", "target", "fence"),
        ("repo", "target", "fence"),
    ),
    Command(
        "heartbeat",
        "Say that an agent is still there, and what it does",
        ("agent-id", "repo", "target", "batch-id", "branch", "status", "ttl", *_METADATA, "keep", "watch-pid"),
        ("agent-id",),
    ),
    Command(
        "register-batch",
        "Register work that is planned together, from a manifest",
        ("file", "batch-id", "launch-prompt", *(option.name for option in SYNTHETIC)),
        ("file",),
    ),
    Command(
        "record-event",
        "Add a fact to the trail of a batch",
        (
            "batch-id",
            "type",
            "lane",
            "agent-id",
            "repo",
            "target",
            "branch",
            "status",
            "message",
            *(option.name for option in SIGNALS),
            *(option.name for option in TERMINAL),
            *_METADATA,
        ),
        ("batch-id", "type"),
    ),
    Command(
        "status",
        "Show who has what: everything, one work item or one batch",
        ("repo", "target", "batch-id", "include-archived", "plain", *_AGE),
    ),
    Command(
        "log",
        "Read the trail of a work item, or of all, and mirror it",
        (
            "repo",
            "target",
            "since",
            "machine",
            "host",
            "type",
            "limit",
            "format",
            "sync",
            "include-synthetic",
            *_AGE,
        ),
        positional="OWNER/REPO#TARGET",
    ),
    Command(
        "resume",
        "Show what the next agent needs to go on with a work item",
        ("repo", "target", "limit"),
        positional="OWNER/REPO#TARGET",
    ),
    Command(
        "watch",
        "Show who has what and who is needed, as it changes",
        ("repo", "batch-id", "machine", "interval"),
    ),
    Command("batch-audit", "Tell whether the trail of a batch is complete", ("batch-id", *_AGE), ("batch-id",)),
    Command("attention", "Show what needs a person, most urgent first", ("workspace", "repo", "all", "limit")),
    Command("attention-upsert", "Ask for a person's attention", ("record-json",), ("record-json",)),
    Command(
        "attention-resolve",
        "Settle a request for attention",
        ("workspace", "repo", "attention-id", "source-generation"),
        ("workspace", "repo", "attention-id", "source-generation"),
    ),
    Command(
        "attention-get",
        "Show one request for attention",
        ("workspace", "repo", "attention-id"),
        ("workspace", "repo", "attention-id"),
    ),
    Command(
        "attention-list",
        "List requests for attention",
        ("workspace", "repo", "include-resolved", "limit", *_AGE),
        ("workspace", "repo"),
    ),
    Command(
        "gc",
        "Archive, compact and delete what has outlived its time",
        ("dry-run", "execute", "sync-first", "hot-days", "archive-days", "synthetic-hot-days", "prefix"),
    ),
    Command("version", "Print the versions of the contract"),
    Command("config", "Show the configuration in force, or set it (config set)"),
    Command("doctor", "Check the backend and what it holds", ("deep", "explain", "doctor-prefix", "stack-json")),
    Command(
        "bootstrap",
        "Install the command and put it on the PATH",
        ("install-dir", "status-state-root", "profile", "no-profile"),
    ),
    Command("demo", "Watch a claim being won, refused and taken over"),
    Command("daemon", "Start, stop, install or look at the daemon that keeps leases"),
    Command("lease", "List, add or drop what the daemon keeps"),
    Command("outbox", "List, retry or drop what waits for a server that did not answer"),
    Command("completion", "Print completion code for bash, zsh or fish", positional="SHELL"),
    Command(
        "config set",
        "Write settings to the user file",
        ("api-url", "token-stdin", "machine-id", "policy"),
        hidden=True,
    ),
    Command("daemon start", "Start the daemon, also after it was stopped", ("json",), hidden=True),
    Command("daemon stop", "End the daemon; no command starts it again unasked", ("json",), hidden=True),
    Command("daemon restart", "End the daemon and start it anew", ("json",), hidden=True),
    Command("daemon status", "Show what the daemon keeps and uses; exit 3 if none runs", ("json",), hidden=True),
    Command("daemon logs", "Show what the daemon wrote down", ("limit", "follow"), hidden=True),
    Command("daemon install", "Have the system start the daemon when you log in", ("dry-run",), hidden=True),
    Command("daemon uninstall", "Undo daemon install, and end the daemon", ("dry-run",), hidden=True),
    Command("lease list", "List what the daemon keeps, and by which evidence", ("json",), hidden=True),
    Command(
        "lease hold",
        "Have the daemon keep a heartbeat, and a claim that stands",
        ("agent-id", "repo", "target", "ttl", "instance-id", "watch-pid"),
        ("agent-id",),
        hidden=True,
    ),
    Command("lease drop", "Have the daemon keep a lane no more", ("json",), positional="LANE", hidden=True),
    Command("outbox list", "List what waits and what was set aside, and why", ("json",), hidden=True),
    Command(
        "outbox retry",
        "Try records again now, those included that were set aside",
        ("all", "json"),
        positional="ID...",
        hidden=True,
    ),
    Command("outbox drop", "Forget records, which then nobody sends", ("json",), positional="ID...", hidden=True),
)
BY_COMMAND = {command.name: command for command in COMMANDS}
GROUPS = {
    "config": ("show", "set"),
    "daemon": ("start", "stop", "restart", "status", "logs", "install", "uninstall"),
    "lease": ("list", "hold", "drop"),
    "outbox": ("list", "retry", "drop"),
}
"""The words that a command may be followed by, which name another command."""


def named(group: str, word: str) -> str:
    """Give the name of the command that two words mean; `config show` is `config`."""
    name = f"{group} {word}"
    return name if name in BY_COMMAND else group
