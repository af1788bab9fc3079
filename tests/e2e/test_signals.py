"""Signals: nothing half-written, no lock held, no temporary file, no traceback."""

import fcntl
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.command import Coord
from tests.e2e.running import (
    CLAIM,
    MANIFEST,
    SIGNALS,
    finish,
    holds_open,
    records,
    start,
    wait_until,
    waits_in,
)

pytestmark = pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="asks /proc where a process is")

WAITING = {
    "claim": (CLAIM, "claims/o/r/7.json"),
    "release": (("release", *CLAIM[1:]), "claims/o/r/7.json"),
    "heartbeat": (("heartbeat", "--agent-id", "a1"), "heartbeats/a1.json"),
    "register-batch": (("register-batch", "--file", "m.json"), "batches/b1.json"),
    "record-event": (
        ("record-event", "--batch-id", "b1", "--type", "lane_closed", "--terminal", "done", *CLAIM[1:]),
        "batches/b1.json",
    ),
}


@pytest.mark.parametrize(
    ("command", "signum", "status"),
    [(command, signal.SIGINT, 130) for command in WAITING] + [("claim", *other) for other in SIGNALS[1:]],
)
def test_a_command_that_waits_for_a_lock_lets_go_at_once(coord: Coord, command: str, signum: int, status: int) -> None:
    (coord.work / "m.json").write_text(MANIFEST)
    for argv in (("register-batch", "--file", "m.json"), CLAIM, ("heartbeat", "--agent-id", "a1")):
        assert coord(*argv).exit == 0
    argv, path = WAITING[command]
    sidecar = coord.state / f"{path}.lock"
    before = records(coord.state)
    with open(sidecar, "rb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        process = start(coord, *argv)
        wait_until(lambda: holds_open(process, sidecar), process)
        answer = finish(process, with_=signum)
    assert (answer.exit, answer.out, answer.err) == (status, "", "")
    after = records(coord.state)
    closing = {name for name in after if "/lane_closed-" in name}  # reserved before the batch was waited for
    assert {name: data for name, data in after.items() if name not in closing} == before
    with open(sidecar, "rb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    assert coord(*argv).exit == 0


@pytest.mark.parametrize(("signum", "status"), SIGNALS)
def test_a_command_that_waits_for_its_input_writes_nothing(coord: Coord, signum: int, status: int) -> None:
    os.mkfifo(coord.work / "m.json")
    process = start(coord, "register-batch", "--file", "m.json")
    with open(coord.work / "m.json", "wb"):  # returns once it is being read
        wait_until(lambda: waits_in(process, "pipe_r"), process)
        answer = finish(process, with_=signum)
    assert (answer.exit, answer.out, answer.err) == (status, "", "")
    assert not coord.state.exists()


@pytest.mark.parametrize(("signum", "status"), SIGNALS)
def test_a_prompt_typed_by_nobody_is_given_up(coord: Coord, signum: int, status: int) -> None:
    (coord.work / "m.json").write_text(MANIFEST)
    argv = ("register-batch", "--file", "m.json", "--launch-prompt", "-")
    process = start(coord, *argv, stdin=subprocess.PIPE)
    wait_until(lambda: waits_in(process, "pipe_r"), process)
    answer = finish(process, with_=signum)
    assert (answer.exit, answer.out, answer.err) == (status, "", "")
    assert not coord.state.exists()


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGHUP])
def test_a_signal_that_the_caller_ignores_stays_ignored(coord: Coord, signum: int) -> None:
    """As `nohup` asks for the one, and a shell for its background jobs for the other."""
    (coord.work / "m.json").write_text(MANIFEST)
    argv = ("register-batch", "--file", "m.json", "--launch-prompt", "-")
    process = start(coord, *argv, stdin=subprocess.PIPE, preexec_fn=lambda: signal.signal(signum, signal.SIG_IGN))
    wait_until(lambda: waits_in(process, "pipe_r"), process)
    answer = finish(process, with_=signum)
    assert (answer.exit, answer.out, answer.err) == (0, "registered batch b1\n", "")


def test_interrupted_at_any_moment_it_shows_nothing(coord: Coord) -> None:
    """From the moment it handles signals, which is long before it has loaded what it needs, to its end."""
    assert coord(*CLAIM).exit == 0
    for number in range(30):
        process = start(coord, *CLAIM, "--phase", str(number))
        wait_until(lambda running=process: _handles_signals(running.pid), process)
        for _ in range(number * 100):
            os.sched_yield()
        answer = finish(process, with_=signal.SIGINT)
        assert (answer.exit, answer.err) in ((130, ""), (0, ""))
        assert set(records(coord.state)) == {"claims/o/r/7.json"}


_WHILE_MAKING_A_CLASS = """
import os, signal, sys
import agentcoord.__main__ as process

def watch(frame, event, argument):
    if event == "call" and frame.f_code.co_name == "__set_name__":
        sys.setprofile(None)
        os.kill(os.getpid(), int(sys.argv[1]))

sys.setprofile(watch)
sys.exit(process.main(sys.argv[2:]))
"""


@pytest.mark.parametrize(("signum", "status"), SIGNALS)
def test_a_signal_while_a_class_is_made_is_no_fault_of_ours(coord: Coord, signum: int, status: int) -> None:
    argv = [sys.executable, "-c", _WHILE_MAKING_A_CLASS, str(int(signum)), "status"]
    ran = subprocess.run(argv, env=coord.env, capture_output=True, text=True, check=False, timeout=60)
    assert (ran.returncode, ran.stdout, ran.stderr) == (status, "", "")


def _handles_signals(pid: int) -> bool:
    """Tell by the signals it catches: Python itself catches SIGINT only, the command SIGTERM too."""
    try:
        caught = Path(f"/proc/{pid}/status").read_text().split("SigCgt:")[1].split()[0]
    except (OSError, IndexError):
        return False
    return bool(int(caught, 16) & (1 << (signal.SIGTERM - 1)))
