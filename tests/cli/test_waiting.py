"""Steps that wait, in a process that has no event loop."""

import asyncio
import signal
import subprocess
import sys
import threading

import pytest

from agentcoord.cli.waiting import wait_for
from agentcoord.errors import StoreError
from agentcoord.stores.opening import settle
from tests.command import PATIENCE


def test_what_steps_raise_comes_out_of_the_loop_as_it_is() -> None:
    async def failing() -> None:
        await asyncio.sleep(0)
        raise StoreError("no")

    with pytest.raises(StoreError, match="^no$"):
        wait_for(failing)


def test_nobody_waits_for_a_name_that_is_still_looked_up() -> None:
    """A resolver without a network takes its time, and the thread it blocks cannot be stopped."""
    found = threading.Event()

    async def asking() -> None:
        looking = asyncio.get_running_loop().run_in_executor(None, found.wait)
        await asyncio.sleep(0)
        assert not looking.done()

    wait_for(asking)
    assert not found.is_set()
    found.set()


def test_a_signal_ends_the_steps_and_is_then_handled_by_who_handled_it_before() -> None:
    seen: list[object] = []

    def handle(number: int, frame: object) -> None:
        seen.append(number)

    async def waiting() -> None:
        signal.raise_signal(signal.SIGTERM)
        assert seen == [signal.SIGTERM]
        await asyncio.sleep(0)
        try:
            signal.raise_signal(signal.SIGTERM)
            await asyncio.Event().wait()
        finally:
            seen.append("ended")

    before = signal.signal(signal.SIGTERM, handle)
    try:
        wait_for(waiting)
        assert signal.getsignal(signal.SIGTERM) is handle
    finally:
        signal.signal(signal.SIGTERM, before)
    assert seen == [signal.SIGTERM, "ended", signal.SIGTERM]


def test_steps_that_wait_do_not_pass_for_such_that_do_not() -> None:
    async def waiting() -> None:
        await asyncio.sleep(0)

    with pytest.raises(StoreError, match="waited for something"):
        settle(waiting())


def test_where_no_loop_can_be_started_one_line_says_so() -> None:
    """As in a sandbox that refuses a process its own sockets; here there are no more descriptors for them."""
    program = (
        "import os, resource\n"
        "from agentcoord.cli.waiting import wait_for\n"
        "from agentcoord.errors import StoreError\n"
        "free = os.dup(0)\n"
        "os.close(free)\n"
        "resource.setrlimit(resource.RLIMIT_NOFILE, (free + 2, free + 2))\n"
        "try:\n"
        "    wait_for(None)\n"
        "except StoreError as error:\n"
        "    print(error)\n"
    )
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=PATIENCE)
    assert ran.stdout == "no remote backend can be asked from here: no event loop: Too many open files\n"
    assert ran.stderr == ""
