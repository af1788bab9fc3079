"""Listings from memory: what they say is what a reading of the files would say, whoever changed them and how."""

import json
import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime, timedelta
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from agentcoord.cli.output import Terminal
from agentcoord.cli.render.board import board as board_of
from agentcoord.cli.render.status import status_json, status_text
from agentcoord.errors import CoordError, Unreadable
from agentcoord.operations.context import Context
from agentcoord.operations.projection import read_claim_row, read_event_row
from agentcoord.operations.status import Status, StatusRequest, status
from agentcoord.protocol.documents import decode, encode, is_document
from agentcoord.stores.base import Store, Stored
from agentcoord.stores.opening import open_root, settle
from agentcoordd import roots
from agentcoordd.roots import Root, Roots
from tests.command import PATIENCE
from tests.daemon.running import in_background, until

NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)
ALL = StatusRequest()
BATCH = StatusRequest(batch_id="b1")
TICK = 60_000_000
BEAT = {
    "agent_id": "ana",
    "status": "in_progress",
    "updated_at": "2026-03-01T12:00:00Z",
    "expires_at": "2026-03-01T12:10:00Z",
}
RECORDS: dict[str, Any] = {
    "claims/o/r/7.json": {"repo": "o/r", "target": "7", "agent_id": "ana", "status": "active", "generation": 1},
    "claims/o/r/8.json": {"agent_id": "bob", "status": "released"},
    "claims/o/a.json/9.json": {"agent_id": "bob"},
    "heartbeats/ana.json": BEAT,
    "heartbeats/bob.json": BEAT | {"agent_id": "bob", "status": "done", "expires_at": "2026-03-01T12:05:00Z"},
    "batches/b1.json": {
        "batch_id": "b1",
        "lanes": [
            {"name": "qa", "owner": "ana", "targets": ["7"], "depends_on": ["b1:docs"]},
            {"name": "docs", "owner": "bob", "target": "8"},
        ],
    },
    "events/b1/e1.json": {"batch_id": "b1", "type": "claim.acquired", "at": "2026-03-01T11:00:00Z"},
    "events/b1/e2.json": {"type": "progress", "at": "2026-03-01T10:00:00Z", "message": "two"},
    "events/b2/e1.json": {"type": "progress", "at": 7},
}


class Scene:
    """A state root that is asked about through memory and without it."""

    def __init__(self, root: Path, roots: Roots | None = None) -> None:
        self.root, self.roots = root, Roots() if roots is None else roots
        self.now = NOW
        for path, record in RECORDS.items():
            self.put(path, encode(record))

    def put(self, path: str, data: bytes) -> None:
        """Replace a file whole, as the writers of records do."""
        place = self.root / path
        place.parent.mkdir(parents=True, exist_ok=True)
        (self.root / "new").write_bytes(data)
        os.replace(self.root / "new", place)

    def change(self, record: str, /, **fields: object) -> None:
        self.put(record, encode(RECORDS[record] | fields))

    def known(self) -> str:
        return self._said(self.roots.open(str(self.root)))

    def read(self) -> str:
        return self._said(open_root(str(self.root)))

    def assert_same(self) -> None:
        for _ in range(2):
            assert self.known() == self.read()

    def _said(self, store: Store) -> str:
        """Say all that the two kinds of question give, in every form, or why there is no answer."""
        return "\n".join(self._answer(store, request) for request in (ALL, BATCH))

    def _answer(self, store: Store, request: StatusRequest) -> str:
        texts = store.texts if isinstance(store, roots.RootStore) and request is ALL else None
        try:
            seen = self.look(store, request)
        except CoordError as error:
            return f"{type(error).__name__} {error}"
        forms = (b"".join(status_json(seen, texts)), status_text(seen), board_of(seen, self.now, Terminal()))
        return b"\n".join(forms).decode("utf-8", "surrogateescape")

    def look(self, store: Store, request: StatusRequest = ALL) -> Status:
        return settle(status(Context(store=store, now=lambda: self.now, random=os.urandom), request))

    @property
    def files_read(self) -> int:
        return sum(root.files_read for root in self.roots.all().values())

    def settle(self) -> None:
        """Wait until every file is older than a tick of the file system's clock, and have it read."""
        until(lambda: time.time_ns() - max(map(_changed_at, _tree(self.root))) > TICK)
        self.known()


def _tree(root: Path) -> Iterable[Path]:
    return (root, *root.rglob("*"))


def _changed_at(path: Path) -> int:
    return path.lstat().st_ctime_ns


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    return Scene(tmp_path / "root")


