"""Tells subscribers when somebody asks for attention, or settles what was asked, on the state roots of this machine.

Any program may write there, so the directories are watched, by their stamps. What stood there when the daemon began is
no news. On other backends only what commands write through this daemon is known, and told as they write it.
"""

import logging
import os
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import anyio
import anyio.to_thread
from anyio.abc import TaskStatus

from agentcoord.errors import StoreError
from agentcoord.files import opened_file, printable
from agentcoord.protocol.attention import Key, require_stored
from agentcoord.protocol.documents import Document, decode
from agentcoord.protocol.instants import stamp
from agentcoord.protocol.paths import ACTIVE_RECORD_BYTES
from agentcoord.protocol.topics import ATTENTION_CHANGED
from agentcoordd.backends import Backend, LocalBackend, shown
from agentcoordd.clock import Clock
from agentcoordd.lanes import Feed
from agentcoordd.stamps import Tree, rest_after

_LOOK = 0.5
_FIRST = 5.0
"""Seconds that the daemon waits at most for the first look at all of them."""
_MOST_READ = 256
"""Records read at a time; the others follow after a breath."""
_BREATH = 0.02
_DEPTH = 3  # workspace, owner, repository

_Mark = tuple[int, int, int]

log = logging.getLogger(__name__)


class Attention:
    """What is asked on the state roots of one daemon."""

    def __init__(self, roots: Sequence[str], feed: Feed, clock: Clock) -> None:
        self._watched = {root: _Watched(root) for root in roots}
        self._feed, self._clock = feed, clock

    async def run(self, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        """Watch all of them until cancelled; started once it is known what is no news, or soon after: a state root
        that does not answer is not waited for. No failure ends it.
        """
        async with anyio.create_task_group() as tasks:
            for watched in self._watched.values():
                tasks.start_soon(self._watch, watched)
            with anyio.move_on_after(_FIRST):
                for watched in self._watched.values():
                    await watched.looked.wait()
            task_status.started()

    def told(self, backend: Backend, record: Document) -> None:
        """Take note of what a command wrote through this daemon, and tell it where nothing is watched."""
        watched = self._watched.get(backend.root) if isinstance(backend, LocalBackend) else None
        if watched is None:
            self._publish(shown(backend), Key(record["workspace"], record["repository"], record["id"]), record)
        else:
            watched.wake.set()

    async def _watch(self, watched: "_Watched") -> None:
        while True:
            watched.wake = anyio.Event()  # before the look: what a command writes during it is looked at after it
            try:
                news = await anyio.to_thread.run_sync(watched.look, abandon_on_cancel=True)
            except OSError as error:
                watched.failed(error)
                news = []
            watched.looked.set()
            for key, record in news:
                self._publish(printable(watched.root), key, record)
            await self._clock.wait(watched.wake, watched.pause)

    def _publish(self, backend: str, key: Key, record: Document | None) -> None:
        facts = ("status", "priority_class", "target", "kind", "question", "source_generation")
        data: dict[str, Any] = {
            "backend": backend,
            "workspace": key.workspace,
            "repository": key.repository,
            "id": key.id,
            **{name: None if record is None else record[name] for name in facts},
            "at": stamp(self._clock.now()),
        }
        self._feed.publish(ATTENTION_CHANGED, data)


class _Watched:
    """The requests of one state root: by which marks their files were last known."""

    def __init__(self, root: str) -> None:
        self.root = root.rstrip("/")
        self.wake, self.looked = anyio.Event(), anyio.Event()
        self._tree = Tree(f"{self.root}/attention", _DEPTH)
        self._marks: dict[str, dict[str, _Mark]] = {}
        self._unseen: dict[str, bool] = {}
        """Directories that could not be looked at, and whether what is found in them is news."""
        self._waiting: dict[str, None] = {}
        self._took = 0.0
        self._known = False
        self._told = False

    @property
    def pause(self) -> float:
        """How many seconds there is nothing to do."""
        return _BREATH if self._waiting else max(_LOOK, rest_after(self._took))

    def failed(self, error: OSError) -> None:
        """Say once that the root cannot be looked at, until it can again."""
        level = logging.DEBUG if self._told else logging.WARNING
        log.log(level, "%s is not watched for attention: %s", printable(str(error.filename)), error.strerror)
        self._told = True

    def look(self) -> list[tuple[Key, Document | None]]:
        """Find the requests that have changed; None of one that is gone or not to be trusted. Raises OSError."""
        if not self._waiting:
            began = time.monotonic()
            try:
                self._find()
            finally:
                self._took = time.monotonic() - began
        news: list[tuple[Key, Document | None]] = []
        for path in list(self._waiting)[:_MOST_READ]:
            del self._waiting[path]
            news.append((_key_of(path), self._read(path)))
        return news

    def _find(self) -> None:
        """Raises OSError for a directory that cannot be looked at, once all others were; it is tried again."""
        closed: dict[str, OSError] = {}
        changed = self._tree.look(closed)
        unseen = self._unseen

        def is_news(directory: str) -> bool:
            # What was there when the daemon began is no news, also where it is seen only now, as one below it.
            above = (directory.rsplit("/", up)[0] if up else directory for up in range(1 + _DEPTH))
            return next((unseen[place] for place in above if place in unseen), self._known)

        self._unseen = {directory: is_news(directory) for directory in closed}
        for directory in dict.fromkeys([*unseen, *changed]):
            if directory.count("/") - self.root.count("/") != 1 + _DEPTH:
                continue
            news = is_news(directory)
            try:
                marks = _marks_in(directory)
            except OSError as error:
                closed[directory], self._unseen[directory] = error, news
                continue
            before = self._marks.pop(directory, {})
            if marks:
                self._marks[directory] = marks
            if news:
                names = sorted(name for name in {**before, **marks} if before.get(name) != marks.get(name))
                self._waiting.update(dict.fromkeys(f"{directory}/{name}" for name in names))
        self._known = True
        if closed:
            raise next(iter(closed.values()))
        self._told = False

    def _read(self, path: str) -> Document | None:
        directory, _, name = path.rpartition("/")
        try:
            with opened_file(path) as file:
                mark = _mark(os.fstat(file.fileno()))
                data = file.read(ACTIVE_RECORD_BYTES + 1)
            record = require_stored(path.removeprefix(f"{self.root}/"), decode(data))
        except (OSError, ValueError, StoreError) as error:
            log.debug("no request for attention at %s: %s", printable(path), error)
            return None
        if name in self._marks.get(directory, {}):  # what was read may be newer than what was seen
            self._marks[directory][name] = mark
        return record


def _marks_in(directory: str) -> dict[str, _Mark]:
    marks: dict[str, _Mark] = {}
    try:
        with os.scandir(directory) as entries:
            for entry in entries:
                if entry.name.endswith(".json") and entry.name[0] != ".":
                    with suppress(FileNotFoundError):  # removed since its name was read; the others are there
                        marks[entry.name] = _mark(entry.stat(follow_symlinks=False))
    except FileNotFoundError:
        return {}
    return marks


def _mark(found: os.stat_result) -> _Mark:
    return found.st_ino, found.st_mtime_ns, found.st_size


def _key_of(path: str) -> Key:
    workspace, owner, name, record = printable(path).rsplit("/", 4)[1:]
    return Key(workspace, f"{owner}/{name}", record.removesuffix(".json"))
