"""A stage with nothing on it."""

import pytest

from agentcoord.stores.memory import MemoryStore
from tests.operations.stage import FakeClock, Stage


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def stage(clock: FakeClock) -> Stage:
    return Stage(MemoryStore(), clock)
