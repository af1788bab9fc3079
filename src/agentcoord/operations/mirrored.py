"""What a mirror is known to have, so that a sync reads only what came since.

Records of the trail are made once and never changed, so one that is in the mirror need not be read again: its name and
mark tell it. What is known is kept beside the mirror, with the stamp that the mirror had then. It is a cache and no
more: missing, damaged, of another root, or of a mirror that has changed since, it is passed over, and the trail is read
in full. That is also done once a day, for records that somebody changed where they stand; of few records all are read
each time, since that costs next to nothing.
"""

import os
from collections.abc import Generator
from contextlib import contextmanager
from datetime import datetime

import msgspec
from msgspec import Struct, field

from agentcoord.files import DIRECTORY_FLAGS, make_directory, opened_directory, opened_file, replace_durably
from agentcoord.marks import OF_DIRECTORY, Mark, Marks
from agentcoord.protocol.envelopes import Identity
from agentcoord.protocol.paths import event_path
from agentcoord.protocol.trail import EventRecord
from agentcoord.stores.base import Decode, Listing, Marking

CACHE = ".cache"
NAME = "log.tsv.json"
"""Where it is kept, below the mirror's directory."""

FORMAT = 2
TRUSTED = 24 * 60 * 60
"""Seconds until the whole trail is read once more."""

FEW = 500
"""Records that are read each time, whatever is known of them."""

_LARGEST = 256 * 1024 * 1024


Known = dict[str, dict[str, Mark]]


class Mirrored(Struct):
    """Which records the mirror of a root has the lines of, or needs none of."""

    root: str
    """Where the records are."""

    read_at: int
    """When all of them were last read, in seconds since 1970."""

    stamp: list[int] = field(default_factory=list[int])
    """What `Change.stamp` gave for the mirror."""

    tidy: bool = False
    """Whether the mirror has each line once, in order, as a merge leaves it."""

    events: Known = field(default_factory=dict[str, dict[str, Mark]])
    simulated: set[str] = field(default_factory=set[str])
    """The paths of those events that are marked as simulation."""

    with_simulated: bool = False
    """Whether these are in the mirror, or were left out."""

    claims: Known = field(default_factory=dict[str, dict[str, Mark]])
    """Claims that could be read; what they say is not in the mirror."""

    format: int = FORMAT

    @property
    def count(self) -> int:
        """How many records it names."""
        return _count(self.events) + _count(self.claims)

    def is_good(self, root: str, now: datetime) -> bool:
        """Tell whether this says anything of a root now; a clock that was set back has all read anew."""
        return self.format == FORMAT and self.root == root and 0 <= now.timestamp() - self.read_at < TRUSTED


class Skimming:
    """One reading of a trail that skips what the mirror has, and takes note of what it will have."""

    def __init__(
        self, store: Marking, known: Mirrored | None, now: datetime, *, include_synthetic: bool, few: int = FEW
    ) -> None:
        self._store, self._include_synthetic = store, include_synthetic
        if known is None or known.count <= few:
            known = Mirrored(store.root, int(now.timestamp()) if known is None else known.read_at)
        self._known = known
        self._made = Mirrored(store.root, known.read_at, with_simulated=include_synthetic or known.with_simulated)
        self._marks: Marks = {}
        self.count = 0
        """How many events of the trail are skipped."""

    def events(self, decode: Decode) -> Listing:
        """List the events that have to be read. Raises StoreError."""
        known, made = self._known, self._made
        wanted = known.simulated if self._include_synthetic and not known.with_simulated else set[str]()
        unread = self._skim("events", known.events, made.events, wanted)
        made.simulated = {path for path in known.simulated if _holds(made.events, path)}
        self.count = _count(made.events) - (0 if self._include_synthetic else len(made.simulated))
        return self._store.records(unread, decode=decode)

    def claims(self, decode: Decode) -> Listing:
        """List the claims that have to be read. Raises StoreError."""
        unread = self._skim("claims", self._known.claims, self._made.claims, set())
        return self._store.records(unread, decode=decode)

    def _skim(self, prefix: str, known: Known, skipped: Known, wanted: set[str]) -> list[str]:
        """Name what is below a prefix and not known, or wanted in any case; the rest is skipped."""
        self._marks = self._store.marks(prefix, known)
        unread: list[str] = []
        for above, marks in self._marks.items():
            before = known.get(above, {})
            if before == marks and not wanted:
                skipped[above] = before
                continue
            skipped[above] = here = {OF_DIRECTORY: marks[OF_DIRECTORY]}
            for name, mark in marks.items():
                if name == OF_DIRECTORY:
                    continue
                if before.get(name) == mark and above + name not in wanted:
                    here[name] = mark
                else:
                    unread.append(above + name)
        unread.sort()
        return unread

    def skips(self, identity: Identity) -> str | None:
        """Give the path of an event with this identity that is skipped; None when there is none."""
        path = event_path(*identity) if isinstance(identity, tuple) else ""
        return path if _holds(self._made.events, path) else None

    def shows(self, path: str) -> bool:
        """Tell whether a skipped event is one of the trail's."""
        return self._include_synthetic or path not in self._made.simulated

    def made(self) -> Mirrored:
        """Give what is known once the lines of all that was read are in the mirror."""
        return self._made

    def note_event(self, path: str, event: EventRecord) -> None:
        """Take note of an event that was read. One whose path does not name it is read each time."""
        # As many parts as a record's path has: then none of the two names has several.
        if (
            event.content is not None
            or path != f"events/{event.batch_id}/{event.event_id}.json"
            or path.count("/") != 2
        ):
            return
        self._note(self._made.events, path)
        if event.synthetic is True:
            self._made.simulated.add(path)
            self._made.with_simulated = self._include_synthetic

    def note_claim(self, path: str) -> None:
        """Take note of a claim that could be read."""
        self._note(self._made.claims, path)

    def _note(self, made: Known, path: str) -> None:
        above, name = _split(path)
        made[above][name] = self._marks[above][name]


def _split(path: str) -> tuple[str, str]:
    end = path.rfind("/") + 1
    return path[:end], path[end:]


def _count(known: Known) -> int:
    return sum(len(marks) - 1 for marks in known.values())  # without the directory's own


def _holds(known: Known, path: str) -> bool:
    above, name = _split(path)
    return name in known.get(above, {})


# Keeping it ----------------------------------------------------------------------------------------


def read_mirrored(above: str) -> Mirrored | None:
    """Read what is known of the mirror in a directory; None where that is nothing that can be read."""
    try:
        with (
            opened_directory(above) as directory,
            _opened_cache(directory) as cache,
            opened_file(NAME, directory=cache) as file,
        ):
            return msgspec.json.decode(file.read(_LARGEST), type=Mirrored)
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None


def write_mirrored(above: str, mirrored: Mirrored, *, umask: int | None = None) -> None:
    """Keep what is known; `umask` as for `make_directory`. Raises OSError."""
    with opened_directory(above) as directory:
        make_directory(CACHE, directory=directory, umask=umask)
        with _opened_cache(directory) as cache:
            replace_durably(NAME, msgspec.json.encode(mirrored), mode=0o600, directory=cache)


@contextmanager
def _opened_cache(above: int) -> Generator[int]:
    cache = os.open(CACHE, DIRECTORY_FLAGS | os.O_NOFOLLOW, dir_fd=above)
    try:
        yield cache
    finally:
        os.close(cache)
