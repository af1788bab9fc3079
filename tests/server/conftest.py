"""Databases and servers: one server of each kind for most tests, with a machine and paths of their own for each."""

from collections.abc import Callable, Generator
from contextlib import ExitStack
from itertools import count
from pathlib import Path

import pytest

from tests.server.calling import Caller, calling, grant
from tests.server.postgres import Cluster, running_cluster
from tests.server.running import Running, running

_NUMBERS = count(1)

KINDS = ["sqlite", "postgresql"]


def _database(kind: str, request: pytest.FixtureRequest, directory: Path) -> str:
    if kind == "sqlite":
        return f"sqlite:///{directory}/state.db"
    cluster: Cluster = request.getfixturevalue("cluster")
    return cluster.database()


@pytest.fixture(scope="session", params=KINDS)
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Generator[Running]:
    """A server that many tests share, over each kind of database in turn."""
    with running(_database(request.param, request, tmp_path_factory.mktemp("server"))) as server:
        yield server


@pytest.fixture(params=KINDS)
def db(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """An empty database of each kind in turn."""
    return _database(request.param, request, tmp_path)


@pytest.fixture
def sqlite(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/state.db"


@pytest.fixture
def mine() -> str:
    """A name that no other test uses, for machines, owners and batches."""
    return f"t{next(_NUMBERS)}"


Calls = Callable[..., Caller]


@pytest.fixture
def scoped(server: Running, mine: str) -> Generator[Calls]:
    """A maker of callers, each with the scopes that it is asked for."""
    with ExitStack() as open_calls:

        def make(*, reads: list[str], writes: list[str]) -> Caller:
            token = grant(server.db, f"{mine}-m{next(_NUMBERS)}", reads=reads, writes=writes)
            return open_calls.enter_context(calling(server, token))

        yield make


@pytest.fixture
def caller(server: Running, mine: str) -> Generator[Caller]:
    """A machine of the test's own that may do everything; its name is that of `mine`."""
    with calling(server, grant(server.db, mine, reads=[""], writes=[""])) as caller:
        yield caller


@pytest.fixture
def cluster_of_its_own(cluster: Cluster) -> Generator[Cluster]:
    """A cluster that a test may stop; where there is none to be had, the shared one has said so."""
    del cluster
    with running_cluster() as own:
        yield own
