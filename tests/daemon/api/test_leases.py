"""What the socket's lease methods take and answer."""

import msgspec
import pytest

from agentcoord.errors import UsageError
from agentcoordd.api.dispatch import Caller
from agentcoordd.api.leases import methods
from tests.daemon.stage import KeeperStage

CALLER = Caller(pid=1, uid=1)
HOLD = """{"backend": {"kind": "local", "root": "/memory"}, "agent_id": "a1", "repo": "o/r", "target": "7",
    "kinds": ["heartbeat", "claim"], "ttl": 60, "pid": 100, "from_pid": null, "instance": null, "fence": null}"""


async def test_hold_list_drop() -> None:
    stage = KeeperStage()
    hold, listed, drop = methods(stage.keeper)
    assert [method.name for method in (hold, listed, drop)] == ["lease.hold", "lease.list", "lease.drop"]
    stage.processes.start(100)
    async with stage.running():
        await stage.records().claim("a1", ttl=60)
        answer = await hold.call(msgspec.json.decode(HOLD, type=hold.params), CALLER)
        assert msgspec.to_builtins(answer) == {
            "lane": answer.lane,
            "pid": 100,
            "program": "agent",
            "chosen": "named by the caller",
            "next_renewal": "2026-01-01T00:00:19Z",
        }
        [lane] = msgspec.to_builtins(await listed.call(listed.params(), CALLER))["lanes"]
        assert lane == {
            "lane": answer.lane,
            "agent_id": "a1",
            "repo": "o/r",
            "target": "7",
            "state": "kept",
            "pid": 100,
            "program": "agent",
            "chosen": "named by the caller",
            "ttl": 60,
            "last_renewal": "2026-01-01T00:00:00Z",
            "next_renewal": "2026-01-01T00:00:19Z",
            "error": None,
        }
        for dropped in (True, False):
            assert (await drop.call(drop.params(lane=answer.lane), CALLER)).dropped is dropped


async def test_nonsense_is_refused() -> None:
    stage = KeeperStage()
    hold = methods(stage.keeper)[0]
    async with stage.running():
        for wrong in ('"ttl": 60', '"agent_id": "a1"'):
            text = HOLD.replace(wrong, wrong.partition(":")[0] + ": -1" if "ttl" in wrong else '"agent_id": "../x"')
            with pytest.raises(UsageError):
                await hold.call(msgspec.json.decode(text, type=hold.params), CALLER)
    with pytest.raises(msgspec.ValidationError):
        msgspec.json.decode(HOLD.replace('"local"', '"github"'), type=hold.params)
