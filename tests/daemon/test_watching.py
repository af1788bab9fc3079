"""Subscribers learn that records have changed, whichever program wrote them and however that comes to be known."""

import os
import shutil
import subprocess
import threading
from collections.abc import Callable, Generator
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import anyio
import pytest

from agentcoordd.api.subscriptions import Feed
from agentcoordd.clock import SystemClock
from agentcoordd.services import watching
from agentcoordd.services.watching import Sight, Watching, is_news
from tests.command import PATIENCE
from tests.daemon.remembering import command, lay
from tests.daemon.running import Daemon, until

CLAIM = "claims/o/r/7.json"
MOST_TURNS = 100
"""Each waits a quarter of a second for what the system tells, and not at all where something is looked for."""
FEW_WATCHES = ("unshare", "-Ur", "sh", "-c", 'echo 2 > /proc/sys/user/max_inotify_watches && exec "$@"', "sh")


class Listener:
    """Reads what is told of one backend. What has changed may be told of again, and nothing else may."""

    def __init__(self, daemon: Daemon) -> None:
        self._caller, self._backend = daemon.call(), str(daemon.root)
        assert self._caller.ask("subscribe", {"topics": ["changed"]})["result"] == {"ok": True}
        self._changed = set[str]()

    def hears(self, *families: str) -> None:
        """Read until all of these were told."""
        self._changed |= set(families)
        missing = set(families)
        while missing:
            frame = self._caller.next()
            assert (frame["method"], frame["params"]["topic"]) == ("event", "changed")
            data: dict[str, Any] = frame["params"]["data"]
            assert data.keys() == {"backend", "families", "at"}
            assert data["backend"] == self._backend
            assert data["at"].endswith("Z")
            assert data["families"] == sorted(data["families"]) != []
            assert set(data["families"]) <= self._changed, data
            missing -= set(data["families"])


def watched(daemon: Daemon) -> dict[str, Any]:
    (view,) = daemon.status()["watching"]
    return view


def test_what_any_program_writes_is_told(daemon: Daemon) -> None:
    daemon.start()
    listener = Listener(daemon)
    assert watched(daemon) == {"backend": str(daemon.root), "state": "absent", "why": None}
    lay(daemon.root, CLAIM, {"status": "active"})
    listener.hears("claims")
    until(lambda: watched(daemon)["state"] == "told")
    assert command(daemon, "heartbeat", "--agent-id", "a1").returncode == 0
    listener.hears("heartbeats")
    lay(daemon.root, "archive/events/2026-01-01/e.json", {})
    lay(daemon.root, "attention/w/o/r/a.json", {})
    listener.hears("archive", "attention")
    (daemon.root / CLAIM).unlink()
    listener.hears("claims")


def test_the_log_is_not_filled_with_changes(daemon: Daemon) -> None:
    daemon.start()
    listener = Listener(daemon)
    lay(daemon.root, CLAIM, {})
    listener.hears("claims")
    lay(daemon.root, "claims/o/r/8.json", {})
    listener.hears("claims")
    assert "change" not in daemon.said()


def test_a_root_that_goes_and_comes_back_is_watched_again(daemon: Daemon) -> None:
    lay(daemon.root, CLAIM, {})
    daemon.start()
    listener = Listener(daemon)
    aside = daemon.root.with_name("aside")
    daemon.root.rename(aside)
    listener.hears("claims")
    lay(daemon.root, "batches/b.json", {})
    listener.hears("batches")
    lay(aside, "claims/o/r/8.json", {})  # which is no state root of this daemon any more
    shutil.rmtree(daemon.root)
    listener.hears("batches")
    aside.rename(daemon.root)
    listener.hears("claims")
    lay(daemon.root, "claims/o/r/9.json", {})
    listener.hears("claims")


@pytest.fixture
def few() -> tuple[str, ...]:
    """A way to start a program for which the system watches two directories at most."""
    tried = subprocess.run([*FEW_WATCHES, "true"], capture_output=True, check=False)
    if tried.returncode:
        pytest.skip(f"no limits of its own for a process here: {tried.stderr.decode().strip()}")
    return FEW_WATCHES


