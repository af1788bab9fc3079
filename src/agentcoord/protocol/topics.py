"""What subscribers are told of, by the names that both ends use."""

from collections.abc import Iterable
from datetime import datetime

from agentcoord.protocol.documents import Document
from agentcoord.protocol.instants import stamp
from agentcoord.protocol.keeping import (
    LEASE_DROPPED,
    LEASE_EXPIRED,
    LEASE_EXPIRING,
    LEASE_HELD,
    LEASE_LOST,
    PROCESS_EXITED,
)

CHANGED = "changed"
"""Records changed on a backend, whoever changed them."""
ATTENTION_CHANGED = "attention.changed"
"""A request for attention is new, another or gone."""
LEASES = (PROCESS_EXITED, LEASE_EXPIRING, LEASE_EXPIRED, LEASE_LOST, LEASE_HELD, LEASE_DROPPED)
"""What becomes of a lease that is kept."""


def data_of_change(backend: str, families: Iterable[str], now: datetime) -> Document:
    """Give what is told under CHANGED: on which backend, named without secrets, and records of which families."""
    return {"backend": backend, "families": sorted(families), "at": stamp(now)}
