"""Capacity: how many lanes a profile may run, where they come from, which run, and which are promised.

Four families. What a schema cannot say of one record or of several together is checked here; who gets
a slot is decided in `admission` (spec: contracts, capacity reservation v1).
"""

from collections.abc import Iterable
from datetime import datetime
from typing import Annotated, Literal

from msgspec import UNSET, Meta, Struct, UnsetType

from agentcoord.errors import UsageError
from agentcoord.protocol.contracts.vocabulary import (
    CanonicalId,
    LaneRef,
    One,
    Reason,
    Text,
    at,
    conform,
    given,
    instant,
    require_instants,
    require_present,
    require_unique,
    require_whole,
)

PROFILE, INBOX, OCCUPANCY, RESERVATION = "capacity_profile", "inbox", "lane_occupancy", "capacity_reservation"

PROFILE_KEY = ("workspace", "capacity_profile_id")
INBOX_KEY = ("workspace", "inbox_id")
OCCUPANCY_KEY = ("workspace", "lane_ref")
RESERVATION_KEY = ("workspace", "reservation_id")

PROFILE_TEMPLATE = "capacity_profiles/{workspace}/{capacity_profile_id}.json"
INBOX_TEMPLATE = "inboxes/{workspace}/{inbox_id}.json"
OCCUPANCY_TEMPLATE = "lane_occupancies/{workspace}/{lane_ref}.json"
RESERVATION_TEMPLATE = "capacity_reservations/{workspace}/{reservation_id}.json"

COUNTS_AS_OCCUPIED = ("occupied", "blocked")
"""States of a lane that take a slot: one that waits for a person still has its agent."""

DEFAULT_TTL = 900
"""Seconds that a reservation holds unless it says otherwise."""

BatchId = Annotated[str, Meta(min_length=1, max_length=254, pattern=r"^[A-Za-z0-9_.:-]+\Z")]
TtlSeconds = Annotated[int, Meta(ge=60, le=3600)] | Annotated[float, Meta(ge=60, le=3600)]
Slots = Annotated[int, Meta(ge=1, le=1000)] | Annotated[float, Meta(ge=1, le=1000)]
Switch = Literal["enabled", "disabled"]


