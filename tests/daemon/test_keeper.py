"""The keeper's rules, on a clock that a test moves and processes that it ends."""

import logging
from datetime import timedelta
from typing import Any

import anyio
import pytest

from agentcoord.errors import StoreError, UsageError
from agentcoord.operations.claims import Claimed, Refused
from agentcoord.protocol.agents import Process
from agentcoord.protocol.claims import fence
from agentcoord.protocol.instants import parse
from agentcoord.protocol.keeping import Lane
from agentcoord.protocol.liveness import liveness
from agentcoordd.backends import LocalBackend
from agentcoordd.services.keeper import Hold
from tests.daemon.stage import MEMORY, START, KeeperStage, both, hold, settled
from tests.operations.stage import CLAIM

BEAT = "heartbeats/a1.json"


@pytest.fixture
def stage() -> KeeperStage:
    return KeeperStage()


async def held(stage: KeeperStage, lane: Lane | None = None, pid: int | None = 100, **claim: Any) -> None:
    lane = lane or both()
    if lane.target is not None:
        await stage.records().claim(lane.agent_id, lane.target, ttl=lane.ttl, **claim)
    if pid is not None and pid not in stage.processes.running:
        stage.processes.start(pid)
    await stage.keeper.hold(hold(lane, pid))


async def test_a_busy_agent_stays_live_for_hours_and_keeps_its_fence(stage: KeeperStage) -> None:
    stage.again(tick=5)
    async with stage.running():
        await held(stage)
        first = fence(await stage.records().record(CLAIM))
        for _ in range(3 * 60):
            await stage.time.pass_by(60, step=5)
            assert liveness(await stage.records().record(BEAT), stage.time.now()) == "live"
        assert isinstance(await stage.records().claim("a2"), Refused)
        claim = await stage.records().record(CLAIM)
        assert fence(claim) == first
        assert claim["expires_at"] > stage.records().stamp()
        assert stage.heard.topics == ["lease.held"]
        assert await stage.records().events() == []


async def test_it_tells_of_when_the_heartbeat_is_that_it_renewed(stage: KeeperStage) -> None:
    async with stage.running():
        assert stage.keeper.beaten(MEMORY, "a1") is None
        await held(stage)
        await stage.time.pass_by(600)
        beaten = stage.keeper.beaten(MEMORY, "a1")
        assert beaten == parse((await stage.records().record(BEAT))["updated_at"])
        assert beaten is not None
        assert beaten > START
        assert stage.keeper.beaten(MEMORY, "a2") is stage.keeper.beaten(LocalBackend("/other"), "a1") is None


async def test_what_becomes_of_a_lease_is_in_the_log(stage: KeeperStage, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "agentcoordd")
    async with stage.running():
        await held(stage)
        (lane,) = stage.roster.entries
        stage.processes.end(100)
        await settled()
    said = [record.getMessage() for record in caplog.records]
    assert said == [f"lease.held a1 lane={lane}", f"process.exited a1 lane={lane}: process 100 of a1 exited"]


async def test_a_roster_that_takes_no_notes_is_told_of_once_until_it_does(
    stage: KeeperStage, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "agentcoordd")
    async with stage.running():
        await held(stage)
        for full in (True, False, True):
            stage.roster.full = full
            await stage.time.pass_by(600, step=5)
    said = [record.getMessage() for record in caplog.records]
    assert said == ["the roster takes no notes: no room"] * 2


async def test_the_dead_are_declared_dead_at_once(stage: KeeperStage) -> None:
    async with stage.running():
        await held(stage, batch_id="b1")
        stage.processes.end(100)
        await settled()
        beat = await stage.records().record(BEAT)
        assert liveness(beat, stage.time.now() + timedelta(seconds=4)) == "dead"
        assert stage.state() == "dead"
        assert stage.heard.topics == ["lease.held", "process.exited"]
        assert stage.heard.posted == ["process.exited"]
        assert [event["type"] for event in await stage.records().events()] == ["claim.acquired", "process.exited"]
        assert stage.roster.entries == {}
        await stage.time.pass_by(4)
        assert isinstance(await stage.records().claim("a2"), Claimed)


async def test_an_exit_is_told_to_a_backend_that_was_down(stage: KeeperStage) -> None:
    async with stage.running():
        await held(stage)
        stage.backends.down = True
        stage.processes.end(100)
        await stage.time.pass_by(10)
        assert liveness(await stage.records().record(BEAT), stage.time.now()) == "live"
        stage.backends.down = False
        await stage.time.pass_by(15)
        assert liveness(await stage.records().record(BEAT), stage.time.now()) == "dead"


