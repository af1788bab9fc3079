"""One tree of errors; each class knows the exit status it means.

A class exists only where somebody acts on it. Foreign exceptions stop at the adapter that met them
and live on as the `__cause__` of one of these.
"""

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
    """Raised on purpose; its text is the one line a person reads."""

    exit: ClassVar[Exit] = Exit.UNKNOWN


class UsageError(CoordError):
    """The invocation is wrong; nothing was written."""

    exit: ClassVar[Exit] = Exit.USAGE


class StackUsageError(UsageError):
    """The invocation of the stack component contract is wrong."""

    exit: ClassVar[Exit] = Exit.STACK_USAGE


class ConfigError(CoordError):
    """The configuration cannot be trusted, so no backend can be chosen."""


class StoreError(CoordError):
    """The backend cannot be trusted for this command: state is UNKNOWN."""


class Conflict(StoreError):
    """Another writer got there first; what was decided on is no longer so."""

    def __init__(self, path: str, *, exists: bool = False) -> None:
        self.path = path
        super().__init__(f"state already exists at {path}" if exists else f"state changed at {path}")


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

    def __init__(self, message: str, *, path: str, defect: Defect) -> None:
        self.path = path
        self.defect = defect
        super().__init__(message)
