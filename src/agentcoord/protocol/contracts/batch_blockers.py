"""Batch blockers: what a person has to decide before a batch goes on (spec: contracts, batch blocker v1)."""

from typing import Annotated

from msgspec import UNSET, Meta, Struct, UnsetType, field

from agentcoord.protocol.contracts.vocabulary import One, Text, conform, given

FAMILY = "batch_blocker"
KEY = ("workspace", "batch_id")
ENCODED = KEY
TEMPLATE = "batch_blockers/{workspace}/{batch_id}.json"


class Blocker(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What stops the batch, what is to be decided, and perhaps what to answer."""

    message: Text
    decisions: Annotated[tuple[Text, ...], Meta(min_length=1)]
    recommended_reply: Text | UnsetType = field(default=UNSET, name="recommendedReply")


class BatchBlocker(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The blocker of one batch."""

    schema_version: One
    workspace: Text
    batch_id: Text
    blocker: Blocker


def require_blocker(value: object) -> BatchBlocker:
    """Check a record. Raises UsageError."""
    return conform(value, BatchBlocker, "batch blocker")


def panel(record: BatchBlocker) -> dict[str, object]:
    """Give what a reader shows; an answer that nobody recommended is null there."""
    blocker = record.blocker
    return {
        "message": blocker.message,
        "decisions": list(blocker.decisions),
        "recommendedReply": given(blocker.recommended_reply),
    }