@pytest.mark.parametrize("step", [0, -3600])
async def test_an_agent_that_beats_anew_before_the_backend_is_back_is_not_buried(stage: KeeperStage, step: int) -> None:
    async with stage.running():
        await held(stage)
        await held(stage, both("a3", target="9"), pid=200)
        await stage.time.jump(1, wall=1 + step)  # the heartbeat of a3 is ahead of the clock then, and a3 dead for good
        stage.backends.down = True
        stage.processes.end(100)
        stage.processes.end(200)
        await stage.time.pass_by(10)
        await stage.time.jump(1, wall=1 - step)
        await stage.records().beat("a1", ttl=60)
        stage.backends.down = False
        await stage.time.pass_by(15)
        assert (stage.state("a1"), stage.state("a3")) == ("dead", "dead")
        assert liveness(await stage.records().record(BEAT), stage.time.now()) == "live"
        assert liveness(await stage.records().record("heartbeats/a3.json"), stage.time.now()) == "dead"


async def test_an_exit_interrupts_a_renewal_that_hangs(stage: KeeperStage) -> None:
    async with stage.running():
        await held(stage)
        stage.backends.hangs = anyio.Event()
        await stage.time.pass_by(21)
        assert stage.backends.at_once == 1
        stage.processes.end(100)
        await settled()
        stage.backends.hangs.set()
        stage.backends.hangs = None
        await settled()
        assert liveness(await stage.records().record(BEAT), stage.time.now() + timedelta(seconds=4)) == "dead"


async def test_one_heartbeat_of_two_lanes_lives_as_long_as_either_process(stage: KeeperStage) -> None:
    async with stage.running():
        await held(stage, both(target="7"), pid=100)
        await held(stage, both(target="8"), pid=200)
        stage.processes.end(100)
        await stage.time.pass_by(300)
        assert liveness(await stage.records().record(BEAT), stage.time.now()) == "live"
        stage.processes.end(200)
        await stage.time.pass_by(4)
        assert liveness(await stage.records().record(BEAT), stage.time.now()) == "dead"


async def test_a_displaced_holder_is_told_and_nothing_is_written(stage: KeeperStage) -> None:
    async with stage.running():
        await held(stage, batch_id="b1")
        claim = await stage.records().record(CLAIM)
        stage.records().lay(CLAIM, claim | {"agent_id": "a2"})
        before = await stage.records().record(BEAT)
        await stage.time.pass_by(30)
        assert stage.state() == "lost"
        assert await stage.records().record(BEAT) == before
        assert await stage.records().record(CLAIM) == claim | {"agent_id": "a2"}
        topic, data = stage.heard.events[-1]
        assert (topic, data["agent_id"], data["why"]) == ("lease.lost", "a1", "o/r#7 is now held by a2")
        assert [event["type"] for event in await stage.records().events()] == ["claim.acquired", "lease.lost"]
        assert stage.roster.entries == {}


async def test_an_agent_that_says_it_is_done_is_finished(stage: KeeperStage) -> None:
    async with stage.running():
        await held(stage)
        await stage.time.pass_by(1)
        await stage.records().beat("a1", status="done", repo="o/r", target="7")
        await stage.time.pass_by(30)
        assert stage.state() == "finished"
        assert (await stage.records().record(BEAT))["status"] == "done"


async def test_a_backend_that_fails_and_comes_back(stage: KeeperStage) -> None:
    async with stage.running():
        await held(stage, batch_id="b1")
        stage.backends.down = True
        await stage.time.pass_by(47)
        assert (stage.state(), stage.heard.topics) == ("kept", ["lease.held"])
        await stage.time.pass_by(2)
        assert stage.state() == "expiring"
        assert stage.heard.topics == ["lease.held", "lease.expiring"]
        await stage.time.pass_by(12)
        assert stage.heard.topics == ["lease.held", "lease.expiring", "lease.expired"]
        assert stage.keeper.list()[0].error == "the backend does not answer"
        await stage.time.pass_by(60)
        stage.backends.down = False
        await stage.time.pass_by(11)
        assert stage.state() == "kept"
        assert stage.heard.topics[3:] == ["lease.held"]
        assert stage.heard.posted == ["lease.expiring", "lease.expired"]
        assert liveness(await stage.records().record(BEAT), stage.time.now()) == "live"
        told = [event["type"] for event in await stage.records().events()]
        assert sorted(told) == ["claim.acquired", "lease.expired", "lease.expiring"]


