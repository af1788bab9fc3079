"""A process that a test leaves behind is found, whatever it did to get away."""

import os
import signal
import subprocess
import sys

from tests.daemon.running import until
from tests.daemon.stage import sleeping
from tests.leftovers import left

ORPHAN = "import subprocess, sys; print(subprocess.Popen(sys.argv[1:], stdout=2, start_new_session=True).pid)"
IDLE = (sys.executable, "-c", "import signal; signal.pause()  # as agentcoordd would")


def names(pid: int, *, orphans: bool = True) -> bool:
    return any(line.startswith(f"{pid}: ") for line in left(orphans=orphans))


def test_a_child_is_found_until_it_ends() -> None:
    with sleeping() as child:
        assert names(child.pid)
        assert names(child.pid, orphans=False)
    assert not names(child.pid)


def test_a_program_of_ours_is_found_although_its_parent_is_gone() -> None:
    ran = subprocess.run([sys.executable, "-c", ORPHAN, *IDLE], stdout=subprocess.PIPE, check=True)
    pid = int(ran.stdout)
    try:
        until(lambda: names(pid))
        assert not names(pid, orphans=False), "it may be another worker's"
    finally:
        os.kill(pid, signal.SIGKILL)
    until(lambda: not names(pid))
