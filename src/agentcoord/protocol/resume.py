"""What the next agent needs of a work item: who had it last, where the work lies, and what was said on leaving it.

Pure choices among records that were read elsewhere. Nothing is inferred: what no record says is None.
"""

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, Literal

from msgspec import Struct

from agentcoord.protocol.claims import RELEASED, holder_of
from agentcoord.protocol.documents import Document, text
from agentcoord.protocol.instants import Exact, exact, parse
from agentcoord.protocol.liveness import liveness
from agentcoord.protocol.trail import instant_key, shown

Standing = Literal["held", "released", "closed", "unclaimed", "unknown"]
"""How a work item stands; `unknown` is a claim whose status is none that we know."""


class Found(Struct, frozen=True):
    """A claim at its path."""

    path: str
    claim: Document


class Tenure(Struct, frozen=True):
    """Who has a work item, or had it last, and by which evidence.

    `liveness` is that of the holder's heartbeat: None where there is none, or none that can be judged.
    """

    standing: Standing
    holder: str | None = None
    liveness: str | None = None
    since: str | None = None
    expires_at: str | None = None
    lease_elapsed: bool = False
    heard_at: str | None = None
    ttl: int | None = None
    """Seconds between two signs of life, at most."""
    machine: str | None = None
    session: str | None = None
    instance: str | None = None


def foremost(claims: Iterable[Found]) -> Found | None:
    """Choose the claim that says most of an item: one that is held before others, then the latest."""

    def key(found: Found) -> tuple[bool, tuple[bool, Exact, str]]:
        updated = found.claim.get("updated_at")
        return holder_of(found.claim) is not None, instant_key(exact(shown(updated)), "")

    return max(claims, key=key, default=None)


def tenure(claim: Mapping[str, Any] | None, beat: Mapping[str, Any] | None, now: datetime) -> Tenure:
    """Say who has the item of a claim; `beat` is the heartbeat of the agent that the claim names."""
    if claim is None:
        return Tenure("unclaimed")
    expires = parse(claim.get("expires_at"))
    standing = _standing(claim)
    seen: Mapping[str, Any] = beat or {}
    return Tenure(
        standing=standing,
        holder=text(claim, "agent_id"),
        liveness=None if beat is None else liveness(beat, now),
        since=text(claim, "released_at" if standing in ("released", "closed") else "claimed_at"),
        expires_at=text(claim, "expires_at"),
        lease_elapsed=expires is not None and expires <= now,
        heard_at=text(seen, "updated_at"),
        ttl=_ttl(seen),
        machine=_first((claim, seen), "machine_id"),
        session=_first((claim, seen), "session_id"),
        instance=_first((claim, seen), "instance_id"),
    )


def _standing(claim: Mapping[str, Any]) -> Standing:
    if holder_of(claim) is not None:
        return "held"
    if text(claim, "terminal") is not None:
        return "closed"
    return "released" if claim.get("status") == RELEASED else "unknown"


def _ttl(beat: Mapping[str, Any]) -> int | None:
    updated, expires = parse(beat.get("updated_at")), parse(beat.get("expires_at"))
    return None if updated is None or expires is None else int((expires - updated).total_seconds())


def said_of(records: Sequence[Mapping[str, Any] | None], field: str) -> str | None:
    """Give what the first of several records that says it says of a field."""
    return _first([record for record in records if record is not None], field)


def _first(records: Iterable[Mapping[str, Any]], field: str) -> str | None:
    return next((said for record in records if (said := text(record, field))), None)
