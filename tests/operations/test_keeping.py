"""What a renewal reads and writes, whom it never overwrites, and how an agent is declared dead."""

from datetime import timedelta
from typing import Any

import pytest

from agentcoord.errors import Conflict, StoreError, UsageError
from agentcoord.operations.claims import Claimed, Refused
from agentcoord.operations.keeping import Renewed, mark_dead, renew, require_lane, tell
from agentcoord.protocol.claims import fence
from agentcoord.protocol.instants import parse
from agentcoord.protocol.keeping import Finished, Lane, Lost
from agentcoord.protocol.liveness import liveness
from tests.operations.stage import CLAIM, FakeClock, FaultyStore, Stage
from tests.stores.counting import CountingStore

BEAT = "heartbeats/a1.json"
BOTH = Lane("a1", 60, ("heartbeat", "claim"), "o/r", "7")
BEATING = Lane("a1", 60)


async def test_a_renewal_moves_the_times_and_nothing_else(stage: Stage, clock: FakeClock) -> None:
    said = {"phase": "test", "host": "codex"}
    await stage.beat("a1", ttl=60, status="blocked", repo="o/r", target="7", batch_id="b1", metadata=said)
    before = await stage.record(BEAT) | {"of_another_program": [1]}
    stage.lay(BEAT, before)
    clock.advance(seconds=20)
    assert isinstance(await renew(stage.context(), BEATING), Renewed)
    times = {"updated_at": stage.stamp(), "expires_at": stage.stamp(seconds=60)}
    assert await stage.record(BEAT) == before | times


async def test_a_claim_is_extended_when_under_half_its_own_ttl_and_keeps_its_fence(
    stage: Stage, clock: FakeClock
) -> None:
    await stage.claim("a1", ttl=120, batch_id="b1")
    first = await stage.record(CLAIM)
    clock.advance(seconds=60)
    renewed = await renew(stage.context(), BOTH)
    until = parse(first["expires_at"])
    assert renewed == Renewed(ttl=60, until=until, beaten=clock.now(), batch_id="b1", fence=fence(first))
    assert await stage.record(CLAIM) == first
    clock.advance(seconds=1)
    await renew(stage.context(), BOTH)
    times = {"updated_at": stage.stamp(), "expires_at": stage.stamp(seconds=120)}
    assert await stage.record(CLAIM) == first | times
    assert fence(await stage.record(CLAIM)) == fence(first)
    assert [event["type"] for event in await stage.events()] == ["claim.acquired"]


async def test_an_agent_that_was_never_heard_gets_a_heartbeat(stage: Stage) -> None:
    await stage.claim("a1", batch_id="b1", branch="x", metadata={"instance_id": "i1"})
    await renew(stage.context(), BOTH)
    beat = await stage.record(BEAT)
    assert {name: beat[name] for name in ("status", "repo", "target", "batch_id", "branch", "instance_id")} == {
        "status": "in_progress",
        "repo": "o/r",
        "target": "7",
        "batch_id": "b1",
        "branch": "x",
        "instance_id": "i1",
    }


async def test_an_agent_that_had_finished_and_claimed_again_is_at_work_again(stage: Stage, clock: FakeClock) -> None:
    await stage.beat("a1", status="done", repo="o/r", target="7")
    clock.advance(seconds=5)
    await stage.claim("a1")
    for _ in range(2):
        assert isinstance(await renew(stage.context(), BOTH), Renewed)
        assert (await stage.record(BEAT))["status"] == "in_progress"


async def test_the_next_instance_takes_over_the_heartbeat_of_the_last(stage: Stage, clock: FakeClock) -> None:
    await stage.claim("a1", metadata={"instance_id": "i1"})
    await stage.beat("a1", repo="o/r", target="7", metadata={"instance_id": "i1", "phase": "test"})
    first = Lane("a1", 60, ("heartbeat", "claim"), "o/r", "7", instance="i1")
    await stage.claim("a1", metadata={"instance_id": "i2"})
    second = Lane("a1", 60, ("heartbeat", "claim"), "o/r", "7", instance="i2")
    assert isinstance(await renew(stage.context(), second), Renewed)
    beat = await stage.record(BEAT)
    assert beat["instance_id"] == "i2"
    assert "phase" not in beat
    clock.advance(seconds=1)
    assert isinstance(await renew(stage.context(), first), Lost)
    assert not await mark_dead(stage.context(), first)
    assert await stage.record(BEAT) == beat


async def test_without_a_claim_a_heartbeat_of_another_instance_is_taken_over_once_it_ended(
    stage: Stage, clock: FakeClock
) -> None:
    await stage.beat("a1", ttl=60, metadata={"instance_id": "i1"})
    lane = Lane("a1", 60, instance="i2")
    assert isinstance(await renew(stage.context(), lane), Lost)
    await mark_dead(stage.context(), Lane("a1", 60, instance="i1"))
    clock.advance(seconds=1)
    assert isinstance(await renew(stage.context(), lane), Renewed)
    assert (await stage.record(BEAT))["instance_id"] == "i2"


@pytest.mark.parametrize("status", ["done", "merged", "completed", "abandoned"])
async def test_a_terminal_status_ends_it_and_stays(stage: Stage, clock: FakeClock, status: str) -> None:
    await stage.claim("a1", ttl=10)
    clock.advance(seconds=9)
    await stage.beat("a1", status=status, repo="o/r", target="7")
    before = await stage.record(BEAT), await stage.record(CLAIM)
    assert isinstance(await renew(stage.context(), BOTH), Finished)
    assert (await stage.record(BEAT), await stage.record(CLAIM)) == before


