"""A command line in a directory of its own."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.line import Line
from tests.stores.http_server import TOKEN, Server, State


@pytest.fixture
def line(tmp_path: Path) -> Line:
    return Line(tmp_path)


@pytest.fixture
def state() -> State:
    return State()


@pytest.fixture
def server(line: Line, state: State) -> Iterator[Server]:
    """A state server, which the environment of the line selects."""
    with Server(state).running() as server:
        line.env |= {"AGENT_COORD_API_URL": server.url, "AGENT_COORD_API_TOKEN": TOKEN}
        yield server
