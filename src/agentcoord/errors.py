"""One tree of errors; each class knows the exit status it means.

Each is there because some caller treats it differently from the rest. What a library or the system
raises is turned into one of these where it is met, and kept as the `__cause__`.
"""

from collections.abc import Sequence
from enum import IntEnum, StrEnum
from typing import ClassVar


class Exit(IntEnum):
    """What the shell sees (spec: cli §1.2)."""

    OK = 0
    USAGE = 1
    UNKNOWN = 2
    REFUSED = 3
    RESERVATION_REFUSED = 4  # reserved by the contract, never emitted
    STACK_USAGE = 64
    INTERRUPTED = 130


class CoordError(Exception):
    """Raised on purpose; its text is the one line a person reads.

    `finding` is what the doctor calls it, and `mend` the one shell command that mends it; None where
    no single one does.
    """

    exit: ClassVar[Exit] = Exit.UNKNOWN
    topic: ClassVar[str] = "unknown"
    """The finding of an error that was given none of its own."""

    def __init__(self, *said: object, finding: str | None = None, mend: str | None = None) -> None:
        super().__init__(*said)
        self.finding = finding or self.topic
        self.mend = mend

    @property
    def lines(self) -> Sequence[str]:
        """Give what is said of it, line by line: one line but for a text of our own that has several."""
        return (str(self),)


class UsageError(CoordError):
    """The call is at fault. Nothing was written, with one exception.

    A closeout that its batch, read again, contradicts or has no lane for any more has by then stored
    its event, and may have released its claim.
    """

    exit: ClassVar[Exit] = Exit.USAGE
    topic: ClassVar[str] = "usage"


class StackUsageError(UsageError):
    """The invocation of the stack component contract is wrong."""

    exit: ClassVar[Exit] = Exit.STACK_USAGE


class ConfigError(CoordError):
    """The configuration cannot be trusted, so no backend can be chosen."""

    topic: ClassVar[str] = "configuration"


class StoreError(CoordError):
    """No answer of the backend is good enough to act on; how things stand is UNKNOWN."""

    topic: ClassVar[str] = "backend"


class Undecided(StoreError):
    """Neither a yes nor a no came of the backend: no answer, or one that nobody can read, as of a captive portal."""


class Rejected(StoreError):
    """The backend answered, with a status that gives nothing to act on.

    `status` is HTTP's, `reason` the backend's own word for it or the start of what it said instead: then it is not
    `worded`, and may come of somebody in between. `retry_after` is how many seconds it asks to be left alone, if any.
    """

    def __init__(
        self, message: str, *, status: int, reason: str, worded: bool = True, retry_after: float | None = None
    ) -> None:
        self.status = status
        self.reason = reason
        self.worded = worded
        self.retry_after = retry_after
        super().__init__(message)

    @property
    def unsupported(self) -> bool:
        """Whether the backend does not know of such state at all, as an older one may not (spec: cli §8.2)."""
        return any(code in self.reason for code in ("invalid_prefix", "invalid_path", "route_not_found"))


class Conflict(StoreError):
    """The record is not, or no longer, what the caller decided on; this write does not stand.

    It was not made, or its answer was lost and another has replaced it by now: then that is the `__cause__`.
    """

    def __init__(self, path: str, *, exists: bool = False) -> None:
        self.path = path
        super().__init__(f"state already exists at {path}" if exists else f"state changed at {path}")


class TooMany(StoreError):
    """A prefix holds more records than its reader may look at; none of them was decoded."""


class Busy(StoreError):
    """Another process holds the lock of a file for longer than was to be waited; nothing was written."""


class Defect(StrEnum):
    """Why one record cannot be read; the value is how a status note puts it (spec: cli §8.3)."""

    MALFORMED = "unreadable"
    NOT_AN_OBJECT = "not a claim record"
    NOT_READABLE = "not readable"
    PATH_TOO_LONG = "path too long"
    FORBIDDEN = "not readable by scoped token"
    SYMLINK = "is a symlink"
    NOT_REGULAR = "is not a regular file"
    SYMLINKED_DIRECTORY = "is in a symlinked directory"
    NOT_IN_DIRECTORY = "is not in a directory"


class Unreadable(StoreError):
    """One record is there but cannot be read; others may be fine."""

    topic: ClassVar[str] = "records.unreadable"

    def __init__(self, message: str, *, path: str, defect: Defect, mend: str | None = None) -> None:
        self.path = path
        self.defect = defect
        super().__init__(message, mend=mend)
