"""Queueing what has no clear answer, and delivering it: once, in spite of an end at any step."""

from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any

import pytest
from msgspec.structs import replace

from agentcoord.errors import Defect, Rejected, StoreError, Undecided, Unreadable
from agentcoord.operations.context import Context
from agentcoord.operations.events import record_event
from agentcoord.operations.heartbeats import heartbeat
from agentcoord.operations.outbox import deliver
from agentcoord.protocol.documents import is_document
from agentcoord.protocol.events import Said
from agentcoord.protocol.heartbeats import Beat
from agentcoord.protocol.outbox import Late, LateBeat, LateEvent, Taken
from agentcoord.protocol.statuses import normalize
from agentcoord.stores.base import Store, Stored, Version
from agentcoord.stores.memory import MemoryStore
from tests.operations.stage import Stage

SAID = Said(batch_id="b1", type="note", message="hello")
PATH = "heartbeats/ana.json"


class Queue:
    """An outbox that keeps things in a list."""

    def __init__(self, *held: str, fault: str | None = None) -> None:
        self.held, self.fault = held, fault
        self.entries: list[Late] = []

    async def holds(self, lane: str) -> bool:
        return lane in self.held

    async def put(self, late: Late) -> None:
        if self.fault is not None:
            raise StoreError(self.fault)
        self.entries.append(late)


class Cut:
    """A store whose n-th question is the last: nothing comes of it, or only its answer is lost."""

    def __init__(self, inner: Store, at: int, *, landed: bool, error: Callable[[], Exception]) -> None:
        self.inner, self.at, self.landed, self.error = inner, at, landed, error
        self.asked = 0

    def _count(self) -> bool:
        self.asked += 1
        return self.asked == self.at

    async def read(self, path: str) -> Stored | None:
        if self._count():
            raise self.error()
        return await self.inner.read(path)

    async def write(self, path: str, document: object, *, version: Version | None, note: str) -> Version:
        last = self._count()
        if last and not self.landed:
            raise self.error()
        written = await self.inner.write(path, document, version=version, note=note)
        if last:
            raise self.error()
        return written

    async def delete(self, path: str, *, version: Version, note: str) -> None:
        raise AssertionError("nothing is removed")

    async def check(self, *, writable: bool) -> None:
        raise AssertionError("nothing is checked")

    async def list(self, prefix: str, **more: Any) -> Any:
        raise AssertionError("nothing is listed")


def unclear() -> Undecided:
    return Undecided("the backend did not answer")


def beat(**more: Any) -> Beat:
    return Beat(agent_id="ana", ttl=900, status=normalize("in_progress"), **more)


def within(stage: Stage, queue: Queue | None, store: Store | None = None) -> Context:
    return replace(stage.context(store), outbox=queue)


async def test_an_event_without_a_clear_answer_is_queued_as_it_would_have_been_written(stage: Stage) -> None:
    queue = Queue()
    context = within(stage, queue, Cut(stage.store, 1, landed=False, error=unclear))
    recorded = await record_event(context, SAID)
    assert recorded.queued
    assert queue.entries == [LateEvent(recorded.record)]
    assert await stage.records() == {}
    [notice] = context.notices
    assert "the backend did not answer" in notice


@pytest.mark.parametrize("status", [400, 401, 403, 404, 413])
async def test_a_refusal_is_no_reason_to_queue(stage: Stage, status: int) -> None:
    queue = Queue()
    error = Rejected("no", status=status, reason="no")
    for deed in (record_event, heartbeat):
        context = within(stage, queue, Cut(stage.store, 1, landed=False, error=lambda: error))
        with pytest.raises(Rejected):
            await (record_event(context, SAID) if deed is record_event else heartbeat(context, beat()))
    assert queue.entries == []


async def test_without_an_outbox_it_is_an_error_as_ever(stage: Stage) -> None:
    with pytest.raises(Undecided):
        await record_event(within(stage, None, Cut(stage.store, 1, landed=False, error=unclear)), SAID)
    with pytest.raises(Undecided):
        await heartbeat(within(stage, None, Cut(stage.store, 2, landed=False, error=unclear)), beat())


