"""Events whose names are taken, by what the writer's token may not read."""

import pytest

from agentcoord.errors import Defect, Unreadable
from agentcoord.operations.context import Context
from agentcoord.operations.events import record_event
from agentcoord.protocol.events import Said
from agentcoord.stores.base import Stored
from agentcoord.stores.memory import MemoryStore
from tests.operations.stage import Chance, FakeClock

NOTE = Said(batch_id="spring", type="note", message="hello")


class WriteOnly(MemoryStore):
    async def read(self, path: str) -> Stored | None:
        raise Unreadable("forbidden", path=path, defect=Defect.FORBIDDEN)


@pytest.mark.parametrize(("again", "events"), [(False, 2), (True, 1)])
async def test_a_taken_name_is_one_s_own_only_where_the_same_was_begun_before(again: bool, events: int) -> None:
    store, clock = WriteOnly(), FakeClock()
    await record_event(Context(store=store, now=clock.now, random=Chance()), NOTE)
    await record_event(Context(store=store, now=clock.now, random=Chance(), again=again), NOTE)
    assert len(list((await store.list("events")).entries)) == events
