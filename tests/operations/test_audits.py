"""Whether a batch may be closed out, and that nothing doubtful ever says yes."""

from typing import Any

import pytest

from agentcoord.operations.audit import Audited, audit
from agentcoord.operations.claims import ReleaseRequest, release
from agentcoord.protocol.documents import decode
from agentcoord.protocol.identity import Identity
from agentcoord.stores.base import Decode, Listing
from tests.operations.stage import FakeClock, FaultyStore, Stage, lane
from tests.stores.counting import CountingStore

M1 = Identity(machine_id="m1")


async def finish(stage: Stage, *, identity: Identity = M1, terminal: str | None = None) -> None:
    await stage.claim("a1", batch_id="b1")
    stage.clock.advance(seconds=1)
    await release(
        stage.context(identity=identity), ReleaseRequest(agent_id="a1", repo="o/r", target="7", terminal=terminal)
    )


def missing(audited: Audited) -> list[tuple[str, ...]]:
    return [lane.missing for lane in audited.lanes]


@pytest.mark.parametrize("terminal", [None, "done"])
async def test_a_lane_acquired_and_ended_is_complete(stage: Stage, terminal: str | None) -> None:
    stage.register(lane(), repo="o/r")
    await finish(stage, terminal=terminal)
    audited = await audit(stage.context(), "b1")
    assert (audited.verdict, missing(audited)) == ("complete", [()])
    assert audited.lanes[0].event_count == 2


async def test_each_lane_answers_for_itself(stage: Stage) -> None:
    stage.register(lane(), lane("qa", "a2", ("8",)), 7)  # pyright: ignore[reportArgumentType]
    await finish(stage)
    audited = await audit(stage.context(), "b1")
    assert audited.verdict == "incomplete"
    assert missing(audited) == [(), ("claim.acquired", "terminal"), ("claim.acquired", "terminal")]
    assert [lane.malformed for lane in audited.lanes] == [False, False, True]
    assert (audited.lanes[2].name, audited.lanes[2].targets) == ("UNKNOWN", ())


async def test_a_closeout_by_an_unknown_machine_does_not_count(stage: Stage) -> None:
    stage.register(lane())
    await finish(stage, identity=Identity(), terminal="done")
    assert missing(await audit(stage.context(), "b1")) == [("terminal",)]


async def test_events_of_another_repository_do_not_count(stage: Stage) -> None:
    stage.register(lane(), repo="o/other")
    await finish(stage)
    assert missing(await audit(stage.context(), "b1")) == [("claim.acquired", "terminal")]


@pytest.mark.parametrize("broken", [{"event_id": "UNKNOWN"}, {"at": "2026-02-30T00:00:00Z"}, {"at": None}])
async def test_a_history_out_of_order_authorizes_nobody(stage: Stage, broken: dict[str, Any]) -> None:
    stage.register(lane())
    await finish(stage)
    [event] = await stage.events(type_="claim.released")
    stage.lay(f"events/b1/{event['event_id']}.json", event | broken)
    assert missing(await audit(stage.context(), "b1")) == [("terminal", "lifecycle")]


async def test_a_stranger_releasing_is_a_broken_lifecycle(stage: Stage, clock: FakeClock) -> None:
    stage.register(lane())
    await finish(stage)
    [event] = await stage.events(type_="claim.released")
    stage.lay(f"events/b1/{event['event_id']}.json", event | {"agent_id": "a9"})
    assert missing(await audit(stage.context(), "b1")) == [("terminal", "lifecycle")]


@pytest.mark.parametrize("batch_id", ["", "a/b", "..", "a b", "ünï"])
async def test_a_batch_id_that_names_nothing_is_unknown_and_unread(stage: Stage, batch_id: str) -> None:
    store = CountingStore(stage.store)
    audited = await audit(stage.context(store), batch_id)
    assert (audited.verdict, audited.lanes) == ("unknown", ())
    assert audited.reason == f"coordination state unreadable: invalid batch-id: {batch_id}"
    assert store.reads == store.lists == []


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (None, "batch b1 is not registered"),
        (b"[]", "batch b1 state is not an object"),
        (b"null", "batch b1 state is not an object"),
        (b"{}", "batch b1 registers no lanes"),
        (b'{"lanes": []}', "batch b1 registers no lanes"),
        (b'{"lanes": {"a": 1}}', "batch b1 registers no lanes"),
    ],
)
async def test_a_batch_that_says_nothing_is_unknown(stage: Stage, data: bytes | None, reason: str) -> None:
    if data is not None:
        stage.store.plant("batches/b1.json", data)
    audited = await audit(stage.context(), "b1")
    assert (audited.verdict, audited.reason) == ("unknown", reason)


@pytest.mark.parametrize("path", ["batches/b1.json", "events/b1/e.json"])
async def test_what_cannot_be_read_is_unknown(stage: Stage, path: str) -> None:
    stage.register(lane())
    stage.store.plant(path, b"{")
    audited = await audit(stage.context(), "b1")
    assert audited.verdict == "unknown"
    assert audited.reason is not None
    assert audited.reason.startswith("coordination state unreadable: ")
    assert audited.reason.endswith(path)


@pytest.mark.parametrize("family", ["batches", "events"])
async def test_a_backend_that_does_not_answer_is_unknown(stage: Stage, family: str) -> None:
    stage.register(lane())
    audited = await audit(stage.context(FaultyStore(stage.store, unreadable=family)), "b1")
    assert audited.verdict == "unknown"


class Filtered(FaultyStore):
    """Shows what a scoped token may see."""

    async def list(self, prefix: str, *, decode: Decode = decode, at_most: int | None = None) -> Listing:
        return Listing((await self.inner.list(prefix, decode=decode, at_most=at_most)).entries, filtered=True)


async def test_a_trail_seen_in_part_is_unknown_even_if_that_part_is_complete(stage: Stage) -> None:
    stage.register(lane())
    await finish(stage)
    audited = await audit(stage.context(Filtered(stage.store)), "b1")
    assert (audited.verdict, audited.reason) == ("unknown", "event trail for b1 is filtered by a scoped token")


async def test_an_audit_reads_one_batch_and_its_trail(stage: Stage) -> None:
    stage.register(lane())
    store = CountingStore(stage.store)
    await audit(stage.context(store), "b1")
    assert (store.reads, store.lists, store.writes) == (["batches/b1.json"], ["events/b1"], [])


async def test_things_that_are_no_events_are_passed_over(stage: Stage) -> None:
    stage.register(lane())
    await finish(stage)
    stage.lay("events/b1/x.json", ["claim.acquired"])
    stage.lay("events/b1/y.json", {"type": 7, "lane": ["worker"], "target": {}, "agent_id": 1})
    assert (await audit(stage.context(), "b1")).verdict == "complete"