async def test_nothing_overtakes_what_waits(stage: Stage) -> None:
    queue = Queue("batch b1", "agent ana")
    context = within(stage, queue)
    assert (await record_event(context, SAID)).queued
    assert (await heartbeat(context, beat())).queued
    assert await stage.records() == {}
    assert not (await record_event(context, replace(SAID, batch_id="b2"))).queued
    assert not (await heartbeat(context, replace(beat(), agent_id="ben"))).queued
    assert [late.lane for late in queue.entries] == ["batch b1", "agent ana"]


async def test_an_outbox_that_takes_nothing_says_so_beside_what_went_wrong(stage: Stage) -> None:
    context = within(stage, Queue(fault="it is full"), Cut(stage.store, 1, landed=False, error=unclear))
    with pytest.raises(StoreError, match="^the backend did not answer; not queued: it is full$"):
        await record_event(context, SAID)


async def test_the_event_of_a_phase_is_queued_when_only_its_beat_arrived(stage: Stage) -> None:
    await stage.beat("ana", batch_id="b1", metadata={"phase": "coding"})
    queue = Queue()
    context = within(stage, queue, Cut(stage.store, 3, landed=False, error=unclear))
    beaten = await heartbeat(context, beat(metadata={"phase": "testing"}))
    assert not beaten.queued
    [late] = queue.entries
    assert isinstance(late, LateEvent)
    assert late.record["type"] == "phase.changed"


# Delivery --------------------------------------------------------------------------------------------


class Killed(Exception):
    """The process ends here."""


class Row:
    """An entry as the database keeps it, delivered by one daemon after the other until it is gone."""

    def __init__(self, late: Late) -> None:
        self.late: Late | None = late

    async def note(self, late: LateBeat) -> None:
        self.late = late

    async def deliver(self, store: Store, renewed: datetime | None = None) -> None:
        while self.late is not None:
            follows = await deliver(store, self.late, self.note, renewed)
            self.late = follows


@pytest.mark.parametrize("landed", [False, True])
@pytest.mark.parametrize("at", range(1, 5))
@pytest.mark.parametrize("queued_at", [None, 1, 2])
async def test_a_phase_change_arrives_once_with_its_event_whatever_step_is_the_last(
    stage: Stage, at: int, landed: bool, queued_at: int | None
) -> None:
    """The command ends without an answer to its n-th question; then a daemon is killed at each of its own."""
    await stage.beat("ana", batch_id="b1", metadata={"phase": "coding"})
    stage.clock.advance(minutes=1)
    queue = Queue(*([] if queued_at else ["agent ana"]))
    context = within(stage, queue, Cut(stage.store, queued_at or 0, landed=landed, error=unclear))
    assert (await heartbeat(context, beat(metadata={"phase": "testing"}))).queued
    row = Row(queue.entries[0])
    writes = stage.store
    try:
        await row.deliver(Cut(writes, at, landed=landed, error=Killed))
    except Killed:
        pass
    stage.clock.advance(minutes=9)
    await row.deliver(stage.store)
    records = await stage.records()
    events = [document for path, document in records.items() if path.startswith("events/b1/")]
    assert [(event["type"], event["phase"], event["previous_phase"]) for event in events] == [
        ("phase.changed", "testing", "coding")
    ]
    assert records[PATH]["phase"] == "testing"
    assert records[PATH]["updated_at"] == events[0]["at"] == "2026-01-01T00:01:00Z"


@pytest.mark.parametrize("landed", [False, True])
@pytest.mark.parametrize("at", [1, 2])
async def test_an_event_arrives_once_whatever_step_is_the_last(stage: Stage, at: int, landed: bool) -> None:
    queue = Queue()
    await record_event(within(stage, queue, Cut(stage.store, 1, landed=landed, error=unclear)), SAID)
    row = Row(queue.entries[0])
    try:
        await row.deliver(Cut(stage.store, at, landed=landed, error=Killed))
    except Killed:
        pass
    await row.deliver(stage.store)
    assert list((await stage.records()).values()) == [queue.entries[0].record]  # type: ignore[union-attr]


async def test_a_name_with_another_content_is_refused_for_good(stage: Stage) -> None:
    queue = Queue("batch b1")
    await record_event(within(stage, queue), SAID)
    [late] = queue.entries
    assert isinstance(late, LateEvent)
    stage.lay(late.path, late.record | {"message": "another"})
    with pytest.raises(Taken, match="another event stands at events/b1/"):
        await Row(late).deliver(stage.store)


