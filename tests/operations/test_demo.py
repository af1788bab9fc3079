"""The walkthrough: exact lines, and an end when an answer is not what it says."""

import pytest

from agentcoord.errors import StoreError
from agentcoord.operations.demo import walk
from agentcoord.stores.memory import MemoryStore
from tests.operations.stage import FaultyStore, Stage

LINES = """\
agent-coord demo
mode: isolated local store — no remote writes; temporary state is removed on exit

1. demo-alpha claims demo/example#1 and starts a 60-second heartbeat
   $ agent-coord claim --agent-id demo-alpha --repo demo/example --target 1 --ttl 3600
   claimed demo/example#1 by demo-alpha
   $ agent-coord heartbeat --agent-id demo-alpha --repo demo/example --target 1 --ttl 60

2. demo-beta tries the same target while demo-alpha is live
   $ agent-coord claim --agent-id demo-beta --repo demo/example --target 1
   CLAIM_REFUSED: active claim for demo/example#1 held by demo-alpha; heartbeat live

3. logical time advances; status reports the holder heartbeat
   $ agent-coord status --repo demo/example --target 1 --json
   demo-alpha heartbeat stale

4. logical time advances; status reports the holder heartbeat
   $ agent-coord status --repo demo/example --target 1 --json
   demo-alpha heartbeat dead

5. demo-beta retries after the holder heartbeat is dead
   $ agent-coord claim --agent-id demo-beta --repo demo/example --target 1
   takeover succeeded; holder is demo-beta

demo complete; temporary state removed
"""


async def test_the_walkthrough_says_what_happened(stage: Stage) -> None:
    assert "".join(f"{line}\n" for line in await walk(stage.store, stage.chance)) == LINES


@pytest.mark.parametrize("write", [1, 2, 3])
async def test_a_step_that_fails_ends_it(stage: Stage, write: int) -> None:
    store = FaultyStore(stage.store, at=write, error=lambda path: StoreError(f"no room for {path}"))
    step = 5 if write == 3 else 1
    with pytest.raises(StoreError, match=f"demo step {step} failed: no room for "):
        await walk(store, stage.chance)


async def test_an_answer_that_was_not_expected_ends_it(stage: Stage) -> None:
    stage.lay("claims/demo/example/1.json", {"status": "active", "agent_id": "x", "expires_at": "2027-01-01T00:00:00Z"})
    with pytest.raises(StoreError, match="demo step 1 failed: expected claimed"):
        await walk(stage.store, stage.chance)


async def test_it_is_the_same_every_time(stage: Stage) -> None:
    assert await walk(MemoryStore(), stage.chance) == await walk(MemoryStore(), stage.chance)
