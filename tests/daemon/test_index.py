"""Kept answers: given again only as long as a reading of the files would give the same."""

import json
import os
import shutil
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from msgspec import Raw

from agentcoord.cli.render.status import facts_of_status
from agentcoord.cli.run import settle
from agentcoord.errors import CoordError, StoreError
from agentcoord.operations.context import Context
from agentcoord.operations.status import StatusRequest, status
from agentcoord.protocol.documents import encode
from agentcoord.stores.base import Store
from agentcoord.stores.opening import open_root
from agentcoordd.index import Index, trusted_from
from tests.daemon.running import until

NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)
STAMP = "2026-03-01T12:00:00Z"
BEAT: dict[str, Any] = {
    "agent_id": "ana",
    "status": "in_progress",
    "updated_at": STAMP,
    "expires_at": "2026-03-01T12:10:00Z",
}


class Board:
    """A state root, and an index that is asked about one work item in it."""

    def __init__(self, root: Path, index: Index | None = None) -> None:
        self.root, self.index = root, Index() if index is None else index
        self.now = NOW
        self.put("claims/o/r/7.json", {"repo": "o/r", "target": "7", "agent_id": "ana", "status": "active"})
        self.put("heartbeats/ana.json", BEAT)

    def put(self, path: str, record: object) -> None:
        """Replace a file whole, as the writers of records do."""
        place = self.root / path
        place.parent.mkdir(parents=True, exist_ok=True)
        (self.root / "new").write_bytes(encode(record))
        os.replace(self.root / "new", place)

    def find(self, target: str = "7") -> Any:
        raw = self.index.find((str(self.root), "o/r", target), self.now)
        return None if raw is None else json.loads(bytes(raw))

    def ask(self, target: str = "7") -> Any:
        """Ask as the daemon does: the index first, then the store."""
        if (found := self.find(target)) is not None:
            return found
        look = partial(self._look, target)
        raw, kept = self.index.answer(str(self.root), look, settle, self.now)
        self.index.keep((str(self.root), "o/r", target), kept)
        return json.loads(bytes(raw))

    def read(self, target: str = "7") -> Any:
        """Ask the store itself."""
        return json.loads(bytes(settle(self._look(target, open_root(str(self.root))))))

    async def _look(self, target: str, store: Store) -> Raw:
        context = Context(store=store, now=lambda: self.now, random=os.urandom)
        return Raw(encode(facts_of_status(await status(context, StatusRequest(repo="o/r", target=target)))))

    def settle(self, target: str = "7") -> None:
        """Ask until the answer is kept: the files have to be older than a tick of the file system's clock."""

        def kept() -> bool:
            self.ask(target)
            return self.find(target) is not None

        until(kept)


@pytest.fixture
def board(tmp_path: Path) -> Board:
    return Board(tmp_path / "root")


def test_an_answer_is_kept_and_given_again(board: Board) -> None:
    board.settle()
    hits = board.index.hits
    assert board.ask() == board.read()
    assert board.index.hits == hits + 1
    assert board.ask()["heartbeats"][0]["liveness"] == "live"


def other_beat(board: Board) -> None:
    board.put("heartbeats/ana.json", BEAT | {"phase": "coding"})


def written_in_place(board: Board) -> None:
    with (board.root / "heartbeats/ana.json").open("r+b") as file:
        data = file.read()
        file.seek(0)
        file.write(data.replace(b"in_progress", b"out_progres"))


def no_beat(board: Board) -> None:
    (board.root / "heartbeats/ana.json").unlink()


def no_heartbeats(board: Board) -> None:
    shutil.rmtree(board.root / "heartbeats")


def another_spelling(board: Board) -> None:
    board.put("claims/o/r/issue:7.json", {"repo": "o/r", "target": "issue:7", "agent_id": "bob", "status": "active"})


def a_link_in_its_place(board: Board) -> None:
    place = board.root / "heartbeats/ana.json"
    place.rename(board.root / "kept")
    place.symlink_to(board.root / "kept")


def a_linked_spelling(board: Board) -> None:
    (board.root / "claims/o/r/pr:7.json").symlink_to("7.json")


def broken(board: Board) -> None:
    (board.root / "heartbeats/ana.json").write_text("{")


def linked_directory(board: Board) -> None:
    (board.root / "claims/o").rename(board.root / "moved")
    (board.root / "claims/o").symlink_to(board.root / "moved")


def linked_family(board: Board) -> None:
    (board.root / "heartbeats").rename(board.root / "moved")
    (board.root / "heartbeats").symlink_to(board.root / "moved")


def file_for_directory(board: Board) -> None:
    shutil.rmtree(board.root / "claims/o/r")
    (board.root / "claims/o/r").write_text("")


def no_root(board: Board) -> None:
    board.root.rename(board.root.parent / "gone")


def file_for_root(board: Board) -> None:
    board.root.rename(board.root.parent / "gone")
    board.root.write_text("")


def another_root(board: Board) -> None:
    board.root.rename(board.root.parent / "gone")
    board.put("claims/o/r/7.json", {"repo": "o/r", "target": "7", "agent_id": "bob", "status": "active"})


