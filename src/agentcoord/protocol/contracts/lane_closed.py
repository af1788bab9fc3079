"""The event that closes a lane for good, as every consumer of a trail may rely on it.

It may say more than is listed here. Which of two such events counts is decided where lanes are closed:
the first one does, and a second one that says the same is a retry (spec: contracts, lane_closed v2).
"""

from typing import Annotated, Literal

from msgspec import UNSET, Meta, Struct, UnsetType

from agentcoord.protocol.contracts.vocabulary import RepoPair, Text, conform, require_instants, require_web_uri

FAMILY = "lane_closed"

Two = Annotated[int, Meta(ge=2, le=2)] | Annotated[float, Meta(ge=2, le=2)]


class Closer(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Who closed a lane, and where."""

    agent_id: Text
    machine: Text


class LaneClosed(Struct, frozen=True, kw_only=True):
    """That a lane was closed, how, by whom, and with what evidence."""

    schema_version: Two
    event_id: Text
    type: Literal["lane_closed"]
    repo: RepoPair
    target: Text
    terminal: Literal["done", "abandoned", "superseded"]
    workspace: Text
    closed_by: Closer
    at: str
    batch_id: Text | UnsetType = UNSET
    lane: Text | UnsetType = UNSET
    branch: Text | UnsetType = UNSET
    pr_state: Text | UnsetType = UNSET
    pr_url: str | UnsetType = UNSET
    evidence_url: str | UnsetType = UNSET

    def __post_init__(self) -> None:
        require_instants(self, "at")
        require_web_uri("pr_url", self.pr_url)
        require_web_uri("evidence_url", self.evidence_url)


def require_lane_closed(value: object) -> LaneClosed:
    """Check an event. Raises UsageError."""
    return conform(value, LaneClosed, "lane_closed event")
