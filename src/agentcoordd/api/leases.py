"""`lease.hold`, `lease.list` and `lease.drop`: what keeps a lease, seen from the socket."""

from collections.abc import Sequence

from msgspec import Struct

from agentcoord.protocol.keeping import Kind, Lane
from agentcoordd.api.dispatch import Caller, Method
from agentcoordd.backends import HttpBackend, LocalBackend
from agentcoordd.lanes import LaneView
from agentcoordd.services.keeper import Hold, Keeper


class HoldParams(Struct, frozen=True):
    """What to keep alive. `ttl` is the heartbeat's, in seconds; a claim keeps the ttl it was made with.

    `pid` is watched if it is given, else the agent is looked for above `from_pid`; without either, the lease is kept
    until it is dropped.
    """

    backend: LocalBackend | HttpBackend
    agent_id: str
    kinds: tuple[Kind, ...]
    ttl: int
    repo: str | None = None
    target: str | None = None
    pid: int | None = None
    from_pid: int | None = None
    instance: str | None = None
    fence: str | None = None


class HoldResult(Struct, frozen=True):
    """The lane that is now kept, which process is watched and why, and when it is next renewed (UTC)."""

    lane: str
    pid: int | None
    program: str | None
    chosen: str
    next_renewal: str


class ListParams(Struct, frozen=True):
    """Nothing: all lanes are listed."""


class ListResult(Struct, frozen=True):
    """The lanes that are kept, and the last that ended."""

    lanes: Sequence[LaneView]


class DropParams(Struct, frozen=True):
    """The lane that is to be kept no longer."""

    lane: str


class DropResult(Struct, frozen=True):
    """Whether it was kept until now."""

    dropped: bool


def methods(keeper: Keeper) -> list[Method]:
    """Give the methods that are about leases. They raise CoordError with one line for the caller."""

    async def hold(params: HoldParams, caller: Caller) -> HoldResult:
        lane = Lane(
            agent_id=params.agent_id,
            ttl=params.ttl,
            kinds=tuple(dict.fromkeys(params.kinds)),
            repo=params.repo,
            target=params.target,
            instance=params.instance,
            fence=params.fence,
        )
        view = await keeper.hold(Hold(lane=lane, backend=params.backend, pid=params.pid, from_pid=params.from_pid))
        return HoldResult(
            lane=view.lane,
            pid=view.pid,
            program=view.program,
            chosen=view.chosen,
            next_renewal=view.next_renewal or "",
        )

    async def listed(params: ListParams, caller: Caller) -> ListResult:
        return ListResult(lanes=keeper.list())

    async def drop(params: DropParams, caller: Caller) -> DropResult:
        return DropResult(dropped=await keeper.drop(params.lane))

    return [
        Method("lease.hold", HoldParams, HoldResult, hold),
        Method("lease.list", ListParams, ListResult, listed),
        Method("lease.drop", DropParams, DropResult, drop),
    ]
