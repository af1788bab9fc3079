"""What a command line asks for, as the requests that operations take."""

from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import replace

from agentcoord.cli.options import METADATA, SIGNALS, SYNTHETIC, TERMINAL, Option, Words
from agentcoord.errors import UsageError
from agentcoord.operations.claims import ReleaseRequest
from agentcoord.operations.status import StatusRequest
from agentcoord.protocol.claims import Wanted
from agentcoord.protocol.documents import Document
from agentcoord.protocol.events import Said
from agentcoord.protocol.heartbeats import Beat
from agentcoord.protocol.paths import ARCHIVABLE
from agentcoord.protocol.records import CLAIM_TTL, HEARTBEAT_TTL
from agentcoord.protocol.statuses import normalize

if TYPE_CHECKING:  # few commands have a use for these, and the others need not load them
    from agentcoord.operations.attention import ListRequest, QueueRequest
    from agentcoord.operations.resume import ResumeRequest
    from agentcoord.operations.retention import RetentionRequest
    from agentcoord.operations.standing import VerifyRequest
    from agentcoord.operations.trail import TrailRequest
    from agentcoord.protocol.attention import Key

DEFAULT_STATUS = "in_progress"
LOG_LINES = 200
WATCH_INTERVAL, MOST_INTERVAL = 5, 3600
"""Seconds between looks of `watch`: unless others are asked for, and at most."""
GRACE = 10
"""Seconds that a command has to end in once its lease is lost."""


class RunRequest(Struct, frozen=True):
    """A lease to run a command under, and what becomes of it; None for what is still to be made up. `grace` in s."""

    wanted: Wanted
    agent_id: str | None
    on_exit: str
    lane: str | None
    grace: int


class RegisterRequest(Struct, frozen=True):
    """A batch to register, by the names of files that are still to be read."""

    file: str
    batch_id: str | None
    launch_prompt: str | None
    synthetic: Document


class ClosingRequest(Struct, frozen=True):
    """A lane to close without releasing a claim."""

    batch_id: str
    payload: Document


class AuditRequest(Struct, frozen=True):
    """A batch to audit."""

    batch_id: str


class UpsertRequest(Struct, frozen=True):
    """A request for attention, by the name of a file that is still to be read; `-` is stdin."""

    record_json: str


class ResolveRequest(Struct, frozen=True):
    """A request for attention to settle, and the generation of the source that does."""

    key: "Key"
    generation: int


class DoctorRequest(Struct, frozen=True):
    """How closely to look at the backend."""

    deep: bool = False
    prefix: str | None = None
    explain: bool = False


class BootstrapRequest(Struct, frozen=True):
    """Where to install the command; None is the default place."""

    install_dir: str | None = None
    status_state_root: str | None = None
    profile: str | None = None
    no_profile: bool = False


class KeepRequest(Struct, frozen=True):
    """A lease for the daemon to keep. `ttl` is in seconds; no `watch_pid`: the agent is looked for."""

    agent_id: str
    repo: str | None
    target: str | None
    ttl: int
    watch_pid: int | None = None
    instance: str | None = None


class LogsRequest(Struct, frozen=True):
    """How many of the last lines of the daemon's log, and whether to go on."""

    lines: int
    follow: bool


class WatchRequest(Struct, frozen=True):
    """What to watch, None everything, and how many seconds apart it is looked at while nobody tells of changes."""

    repo: str | None
    batch: str | None
    machine: str | None
    interval: int


class SaveRequest(Struct, frozen=True):
    """Settings to save, as given; a token is still to be read. None leaves a setting alone."""

    api_url: str | None = None
    token_stdin: bool = False
    machine_id: str | None = None
    policy: str | None = None


def _given(words: Words, options: tuple[Option, ...]) -> Document:
    return {option.field: words.values[option.field] for option in options if option.field in words.values}


def _metadata(words: Words) -> Document:
    return _given(words, METADATA) | _given(words, SYNTHETIC)


def _or(value: int | None, default: int) -> int:
    return default if value is None else value


def claim(words: Words) -> Wanted:
    """Ask for a lease."""
    return Wanted(
        repo=words.text("repo") or "",
        target=words.text("target") or "",
        agent_id=words.text("agent_id") or "",
        ttl=_or(words.number("ttl"), CLAIM_TTL),
        batch_id=words.text("batch_id"),
        branch=words.text("branch"),
        metadata=_metadata(words),
    )


def release(words: Words) -> ReleaseRequest:
    """Give a lease back."""
    return ReleaseRequest(
        agent_id=words.text("agent_id") or "",
        repo=words.text("repo") or "",
        target=words.text("target") or "",
        branch=words.text("branch"),
        metadata=_metadata(words),
        handoff_to=words.text("handoff_to"),
        handoff_note=words.text("handoff_note"),
        terminal=words.text("terminal"),
        lane=words.text("lane"),
        facts=_given(words, TERMINAL[1:]),
    )


