"""A copy of a backend: what an answer from it says of itself, which answers are let into it, and how often to ask.

Everything that had happened by `as_of` is in the copy; some of what came later may be.
"""

from collections.abc import Sequence
from datetime import datetime
from typing import Literal

from msgspec import Struct

from agentcoord.errors import StoreError
from agentcoord.protocol.documents import Document
from agentcoord.protocol.instants import stamp

FEED_WAIT = 3
"""Seconds that a server is asked to wait for a change: a quiet copy is never much older."""

SOONEST, LATEST, UNWANTED = 10.0, 60.0, 900.0
"""Seconds from one pass over the listings to the next: the least, the most, and what they are when nobody asks."""
_SLOWER = 1.5
_SPACING, _SPACING_UNWANTED = 2.0, 10.0
"""Seconds for each request of the last pass: a server without a feed may count requests."""

_FIRST_RETRY = 0.25
RETRY, RETRY_COUNTED = 2.0, 60.0
"""Seconds until the next attempt at most: for what costs nobody anything, and for what a server may count."""
LONGEST_REST = 3600.0
"""Seconds until the next attempt at most, whatever a server wants."""


class Label(Struct, frozen=True):
    """Where an answer comes from. `as_of` is UTC, `age` in seconds; `filtered`: not all records may be seen."""

    source: Literal["replica", "backend"]
    as_of: datetime
    age: float = 0.0
    filtered: bool = False

    def facts(self) -> Document:
        """Give it as JSON answers carry it."""
        facts: Document = {"source": self.source, "as_of": stamp(self.as_of), "age_seconds": round(self.age, 1)}
        return facts | {"complete": False, "filtered": True} if self.filtered else facts


def require_page(prefix: str, after: str | None, paths: Sequence[str], cursor: str | None) -> None:
    """Check that a page of a listing says what it should: each record once, and none from outside its range.

    Raises StoreError. What is missing from the range is taken for deleted, so nothing is guessed here.
    """
    fault = None
    if len(set(paths)) != len(paths):
        fault = "a record twice"
    elif after is not None and any(path <= after for path in paths):
        fault = "records from before the cursor"
    elif cursor and (not paths or max(paths) > cursor or not cursor.startswith(f"{prefix}/")):
        fault = "records from beyond the next cursor"
    if fault is not None:
        raise StoreError(f"http backend list {prefix} returned malformed response: {fault}")


def retry_pause(failures: int, *, counted: bool, wanted: float | None, chance: float) -> float:
    """Seconds to rest after so many failures in a row; `wanted` is what the server asks for, `chance` from 0 to 1."""
    later = _FIRST_RETRY * 2.0 ** min(failures - 1, 20)
    if wanted is not None:  # who says "at once", again and again, does not mean it
        return min(max(wanted, min(later, RETRY)), LONGEST_REST) * (1 + chance / 10)
    return min(later, RETRY_COUNTED if counted else RETRY) * (0.5 + chance / 2)


def poll_pause(quiet: int, requests: int, *, wanted: bool, chance: float) -> float:
    """Seconds from a pass over the listings to the next, after so many passes in a row that found nothing new.

    `requests` is what a pass costs. Copies that were started together do not stay together.
    """
    if not wanted:
        pause = max(UNWANTED, _SPACING_UNWANTED * requests)
    else:
        pause = max(min(SOONEST * _SLOWER ** min(quiet, 20), LATEST), _SPACING * requests)
    return pause * (0.9 + chance / 10)
