"""Clocks, and what is noticed when one of them jumps."""

import anyio
import pytest

from agentcoordd.clock import Jumps, SystemClock
from tests.daemon.stage import FakeTime


async def test_the_clock_goes_forward_and_waits_no_longer_than_it_should() -> None:
    clock = SystemClock()
    began = clock.boot()
    await clock.wait(anyio.Event(), 0.01)
    assert clock.boot() >= began + 0.01
    told = anyio.Event()
    told.set()
    await clock.wait(told, 3600)
    await clock.wait(anyio.Event(), -5)


@pytest.mark.parametrize(
    ("boot", "wall", "said"),
    [
        (1, 1, None),
        (4, 4, None),  # a busy machine
        (1, 2.5, None),  # drift is corrected in small steps
        (3600, 3600, "3599 s went by unseen"),
        (1, 3601, "the wall clock was set by +3600 s"),
        (1, -3599, "the wall clock was set by -3600 s"),
    ],
)
async def test_a_jump_is_noticed_once(boot: float, wall: float, said: str | None) -> None:
    time = FakeTime()
    jumps = Jumps(time)
    await time.jump(boot, wall=wall)
    assert jumps.look(1) == said
    await time.jump(1)
    assert jumps.look(1) is None
