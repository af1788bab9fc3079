"""What is left after a full disk, a read-only one, another writer, and a writer that was killed."""

import fcntl
import json
import os
import re
import resource
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from agentcoord.errors import Conflict, StoreError
from agentcoord.protocol.documents import is_document
from agentcoord.stores.base import Stored
from agentcoord.stores.local import LocalStore
from tests.stores.layout import BEAT, CLAIM, names
from tests.stores.processes import drive, in_child, spawn

BIG = {"text": "x" * 200_000}


def number(stored: Stored | None) -> int:
    """Read the counter that the writers of these tests keep."""
    assert stored is not None
    assert is_document(stored.document)
    value = stored.document["n"]
    assert isinstance(value, int)
    return value


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 64 KiB of our own, where we may mount one."""
    place = tmp_path / "disk"
    place.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=64k", "agentcoord-test", str(place)]
    if os.getuid() != 0 or subprocess.run(mount, capture_output=True, check=False).returncode != 0:
        pytest.skip("mounting a file system is not allowed here")
    try:
        yield place
    finally:
        subprocess.run(["umount", "-l", str(place)], check=True)


# -- disks


def test_a_full_disk_leaves_the_old_record_whole(small_disk: Path) -> None:
    local = LocalStore(small_disk)
    version = drive(local.write(CLAIM, {"n": 1}, version=None, note=""))
    before = (small_disk / CLAIM).read_bytes()
    with pytest.raises(StoreError, match=rf"^state record is not writable: {CLAIM}: no space left on device$"):
        drive(local.write(CLAIM, BIG, version=version, note=""))
    assert (small_disk / CLAIM).read_bytes() == before
    assert names((small_disk / CLAIM).parent) == ["319.json", "319.json.lock"]
    drive(local.write(CLAIM, {"n": 2}, version=version, note=""))


def test_a_full_disk_creates_nothing(small_disk: Path) -> None:
    local = LocalStore(small_disk)
    with pytest.raises(StoreError, match=rf"^state record is not writable: {CLAIM}: no space left on device$"):
        drive(local.write(CLAIM, BIG, version=None, note=""))
    assert drive(local.read(CLAIM)) is None
    assert names((small_disk / CLAIM).parent) == ["319.json.lock"]


def test_a_read_only_disk_is_read_and_not_written(small_disk: Path) -> None:
    local = LocalStore(small_disk)
    version = drive(local.write(CLAIM, {"n": 1}, version=None, note=""))
    subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)
    assert number(drive(local.read(CLAIM))) == 1
    assert len(list(drive(local.list("claims")).entries)) == 1
    drive(local.check(writable=False))
    with pytest.raises(StoreError, match=rf"^state root is not writable: {small_disk}$"):
        drive(local.check(writable=True))
    for attempt in (
        local.write(CLAIM, {"n": 2}, version=version, note=""),
        local.delete(CLAIM, version=version, note=""),
        local.write(BEAT, {}, version=None, note=""),
    ):
        with pytest.raises(StoreError, match=r"^state record is not writable: .+: read-only file system$"):
            drive(attempt)
    assert number(drive(local.read(CLAIM))) == 1


def test_a_write_cut_short_leaves_the_old_record_whole(local: LocalStore, root: Path) -> None:
    """Where nothing can be mounted: a limit on file sizes also lets a write begin and not end."""
    version = drive(local.write(CLAIM, {"n": 1}, version=None, note=""))

    def write() -> str:
        resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, 50_000))
        drive(local.write(CLAIM, BIG, version=version, note=""))
        return "written"

    assert in_child(write) == f"StoreError: state record is not writable: {CLAIM}: file too large"
    assert number(drive(local.read(CLAIM))) == 1
    assert names((root / CLAIM).parent) == ["319.json", "319.json.lock"]


# -- other writers


def test_the_lock_of_any_other_program_is_respected(root: Path) -> None:
    impatient = LocalStore(root, lock_wait=0)
    version = drive(impatient.write(CLAIM, {"n": 1}, version=None, note=""))
    lock = root / f"{CLAIM}.lock"
    ready, go = os.pipe(), os.pipe()

    def hold() -> None:
        os.close(go[1])  # so that the end of this test, however it comes, is the end of the wait
        fd = os.open(lock, os.O_RDWR)
        fcntl.flock(fd, fcntl.LOCK_EX)
        os.write(ready[1], b"!")
        os.read(go[0], 1)

    holder = spawn(hold)
    os.read(ready[0], 1)
    for attempt in (
        impatient.write(CLAIM, {"n": 2}, version=version, note=""),
        impatient.delete(CLAIM, version=version, note=""),
    ):
        with pytest.raises(StoreError, match=rf"^another process has held {lock} for more than 0 seconds; ") as told:
            drive(attempt)
        assert not isinstance(told.value, Conflict)
    assert number(drive(impatient.read(CLAIM))) == 1
    os.write(go[1], b"!")
    os.waitpid(holder, 0)
    drive(impatient.write(CLAIM, {"n": 2}, version=version, note=""))
    for fd in (*ready, *go):
        os.close(fd)


def test_a_writer_that_waited_decides_on_what_it_then_finds(local: LocalStore, root: Path) -> None:
    version = drive(local.write(CLAIM, {"n": 1}, version=None, note=""))
    fd = os.open(root / f"{CLAIM}.lock", os.O_RDWR)
    fcntl.flock(fd, fcntl.LOCK_EX)
    ready = os.pipe()

    def write() -> None:
        os.write(ready[1], b"!")
        os.close(fd)
        try:
            drive(local.write(CLAIM, {"n": 2}, version=version, note=""))
        except Conflict:
            os._exit(7)

    writer = spawn(write)
    os.read(ready[0], 1)
    (root / CLAIM).write_bytes(b'{"n": 100}')
    fcntl.flock(fd, fcntl.LOCK_UN)
    _, status = os.waitpid(writer, 0)
    assert os.waitstatus_to_exitcode(status) == 7
    assert number(drive(local.read(CLAIM))) == 100
    for opened in (fd, *ready):
        os.close(opened)


def test_no_increment_is_lost_among_processes(local: LocalStore, root: Path) -> None:
    writers, increments = 6, 15
    drive(local.write(CLAIM, {"n": 0}, version=None, note=""))

    def count() -> None:
        for _ in range(increments):
            while True:
                stored = drive(local.read(CLAIM))
                assert stored is not None
                try:
                    drive(local.write(CLAIM, {"n": number(stored) + 1}, version=stored.version, note=""))
                except Conflict:
                    continue
                break

    children = [spawn(count) for _ in range(writers)]
    assert [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children] == [0] * writers
    assert number(drive(local.read(CLAIM))) == writers * increments
    assert names((root / CLAIM).parent) == ["319.json", "319.json.lock"]


def test_one_of_many_creators_wins(local: LocalStore) -> None:
    def create(name: int) -> Callable[[], None]:
        def act() -> None:
            try:
                drive(local.write(CLAIM, {"n": name}, version=None, note=""))
            except Conflict:
                os._exit(7)

        return act

    children = {spawn(create(name)): name for name in range(8)}
    ends = {name: os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child, name in children.items()}
    (winner,) = [name for name, end in ends.items() if end == 0]
    assert set(ends.values()) == {0, 7}
    assert number(drive(local.read(CLAIM))) == winner


# -- death

CALL = re.compile(r"(?P<call>fsync|rename|mkdir|unlink)\w*\((?:\d+<(?P<at>[^>]*)>)?(?:, )?(?:\"(?P<name>[^\"]*)\")?")

WRITE_TWICE_AND_DELETE = """
import sys
from agentcoord.stores.local import LocalStore
from tests.stores.processes import drive
local, path = LocalStore(sys.argv[1], settle=sys.argv[2] == "True"), "heartbeats/worker-a.json"
version = drive(local.write(path, {"n": 1}, version=None, note=""))
version = drive(local.write(path, {"n": 2}, version=version, note=""))
drive(local.delete(path, version=version, note=""))
"""


@pytest.mark.parametrize("settle", [True, False])
def test_each_step_is_on_the_disk_before_the_next(root: Path, tmp_path: Path, settle: bool) -> None:
    """Nothing but the order of calls to the system shows what a power cut would leave."""
    strace, trace = shutil.which("strace"), tmp_path / "trace"
    root.mkdir()
    watched = "trace=fsync,rename,renameat,renameat2,mkdir,mkdirat,unlink,unlinkat"
    program = [sys.executable, "-B", "-c", WRITE_TWICE_AND_DELETE, str(root), str(settle)]
    ran = strace and subprocess.run(
        [strace, "-y", "-e", watched, "-o", str(trace), *program], cwd=Path(__file__).parents[2], check=False
    )
    if not ran or ran.returncode != 0:
        pytest.skip("calls to the system cannot be watched here")
    seen = [
        (call["call"], Path(call["at"]).name.partition(".tmp-")[0], (call["name"] or "").partition(".tmp-")[0])
        for call in map(CALL.match, trace.read_text().splitlines())
        if call and call["at"] and call["at"].startswith(str(root))
    ]
    replace = [
        ("fsync", ".worker-a.json", ""),
        ("rename", "heartbeats", ".worker-a.json"),
        *([("fsync", "heartbeats", "")] if settle else []),
    ]
    assert seen == [
        ("mkdir", "state", "heartbeats"),
        ("fsync", "state", ""),
        *replace,
        *replace,
        ("unlink", "heartbeats", "worker-a.json"),
        ("fsync", "heartbeats", ""),
    ]


def test_a_killed_writer_leaves_every_record_whole(local: LocalStore, root: Path) -> None:
    """Kill writers a varying number of acknowledged writes in: what was acknowledged is there, and all of it parses."""
    paths = [CLAIM, BEAT, "events/b/1.json"]
    acknowledged = dict.fromkeys(paths, 0)
    for kill in range(30):
        reader, writer = os.pipe()

        def write_on(writer: int = writer) -> None:
            while True:
                for index, path in enumerate(paths):
                    stored = drive(local.read(path))
                    n = 1 if stored is None else number(stored) + 1
                    document = {"n": n, "text": "x" * (n % 7 * 5000)}
                    drive(local.write(path, document, version=stored.version if stored else None, note=""))
                    os.write(writer, b"%d %d\n" % (index, n))

        child = spawn(write_on)
        os.close(writer)
        with open(reader) as lines:
            for _ in range(kill % 5 + 1):
                index, n = map(int, lines.readline().split())
                acknowledged[paths[index]] = n
            os.kill(child, signal.SIGKILL)
            for line in lines:
                index, n = map(int, line.split())
                acknowledged[paths[index]] = n
        os.waitpid(child, 0)
        for path, n in acknowledged.items():
            found = drive(local.read(path))
            # One write may have landed without living to say so.
            assert (0 if found is None else number(found)) in (n, n + 1)
    for file in root.rglob("*.json"):
        if not file.name.startswith("."):
            json.loads(file.read_bytes())
    entries = [entry for family in ("claims", "heartbeats", "events") for entry in drive(local.list(family)).entries]
    assert sorted(entry.path for entry in entries) == sorted(paths)
