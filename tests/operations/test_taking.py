"""Taking a lease and keeping it from a command: what `run` does to the records, on a clock of the test's own."""

from typing import Any

import pytest
from msgspec.structs import replace

from agentcoord.errors import Conflict, StoreError, UsageError
from agentcoord.operations.claims import Refused
from agentcoord.operations.keeping import Renewed, give_back, look, mark_dead, renew, take
from agentcoord.protocol.claims import Wanted, fence
from agentcoord.protocol.instants import parse
from agentcoord.protocol.keeping import Finished, Lane, Lost
from agentcoord.protocol.liveness import liveness
from tests.operations.stage import CLAIM, REPO, FakeClock, FaultyStore, Stage

BEAT = "heartbeats/a1.json"


def wanted(agent_id: str = "a1", instance_id: str = "i1", *, ttl: int = 120, **more: Any) -> Wanted:
    exclusive = more.pop("exclusive", True)
    metadata = {"instance_id": instance_id} | more.pop("metadata", {})
    return Wanted(repo=REPO, target="7", agent_id=agent_id, ttl=ttl, exclusive=exclusive, metadata=metadata, **more)


async def taken(stage: Stage, *words: str, **more: Any) -> Lane:
    result = await take(stage.context(), wanted(*words, **more))
    assert not isinstance(result, Refused), result
    return result[0]


class TestTaking:
    async def test_the_heartbeat_comes_with_the_lease(self, stage: Stage) -> None:
        lane = await taken(stage, branch="b", ttl=120)
        beat = await stage.record(BEAT)
        assert (beat["target"], beat["branch"], beat["instance_id"]) == ("7", "b", "i1")
        assert parse(beat["expires_at"]) == parse(stage.stamp(seconds=120))
        assert not lane.shared

    async def test_a_live_claim_of_another_instance_is_refused(self, stage: Stage, clock: FakeClock) -> None:
        await taken(stage)
        result = await take(stage.context(), wanted("a1", "i2"))
        assert isinstance(result, Refused)
        assert (result.refusal.holder, result.refusal.seen, result.refusal.instance) == ("a1", "live", "i1")
        assert (await stage.record(CLAIM))["instance_id"] == "i1"

    async def test_a_dead_one_is_taken_over(self, stage: Stage, clock: FakeClock) -> None:
        await taken(stage, ttl=60)
        first = fence(await stage.record(CLAIM))
        clock.advance(seconds=240)
        await taken(stage, "a1", "i2", ttl=60)
        assert fence(await stage.record(CLAIM)) != first
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

    async def test_one_lost_before_the_heartbeat_protects_it_is_a_refusal_too(self, stage: Stage) -> None:
        async def rival() -> None:
            stage.lay(CLAIM, await stage.record(CLAIM) | {"agent_id": "a2"})

        result = await take(stage.context(FaultyStore(stage.store, at=2, first=rival)), wanted())
        assert isinstance(result, Refused)
        assert result.refusal.holder == "a2"
        assert (await stage.record(CLAIM))["agent_id"] == "a2"

    async def test_the_first_heartbeat_says_what_the_claim_says(self, stage: Stage) -> None:
        said = {"phase": "testing", "host": "codex", "generation": 2, "synthetic": True}
        await stage.beat("a1", ttl=1, metadata={"instance_id": "i0", "operator": "of another life"})
        await taken(stage, branch="b", batch_id="b1", metadata=said)
        beat = await stage.record(BEAT)
        said |= {"branch": "b", "batch_id": "b1", "repo": REPO, "target": "7", "instance_id": "i1"}
        assert {name: beat[name] for name in said} == said
        assert "operator" not in beat
        await taken(stage, branch="b", batch_id="b1", metadata=said | {"phase": "later"})
        assert (await stage.record(BEAT))["phase"] == "later"

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
        lane = await taken(stage, ttl=3600)
        claim = await stage.record(CLAIM)
        clock.advance(seconds=300)
        kept = await renew(stage.context(), lane)
        assert await stage.record(CLAIM) == claim
        assert (await stage.record(BEAT))["expires_at"] == stage.stamp(seconds=900)
        assert isinstance(kept, Renewed)
        assert kept.until == parse(claim["expires_at"])
        clock.advance(seconds=1501)
        await renew(stage.context(), lane)
        later = await stage.record(CLAIM)
        assert later == claim | {"updated_at": stage.stamp(), "expires_at": stage.stamp(seconds=3600)}

    async def test_what_is_fresh_is_not_written_again(self, stage: Stage, clock: FakeClock) -> None:
        lane, store = await taken(stage), FaultyStore(stage.store)
        assert isinstance(await renew(stage.context(store), lane), Renewed)
        assert store.writes == 0
        clock.advance(seconds=1)
        await renew(stage.context(store), lane)
        assert store.writes == 1

    async def test_news_in_the_middle_of_a_renewal_stays(self, stage: Stage, clock: FakeClock) -> None:
        lane = await taken(stage, ttl=60)
        clock.advance(seconds=40)

        async def beats() -> None:
            await stage.beat("a1", ttl=60, status="blocked", metadata={"phase": "waiting"})

        await renew(stage.context(FaultyStore(stage.store, at=1, first=beats)), lane)
        beat = await stage.record(BEAT)
        assert (beat["status"], beat["phase"], beat["updated_at"]) == ("blocked", "waiting", stage.stamp())
        clock.advance(seconds=40)

        async def claims() -> None:
            await stage.claim("a1", ttl=60, metadata={"pr_url": "https://example.org/1"})

        await renew(stage.context(FaultyStore(stage.store, at=2, first=claims)), lane)
        assert (await stage.record(CLAIM))["pr_url"] == "https://example.org/1"

    async def test_a_finished_agent_is_not_kept_alive(self, stage: Stage, clock: FakeClock) -> None:
        lane = await taken(stage, ttl=60)
        await stage.beat("a1", ttl=60, status="done")
        said = await stage.record(BEAT)
        clock.advance(seconds=40)
        before = await stage.records()
        assert await renew(stage.context(), lane) == Finished("a1 reported done", held=True)
        assert await stage.records() == before
        assert (await stage.record(BEAT)) == said

    async def test_a_lease_that_ran_out_and_nobody_took_is_still_ours(self, stage: Stage, clock: FakeClock) -> None:
        lane = await taken(stage, ttl=60)
        clock.advance(hours=8)
        first = fence(await stage.record(CLAIM))
        assert isinstance(await renew(stage.context(), lane), Renewed)
        assert fence(await stage.record(CLAIM)) == first
        assert isinstance(await stage.claim("a2"), Refused)

    async def test_one_that_somebody_took_is_lost(self, stage: Stage, clock: FakeClock) -> None:
        lane = await taken(stage, ttl=60)
        clock.advance(hours=8)
        await stage.claim("a2")
        before = await stage.records()
        assert await look(stage.context(), lane) == await renew(stage.context(), lane)
        assert await stage.records() == before

    async def test_one_instance_never_displaces_the_living_heartbeat_of_another(
        self, stage: Stage, clock: FakeClock
    ) -> None:
        lane = await taken(stage, ttl=60)
        clock.advance(seconds=20)
        await stage.beat("a1", ttl=60, metadata={"instance_id": "i2"})
        before = await stage.records()
        assert await renew(stage.context(), lane) == Lost("the heartbeat of a1 is another instance's", held=True)
        assert await stage.records() == before

    async def test_a_heartbeat_that_is_no_record_is_an_error_and_stays(self, stage: Stage) -> None:
        stage.lay(BEAT, [1])
        with pytest.raises(StoreError, match=BEAT):
            await taken(stage)
        assert await stage.record(BEAT) == [1]
        assert (await stage.record(CLAIM))["status"] == "released"

    async def test_a_claim_that_changes_at_every_attempt(self, stage: Stage, clock: FakeClock) -> None:
        lane = await taken(stage, ttl=60)
        clock.advance(seconds=40)

        class Contended(FaultyStore):
            async def write(self, path: str, document: object, *, version: str | None, note: str) -> str:
                raise Conflict(path)

        with pytest.raises(StoreError, match="renewal contention for a1"):
            await renew(stage.context(Contended(stage.store)), lane)