def test_what_did_not_change_is_not_read_again(scene: Scene) -> None:
    scene.settle()
    read = scene.files_read
    scene.assert_same()
    assert scene.files_read == read
    scene.change("heartbeats/ana.json", phase="coding")
    assert '"phase": "coding"' in scene.known()
    assert scene.files_read == read + 1


# Every kind of change ------------------------------------------------------------------------------


def replaced(scene: Scene) -> None:
    scene.change("heartbeats/ana.json", phase="coding")


def written_in_place(scene: Scene) -> None:
    with (scene.root / "heartbeats/ana.json").open("r+b") as file:
        data = file.read()
        file.seek(0)
        file.write(data.replace(b"in_progress", b"out_progres"))


def a_flag_for_a_number(scene: Scene) -> None:
    scene.change("claims/o/r/7.json", generation=True)


def a_float_for_a_number(scene: Scene) -> None:
    scene.change("claims/o/r/7.json", generation=1.0)


def an_own_path(scene: Scene) -> None:
    scene.change("claims/o/r/7.json", path="claims/o/r/1.json")
    scene.change("heartbeats/ana.json", path=7, liveness="live")
    scene.change("events/b1/e1.json", path=["x"])


def removed(scene: Scene) -> None:
    (scene.root / "claims/o/r/7.json").unlink()


def renamed(scene: Scene) -> None:
    (scene.root / "claims/o/r/7.json").rename(scene.root / "claims/o/r/6.json")


def exchanged(scene: Scene) -> None:
    one, two = scene.root / "heartbeats/ana.json", scene.root / "heartbeats/bob.json"
    one.rename(scene.root / "kept")
    two.rename(one)
    (scene.root / "kept").rename(two)


def added(scene: Scene) -> None:
    scene.put("claims/o/r/1.json", encode({"agent_id": "cleo"}))


def added_in_a_new_directory(scene: Scene) -> None:
    scene.put("events/b0/e9.json", encode({"type": "progress", "at": "2026-03-01T10:30:00Z"}))


def hidden(scene: Scene) -> None:
    scene.put("claims/o/r/.1.json", b"{")
    scene.put("claims/o/r/1.json.lock", b"")


def broken(scene: Scene) -> None:
    scene.put("events/b1/e2.json", b"{")


def no_object(scene: Scene) -> None:
    scene.put("heartbeats/ana.json", b"[]")


def no_batch(scene: Scene) -> None:
    scene.put("batches/b1.json", b"7")


def empty(scene: Scene) -> None:
    (scene.root / "claims/o/r/8.json").write_bytes(b"")


def not_unicode(scene: Scene) -> None:
    scene.put("claims/o/r/8.json", b'{"agent_id": "\xff"}')


def name_that_is_no_text(scene: Scene) -> None:
    (scene.root / os.fsdecode(b"events/b1/\xff.json")).write_bytes(b"{}")


def name_beyond_ascii(scene: Scene) -> None:
    scene.put("heartbeats/ä.json", encode(BEAT | {"agent_id": "ä", "host": "\u2028"}))


def link(scene: Scene) -> None:
    place = scene.root / "heartbeats/ana.json"
    place.rename(scene.root / "kept")
    place.symlink_to(scene.root / "kept")


def linked_directory(scene: Scene) -> None:
    (scene.root / "claims/o").rename(scene.root / "moved")
    (scene.root / "claims/o").symlink_to(scene.root / "moved")


def linked_family(scene: Scene) -> None:
    (scene.root / "heartbeats").rename(scene.root / "moved")
    (scene.root / "heartbeats").symlink_to(scene.root / "moved")


def directory_for_record(scene: Scene) -> None:
    (scene.root / "heartbeats/ana.json").unlink()
    (scene.root / "heartbeats/ana.json").mkdir()


def file_for_directory(scene: Scene) -> None:
    shutil.rmtree(scene.root / "claims/o/r")
    (scene.root / "claims/o/r").write_text("")


def pipe_for_record(scene: Scene) -> None:
    (scene.root / "events/b2/e1.json").unlink()
    os.mkfifo(scene.root / "events/b2/e1.json")


def no_family(scene: Scene) -> None:
    shutil.rmtree(scene.root / "events")


def moved_directory(scene: Scene) -> None:
    (scene.root / "events/b1").rename(scene.root / "events/b3")


def no_root(scene: Scene) -> None:
    scene.root.rename(scene.root.parent / "gone")


def another_root(scene: Scene) -> None:
    scene.root.rename(scene.root.parent / "gone")
    scene.put("claims/o/r/7.json", encode({"agent_id": "bob", "status": "active"}))


