"""Verifying, taking, renewing and ending a lease on a store and a clock of the test's own."""

from typing import Any

import pytest

from agentcoord.errors import Conflict, StoreError, UsageError
from agentcoord.operations.claims import Refused
from agentcoord.operations.custody import (
    Custody,
    Kept,
    Lost,
    VerifyRequest,
    give_back,
    look,
    mark_dead,
    renew,
    take,
    verify,
)
from agentcoord.protocol.claims import Wanted
from agentcoord.protocol.custody import Standing
from agentcoord.protocol.instants import parse
from tests.operations.stage import CLAIM, REPO, FakeClock, FaultyStore, Stage

BEAT = "heartbeats/a1.json"


def wanted(agent_id: str = "a1", instance_id: str = "i1", *, ttl: int = 120, **more: Any) -> Wanted:
    exclusive = more.pop("exclusive", True)
    metadata = {"instance_id": instance_id}
    return Wanted(repo=REPO, target="7", agent_id=agent_id, ttl=ttl, exclusive=exclusive, metadata=metadata, **more)


async def taken(stage: Stage, *words: str, **more: Any) -> Custody:
    result = await take(stage.context(), wanted(*words, **more))
    assert not isinstance(result, Refused), result
    return result[0]


async def standing(stage: Stage, fence: str) -> Standing:
    return await verify(stage.context(), VerifyRequest(repo=REPO, target="7", fence=fence))


class TestVerify:
    async def test_from_claim_to_release(self, stage: Stage, clock: FakeClock) -> None:
        assert (await standing(stage, "f")).reason == "no_claim"
        custody = await taken(stage)
        seen = await standing(stage, custody.fence)
        assert (seen.held, seen.holder, seen.seen) == (True, "a1", "live")
        assert (await standing(stage, "f")).reason == "another_acquisition"
        await give_back(stage.context(), custody)
        assert (await standing(stage, custody.fence)).reason == "released"
        again = await taken(stage)
        assert again.fence != custody.fence
        assert (await standing(stage, custody.fence)).reason == "another_acquisition"

    async def test_it_holds_as_long_as_a_claim_would_be_refused(self, stage: Stage, clock: FakeClock) -> None:
        custody = await taken(stage, ttl=60)
        clock.advance(seconds=239)
        assert (await standing(stage, custody.fence)).held  # stale, and past the end of the lease
        clock.advance(seconds=1)
        seen = await standing(stage, custody.fence)
        assert (seen.held, seen.reason, seen.seen) == (False, "expired", "dead")

    async def test_it_writes_nothing(self, stage: Stage) -> None:
        custody = await taken(stage)
        before = await stage.records()
        await standing(stage, custody.fence)
        assert await stage.records() == before

    @pytest.mark.parametrize("unreadable", ["claims", "heartbeats"])
    async def test_a_backend_that_cannot_tell_is_no_answer(self, stage: Stage, unreadable: str) -> None:
        custody = await taken(stage)
        context = stage.context(FaultyStore(stage.store, unreadable=unreadable))
        with pytest.raises(StoreError):
            await verify(context, VerifyRequest(repo=REPO, target="7", fence=custody.fence))

    async def test_a_broken_claim_is_no_answer_either(self, stage: Stage) -> None:
        for broken in (b"{", b"[]"):
            stage.store.plant(CLAIM, broken)
            with pytest.raises(StoreError):
                await standing(stage, "f")

    async def test_a_request_that_means_nothing(self, stage: Stage) -> None:
        for repo, target in (("o", "7"), (REPO, "a/b")):
            with pytest.raises(UsageError):
                await verify(stage.context(), VerifyRequest(repo=repo, target=target, fence="f"))


