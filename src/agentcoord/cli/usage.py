"""Faults of an invocation that no single option shows, found before any backend is touched (spec: cli §1.3)."""

from collections.abc import Iterable

from agentcoord.cli.commands import BY_COMMAND, GROUPS
from agentcoord.cli.options import TERMINAL, WITH_TAIL, Words
from agentcoord.errors import StackUsageError, UsageError
from agentcoord.protocol.events import LANE_CLOSED
from agentcoord.protocol.paths import require_segment

_SELECTING = ("backend", "ref", "state_root", "api_url")


def require_coherent(words: Words) -> None:
    """Check what the options say together. Raises UsageError, StackUsageError for a stack report."""
    _require_positionals(words)
    _require_doctor(words)
    _require_keep(words)
    _require_age(words)
    for field in _SELECTING:
        value = words.text(field)
        if value is not None and not value.strip():
            fault = f"--{field.replace('_', '-')} requires a non-empty value"
            raise StackUsageError(fault) if words.flag("stack_json") else UsageError(fault)
    _require_prompt_place(words)
    _require_terminal_place(words)
    if words.command == "attention-upsert":
        for field in ("workspace", "repo", "target"):
            if field in words.values:
                raise UsageError(f"--{field} is not valid for attention-upsert; {field} comes from --record-json")
    if words.flag("sync_first") and words.flag("ignore_user_config") and words.text("state_root") is None:
        fault = "--sync-first with --ignore-user-config requires --state-root as its explicit backend selector"
        raise UsageError(fault)
    if words.command == "config set":
        for field in ("state_root", "backend", "ref"):
            if field in words.values:
                raise UsageError(f"--{field.replace('_', '-')} is not valid for config set")


def _require_doctor(words: Words) -> None:
    for flag in ("deep", "explain"):
        if words.command != "doctor" and words.flag(flag):
            raise UsageError(f"--{flag} is only valid for doctor")
    for flag in ("json", "explain"):
        if words.command == "doctor" and words.flag("stack_json") and words.flag(flag):
            raise StackUsageError(f"doctor --{flag} and --stack-json are mutually exclusive")


def _require_keep(words: Words) -> None:
    if words.command in ("claim", "heartbeat") and not words.flag("keep"):
        for field in ("watch_pid", "supersede"):
            if field in words.values:
                raise UsageError(f"--{field.replace('_', '-')} requires --keep")
    watched = words.number("watch_pid")
    if watched is not None and watched <= 0:
        raise UsageError("--watch-pid must be positive")
    if words.command == "lease hold" and ("repo" in words.values) != ("target" in words.values):
        raise UsageError("lease hold takes --repo and --target together, or neither")


def _require_age(words: Words) -> None:
    age = words.number("max_age")
    if age is None and not words.flag("offline"):
        return
    if age is not None and words.flag("offline"):
        raise UsageError("--offline takes an answer of any age; leave out --max-age, or --offline")
    if age is not None and age < 0:
        raise UsageError("--max-age must be zero or greater")
    if words.flag("sync"):
        raise UsageError(f"--sync reads the backend; leave out --{'max-age' if age is not None else 'offline'}")


def _require_prompt_place(words: Words) -> None:
    prompt = words.text("launch_prompt")
    if prompt is not None and words.command != "register-batch":
        raise UsageError("--launch-prompt is only valid for register-batch")
    if prompt == "":
        raise UsageError("--launch-prompt requires a non-empty value")


def _require_positionals(words: Words) -> None:
    taken = {"log": 1, "resume": 1, "completion": 1, "lease drop": 1}.get(words.command, 0)
    if words.command in ("outbox retry", "outbox drop"):
        _require_ids(words)
        taken = len(words.positionals)
    if words.command != "config" and words.command in GROUPS:
        raise UsageError(f"{words.command} needs one of these words: {', '.join(GROUPS[words.command])}")
    if words.command == "lease drop" and not words.positionals:
        raise UsageError("lease drop needs the id of a lane, as agent-coord lease list shows it")
    if words.command == "completion":
        from agentcoord.cli.completion_scripts import SCRIPTS  # no other command has a use for them

        if not words.positionals or words.positionals[0] not in SCRIPTS:
            raise UsageError(f"completion needs the name of a shell: {', '.join(SCRIPTS)}")
    if words.command in WITH_TAIL:
        if words.positionals:
            raise UsageError(f"unexpected arguments: {' '.join(words.positionals)}; -- goes before the command to run")
        if not words.tail:
            raise UsageError(f"{words.command} needs a command to run after --")
    if extra := words.positionals[taken:]:
        raise UsageError(f"unexpected arguments: {' '.join(extra)}")


def _require_ids(words: Words) -> None:
    every = words.command == "outbox retry" and words.flag("all")
    if every == bool(words.positionals):
        wanted = "either ids or --all" if words.command == "outbox retry" else "the ids of entries"
        raise UsageError(f"{words.command} needs {wanted}; agent-coord outbox list shows the ids")
    for word in words.positionals:
        if not (word.isascii() and word.isdecimal() and int(word[:19]) > 0 and len(word) < 19):
            raise UsageError(f"{words.command}: {word} is no id, as agent-coord outbox list shows them")


def _require_terminal_place(words: Words) -> None:
    given = [option for option in TERMINAL if option.field in words.values]
    if words.command.startswith("attention"):
        given = [option for option in given if option.name != "workspace"]
    if not given:
        return
    if words.command == "release":
        others = [option for option in given if option.name != "terminal"]
        if others and not words.text("terminal"):
            raise UsageError(f"--{others[0].name} requires --terminal")
    elif words.command == "record-event":
        if words.text("type") != LANE_CLOSED:
            raise UsageError("terminal-only options require --type lane_closed")
    else:
        raise UsageError(f"--{given[0].name} is only valid with terminal closeout")


def require_options(words: Words) -> None:
    """Check that nothing is missing; asked only once a backend is selected. Raises UsageError."""
    _require(words, BY_COMMAND[words.command].required)
    if words.command == "record-event" and words.text("type") == LANE_CLOSED:
        require_segment(words.text("batch_id") or "", "batch-id")
        _require(words, ("terminal", "agent-id", "repo", "target"))


def _require(words: Words, names: Iterable[str]) -> None:
    for name in names:
        value = words.values.get(name.replace("-", "_"))
        if value is None or value == "":
            raise UsageError(f"missing required --{name}")
