"""Telling whether a fence still holds, on a store and a clock of the test's own."""

import pytest

from agentcoord.errors import StoreError, UsageError
from agentcoord.operations.claims import Claimed, ReleaseRequest, release
from agentcoord.operations.standing import VerifyRequest, verify
from agentcoord.protocol.standing import Standing
from tests.operations.stage import CLAIM, REPO, FakeClock, FaultyStore, Stage


async def standing(stage: Stage, fence: str) -> Standing:
    return await verify(stage.context(), VerifyRequest(repo=REPO, target="7", fence=fence))


async def acquired(stage: Stage, ttl: int = 120) -> str:
    """Claim the item and beat; gives the fence."""
    result = await stage.claim("a1", ttl=ttl)
    assert isinstance(result, Claimed)
    await stage.beat("a1", ttl=ttl)
    return result.fence


async def test_from_claim_to_release(stage: Stage, clock: FakeClock) -> None:
    assert (await standing(stage, "f")).reason == "no_claim"
    held = await acquired(stage)
    seen = await standing(stage, held)
    assert (seen.held, seen.holder, seen.seen) == (True, "a1", "live")
    assert (await standing(stage, "f")).reason == "another_acquisition"
    await release(stage.context(), ReleaseRequest(agent_id="a1", repo=REPO, target="7"))
    assert (await standing(stage, held)).reason == "released"
    again = await acquired(stage)
    assert again != held
    assert (await standing(stage, held)).reason == "another_acquisition"


async def test_it_holds_as_long_as_a_claim_would_be_refused(stage: Stage, clock: FakeClock) -> None:
    held = await acquired(stage, ttl=60)
    clock.advance(seconds=239)
    assert (await standing(stage, held)).held  # stale, and past the end of the lease
    clock.advance(seconds=1)
    seen = await standing(stage, held)
    assert (seen.held, seen.reason, seen.seen) == (False, "expired", "dead")


async def test_it_writes_nothing(stage: Stage) -> None:
    held = await acquired(stage)
    before = await stage.records()
    await standing(stage, held)
    assert await stage.records() == before


@pytest.mark.parametrize("unreadable", ["claims", "heartbeats"])
async def test_a_backend_that_cannot_tell_is_no_answer(stage: Stage, unreadable: str) -> None:
    held = await acquired(stage)
    context = stage.context(FaultyStore(stage.store, unreadable=unreadable))
    with pytest.raises(StoreError):
        await verify(context, VerifyRequest(repo=REPO, target="7", fence=held))


async def test_a_broken_claim_is_no_answer_either(stage: Stage) -> None:
    for broken in (b"{", b"[]"):
        stage.store.plant(CLAIM, broken)
        with pytest.raises(StoreError):
            await standing(stage, "f")


async def test_a_request_that_means_nothing(stage: Stage) -> None:
    for repo, target in (("o", "7"), (REPO, "a/b")):
        with pytest.raises(UsageError):
            await verify(stage.context(), VerifyRequest(repo=repo, target=target, fence="f"))
