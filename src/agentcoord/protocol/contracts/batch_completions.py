"""Batch completions: what became of a finished batch, with its audit and its final report.

The report's own fields are spelled as its readers spell them. A record that conforms is ready to be
archived: it says where the batch lived, who audited it, and what it left (spec: contracts, batch completion v1).
"""

from typing import Annotated, Any, Literal

from msgspec import UNSET, Meta, Struct, UnsetType, field

from agentcoord.protocol.contracts.routes import Compact, Route
from agentcoord.protocol.contracts.vocabulary import (
    Amount,
    Metric,
    One,
    Text,
    conform,
    given,
    require_web_uri,
    require_whole,
    shown,
)

FAMILY = "batch_completion"
KEY = ("workspace", "batch_id")
ENCODED = KEY
TEMPLATE = "batch_completions/{workspace}/{batch_id}.json"

Scalar = str | int | float | bool | None
Number = Text | Annotated[int, Meta(ge=1)] | Annotated[float, Meta(ge=1)]
"""A pull request or an issue: by number, or as text."""


class Pair(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One named fact, and where to look it up."""

    k: Text
    v: Scalar
    href: str | UnsetType = UNSET

    def __post_init__(self) -> None:
        require_web_uri("href", self.href)


class State(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Where the state of the batch was while it lived, and where it can be replayed."""

    live: Pair
    replay: Pair | Literal["—"] | None


class Baseline(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What the results are compared with."""

    path: Text
    k: Text | UnsetType = UNSET
    v: Scalar | UnsetType = UNSET
    href: str | UnsetType = UNSET

    def __post_init__(self) -> None:
        require_web_uri("href", self.href)


class Link(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A label to follow."""

    label: Text
    href: str

    def __post_init__(self) -> None:
        require_web_uri("href", self.href)


class Outcome(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What became of one lane."""

    lane: Text
    refs: Text | UnsetType = UNSET
    links: tuple[Link, ...] | UnsetType = UNSET
    route: Compact | Route | UnsetType = UNSET
    pr: Number | UnsetType = UNSET
    sha: Text | UnsetType = UNSET
    issue: Number | UnsetType = UNSET

    def __post_init__(self) -> None:
        require_whole(self, "pr", "issue")


class Audit(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The verdict, and who gave it: when and of which version is part of how the author signs."""

    verdict: Literal["clean", "findings", "pending"]
    author: Text


class Completion(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The report of what was done; a metric that nobody knows is there all the same."""

    state: State
    receipts: Annotated[tuple[Pair, ...], Meta(min_length=1)]
    baseline: Baseline
    outcomes: tuple[Outcome, ...]
    usage: str | dict[str, Any] | None
    tokens_total: Metric = field(name="tokensTotal")
    cost: Metric
    duration: str | Amount | None
    """As text, or in seconds."""

    def __post_init__(self) -> None:
        if isinstance(self.tokens_total, float) and not self.tokens_total.is_integer():
            raise ValueError("`tokensTotal` must be an integer")


class BatchCompletion(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The completion of one batch."""

    schema_version: One
    workspace: Text
    batch_id: Text
    audit: Audit
    completion: Completion
    final_report: Text = field(name="finalReport")


def require_completion(value: object) -> BatchCompletion:
    """Check a record. Raises UsageError."""
    return conform(value, BatchCompletion, "batch completion")


def drawer(record: BatchCompletion) -> dict[str, object]:
    """Give what a reader shows of a finished batch; what is not known is a dash there."""
    done = record.completion
    return {
        "audit_chip": {"verdict": record.audit.verdict, "author": record.audit.author},
        "outcome_rows": [
            {
                "lane": outcome.lane,
                "refs": given(outcome.refs),
                "link_labels": [link.label for link in given(outcome.links) or ()],
            }
            for outcome in done.outcomes
        ],
        "rendered_metrics": {
            "usage": shown(done.usage),
            "tokensTotal": shown(done.tokens_total),
            "cost": shown(done.cost),
            "duration": shown(done.duration),
        },
        "final_report": record.final_report,
    }
