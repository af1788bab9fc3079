"""The stores that the common suite runs against, and the local one alone."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from agentcoord.settings.selection import Secret
from agentcoord.stores.base import Store
from agentcoord.stores.http import HttpStore
from agentcoord.stores.local import LocalStore
from agentcoord.stores.memory import MemoryStore
from tests.stores.http_server import TOKEN, Server, State


@pytest.fixture(params=["memory", "local", "http"])
async def store(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Store]:
    """Each store in turn, empty."""
    async with AsyncExitStack() as opened:
        match request.param:
            case "memory":
                yield MemoryStore()
            case "local":
                yield LocalStore(tmp_path / "state")
            case "http":
                server = opened.enter_context(Server(State()).running())
                remote = HttpStore(server.url, Secret(TOKEN))
                opened.push_async_callback(remote.aclose)
                yield remote
            case other:
                raise ValueError(other)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "state"


@pytest.fixture
def local(root: Path) -> LocalStore:
    return LocalStore(root)