class TestTaking:
    async def test_the_heartbeat_comes_with_the_lease(self, stage: Stage) -> None:
        custody = await taken(stage, branch="b", ttl=120)
        beat = await stage.record(BEAT)
        assert (beat["target"], beat["branch"], beat["instance_id"]) == ("7", "b", "i1")
        assert parse(beat["expires_at"]) == parse(stage.stamp(seconds=120))
        assert not custody.shared

    async def test_a_live_claim_of_another_instance_is_refused(self, stage: Stage, clock: FakeClock) -> None:
        await taken(stage)
        result = await take(stage.context(), wanted("a1", "i2"))
        assert isinstance(result, Refused)
        assert (result.refusal.holder, result.refusal.seen, result.refusal.instance) == ("a1", "live", "i1")
        assert (await stage.record(CLAIM))["instance_id"] == "i1"

    async def test_a_dead_one_is_taken_over(self, stage: Stage, clock: FakeClock) -> None:
        first = await taken(stage, ttl=60)
        clock.advance(seconds=240)
        second = await taken(stage, "a1", "i2", ttl=60)
        assert second.fence != first.fence
        beat = await stage.record(BEAT)
        assert (beat["instance_id"], beat["updated_at"]) == ("i2", stage.stamp())

    async def test_superseding_takes_claim_and_heartbeat(self, stage: Stage) -> None:
        first = await taken(stage)
        second = await taken(stage, "a1", "i2", exclusive=False)
        assert not second.shared
        assert isinstance(await renew(stage.context(), first), Lost)
        await mark_dead(stage.context(), first)
        assert (await stage.record(BEAT))["expires_at"] == stage.stamp(seconds=120)
        await give_back(stage.context(), first)
        assert (await stage.record(CLAIM))["status"] == "active"

    async def test_a_claim_without_the_rule_is_renewed_as_ever(self, stage: Stage) -> None:
        await stage.claim("a1", metadata={"instance_id": "i1"})
        again: Any = await stage.claim("a1", metadata={"instance_id": "i2"})
        assert again.record["instance_id"] == "i2"

    async def test_a_lost_race_is_a_refusal(self, stage: Stage) -> None:
        async def rival() -> None:
            await stage.claim("a2")

        result = await take(stage.context(FaultyStore(stage.store, at=1, first=rival)), wanted())
        assert isinstance(result, Refused)
        assert result.refusal.holder == "a2"

    async def test_without_a_heartbeat_the_lease_is_given_back(self, stage: Stage) -> None:
        broken = FaultyStore(stage.store, at=2, error=lambda path: StoreError(f"no answer for {path}"))
        with pytest.raises(StoreError, match="no answer for heartbeats"):
            await take(stage.context(broken), wanted())
        assert (await stage.record(CLAIM))["status"] == "released"

    @pytest.mark.parametrize("ttl", [0, 1, 2])
    async def test_a_ttl_too_short_to_keep(self, stage: Stage, ttl: int) -> None:
        with pytest.raises(UsageError, match="--ttl must be"):
            await take(stage.context(), wanted(ttl=ttl))


