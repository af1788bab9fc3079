"""What every test may ask for."""

import re
import signal
from collections.abc import Generator
from pathlib import Path
from types import FrameType

import pytest
from hypothesis import settings

from tests.command import Coord
from tests.leftovers import left_at_last
from tests.server.postgres import Cluster, running_cluster

# No verdict on time: a slow machine is no defect. The examples are the same in every run, so that a change
# is judged by what it changes; a failure is looked for further with `--hypothesis-profile=explore`.
settings.register_profile("steady", deadline=None, derandomize=True, database=None)
settings.register_profile("explore", deadline=None, max_examples=2000)
settings.load_profile("steady")

_SENT = (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT)
"""What tests send, and what starts the tests may have them ignore."""
_STILL_THERE = "processes that the tests started are still there"


@pytest.fixture
def anyio_backend() -> str:
    """The product runs on asyncio, and so do its tests."""
    return "asyncio"


@pytest.fixture(scope="session", autouse=True)
def _no_signal_is_ignored() -> Generator[None]:
    """Let no process inherit that a signal is ignored, as it is below `nohup` or behind a script's `&`.

    What is passed over by a handler stays without effect here, and no program that is started keeps a handler.
    """
    ignored = [number for number in _SENT if signal.getsignal(number) is signal.SIG_IGN]
    for number in ignored:
        signal.signal(number, _passed_over)
    yield
    for number in ignored:
        signal.signal(number, signal.SIG_IGN)


def _passed_over(number: int, frame: FrameType | None) -> None:
    """Stand for a handler, which no process inherits."""


@pytest.fixture(scope="session", autouse=True)
def _nothing_is_left(request: pytest.FixtureRequest) -> Generator[None]:
    """Look, once all tests are over, whether a process is left that one of them started."""
    yield
    # A worker's siblings may still be testing: what has no parent any more is looked for when all of them are done.
    assert left_at_last(orphans=not hasattr(request.config, "workerinput")) == [], _STILL_THERE


@pytest.hookimpl(wrapper=True, trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> Generator[None]:
    """Look for what the workers left, once the last of them has ended and before the tests are summed up."""
    yield
    if session.config.pluginmanager.hasplugin("dsession") and (found := left_at_last()):
        said = f"{_STILL_THERE}:\n" + "\n".join(found)
        where = (session.nodeid, None, "_nothing_is_left")
        report = pytest.TestReport("_nothing_is_left", where, {}, "failed", said, "teardown")
        session.config.hook.pytest_runtest_logreport(report=report)
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


@pytest.fixture(scope="session")
def cluster() -> Generator[Cluster]:
    """The throw-away PostgreSQL cluster."""
    with running_cluster() as cluster:
        yield cluster


@pytest.fixture
def coord(tmp_path: Path) -> Coord:
    """The installed command, with its home, temporary directory and state root under `tmp_path`."""
    return Coord(tmp_path)


SECRET = re.compile(r"s3/?cret|t0ps3|t0ken|://[^\s/]+:[^\s/]+@", re.IGNORECASE)
"""What tests put in the place of secrets."""


def pytest_make_parametrize_id(config: pytest.Config, val: object, argname: str) -> str | None:
    """Name a test by what its secret is for, not by the secret: reports are kept and passed on."""
    text = val.decode("utf-8", "replace") if isinstance(val, bytes) else val
    return argname if isinstance(text, str) and SECRET.search(text) else None