def linked_root(board: Board) -> None:
    board.root.rename(board.root.parent / "gone")
    board.root.symlink_to(board.root.parent / "gone")


CHANGES: list[Callable[[Board], None]] = [
    other_beat,
    written_in_place,
    no_beat,
    no_heartbeats,
    another_spelling,
    a_link_in_its_place,
    a_linked_spelling,
    broken,
    linked_directory,
    linked_family,
    file_for_directory,
    no_root,
    file_for_root,
    another_root,
]


@pytest.mark.parametrize("change", [*CHANGES, linked_root])
def test_after_any_change_the_answer_is_that_of_the_store(board: Board, change: Callable[[Board], None]) -> None:
    board.settle()
    before = board.ask()
    change(board)
    for _ in range(3):
        assert outcome(board.ask) == outcome(board.read)
    assert (outcome(board.ask) == before) is (change is linked_root)


def outcome(ask: Callable[[], Any]) -> Any:
    try:
        return ask()
    except CoordError as error:
        return type(error), str(error)


def test_absent_things_are_looked_at_too(tmp_path: Path) -> None:
    board = Board(tmp_path / "root")
    shutil.rmtree(board.root / "claims")
    board.settle()
    assert board.ask()["claims"] == []
    board.put("claims/o/r/pr:7.json", {"target": "pr:7", "agent_id": "ana", "status": "active"})
    assert [row["target"] for row in board.ask()["claims"]] == ["pr:7"]


@pytest.fixture(params=["own", "4 ms"])
def clock(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """The clock of the file system, which newer kernels make as fine as need be, and that of an older kernel."""
    if request.param == "own":
        return

    def ticking(found: os.stat_result) -> tuple[int, ...]:
        modified, changed = (time - time % 4_000_000 + 1 for time in (found.st_mtime_ns, found.st_ctime_ns))
        return found.st_dev, found.st_ino, found.st_size, modified, changed

    monkeypatch.setattr("agentcoordd.index._look", ticking)


@pytest.mark.usefixtures("clock")
@pytest.mark.parametrize("replacing", [True, False])
def test_two_contents_of_one_tick_are_never_taken_for_each_other(board: Board, replacing: bool) -> None:
    place = board.root / "heartbeats/ana.json"
    for number in range(2000):
        data = encode(BEAT | {"phase": f"p{number:06}"})
        if replacing:  # on an inode that was just set free
            place.unlink()
            place.write_bytes(data)
        else:
            with place.open("r+b") as file:
                file.write(data)
        assert board.ask()["heartbeats"][0]["phase"] == f"p{number:06}"
        if number % 400 == 0:
            board.settle()
    assert board.index.misses > 1


def test_only_what_is_older_than_a_tick_is_trusted() -> None:
    fine, coarse = 1_700_000_000_123_456_789, 1_700_000_000_000_000_000
    assert trusted_from((1, 2, 3, fine, fine - 5)) == fine + 50_000_000
    assert trusted_from((1, 2, 3, coarse, fine)) == fine + 50_000_000
    assert trusted_from((1, 2, 3, coarse, coarse)) == coarse + 2_500_000_000


def test_liveness_turns_though_no_file_changes(board: Board) -> None:
    board.settle()
    for minutes, seen in (
        (9, "live"),
        (10, "stale"),
        (39, "stale"),
        (40, "dead"),
        (600, "dead"),
        (11, "stale"),
        (0, "live"),
    ):
        board.now = NOW + timedelta(minutes=minutes)
        assert [row["liveness"] for row in board.ask()["heartbeats"]] == [seen]
        board.settle()


def test_what_failed_is_not_kept(board: Board) -> None:
    (board.root / "claims/o/r/issue:7.json").write_text("{")
    noted = board.ask()["section_notes"]["claims"]
    assert "unreadable" in noted
    (board.root / "claims/o/r/7.json").write_text("{")
    with pytest.raises(StoreError):
        board.ask()
    assert len(board.index) == 0


def test_room_is_bounded_in_number_and_bytes_and_the_least_used_goes_first(tmp_path: Path) -> None:
    board = Board(tmp_path / "root", Index(most=2))
    board.settle("7")
    board.settle("8")
    board.settle("7")
    board.settle("9")
    assert len(board.index) == 2
    assert board.find("8") is None
    assert board.find("7") is not None
    size = board.index.bytes
    assert size > len(bytes(encode(board.read("7"))))
    small = Board(tmp_path / "other", Index(most_bytes=size))
    for target in ("7", "8", "9"):
        small.settle(target)
    assert 0 < small.index.bytes <= size
    assert len(small.index) < 3
    none = Board(tmp_path / "third", Index(most_bytes=10))
    none.ask()
    assert (len(none.index), none.index.bytes) == (0, 0)


def test_a_root_that_may_hang_is_never_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    far = Board(tmp_path / "far")
    Board(tmp_path / "near").settle()  # by now the files of the other are old enough as well

    def never(*_: object, **__: object) -> bool:
        return False

    monkeypatch.setattr("agentcoordd.index.is_near", never)
    far.ask()
    assert len(far.index) == 0