async def test_a_token_that_may_only_write_takes_a_name_that_is_there_for_its_own(stage: Stage) -> None:
    queue = Queue("batch b1")
    await record_event(within(stage, queue), SAID)
    [late] = queue.entries
    await Row(late).deliver(stage.store)
    hidden = Unreadable("not yours", path=late.path, defect=Defect.FORBIDDEN)
    row = Row(late)
    await row.deliver(Cut(stage.store, 2, landed=False, error=lambda: hidden))
    assert row.late is None


class Counting(MemoryStore):
    writes = 0

    async def write(self, path: str, document: object, *, version: Version | None, note: str) -> Version:
        self.writes += 1
        return await super().write(path, document, version=version, note=note)


async def test_time_never_goes_backwards(stage: Stage) -> None:
    queue = Queue("agent ana")
    await heartbeat(within(stage, queue), beat(branch="old"))
    stage.clock.advance(seconds=1)
    await stage.beat("ana", branch="new")
    before = await stage.records()
    row = Row(queue.entries[0])
    await row.deliver(stage.store)
    assert row.late is None
    assert await stage.records() == before


async def _renew(stage: Stage) -> datetime:
    """Make the heartbeat's times anew, as a keeper does."""
    record = await stage.record(PATH)
    stage.lay(PATH, record | {"updated_at": stage.stamp(), "expires_at": stage.stamp(seconds=900)})
    return stage.clock.instant


async def test_a_renewal_outruns_no_news(stage: Stage) -> None:
    await stage.beat("ana", batch_id="b1", metadata={"phase": "coding"})
    queue = Queue("agent ana")
    stage.clock.advance(minutes=1)
    await heartbeat(within(stage, queue), beat(metadata={"phase": "testing"}))
    await heartbeat(within(stage, queue), beat(metadata={"host": "h"}))
    stage.clock.advance(minutes=1)
    renewed = await _renew(stage)
    for late in queue.entries:
        for _ in range(2):  # as if the first answer had been lost
            await Row(late).deliver(stage.store, renewed)
    record = await stage.record(PATH)
    assert (record["updated_at"], record["expires_at"]) == (stage.stamp(), stage.stamp(seconds=900))
    assert (record["phase"], record["host"]) == ("testing", "h")
    [event] = await stage.events()
    assert (event["phase"], event["at"]) == ("testing", stage.stamp(seconds=-60))


async def test_a_phase_change_whose_answer_was_lost_before_a_renewal_keeps_its_event(stage: Stage) -> None:
    await stage.beat("ana", batch_id="b1", metadata={"phase": "coding"})
    queue = Queue("agent ana")
    await heartbeat(within(stage, queue), beat(metadata={"phase": "testing"}))
    row = Row(queue.entries[0])
    with pytest.raises(Killed):
        await row.deliver(Cut(stage.store, 2, landed=True, error=Killed))
    stage.clock.advance(minutes=1)
    await row.deliver(stage.store, await _renew(stage))
    assert [event["phase"] for event in await stage.events()] == ["testing"]


async def test_two_beats_of_one_second_both_count_and_neither_twice(stage: Stage) -> None:
    queue = Queue("agent ana")
    await heartbeat(within(stage, queue), beat(branch="x"))
    await heartbeat(within(stage, queue), beat(metadata={"phase": "p"}))
    store = Counting()
    for late in (*queue.entries, queue.entries[-1]):
        await Row(late).deliver(store)
    stored = await store.read(PATH)
    assert stored is not None
    assert is_document(stored.document)
    assert (stored.document["branch"], stored.document["phase"], store.writes) == ("x", "p", 2)


async def test_a_beat_keeps_what_the_one_before_it_said_as_if_it_had_been_in_time(stage: Stage) -> None:
    queue = Queue("agent ana")
    await heartbeat(within(stage, queue), beat(repo="o/r", target="7", branch="x"))
    stage.clock.advance(minutes=5)
    await heartbeat(within(stage, queue), beat())
    stage.clock.advance(minutes=5)
    for late in queue.entries:
        await Row(late).deliver(stage.store)
    record = await stage.record(PATH)
    assert (record["branch"], record["updated_at"]) == ("x", stage.stamp(seconds=-int(timedelta(minutes=5).seconds)))
