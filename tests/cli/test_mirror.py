"""The mirror on disk: one file that only grows, written whole, by one writer at a time."""

import os
import stat
import threading

import pytest

from agentcoord.cli.output import Output
from agentcoord.files import release_lock, take_lock
from tests.cli.line import Line


def lay(line: Line, name: str, at: str = "2026-01-01T00:00:00Z", **more: object) -> None:
    record = {"event_id": name, "batch_id": "b1", "type": "note", "at": at, "repo": "o/r", "target": "7"}
    line.lay(f"events/b1/{name}.json", record | more)


def mirror(line: Line) -> list[str]:
    return [row.split("\t")[10] for row in (line.root / "log.tsv").read_text().splitlines()]


def answered(output: Output) -> tuple[int, bytes, list[str]]:
    return output.exit, output.stdout, output.stderr


def test_a_sync_adds_what_is_new_and_leaves_the_rest(line: Line) -> None:
    lay(line, "e2", "2026-01-01T00:00:02Z")
    path = line.root / "log.tsv"
    assert answered(line.local("log", "--sync")) == (0, b"synced 1 new event to %s\n" % os.fsencode(path), [])
    (line.root / "events/b1/e2.json").unlink()
    lay(line, "e1", "2026-01-01T00:00:01Z")
    lay(line, "e3", "2026-01-01T00:00:03Z")
    assert line.local("log", "--sync").stdout == b"synced 2 new events to %s\n" % os.fsencode(path)
    assert mirror(line) == ["e1", "e2", "e3"]
    before = path.stat()
    assert line.local("log", "--sync").stdout == b"synced 0 new events to %s\n" % os.fsencode(path)
    assert path.stat() == before
    assert sorted(os.listdir(line.root)) == [".cache", "events", "log.tsv", "log.tsv.lock"]
    assert stat.S_IMODE((line.root / "log.tsv.lock").stat().st_mode) == 0o600


def test_permissions_of_a_mirror_are_kept_and_its_foreign_bytes_too(line: Line) -> None:
    lay(line, "e1")
    path = line.root / "log.tsv"
    path.write_bytes(b"\xff\xfe old\r\ncut off")
    path.chmod(0o640)
    assert line.local("log", "--sync").exit == 0
    assert stat.S_IMODE(path.stat().st_mode) == 0o640
    assert path.read_bytes().startswith(b"\xff\xfe old\r\ncut off\n2026-01-01T00:00:00Z\t")


_BLOCKED = {
    "symlink": "log.tsv: it is a symlink",
    "directory": "log.tsv: it is not a regular file",
    "locked symlink": "log.tsv.lock: it is a symlink",
    "locked directory": "log.tsv.lock: is a directory",
}


@pytest.mark.parametrize("kind", [*_BLOCKED, "no directory"])
def test_a_mirror_that_cannot_be_written_is_exit_2(line: Line, kind: str) -> None:
    lay(line, "e1")
    path, elsewhere = line.root / "log.tsv", line.directory / "elsewhere"
    elsewhere.write_bytes(b"mine\n")
    if kind == "symlink":
        path.symlink_to(elsewhere)
    elif kind == "directory":
        path.mkdir()
    elif kind == "locked symlink":
        path.with_name("log.tsv.lock").symlink_to(elsewhere)
    elif kind == "locked directory":
        path.with_name("log.tsv.lock").mkdir()
    else:
        line.env |= {"AGENT_COORD_STATE_ROOT": str(elsewhere)}
    output = line("log", "--sync") if kind == "no directory" else line.local("log", "--sync")
    assert (output.exit, output.stdout) == (2, b"")
    assert kind == "no directory" or output.stderr == [f"log mirror unwritable: {line.root}/{_BLOCKED[kind]}"]
    assert elsewhere.read_bytes() == b"mine\n"


def test_a_mirror_that_no_memory_holds_is_left_as_it_is(line: Line) -> None:
    lay(line, "e1")
    path = line.root / "log.tsv"
    with path.open("wb") as file:
        file.truncate(300 << 30)  # a hole: it takes no room
    before = path.stat()
    output = line.local("log", "--sync")
    assert (output.exit, output.stdout) == (2, b"")
    hint = "it is larger than 2 GiB; move it away and keep it: the next sync begins another"
    assert output.stderr == [f"log mirror unwritable: {path}: {hint}"]
    assert path.stat() == before
    assert sorted(os.listdir(line.root)) == ["events", "log.tsv", "log.tsv.lock"]


@pytest.mark.parametrize("place", ["root", "directory"])
def test_names_that_are_not_utf_8_keep_nothing_from_being_mirrored(line: Line, place: str) -> None:
    if place == "root":
        line.root = line.directory / os.fsdecode(b"st\xff\x1b")
    else:
        (line.root / os.fsdecode(b"claims/\xff")).mkdir(parents=True)
    lay(line, "e1")
    shown = str(line.root).encode(errors="replace").replace(b"?", "\ufffd".encode()).replace(b"\x1b", b"")
    assert answered(line.local("log", "--sync")) == (0, b"synced 1 new event to %s/log.tsv\n" % shown, [])
    lay(line, "e2")
    assert line.local("gc", "--execute", "--sync-first").exit == 0
    assert mirror(line) == ["e1", "e2"]


def test_an_incomplete_trail_is_never_mirrored(line: Line) -> None:
    lay(line, "e1")
    line.lay("events/b1/list.json", [])
    line.lay("archive/events/b1/bad.json", b"{")
    line.lay("claims/o/r/8.json", [])
    output = line.local("log", "--sync")
    assert (output.exit, output.stdout) == (2, b"")
    assert len(output.stderr) == 4
    assert output.stderr[-1] == "refusing to sync an incomplete trail: events, archive/events, claims"
    assert not (line.root / "log.tsv").exists()


def test_simulation_is_mirrored_only_on_request(line: Line) -> None:
    lay(line, "e1")
    lay(line, "s1", synthetic=True)
    line.local("log", "--sync")
    assert mirror(line) == ["e1"]
    line.local("log", "--sync", "--include-synthetic")
    assert mirror(line) == ["e1", "s1"]


def test_syncs_at_once_leave_each_line_once(line: Line) -> None:
    for number in range(20):
        lay(line, f"e{number:02}")
    said: list[bytes] = []
    threads = [threading.Thread(target=lambda: said.append(line.local("log", "--sync").stdout)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert mirror(line) == [f"e{number:02}" for number in range(20)]
    assert sorted(text.split()[1] for text in said) == [b"0", b"0", b"0", b"20"]


def test_a_sync_waits_for_another(line: Line) -> None:
    lay(line, "e1")
    lock = take_lock(str(line.root / "log.tsv"))
    syncing = threading.Thread(target=line.local, args=("log", "--sync"))
    syncing.start()
    try:
        assert not (line.root / "log.tsv").exists()
    finally:
        release_lock(lock)
    syncing.join()
    assert mirror(line) == ["e1"]


def test_the_mirror_of_what_reads_by_default_is_beside_it(line: Line) -> None:
    implicit = line.home / ".local/state/agent-coordination"
    assert line("log", "--sync").stdout == b"synced 0 new events to %s/log.tsv\n" % os.fsencode(implicit)
    assert sorted(os.listdir(implicit)) == ["log.tsv.lock"]
