"""Answers kept ready for local state roots: given again only while every file they rest on is seen to be as it was.

That the decision of a caller reads the backend stays true: a kept answer is looked up, and then the backend is
asked about each of its files, when the question comes, with one `lstat` each. Nothing is watched, nothing expires by
a timer, and a write of any program, this daemon or another, shows in the next answer.

What an answer rests on is what the operation read, noted by the store it read through, absent files included. The
look of a file is its device, inode, size and its times of change in nanoseconds. Two contents can share that look
when the second is written within one tick of the file system's clock, on an inode that was just set free. So an answer
is kept only if every file was older than such a tick when the reading began, and looked the same afterwards: then
any change since has a later time. A file that is written through a memory map may change without a new time; records
are replaced whole by everybody who keeps to their locks.

A file is reached by a path, so the directories above it count as well: each has to be the same real directory on the
root's own device, by device, inode and kind. One that was swapped for a link, or a root that was replaced, is no longer
that, and the question goes to the store, which says what is wrong. Between the look at a directory and the
look at a file in it lies the same moment as in any reading of the store, and the same trust in whoever may rewrite the
tree in it.

The looks are made where the question is read, in the event loop, so a file system that hangs would stop everybody.
Answers are therefore kept only for roots that lie, with all directories on the way, on local file systems.
"""

import os
import stat
import sys
from collections import OrderedDict
from collections.abc import Callable, Coroutine, Mapping
from datetime import datetime
from operator import attrgetter
from time import time_ns
from typing import Any

from msgspec import Raw, Struct

from agentcoord.marks import tick_of
from agentcoord.protocol.documents import decode, is_document
from agentcoord.protocol.liveness import steady
from agentcoord.stores.base import Decode, Listing, Store, Stored, Version
from agentcoord.stores.filesystem import is_near
from agentcoord.stores.opening import open_root

MOST_ANSWERS = 4096
MOST_BYTES = 32 * 1024 * 1024
"""What all answers may hold together, the names and looks of their files counted in."""

_LOOK_BYTES = 256
"""About what one name and look take."""
_MOST_ROOTS = 256

Key = tuple[str, ...]
Stamp = tuple[int, ...]
Looks = tuple[tuple[str, Stamp | None], ...]
"""Files or directories by their paths, and how each looks; None: it is not there."""
Ask = Callable[[Store], Coroutine[Any, Any, Raw]]
Drive = Callable[[Coroutine[Any, Any, Raw]], Raw]

_identity: Callable[[os.stat_result], Stamp] = attrgetter("st_dev", "st_ino", "st_mode")
_look: Callable[[os.stat_result], Stamp] = attrgetter("st_dev", "st_ino", "st_size", "st_mtime_ns", "st_ctime_ns")


class Kept(Struct, frozen=True):
    """An answer, and what it rests on. `since` and `until` are the instants between which it is true by the clock."""

    raw: Raw
    directories: Looks
    files: Looks
    since: datetime | None
    until: datetime | None
    size: int

    def holds(self, now: datetime) -> bool:
        """Ask the file system whether everything is as it was. Waits for nothing but a local disk."""
        if (self.until is not None and now >= self.until) or (self.since is not None and now < self.since):
            return False
        lstat = os.lstat
        try:
            for path, known in self.directories:
                if known is None:
                    if _is_there(path):
                        return False
                elif _identity(lstat(path)) != known:
                    return False
            for path, known in self.files:
                if known is None:
                    if _is_there(path):
                        return False
                elif _look(lstat(path)) != known:
                    return False
        except OSError:
            return False
        return True


def _is_there(path: str) -> bool:
    """Tell whether anything is at a path. Raises OSError where that cannot be seen, as below a file."""
    try:
        os.lstat(path)
    except FileNotFoundError:
        return False
    return True


class Index:
    """The kept answers, the least recently given ones out first. One thread only, but for `answer`."""

    def __init__(self, *, most: int = MOST_ANSWERS, most_bytes: int = MOST_BYTES) -> None:
        self.most, self.most_bytes = most, most_bytes
        self.bytes = self.hits = self.misses = 0
        self._kept: OrderedDict[Key, Kept] = OrderedDict()
        self._near = Near()

    def __len__(self) -> int:
        return len(self._kept)

    def find(self, key: Key, now: datetime) -> Raw | None:
        """Give the answer to a question if it is the true one at this instant, else None."""
        kept = self._kept.get(key)
        if kept is None:
            return None
        if not kept.holds(now):
            self._forget(key)
            return None
        self._kept.move_to_end(key)
        self.hits += 1
        return kept.raw

    def answer(self, root: str, ask: Ask, drive: Drive, now: datetime) -> tuple[Raw, Kept | None]:
        """Answer from the store of a root, at `now`, in whatever thread; also give what may be kept. Raises as `ask`.

        `drive` runs a coroutine that never waits to its end.
        """
        began = time_ns()
        watched = _Watched(root)
        raw = drive(ask(watched))
        return raw, watched.kept(raw, began, now) if self._near.holds(root) else None

    def keep(self, key: Key, kept: Kept | None) -> None:
        """Keep what came of `answer`."""
        self.misses += 1
        self._forget(key)
        if kept is None or kept.size > self.most_bytes:
            return
        self._kept[key] = kept
        self.bytes += kept.size
        while len(self._kept) > self.most or self.bytes > self.most_bytes:
            self._forget(next(iter(self._kept)))

    def _forget(self, key: Key) -> None:
        if (kept := self._kept.pop(key, None)) is not None:
            self.bytes -= kept.size


