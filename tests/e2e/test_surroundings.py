"""Where a command may find itself: odd locales, no home, no directory, and roots that are none."""

import json
import os
import resource
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from tests.command import Coord
from tests.e2e.running import CLAIM, ITEM, MANIFEST, finish, one_line, records, start

WRITES = {
    "claim": CLAIM,
    "release": ("release", *CLAIM[1:]),
    "heartbeat": ("heartbeat", "--agent-id", "a1"),
    "register-batch": ("register-batch", "--file", "m.json"),
    "record-event": ("record-event", "--batch-id", "b1", "--type", "note"),
}
READS = {
    "status": ("status",),
    "target": ("status", *ITEM),
    "batch": ("status", "--batch-id", "b1"),
    "doctor": ("doctor", "--deep"),
}


def locales() -> list[str]:
    installed = subprocess.run(["locale", "-a"], capture_output=True, check=False, text=True).stdout.split()
    latin = [name for name in installed if name.lower().replace("-", "").endswith(("iso88591", "iso885915"))]
    return ["C", "POSIX", "xx_YY.nonsense", *latin[:1]]


@pytest.mark.parametrize("locale", locales())
@pytest.mark.parametrize("utf8", [None, "0"])
def test_text_is_utf8_whatever_the_locale_says(coord: Coord, locale: str, utf8: str | None) -> None:
    env = {"LANG": locale, "LC_ALL": locale, "PYTHONUTF8": utf8, "PYTHONCOERCECLOCALE": "0"}
    root = coord.work / "zustände →"
    argv = ("--state-root", str(root), "--branch", "für/→", "--operator", "Zoë")
    claimed = coord("claim", "--agent-id", "ä→", *ITEM, *argv, env=env)
    assert (claimed.exit, claimed.err) == (0, "")
    assert claimed.out.startswith("claimed o/r#7 by ä→ until ")
    record = json.loads((root / "claims/o/r/7.json").read_bytes().decode("utf-8"))
    assert (record["agent_id"], record["branch"], record["operator"]) == ("ä→", "für/→", "Zoë")
    status = coord("status", "--state-root", str(root), "--json", env=env)
    assert status.json()["claims"][0]["operator"] == "Zoë"
    wrong = coord("claim", "--agent-id", b"\xff", *ITEM, env=env)
    assert (wrong.exit, wrong.err) == (1, "command-line argument must be valid UTF-8: �\n")


def test_a_root_of_any_bytes(coord: Coord) -> None:
    root = os.fsencode(coord.work) + b"/\xff\xfe"
    assert coord(*CLAIM, "--state-root", root).exit == 0
    assert json.loads(Path(os.fsdecode(root), "claims/o/r/7.json").read_bytes())["agent_id"] == "a1"
    assert "�" in coord("doctor", "--json", "--state-root", root).json()["state_root"]


def test_without_a_home_a_root_must_be_named(coord: Coord) -> None:
    bare = {"HOME": None, "AGENT_COORD_STATE_ROOT": None}
    answer = coord(*CLAIM, env=bare)
    assert answer.exit == 2
    assert one_line(answer) == (
        "cannot determine local state root; set XDG_STATE_HOME or HOME to an absolute path, or pass --state-root"
    )
    assert coord(*CLAIM, env={"HOME": None}).exit == 0
    assert coord("status", env={"HOME": "relative"}).exit == 2
    assert coord("version", env={"HOME": "relative"}).exit == 0


@pytest.mark.parametrize("command", ["claim", "register-batch", "status", "doctor"])
def test_a_relative_root_leads_nowhere_once_the_directory_is_gone(coord: Coord, command: str) -> None:
    (coord.work / "m.json").write_text(MANIFEST)
    gone = coord.work / "gone"
    gone.mkdir()
    argv = [str(coord.work / word) if word == "m.json" else word for word in (WRITES | READS)[command]]
    # By its own name: Python's -m does not find its way from there.
    program = [str(Path(sys.executable).with_name("agent-coord")), *argv, "--state-root", "state"]
    process = start(coord, program=program, cwd=gone, preexec_fn=lambda: os.rmdir(gone))
    answer = finish(process)
    assert (answer.exit, answer.out) == (2, "")
    assert one_line(answer) == "the working directory is gone, so state leads nowhere; pass an absolute path"
    assert not gone.exists()
    assert not coord.state.exists()