def linked_root(scene: Scene) -> None:
    scene.root.rename(scene.root.parent / "gone")
    scene.root.symlink_to(scene.root.parent / "gone")


CHANGES: list[Callable[[Scene], None]] = [
    *(replaced, written_in_place, a_flag_for_a_number, a_float_for_a_number, removed, renamed, exchanged),
    *(added, added_in_a_new_directory, broken, no_object, no_batch, empty, not_unicode, name_that_is_no_text),
    *(name_beyond_ascii, link, linked_directory, linked_family, directory_for_record, file_for_directory),
    *(pipe_for_record, no_family, moved_directory, no_root, another_root),
]


@pytest.mark.parametrize("change", CHANGES)
def test_after_any_change_the_answer_is_that_of_the_files(scene: Scene, change: Callable[[Scene], None]) -> None:
    scene.settle()
    before = scene.known()
    change(scene)
    scene.assert_same()
    assert scene.known() != before


@pytest.mark.parametrize("change", [hidden, an_own_path, linked_root])
def test_what_changes_no_answer_changes_none(scene: Scene, change: Callable[[Scene], None]) -> None:
    scene.settle()
    before = scene.known()
    change(scene)
    scene.assert_same()
    assert scene.known() == before


@pytest.mark.parametrize("minutes", [-600, 4, 6, 11, 30, 60, 600])
def test_liveness_turns_though_no_file_changes(scene: Scene, minutes: int) -> None:
    scene.settle()
    before, read = scene.known(), scene.files_read
    scene.now = NOW + timedelta(minutes=minutes)
    scene.assert_same()
    scene.now = NOW
    assert scene.known() == before
    assert scene.files_read == read


# Histories -----------------------------------------------------------------------------------------

_paths = st.sampled_from(
    [*RECORDS, "claims/o/r/1.json", "heartbeats/cleo.json", "events/b3/e1.json", "batches/b2.json"]
)
_values: st.SearchStrategy[Any] = st.sampled_from(
    [None, 1, True, 1.0, "ana", "bob", "done", "b1:docs", [], {}, "2026-03-01T12:01:00Z"]
)
_fields = st.sampled_from(
    ["agent_id", "status", "generation", "path", "repo", "at", "updated_at", "expires_at", "lanes", "terminal", "é"]
)
_contents = st.one_of(
    st.dictionaries(_fields, _values, max_size=3).map(lambda fields: BEAT | fields).map(encode),
    st.sampled_from([b"", b"{", b"[]", b"\xff", b'{"lanes":[{"name":"a:b","owner":7},3],"batch_id":4}']),
)
_steps = st.one_of(
    st.tuples(st.just("rename"), _paths, _contents),
    st.tuples(st.just("write"), _paths, _contents),
    st.tuples(st.just("remove"), _paths),
    st.tuples(st.just("move"), _paths, _paths),
    st.tuples(st.just("settle")),
    st.tuples(st.just("ask")),
    st.tuples(st.just("wait"), st.integers(0, 3600)),
)


@given(st.lists(_steps, min_size=4, max_size=12))
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_history_ends_in_the_answer_of_the_files(tmp_path: Path, steps: Sequence[tuple[Any, ...]]) -> None:
    scene = Scene(tmp_path / str(next(_numbers)))
    scene.settle()
    for step in steps:
        _take(scene, *step)
    scene.assert_same()
    shutil.rmtree(scene.root)


_numbers = count()


def _take(scene: Scene, deed: str, *words: Any) -> None:
    match deed, words:
        case "rename", (path, data):
            scene.put(path, data)
        case "write", (path, data):
            (scene.root / path).parent.mkdir(parents=True, exist_ok=True)
            (scene.root / path).write_bytes(data)
        case "remove", (path,):
            (scene.root / path).unlink(missing_ok=True)
        case "move", (path, other) if (scene.root / path).exists():
            (scene.root / other).parent.mkdir(parents=True, exist_ok=True)
            os.replace(scene.root / path, scene.root / other)
        case "wait", (seconds,):
            scene.now += timedelta(seconds=seconds)
        case "settle", ():
            scene.settle()
        case _:
            scene.assert_same()


WRITER = """\
import json, os, sys
root = sys.argv[1]
for number, line in enumerate(sys.stdin):
    path = f"{root}/heartbeats/ana.json"
    data = json.dumps({"agent_id": "ana", "phase": f"p{number:03}"})
    match line.strip():
        case "in place":
            with open(path, "r+" if os.path.exists(path) else "w") as file:
                file.write(data)
        case "rename":
            with open(f"{root}/new", "w") as file:
                file.write(data)
            os.replace(f"{root}/new", path)
        case "delete":
            os.remove(path)
    print(number, flush=True)
"""


