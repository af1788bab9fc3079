"""Local state roots whose records are kept parsed: a listing reads no more than what changed since the last one.

Nothing is watched and nothing is believed for a while: at each listing every directory and every file below the prefix
is looked at, with one `lstat` each, and what does not look as it did is read anew. So the answer is that of the files,
whoever wrote them, in their place or by a rename. The rules of a look are those of `index`: it is that of device,
inode, size and times of change, taken before the file is read, and it is worth something only if the file was older
than a tick of the clock then. The same holds for directories and the names in them.

Only plain trees are answered from memory. Whatever is odd (a link, a directory that cannot be read, a name that is no
text) is left to the store, which knows what to say of it. So are roots that do not lie on this machine, where a look
may be an old one, and listings other than those of status: what they get of a record is theirs to change, while the
rows of status are made once and shown to many.

A listing takes a thread a while. Those who ask for the same in the meantime share the next one, since the one under way
may have looked before they asked.
"""

import os
import stat
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from itertools import chain
from operator import attrgetter, is_
from os import lstat
from time import monotonic, time_ns

from msgspec import Struct

from agentcoord.errors import StoreError, Unreadable
from agentcoord.operations.projection import read_batch, read_claim_row, read_event_row, read_heartbeat_row
from agentcoord.protocol.documents import decode
from agentcoord.protocol.paths import require_safe
from agentcoord.stores.base import OWN, Behalf, Decode, Listing, Stored
from agentcoord.stores.local import LocalStore
from agentcoord.stores.tree import Tree
from agentcoordd.index import Near, Stamp, trusted_from
from agentcoordd.texts import KeptTexts

MOST_BYTES = 384 * 1024 * 1024
"""What all records and texts may hold together, by estimate; a root that alone would hold more is read each time."""
IDLE_SECONDS = 900.0
"""After how long without a question a root is forgotten, and one that was too large tried again."""
WAIT_SECONDS = 30.0
"""How long a listing of others is waited for before the files are read after all."""

SHARED: frozenset[Decode] = frozenset({read_claim_row, read_heartbeat_row, read_event_row, read_batch})
"""The decoders whose values are whole once made, and so may be shown to several."""

_RECORD_BYTES = 1200
"""What one record takes beside twice its bytes: its row, its look and its names."""
_LONG_AGO = 10_000_000_000
"""Nanoseconds: longer than any tick."""
_MOST_ROOTS = 64
_MOST_VIEWS = 64
"""The listings whose order is kept, for each root."""
_GROUP = 256
"""Records that are read or forgotten at a time: in between, others have their turn."""

_look: Callable[[os.stat_result], Stamp] = attrgetter("st_dev", "st_ino", "st_size", "st_mtime_ns", "st_ctime_ns")
_place: Callable[[os.stat_result], Stamp] = attrgetter("st_dev", "st_ino", "st_mode", "st_mtime_ns", "st_ctime_ns")

_Key = tuple[str, Decode]
_Entries = Sequence[Stored | Unreadable]
Reading = Callable[[Sequence[str]], Iterable[Stored | Unreadable]]


class _Odd(Exception):
    """What is kept here is not enough to answer: the store has to."""


class _Directory(Struct, frozen=True):
    """What is in a directory; `look` None: it may yet change without another look."""

    look: Stamp | None
    names: tuple[str, ...]
    below: tuple[str, ...]


class _Record(Struct, gc=False):
    """A file, and what was read there; `look` None: nothing that would be known to be the same."""

    path: str
    place: str
    look: Stamp | None = None
    stored: Stored | None = None
    bytes: int = 0

    def is_same(self) -> bool:
        """Look at the file. Raises OSError."""
        try:
            return self.look is not None and _look(lstat(self.place)) == self.look
        except FileNotFoundError:
            return False


class _View(Struct):
    """The records of one listing in their order, and the names that they are made from."""

    names: list[tuple[str, ...]]
    records: list[_Record]


