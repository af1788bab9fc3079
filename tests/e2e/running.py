"""Commands as processes that a test holds on to: started, stopped, limited or cut off."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.command import PATIENCE, Answer, Coord, assert_presentable

ITEM = ("--repo", "o/r", "--target", "7")
CLAIM = ("claim", "--agent-id", "a1", *ITEM)
MANIFEST = '{"batch_id": "b1", "lanes": [{"name": "worker", "owner": "a1", "targets": ["7"]}]}'
_ROUNDS = 1_000_000  # until a process that never comes to a point fails its test


def start(
    coord: Coord,
    *argv: str | bytes,
    env: Mapping[str, str | None] | None = None,
    program: Sequence[str] | None = None,
    **options: Any,
) -> subprocess.Popen[bytes]:
    """Start a command with both its outputs in pipes, unless `options` for Popen say otherwise."""
    chosen = {**coord.env, **(env or {})}
    facts: dict[str, Any] = {
        "stdin": subprocess.DEVNULL,
        "stdout": subprocess.PIPE,
        "stderr": subprocess.PIPE,
        "cwd": coord.work,
        "env": {name: value for name, value in chosen.items() if value is not None},
    }
    command = program or [sys.executable, "-m", "agentcoord", *argv]
    return subprocess.Popen[bytes](command, **facts | options)


def finish(process: subprocess.Popen[bytes], *, with_: int | None = None) -> Answer:
    """Wait for the end, after sending a signal if one is given."""
    if with_ is not None:
        process.send_signal(with_)
    out, err = process.communicate(timeout=PATIENCE)
    answer = Answer(process.returncode, (out or b"").decode(), (err or b"").decode())
    assert_presentable(answer.err)
    return answer


def through_shell(coord: Coord, redirections: str, *argv: str, stdin: Any = subprocess.DEVNULL) -> Answer:
    """Run a command with its descriptors redirected as a shell does it."""
    script = f'exec "$@" {redirections}'
    process = subprocess.Popen(
        ["/bin/sh", "-c", script, "sh", sys.executable, "-m", "agentcoord", *argv],
        stdin=stdin,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        cwd=coord.work,
        env=coord.env,
    )
    return finish(process)


def wait_until(ready: Callable[[], bool], process: subprocess.Popen[bytes]) -> None:
    """Wait, without a clock, until a running process came to a point."""
    for _ in range(_ROUNDS):
        if ready():
            return
        assert process.poll() is None, f"it ended before: {process.communicate()}"
        os.sched_yield()
    raise AssertionError("it never came to that point")


def holds_open(process: subprocess.Popen[bytes], path: Path) -> bool:
    """Tell whether a process has a file open."""
    directory = f"/proc/{process.pid}/fd"
    try:
        return any(os.readlink(f"{directory}/{name}") == str(path) for name in os.listdir(directory))
    except OSError:  # it is just closing one, or gone
        return False


def waits_in(process: subprocess.Popen[bytes], *calls: str) -> bool:
    """Tell whether a process sleeps in one of these system calls of the kernel."""
    try:
        return any(call in Path(f"/proc/{process.pid}/wchan").read_text() for call in calls)
    except OSError:
        return False


def records(root: Path) -> dict[str, bytes]:
    """Give the bytes of every file below a root but its locks; a temporary file would be among them."""
    return {
        str(place.relative_to(root)): place.read_bytes()
        for place in sorted(root.rglob("*"))
        if place.is_file() and place.suffix != ".lock"
    }


def one_line(answer: Answer) -> str:
    """Give the only line on stderr."""
    [line] = answer.err.splitlines()
    return line


SIGNALS: Sequence[tuple[int, int]] = ((signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129))
