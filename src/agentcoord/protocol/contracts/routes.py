"""Routes: the model and effort that a lane is bound to, riding on its claim, heartbeat or manifest entry.

Both spellings say the same. Who has no route leaves the field out (spec: contracts, route v1).
"""

from typing import Annotated

from msgspec import UNSET, Meta, Struct, UnsetType

from agentcoord.protocol.contracts.vocabulary import conform

FAMILY = "route"
HIDDEN = "hidden"
"""What a reader shows where no route is given."""

Compact = Annotated[str, Meta(pattern=r"^[^/\s]+/[^/\s]+\Z")]
Solid = Annotated[str, Meta(pattern=r"^\S+\Z")]


class Route(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A route in parts: here a model may have a slash in its name."""

    model: Solid
    effort: Solid


class Routed(Struct, frozen=True, kw_only=True):
    """A record that may carry a route; whatever else it says is its own business."""

    route: Compact | Route | UnsetType = UNSET


def require_routed(value: object) -> Routed:
    """Check the route of a record. Raises UsageError."""
    return conform(value, Routed, "route")


def chip(record: Routed) -> str:
    """Spell the route as a reader sees it."""
    route = record.route
    if route is UNSET:
        return HIDDEN
    return route if isinstance(route, str) else f"{route.model}/{route.effort}"
