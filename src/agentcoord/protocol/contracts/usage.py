"""Usage: what one model cost one lane, in tokens and in money; what nobody knows is said, never guessed.

A later report of the same lane and model replaces the earlier one, so reports may be repeated and come
in any order (spec: contracts, usage v1).
"""

from collections.abc import Iterable, Sequence
from decimal import ROUND_HALF_UP, Decimal
from typing import Literal

from msgspec import UNSET, Struct, UnsetType

from agentcoord.protocol.contracts.vocabulary import (
    Metric,
    One,
    RepoPair,
    Text,
    conform,
    instant,
    known,
    require_instants,
    require_whole,
)
from agentcoord.protocol.documents import canonical

FAMILY = "usage"
KEY = ("workspace", "repo", "batch_id", "lane_name", "agent_id", "target", "model")
ENCODED = KEY
TEMPLATE = "usage/{workspace}/{repo}/{batch_id}/{lane_name}/{agent_id}/{target}/{model}.json"

_CENT = Decimal("0.01")


class Usage(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What one model used for one lane, up to the moment of the report."""

    schema_version: One
    workspace: Text
    repo: RepoPair
    batch_id: Text
    lane_name: Text
    agent_id: Text
    target: Text
    model: Text
    input_tokens: Metric
    output_tokens: Metric
    cost: Metric
    currency: Literal["USD"] | UnsetType = UNSET
    reported_at: str

    def __post_init__(self) -> None:
        require_whole(self, "input_tokens", "output_tokens")
        require_instants(self, "reported_at")

    @property
    def key(self) -> tuple[str, ...]:
        """Tell this usage from all others, and not from later reports of it."""
        return tuple(getattr(self, name) for name in KEY)


class Projection(Struct, frozen=True, kw_only=True):
    """A status document, of which only the usage matters here."""

    usage: tuple[Usage, ...] | UnsetType = UNSET


class Totals(Struct, frozen=True, kw_only=True):
    """Sums of what is known; None where nothing is."""

    input_tokens: int | float | None
    output_tokens: int | float | None
    cost: int | float | None


class Aggregate(Struct, frozen=True, kw_only=True):
    """What a batch used."""

    tokens_by_model: dict[str, Totals]
    batch_totals: Totals
    records_with_unknown_metrics: int


def require_usage(value: object) -> Usage:
    """Check a record. Raises UsageError."""
    return conform(value, Usage, "usage")


def read_projection(value: object) -> tuple[Usage, ...]:
    """Read the usage of a status document. Raises UsageError."""
    reported = conform(value, Projection, "usage projection").usage
    return () if reported is UNSET else reported


def latest(reports: Iterable[Usage]) -> list[Usage]:
    """Keep the newest report of each key; of two at the same instant the one whose canonical JSON is the larger."""
    kept: dict[tuple[str, ...], Usage] = {}
    for report in reports:
        other = kept.get(report.key)
        if other is None or _order(report) > _order(other):
            kept[report.key] = report
    return list(kept.values())


def _order(report: Usage) -> tuple[object, ...]:
    return instant(report.reported_at), canonical(report)


def aggregate(reports: Iterable[Usage]) -> Aggregate:
    """Add up the reports of a batch, by model and together; what is unknown adds nothing and stays visible."""
    counted = latest(reports)
    models: dict[str, list[Usage]] = {}
    for report in counted:
        models.setdefault(report.model, []).append(report)
    unknown = [
        report for report in counted if None in map(known, (report.input_tokens, report.output_tokens, report.cost))
    ]
    return Aggregate(
        tokens_by_model={model: _totals(of_model) for model, of_model in models.items()},
        batch_totals=_totals(counted),
        records_with_unknown_metrics=len(unknown),
    )


def _totals(reports: Sequence[Usage]) -> Totals:
    return Totals(
        input_tokens=_sum([known(report.input_tokens) for report in reports]),
        output_tokens=_sum([known(report.output_tokens) for report in reports]),
        cost=_money([known(report.cost) for report in reports]),
    )


def _sum(metrics: Sequence[int | float | None]) -> int | None:
    numbers = [int(metric) for metric in metrics if metric is not None]
    return sum(numbers) if numbers else None


def _money(metrics: Sequence[int | float | None]) -> float | None:
    # In decimal: as binary fractions, a tenth and two tenths are not three.
    amounts = [Decimal(str(metric)) for metric in metrics if metric is not None]
    return float(sum(amounts, Decimal(0)).quantize(_CENT, ROUND_HALF_UP)) if amounts else None
