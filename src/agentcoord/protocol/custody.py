"""Who holds a work item, beside its trail: claims that no row shows to be over, in a line each (spec: cli §10.6)."""

from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Any

from msgspec import Struct

from agentcoord.protocol.events import LANE_CLOSED, RELEASED
from agentcoord.protocol.instants import Exact, exact
from agentcoord.protocol.paths import claim_key
from agentcoord.protocol.trail import (
    EPOCH,
    UNSAID,
    Item,
    Row,
    closer,
    family,
    first_shown,
    instant_key,
    reading,
    shown,
)
from agentcoord.protocol.workitems import identify

_ENDS_CUSTODY = (RELEASED, LANE_CLOSED)


class ClaimRecord(Struct, gc=False):
    """The fields of a claim that its line is made of, of any type."""

    repo: Any = None
    target: Any = None
    agent_id: Any = None
    status: Any = None
    machine_id: Any = None
    closed_by: Any = None
    host: Any = None
    phase: Any = None
    updated_at: Any = None
    expires_at: Any = None
    synthetic: Any = None
    synthetic_kind: Any = None


class ClaimRow(Struct, frozen=True):
    """A claim as it is shown beside a trail."""

    status: str
    machine: str
    host: str
    agent_id: str
    phase: str
    updated_at: str
    expires_at: str
    target: str
    lease_elapsed: bool
    synthetic: bool
    synthetic_kind: str


read_claim = reading(ClaimRecord, lambda claim, data: claim)
"""Read a claim's bytes as `read_event` does an event's, into a ClaimRecord."""


class Held(Struct, frozen=True):
    """A claim at its path, with the work item it is on."""

    path: str
    repo: str
    target: str
    claim: ClaimRecord


def held(path: str, claim: ClaimRecord) -> Held:
    """Name the work item of a claim; what the record does not say is said by its path."""
    repo, target = claim_key(path)
    return Held(path, shown(claim.repo) or repo, shown(claim.target) or target, claim)


def is_on(item: Item, repo: str, target: str) -> bool:
    """Tell whether a claim on a repository and target is one on exactly this item or lane, in any spelling."""
    return repo.lower() == item.repo.lower() and identify(target) == identify(item.target)


def current_claims(claims: Iterable[Held], rows: Sequence[Row], now: datetime) -> list[ClaimRow]:
    """Show the claims on an item that its rows do not show to be over, one for each lease, oldest first."""
    newest: dict[tuple[str, ...], Held] = {}
    for each in claims:
        claim = each.claim
        lease = (each.path,)
        if shown(claim.target) and shown(claim.agent_id):
            lease = (each.repo, each.target, shown(claim.agent_id))
        if lease not in newest or _updated(newest[lease]) < _updated(each):
            newest[lease] = each
    ended: dict[tuple[str | None, str | None], Exact] = {}
    for row in rows:
        if row.type in _ENDS_CUSTODY and row.instant is not None:
            key = (row.repo, row.target)
            ended[key] = max(ended.get(key, row.instant), row.instant)
    open_ = [each for each in newest.values() if not _is_over(each, ended)]
    return [_claim_row(each, now) for each in sorted(open_, key=_updated)]


def _updated(each: Held) -> tuple[bool, Exact, str]:
    return instant_key(exact(each.claim.updated_at), "")


def _is_over(each: Held, ended: dict[tuple[str | None, str | None], Exact]) -> bool:
    end = ended.get((each.repo, each.target))
    return end is not None and _updated(each) < instant_key(end, "")


def _claim_row(each: Held, now: datetime) -> ClaimRow:
    claim, host = each.claim, shown(each.claim.host)
    expires = exact(claim.expires_at)
    age = now - EPOCH
    present = (age.days * 86400 + age.seconds, f"{age.microseconds:06d}".rstrip("0"))
    return ClaimRow(
        status=shown(claim.status) or UNSAID,
        machine=first_shown(claim.machine_id, closer(claim.closed_by, "machine")) or UNSAID,
        host=family(host) or UNSAID,
        agent_id=shown(claim.agent_id) or UNSAID,
        phase=shown(claim.phase) or "-",
        updated_at=shown(claim.updated_at) or UNSAID,
        expires_at=shown(claim.expires_at) or UNSAID,
        target=each.target,
        lease_elapsed=expires is not None and expires < present,
        synthetic=claim.synthetic is True,
        synthetic_kind=shown(claim.synthetic_kind) or UNSAID,
    )
