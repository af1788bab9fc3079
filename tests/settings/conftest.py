"""Directories of which nobody else may change anything, since the reader asks for them all the way up."""

import os
import shutil
import stat
import tempfile
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest


def _nobody_else_writes(path: Path) -> bool:
    above = [path, *path.parents]
    return all(
        found.st_uid in (0, os.geteuid()) and not found.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
        for found in (directory.stat() for directory in above)
    )


@contextmanager
def private_directory() -> Generator[Path]:
    """Make an empty directory that is private up to the root, unlike most temporary ones."""
    homes = (Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"), Path.home(), Path.cwd())
    home = next((home for home in homes if home.is_dir() and _nobody_else_writes(home.resolve())), None)
    if home is None:
        pytest.skip("no directory here is private up to the root")
    made = Path(tempfile.mkdtemp(prefix="agent-coord-test-", dir=home.resolve()))
    made.chmod(0o755)
    try:
        yield made
    finally:
        shutil.rmtree(made, ignore_errors=True)


@pytest.fixture
def private() -> Iterator[Path]:
    """Such a directory for one test."""
    with private_directory() as made:
        yield made