class CapacityProfile(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """How many lanes may run at once."""

    schema_version: One
    workspace: Text
    capacity_profile_id: CanonicalId
    status: Switch
    max_concurrency: Slots
    updated_at: str

    def __post_init__(self) -> None:
        require_whole(self, "max_concurrency")
        require_instants(self, "updated_at")


class Inbox(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Where work comes from, and the profile that it is run under."""

    schema_version: One
    workspace: Text
    inbox_id: CanonicalId
    capacity_profile_id: CanonicalId
    status: Switch
    updated_at: str

    def __post_init__(self) -> None:
        require_instants(self, "updated_at")


class LaneOccupancy(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """That a lane was launched, and what has become of it."""

    schema_version: One
    workspace: Text
    lane_ref: LaneRef
    capacity_profile_id: CanonicalId
    inbox_id: CanonicalId
    state: Literal["occupied", "blocked", "terminal", "cancelled"]
    blocked_reason: Reason | UnsetType = UNSET
    terminal_at: str | UnsetType = UNSET
    updated_at: str

    def __post_init__(self) -> None:
        require_instants(self, "terminal_at", "updated_at")
        require_present(self, "blocked_reason", self.state == "blocked", "when the lane is blocked")
        require_present(self, "terminal_at", self.state in ("terminal", "cancelled"), "when the lane has ended")


class LaneHold(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One slot that is promised to a lane, or was."""

    lane_ref: LaneRef
    state: Literal["active", "consumed", "released", "expired"]
    consumed_at: str | UnsetType = UNSET
    released_at: str | UnsetType = UNSET
    expired_at: str | UnsetType = UNSET

    def __post_init__(self) -> None:
        for ended in ("consumed", "released", "expired"):
            require_present(self, f"{ended}_at", self.state == ended, f"when the hold is {ended}")
        require_instants(self, "consumed_at", "released_at", "expired_at")


class CapacityReservation(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Slots promised together to one owner, for a batch or for an attempt at planning one."""

    schema_version: One
    workspace: Text
    reservation_id: CanonicalId
    capacity_profile_id: CanonicalId
    inbox_id: CanonicalId
    batch_id: BatchId | UnsetType = UNSET
    planning_attempt_id: Reason | UnsetType = UNSET
    owner_machine: Reason
    owner_id: Reason
    instance_id: Reason
    created_at: str
    expires_at: str
    ttl_seconds: TtlSeconds
    lane_holds: Annotated[tuple[LaneHold, ...], Meta(min_length=1, max_length=1000)]

    def __post_init__(self) -> None:
        require_scope(self.batch_id, self.planning_attempt_id)
        require_whole(self, "ttl_seconds")
        require_instants(self, "created_at", "expires_at")
        if len(set(self.lane_holds)) != len(self.lane_holds):
            raise ValueError("`lane_holds` must be distinct")

    @property
    def owner(self) -> tuple[str, str, str]:
        """Who may act on it: all three parts, or nobody."""
        return self.owner_machine, self.owner_id, self.instance_id


def require_scope(batch_id: str | UnsetType, planning_attempt_id: str | UnsetType) -> None:
    """Check that slots are asked for a batch or for an attempt to plan one. Raises ValueError."""
    if (batch_id is UNSET) == (planning_attempt_id is UNSET):
        raise ValueError("exactly one of `batch_id` and `planning_attempt_id` belongs there")


def require_profile(value: object) -> CapacityProfile:
    """Check a record. Raises UsageError."""
    return conform(value, CapacityProfile, "capacity profile")


def require_inbox(value: object) -> Inbox:
    """Check a record. Raises UsageError."""
    return conform(value, Inbox, "inbox")


def require_occupancy(value: object) -> LaneOccupancy:
    """Check a record. Raises UsageError."""
    return conform(value, LaneOccupancy, "lane occupancy")


def require_reservation(value: object) -> CapacityReservation:
    """Check a record by itself, without what its parts say of each other. Raises UsageError."""
    return conform(value, CapacityReservation, "capacity reservation")


# What records say of each other --------------------------------------------------------------------


def batch_of(lane_ref: str) -> str:
    """Read the batch of a lane; batch ids may contain colons, names of lanes do not."""
    return lane_ref.rpartition(":")[0]


def require_lanes_of(batch_id: str | UnsetType, lane_refs: Iterable[str]) -> None:
    """Check that lanes are asked for once each, and are the batch's own. Raises UsageError."""
    seen: set[str] = set()
    for lane_ref in lane_refs:
        if lane_ref in seen:
            raise UsageError(f"lane {lane_ref} is there twice in one reservation")
        seen.add(lane_ref)
        if batch_id is not UNSET and batch_of(lane_ref) != batch_id:
            raise UsageError(f"lane {lane_ref} is not of batch {batch_id}")


def require_consistent(reservation: CapacityReservation) -> None:
    """Check what the parts of a reservation say of each other. Raises UsageError."""
    require_lanes_of(reservation.batch_id, (hold.lane_ref for hold in reservation.lane_holds))
    (created, part), (expires, of_it) = instant(reservation.created_at), instant(reservation.expires_at)
    if part != of_it or expires - created != reservation.ttl_seconds:
        raise UsageError(
            f"reservation {reservation.reservation_id} must expire {reservation.ttl_seconds} s after it was created"
        )


def is_active(hold: LaneHold, reservation: CapacityReservation, now: datetime) -> bool:
    """Tell whether a slot is promised still; at the moment of expiry it is not, whoever has cleaned up or not."""
    return hold.state == "active" and at(now) < instant(reservation.expires_at)


def active_refs(reservations: Iterable[CapacityReservation], now: datetime) -> list[str]:
    """List the lanes that slots are promised to."""
    return [
        hold.lane_ref
        for reservation in reservations
        for hold in reservation.lane_holds
        if is_active(hold, reservation, now)
    ]


def used_refs(
    occupancies: Iterable[LaneOccupancy], reservations: Iterable[CapacityReservation], now: datetime
) -> set[str]:
    """Collect the lanes that take a slot: one that is promised a slot and has been launched takes one."""
    running = {lane.lane_ref for lane in occupancies if lane.state in COUNTS_AS_OCCUPIED}
    return running.union(active_refs(reservations, now))


def require_reservations(
    reservations: Iterable[CapacityReservation], occupancies: Iterable[LaneOccupancy], now: datetime
) -> None:
    """Check reservations against each other and against the lanes that run. Raises UsageError."""
    kept = list(reservations)
    require_unique(kept, RESERVATION_KEY, "capacity reservation")
    held: set[str] = set()
    for lane_ref in active_refs(kept, now):
        if lane_ref in held:
            raise UsageError(f"lane {lane_ref} is held by two reservations")
        held.add(lane_ref)
    launched = {_place(lane, lane.lane_ref) for lane in occupancies if lane.state == "occupied"}
    for reservation in kept:
        require_consistent(reservation)
        for hold in reservation.lane_holds:
            if hold.state == "consumed" and _place(reservation, hold.lane_ref) not in launched:
                raise UsageError(f"lane {hold.lane_ref} was launched from a reservation, and does not run")


def _place(record: LaneOccupancy | CapacityReservation, lane_ref: str) -> tuple[str, str, str, str]:
    return record.workspace, record.capacity_profile_id, record.inbox_id, lane_ref


def is_launched(reservation: CapacityReservation, lane_ref: str, occupancies: Iterable[LaneOccupancy]) -> bool:
    """Tell whether a lane runs where the reservation promised it would."""
    wanted = _place(reservation, lane_ref)
    return any(lane.state == "occupied" and _place(lane, lane.lane_ref) == wanted for lane in occupancies)


def scope_of(reservation: CapacityReservation) -> tuple[str | None, str | None]:
    """Tell what the slots are for."""
    return given(reservation.batch_id), given(reservation.planning_attempt_id)
