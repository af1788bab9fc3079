"""The stores that the common suite runs against, and some of them alone."""

import sqlite3
from collections.abc import AsyncIterator, Callable, Generator
from contextlib import AsyncExitStack, ExitStack, closing
from functools import cache
from pathlib import Path

import pytest
from msgspec import Struct

from agentcoord.settings.selection import Secret
from agentcoord.stores.base import Store
from agentcoord.stores.gh import Asking
from agentcoord.stores.github import GithubStore
from agentcoord.stores.http import HttpStore
from agentcoord.stores.local import LocalStore
from agentcoord.stores.memory import MemoryStore
from tests.server.calling import grant
from tests.server.postgres import Cluster, execute
from tests.server.running import Running, running
from tests.stores.github_server import REF, REPO, GithubServer
from tests.stores.http_server import TOKEN, Server, State


class Served(Struct, frozen=True):
    """A server of ours that many tests share, and a token for all of it."""

    running: Running
    token: str

    async def empty(self) -> None:
        """Forget all records, past the server."""
        if self.running.db.startswith("sqlite:///"):
            with closing(sqlite3.connect(self.running.db.removeprefix("sqlite:///"), isolation_level=None)) as database:
                database.execute("DELETE FROM state")
        else:
            await execute(self.running.db, "DELETE FROM state")


@pytest.fixture(scope="session")
def served(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Generator[Callable[[str], Served]]:
    """Servers over SQLite and PostgreSQL, each started when it is first asked for."""
    with ExitStack() as servers:

        @cache
        def serve(kind: str) -> Served:
            db = f"sqlite:///{tmp_path_factory.mktemp('served')}/state.db"
            if kind == "postgresql":
                cluster: Cluster = request.getfixturevalue("cluster")
                db = cluster.database()
            server = servers.enter_context(running(db))
            return Served(server, grant(db, "suite", reads=[""], writes=[""]))

        yield serve


@pytest.fixture(params=["memory", "local", "http", "sqlite", "postgresql", "github"])
def backend(request: pytest.FixtureRequest) -> str | Served:
    """What each store in turn works on: a server of ours where its name is that of a database."""
    if request.param in ("sqlite", "postgresql"):
        served: Callable[[str], Served] = request.getfixturevalue("served")
        return served(request.param)
    return request.param


@pytest.fixture
async def store(backend: str | Served, tmp_path: Path) -> AsyncIterator[Store]:
    """Each store in turn, empty."""
    async with AsyncExitStack() as opened:
        match backend:
            case Served():
                await backend.empty()
                remote = HttpStore(backend.running.url, Secret(backend.token))
                opened.push_async_callback(remote.aclose)
                yield remote
            case "memory":
                yield MemoryStore()
            case "local":
                yield LocalStore(tmp_path / "state")
            case "http":  # as strict as it is small: what a server of another kind may answer
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
