"""Instants: how they are written, and what counts as one when read (spec: records §2).

Everything is UTC. Records carry whole seconds; comparison of history is exact to any fraction.
"""

import re
from datetime import UTC, datetime, timedelta

_SHAPE = re.compile(
    r"(\d{4})-(\d\d)-(\d\d)[Tt](\d\d):(\d\d):(\d\d)(?:\.(\d+))?(?:[Zz]|([+-])(\d\d)(?::?(\d\d))?)",
    re.ASCII,
)
_STRICT_OFFSET = re.compile(r"(?:[Zz]|[+-]\d\d:\d\d)$", re.ASCII)
_STAMP_LENGTH = len("2026-01-01T00:00:00Z")
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

Exact = tuple[int, str]
"""Whole seconds since 1970 and the digits after the point, trailing zeros removed: ordered as the instants are."""


def stamp(instant: datetime) -> str:
    """Write an instant as records carry it: UTC, whole seconds."""
    return instant.astimezone(UTC).replace(tzinfo=None).isoformat(timespec="seconds") + "Z"


def whole(instant: datetime) -> datetime:
    """Drop the part of a second that a record cannot carry."""
    return instant.replace(microsecond=0)


def in_utc(instant: datetime) -> datetime:
    """Give an instant in UTC, stopping at the first and the last year that a record can spell."""
    try:
        return instant.astimezone(UTC)
    except OverflowError:
        return datetime.max.replace(tzinfo=UTC) if instant.year > 1 else datetime.min.replace(tzinfo=UTC)


def later(instant: datetime, seconds: int) -> datetime:
    """Add seconds, stopping at the last year that a record can spell."""
    try:
        return instant + timedelta(seconds=seconds)
    except OverflowError:
        return datetime(9999, 12, 31, 23, 59, 59, tzinfo=UTC)


def parse(value: object) -> datetime | None:
    """Read an ISO 8601 instant with an offset; None for anything else. Microseconds at most."""
    if not isinstance(value, str):
        return None
    if _is_shaped_as_stamp(value):
        try:
            return datetime.fromisoformat(value)
        except ValueError:
            pass
    exactly = exact(value)
    if exactly is None:
        return None
    seconds, fraction = exactly
    try:
        return _EPOCH + timedelta(seconds=seconds, microseconds=int(fraction[:6].ljust(6, "0")))
    except OverflowError:
        return None


def _is_shaped_as_stamp(value: str) -> bool:
    # The standard parser also takes other ISO forms of this length, and in newer versions hour 24.
    return len(value) == _STAMP_LENGTH and value[4::3] == "--T::Z" and value[11:13] != "24"


def exact(value: object) -> Exact | None:
    """Read an instant, keeping every fractional digit; None if it is none.

    A leap second (`:60`) is the first instant of the next minute. The fraction stays text, since a
    record may carry more digits than are read as a number.
    """
    if not isinstance(value, str):
        return None
    if _is_shaped_as_stamp(value):
        try:
            age = datetime.fromisoformat(value) - _EPOCH
        except ValueError:
            pass
        else:
            return age.days * 86400 + age.seconds, ""
    if (found := _SHAPE.fullmatch(value.strip())) is None:
        return None
    year, month, day, hour, minute, second = (int(part) for part in found.groups()[:6])
    if second > 60 or hour > 23 or minute > 59:
        return None
    try:
        base = datetime(year, month, day, hour, minute, tzinfo=UTC)
    except ValueError:
        return None
    seconds = int((base - _EPOCH).total_seconds()) + second
    fraction, sign, offset_hours, offset_minutes = found.group(7), *found.groups()[7:]
    if sign:
        minutes = int(offset_minutes or 0)  # ISO 8601 lets them be left out
        if int(offset_hours) > 23 or minutes > 59:
            return None
        offset = int(offset_hours) * 3600 + minutes * 60
        seconds += offset if sign == "-" else -offset
    return seconds, (fraction or "").rstrip("0")


def is_rfc3339(value: object) -> bool:
    """Tell whether a value is a full RFC 3339 timestamp: explicit offset, real calendar date."""
    return (
        isinstance(value, str)
        and value == value.strip()
        and _STRICT_OFFSET.search(value) is not None
        and exact(value) is not None
    )


def event_stamp(instant: datetime) -> str:
    """Write the time-sortable first half of an event id, in microseconds."""
    utc = instant.astimezone(UTC)
    return f"{utc.year:04d}{utc:%m%dT%H%M%S.%fZ}"  # %Y writes early years with fewer digits