async def test_after_a_suspend_a_process_number_that_came_again_is_noticed(stage: KeeperStage) -> None:
    async with stage.running():
        await held(stage)
        await held(stage, both("a3", target="9"))
        claim = await stage.records().record(CLAIM)
        stage.records().lay(CLAIM, claim | {"agent_id": "a2"})
        stage.processes.start(100, started="2")  # its number came again, and nobody told
        await stage.time.jump(30)
        await stage.time.pass_by(2)
        assert (stage.state("a1"), stage.state("a3")) == ("dead", "dead")
        assert liveness(await stage.records().record(BEAT), stage.time.now() + timedelta(seconds=4)) == "dead"
        assert await stage.records().record(CLAIM) == claim | {"agent_id": "a2"}


async def test_after_a_suspend_the_living_go_on_and_the_displaced_do_not(stage: KeeperStage) -> None:
    async with stage.running():
        await held(stage)
        await held(stage, both("a3", target="9"))
        before = await stage.records().record(BEAT)
        claim = await stage.records().record(CLAIM)
        stage.records().lay(CLAIM, claim | {"agent_id": "a2"})
        await stage.time.jump(9 * 3600)
        await stage.time.pass_by(1)
        assert (stage.state("a1"), stage.state("a3")) == ("lost", "kept")
        assert await stage.records().record(BEAT) == before
        assert liveness(await stage.records().record("heartbeats/a3.json"), stage.time.now()) == "live"


@pytest.mark.parametrize("step", [3600, -3600])
async def test_a_wall_clock_that_is_set_lapses_nothing(stage: KeeperStage, step: int) -> None:
    async with stage.running():
        await held(stage)
        await stage.time.pass_by(5)
        await stage.time.jump(1, wall=step)
        for _ in range(3):
            assert liveness(await stage.records().record(BEAT), stage.time.now()) == "live"
            await stage.time.pass_by(60)
        assert stage.heard.topics == ["lease.held"]
        assert isinstance(await stage.records().claim("a2"), Refused)
        stage.processes.end(100)
        await stage.time.pass_by(4)
        assert liveness(await stage.records().record(BEAT), stage.time.now()) == "dead"


async def test_a_restart_goes_on_with_the_roster(stage: KeeperStage) -> None:
    async with stage.running():
        await held(stage)
        await held(stage, both("a3", target="9"), pid=200)
        await held(stage, both("a4", target="10"), pid=300, batch_id="b1")
        await stage.time.pass_by(4)
    stage.processes.end(200)
    claim = await stage.records().record("claims/o/r/10.json")
    stage.records().lay("claims/o/r/10.json", claim | {"agent_id": "a2"})
    await stage.time.jump(20)
    stage.again()
    async with stage.running():
        assert [stage.state(agent) for agent in ("a1", "a3", "a4")] == ["kept", "dead", "lost"]
        assert liveness(await stage.records().record(BEAT), stage.time.now()) == "live"
        await stage.time.pass_by(4)
        assert liveness(await stage.records().record("heartbeats/a3.json"), stage.time.now()) == "dead"
        assert len(stage.roster.entries) == 1
        assert [event["type"] for event in await stage.records().events()] == ["claim.acquired", "lease.lost"]


async def test_what_is_not_served_any_more_is_left_on_the_roster(stage: KeeperStage) -> None:
    async with stage.running():
        await held(stage)
    stage.backends.serves = False
    stage.again()
    async with stage.running():
        assert list(stage.keeper.list()) == []
        assert len(stage.roster.entries) == 1


async def test_whoever_beat_while_nobody_watched_is_not_buried(stage: KeeperStage) -> None:
    async with stage.running():
        await held(stage)
        await stage.time.pass_by(4)
    stage.processes.end(100)
    await stage.time.jump(5)
    await stage.records().beat("a1", ttl=60)
    stage.again()
    async with stage.running():
        assert stage.state() == "dead"
        assert liveness(await stage.records().record(BEAT), stage.time.now()) == "live"


async def test_a_lane_held_again_is_one_lane_with_the_new_process(stage: KeeperStage) -> None:
    async with stage.running():
        await held(stage)
        stage.processes.start(200)
        await stage.keeper.hold(hold(both(), 200))
        assert [view.pid for view in stage.keeper.list()] == [200]
        stage.processes.end(100)
        await stage.time.pass_by(300)
        assert stage.state() == "kept"
        await stage.keeper.hold(hold(Lane("a1", 60, ("heartbeat",), "o/r", "7"), 200))
        [entry] = stage.roster.entries.values()
        assert entry.lane.kinds == ("heartbeat", "claim")


