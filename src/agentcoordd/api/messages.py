"""What is said over the socket: the frames, and the params and results of every method.

The published schema is made from these. Unknown fields are let through: a newer caller may say more.
"""

from datetime import datetime
from enum import IntEnum
from typing import Annotated, Any, Literal

from msgspec import UNSET, Meta, Raw, Struct, UnsetType, field

from agentcoord.protocol.outbox import MOST_BYTES, MOST_ENTRIES
from agentcoordd.places import MirrorView, OutboxView, ReplicaView, RetentionView, WatchView

Id = int | str


class Fault(IntEnum):
    """The codes of errors: JSON-RPC's own, and ours."""

    GARBAGE = -32700
    INVALID = -32600
    UNKNOWN_METHOD = -32601
    BAD_PARAMS = -32602
    INTERNAL = -32603
    FAILED = -32000
    ELSEWHERE = -32001
    VERSION = -32002
    CANCELLED = -32003


# Frames --------------------------------------------------------------------------------------------


class Incoming(Struct, frozen=True):
    """A frame of a caller: a request, or without `id` a notification."""

    method: str
    jsonrpc: Literal["2.0"] = "2.0"
    id: Id | UnsetType | None = UNSET
    params: Raw = field(default_factory=lambda: Raw(b"{}"))


class Answer(Struct, frozen=True):
    """A frame with the result of a request."""

    id: Id
    result: Any
    jsonrpc: Literal["2.0"] = "2.0"


class Cause(Struct, frozen=True):
    """What a command would have ended with: exit 1 for a wrong call, after which nothing was written, 2 for UNKNOWN."""

    exit: int


class Error(Struct, frozen=True):
    """Why there is no result; `message` is one line for a person. `data` is there for what went wrong at work."""

    code: int
    message: str
    data: Cause | UnsetType = UNSET


class Failure(Struct, frozen=True):
    """A frame with an error in the place of a result; without `id` where the request could not be read."""

    id: Id | None
    error: Error
    jsonrpc: Literal["2.0"] = "2.0"


class Notification(Struct, frozen=True):
    """A frame that nobody answers."""

    method: str
    params: Any
    jsonrpc: Literal["2.0"] = "2.0"


# hello and the daemon itself -----------------------------------------------------------------------


class Hello(Struct, frozen=True):
    """Who calls: its version, and the version of the conversation it speaks."""

    version: str = ""
    api: int | None = None


class Welcome(Struct, frozen=True):
    """Who answers. `started_at` is an instant in UTC."""

    version: str
    api: int
    pid: int
    started_at: str
    features: list[str]


class Nothing(Struct, frozen=True):
    """Params of a method that takes none."""


class Use(Struct, frozen=True):
    """How much of something bounded is in use; `limit` None: the system sets none."""

    used: int
    limit: int | None


class Trouble(Struct, frozen=True):
    """An error that was logged, and when."""

    at: str
    message: str


class Status(Struct, frozen=True):
    """How the daemon is. `uptime` in seconds, `memory` resident in bytes, `requests` since its start.

    `dropped` counts connections that were closed for what they did or failed to do, `refused` commands that were
    left to their callers. `missed` counts events that subscribers were too slow for. `answers` are kept ready for local
    roots, `answers_memory` is what they hold; `records` of local roots are kept parsed, and hold `records_memory`.
    `outbox` counts records that wait for their servers, `outbox_set_aside` those among them that nobody tries any more,
    and `outbox_ways` tells how the others fare.
    """

    version: str
    api: int
    pid: int
    socket: str
    started_at: str
    uptime: float
    memory: int
    descriptors: Use
    connections: Use
    commands: Use
    subscribers: Use
    answers: Use
    answers_memory: Use
    records: Use
    records_memory: Use
    requests: int
    refused: int
    dropped: int
    missed: int
    any_root: bool
    roots: list[str]
    backends: list[str]
    errors: list[Trouble]
    mirrors: list[MirrorView] = []
    retention: list[RetentionView] = []
    outbox: Use = Use(0, MOST_ENTRIES)
    outbox_size_bytes: Use = Use(0, MOST_BYTES)
    outbox_set_aside: int = 0
    outbox_ways: list[OutboxView] = []
    replicas: list[ReplicaView] = []
    watching: list[WatchView] = []


class Stop(Struct, frozen=True):
    """Whether to leave a mark, so that no command starts the daemon again by itself."""

    mark: bool = False


class Stopping(Struct, frozen=True):
    """The daemon ends, once what runs has ended or its time is up."""

    pid: int


# cli.run -------------------------------------------------------------------------------------------


class Surface(Struct, frozen=True):
    """The caller's terminal."""

    person: bool = False
    columns: Annotated[int, Meta(ge=1, le=10_000)] = 80
    colour: bool = False
    notices: bool = False


class Command(Struct, frozen=True):
    """One command line, as its caller would run it: `now` and `seed` (32 bytes, in hex) stand for clock and chance.

    Without `umask` new files get the modes that the daemon's own leaves. `plain` asks for long output as `Plain`.
    """

    api: int
    argv: list[str]
    cwd: str
    env: dict[str, str]
    now: Annotated[datetime, Meta(tz=True)]
    seed: Annotated[str, Meta(pattern="^[0-9a-f]{64}$")]
    version: str = ""
    terminal: Surface = Surface()
    program: str = "agent-coord"
    node: str = ""
    umask: Annotated[int, Meta(ge=0, le=0o777)] | None = None
    plain: bool = False


class Exited(Struct, frozen=True):
    """How the command ended; what it said has been sent before."""

    exit: int


class About(Struct, frozen=True):
    """A notification about a request: `accepted` and `working` of the daemon, `go` and `cancel` of its caller."""

    id: Id


class Output(Struct, frozen=True):
    """A part of what a command says."""

    id: Id
    stream: Literal["stdout", "stderr"]
    data: str


class Plain(Struct, frozen=True):
    """A long part of what a command says: that many bytes follow the line, as they are, and then the next line."""

    id: Id
    stream: Literal["stdout", "stderr"]
    length: int


class Read(Struct, frozen=True):
    """A command needs a file of its caller, `-` for stdin: at most that many bytes. `read` numbers the question."""

    id: Id
    read: int
    path: str
    most: int


class Content(Struct, frozen=True):
    """A part of such a file, in base64, and whether more follows; or why it cannot be read."""

    id: Id
    read: int
    data: str = ""
    more: bool = False
    errno: int | None = None


# subscribe -----------------------------------------------------------------------------------------

Topic = Literal[
    "process.exited",
    "lease.expiring",
    "lease.expired",
    "lease.lost",
    "lease.held",
    "lease.dropped",
    "attention.changed",
    "changed",
]


class Subscribe(Struct, frozen=True):
    """What to be told of; None is everything."""

    topics: list[Topic] | None = None


class Subscribed(Struct, frozen=True):
    """Events follow."""

    ok: bool = True


class Event(Struct, frozen=True):
    """Something happened. `seq` grows by one with each event of the daemon, told to this subscriber or not."""

    seq: int
    topic: str
    data: dict[str, Any]


class Gap(Struct, frozen=True):
    """So many events were not told, since the subscriber was too slow; it asks for how things stand, and goes on."""

    missed: int
