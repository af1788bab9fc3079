"""Who gets a slot: reservations are asked for, consumed by the lanes they were made for, and given back.

All of a request is granted or nothing, from one snapshot, and what is missing or malformed refuses.
Asking again with the same id changes nothing: the same request is answered as before, another one is
a conflict (spec: contracts, capacity reservation v1).
"""

from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Annotated, Any

import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType

from agentcoord.errors import StoreError, UsageError
from agentcoord.protocol.contracts.capacity import (
    DEFAULT_TTL,
    INBOX_KEY,
    OCCUPANCY_KEY,
    BatchId,
    CapacityProfile,
    CapacityReservation,
    Inbox,
    LaneHold,
    LaneOccupancy,
    TtlSeconds,
    is_launched,
    require_lanes_of,
    require_reservations,
    require_scope,
    scope_of,
    used_refs,
)
from agentcoord.protocol.contracts.vocabulary import (
    CanonicalId,
    LaneRef,
    Reason,
    at,
    conform,
    given,
    instant,
    require_unique,
    require_whole,
)
from agentcoord.protocol.instants import later, stamp


class Snapshot(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """All that a decision rests on, read together."""

    capacity_profile: CapacityProfile
    inboxes: tuple[Inbox, ...]
    lane_occupancies: tuple[LaneOccupancy, ...]
    active_reservations: tuple[CapacityReservation, ...]


class Request(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Slots that are asked for."""

    reservation_id: CanonicalId
    capacity_profile_id: CanonicalId
    inbox_id: CanonicalId
    batch_id: BatchId | UnsetType = UNSET
    planning_attempt_id: Reason | UnsetType = UNSET
    owner_machine: Reason
    owner_id: Reason
    instance_id: Reason
    ttl_seconds: TtlSeconds = DEFAULT_TTL
    lane_refs: Annotated[tuple[LaneRef, ...], Meta(min_length=1, max_length=1000)]

    def __post_init__(self) -> None:
        require_scope(self.batch_id, self.planning_attempt_id)
        require_whole(self, "ttl_seconds")


class Accepted(Struct, frozen=True, tag=True):
    """The slots are promised: the record to write."""

    reservation: CapacityReservation


class Idempotent(Struct, frozen=True, tag=True):
    """The same was asked for before, and this is what was promised."""

    reservation: CapacityReservation


class Conflict(Struct, frozen=True, tag=True):
    """Something else was asked for under the same id."""

    reservation: CapacityReservation


class Refused(Struct, frozen=True, tag=True):
    """Nothing is promised, and why."""

    reason: str


Decision = Accepted | Idempotent | Conflict | Refused

OUTCOMES: Mapping[type, str] = {
    Accepted: "accepted",
    Idempotent: "idempotent",
    Conflict: "RESERVATION_CONFLICT",
    Refused: "RESERVATION_REFUSED",
}
"""What each decision is called among programs."""


def read_snapshot(value: object, now: datetime) -> Snapshot:
    """Check what a decision would rest on, each record and all together. Raises UsageError."""
    snapshot = conform(value, Snapshot, "capacity snapshot")
    profile, inboxes = snapshot.capacity_profile, snapshot.inboxes
    require_unique(inboxes, INBOX_KEY, "inbox")
    require_unique(snapshot.lane_occupancies, OCCUPANCY_KEY, "lane occupancy")
    here = (profile.workspace, profile.capacity_profile_id)
    for inbox in inboxes:
        if inbox.workspace != profile.workspace:
            raise UsageError(f"inbox {inbox.inbox_id} is of another workspace")
    known = {inbox.inbox_id for inbox in inboxes if (inbox.workspace, inbox.capacity_profile_id) == here}
    for record in (*snapshot.lane_occupancies, *snapshot.active_reservations):
        if (record.workspace, record.capacity_profile_id) != here or record.inbox_id not in known:
            raise UsageError(f"a record of inbox {record.inbox_id} is of another workspace or profile")
    require_reservations(snapshot.active_reservations, snapshot.lane_occupancies, now)
    return snapshot


def decide_reservation(request: object, snapshot: object, now: datetime) -> Decision:
    """Decide a request, as it was handed in, from a snapshot as it was read."""
    try:
        facts = read_snapshot(snapshot, now)
        asked = conform(request, Request, "reservation request")
        if asked.capacity_profile_id != facts.capacity_profile.capacity_profile_id:
            return Refused(f"the snapshot is not of capacity profile {asked.capacity_profile_id}")
        require_lanes_of(asked.batch_id, asked.lane_refs)
    except UsageError as error:
        return Refused(str(error))
    for stored in facts.active_reservations:
        if stored.reservation_id == asked.reservation_id:
            return Idempotent(stored) if _payload_of(stored) == _payload(asked) else Conflict(stored)
    return _decide_new(asked, facts, now)


def _decide_new(asked: Request, facts: Snapshot, now: datetime) -> Decision:
    profile = facts.capacity_profile
    if profile.status != "enabled":
        return Refused(f"capacity profile {profile.capacity_profile_id} is disabled")
    inbox = next((inbox for inbox in facts.inboxes if inbox.inbox_id == asked.inbox_id), None)
    if inbox is None or inbox.status != "enabled" or inbox.capacity_profile_id != profile.capacity_profile_id:
        return Refused(f"inbox {asked.inbox_id} is not there, disabled, or of another profile")
    used = used_refs(facts.lane_occupancies, facts.active_reservations, now)
    if taken := used.intersection(asked.lane_refs):
        return Refused(f"lane {min(taken)} has a slot")
    if len(asked.lane_refs) > remaining_slots(profile, used):
        return Refused(f"{len(asked.lane_refs)} slots wanted, {remaining_slots(profile, used)} free")
    return Accepted(_promised(asked, profile.workspace, now))


def remaining_slots(profile: CapacityProfile, used: Iterable[str]) -> int:
    """Count the free slots; a profile may have become smaller than what runs under it."""
    return max(0, int(profile.max_concurrency) - len(set(used)))


def _promised(asked: Request, workspace: str, now: datetime) -> CapacityReservation:
    return CapacityReservation(
        schema_version=1,
        workspace=workspace,
        reservation_id=asked.reservation_id,
        capacity_profile_id=asked.capacity_profile_id,
        inbox_id=asked.inbox_id,
        batch_id=asked.batch_id,
        planning_attempt_id=asked.planning_attempt_id,
        owner_machine=asked.owner_machine,
        owner_id=asked.owner_id,
        instance_id=asked.instance_id,
        created_at=stamp(now),
        expires_at=stamp(later(now, int(asked.ttl_seconds))),
        ttl_seconds=int(asked.ttl_seconds),
        lane_holds=tuple(LaneHold(lane_ref=lane_ref, state="active") for lane_ref in asked.lane_refs),
    )


def _payload(asked: Request) -> tuple[object, ...]:
    scope = given(asked.batch_id), given(asked.planning_attempt_id)
    owner = asked.owner_machine, asked.owner_id, asked.instance_id
    return asked.capacity_profile_id, asked.inbox_id, scope, owner, asked.ttl_seconds, sorted(asked.lane_refs)


def _payload_of(stored: CapacityReservation) -> tuple[object, ...]:
    lane_refs = sorted(hold.lane_ref for hold in stored.lane_holds)
    return (
        stored.capacity_profile_id,
        stored.inbox_id,
        scope_of(stored),
        stored.owner,
        stored.ttl_seconds,
        lane_refs,
    )


# What becomes of a promise -------------------------------------------------------------------------


def consume(
    reservation: CapacityReservation,
    lane_ref: str,
    *,
    owner: tuple[str, str, str],
    occupancies: Iterable[LaneOccupancy],
    now: datetime,
) -> CapacityReservation:
    """Give the record once the lane runs; it is unchanged when it says so already.

    Raises StoreError when the caller is not the owner, the slot is not promised (any more), or the lane does not run.
    """
    _require_owner(reservation, owner)
    hold = next((hold for hold in reservation.lane_holds if hold.lane_ref == lane_ref), None)
    if hold is None:
        raise StoreError(f"reservation {reservation.reservation_id} has no lane {lane_ref}")
    if hold.state == "consumed":
        return reservation
    if hold.state != "active":
        raise StoreError(f"the hold of lane {lane_ref} is {hold.state}")
    if at(now) >= instant(reservation.expires_at):
        raise StoreError(f"reservation {reservation.reservation_id} expired at {reservation.expires_at}")
    if not is_launched(reservation, lane_ref, occupancies):
        raise StoreError(f"lane {lane_ref} does not run under this reservation's profile and inbox")
    consumed = LaneHold(lane_ref=lane_ref, state="consumed", consumed_at=stamp(now))
    return _with(reservation, {lane_ref: consumed})


def release(reservation: CapacityReservation, *, owner: tuple[str, str, str], now: datetime) -> CapacityReservation:
    """Give the record without promises: what was consumed, or ended before, stays as it is.

    Raises StoreError when the caller is not the owner.
    """
    _require_owner(reservation, owner)
    expired = at(now) >= instant(reservation.expires_at)
    ended: dict[str, Any] = (
        {"state": "expired", "expired_at": reservation.expires_at}
        if expired
        else {"state": "released", "released_at": stamp(now)}
    )
    open_refs = [hold.lane_ref for hold in reservation.lane_holds if hold.state == "active"]
    return _with(reservation, {lane_ref: LaneHold(lane_ref=lane_ref, **ended) for lane_ref in open_refs})


def _require_owner(reservation: CapacityReservation, owner: tuple[str, str, str]) -> None:
    if reservation.owner != owner:
        raise StoreError(f"reservation {reservation.reservation_id} is owned by {'/'.join(reservation.owner)}")


def _with(reservation: CapacityReservation, changed: Mapping[str, LaneHold]) -> CapacityReservation:
    if not changed:
        return reservation
    holds = tuple(changed.get(hold.lane_ref, hold) for hold in reservation.lane_holds)
    return msgspec.structs.replace(reservation, lane_holds=holds)
