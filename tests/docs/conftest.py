"""All pages are played at once, each in a home of its own."""

import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from agentcoord.errors import ConfigError
from agentcoord.settings.securefile import read_private
from tests.docs.pages import PAGES, ROOT, Page


@pytest.fixture(scope="session")
def place() -> Iterator[Path]:
    """A directory where a user file is private up to the root, which in most temporary ones it is not."""
    refusal = ""
    for above in (Path.home(), ROOT / "build"):
        above.mkdir(exist_ok=True)
        with TemporaryDirectory(dir=above, prefix="agent-coord-test-") as made:
            place = Path(made).resolve()
            (place / "env").touch(0o600)
            try:
                read_private(str(place / "env"), explicit=True, uid=os.geteuid())
            except ConfigError as error:
                refusal = str(error)
                continue
            yield place
            return
    pytest.skip(f"no directory here is a place for a user file: {refusal}")


@pytest.fixture(scope="session")
def pages(place: Path) -> dict[Path, Page]:
    """Every page, played."""
    homes = [place / path.stem for path in PAGES]
    with ThreadPoolExecutor(max_workers=4) as players:
        return dict(zip(PAGES, players.map(Page.played, PAGES, homes), strict=True))
