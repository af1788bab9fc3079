"""A command stopped anywhere leaves whole records, free locks and nothing lying about."""

import fcntl
import json
import os
import sys
from pathlib import Path
from types import FrameType

import pytest

from tests.cli.line import Line

ITEM = ("--repo", "o/r", "--target", "7")
MANIFEST = {"batch_id": "b1", "lanes": [{"name": "worker", "owner": "a1", "targets": ["7"]}]}
COMMANDS = {
    "a record replaced": ("claim", "--agent-id", "a1", *ITEM, "--phase", "new"),
    "records in new directories": ("claim", "--agent-id", "a1", "--repo", "o/new", "--target", "8", "--batch-id", "b2"),
    "three records": ("release", "--agent-id", "a1", *ITEM, "--terminal", "done"),
}


class Interruption:
    """Interrupts where a signal would: as the n-th function of the file work is entered or called, or has returned."""

    def __init__(self, at: int) -> None:
        self.left = at

    def __call__(self, frame: FrameType, event: str, _: object) -> None:
        name = frame.f_code.co_filename
        if event != "return" and name.endswith(("/agentcoord/files.py", "/stores/local.py")):
            self.left -= 1
            if self.left == 0:
                raise KeyboardInterrupt


def interrupted(line: Line, argv: tuple[str, ...], at: int) -> bool:
    """Run a command in a process of its own that ends there; gives whether it came that far."""
    child = os.fork()
    if child == 0:
        status = 70
        try:
            watched = Interruption(at)
            sys.setprofile(watched)
            try:
                line.local(*argv)
            except KeyboardInterrupt:
                pass
            sys.setprofile(None)
            status = 0 if watched.left > 0 else 1
        finally:
            os._exit(status)
    _, ended = os.waitpid(child, 0)
    status = os.waitstatus_to_exitcode(ended)
    assert status in (0, 1)
    return status == 1


def assert_sound(root: Path) -> None:
    for directory, _, names in os.walk(root):
        for name in names:
            place = Path(directory, name)
            if name.endswith(".json"):
                assert json.loads(place.read_bytes())["schema_version"] in (1, 2)
            else:
                assert name.endswith(".json.lock"), f"{place} was left behind"
                with open(place, "rb") as lock:
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)


@pytest.mark.parametrize("argv", COMMANDS.values(), ids=COMMANDS)
def test_interrupted_anywhere_in_its_file_work(line: Line, argv: tuple[str, ...]) -> None:
    line.file("m.json", MANIFEST)
    line.local("register-batch", "--file", "m.json")
    line.local("claim", "--agent-id", "a1", *ITEM, "--batch-id", "b1")
    at = 1
    while interrupted(line, argv, at):
        assert_sound(line.root)
        at += 1
    assert at > 30
    assert line.local(*argv).exit == 0