def test_from_a_directory_that_is_gone_absolute_paths_still_work(coord: Coord) -> None:
    gone = coord.work / "gone"
    gone.mkdir()
    program = [str(Path(sys.executable).with_name("agent-coord")), *CLAIM]
    assert finish(start(coord, program=program, cwd=gone, preexec_fn=lambda: os.rmdir(gone))).exit == 0
    assert list(records(coord.state)) == ["claims/o/r/7.json"]


def test_a_root_that_is_a_symlink_is_trusted_unless_it_leads_nowhere(coord: Coord) -> None:
    root, there = coord.work / "root", coord.work / "there"
    root.symlink_to(there)
    broken = coord(*CLAIM, "--state-root", str(root))
    assert (broken.exit, broken.out) == (2, "")
    assert str(root) in one_line(broken)
    assert coord("doctor", "--state-root", str(root)).exit == 2
    assert coord("status", "--state-root", str(root)).out.startswith("claims\n- none\n")
    assert not there.exists()
    there.mkdir()
    assert coord(*CLAIM, "--state-root", str(root)).exit == 0
    assert list(records(there)) == ["claims/o/r/7.json"]


@pytest.mark.parametrize("command", READS)
def test_looking_at_a_root_that_vanished_makes_nothing(coord: Coord, command: str) -> None:
    answer = coord(*READS[command])
    assert answer.exit == (2 if command == "doctor" else 0)
    assert not coord.state.exists()


def test_releasing_into_a_root_that_vanished_makes_nothing(coord: Coord) -> None:
    assert coord(*CLAIM).exit == 0
    shutil.rmtree(coord.state)
    answer = coord("release", *CLAIM[1:])
    assert (answer.exit, answer.err) == (1, "no claim exists for o/r#7\n")
    assert not coord.state.exists()


# -- disks that are full or may not be written


@pytest.fixture
def disk(coord: Coord) -> Iterator[Path]:
    """A small file system of our own at the state root, where we may mount one."""
    coord.state.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=64k", "agentcoord-e2e", str(coord.state)]
    if os.getuid() != 0 or subprocess.run(mount, capture_output=True, check=False).returncode != 0:
        pytest.skip("mounting a file system is not allowed here")
    try:
        yield coord.state
    finally:
        subprocess.run(["umount", "-l", str(coord.state)], check=True)


def fill(disk: Path) -> None:
    with open(disk / "ballast", "wb", buffering=0) as ballast, suppress(OSError):
        while True:
            ballast.write(b"x" * 4096)


def begun(coord: Coord) -> None:
    """Lay down a record for every command to replace."""
    (coord.work / "m.json").write_text(MANIFEST)
    for argv in (("register-batch", "--file", "m.json"), (*CLAIM, "--batch-id", "b1"), WRITES["heartbeat"]):
        assert coord(*argv).exit == 0


CLOSE = ("release", *CLAIM[1:], "--terminal", "done")


@pytest.mark.parametrize("argv", [*WRITES.values(), CLOSE], ids=[*WRITES, "close"])
def test_on_a_full_disk_the_old_record_stays_whole(coord: Coord, disk: Path, argv: tuple[str, ...]) -> None:
    begun(coord)
    fill(disk)
    before = records(disk)
    answer = coord(*argv)
    assert (answer.exit, answer.out) == (2, "")
    assert one_line(answer).endswith(": no space left on device")
    assert records(disk) == before
    (disk / "ballast").unlink()
    assert coord(*argv).exit == 0


@pytest.mark.parametrize("argv", [*WRITES.values(), CLOSE], ids=[*WRITES, "close"])
def test_a_write_cut_short_leaves_the_old_record_whole(coord: Coord, argv: tuple[str, ...]) -> None:
    """The same without a disk of our own: no file may grow beyond a few bytes."""
    begun(coord)
    before = records(coord.state)
    confined = {"PYTHONDONTWRITEBYTECODE": "1"}  # Python would leave a part of what it compiles, and not run any more
    process = start(coord, *argv, env=confined, preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (20, 20)))
    answer = finish(process)
    assert (answer.exit, answer.out) == (2, "")
    assert one_line(answer).endswith(": file too large")
    assert records(coord.state) == before
    assert coord(*argv).exit == 0


@pytest.mark.parametrize("argv", [*WRITES.values(), CLOSE], ids=[*WRITES, "close"])
def test_a_read_only_disk_is_read_and_not_written(coord: Coord, disk: Path, argv: tuple[str, ...]) -> None:
    begun(coord)
    subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=True)
    before = records(disk)
    answer = coord(*argv)
    assert (answer.exit, answer.out) == (2, "")
    assert one_line(answer).endswith(": read-only file system")
    assert records(disk) == before
    assert coord("status", *ITEM).exit == 0