async def test_an_instance_that_is_displaced_by_another_hold_is_told(stage: KeeperStage) -> None:
    async with stage.running():
        await held(stage, metadata={"instance_id": "i1"})
        [entry] = stage.roster.entries.values()
        assert entry.lane.instance == "i1"  # whoever holds it now, and no later one
        stage.processes.start(200)
        await stage.time.pass_by(1)
        await stage.records().claim("a1", ttl=60, metadata={"instance_id": "i2"})
        await stage.records().beat("a1", ttl=60, metadata={"instance_id": "i2"})
        await stage.keeper.hold(hold(both(instance="i2"), 200))
        assert stage.heard.topics == ["lease.held", "lease.lost", "lease.held"]
        stage.processes.end(100)
        await stage.time.pass_by(60)
        assert liveness(await stage.records().record(BEAT), stage.time.now()) == "live"


async def test_an_agent_that_starts_anew_is_not_buried_with_the_last_one(stage: KeeperStage) -> None:
    async with stage.running():
        await held(stage)
        stage.backends.hangs = anyio.Event()
        stage.processes.end(100)
        await settled()
        stage.processes.start(200)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(stage.keeper.hold, hold(both(), 200))
            await settled()
            stage.backends.hangs.set()
            stage.backends.hangs = None
        await stage.time.pass_by(4)
        assert stage.state() == "kept"
        assert liveness(await stage.records().record(BEAT), stage.time.now()) == "live"


async def test_a_dropped_lane_is_left_as_it_is(stage: KeeperStage) -> None:
    async with stage.running():
        await held(stage)
        before = await stage.records().record(BEAT)
        [view] = stage.keeper.list()
        assert await stage.keeper.drop(view.lane)
        assert not await stage.keeper.drop(view.lane)
        stage.processes.end(100)
        await stage.time.pass_by(60)
        assert await stage.records().record(BEAT) == before
        assert (list(stage.keeper.list()), stage.roster.entries) == ([], {})
        assert stage.heard.topics == ["lease.held", "lease.dropped"]


async def test_the_agent_is_found_above_the_caller(stage: KeeperStage) -> None:
    stage.processes.start(100)
    stage.processes.above = [Process(50, "sh", ("sh", "-c", "x")), Process(100, "claude", ("claude",))]
    async with stage.running():
        await stage.records().claim("a1")
        view = await stage.keeper.hold(Hold(lane=both(), backend=MEMORY, from_pid=10))
        assert (view.pid, view.program) == (100, "claude")
        assert view.chosen == "claude is the nearest known agent, past sh"
        stage.processes.above = [Process(1, "init", ("/sbin/init",))]
        with pytest.raises(UsageError, match=r"no agent .*init \(1\).*--watch-pid"):
            await stage.keeper.hold(Hold(lane=both(), backend=MEMORY, from_pid=10))


async def test_what_cannot_be_kept_is_refused_and_not_kept(stage: KeeperStage) -> None:
    async with stage.running():
        with pytest.raises(StoreError, match="nothing to keep: the claim on o/r#7 is gone"):
            await stage.keeper.hold(hold(both()))
        await stage.records().claim("a2")
        with pytest.raises(StoreError, match="now held by a2"):
            await stage.keeper.hold(hold(both()))
        with pytest.raises(UsageError, match="no process 4711"):
            await stage.keeper.hold(hold(both("a2"), 4711))
        stage.backends.down = True
        with pytest.raises(StoreError, match="does not answer"):
            await stage.keeper.hold(hold(both("a2")))
        assert list(stage.keeper.list()) == []
        assert stage.roster.entries == {}


async def test_without_a_process_the_listing_says_so(stage: KeeperStage) -> None:
    async with stage.running():
        await held(stage, pid=None)
        [view] = stage.keeper.list()
        assert (view.pid, view.chosen) == (None, "no process is watched: kept until it is dropped")


async def test_a_backend_is_not_asked_more_at_once_than_it_may_be(stage: KeeperStage) -> None:
    stage.again(concurrency=3)
    async with stage.running():
        for number in range(20):
            await held(stage, both(f"a{number}", target=str(number)))
        await stage.time.pass_by(70)
        assert stage.keeper.renewals >= 60
        assert stage.backends.most <= 3
