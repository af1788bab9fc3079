"""A claim won, refused and taken over, played in logical time on a store of its own (spec: cli §16).

Every line that reports an outcome reports what the operation really answered; an unexpected answer
ends the walkthrough.
"""

from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from typing import TypeVar

from agentcoord.errors import CoordError, StoreError
from agentcoord.operations.claims import Claimed, Refused, claim
from agentcoord.operations.context import Context
from agentcoord.operations.heartbeats import heartbeat
from agentcoord.operations.status import StatusRequest, status
from agentcoord.protocol.claims import Wanted, refusal
from agentcoord.protocol.heartbeats import Beat
from agentcoord.protocol.statuses import normalize
from agentcoord.stores.base import Store

START = datetime(2026, 1, 1, 12, tzinfo=UTC)
_REPO, _TARGET = "demo/example", "1"
_ITEM = f"--repo {_REPO} --target {_TARGET}"
_T = TypeVar("_T")
_OBSERVE = "logical time advances; status reports the holder heartbeat"


class _Stage:
    """The store, and a clock that is set rather than waited for."""

    def __init__(self, store: Store, random: Callable[[int], bytes]) -> None:
        self.seconds = 0
        self.context = Context(store=store, now=self._now, random=random)

    def _now(self) -> datetime:
        return START + timedelta(seconds=self.seconds)

    async def claim(self, agent_id: str, ttl: int) -> Claimed | Refused:
        return await claim(self.context, Wanted(repo=_REPO, target=_TARGET, agent_id=agent_id, ttl=ttl))


async def _win(stage: _Stage) -> list[str]:
    won = _expect(await stage.claim("demo-alpha", 3600), Claimed)
    beat = Beat(agent_id="demo-alpha", ttl=60, status=normalize("in_progress"), repo=_REPO, target=_TARGET)
    await heartbeat(stage.context, beat)
    return [
        f"$ agent-coord claim --agent-id demo-alpha {_ITEM} --ttl 3600",
        f"claimed {_REPO}#{_TARGET} by {won.record['agent_id']}",
        f"$ agent-coord heartbeat --agent-id demo-alpha {_ITEM} --ttl 60",
    ]


async def _be_refused(stage: _Stage) -> list[str]:
    refused = _expect(await stage.claim("demo-beta", 14400), Refused)
    return [
        f"$ agent-coord claim --agent-id demo-beta {_ITEM}",
        refusal(refused.refusal, refused.repo, refused.target),
    ]


def _observe(liveness: str) -> Callable[[_Stage], Awaitable[list[str]]]:
    async def observe(stage: _Stage) -> list[str]:
        seen = await status(stage.context, StatusRequest(repo=_REPO, target=_TARGET))
        shown = [(row["agent_id"], row["liveness"]) for row in seen.heartbeats]
        if shown != [("demo-alpha", liveness)]:
            raise StoreError(f"expected a {liveness} heartbeat of demo-alpha, saw {shown}")
        return [f"$ agent-coord status {_ITEM} --json", f"demo-alpha heartbeat {shown[0][1]}"]

    return observe


async def _take_over(stage: _Stage) -> list[str]:
    won = _expect(await stage.claim("demo-beta", 14400), Claimed)
    if won.taken_over_from != "demo-alpha":
        raise StoreError(f"expected a takeover from demo-alpha, not from {won.taken_over_from}")
    return [
        f"$ agent-coord claim --agent-id demo-beta {_ITEM}",
        f"takeover succeeded; holder is {won.record['agent_id']}",
    ]


def _expect(answer: object, kind: type[_T]) -> _T:
    if not isinstance(answer, kind):
        raise StoreError(f"expected {kind.__name__.lower()}, the answer was {answer}")
    return answer


_SCENES: tuple[tuple[int, str, Callable[[_Stage], Awaitable[list[str]]]], ...] = (
    (0, "demo-alpha claims demo/example#1 and starts a 60-second heartbeat", _win),
    (30, "demo-beta tries the same target while demo-alpha is live", _be_refused),
    (120, _OBSERVE, _observe("stale")),
    (300, _OBSERVE, _observe("dead")),
    (300, "demo-beta retries after the holder heartbeat is dead", _take_over),
)


async def walk(store: Store, random: Callable[[int], bytes]) -> list[str]:
    """Play the walkthrough and give its lines. Raises StoreError naming the step that went wrong."""
    lines = [
        "agent-coord demo",
        "mode: isolated local store — no remote writes; temporary state is removed on exit",
        "",
    ]
    stage = _Stage(store, random)
    for number, (after, title, play) in enumerate(_SCENES, 1):
        stage.seconds = after
        try:
            said = await play(stage)
        except CoordError as error:
            raise StoreError(f"demo step {number} failed: {error}") from error
        lines += [f"{number}. {title}", *(f"   {line}" for line in said), ""]
    return [*lines, "demo complete; temporary state removed"]
