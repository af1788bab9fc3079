"""Rounds of retention leave the machine to others, however large the state is and however often they are asked for."""

from itertools import pairwise
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import pytest

from agentcoord.errors import StoreError
from agentcoord.protocol.retention import Policy
from agentcoordd.backends import LocalBackend
from agentcoordd.places import Place
from agentcoordd.services.retention import Rounds
from tests.daemon.running import until
from tests.daemon.test_mirror_sight import HastyClock, Here

pytestmark = pytest.mark.anyio


class Laborious(Here):
    """A backend on which everything takes a while."""

    def __init__(self, clock: HastyClock, takes: float) -> None:
        super().__init__(clock)
        self.takes = takes

    async def perform_aside(self, backend: Any, deed: Any) -> Any:
        done = await super().perform_aside(backend, deed)
        self.clock.seconds += self.takes
        return done


NIGHT = 8 * 60 * 60
"""Seconds that a machine may sleep in the middle of a round."""


@pytest.mark.parametrize(("takes", "apart"), [(0, 1), (30, 21 * 30), (NIGHT, NIGHT + 24 * 60 * 60)])
async def test_a_round_is_followed_by_many_times_its_own_duration_up_to_a_day(
    tmp_path: Path, takes: float, apart: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("agentcoordd.services.retention._LOOK", apart)  # a day would be a thousand looks at the clock
    clock = HastyClock()
    here = Laborious(clock, takes)
    place = Place(LocalBackend(str(tmp_path)), str(tmp_path))
    rounds = Rounds(here, [place], clock, seconds=1, policy=Policy(), chance=lambda: 0.5)
    async with anyio.create_task_group() as tasks:
        await tasks.start(rounds.run)
        await anyio.to_thread.run_sync(until, lambda: len(here.began) >= 4)
        tasks.cancel_scope.cancel()
    assert {later - earlier for earlier, later in pairwise(here.began)} == {apart}


class Ailing(Here):
    """A backend that refuses some rounds."""

    refused = (0, 1, 2, 4)

    async def perform_aside(self, backend: Any, deed: Any) -> Any:
        if len(self.began) in self.refused:
            self.began.append(self.clock.seconds)
            raise StoreError("no room")
        return await super().perform_aside(backend, deed)


async def test_why_there_was_no_round_is_said_once_until_there_is_one(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    clock = HastyClock()
    here = Ailing(clock)
    place = Place(LocalBackend(str(tmp_path)), str(tmp_path))
    rounds = Rounds(here, [place], clock, seconds=1, policy=Policy(), chance=lambda: 0.5)
    async with anyio.create_task_group() as tasks:
        await tasks.start(rounds.run)
        await anyio.to_thread.run_sync(until, lambda: rounds.list()[0].rounds >= 2)
        tasks.cancel_scope.cancel()
    said = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert said == [f"no retention on {tmp_path}: no room"] * 2, "one before the first round, one before the second"
    assert rounds.list()[0].error is None
