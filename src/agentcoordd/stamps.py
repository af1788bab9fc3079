"""What has changed in a few levels of directories, told by their stamps, without reading a single file.

A record is replaced by a rename, so every change of one changes the directory it lies in. That holds for any program
that writes whole files or none, and costs one look a directory, whatever is in it.
"""

import os
import stat
import time

from msgspec import Struct

from agentcoord.marks import tick_of

_SHARE = 50
_LONGEST_REST = 300.0


def rest_after(seconds: float) -> float:
    """Give the seconds without a look that follow one which took so many, as looking is to cost next to nothing.

    However long that was, the rest has an end: a file system may have hung, or the machine slept, in the middle of it.
    """
    return min(_SHARE * seconds, _LONGEST_REST)


class _Known(Struct, frozen=True, gc=False):
    stamp: tuple[int, int, int]
    settled: bool
    below: tuple[str, ...]


class Tree:
    """Directories down to `depth` levels below `path`. Symlinks are none: no store follows them."""

    def __init__(self, path: str, depth: int) -> None:
        self._path, self._depth = path, depth
        self._known: dict[str, _Known] = {}

    def look(self, closed: dict[str, OSError] | None = None) -> list[str]:
        """Give the directories that have changed since the last look, or only perhaps; new and vanished ones too.

        One that cannot be looked at is put into `closed`, beside the error; until it can, it has vanished with all that
        is below it. Without `closed`, raises OSError at the first of them.
        """
        changed: list[str] = []
        seen: dict[str, _Known] = {}
        self._visit(self._path, self._depth, seen, changed, closed)
        changed += [path for path in self._known if path not in seen]
        self._known = seen
        return changed

    def _visit(
        self, path: str, depth: int, seen: dict[str, _Known], changed: list[str], closed: dict[str, OSError] | None
    ) -> None:
        now = time.time_ns()  # before the look: what changes after it is seen by the next
        try:
            found = os.lstat(path)
            if not stat.S_ISDIR(found.st_mode):
                return
            stamp = found.st_dev, found.st_ino, found.st_mtime_ns
            before = self._known.get(path)
            if before is not None and before.settled and before.stamp == stamp:
                known = before
            else:
                changed.append(path)
                settled = abs(now - found.st_mtime_ns) > tick_of(found.st_mtime_ns)
                known = _Known(stamp, settled, _below(path) if depth else ())
        except FileNotFoundError:  # removed between one look and the other
            return
        except OSError as error:
            if closed is None:
                raise
            closed[path] = error
            return
        seen[path] = known
        for below in known.below:
            self._visit(below, depth - 1, seen, changed, closed)


def _below(path: str) -> tuple[str, ...]:
    with os.scandir(path) as entries:
        return tuple(entry.path for entry in entries if entry.is_dir(follow_symlinks=False))