class TestAnAgentThatLivesBesides:
    async def test_its_heartbeat_is_prolonged_and_left(self, stage: Stage, clock: FakeClock) -> None:
        await stage.beat("a1", repo=REPO, target="8", metadata={"phase": "testing"})
        lane = await taken(stage)
        assert lane.shared
        clock.advance(seconds=600)
        await renew(stage.context(), lane)
        beat = await stage.record(BEAT)
        assert (beat["target"], beat["phase"], beat["updated_at"]) == ("8", "testing", stage.stamp())
        await mark_dead(stage.context(), lane)
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
        assert isinstance(await look(stage.context(), second), Renewed)
        beat = await stage.record(BEAT)
        assert (beat["instance_id"], beat["target"]) == ("i2", "8")
        await mark_dead(stage.context(), second)
        assert (await stage.record(BEAT))["expires_at"] == stage.stamp(seconds=1)

    async def test_one_that_starts_later_is_kept_alive_and_left(self, stage: Stage, clock: FakeClock) -> None:
        lane = replace(await taken(stage, ttl=60), shared=True)
        clock.advance(seconds=20)
        await stage.beat("a1", ttl=60, metadata={"instance_id": "i2"})
        clock.advance(seconds=20)
        assert isinstance(await renew(stage.context(), lane), Renewed)
        beat = await stage.record(BEAT)
        assert (beat["instance_id"], beat["updated_at"]) == ("i2", stage.stamp())
        assert not await mark_dead(stage.context(), lane)
        assert await stage.record(BEAT) == beat

    async def test_an_agent_that_said_it_was_done_begins_anew(self, stage: Stage, clock: FakeClock) -> None:
        await stage.beat("a1", status="done", repo=REPO, target="7")
        lane = await taken(stage)
        assert not lane.shared
        assert ((await stage.record(BEAT))["status"], (await stage.record(BEAT))["instance_id"]) == (
            "in_progress",
            "i1",
        )

    async def test_the_first_heartbeat_is_no_earlier_than_the_last(self, stage: Stage, clock: FakeClock) -> None:
        await taken(stage)
        ahead = stage.stamp()
        clock.advance(seconds=-3600)
        await taken(stage, "a1", "i2", exclusive=False)
        beat = await stage.record(BEAT)
        assert (beat["instance_id"], beat["updated_at"]) == ("i2", ahead)
        assert liveness(beat, clock.now()) == "live"

    async def test_what_an_earlier_one_left_is_not_alive(self, stage: Stage) -> None:
        first = await taken(stage)
        await give_back(stage.context(), first)
        await mark_dead(stage.context(), first)
        assert not (await taken(stage, "a1", "i2")).shared
