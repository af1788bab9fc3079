"""No change of a record is missed by looking at directories only, however soon it follows the look before."""

import os
import time
from pathlib import Path

import pytest

from agentcoordd.stamps import Tree, rest_after
from tests.daemon.remembering import lay


def age(root: Path) -> None:
    """Let some time pass for all directories, so that nothing is in doubt any more."""
    for directory, _, _ in os.walk(root):
        found = os.stat(directory)
        os.utime(directory, ns=(found.st_atime_ns, found.st_mtime_ns - 10_000_000_000))


def named(root: Path, changed: list[str]) -> set[str]:
    return {os.path.relpath(path, root) for path in changed}


def test_only_what_changed_is_named(tmp_path: Path) -> None:
    for batch in ("b1", "b2", "b3"):
        lay(tmp_path, f"events/{batch}/e1.json", {})
    age(tmp_path)
    tree = Tree(str(tmp_path / "events"), 1)
    assert named(tmp_path, tree.look()) == {"events", "events/b1", "events/b2", "events/b3"}
    assert tree.look() == []
    lay(tmp_path, "events/b2/e1.json", {"again": True})
    assert named(tmp_path, tree.look()) == {"events/b2"}
    age(tmp_path)
    assert named(tmp_path, tree.look()) == {"events", "events/b1", "events/b2", "events/b3"}, "their times differ now"
    lay(tmp_path, "events/b4/e1.json", {})
    assert named(tmp_path, tree.look()) == {"events", "events/b4"}
    os.rename(tmp_path / "events/b1", tmp_path / "b1")
    assert named(tmp_path, tree.look()) >= {"events", "events/b1"}
    os.rename(tmp_path / "events", tmp_path / "else")
    assert len(tree.look()) == 4
    assert tree.look() == []


def test_what_is_not_there_is_no_change_and_a_symlink_is_not_there(tmp_path: Path) -> None:
    tree = Tree(str(tmp_path / "events"), 1)
    assert tree.look() == []
    lay(tmp_path, "else/b1/e1.json", {})
    (tmp_path / "events").symlink_to(tmp_path / "else")
    assert tree.look() == []
    (tmp_path / "events").unlink()
    (tmp_path / "events").mkdir()
    (tmp_path / "events/b2").symlink_to(tmp_path / "else/b1")
    (tmp_path / "events/b3").write_bytes(b"")
    assert named(tmp_path, tree.look()) == {"events"}


def test_no_change_is_missed_however_soon_it_comes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """File systems read a clock that stands still for some milliseconds; here it stands still between two changes."""
    monkeypatch.setattr("agentcoord.marks._TICK", 60 * 10**9)  # this machine may do so as well
    tree, place = Tree(str(tmp_path / "events"), 1), tmp_path / "events/b1"
    for number in range(20):
        lay(tmp_path, "events/b1/e1.json", {"n": number})
        assert "events/b1" in named(tmp_path, tree.look())
        found = os.stat(place)
        lay(tmp_path, "events/b1/e1.json", {"n": -number})
        os.utime(place, ns=(found.st_atime_ns, found.st_mtime_ns))
        assert "events/b1" in named(tmp_path, tree.look())


def test_no_change_is_missed_where_a_file_system_keeps_whole_seconds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tree, place, second = Tree(str(tmp_path / "events"), 1), tmp_path / "events/b1", 1_700_000_000 * 10**9
    for number in range(2):
        lay(tmp_path, "events/b1/e1.json", {"n": number})
        os.utime(place, ns=(second, second))
        monkeypatch.setattr(time, "time_ns", lambda: second + 990_000_000)
        assert "events/b1" in named(tmp_path, tree.look())
    monkeypatch.setattr(time, "time_ns", lambda: second + 3 * 10**9)
    assert "events/b1" in named(tmp_path, tree.look())
    assert "events/b1" not in named(tmp_path, tree.look())


def test_looking_costs_a_fiftieth_of_the_time_but_for_looks_that_never_seem_to_end() -> None:
    assert rest_after(0.02) == 1
    assert rest_after(2) == 100
    assert rest_after(8 * 60 * 60) == 300
