"""What a stored record may hold: anything that JSON can, leaning towards what the rules look at."""

from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from typing import Any, cast

from hypothesis import strategies as st

from agentcoord.protocol.instants import stamp
from agentcoord.protocol.records import METADATA, SYNTHETIC
from agentcoord.protocol.trail import Row, event_of, row_of

Json = dict[str, Any]

NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)


def named(value: object) -> str:
    """Name a table's row by the change it makes, and by nothing else of it."""
    return str(cast("Json", value)) if isinstance(value, dict) else ""


readable = st.text(st.characters(codec="utf-8"), max_size=6)
instants = st.datetimes(
    datetime(1000, 1, 1),  # noqa: DTZ001 - the bounds are asked for without a zone
    datetime(9998, 12, 31),  # noqa: DTZ001
    timezones=st.just(UTC),
)
nearby = st.integers(-100_000, 100_000).map(lambda seconds: NOW + timedelta(seconds=seconds))
words = st.sampled_from(
    [
        *["active", "released", "done", "abandoned", "superseded", "in_progress", "UNKNOWN", "unknown", "default"],
        *["claim.acquired", "claim.released", "phase.changed", "lane_closed", "a1", "a2", "b1", "o/r", "7", "issue:7"],
        *["", " ", "w", "2026-01-01T12:00:00Z", "2026-02-30T12:00:00Z", "https://x.test/1", "..", "a:b", "m1"],
    ]
)
scalars = st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats(allow_nan=False, allow_infinity=False)
values: st.SearchStrategy[Any] = st.recursive(
    scalars | words | readable | nearby.map(stamp),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(words, inner, max_size=2),
    max_leaves=3,
)
metadata = st.fixed_dictionaries({}, optional=dict.fromkeys((*METADATA, *SYNTHETIC), readable))


def records(fields: Iterable[str], base: Json | None = None) -> st.SearchStrategy[Json]:
    """Objects with some of the given fields, and a few that nobody knows; what `base` has is often left."""
    changes = st.dictionaries(st.sampled_from([*fields, "custom", "é"]), values, max_size=5)
    return changes if base is None else st.builds(_over, st.sampled_from([{}, base, base]), changes)


def _over(base: Json, changes: Json) -> Json:
    return base | changes


EVENT: Json = {
    "event_id": "e-1",
    "batch_id": "b-1",
    "type": "note",
    "at": "2026-01-01T12:00:00Z",
    "agent_id": "w-1",
    "repo": "acme/widgets",
    "target": "319",
}
"""An event as most are."""


def row(**fields: Any) -> Row:
    """Show that event, with other facts."""
    return row_of(event_of(EVENT | fields))
