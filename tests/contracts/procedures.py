"""Procedural documents: the records in one, whatever they are wrapped in, and the rule that they break together."""

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any, cast

from msgspec import Struct

from agentcoord.protocol.contracts import capacity, host_limits
from agentcoord.protocol.contracts.catalogue import BY_FAMILY, Contract
from agentcoord.protocol.contracts.vocabulary import require_unique
from agentcoord.protocol.instants import parse
from tests.contracts.published import Fixture

Json = dict[str, Any]

_CAPACITY = (capacity.RESERVATION, capacity.OCCUPANCY, capacity.INBOX, capacity.PROFILE)
"""Each of these has the key fields of some that come after it, and of none before."""

_LONG_AGO = datetime(2000, 1, 1, tzinfo=UTC)


def records_in(fixture: Fixture, value: object) -> list[tuple[Contract, Json]]:
    """Find the records of a fixture's contract at any depth; what else stands in the document is not theirs."""
    capacities = fixture.folder.endswith("capacity-reservation")
    contracts = [BY_FAMILY[family] for family in _CAPACITY] if capacities else [fixture.contract]
    found: list[tuple[Contract, Json]] = []
    for record in _versioned(value):
        theirs = [contract for contract in contracts if record.keys() >= set(contract.key)]
        found += [(contract, record) for contract in theirs[:1]]
    return found


def _versioned(value: object) -> Iterator[Json]:
    if isinstance(value, dict):
        document = cast("Json", value)
        if "schema_version" in document:
            yield document
            return
        value = list(document.values())
    if isinstance(value, list):
        for inner in cast("list[object]", value):
            yield from _versioned(inner)


def require_rules(fixture: Fixture, value: object) -> None:
    """Ask what goes beyond the schema of one record. Raises UsageError naming what is wrong."""
    read: dict[str, list[Any]] = {}
    for contract, record in records_in(fixture, value):
        read.setdefault(contract.family, []).append(contract.require(record))
    for family, records in read.items():
        if family in (*_CAPACITY, host_limits.FAMILY):
            require_unique(cast("list[Struct]", records), BY_FAMILY[family].key, family)
    host_limits.require_limits(read.get(host_limits.FAMILY, ()))
    held: list[capacity.CapacityReservation] = read.get(capacity.RESERVATION, [])
    capacity.require_reservations(held, read.get(capacity.OCCUPANCY, ()), _as_of(value, held))


def _as_of(value: object, held: list[capacity.CapacityReservation]) -> datetime:
    """Take the moment that a document names, or else the first one at which all its reservations are there."""
    named = cast("Json", value).get("as_of") if isinstance(value, dict) else None
    instants = [parse(named)] if named is not None else [parse(each.created_at) for each in held]
    return max((instant for instant in instants if instant is not None), default=_LONG_AGO)
