"""How many descriptors a process takes; each case in a process of its own, whose limits nobody else has."""

import subprocess
import sys

import pytest

from tests.command import PATIENCE

PROGRAM = """
import resource, sys
from agentcoordd.descriptors import raise_limit
soft, hard, wanted = map(int, sys.argv[1:])
resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
print(raise_limit(wanted), *resource.getrlimit(resource.RLIMIT_NOFILE))
"""


@pytest.mark.parametrize(
    ("soft", "hard", "wanted", "given", "then"),
    [
        (64, 512, 128, 128, 128),
        (64, 512, 4096, 512, 512),
        (256, 512, 128, 128, 256),  # who allowed more meant it
        (512, 512, 4096, 512, 512),
    ],
)
def test_as_many_as_are_wanted_and_allowed(soft: int, hard: int, wanted: int, given: int, then: int) -> None:
    argv = [sys.executable, "-c", PROGRAM, *map(str, (soft, hard, wanted))]
    ran = subprocess.run(argv, capture_output=True, text=True, check=True, timeout=PATIENCE)
    assert ran.stdout.split() == [str(given), str(then), str(hard)]
