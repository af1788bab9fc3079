"""Processes that tests started and left behind: their children, and programs of ours that nobody is a parent of."""

import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple


class Found(NamedTuple):
    """A process that is there, not one that only waits for its parent to look."""

    pid: int
    parent: int
    started: int
    """Ticks since the machine was started."""
    words: tuple[str, ...]

    @property
    def ours(self) -> bool:
        """Whether it runs this project, in this very installation."""
        here = os.path.dirname(sys.executable)
        return os.path.dirname(self.words[0]) == here and any("agentcoord" in word for word in self.words)

    @property
    def tests(self) -> bool:
        """Whether it runs tests, these or others."""
        return any(os.path.basename(word) == "pytest" for word in self.words)


def left(*, orphans: bool = True) -> list[str]:
    """Name the processes that are left of what this one started; none where the system does not list them.

    With `orphans`, also programs of ours that nobody is a parent of, since there is no telling who started them.
    """
    if not sys.platform.startswith("linux"):
        return []
    known = {found.pid: found for found in _all()}
    own = known[os.getpid()]
    return [
        f"{found.pid}: {' '.join(found.words)[:200]}"
        for found in known.values()
        if found is not own and found.started >= own.started and _left(found, own, known, orphans=orphans)
    ]


def left_at_last(*, orphans: bool = True) -> list[str]:
    """Name them once those are gone that were just about to end."""
    deadline = time.monotonic() + 20
    while (found := left(orphans=orphans)) and time.monotonic() < deadline:
        time.sleep(0.05)
    return found


def _left(found: Found, own: Found, known: dict[int, Found], *, orphans: bool) -> bool:
    above = list(_above(found, known))
    if own in above:
        return True
    return orphans and found.ours and not found.tests and not any(parent.tests for parent in above)


def _above(found: Found, known: dict[int, Found]) -> Iterator[Found]:
    while (parent := known.get(found.parent)) is not None:
        yield parent
        found = parent


def _all() -> Iterator[Found]:
    for place in Path("/proc").iterdir():
        if not place.name.isdecimal():
            continue
        try:
            fields = (place / "stat").read_text("utf-8", "replace").rpartition(")")[2].split()
            words = (place / "cmdline").read_bytes().rstrip(b"\0").decode("utf-8", "replace").split("\0")
        except OSError:  # it just ended
            continue
        if fields and fields[0] not in "ZXx":
            yield Found(int(place.name), int(fields[1]), int(fields[19]), tuple(words))
