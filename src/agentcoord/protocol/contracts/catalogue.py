"""All published contracts: the schema of each, who checks it here, and where its records would be kept."""

from collections.abc import Callable, Mapping
from typing import Any

from msgspec import Struct

from agentcoord.protocol.attention import require_attention
from agentcoord.protocol.contracts import (
    batch_blockers,
    batch_completions,
    capacity,
    envelopes,
    host_limits,
    lane_closed,
    merge_authority,
    routes,
    usage,
)
from agentcoord.protocol.contracts.vocabulary import storage_path

STATE = "schema/state/v1"
LIVE = "contracts"


class Contract(Struct, frozen=True, kw_only=True):
    """One contract. `schema` is relative to the project; a contract without a key rides on another record."""

    family: str
    schema: str
    require: Callable[[object], object]
    """Raises UsageError for a value that breaks the contract."""
    version: int = 1
    key: tuple[str, ...] = ()
    template: str | None = None
    encoded: tuple[str, ...] = ()
    """Fields that are spelled as segments before they become part of a path."""

    def path(self, record: Mapping[str, Any]) -> str | None:
        """Name the place of a checked record; None for what has none of its own."""
        if self.template is None:
            return None
        owner, _, name = str(record.get("repository", "")).partition("/")
        fields = {**record, "repository_owner": owner, "repository_name": name}
        return storage_path(self.template, fields, self.encoded)


CONTRACTS: tuple[Contract, ...] = (
    Contract(
        family="attention",
        schema=f"{STATE}/attention/attention-record.schema.json",
        require=require_attention,
        key=("workspace", "repository", "id"),
        template="attention/{workspace}/{repository_owner}/{repository_name}/{id}.json",
    ),
    Contract(
        family=host_limits.FAMILY,
        schema=f"{STATE}/host-limit.schema.json",
        require=host_limits.require_host_limit,
        key=host_limits.KEY,
        template=host_limits.TEMPLATE,
        encoded=host_limits.ENCODED,
    ),
    Contract(
        family="host_limit_projection",
        schema=f"{STATE}/host-limit-projection.schema.json",
        require=host_limits.read_projection,
    ),
    Contract(
        family=capacity.PROFILE,
        schema=f"{STATE}/capacity-reservation/capacity-profile.schema.json",
        require=capacity.require_profile,
        key=capacity.PROFILE_KEY,
        template=capacity.PROFILE_TEMPLATE,
        encoded=("workspace",),
    ),
    Contract(
        family=capacity.INBOX,
        schema=f"{STATE}/capacity-reservation/inbox.schema.json",
        require=capacity.require_inbox,
        key=capacity.INBOX_KEY,
        template=capacity.INBOX_TEMPLATE,
        encoded=("workspace",),
    ),
    Contract(
        family=capacity.OCCUPANCY,
        schema=f"{STATE}/capacity-reservation/lane-occupancy.schema.json",
        require=capacity.require_occupancy,
        key=capacity.OCCUPANCY_KEY,
        template=capacity.OCCUPANCY_TEMPLATE,
        encoded=("workspace", "lane_ref"),
    ),
    Contract(
        family=capacity.RESERVATION,
        schema=f"{STATE}/capacity-reservation/capacity-reservation.schema.json",
        require=capacity.require_reservation,
        key=capacity.RESERVATION_KEY,
        template=capacity.RESERVATION_TEMPLATE,
        encoded=("workspace",),
    ),
    Contract(
        family=usage.FAMILY,
        schema=f"{STATE}/usage/usage-record.schema.json",
        require=usage.require_usage,
        key=usage.KEY,
        template=usage.TEMPLATE,
        encoded=usage.ENCODED,
    ),
    Contract(
        family="usage_projection",
        schema=f"{STATE}/usage/usage-projection.schema.json",
        require=usage.read_projection,
    ),
    Contract(family=routes.FAMILY, schema=f"{STATE}/route/route.schema.json", require=routes.require_routed),
    Contract(
        family=merge_authority.FAMILY,
        schema=f"{STATE}/merge-authority/merge-authority.schema.json",
        require=merge_authority.require_manifest,
    ),
    Contract(
        family=batch_completions.FAMILY,
        schema=f"{STATE}/batch-completion/batch-completion.schema.json",
        require=batch_completions.require_completion,
        key=batch_completions.KEY,
        template=batch_completions.TEMPLATE,
        encoded=batch_completions.ENCODED,
    ),
    Contract(
        family=batch_blockers.FAMILY,
        schema=f"{STATE}/batch-blocker/batch-blocker.schema.json",
        require=batch_blockers.require_blocker,
        key=batch_blockers.KEY,
        template=batch_blockers.TEMPLATE,
        encoded=batch_blockers.ENCODED,
    ),
    Contract(
        family=lane_closed.FAMILY,
        schema=f"{LIVE}/state-schema-v2.json",
        require=lane_closed.require_lane_closed,
        version=2,
    ),
    Contract(
        family="archive",
        schema=f"{LIVE}/archive-record-schema-v1.json",
        require=envelopes.require_envelope,
    ),
)
BY_FAMILY: Mapping[str, Contract] = {contract.family: contract for contract in CONTRACTS}