class Near:
    """Which roots lie on this machine, so that a look at a file waits for no other and is never an old one."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, int], bool] = {}

    def holds(self, root: str) -> bool:
        """Tell of a root; found out once for it and its device."""
        try:
            place = root, os.stat(root).st_dev
        except (OSError, ValueError):
            return False
        near = self._known.get(place)
        if near is None:
            near = is_near(root, _read_file, mac=sys.platform == "darwin")
            if len(self._known) >= _MOST_ROOTS:
                self._known.clear()
            self._known[place] = near
        return near


def _read_file(path: str) -> bytes:
    with open(path, "rb") as file:
        return file.read()


class _Watched:
    """The store of a state root, which notes what is read of it and how that looked just before."""

    def __init__(self, root: str) -> None:
        self._store = open_root(root)
        self._base = root.rstrip("/") + "/"
        self._directories: dict[str, Stamp | None] = {}
        self._files: dict[str, Stamp | None] = {}
        self._documents: list[object] = []
        self._sound = True

    async def read(self, path: str) -> Stored | None:
        """Read as the store does. What failed once may not the next time, so nothing then is kept."""
        self._note(path)
        try:
            stored = await self._store.read(path)
        except BaseException:
            self._sound = False
            raise
        if stored is not None:
            self._documents.append(stored.document)
        return stored

    async def write(self, path: str, document: object, *, version: Version | None, note: str) -> Version:
        """Write as the store does."""
        self._sound = False
        return await self._store.write(path, document, version=version, note=note)

    async def delete(self, path: str, *, version: Version, note: str) -> None:
        """Delete as the store does."""
        self._sound = False
        await self._store.delete(path, version=version, note=note)

    async def check(self, *, writable: bool) -> None:
        """Check as the store does."""
        self._sound = False
        await self._store.check(writable=writable)

    async def list(self, prefix: str, *, decode: Decode = decode, at_most: int | None = None) -> Listing:
        """List as the store does; what a listing rests on is not noted."""
        self._sound = False
        return await self._store.list(prefix, decode=decode, at_most=at_most)

    def _note(self, path: str) -> None:
        """Note the look of a file and of the directories above it, as they were first seen."""
        try:
            end = 0
            while end >= 0:  # the first is the root itself: its name ends in a slash, so that a link is followed
                above = self._base + path[:end]
                if above not in self._directories:
                    self._directories[above] = _stamp(above, _identity)
                end = path.find("/", end + 1)
            if (place := self._base + path) not in self._files:
                self._files[place] = _stamp(place, _look)
        except (OSError, ValueError):
            self._sound = False

    def kept(self, raw: Raw, began: int, now: datetime) -> Kept | None:
        """Give an answer as it may be kept; None when that is not safe. `began` is before all reading, in ns."""
        root = self._directories.get(self._base)
        if not self._sound or root is None or not self._is_settled(root[0], began):
            return None
        absent = tuple(path for path, look in self._directories.items() if look is None)
        directories = _needed(self._directories, absent)
        files = _needed(self._files, absent)
        since, until = self._span(now)
        names = sum(len(path) + _LOOK_BYTES for path, _ in (*directories, *files))
        return Kept(raw, directories, files, since, until, len(bytes(raw)) + names)

    def _is_settled(self, device: int, began: int) -> bool:
        """Tell whether all is as it was when it was first seen, and too old to change unseen from now on."""
        try:
            for path, known in self._directories.items():
                if _stamp(path, _identity) != known:
                    return False
                if known is not None and not (known[0] == device and stat.S_ISDIR(known[2])):
                    return False
            for path, known in self._files.items():
                if _stamp(path, _look) != known:
                    return False
                if known is not None and (known[0] != device or trusted_from(known) > began):
                    return False
        except OSError:
            return False
        return True

    def _span(self, now: datetime) -> tuple[datetime | None, datetime | None]:
        """Find between which instants no record is judged in another way.

        Of every record, since one turn too many costs a look, and one too few would cost the truth.
        """
        spans = [steady(d.get("updated_at"), d.get("expires_at"), now) for d in self._documents if is_document(d)]
        return (
            max((since for since, _ in spans if since is not None), default=None),
            min((until for _, until in spans if until is not None), default=None),
        )


def _needed(looks: Mapping[str, Stamp | None], absent: tuple[str, ...]) -> Looks:
    """Leave out what is below a directory that is not there: it cannot be there either."""
    return tuple((path, look) for path, look in looks.items() if not any(path.startswith(f"{a}/") for a in absent))


def _stamp(path: str, of: Callable[[os.stat_result], Stamp]) -> Stamp | None:
    try:
        return of(os.lstat(path))
    except FileNotFoundError:
        return None


def trusted_from(look: Stamp) -> int:
    """Give the instant, in ns, from which on every change of a file of this look gives it another one."""
    times = look[3:]
    return max(times) + tick_of(*times)