def test_what_another_process_wrote_a_moment_ago_is_seen(scene: Scene) -> None:
    writer = subprocess.Popen(
        [sys.executable, "-c", WRITER, str(scene.root)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert writer.stdin is not None
    assert writer.stdout is not None
    with writer:
        for number, deed in enumerate(["rename", "in place", "in place", "rename", "delete", "in place"] * 10):
            if number % 12 == 0:
                scene.settle()
            writer.stdin.write(f"{deed}\n")
            writer.stdin.flush()
            assert writer.stdout.readline() == f"{number}\n"
            seen = scene.look(scene.roots.open(str(scene.root)))
            phases = [row.get("phase") for row in seen.heartbeats if row["agent_id"] == "ana"]
            assert phases == ([] if deed == "delete" else [f"p{number:03}"])
        writer.stdin.close()


# Whom it serves ------------------------------------------------------------------------------------


def test_rows_that_were_shown_stay_as_they_were(scene: Scene) -> None:
    scene.settle()
    store = scene.roots.open(str(scene.root))
    first = scene.look(store)
    said = b"".join(status_json(first))
    scene.now += timedelta(hours=3)
    scene.change("claims/o/r/7.json", phase="other")
    scene.change("batches/b1.json", objective="other")
    second = scene.look(store)
    assert b"".join(status_json(first)) == said
    assert b"".join(status_json(second)) != said
    assert second.claims[-1] is first.claims[-1]  # and what is the same is the same object


def test_who_asks_while_a_listing_is_under_way_is_told_of_the_next(tmp_path: Path) -> None:
    """Each reading stands still until it may go on, so nobody can be told of one that began before they asked."""
    (tmp_path / "claims").mkdir()
    (tmp_path / "claims/1.json").write_bytes(b"{}")
    root = Root(str(tmp_path), lambda _: True)
    begun, go = threading.Semaphore(0), threading.Semaphore(0)
    numbers = count()

    def read(names: Sequence[str]) -> list[Stored | Unreadable]:
        number = next(numbers)
        begun.release()
        assert go.acquire(timeout=PATIENCE)
        return [Stored(name, {"number": number}, "") for name in names]

    answers: dict[str, Any] = {}

    def ask(who: str) -> threading.Thread:
        def work() -> None:
            entries = root.listing("claims", decode, read)
            assert entries is not None
            answers[who] = [entry.document for entry in entries if isinstance(entry, Stored)]

        return in_background(work)

    first = ask("first")
    assert begun.acquire(timeout=PATIENCE)
    later = [ask(who) for who in ("second", "third")]
    until(lambda: root.waiting == 1)
    go.release()
    assert begun.acquire(timeout=PATIENCE)
    go.release()
    for thread in (first, *later):
        thread.join(PATIENCE)
    assert answers == {"first": [{"number": 0}], "second": [{"number": 1}], "third": [{"number": 1}]}
    assert next(numbers) == 2


def test_only_listings_of_status_come_from_memory(scene: Scene) -> None:
    """What others get of a record is theirs to change."""
    store = scene.roots.open(str(scene.root))
    for _ in range(2):
        listing = settle(store.list("claims"))
        for entry in listing.entries:
            assert isinstance(entry, Stored)
            assert is_document(entry.document)
            entry.document.clear()
    assert scene.roots.records == 0
    assert "ana" in scene.known()


def test_versions_are_those_of_the_files(scene: Scene) -> None:
    known, read = (
        {
            entry.path: entry.version
            for entry in settle(store.list("claims", decode=read_claim_row)).entries
            if isinstance(entry, Stored)
        }
        for store in (scene.roots.open(str(scene.root)), open_root(str(scene.root)))
    )
    assert known == read


# Limits --------------------------------------------------------------------------------------------


def test_a_root_that_is_too_large_is_read_each_time(tmp_path: Path) -> None:
    scene = Scene(tmp_path / "root", Roots(most_bytes=4000))
    scene.settle()
    read = scene.files_read
    scene.assert_same()
    assert scene.files_read == read  # memory has no part in it any more
    scene.roots.sweep()
    assert (scene.roots.records, scene.roots.bytes) == (0, 0)
    scene.change("heartbeats/ana.json", phase="coding")
    scene.assert_same()


def test_room_is_made_at_the_cost_of_who_was_not_asked_for_longest(tmp_path: Path) -> None:
    one = Scene(tmp_path / "one")
    one.settle()
    own = one.roots.bytes
    roots = Roots(most_bytes=own * 5 // 2)
    scenes = [Scene(tmp_path / name, roots) for name in "abc"]
    for scene in scenes:
        scene.settle()
    assert {root.name for root in map(Path, roots.all())} == {"b", "c"}
    assert 0 < roots.bytes <= roots.most_bytes
    roots.sweep()
    for scene in scenes:
        scene.assert_same()


def test_what_nobody_asks_for_is_forgotten(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    scene.settle()
    assert scene.roots.records == len(RECORDS)
    assert scene.roots.bytes > 0
    scene.roots.sweep()
    assert scene.roots.records == len(RECORDS)
    later = time.monotonic() + roots.IDLE_SECONDS + 1
    monkeypatch.setattr(roots, "monotonic", lambda: later)
    scene.roots.sweep()
    assert (scene.roots.records, scene.roots.bytes) == (0, 0)
    scene.assert_same()


def test_listings_that_were_not_asked_for_longest_let_go_of_their_records(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(roots, "_MOST_VIEWS", 2)
    for batch in ("b1", "b2", "b3", "b4"):
        scene.put(f"events/{batch}/e1.json", encode({"at": batch}))
    (scene.root / "events/b1/e2.json").unlink()
    store = scene.roots.open(str(scene.root))
    held: list[tuple[int, int]] = []
    for batch in ("b1", "b2", "b3", "b4", "b4", "b1"):
        assert len(scene.look(store, StatusRequest(batch_id=batch)).events) == 1
        held.append((scene.roots.records, scene.roots.bytes))
    assert [records for records, _ in held] == [1, 2, 2, 2, 2, 2]
    assert held[-1][1] == held[1][1]


def test_a_listing_that_is_let_go_leaves_others_what_they_hold(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(roots, "_MOST_VIEWS", 2)
    store = scene.roots.open(str(scene.root))
    for prefix in ("events", "events/b1", "claims"):  # the last one takes the place of the first
        settle(store.list(prefix, decode=read_event_row))
    [known] = scene.roots.all().values()
    assert known.records == len([path for path in RECORDS if path.startswith(("events/b1/", "claims/"))])
    before = known.bytes
    scene.put("events/b1/e1.json", encode(RECORDS["events/b1/e1.json"]))
    settle(store.list("events/b1", decode=read_event_row))
    assert known.bytes == before


def test_directories_that_are_gone_are_forgotten(scene: Scene) -> None:
    """Batches come and go for as long as a daemon runs, and somebody asks all the time."""
    scene.known()
    [known] = scene.roots.all().values()
    before = known.directories
    scene.put("events/x/deep/er/e.json", b"{}")
    scene.known()
    assert known.directories == before + 3
    shutil.rmtree(scene.root / "events/x")
    scene.known()
    assert known.directories == before
    shutil.rmtree(scene.root / "events")
    scene.known()
    assert known.directories < before
    assert known.listing("events/b1", read_event_row, lambda names: []) is None


def test_directories_of_a_listing_that_is_let_go_are_forgotten(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(roots, "_MOST_VIEWS", 1)
    store = scene.roots.open(str(scene.root))
    for number in range(5):
        scene.put(f"events/x{number}/e.json", b"{}")
        settle(store.list(f"events/x{number}", decode=read_event_row))
        shutil.rmtree(scene.root / f"events/x{number}")
    [known] = scene.roots.all().values()
    assert known.directories == 1


def test_a_root_in_use_is_freed_later(tmp_path: Path) -> None:
    (tmp_path / "claims").mkdir()
    (tmp_path / "claims/1.json").write_bytes(b"{}")
    root = Root(str(tmp_path), lambda _: True)
    freed: list[bool] = []

    def read(names: Sequence[str]) -> list[Stored | Unreadable]:
        freed.append(root.forget())
        return [Stored(name, {}, "") for name in names]

    assert root.listing("claims", decode, read) is not None
    assert freed == [False]
    assert root.forget()
    assert (root.records, root.bytes) == (0, 0)


def test_what_is_estimated_goes_with_what_goes(scene: Scene) -> None:
    scene.settle()
    for family in ("claims", "heartbeats", "batches", "events"):
        shutil.rmtree(scene.root / family)
        (scene.root / family).mkdir()
    scene.assert_same()
    assert (scene.roots.records, scene.roots.bytes) == (0, 0)
    assert json.loads(b"".join(status_json(scene.look(scene.roots.open(str(scene.root))))))["claims"] == []