class TestRenewing:
    async def test_each_thing_when_it_is_due(self, stage: Stage, clock: FakeClock) -> None:
        custody = await taken(stage, ttl=3600)
        claim = await stage.record(CLAIM)
        clock.advance(seconds=300)
        kept = await renew(stage.context(), custody)
        assert await stage.record(CLAIM) == claim
        assert (await stage.record(BEAT))["expires_at"] == stage.stamp(seconds=900)
        assert kept == Kept(parse(claim["expires_at"]))
        clock.advance(seconds=1501)
        await renew(stage.context(), custody)
        later = await stage.record(CLAIM)
        assert later == claim | {"updated_at": stage.stamp(), "expires_at": stage.stamp(seconds=3600)}

    async def test_news_in_the_middle_of_a_renewal_stays(self, stage: Stage, clock: FakeClock) -> None:
        custody = await taken(stage, ttl=60)
        clock.advance(seconds=40)

        async def beats() -> None:
            await stage.beat("a1", ttl=60, status="blocked", metadata={"phase": "waiting"})

        await renew(stage.context(FaultyStore(stage.store, at=1, first=beats)), custody)
        beat = await stage.record(BEAT)
        assert (beat["status"], beat["phase"], beat["updated_at"]) == ("blocked", "waiting", stage.stamp())
        clock.advance(seconds=40)

        async def claims() -> None:
            await stage.claim("a1", ttl=60, metadata={"pr_url": "https://example.org/1"})

        await renew(stage.context(FaultyStore(stage.store, at=2, first=claims)), custody)
        assert (await stage.record(CLAIM))["pr_url"] == "https://example.org/1"

    async def test_a_finished_agent_is_not_kept_alive(self, stage: Stage, clock: FakeClock) -> None:
        custody = await taken(stage, ttl=60)
        await stage.beat("a1", ttl=60, status="done")
        said = await stage.record(BEAT)
        clock.advance(seconds=40)
        assert await renew(stage.context(), custody) == Kept(parse(stage.stamp(seconds=60)))
        assert await stage.record(BEAT) == said

    async def test_a_lease_that_ran_out_and_nobody_took_is_still_ours(self, stage: Stage, clock: FakeClock) -> None:
        custody = await taken(stage, ttl=60)
        clock.advance(hours=8)
        assert isinstance(await renew(stage.context(), custody), Kept)
        assert (await standing(stage, custody.fence)).held

    async def test_one_that_somebody_took_is_lost(self, stage: Stage, clock: FakeClock) -> None:
        custody = await taken(stage, ttl=60)
        clock.advance(hours=8)
        await stage.claim("a2")
        before = await stage.records()
        assert await look(stage.context(), custody) == await renew(stage.context(), custody)
        assert await stage.records() == before

    async def test_a_claim_that_changes_at_every_attempt(self, stage: Stage, clock: FakeClock) -> None:
        custody = await taken(stage, ttl=60)
        clock.advance(seconds=40)

        class Contended(FaultyStore):
            async def write(self, path: str, document: object, *, version: str | None, note: str) -> str:
                raise Conflict(path)

        with pytest.raises(StoreError, match="state changed while writing"):
            await renew(stage.context(Contended(stage.store)), custody)


class TestAnAgentThatLivesBesides:
    async def test_its_heartbeat_is_prolonged_and_left(self, stage: Stage, clock: FakeClock) -> None:
        await stage.beat("a1", repo=REPO, target="8", metadata={"phase": "testing"})
        custody = await taken(stage)
        assert custody.shared
        clock.advance(seconds=600)
        await renew(stage.context(), custody)
        beat = await stage.record(BEAT)
        assert (beat["target"], beat["phase"], beat["updated_at"]) == ("8", "testing", stage.stamp())
        await mark_dead(stage.context(), custody)
        assert await stage.record(BEAT) == beat

    async def test_when_it_ends_the_lease_goes_on_by_itself(self, stage: Stage, clock: FakeClock) -> None:
        first = await taken(stage)
        other = Wanted(repo=REPO, target="8", agent_id="a1", ttl=120, exclusive=True, metadata={"instance_id": "i2"})
        result = await take(stage.context(), other)
        assert not isinstance(result, Refused)
        second = result[0]
        assert second.shared
        assert await look(stage.context(), second) is None
        await give_back(stage.context(), first)
        await mark_dead(stage.context(), first)
        assert isinstance(await look(stage.context(), second), Kept)
        beat = await stage.record(BEAT)
        assert (beat["instance_id"], beat["target"]) == ("i2", "8")
        await mark_dead(stage.context(), second)
        assert (await stage.record(BEAT))["expires_at"] == stage.stamp(seconds=1)

    async def test_what_an_earlier_one_left_is_not_alive(self, stage: Stage) -> None:
        first = await taken(stage)
        await give_back(stage.context(), first)
        await mark_dead(stage.context(), first)
        assert not (await taken(stage, "a1", "i2")).shared
