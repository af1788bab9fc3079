"""What the methods on records are asked and what they answer: fields of params are options of the command line.

A param is called as its option is, with `_` for `-`, and is checked by the same rules; results are the objects that
`--json` prints. So neither has a second home. Fields that nobody knows are refused: a misspelt one is no wish.
"""

from collections.abc import Collection
from datetime import datetime
from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, Meta, Raw, Struct, UnsetType

from agentcoord.cli.commands import BY_COMMAND
from agentcoord.cli.options import Option, Words
from agentcoordd.backends import HttpBackend, LocalBackend

# What is asked --------------------------------------------------------------------------------------


class Who(Struct, frozen=True, forbid_unknown_fields=True):
    """Whom a write is attributed to. The machine is the daemon's unless one is named; a session is the caller's."""

    machine_id: str | None = None
    session_id: str | None = None
    session_source: str | None = None


class Looks(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Params of what only reads. Without `backend` it is the daemon's own, as configured by now."""

    backend: LocalBackend | HttpBackend | None = None


class Writes(Looks, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Params of what writes. `now` and `seed` (32 bytes, in hex) stand for clock and chance.

    Who asks again with the same ones, after a connection was lost, finds what the first time wrote to be its own.
    """

    identity: Who = Who()
    now: Annotated[datetime, Meta(tz=True)] | None = None
    seed: Annotated[str, Meta(pattern="^[0-9a-f]{64}$")] | None = None


class Recalls(Looks, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Params of what can be answered from the replica: at any age, or if it is at most so many seconds old."""

    offline: bool | None = None
    max_age: Annotated[int, Meta(ge=0, le=2**63 - 1)] | None = None


class StatusTarget(Recalls, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which work item to look at."""

    repo: str
    target: str


class StatusBatch(Recalls, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which batch to look at."""

    batch_id: str


_TYPES: dict[str, Any] = {
    "integer": Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)],
    "flag": bool,
}


def _params(
    name: str,
    about: str,
    base: type[Struct],
    command: str,
    *,
    but: Collection[str] = (),
    more: Collection[tuple[str, Any] | tuple[str, Any, Any]] = (),
) -> type[Any]:
    """Make params of a command's options; what the command cannot do without is no less required here."""
    inherited = base.__struct_fields__
    taken = [option for option in BY_COMMAND[command].options if option.name not in but]
    taken = [option for option in taken if option.field not in inherited]
    required = BY_COMMAND[command].required
    fields = [_field(option, required=option.name in required) for option in taken]
    namespace = {"__doc__": about}
    return msgspec.defstruct(
        name,
        [*fields, *more],
        bases=(base,),
        namespace=namespace,
        module=__name__,
        frozen=True,
        kw_only=True,
        forbid_unknown_fields=True,
    )


def _field(option: Option, *, required: bool) -> tuple[str, Any] | tuple[str, Any, Any]:
    kind: Any = _TYPES.get(option.kind, str)
    return (option.field, kind) if required else (option.field, kind | None, None)


ClaimAcquire = _params(
    "ClaimAcquire",
    "A lease that is wanted; `exclusive`: not while another instance of the agent lives. It takes `instance_id`.",
    Writes,
    "claim",
    but=("keep", "watch-pid", "supersede"),
    more=[("exclusive", bool, False)],
)
ClaimRelease = _params("ClaimRelease", "A lease that is given back.", Writes, "release")
ClaimVerify = _params("ClaimVerify", "A fence that a caller believes to hold.", Looks, "verify")
HeartbeatBeat = _params(
    "HeartbeatBeat", "What an agent says of itself.", Writes, "heartbeat", but=("keep", "watch-pid")
)
EventRecord = _params("EventRecord", "A fact; with `terminal`, the end of a lane.", Writes, "record-event")
BatchRegister = _params(
    "BatchRegister",
    "Work that is planned together: the manifest as an object, the launch prompt as text.",
    Writes,
    "register-batch",
    but=("file", "launch-prompt"),
    more=[("manifest", Raw), ("launch_prompt", str | None, None)],
)
BatchAudit = _params("BatchAudit", "A batch to audit.", Recalls, "batch-audit")
StatusAll = _params("StatusAll", "How much to look at.", Recalls, "status", but=("repo", "target", "batch-id", "plain"))
TrailLog = _params(
    "TrailLog",
    "Which trail to read: of `work_item`, which is OWNER/REPO#TARGET, of `repo` and `target`, or of everything.",
    Recalls,
    "log",
    but=("format", "sync"),
    more=[("work_item", str | None, None)],
)
AttentionUpsert = _params(
    "AttentionUpsert",
    "A request for attention: the record.",
    Writes,
    "attention-upsert",
    but=("record-json",),
    more=[("record", Raw)],
)
AttentionResolve = _params("AttentionResolve", "A request for attention to settle.", Writes, "attention-resolve")
AttentionGet = _params("AttentionGet", "A request for attention to look at.", Looks, "attention-get")
AttentionList = _params("AttentionList", "Whose requests for attention to list.", Recalls, "attention-list")


def words_of(command: str, params: Struct) -> Words:
    """Give params as the words of the command line that they stand for."""
    values: dict[str, Any] = {}
    for option in BY_COMMAND[command].options:
        value = getattr(params, option.field, None)
        if option.kind == "path" and option.name in BY_COMMAND[command].required:
            value = "-"  # the content of that file is among the params
        if value is not None and value is not False:
            values[option.field] = value
    positional = getattr(params, "work_item", None)
    return Words(command=command, values=values, positionals=[] if positional is None else [positional])


# What is answered -----------------------------------------------------------------------------------


class Told(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """An answer; `notices` are lines for a person, and left out when there are none."""

    notices: list[str] = []


class Aged(Told, frozen=True, kw_only=True, omit_defaults=True):
    """An answer that says where it comes from and how old it is, where an age was asked for.

    With `filtered`, and `complete` false, there are records that the daemon's token may not see.
    """

    source: Literal["replica", "backend"] | UnsetType = UNSET
    as_of: str | UnsetType = UNSET
    age_seconds: float | UnsetType = UNSET
    complete: bool | UnsetType = UNSET
    filtered: bool | UnsetType = UNSET


class Acquired(Told, frozen=True, kw_only=True, omit_defaults=True):
    """The lease is the caller's."""

    record: dict[str, Any]
    fence: str
    renewed: bool
    taken_over_from: str | None


class NotAcquired(Told, frozen=True, kw_only=True, omit_defaults=True):
    """The lease is somebody else's: an answer and no error, which a command ends with exit 3."""

    refused: Literal[True]
    repo: str
    target: str
    holder: str
    liveness: str
    expires_at: str | None
    instance_id: str | UnsetType = UNSET


class Released(Told, frozen=True, kw_only=True, omit_defaults=True):
    """The claim as it now stands; after a closeout also its event, and whether anything was changed."""

    record: dict[str, Any]
    event: dict[str, Any] | UnsetType = UNSET
    changed: bool | UnsetType = UNSET


class Verified(Told, frozen=True, kw_only=True, omit_defaults=True):
    """Whether the fence holds; a command ends with exit 3 when it does not. `holder` is whoever has the item."""

    held: bool
    repo: str
    target: str
    holder: str | None
    reason: str | None
    liveness: str | None
    expires_at: str | None


class Written(Told, frozen=True, kw_only=True, omit_defaults=True):
    """The record as it now stands; after a closeout also whether anything was changed."""

    record: dict[str, Any]
    changed: bool | UnsetType = UNSET


class Queued(Told, frozen=True, kw_only=True, omit_defaults=True):
    """The record as it will stand once its backend answers: until then it waits in the outbox."""

    record: dict[str, Any]
    queued: Literal[True]


class AuditedLane(Struct, frozen=True):
    """The verdict on one lane, and what is missing of it."""

    name: str
    owner: str
    targets: list[str]
    event_count: int
    missing: list[str]
    complete: bool
    malformed: bool


class Audit(Aged, frozen=True, kw_only=True, omit_defaults=True):
    """The verdict on a batch: a command ends with 0, 1 or 2, in the order of the verdicts here."""

    batch_id: str
    verdict: Literal["complete", "incomplete", "unknown"]
    reason: str | UnsetType = UNSET
    lanes: list[AuditedLane]


class Seen(Aged, frozen=True, kw_only=True, omit_defaults=True):
    """The state, section by section. `degraded` lists what went unchecked, `section_notes` says it by section."""

    version: str
    scope: dict[str, Any]
    degraded: list[str]
    section_notes: dict[str, str]
    claims: list[Any]
    heartbeats: list[Any]
    batches: list[Any]
    events: list[Any]
    archive: list[Any] | UnsetType = UNSET


class Log(Aged, frozen=True, kw_only=True, omit_defaults=True):
    """A trail, the newest event last, and the claims on a work item that left no event."""

    work_item: dict[str, Any] | UnsetType = UNSET
    trail: Literal["complete", "incomplete"]
    events_suppressed: bool
    events: list[Any]
    claim: Any | UnsetType = UNSET
    claims: list[Any] | UnsetType = UNSET


class Listed(Aged, frozen=True, kw_only=True, omit_defaults=True):
    """Requests for attention, the most urgent first; `truncated` tells that there are more than `limit`."""

    records: list[dict[str, Any]]
    limit: int
    truncated: bool


PUBLISHED: dict[str, tuple[type[Any], tuple[type[Any], ...]]] = {
    "claim.acquire": (ClaimAcquire, (Acquired, NotAcquired)),
    "claim.release": (ClaimRelease, (Released,)),
    "claim.verify": (ClaimVerify, (Verified,)),
    "heartbeat.beat": (HeartbeatBeat, (Written, Queued)),
    "event.record": (EventRecord, (Written, Queued)),
    "batch.register": (BatchRegister, (Written,)),
    "batch.audit": (BatchAudit, (Audit,)),
    "status.target": (StatusTarget, (Seen,)),
    "status.batch": (StatusBatch, (Seen,)),
    "status.all": (StatusAll, (Seen,)),
    "trail.log": (TrailLog, (Log,)),
    "attention.upsert": (AttentionUpsert, (Written,)),
    "attention.resolve": (AttentionResolve, (Written,)),
    "attention.get": (AttentionGet, (Written,)),
    "attention.list": (AttentionList, (Listed,)),
}
"""Params and results of each method."""