class _Coming:
    """A listing that has not begun, and what came of it: None, if the store has to answer."""

    def __init__(self) -> None:
        self.over = threading.Event()
        self.waiting = 0
        self.entries: _Entries | None = None


class Root:
    """What is known of one state root. `has_room` tells whether as much may be kept as there is now."""

    def __init__(self, root: str, has_room: Callable[["Root"], bool]) -> None:
        self.texts = KeptTexts()
        self.files_read = 0
        self.used_at = monotonic()
        self._tree = Tree(root)
        self._has_room = has_room
        self._bytes = 0
        self._vast_until = 0.0
        self._directories: dict[str, _Directory] = {}
        self._records: dict[Decode, dict[str, _Record]] = {}
        self._views: OrderedDict[_Key, _View] = OrderedDict()
        self._lock, self._looking = threading.Lock(), threading.Lock()
        self._coming: dict[_Key, _Coming] = {}

    @property
    def records(self) -> int:
        """How many records are kept."""
        return sum(map(len, tuple(self._records.values())))

    @property
    def directories(self) -> int:
        """How many directories are kept."""
        return len(self._directories)

    @property
    def bytes(self) -> int:
        """About how much is kept."""
        return self._bytes + self.texts.bytes

    @property
    def waiting(self) -> int:
        """How many wait for a listing that somebody else is about to make."""
        with self._lock:
            return sum(coming.waiting for coming in self._coming.values())

    @property
    def is_kept(self) -> bool:
        """Whether anything is kept of it: for a while not of one that was too large."""
        return monotonic() >= self._vast_until

    def listing(self, prefix: str, decode: Decode, read: Reading) -> _Entries | None:
        """List a prefix as it is at some moment after this was called. None: the store has to do it."""
        self.used_at = monotonic()
        if not self.is_kept:
            return None
        key, own = (prefix, decode), _Coming()
        with self._lock:
            coming = self._coming.setdefault(key, own)
            coming.waiting += coming is not own
        if coming is not own:
            coming.over.wait(WAIT_SECONDS)
            return coming.entries
        free = self._looking.acquire(timeout=WAIT_SECONDS)
        with self._lock:
            del self._coming[key]  # whoever asks from now on may know of more than is about to be seen
        try:
            if free:
                own.entries = self._listed(key, read)
        finally:
            if free:
                self._looking.release()
            own.over.set()
        return own.entries

    def _listed(self, key: _Key, read: Reading) -> _Entries | None:
        try:
            device = os.stat(self._tree.base).st_dev
            view = self._view(key, [each.names for each in self._visit(key[0], device)])
            changed = _changed(view.records)
            faults = self._read(changed, read, device) if changed else {}
        except (_Odd, StoreError, OSError):
            return None
        if not changed:
            return [record.stored for record in view.records if record.stored is not None]
        found = (record.stored or faults.get(record.path) for record in view.records)
        return [entry for entry in found if entry is not None]

    def _visit(self, prefix: str, device: int) -> list[_Directory]:
        """Look at a directory and all below it, and read the names in those that changed. Raises as `_directory`."""
        base = self._tree.base
        end = prefix.find("/")
        while end > 0:
            if not stat.S_ISDIR(lstat(base + prefix[:end]).st_mode):
                raise _Odd
            end = prefix.find("/", end + 1)
        pending, seen = [prefix], list[_Directory]()
        while pending:
            path = pending.pop()
            now = time_ns()
            try:
                look = _place(lstat(base + path))
                known = self._directories.get(path)
                if known is None or known.look != look:
                    before = known
                    known = self._directories[path] = self._directory(path, look, now, before)
                    if before is not None:
                        self._lose({*before.below}.difference(known.below))
            except FileNotFoundError:
                self._lose([path])
                continue
            if look[0] != device:
                raise _Odd
            seen.append(known)
            pending += known.below
        return seen

    def _lose(self, paths: Iterable[str]) -> None:
        """Forget directories and all below them."""
        pending = [*paths]
        while pending:
            known = self._directories.pop(pending.pop(), None)
            if known is not None:
                pending += known.below

    def _directory(self, path: str, look: Stamp, now: int, before: _Directory | None) -> _Directory:
        """Read the names in a directory that looked so, no earlier than `now`. Raises _Odd, StoreError, OSError."""
        if not stat.S_ISDIR(look[2]):
            raise _Odd
        files, below = self._tree.entries_of(path)
        names = tuple([f"{path}/{file.name}" for file in files])
        if not all(map(str.isascii, names)) and not _is_text(names):
            raise _Odd
        if before is not None and before.names == names:
            names = before.names  # the very same, so that what was made from them still holds
        return _Directory(look if _is_settled(look, now) else None, names, tuple(below))

    def _view(self, key: _Key, names: list[tuple[str, ...]]) -> _View:
        """Give the records of these names in their order."""
        view = self._views.get(key)
        if view is None or len(view.names) != len(names) or not all(map(is_, view.names, names)):
            known = self._records.setdefault(key[1], {})
            gone = set[str]() if view is None else {record.path for record in view.records}
            base, records = self._tree.base, list[_Record]()
            for path in sorted(chain.from_iterable(names)):
                if (record := known.get(path)) is None:
                    record = known[path] = _Record(path, base + path)
                records.append(record)
                gone.discard(path)
            self._let_go(known, gone)
            view = self._views[key] = _View(names, records)
            if len(self._views) > _MOST_VIEWS:
                self._close(*self._views.popitem(last=False))
        self._views.move_to_end(key)
        return view

    def _close(self, key: _Key, view: _View) -> None:
        """Let go of the records of a listing, unless another one has them too."""
        prefix, decode = key
        if any(prefix.startswith(f"{other}/") for other, same in self._views if same is decode):
            return
        paths = {record.path for record in view.records}
        for (other, same), below in self._views.items():
            if same is decode and other.startswith(f"{prefix}/"):
                paths.difference_update([record.path for record in below.records])
        self._let_go(self._records[decode], paths)
        if not any(prefix == other for other, _ in self._views):
            self._lose([prefix])

    def _let_go(self, known: dict[str, _Record], paths: set[str]) -> None:
        for path in paths & known.keys():
            self._bytes -= known.pop(path).bytes

    def _read(self, records: Sequence[_Record], read: Reading, device: int) -> dict[str, Unreadable]:
        """Read what is new, and give what cannot be read. Raises _Odd where there is no room, StoreError, OSError."""
        faults: dict[str, Unreadable] = {}
        for start in range(0, len(records), _GROUP):
            group = {record.path: record for record in records[start : start + _GROUP]}
            now, looks = time_ns(), dict[str, Stamp]()
            for path, record in group.items():
                self._bytes -= record.bytes
                record.look, record.stored, record.bytes = None, None, 0
                try:
                    looks[path] = _look(lstat(record.place))
                except FileNotFoundError:
                    continue
            self.files_read += len(looks)
            for entry in read(list(looks)):
                if isinstance(entry, Unreadable):
                    faults[entry.path] = entry
                    continue
                record, look = group[entry.path], looks[entry.path]
                record.stored = Stored(entry.path, entry.document, entry.version)
                record.bytes = _RECORD_BYTES + 2 * look[2]
                self._bytes += record.bytes
                if look[0] == device and _is_settled(look, now):
                    record.look = look
            if not self._has_room(self):
                raise _Odd
        return faults

    def give_up(self) -> None:
        """Keep nothing for a while: it is too much."""
        self._vast_until = monotonic() + IDLE_SECONDS

    def forget(self) -> bool:
        """Let go of everything, a little at a time, as all others wait while memory is freed; False: it is in use."""
        if not self._looking.acquire(blocking=False):
            return False
        try:
            self._directories.clear()
            while self._views:
                records = self._views.popitem()[1].records
                while records:
                    del records[-_GROUP:]
            for known in self._records.values():
                while known:
                    for _ in range(min(_GROUP, len(known))):
                        self._bytes -= known.popitem()[1].bytes
            self.texts = KeptTexts()
        finally:
            self._looking.release()
        return True


