"""A command line, and a daemon that is the test's own."""

from collections.abc import Generator
from pathlib import Path

import pytest

from tests.cli.line import Line
from tests.client.calling import Client
from tests.client.daemon import Daemon


@pytest.fixture
def client(tmp_path: Path) -> Client:
    return Client(tmp_path)


@pytest.fixture
def daemon(client: Client) -> Generator[Daemon]:
    with Daemon(client.runtime).running() as daemon:
        yield daemon


@pytest.fixture
def line(tmp_path: Path) -> Line:
    return Line(tmp_path)
