"""Tells subscribers that records have changed on the state roots of this machine, whichever program wrote them.

The system tells of changes (watchfiles), and each is told on within a tenth of a second, in one piece with others of
that moment. It is not trusted blindly: now and then the stamps of all directories are looked at, and a change that
nobody told of means that this file system does not tell. Then, and where the system has no room for more watches,
changes are looked for by stamps, every second or so, until another attempt is due. Which of the two is the case is in
`agent-coord daemon status`, and said in the log once.

Everything that touches a state root happens in one thread for each of them, so that a file system that hangs holds up
nobody else.
"""

import logging
import os
import stat
import threading
import time
from collections.abc import Generator, Iterable, Sequence
from contextlib import suppress
from typing import Any

import anyio
import anyio.to_thread
import watchfiles
from anyio.abc import TaskStatus

from agentcoord.files import cause_of, printable
from agentcoord.process import read_file
from agentcoord.protocol.paths import FAMILIES, RECORD_DEPTHS, is_listed, may_be_dotted
from agentcoord.protocol.topics import CHANGED, data_of_change
from agentcoord.stores.filesystem import is_near
from agentcoordd.clock import Clock
from agentcoordd.lanes import Feed
from agentcoordd.places import Loops, WatchState, WatchView
from agentcoordd.stamps import Tree, rest_after

MOST_DIRECTORIES = 16_384
"""Directories of a state root that the system is asked to watch; each takes memory of the kernel."""

_STEP, _DEBOUNCE = 50, 100
"""Milliseconds: what comes within a step of what came before is told with it, for so long at most."""
_GLANCE = 250
"""Milliseconds after which it is looked whether these still are the directories that are watched."""
_FIRST = 2.0
"""Seconds that the daemon waits at most until it is known what is no news."""
_CHECK = 10.0
_DOUBT = 1.0
"""Seconds that a change may be told of later than it was seen by its stamp."""
_LOOK, _ABSENT = 0.5, 0.25
_RETRY = 300.0
_HANGING = 10.0

_DEPTHS = {family: RECORD_DEPTHS.get(family, 6) - 2 for family in FAMILIES}
"""Levels of directories below that of each family; the archive has all others one level further down."""

_Identity = tuple[int, int]

log = logging.getLogger(__name__)
logging.getLogger("watchfiles").setLevel(logging.WARNING)  # it would write down each change