def _is_settled(look: Stamp, now: int) -> bool:
    """Tell whether every change from `now` on, in nanoseconds, gives what looks so another look."""
    return max(look[3:]) + _LONG_AGO <= now or trusted_from(look) <= now


def _changed(records: Sequence[_Record]) -> list[_Record]:
    """Find those that are not, or not for certain, as they were. Raises OSError."""
    try:
        return [each for each in records if each.look is None or _look(lstat(each.place)) != each.look]
    except FileNotFoundError:
        return [each for each in records if not each.is_same()]


def _is_text(names: Iterable[str]) -> bool:
    try:
        "".join(names).encode()
    except UnicodeEncodeError:
        return False
    return True


class RootStore(LocalStore):
    """A state root as `LocalStore` has it, whose listings for status come from memory as far as that holds."""

    def __init__(self, root: str, known: Callable[[str], Root | None], *, behalf: Behalf = OWN) -> None:
        super().__init__(root, behalf=behalf)
        self._known = known

    @property
    def texts(self) -> KeptTexts | None:
        """What rows were made into; None where no row is the same twice."""
        known = self._known(self.root)
        return known.texts if known is not None and known.is_kept else None

    async def list(self, prefix: str, *, decode: Decode = decode, at_most: int | None = None) -> Listing:
        """List as `LocalStore` does."""
        if at_most is None and decode in SHARED and prefix.isascii() and (known := self._known(self.root)) is not None:
            require_safe(prefix)
            entries = known.listing(prefix, decode, lambda names: self.records(names, decode=decode).entries)
            if entries is not None:
                return Listing(entries)
        return await super().list(prefix, decode=decode, at_most=at_most)