async def test_a_displaced_holder_writes_nothing(stage: Stage, clock: FakeClock) -> None:
    await stage.claim("a1")
    await stage.beat("a1", ttl=1)
    clock.advance(seconds=4)
    assert isinstance(await stage.claim("a2"), Claimed)
    before = await stage.record(BEAT), await stage.record(CLAIM)
    assert await renew(stage.context(), BOTH) == Lost("o/r#7 is now held by a2")
    assert (await stage.record(BEAT), await stage.record(CLAIM)) == before


@pytest.mark.parametrize("at", [1, 2])
async def test_news_written_in_between_is_read_before_anything_is_said(stage: Stage, at: int) -> None:
    await stage.claim("a1", ttl=60)
    await stage.beat("a1", ttl=60)
    stage.clock.advance(seconds=40)

    async def done() -> None:
        await stage.beat("a1", status="done")
        claim = await stage.record(CLAIM)
        stage.lay(CLAIM, claim | {"phase": "later"})

    store = FaultyStore(stage.store, at=at, first=done)
    assert await renew(stage.context(store), BOTH) == Finished("a1 reported done", held=True)
    assert (await stage.record(BEAT))["status"] == "done"
    assert (await stage.record(CLAIM))["phase"] == "later"


async def test_endless_contention_is_an_error(stage: Stage) -> None:
    await stage.beat("a1")

    class Contended(CountingStore):
        async def write(self, *_: Any, **__: Any) -> str:
            raise Conflict(BEAT)

    stage.clock.advance(seconds=1)
    with pytest.raises(StoreError, match="renewal contention for a1"):
        await renew(stage.context(Contended(stage.store)), BEATING)
    with pytest.raises(StoreError, match="state changed while writing"):
        await mark_dead(stage.context(Contended(stage.store)), BEATING)


@pytest.mark.parametrize("step", [3600, -3600])
async def test_a_wall_clock_that_is_set_fakes_nothing(stage: Stage, clock: FakeClock, step: int) -> None:
    await stage.claim("a1", ttl=60)
    await renew(stage.context(), BOTH)
    before = await stage.record(BEAT)
    clock.advance(seconds=step)
    assert isinstance(await renew(stage.context(), BOTH), Renewed)
    after = await stage.record(BEAT)
    assert after["updated_at"] >= before["updated_at"]
    assert liveness(after, clock.now()) == "live"
    assert isinstance(await stage.claim("a2"), Refused)
    await mark_dead(stage.context(), BOTH)
    assert liveness(await stage.record(BEAT), clock.now() + timedelta(seconds=4)) == "dead"


async def test_a_dead_agent_keeps_its_last_words_and_loses_the_lease(stage: Stage, clock: FakeClock) -> None:
    await stage.claim("a1")
    await stage.beat("a1", ttl=3600, status="blocked", metadata={"phase": "test"})
    before = await stage.record(BEAT)
    assert await mark_dead(stage.context(), BOTH)
    last = await stage.record(BEAT)
    assert last == before | {"updated_at": stage.stamp(), "expires_at": stage.stamp(seconds=1)}
    assert isinstance(await stage.claim("a2"), Refused)
    clock.advance(seconds=2)
    assert await mark_dead(stage.context(), BOTH)  # said once more, it is not dead any later
    assert await stage.record(BEAT) == last
    clock.advance(seconds=2)
    assert liveness(last, clock.now()) == "dead"
    assert isinstance(await stage.claim("a2"), Claimed)


async def test_a_dead_agent_that_was_never_heard_is_declared_so(stage: Stage, clock: FakeClock) -> None:
    await stage.claim("a1")
    assert await mark_dead(stage.context(), BOTH)
    clock.advance(seconds=4)
    assert isinstance(await stage.claim("a2"), Claimed)


async def test_nobody_else_is_buried(stage: Stage, clock: FakeClock) -> None:
    await stage.beat("a1", ttl=900, metadata={"instance_id": "i2"})
    assert not await mark_dead(stage.context(), Lane("a1", 60, instance="i1"))
    known = clock.now()
    clock.advance(seconds=1)
    await stage.beat("a1", ttl=900)
    assert not await mark_dead(stage.context(), BEATING, known_until=known)
    assert liveness(await stage.record(BEAT), clock.now()) == "live"
    assert await mark_dead(stage.context(), BEATING, known_until=clock.now())


async def test_a_broken_record_is_an_error_and_stays(stage: Stage) -> None:
    stage.lay(BEAT, [1])
    with pytest.raises(StoreError, match=BEAT):
        await renew(stage.context(), BEATING)
    assert await stage.record(BEAT) == [1]


async def test_what_became_of_a_lease_is_told_in_the_trail(stage: Stage) -> None:
    await tell(stage.context(), BOTH, "b1", "lease.lost", "lease of a1 lost")
    [event] = await stage.events()
    assert (event["type"], event["agent_id"], event["target"]) == ("lease.lost", "a1", "7")


@pytest.mark.parametrize(
    "lane",
    [
        Lane("../x"),
        Lane("a1", 0),
        Lane("a1", 2),
        Lane("a1", 10**400),
        Lane("a1", 60, ()),
        Lane("a1", 60, ("claim",)),
        Lane("a1", 60, ("claim",), "no repo", "7"),
        Lane("a1", 60, ("claim",), "o/r", "a/b"),
    ],
)
def test_nonsense_is_refused_before_anything_is_read(lane: Lane) -> None:
    with pytest.raises(UsageError):
        require_lane(lane)