class Watching(Loops[WatchView]):
    """The state roots of one daemon."""

    def __init__(self, roots: Sequence[str], feed: Feed, clock: Clock) -> None:
        self._roots = [_Root(root, feed, clock) for root in roots]
        super().__init__(self._roots)

    async def run(self, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        """Watch all of them until cancelled; started once it is known what is no news, or soon after: a state root
        that does not answer is not waited for. No failure ends it.
        """
        async with anyio.create_task_group() as tasks:
            await tasks.start(super().run)
            with anyio.move_on_after(_FIRST):
                for root in self._roots:
                    await root.known.wait()
            task_status.started()


class _Root:
    """The loop of one state root."""

    def __init__(self, root: str, feed: Feed, clock: Clock) -> None:
        self._root, self._feed, self._clock = root, feed, clock
        self._sight = Sight(root)
        self._began = clock.boot()
        self.known = anyio.Event()

    async def keep(self) -> None:
        """Watch it, and tell what changes, until cancelled."""
        never, alone = anyio.Event(), anyio.CapacityLimiter(1)
        try:
            while True:
                self._began = self._clock.boot()
                families = await anyio.to_thread.run_sync(self._sight.turn, abandon_on_cancel=True, limiter=alone)
                self.known.set()
                if families:
                    self._feed.publish(CHANGED, data_of_change(printable(self._root), families, self._clock.now()))
                await self._clock.wait(never, self._sight.pause)
        finally:
            self._sight.stop()

    def view(self) -> WatchView:
        """Show how it is watched."""
        hangs = self._clock.boot() - self._began > _HANGING + self._sight.pause
        return WatchView(printable(self._root), "hanging" if hangs else self._sight.state, self._sight.why)


class Sight:
    """What is seen of one state root, turn by turn, in the thread of whoever asks."""

    def __init__(self, root: str) -> None:
        self._root = root.rstrip("/")
        self.state: WatchState = "absent"
        self.why: str | None = None
        """Why changes are looked for, and not told by the system."""
        self.pause = 0.0
        """Seconds until the next turn."""
        self._ended = threading.Event()
        self._said = set[str]()
        self._families: dict[str, _Identity] | None = None
        self._trees: dict[str, Tree] = {}
        self._told: Generator[set[tuple[Any, str]], None, None] | None = None
        self._fresh = False
        self._heard, self._heard_before = set[str](), set[str]()
        self._doubted: set[str] = set()
        self._check_at = self._doubt_until = self._retry_at = 0.0
        self._marks: dict[str, int] | None = None

    def stop(self) -> None:
        """Have a turn that waits end soon. For any thread."""
        self._ended.set()

    def turn(self) -> set[str]:
        """Give the families that have changed since the last turn, after waiting a moment for one. Never raises."""
        found = families_in(self._root)
        before, self._families = self._families, found
        if before is None:
            self._look()  # what stands there is no news
            return self._settled(set())
        news = {family for family in FAMILIES if before.get(family) != found.get(family)}
        if news:
            self._silence()
            self.pause = 0.0
            return news
        if self._ended.is_set():
            return set()
        if self._told is None and found and time.monotonic() >= self._retry_at:
            self._listen()
        if self._told is None:
            return self._settled(self._poll())
        return self._settled(self._hear())

    def _settled(self, news: set[str]) -> set[str]:
        if self._told is not None:
            self.state, self.pause = "told", 0.0
        elif self._families:
            self.state = "polled" if self.why else "absent"
        else:
            self.state, self.pause = "absent", _ABSENT
        return news

    # Told by the system ----------------------------------------------------------------------------

    def _listen(self) -> None:
        """Have the system tell of changes from now on, unless there is a reason why it could not."""
        families = [f"{self._root}/{family}" for family in self._families or ()]
        try:
            if not is_near(self._root, read_file, mac=os.uname().sysname == "Darwin"):
                return self._fall_back("its file system is not this machine's own")
            if (why := _unsuited(families)) is not None:
                return self._fall_back(why)
        except OSError as error:
            return self._fall_back(f"cannot look at {printable(str(error.filename))}: {cause_of(error)}")
        self._told = watchfiles.watch(
            *families,
            watch_filter=None,
            debounce=_DEBOUNCE,
            step=_STEP,
            stop_event=self._ended,
            rust_timeout=_GLANCE,
            yield_on_timeout=True,
            debug=False,
            force_polling=False,
            ignore_permission_denied=False,  # it would ignore that there is no room as well
        )
        self._fresh, self._marks, self.why = True, None, None
        self._heard, self._heard_before, self._doubted = set[str](), set[str](), set[str]()
        return None

    def _hear(self) -> set[str]:
        """Wait for what is told, and give the families it is about, or that were caught changing without a word."""
        told = self._told
        if told is None:
            return set()
        try:
            changes = next(told, None)
        except (OSError, ValueError, RuntimeError) as error:
            # No room for another watch, a name that is no text, directories that went away while they were counted.
            self._fall_back(f"the system tells of no changes: {printable(str(error)).partition(' about ')[0]}")
            return self._look()
        if changes is None:  # the daemon ends
            return set[str]()
        paths = [path.removeprefix(f"{self._root}/") for _, path in changes]
        news = {path.partition("/")[0] for path in paths if is_news(path)}
        self._heard |= {path.partition("/")[0] for path in paths}
        now = time.monotonic()
        if self._fresh:  # what changed before the system was listening
            self._fresh = False
            news |= self._look()
            self._check_at = now + _CHECK
        elif self._doubted and now >= self._doubt_until:
            doubted, self._doubted = self._doubted - self._heard, set[str]()
            if doubted:
                self._fall_back(f"the system does not tell of all changes, as below {', '.join(sorted(doubted))}")
        elif now >= self._check_at:
            news |= self._checked(now)
        return news

    def _checked(self, now: float) -> set[str]:
        """Look at the stamps, and give what has changed without having been told, or before it is told."""
        silent = self._look() - self._heard - self._heard_before  # a stamp counts for two looks while it is young
        self._heard_before, self._heard = self._heard, set[str]()
        took = time.monotonic() - now
        self._check_at = now + max(_CHECK, rest_after(took))
        self._doubted, self._doubt_until = silent, now + took + _DOUBT
        return silent

    def _silence(self) -> None:
        """Hear of these directories no more: they are others now."""
        if self._told is not None:
            self._told.close()
            self._told = None
        self._retry_at, self._marks, self.why = 0.0, None, None

    def _fall_back(self, why: str) -> None:
        self._silence()
        self.why, self._retry_at = why, time.monotonic() + _RETRY
        if why not in self._said:
            self._said.add(why)
            log.warning("%s is looked at for changes, again and again: %s", printable(self._root), why)

    # Looked for ------------------------------------------------------------------------------------

    def _look(self) -> set[str]:
        """Give the families in which the stamp of a directory has changed since the last look, or only perhaps."""
        changed = set[str]()
        for family in list(self._trees):
            if family not in (self._families or {}):
                del self._trees[family]
        for family in self._families or ():
            tree = self._trees.setdefault(family, Tree(f"{self._root}/{family}", _DEPTHS[family]))
            with suppress(OSError):  # whoever reads there is told what is wrong
                if tree.look():
                    changed.add(family)
        return changed

    def _poll(self) -> set[str]:
        """Give the families in which a record has changed; a directory's stamp alone changes with each lock as well."""
        began = time.monotonic()
        if self._marks is None:
            before, self._trees, self._marks = self._trees, {}, {}
            self._mark(self._marks)
            now, self._trees = self._trees, before
            news = self._look()  # after the marks were made, so that no change is between the two
            self._trees = now
        else:
            news = self._mark(self._marks)
        self.pause = max(_LOOK, rest_after(time.monotonic() - began))
        return news

    def _mark(self, marks: dict[str, int]) -> set[str]:
        """Bring the marks of all directories up to date, and give the families in which one is another now."""
        changed = set[str]()
        for family in self._families or ():
            tree = self._trees.setdefault(family, Tree(f"{self._root}/{family}", _DEPTHS[family]))
            with suppress(OSError):
                for directory in tree.look():
                    mark = _mark_of(directory, self._root)
                    if mark != marks.pop(directory, 0):
                        changed.add(family)
                    if mark:
                        marks[directory] = mark
        return changed


def families_in(root: str) -> dict[str, _Identity]:
    """Find the directories of a root that hold records. One that cannot be looked at is not there for us."""
    found: dict[str, _Identity] = {}
    for family in FAMILIES:
        with suppress(OSError):
            seen = os.lstat(f"{root}/{family}")
            if stat.S_ISDIR(seen.st_mode):
                found[family] = seen.st_dev, seen.st_ino
    return found


def is_news(path: str) -> bool:
    """Tell whether a change at a path below a state root may be one of records: of a record, or of a directory.

    Locks and temporary files lie where records do, and bear other names.
    """
    family, _, below = path.partition("/")
    if family not in _DEPTHS:
        return False
    if path.endswith(".json"):
        return is_listed(family, path)
    *above, name = below.split("/") if below else [""]
    return len(above) < _DEPTHS[family] and (not name.startswith(".") or may_be_dotted(path))


def _unsuited(directories: Iterable[str]) -> str | None:
    """Say why directories cannot be watched, None if they can: links would be followed, and there is room for so many.

    Raises OSError.
    """
    waiting, seen = list(directories), 0
    while waiting:
        seen += 1
        if seen > MOST_DIRECTORIES:
            return f"there are more than {MOST_DIRECTORIES} directories"
        with suppress(FileNotFoundError), os.scandir(waiting.pop()) as entries:
            for entry in entries:
                if entry.is_symlink():
                    return f"{printable(entry.path)} is a link"
                if entry.is_dir(follow_symlinks=False):
                    waiting.append(entry.path)
    return None


def _mark_of(directory: str, root: str) -> int:
    """Make a number of the looks of all records and directories in a directory; 0 of one that is not there."""
    mark = 0
    with suppress(FileNotFoundError, NotADirectoryError), os.scandir(directory) as entries:
        mark = 1
        for entry in entries:
            if is_news(entry.path.removeprefix(f"{root}/")):
                with suppress(FileNotFoundError):  # removed since its name was read
                    seen = entry.stat(follow_symlinks=False)
                    changed = 0 if stat.S_ISDIR(seen.st_mode) else seen.st_mtime_ns
                    mark ^= hash((entry.name, seen.st_ino, changed, seen.st_size if changed else 0))
    return mark