class Roots:
    """The roots that were asked about of late."""

    def __init__(self, *, most_bytes: int = MOST_BYTES) -> None:
        self.most_bytes = most_bytes
        self._near = Near()
        self._lock = threading.Lock()
        self._roots: dict[str, Root] = {}
        self._left: list[Root] = []
        """Those that made room and are not freed yet."""

    @property
    def records(self) -> int:
        """How many records are kept."""
        return sum(root.records for root in self.all().values())

    @property
    def bytes(self) -> int:
        """About how much is kept."""
        return sum(root.bytes for root in self.all().values())

    def open(self, path: str, /, *, behalf: Behalf = OWN) -> RootStore:
        """Open a state root by its absolute path; nothing is looked at yet."""
        return RootStore(path, self._known, behalf=behalf)

    def sweep(self) -> None:
        """Free what nobody asked for in a while. Takes a moment, and so belongs into a thread."""
        now = monotonic()
        with self._lock:
            for path, root in list(self._roots.items()):
                if now - root.used_at > IDLE_SECONDS:
                    self._left.append(self._roots.pop(path))
            left, self._left = self._left, []
            vast = [root for root in self._roots.values() if not root.is_kept]
        for root in vast:
            root.forget()
        in_use = [root for root in left if not root.forget()]
        with self._lock:
            self._left += in_use

    def all(self) -> dict[str, Root]:
        """Give what is known, by the paths of the roots."""
        with self._lock:
            return dict(self._roots)

    def _known(self, path: str) -> Root | None:
        if not self._near.holds(path):
            return None
        with self._lock:
            if (known := self._roots.get(path)) is None:
                if len(self._roots) >= _MOST_ROOTS:  # callers may name any number
                    self._leave_oldest(self._roots)
                known = self._roots[path] = Root(path, self._has_room)
            return known

    def _leave_oldest(self, among: Iterable[str]) -> None:
        oldest = min(among, key=lambda path: self._roots[path].used_at)
        self._left.append(self._roots.pop(oldest))

    def _has_room(self, wanted: Root) -> bool:
        """Make room for a root at the cost of the others, those first that were not asked about for longest."""
        while self.bytes > self.most_bytes:
            with self._lock:
                others = [path for path, root in self._roots.items() if root is not wanted]
                if not others:
                    break
                self._leave_oldest(others)
        else:
            return True
        wanted.give_up()
        return False
