"""Whether a caller is still there is asked of the system, not of a loop that may not have looked yet."""

import json
import socket

import anyio

from tests.command import PATIENCE
from tests.daemon.hosting import hosted


async def test_who_hung_up_is_gone_before_the_loop_knows() -> None:
    async with hosted() as host:
        reader = await host.subscriber()
        [connection] = host.hall.present
        assert connection.standing()
        reader.end.send(json.dumps({"id": 2, "method": "subscribe", "params": {}}).encode())
        reader.end.close()
        assert not connection.standing(), "although what was said before is still unread"
        with anyio.fail_after(PATIENCE):
            while host.hall.present:
                await anyio.lowlevel.checkpoint()
        assert not connection.standing()


async def test_who_says_that_nothing_more_comes_has_left_its_commands() -> None:
    async with hosted() as host:
        reader = await host.subscriber()
        [connection] = host.hall.present
        reader.end.shutdown(socket.SHUT_WR)
        assert not connection.standing()


async def test_another_thread_may_ask() -> None:
    async with hosted() as host:
        reader = await host.subscriber()
        [connection] = host.hall.present
        assert await anyio.to_thread.run_sync(connection.standing)
        reader.end.close()
        assert not await anyio.to_thread.run_sync(connection.standing)
