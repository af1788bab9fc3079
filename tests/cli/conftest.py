"""A command line in a directory of its own."""

from pathlib import Path

import pytest

from tests.cli.line import Line


@pytest.fixture
def line(tmp_path: Path) -> Line:
    return Line(tmp_path)
