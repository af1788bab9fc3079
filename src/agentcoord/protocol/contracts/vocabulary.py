"""The words that the contracts share, and how a JSON value is held against one of their types.

A field that may be missing is UNSET when it is: null is a value, and only a metric may have it.
"""

import re
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Annotated, Any, Literal, TypeVar, cast

import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType

from agentcoord.errors import UsageError
from agentcoord.protocol.instants import Exact, exact, is_rfc3339
from agentcoord.protocol.uris import is_web_uri

UNKNOWN_METRIC = "—"
"""How a metric that nobody knows is shown, and may be written; null means the same."""

Text = Annotated[str, Meta(min_length=1)]
Reason = Annotated[str, Meta(min_length=1, max_length=256)]
CanonicalId = Annotated[str, Meta(max_length=128, pattern=r"^[a-z0-9](?:[a-z0-9._-]{0,126}[a-z0-9])?\Z")]
LaneRef = Annotated[str, Meta(min_length=3, max_length=256, pattern=r"^[A-Za-z0-9_.:-]+:[A-Za-z0-9_.-]+\Z")]
RepoPair = Annotated[str, Meta(pattern=r"^[^/]+/[^/]+\Z")]

# JSON knows one kind of number: 1.0 is an integer to it, as 1 is.
One = Annotated[int, Meta(ge=1, le=1)] | Annotated[float, Meta(ge=1, le=1)]
Amount = Annotated[int, Meta(ge=0)] | Annotated[float, Meta(ge=0)]
Metric = Amount | Literal["—"] | None
"""A number that is known, or a word for that it is not."""

T = TypeVar("T")
E = TypeVar("E")


def conform(value: object, kind: type[T], what: str) -> T:
    """Hold a JSON value against a type and return it as one. Raises UsageError naming `what` and the field at fault."""
    try:
        return msgspec.convert(value, kind)
    except msgspec.ValidationError as error:
        raise UsageError(f"{what} does not keep its contract: {error}") from None


def require_instants(record: Struct, *names: str) -> None:
    """Check those of the fields that are there. Raises ValueError."""
    for name in names:
        value = getattr(record, name)
        if value is not UNSET and value is not None and not is_rfc3339(value):
            raise ValueError(f"`{name}` must be an RFC 3339 date-time")


def require_whole(record: Struct, *names: str) -> None:
    """Check that numbers are integers, as 900 and 900.0 both are. Raises ValueError."""
    for name in names:
        value = getattr(record, name)
        if isinstance(value, float) and not value.is_integer():
            raise ValueError(f"`{name}` must be an integer")


def require_web_uri(name: str, value: object) -> None:
    """Check a field that may be missing. Raises ValueError."""
    if value is not UNSET and not is_web_uri(value):
        raise ValueError(f"`{name}` must be an HTTP(S) URI with a host")


def require_present(record: Struct, name: str, wanted: bool, when: str) -> None:
    """Check that a field is there exactly when it should be. Raises ValueError."""
    if (getattr(record, name) is not UNSET) != wanted:
        raise ValueError(f"`{name}` belongs there {when}, and only then")


def require_unique(records: Iterable[Struct], key: tuple[str, ...], what: str) -> None:
    """Check that no two records have one logical key. Raises UsageError naming it."""
    seen: set[tuple[object, ...]] = set()
    for record in records:
        named = tuple(getattr(record, name) for name in key)
        if named in seen:
            raise UsageError(f"two {what} records have one key: {', '.join(map(str, named))}")
        seen.add(named)


def instant(text: str) -> Exact:
    """Read an instant that was checked."""
    return cast("Exact", exact(text))


def at(now: datetime) -> Exact:
    """Give the clock's instant in the form that the instants of records are compared in."""
    return cast("Exact", exact(now.astimezone(UTC).isoformat()))


def known(metric: float | str | None) -> int | float | None:
    """Give a metric as a number; None when nobody knows it."""
    return None if metric is None or isinstance(metric, str) else metric


def shown(metric: object) -> object:
    """Give what a reader sees of an optional value."""
    return UNKNOWN_METRIC if metric is None else metric


def given(value: E | UnsetType) -> E | None:
    """Give a field's value, or None where it is missing."""
    return None if value is UNSET else value


_KEPT = frozenset(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_-")
_FIELD = re.compile(r"\{([a-z_]+)\}")


def storage_segment(text: str) -> str:
    """Spell any text as one path segment that no other text is spelled as; dots are escaped as well."""
    return "".join(chr(byte) if byte in _KEPT else f"%{byte:02X}" for byte in text.encode())


def storage_path(template: str, fields: Mapping[str, Any], encoded: Iterable[str]) -> str:
    """Name the place of a record by the template of its contract; `encoded` are the fields that need spelling."""
    escaped = frozenset(encoded)

    def fill(found: re.Match[str]) -> str:
        value = str(fields[found[1]])
        return storage_segment(value) if found[1] in escaped else value

    return _FIELD.sub(fill, template)
