"""The stores that the common suite runs against, and some of them alone."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from agentcoord.settings.selection import Secret
from agentcoord.stores.base import Store
from agentcoord.stores.gh import Asking
from agentcoord.stores.github import GithubStore
from agentcoord.stores.http import HttpStore
from agentcoord.stores.local import LocalStore
from agentcoord.stores.memory import MemoryStore
from tests.stores.github_server import REF, REPO, GithubServer
from tests.stores.http_server import TOKEN, Server, State


@pytest.fixture(params=["memory", "local", "http", "github"])
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
            case "github":
                # No process for each call: that makes 21 seconds 34. The real program is run in test_gh.py.
                yield github_store(GithubServer(tmp_path))
            case other:
                raise ValueError(other)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "state"


@pytest.fixture
def local(root: Path) -> LocalStore:
    return LocalStore(root)


@pytest.fixture
def server(tmp_path: Path) -> GithubServer:
    return GithubServer(tmp_path)


@pytest.fixture
def github(server: GithubServer) -> GithubStore:
    return github_store(server)


def github_store(asking: Asking) -> GithubStore:
    """A store that does not wait before it tries again."""
    return GithubStore(REPO, REF, asking, pause=lambda seconds: None)
