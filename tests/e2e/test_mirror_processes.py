"""`log --sync` as a process, killed once the mirror is there and perhaps before it is remembered what that has."""

import random
import shutil
import signal
from pathlib import Path

import pytest

from agentcoord.protocol.documents import encode_pretty
from tests.command import Coord
from tests.daemon.running import until
from tests.e2e.running import start


def lay(root: Path, number: int) -> None:
    place = root / f"events/b{number % 3}/e{number:03}.json"
    place.parent.mkdir(parents=True, exist_ok=True)
    at = f"2026-01-01T00:{number * 37 % 60:02}:00Z"
    event = {"event_id": place.stem, "batch_id": place.parent.name, "type": "note", "at": at, "message": "x" * number}
    place.write_bytes(encode_pretty(event))


def inode(path: Path) -> int:
    return path.stat().st_ino if path.exists() else 0


@pytest.mark.parametrize("seed", range(2))
def test_killed_anywhere_it_loses_no_line_and_doubles_none(coord: Coord, seed: int) -> None:
    chance, mirror = random.Random(seed), coord.state / "log.tsv"
    number = 0
    for _ in range(6):
        for _ in range(chance.randrange(1, 20)):
            number += 1
            lay(coord.state, number)
        watched = chance.choice([mirror, coord.state / ".cache/log.tsv.json", coord.state / "log.tsv.lock"])
        before = inode(watched)
        process = start(coord, "log", "--sync")
        until(lambda process=process, path=watched, old=before: inode(path) != old or process.poll() is not None)
        process.send_signal(signal.SIGKILL)
        process.communicate()
    for _ in range(2):
        number += 1
        lay(coord.state, number)
        assert coord("log", "--sync").exit == 0
    kept = mirror.read_bytes()
    assert len(kept.splitlines()) == number
    mirror.unlink()
    shutil.rmtree(coord.state / ".cache")
    assert coord("log", "--sync").exit == 0
    assert mirror.read_bytes() == kept
