"""How the files of a directory are told from those that were read before, without reading one.

A mark is made of inode and time of status change: an inode alone is given to the next file of that name too. Where
nothing came or went, the marks from before still hold, and no file is looked at.
"""

import os
import time
from collections.abc import Iterable, Mapping

Mark = int
"""What tells a record unread from another one that takes its place."""

MarksInDirectory = Mapping[str, Mark]
Marks = Mapping[str, MarksInDirectory]
"""The marks of records, by directory with its slash and name in it."""

OF_DIRECTORY = ""
"""What a directory's own mark stands under, among those of its records; 0 is the mark of one that just changed."""

_TICK = 50_000_000
"""Nanoseconds: far more than the tick of a kernel's clock, of which file times are multiples."""
_COARSE_TICK = 2_500_000_000
_COARSE = 10_000_000
"""Times that are all multiples of this many nanoseconds come from a file system that keeps no finer ones."""


def tick_of(*times: int) -> int:
    """Give the nanoseconds in which a further change may get the same times of change as these, of one file."""
    return _COARSE_TICK if all(time % _COARSE == 0 for time in times) else _TICK


def mark_of_directory(path: str) -> Mark:
    """Mark a directory, before its names are read; 0 if it may yet change without another mark. Raises OSError."""
    now, changed = time.time_ns(), os.stat(path).st_ctime_ns
    return changed if abs(now - changed) > tick_of(changed) else 0


def marks_of(files: Iterable[os.DirEntry[str]], own: Mark, before: MarksInDirectory) -> dict[str, Mark]:
    """Mark the files of a directory; `own` is its mark now, and `before` what this gave for it, empty of a new one."""
    if not own or before.get(OF_DIRECTORY) != own:
        before = {}
    marks = {OF_DIRECTORY: own}
    for entry in files:
        mark = before.get(entry.name)
        if mark is None:
            try:
                found = entry.stat(follow_symlinks=False)
            except FileNotFoundError:  # removed since its name was read
                continue
            mark = found.st_ino ^ found.st_ctime_ns
        marks[entry.name] = mark
    return marks