def run(words: Words) -> RunRequest:
    """Run a command under a lease. Raises UsageError."""
    request = RunRequest(
        wanted=replace(claim(words), exclusive=not words.flag("supersede")),
        agent_id=words.text("agent_id"),
        on_exit=words.text("on_exit") or "release",
        lane=words.text("lane"),
        grace=_or(words.number("grace"), GRACE),
    )
    if request.grace < 0:
        raise UsageError("--grace must be zero or greater")
    for field in ("agent_id", "instance_id"):
        if words.text(field) == "":
            raise UsageError(f"--{field.replace('_', '-')} requires a non-empty value")
    if request.on_exit == "done" and not request.wanted.batch_id:
        raise UsageError("--on-exit done closes the lane of a batch: it requires --batch-id")
    if request.lane is not None and request.on_exit != "done":
        raise UsageError("--lane is only valid for run with --on-exit done")
    return request


def verify(words: Words) -> "VerifyRequest":
    """Compare a fence with the record."""
    from agentcoord.operations.standing import VerifyRequest  # of no use to other commands

    return VerifyRequest(
        repo=words.text("repo") or "", target=words.text("target") or "", fence=words.text("fence") or ""
    )


def heartbeat(words: Words) -> Beat:
    """Say that an agent is there."""
    status = words.text("status")
    return Beat(
        agent_id=words.text("agent_id") or "",
        ttl=_or(words.number("ttl"), HEARTBEAT_TTL),
        status=normalize(DEFAULT_STATUS if status is None else status),
        repo=words.text("repo"),
        target=words.text("target"),
        batch_id=words.text("batch_id"),
        branch=words.text("branch"),
        metadata=_metadata(words),
    )


def keep(words: Words) -> KeepRequest:
    """Have a lease kept."""
    return KeepRequest(
        agent_id=words.text("agent_id") or "",
        repo=words.text("repo"),
        target=words.text("target"),
        ttl=_kept_ttl(words),
        watch_pid=words.number("watch_pid"),
        instance=words.text("instance_id"),
    )


def _kept_ttl(words: Words) -> int:
    """Choose the ttl of a kept heartbeat. A claim's own is for hours, which is too long to wait for the dead."""
    given = words.number("ttl")
    if given is None:
        return HEARTBEAT_TTL
    return min(given, HEARTBEAT_TTL) if words.command == "claim" else given


def logs(words: Words) -> LogsRequest:
    """Read the daemon's log. Raises UsageError."""
    lines = _or(words.number("limit"), LOG_LINES)
    if lines <= 0:
        raise UsageError("--limit must be positive")
    return LogsRequest(lines=lines, follow=words.flag("follow"))


def register_batch(words: Words) -> RegisterRequest:
    """Register a batch."""
    return RegisterRequest(
        file=words.text("file") or "",
        batch_id=words.text("batch_id"),
        launch_prompt=words.text("launch_prompt"),
        synthetic=_given(words, SYNTHETIC),
    )


def record_event(words: Words) -> Said | ClosingRequest:
    """Record a fact, or close a lane."""
    batch_id, type_ = words.text("batch_id") or "", words.text("type") or ""
    if words.text("terminal") is not None:
        named = ("lane", "agent_id", "repo", "target", "branch")
        payload = {name: words.values[name] for name in named if name in words.values}
        return ClosingRequest(batch_id=batch_id, payload=payload | _metadata(words) | _given(words, TERMINAL))
    status = words.text("status")
    return Said(
        batch_id=batch_id,
        type=type_,
        lane=words.text("lane"),
        agent_id=words.text("agent_id"),
        repo=words.text("repo"),
        target=words.text("target"),
        branch=words.text("branch"),
        message=words.text("message"),
        status=None if status is None else normalize(status),
        signals=_given(words, SIGNALS),
        metadata=_metadata(words),
    )


def status(words: Words) -> StatusRequest:
    """Look at the state."""
    return StatusRequest(
        repo=words.text("repo"),
        target=words.text("target"),
        batch_id=words.text("batch_id"),
        include_archived=words.flag("include_archived"),
    )


def log(words: Words) -> "TrailRequest":
    """Read a trail, or mirror all of it."""
    from agentcoord.operations.trail import TrailRequest  # what it reads with is built on import

    return TrailRequest(
        work_item=words.positionals[0] if words.positionals else None,
        repo=words.text("repo"),
        target=words.text("target"),
        since=words.text("since"),
        machine=words.text("machine"),
        host=words.text("host"),
        type=words.text("type"),
        limit=words.number("limit"),
        format=words.text("format"),
        sync=words.flag("sync"),
        include_synthetic=words.flag("include_synthetic"),
    )


