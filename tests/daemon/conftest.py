"""Daemons for tests: every process that a test starts has ended when the test has."""

from collections.abc import Generator

import pytest

from tests.daemon.running import Daemon


@pytest.fixture
def daemon() -> Generator[Daemon]:
    """A daemon that is not running yet."""
    daemon = Daemon()
    try:
        yield daemon
    finally:
        daemon.close()
    assert all(process.returncode is not None for process in daemon.processes)


@pytest.fixture(scope="module")
def shared() -> Generator[Daemon]:
    """A daemon that serves any root, for the tests of one module that leave it as it was."""
    daemon = Daemon()
    try:
        daemon.start("--serve-any-root")
        yield daemon
    finally:
        daemon.close()