def test_where_no_more_can_be_watched_changes_are_looked_for_and_that_is_said_once(
    daemon: Daemon, few: tuple[str, ...]
) -> None:
    lay(daemon.root, CLAIM, {})
    daemon.start(before=few)
    until(lambda: watched(daemon)["state"] == "polled")
    assert "watch limit" in watched(daemon)["why"]
    listener = Listener(daemon)
    for target in "890":
        lay(daemon.root, f"claims/o/r/{target}.json", {})
        listener.hears("claims")
    lay(daemon.root, "claims/o/new/7.json", {})
    listener.hears("claims")
    assert daemon.said().count("is looked at for changes") == 1


# What is seen of a root, turn by turn ------------------------------------------------------------------


@pytest.fixture
def sight(tmp_path: Path) -> Generator[Sight]:
    """Of a root with one claim, which is known."""
    lay(tmp_path, CLAIM, {"n": 0})
    sight = Sight(str(tmp_path))
    assert sight.turn() == set()
    yield sight
    sight.stop()


def turns(sight: Sight, enough: Callable[[], bool]) -> None:
    for _ in range(MOST_TURNS):
        if enough():
            return
    raise AssertionError(f"it never came to that: {sight.state}, {sight.why}")


def next_news(sight: Sight) -> set[str]:
    """Look until there is something new."""
    news = set[str]()
    turns(sight, lambda: bool(news.update(sight.turn()) or news))
    return news


def quiet(sight: Sight) -> None:
    """Look until what came before has been told of."""
    turns(sight, lambda: not sight.turn() and sight.state in ("told", "polled"))


@pytest.mark.parametrize(
    ("path", "told"),
    [
        (CLAIM, True),
        ("claims/o/.github/7.json", True),
        ("claims/o", True),
        ("claims/.o/r", True),
        ("claims/o/api.json", True),
        ("claims", True),
        ("events/b1", True),
        ("events/.b1", False),
        ("events/b1/e.json", True),
        ("archive/claims/o/r/7.json", True),
        ("archive/events/2026-01-01", True),
        ("claims/o/r/7.json.lock", False),
        ("claims/o/r/.7.json.tmp-12-ab", False),
        ("claims/o/r/.7.json", False),
        ("heartbeats/a1.json.lock", False),
        ("heartbeats/readme", False),
        ("batches/.b.json.tmp-1-2", False),
        ("events/b1/e.json.lock", False),
        ("attention/w/o/r/a.json.lock", False),
        (".cache/mirrored.json", False),
        ("log.tsv", False),
        ("log.tsv.lock", False),
        ("other/7.json", False),
        ("", False),
    ],
)
def test_locks_and_temporary_files_are_no_news(path: str, told: bool) -> None:
    assert is_news(path) is told


def _link(root: Path) -> None:
    (root / "claims/o/elsewhere").symlink_to("/usr")


def _nothing(root: Path) -> None:
    pass


@pytest.mark.parametrize(("prepare", "state"), [(_nothing, "told"), (_link, "polled")])
def test_only_records_are_news_either_way(
    tmp_path: Path, prepare: Callable[[Path], None], state: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watching, "_LOOK", 0.0)
    for family in ("heartbeats", "events/b1"):
        (tmp_path / family).mkdir(parents=True)
    lay(tmp_path, CLAIM, {})
    prepare(tmp_path)
    sight = Sight(str(tmp_path))
    quiet(sight)
    assert sight.state == state
    for path in ("heartbeats/a1.json.lock", "events/b1/.e.json.tmp-1-ab", "log.tsv", ".cache/mirrored.json"):
        lay(tmp_path, path, {})
    lay(tmp_path, CLAIM, {"n": "another"})
    assert next_news(sight) == {"claims"}
    (tmp_path / "heartbeats/a1.json.lock").unlink()
    (tmp_path / CLAIM).unlink()
    assert next_news(sight) == {"claims"}
    lay(tmp_path, "events/b2/e.json", {})
    assert next_news(sight) == {"events"}
    sight.stop()