def resume(words: Words) -> "ResumeRequest":
    """Look at what there is to go on with. Raises UsageError."""
    from agentcoord.operations.resume import LAST, ResumeRequest

    repo, target = words.text("repo"), words.text("target")
    if words.positionals:
        if repo is not None or target is not None:
            raise UsageError("give the work item either positionally or with --repo/--target, not both")
        repo, _, target = words.positionals[0].rpartition("#")
    if not repo or not target:
        raise UsageError("resume needs a work item: OWNER/REPO#TARGET, or --repo and --target")
    return ResumeRequest(repo=repo, target=target, limit=_or(words.number("limit"), LAST))


def watch(words: Words) -> WatchRequest:
    """Watch the state. Raises UsageError."""
    interval = _or(words.number("interval"), WATCH_INTERVAL)
    if not 1 <= interval <= MOST_INTERVAL:
        raise UsageError(f"--interval must be between 1 and {MOST_INTERVAL} seconds")
    return WatchRequest(
        repo=words.text("repo"), batch=words.text("batch_id"), machine=words.text("machine"), interval=interval
    )


def batch_audit(words: Words) -> AuditRequest:
    """Audit a batch."""
    return AuditRequest(batch_id=words.text("batch_id") or "")


def attention_upsert(words: Words) -> UpsertRequest:
    """Ask for attention."""
    return UpsertRequest(record_json=words.text("record_json") or "")


def attention_resolve(words: Words) -> ResolveRequest:
    """Settle a request for attention."""
    return ResolveRequest(key=_key(words), generation=_or(words.number("source_generation"), 0))


def attention_get(words: Words) -> "Key":
    """Look at one request for attention."""
    return _key(words)


def attention_list(words: Words) -> "ListRequest":
    """Look at the requests for attention."""
    from agentcoord.operations.attention import MOST_LISTED, ListRequest

    return ListRequest(
        workspace=words.text("workspace") or "",
        repository=words.text("repo") or "",
        include_resolved=words.flag("include_resolved"),
        limit=_or(words.number("limit"), MOST_LISTED),
    )


def attention(words: Words) -> "QueueRequest":
    """Look at what needs a person."""
    from agentcoord.operations.attention import MOST_LISTED, QueueRequest

    return QueueRequest(
        workspace=words.text("workspace"),
        repository=words.text("repo"),
        include_resolved=words.flag("all"),
        limit=_or(words.number("limit"), MOST_LISTED),
    )


def _key(words: Words) -> "Key":
    from agentcoord.protocol.attention import Key

    return Key(
        workspace=words.text("workspace") or "",
        repository=words.text("repo") or "",
        id=words.text("attention_id") or "",
    )


def gc(words: Words) -> "RetentionRequest":
    """Archive, compact and delete. Raises UsageError."""
    # Here, since no other command has a use for them.
    from agentcoord.operations.retention import RetentionRequest
    from agentcoord.protocol.retention import Policy

    if words.flag("dry_run") == words.flag("execute"):
        raise UsageError("gc requires exactly one of --dry-run or --execute")
    if words.flag("sync_first") and not words.flag("execute"):
        raise UsageError("--sync-first requires --execute: a dry run writes nothing, to the mirror neither")
    days = {field: number for field in Policy.__struct_fields__ if (number := words.number(field)) is not None}
    for field, number in days.items():
        if number < 0:
            raise UsageError(f"--{field.replace('_', '-')} must be zero or greater")
    prefixes = tuple(dict.fromkeys(words.several("prefix")))
    if not set(prefixes) <= set(ARCHIVABLE):
        raise UsageError(f"--prefix must be one of: {', '.join(ARCHIVABLE)}")
    return RetentionRequest(execute=words.flag("execute"), policy=Policy(**days), prefixes=prefixes or ARCHIVABLE)


def doctor(words: Words) -> DoctorRequest:
    """Look at the backend."""
    return DoctorRequest(deep=words.flag("deep"), prefix=words.text("doctor_prefix"), explain=words.flag("explain"))


def bootstrap(words: Words) -> BootstrapRequest:
    """Install the command."""
    return BootstrapRequest(
        install_dir=words.text("install_dir"),
        status_state_root=words.text("status_state_root"),
        profile=words.text("profile"),
        no_profile=words.flag("no_profile"),
    )


def config_set(words: Words) -> SaveRequest:
    """Save settings in the user file."""
    return SaveRequest(
        api_url=words.text("api_url"),
        token_stdin=words.flag("token_stdin"),
        machine_id=words.text("machine_id"),
        policy=words.text("policy"),
    )
