"""A real daemon, and commands of the same home that find it."""

from collections.abc import Generator

import pytest

from tests.daemon.running import Daemon
from tests.faults.commands import Machine


@pytest.fixture
def daemon() -> Generator[Daemon]:
    """A daemon that is not running yet; what was started of it ends with the test."""
    daemon = Daemon()
    try:
        yield daemon
    finally:
        daemon.close()


@pytest.fixture
def machine(daemon: Daemon) -> Machine:
    """The commands of the daemon's user."""
    return Machine(daemon)