def test_a_link_is_not_followed(sight: Sight, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    _link(tmp_path)
    quiet(sight)
    quiet(sight)
    assert (sight.state, sight.why) == ("polled", f"{tmp_path}/claims/o/elsewhere is a link")
    assert len(caplog.records) == 1


def test_a_look_that_hung_is_followed_by_another_within_minutes(
    sight: Sight, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hours = count(0.0, 8 * 3600.0)  # of each look at the clock
    monkeypatch.setattr(watching, "time", SimpleNamespace(monotonic=lambda: next(hours)))
    _link(tmp_path)
    sight.turn()
    assert (sight.state, sight.pause) == ("polled", 300)


def test_more_directories_than_there_is_room_for_are_looked_at(
    sight: Sight, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watching, "MOST_DIRECTORIES", 2)
    quiet(sight)
    assert (sight.state, sight.why) == ("polled", "there are more than 2 directories")
    lay(tmp_path, CLAIM, {"n": 1})
    assert next_news(sight) == {"claims"}


def test_what_changes_before_the_system_tells_is_told_nevertheless(tmp_path: Path) -> None:
    lay(tmp_path, CLAIM, {"n": 0})
    sight = Sight(str(tmp_path))
    sight.turn()
    assert sight.state != "told"
    lay(tmp_path, "claims/o/r/8.json", {})
    assert next_news(sight) == {"claims"}
    sight.stop()


class Silent:
    """In place of the system: tells of nothing."""

    def __init__(self) -> None:
        self.asked = 0

    def __call__(self, *paths: str, **options: Any) -> Generator[set[tuple[Any, str]], None, None]:
        self.asked += 1
        while True:
            yield set()


def _at_once(took: float) -> float:
    return 0.0


def test_a_file_system_that_does_not_tell_is_found_out(
    sight: Sight, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    silent = Silent()
    monkeypatch.setattr(watching.watchfiles, "watch", silent)
    for name in ("_CHECK", "_DOUBT", "_LOOK"):
        monkeypatch.setattr(watching, name, 0.0)
    monkeypatch.setattr(watching, "rest_after", _at_once)
    quiet(sight)
    lay(tmp_path, "claims/o/r/8.json", {"n": 1})
    assert next_news(sight) == {"claims"}
    turns(sight, lambda: sight.turn() <= {"claims"} and sight.state != "told")
    assert sight.why == "the system does not tell of all changes, as below claims"
    lay(tmp_path, "claims/o/r/9.json", {})
    assert "claims" in next_news(sight)
    assert (silent.asked, len(caplog.records)) == (1, 1)


def test_another_attempt_is_made_later(sight: Sight, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(watching, "_RETRY", 0.0)
    _link(tmp_path)
    sight.turn()
    assert sight.state == "polled"
    (tmp_path / "claims/o/elsewhere").unlink()
    quiet(sight)
    assert sight.state == "told"


@pytest.mark.parametrize("fault", [OSError(28, "OS file watch limit reached."), RuntimeError("overrun"), ValueError()])
def test_a_watch_that_fails_is_replaced_by_looks(
    sight: Sight, tmp_path: Path, fault: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*paths: str, **options: Any) -> Generator[set[tuple[Any, str]], None, None]:
        raise fault
        yield set()

    monkeypatch.setattr(watching.watchfiles, "watch", broken)
    quiet(sight)
    assert sight.state == "polled"
    lay(tmp_path, CLAIM, {"n": 1})
    assert next_news(sight) == {"claims"}


def test_a_name_that_is_no_text_ends_nothing(sight: Sight, tmp_path: Path) -> None:
    quiet(sight)
    (tmp_path / "claims/o" / os.fsdecode(b"\xff")).mkdir()
    assert next_news(sight) == {"claims"}
    lay(tmp_path, "claims/o/r/8.json", {})
    assert next_news(sight) == {"claims"}


async def test_a_root_that_hangs_holds_up_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    let_go, hung, seen = threading.Event(), str(tmp_path / "hung"), anyio.Event()
    look = watching.families_in  # what touches the file system first

    def hang(root: str) -> dict[str, tuple[int, int]]:
        if root == hung:
            let_go.wait(PATIENCE)
        return look(root)

    class Told(Feed):
        def publish(self, topic: str, data: Any) -> None:
            assert data["backend"] == str(tmp_path / "well")
            seen.set()

    monkeypatch.setattr(watching, "families_in", hang)
    monkeypatch.setattr(watching, "_FIRST", 0.01)
    monkeypatch.setattr(watching, "_HANGING", 0.0)
    service = Watching([hung, str(tmp_path / "well")], Told(), SystemClock())
    try:
        with anyio.fail_after(PATIENCE):
            async with anyio.create_task_group() as tasks:
                await tasks.start(service.run)
                lay(tmp_path / "well", CLAIM, {})
                await seen.wait()
                assert service.list()[0].state == "hanging"
                tasks.cancel_scope.cancel()
    finally:
        let_go.set()
