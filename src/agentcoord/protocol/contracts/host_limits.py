"""Host limits: a pool of usage that is spent until it is filled again, shared by whoever draws from it.

The pool is `quota_host`, a name of its own: the host of a lane says which program runs there, and
nobody here concludes the one from the other (spec: contracts, host limit v1).
"""

from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Literal

import msgspec
from msgspec import UNSET, Struct, UnsetType

from agentcoord.errors import UsageError
from agentcoord.protocol.contracts.vocabulary import (
    CanonicalId,
    One,
    Text,
    at,
    conform,
    instant,
    require_instants,
    require_present,
    require_unique,
)
from agentcoord.protocol.instants import stamp

FAMILY = "host_limit"
KEY = ("workspace", "machine", "quota_host", "scope")
ENCODED = ("workspace", "machine")
TEMPLATE = "host_limits/{workspace}/{machine}/{quota_host}/{scope}.json"

LaneStatus = Literal["available", "blocked-on-limit"]


class HostLimit(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """That a pool is spent, as somebody saw it; or that it is not any more."""

    schema_version: One
    workspace: Text
    machine: Text
    quota_host: CanonicalId
    scope: CanonicalId
    status: Literal["active", "cleared"]
    observed_at: str
    resets_at: str | None
    source: Literal["manual", "host-message", "hook", "probe"]
    cleared_at: str | UnsetType = UNSET

    def __post_init__(self) -> None:
        require_instants(self, "observed_at", "resets_at", "cleared_at")
        require_present(self, "cleared_at", self.status == "cleared", "when the status is cleared")


class Projection(Struct, frozen=True, kw_only=True):
    """A status document, of which only the host limits matter here."""

    host_limits: tuple[HostLimit, ...] | UnsetType = UNSET


class Lane(Struct, frozen=True, kw_only=True):
    """A lane that says which pool it draws from."""

    lane: Text
    workspace: Text
    machine: Text
    quota_host: CanonicalId


class _Pool(Struct, frozen=True):
    quota_host: CanonicalId


def require_host_limit(value: object) -> HostLimit:
    """Check a record. Raises UsageError."""
    return conform(value, HostLimit, "host limit")


def read_projection(value: object) -> tuple[HostLimit, ...]:
    """Read the host limits of a status document. Raises UsageError."""
    limits = conform(value, Projection, "host limit projection").host_limits
    return () if limits is UNSET else limits


def require_limits(limits: Iterable[HostLimit]) -> None:
    """Check what a schema cannot say: one record a key, and none cleared before it was seen. Raises UsageError."""
    kept = list(limits)
    require_unique(kept, KEY, "host limit")
    for limit in kept:
        if limit.cleared_at is not UNSET and instant(limit.cleared_at) < instant(limit.observed_at):
            raise UsageError("host limit `cleared_at` must not precede `observed_at`")


def canonical_pool(name: str) -> str:
    """Spell the name of a pool as it is kept. Raises UsageError for one that is none."""
    return conform({"quota_host": name.strip().lower()}, _Pool, "quota host").quota_host


def renew(stored: HostLimit | None, seen: HostLimit) -> HostLimit:
    """Give the record to keep when a limit is seen (again): while it lasts, it was first seen when it was."""
    if stored is None or stored.status == "cleared":
        return seen
    return msgspec.structs.replace(seen, observed_at=stored.observed_at)


def clear(stored: HostLimit, now: datetime) -> HostLimit:
    """Give the record to keep when a limit is lifted; one that is cleared stays as it is."""
    if stored.status == "cleared":
        return stored
    spelled = stamp(now)
    first = spelled if instant(spelled) >= instant(stored.observed_at) else stored.observed_at
    return msgspec.structs.replace(stored, status="cleared", cleared_at=first)


def is_effective(limit: HostLimit, now: datetime) -> bool:
    """Tell whether a limit still holds; at the moment of its reset it does not."""
    return limit.status == "active" and (limit.resets_at is None or instant(limit.resets_at) > at(now))


def lane_statuses(lanes: Iterable[Lane], limits: Iterable[HostLimit], now: datetime) -> Mapping[str, LaneStatus]:
    """Tell which lanes wait for a pool. Any limit of a pool blocks: what its scope is does not matter."""
    spent = {(limit.workspace, limit.machine, limit.quota_host) for limit in limits if is_effective(limit, now)}
    return {
        lane.lane: "blocked-on-limit" if (lane.workspace, lane.machine, lane.quota_host) in spent else "available"
        for lane in lanes
    }
