"""Whether an acquisition that somebody believes in still holds, by what the records say now."""

from collections.abc import Mapping
from datetime import datetime
from typing import Any, Literal

from msgspec import Struct

from agentcoord.protocol.claims import HolderState, fence, holder_of
from agentcoord.protocol.instants import parse

Reason = Literal["held", "no_claim", "released", "another_acquisition", "expired"]


class Standing(Struct, frozen=True):
    """Whether an acquisition still is what the record says, who has the item, and why it is not."""

    held: bool
    reason: Reason
    holder: str | None = None
    seen: HolderState | None = None
    """The holder's heartbeat, where it was asked for."""
    until: str | None = None
    """The end of the lease as the record says it."""


def compare(claim: Mapping[str, Any] | None, expected: str) -> Standing:
    """Compare the record with a fence: `held` as far as the claim alone can tell. A fence is no secret."""
    holder = holder_of(claim)
    if claim is None:
        return Standing(held=False, reason="no_claim")
    if holder is None:
        return Standing(held=False, reason="released")
    said = claim.get("expires_at")
    until = None if said is None else str(said)
    if fence(claim) == expected:
        return Standing(held=True, reason="held", holder=holder, until=until)
    return Standing(held=False, reason="another_acquisition", holder=holder, until=until)


def judge(standing: Standing, seen: HolderState, now: datetime) -> Standing:
    """Complete what the claim says by its holder's heartbeat: held only while everybody else is refused."""
    if not standing.held:
        return standing
    ends = parse(standing.until)
    over = ends is None or ends <= now
    free = seen == "dead" or (seen in ("missing", "invalid", "unknown") and over)
    return Standing(
        held=not free,
        reason="expired" if free else "held",
        holder=standing.holder,
        seen=seen,
        until=standing.until,
    )


def explain(standing: Standing, repo: str, target: str) -> str:
    """Say in one line how an acquisition stands."""
    item, holder = f"{repo}#{target}", standing.holder or "an unknown agent"
    match standing.reason:
        case "held":
            return f"{item} is held by {holder} under this fence; heartbeat {standing.seen}"
        case "no_claim":
            return f"FENCE_LOST: nobody holds {item}; there is no claim"
        case "released":
            return f"FENCE_LOST: nobody holds {item}; it was released"
        case "expired":
            return (
                f"FENCE_LOST: anybody may take {item} from {holder}; heartbeat {standing.seen}, "
                f"lease until {standing.until or 'UNKNOWN'}"
            )
        case "another_acquisition":
            return f"FENCE_LOST: {item} is held by {holder} under another fence"
