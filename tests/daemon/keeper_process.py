"""A keeper as a process of its own, for tests that kill it: `python -m tests.daemon.keeper_process DATABASE`.

Each line on standard input is a lane to hold, as the params of `lease.hold`; each is answered with a line.
"""

import asyncio
import sys

import anyio
import anyio.to_thread
import msgspec

from agentcoordd.api.dispatch import Caller
from agentcoordd.api.leases import methods
from agentcoordd.backends import OpenBackends
from agentcoordd.clock import SystemClock
from agentcoordd.database import open_database
from agentcoordd.processes import SystemProcesses
from agentcoordd.services.keeper import Keeper
from tests.daemon.stage import Heard


async def run(database: str) -> None:
    backends = OpenBackends({}, serves=lambda _: True, token_of=lambda _: None)
    async with open_database(database) as roster, backends, anyio.create_task_group() as tasks:
        keeper = Keeper(backends, roster, Heard(), SystemClock(), SystemProcesses(), tick=0.2)
        await tasks.start(keeper.run)
        print("ready", flush=True)  # noqa: T201 - what the test waits for
        hold = methods(keeper)[0]
        while line := await anyio.to_thread.run_sync(sys.stdin.readline):
            answer = await hold.call(msgspec.json.decode(line, type=hold.params), Caller(0, 0))
            print(answer.lane, flush=True)  # noqa: T201 - the answer
        tasks.cancel_scope.cancel()


if __name__ == "__main__":
    asyncio.run(run(sys.argv[1]))
