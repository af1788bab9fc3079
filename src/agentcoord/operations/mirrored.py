"""What a mirror is known to have, so that a sync reads only what came since.

Records of the trail are made once and never changed, so one that is in the mirror need not be read again: its name and
mark tell it. What is known is kept beside the mirror, with the stamp that the mirror had then. It is a cache and no
more: missing, damaged, of another root, or of a mirror that has changed since, it is passed over, and the trail is read
in full. That is also done once a day, for records that somebody changed where they stand; of few records all are read
each time, since that costs next to nothing.

An archive envelope is known when the mirror has the row of each record in it, also of those that another copy hides for
now, and when nothing has to be warned of. It is then remembered what it has to be compared by with others; that is only
looked at when an envelope came or went, or an event that was known did, or one that is new may be in an envelope. Until
then what was counted still holds.
"""

import os
from collections.abc import Generator
from contextlib import contextmanager
from datetime import datetime

import msgspec
from msgspec import Raw, Struct, field

from agentcoord.files import DIRECTORY_FLAGS, make_directory, opened_directory, opened_file, replace_durably
from agentcoord.marks import Mark
from agentcoord.protocol.envelopes import Tally
from agentcoord.protocol.remembered import is_hint

CACHE = ".cache"
NAME = "log.tsv.json"
"""Where it is kept, below the mirror's directory."""

FORMAT = 3
TRUSTED = 24 * 60 * 60
"""Seconds until the whole trail is read once more."""

_LARGEST = 256 * 1024 * 1024


Known = dict[str, dict[str, Mark]]


class Compared(Struct):
    """The known envelopes as they stood beside each other, and beside the events that were live."""

    remembered: Raw = Raw(b"{}")
    """What is remembered of each, a `Remembered` by path; it is decoded only when it is needed."""

    records: int = 0
    """How many they hold."""

    hints: bytes = b""
    """What tells of most events that they are in none of them: see `Hints`."""

    tally: Tally | None = None
    """What they came to; None if that rests on anything that is not known."""

    with_simulated: bool = False
    """Whether simulation was counted."""


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
    """The paths of those events that are marked as simulation, and of envelopes that hold such."""

    with_simulated: bool = False
    """Whether these are in the mirror, or were left out."""

    claims: Known = field(default_factory=dict[str, dict[str, Mark]])
    """Claims that could be read; what they say is not in the mirror."""

    archived: Known = field(default_factory=dict[str, dict[str, Mark]])
    """Archive envelopes."""

    compared: Compared = field(default_factory=Compared)
    """What these came to."""

    format: int = FORMAT

    @property
    def count(self) -> int:
        """How many records it names, those in envelopes included."""
        return count_known(self.events) + count_known(self.claims) + count_known(self.archived) + self.compared.records

    def is_good(self, root: str, now: datetime) -> bool:
        """Tell whether this says anything of a root now; a clock that was set back has all read anew."""
        return self.format == FORMAT and self.root == root and 0 <= now.timestamp() - self.read_at < TRUSTED


def count_known(known: Known) -> int:
    """Count the records of a family that are known."""
    return sum(len(marks) - 1 for marks in known.values())  # without the directory's own


# Keeping it ----------------------------------------------------------------------------------------


def read_mirrored(above: str) -> Mirrored | None:
    """Read what is known of the mirror in a directory; None where that is nothing that can be read."""
    try:
        with (
            opened_directory(above) as directory,
            _opened_cache(directory) as cache,
            opened_file(NAME, directory=cache) as file,
        ):
            found = msgspec.json.decode(file.read(_LARGEST), type=Mirrored)
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None
    return found if is_hint(found.compared.hints) else None


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
